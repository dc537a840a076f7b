"""``cdc quarantine`` lists the events that derived stores could not take, and applies them again."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import orjson

from cdc.cli.noted import noted
from cdc.cli.terminal import JSON_OPTION, aligned, clear_progress, progress_shown
from cdc.config.config import ApplyConfig, load_apply
from cdc.model.hints import APPLY

_FILE = click.argument("file", metavar="APPLY.yaml", type=click.Path(path_type=Path, dir_okay=False))
_TABLE = click.option("--table", metavar="SCHEMA.TABLE", help="Only events of this table.")
_STORE = click.option("--store", metavar="NAME", help="Only events that are missing in this store.")
_REPLAY = click.option("--as", "replay", metavar="NAME", help="That of a replay of the job, in place of its own.")


@click.group()
def quarantine() -> None:
    """Events that derived stores could not take: they block their own key, all others go on."""


@quarantine.command("list")
@_FILE
@_TABLE
@_STORE
@_REPLAY
@JSON_OPTION
def list_(file: Path, *, table: str | None, store: str | None, replay: str | None, as_json: bool) -> None:
    """Show which events are in quarantine, and why. Prints keys, and no other value of a row."""
    config = _of(load_apply(file), replay, copies=False)
    found = importlib.import_module("spark_apply.events.quarantine").chosen_entries(config, table=table, store=store)
    entries = [entry.as_json() for entry in found]
    if as_json:
        click.echo(orjson.dumps({"name": config.name, "entries": entries}))
    else:
        click.echo(_lines(entries, "reason") if entries else "empty: no event is in quarantine")


@quarantine.command()
@_FILE
@_TABLE
@_STORE
@_REPLAY
@click.option("--key", help="""Only of this key: JSON of its columns, {"id": 5}; of a single one also just 5.""")
@JSON_OPTION
def retry(
    file: Path, *, table: str | None, store: str | None, replay: str | None, key: str | None, as_json: bool
) -> int:
    """Apply the events again, once the reason why they did not fit is gone.

    Exit code 1 if some are left. A store of type postgres or tantivy has one writer: stop the apply job, retry, start
    the job.
    """
    job = load_apply(file)
    config = _of(job, replay, copies=True)
    on_terminal = sys.stderr.isatty()
    run = importlib.import_module("spark_apply.rebuild.quarantine_retry").run_retry
    with noted(job, "quarantine retry") as about:
        asked = {"store": store, "table": table, "replay": replay}
        about.update({name: value for name, value in asked.items() if value is not None})
        found = run(config, store=store, table=table, key=key, progress=progress_shown({APPLY: file}, live=on_terminal))
        done = [one.as_json() for one in found]
        left = sum(one["outcome"] == "left" for one in done)
        about.update(events=len(done), left=left)
    if on_terminal:
        clear_progress()
    if as_json:
        click.echo(orjson.dumps({"name": config.name, "left": left, "entries": done}))
    else:
        click.echo(_lines(done, "outcome", "reason") if done else "nothing to apply: no such event is in quarantine")
    return int(left > 0)


def _of(job: ApplyConfig, replay: str | None, *, copies: bool) -> ApplyConfig:
    """Return the file of the job, or that of its replay, `copies` included."""
    if replay is None:
        return job
    found: ApplyConfig = importlib.import_module("spark_apply.replay.replay").file_of(job, replay, copies=copies)
    return found


def _lines(entries: Sequence[dict[str, Any]], *last: str) -> str:
    rows = [("table", "store", "record", "since", "key", *last)]
    for entry in entries:
        record = f"{entry['partition']}/{entry['offset']}"
        since = datetime.fromtimestamp(entry["at_ms"] / 1000, UTC).isoformat(timespec="seconds")
        rows.append((entry["table"], entry["store"], record, since, entry["key"] or "-", *(entry[n] for n in last)))
    return "\n".join(aligned(rows))
