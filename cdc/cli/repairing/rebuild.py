"""``cdc rebuild`` makes new derived copies from the topics, beside the live ones, and swaps them in."""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
import time
from pathlib import Path

import click

from cdc.cli.noted import noted
from cdc.cli.terminal import JSON_OPTION, aligned, clear_progress, progress_shown
from cdc.model.hints import APPLY


@click.command()
@click.argument("file", metavar="APPLY.yaml", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--store", metavar="NAME", help="Only the copies in this store.")
@click.option("--table", metavar="SCHEMA.TABLE", help="Only the copies of this table.")
@click.option("--rollback", is_flag=True, help="Put the copies back that the last rebuild replaced.")
@click.option("--lose-history", is_flag=True, help="Also where versions of rows are in no log any more, and go.")
@JSON_OPTION
def rebuild(
    file: Path, *, store: str | None, table: str | None, rollback: bool, lose_history: bool, as_json: bool
) -> None:
    """Rebuild derived tables and indexes from the topics, and swap them in.

    The source is not asked. Readers see the old copy until the new one is whole; `cdc apply` may run all the while. The
    old copy is kept until the next rebuild.

    A history whose log no longer has its beginning is left alone, unless --lose-history says otherwise.
    """
    from cdc.config.config import load_apply  # noqa: PLC0415 - the command line must start fast

    config = load_apply(file)
    run = getattr(importlib.import_module("spark_apply.rebuild.rebuild"), "run_rollback" if rollback else "run_rebuild")

    on_terminal = sys.stderr.isatty()
    begun = time.monotonic()
    with noted(config, "rebuild") as about:
        asked = {"rollback": rollback or None, "store": store, "table": table}
        about.update({name: value for name, value in asked.items() if value is not None})
        copies = run(
            config,
            store=store,
            table=table,
            lose_history=lose_history,
            progress=progress_shown({APPLY: file}, live=on_terminal),
        )
        done = [copy.as_json() for copy in copies]
        about["copies"] = [f"{copy['table']} in {copy['store']}" for copy in done]
    seconds = round(time.monotonic() - begun, 3)
    if on_terminal:
        clear_progress()
    click.echo(json.dumps({"name": config.name, "seconds": seconds, "copies": done}) if as_json else _table(done))


def _table(copies: list[dict[str, object]]) -> str:
    rows = [tuple(name.replace("_", " ") for name in copies[0])]
    rows += [tuple(str(value) for value in copy.values()) for copy in copies]
    return "\n".join(aligned(rows))
