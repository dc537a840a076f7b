"""`cdc replay` runs a copy of an apply job from a time or a position on, beside the live one."""

from __future__ import annotations

import datetime as dt
import importlib
import importlib.util
import json
import re
import sys
from pathlib import Path
from typing import Any, Final

import click

from cdc.cli.ending import code_of_part
from cdc.cli.logs import JSON, LOG_FORMAT, errors_logged
from cdc.cli.running.apply import Told, table_of_counts
from cdc.cli.terminal import ALIVE_S, Alive, say, seconds_of, written_out
from cdc.config.config import load_apply
from cdc.machine.flag import Flag
from cdc.machine.stop_signals import HangUps, stopping
from cdc.model.change import Position
from cdc.model.errors import ConfigError
from cdc.model.hints import APPLY, in_hints
from cdc.telemetry.json_log import Place

_POSITION: Final = re.compile(r"(?:([a-z][a-z0-9_-]{0,39}):)?([0-9a-f]{8}\.[0-9a-f]{16}\.[0-9a-f]{8})")
_DAYS: Final = re.compile(r"([0-9]{1,5})d")
_DAY_S: Final = 86_400
_HOW: Final = "24h or 7d (ago), 2026-03-01T06:00:00Z, or a position as cdc token prints it"


def since_of(text: str, now: dt.datetime) -> dt.datetime | Position:
    """Read a time, how long ago, or a position. Raises ConfigError."""
    found = _POSITION.fullmatch(text.strip())
    if found is not None:
        return Position.parse(found[2])
    days = _DAYS.fullmatch(text)
    ago_s = int(days[1]) * _DAY_S if days else seconds_of(text)
    try:
        if ago_s is not None:
            return now - dt.timedelta(seconds=ago_s)
        at = dt.datetime.fromisoformat(text)
    except (ValueError, OverflowError) as exc:
        raise ConfigError(f"--from: “{text}” is no time and no position", hint=f"--from {_HOW}") from exc
    if at.tzinfo is None:
        in_utc = at.replace(tzinfo=dt.UTC).isoformat()
        raise ConfigError(f"--from: “{text}” does not say of which zone it is", hint=f"--from {in_utc}, for UTC")
    if at > now:
        raise ConfigError(f"--from: “{text}” is still to come", hint=f"--from {_HOW}")
    return at


def connector_of(text: str) -> str | None:
    """Return the connector that a position is of, where a token says so."""
    found = _POSITION.fullmatch(text.strip())
    return None if found is None else found[1]


@click.command()
@click.argument("file", metavar="APPLY.yaml", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--as", "name", required=True, metavar="NAME", help="The replay's name: its job, checkpoint and copies.")
@click.option("--from", "since", metavar="TIME|POSITION", help="24h or 7d (ago), a time with its zone, or a position.")
@click.option("--once", is_flag=True, help="Take all that is in the topics now, then end.")
@click.option("--plan", is_flag=True, help="Say what would be read, and where it would go; make nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary, or the plan, as one JSON object.")
@LOG_FORMAT
def replay(file: Path, *, name: str, since: str | None, once: bool, plan: bool, as_json: bool, log_format: str) -> int:
    """Run a copy of an apply job from a time or a position on, beside the live one.

    Its checkpoint is the live one's with -NAME behind it, its copies are called as the live ones with _NAME behind:
    the live job, its copies and its quarantine are not touched. Before anything is made it says for each table which
    events of that span are still there. A compacted topic has the newest change of each row: what a table's log keeps
    (sink.log) is all that was. Copies have only the rows that have changed since. A table of which no copy can be made
    is set aside, and the others are replayed; then the exit code is 1.

    Started again with the same NAME it goes on from its own checkpoint, and needs no --from; it has the tables that it
    began with.
    """
    place, stop = Place(), Flag()
    with errors_logged(log_format, place), stopping(stop), HangUps() as hang_ups:  # before anything slow is imported
        config = load_apply(file)
        place.is_of(apply=name, connector=config.source.topic_prefix)
        begin = None if since is None else since_of(since, dt.datetime.now(dt.UTC))
        part: Any = importlib.import_module("spark_apply.replay.replay")  # by name: cdc imports nothing of it
        prepared = part.prepare(config, name=name, since=begin, connector=connector_of(since or ""))
        made = {
            "name": name,
            "checkpoint": prepared.config.checkpoint,
            "copies": {table: list(of.stores) for table, of in prepared.config.tables.items()},
            "targets": {table: of.target for table, of in prepared.config.tables.items()},
            "goes_on": not prepared.spans,
            "tables": [span.as_json() for span in prepared.spans],
            "left": {
                table: {"reason": of.error.message, "hint": of.error.hint} for table, of in prepared.begins.left.items()
            },
        }
        made = in_hints(made, {APPLY: file})
        for span in made["tables"]:
            say(f"{span['table']}: {span['says']}", err=True)
        if not prepared.spans:
            click.echo(f"{name} goes on from its checkpoint {prepared.config.checkpoint}", err=True)
        for table, why in made["left"].items():
            say(f"{table} is set aside, the others are replayed: {why['reason']}", err=True)
            say(f"  hint: {why['hint']}", err=True)
        if plan:
            targets = (written_out(f"{table} → {to}") for table, to in made["targets"].items())
            click.echo(json.dumps(made) if as_json else "\n".join(targets))
            return int(bool(made["left"]))
        as_lines = log_format == JSON
        told = Told(name, live=sys.stderr.isatty() and not as_lines, place=place if as_lines else None)
        hang_ups.heard_by(told.hung_up)
        with Alive(told.say, every_s=ALIVE_S):
            run = part.run(prepared, once=once, progress=told, stop=stop)
        told.done()
    summary = run.as_json()
    click.echo(json.dumps({**summary, "name": name, "replay": made}) if as_json else table_of_counts(summary))
    return int(bool(summary["aside"])) or code_of_part(stop.signal if once else None, took_all=run.took_all)
