"""``cdc explain`` lists the events of a key, and says which of them derived stores hold."""

from __future__ import annotations

import importlib
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import orjson

from cdc.cli.terminal import painted, say
from cdc.config.config import load_apply
from cdc.model.errors import OperatorError
from cdc.model.hints import of_table

_COLOURS = {"won": "green", "late": "yellow", "duplicate": "yellow", "no event": "red"}


@click.command()
@click.argument("file", metavar="APPLY.yaml", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--table", required=True, metavar="SCHEMA.TABLE", help="The source's table.")
@click.option("--key", required=True, help="""JSON of the key's columns, {"id": 5}; of a single one also just 5.""")
@click.option("--json", "as_json", is_flag=True, help="One JSON object, with the rows; its keys are stable.")
def explain(file: Path, *, table: str, key: str, as_json: bool) -> None:
    """Show each record the topic has of a key, which one won, and what became of the others.

    Reads the table's whole topic. Exit code 1 if it has no record of the key.
    """
    config = load_apply(file)
    found = importlib.import_module("spark_apply.verify.explain").explain(config, table, key).as_json()
    if as_json:
        sys.stdout.buffer.write(orjson.dumps(found) + b"\n")
    else:
        _print(found)
    if not found["records"]:
        raise OperatorError(
            f"topic {found['topic']} has no record of this key",
            hint="it never had one, or its delete is older than delete.retention.ms; "
            f"{of_table('cdc tail CONNECTOR.yaml', table)} --from-beginning shows keys as they are",
        )


def _print(found: dict[str, Any]) -> None:
    rows: list[tuple[str, ...]] = [("record", "op", "version", "committed", "transaction", "position", "verdict")]
    rows += [_cells(seen) for seen in found["records"]]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    for row in rows if found["records"] else ():
        *cells, verdict = row
        line = "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        click.echo(f"{line}  {painted(verdict, fg=_COLOURS.get(verdict.split(':')[0]))}".rstrip())
    if found["records"]:
        click.echo(_OUTCOMES[found["outcome"]])
    for entry in found["quarantined"]:
        held = f"{entry['partition']}/{entry['offset']} is in quarantine for {entry['store']}, which does not have it"
        say(f"{held}: {entry['reason']}")


def _cells(seen: dict[str, Any]) -> tuple[str, ...]:
    at = seen["committed_at_ms"]
    when = datetime.fromtimestamp(at / 1000, UTC).isoformat(timespec="milliseconds") if isinstance(at, int) else "-"
    cells = (f"{seen['partition']}/{seen['offset']}", seen["op"], seen["schema_version"], when, seen["transaction"])
    return (*("-" if cell is None else str(cell) for cell in (*cells, seen["position"])), _verdict(seen))


def _verdict(seen: dict[str, Any]) -> str:
    by, verdict = seen["because"], str(seen["verdict"])
    return {
        "superseded": f"superseded by {by}",
        "late": f"late: dropped, {by} was newer",
        "duplicate": f"duplicate of {by}: dropped",
        "no event": "no event: not applied",
    }.get(verdict, verdict)


_OUTCOMES = {
    "row": "stores that are up to date hold the row that won",
    "deleted": "stores that are up to date do not have this key: its delete won",
    "left out": "stores that are up to date do not have this key: the row that won does not match where",
    "unknown": "none of these is an event",
}
