"""`cdc snapshot` starts, stops and reports incremental snapshots: tables read while the log is followed."""

from __future__ import annotations

import time
import uuid
from dataclasses import asdict, replace
from pathlib import Path

import click
import orjson

from cdc.capture.control.signals import Command
from cdc.capture.snapshots.snapshot_progress import duration, tables_being_read
from cdc.cli.terminal import JSON_OPTION, say, written_out
from cdc.config import registry
from cdc.config.config import ConnectorConfig, load_connector
from cdc.model.audit import asked_by
from cdc.model.errors import OperatorError
from cdc.model.hints import CONNECTOR, pasteable
from cdc.model.state import State
from cdc.model.suggestion import did_you_mean
from cdc.monitor.status import standing

_FILE = click.argument("file", metavar="CONNECTOR.yaml", type=click.Path(path_type=Path))
_TABLES = click.option("--table", "tables", multiple=True, metavar="SCHEMA.TABLE", help="One or more; else all.")


@click.group()
def snapshot() -> None:
    """Read tables again while the connector follows the log.

    Rows come as `r` events between the log's own, none older than what is there; keys that the source no longer has are
    deleted from the topic at the end. The connector carries a command out at once, or at its next start.
    """


@snapshot.command()
@_FILE
@_TABLES
@click.option(
    "--after-gap",
    is_flag=True,
    help="The log is gone or cannot be followed: go on where it is now, and close the gap by reading everything again.",
)
@click.option(
    "--server",
    metavar="IDENTIFIER",
    default="",
    help="With --after-gap: the system identifier of a PostgreSQL server that has taken the place of the one that was "
    "followed (a new major version, a migration).",
)
@JSON_OPTION
def start(file: Path, tables: tuple[str, ...], *, after_gap: bool, server: str, as_json: bool) -> None:
    """Ask the connector to read tables again."""
    config = load_connector(file)
    state = _state(config)
    if after_gap and tables:
        raise click.UsageError("--after-gap reads all tables: after a gap, none is known to be whole")
    if server and not after_gap:
        raise click.UsageError("--server goes with --after-gap: all is read from there")
    for name in tables:
        if name not in state.tables and not config.source.captures(name):
            raise OperatorError(
                f"table {name} is not one that {file} names",
                hint=f"source.tables: {', '.join(config.source.tables)}; captured now: {', '.join(state.tables)}",
            )
        if name not in state.tables:
            near = did_you_mean(name, state.tables, "")
            say(f"table {name} is not captured by now, and is read only if it is then. {near}".rstrip(), err=True)
    _ask(config, Command(tables=tables or state.tables, after_gap=after_gap, server=server), file, as_json=as_json)
    if state.paused_ms:
        paused = f"{config.name} is paused: it does so once it is resumed (cdc resume CONNECTOR.yaml)"
        click.echo(pasteable(paused, {CONNECTOR: file}), err=True)


@snapshot.command()
@_FILE
@_TABLES
@JSON_OPTION
def stop(file: Path, tables: tuple[str, ...], *, as_json: bool) -> None:
    """Ask the connector to stop reading tables again; what was read stays, nothing is deleted."""
    config = load_connector(file)
    state = _state(config)
    wanted = tables or tuple(name for name, reading in state.reading.items() if not reading["required"])
    for name in wanted:
        if name not in state.reading:
            raise OperatorError(
                f"table {name} is not being read again", hint="cdc snapshot status CONNECTOR.yaml says what is"
            )
        if state.reading[name]["required"]:
            raise OperatorError(f"table {name} must be read to its end: its topic is not whole before")
    if not wanted:
        raise OperatorError(
            "no table is being read again on request",
            hint="what is read for the first time, or after a gap, cannot be stopped: the topic would never be whole",
        )
    _ask(config, Command(tables=wanted, stop=True), file, as_json=as_json)


@snapshot.command()
@_FILE
@_TABLES
@JSON_OPTION
def status(file: Path, tables: tuple[str, ...], *, as_json: bool) -> None:
    """How far each table has been read."""
    config = load_connector(file)
    found = tables_being_read(_state(config), time.time_ns() // 1_000_000)
    found = {name: at for name, at in found.items() if not tables or name in tables}
    if as_json:
        click.echo(orjson.dumps({name: asdict(at) for name, at in found.items()}).decode())
        return
    for name, at in found.items():
        of = f" of about {at.estimate:,}" if at.estimate else ""
        left = f", about {duration(at.eta_s)} left" if at.eta_s is not None else ""
        click.echo(f"{written_out(name):<32}{at.phase:<12}{at.rows:>12,} rows{of}{left}")
    if not found:
        click.echo("nothing is being read")


def _state(config: ConnectorConfig) -> State:
    found = standing(config)
    state: State | None = found.state if found else None
    if state is None:
        raise OperatorError(
            f"connector {config.name} has never run: its first run reads every table", hint="cdc run CONNECTOR.yaml"
        )
    return state


def _ask(config: ConnectorConfig, command: Command, file: Path, *, as_json: bool) -> None:
    identifier = uuid.uuid4().hex
    value = replace(command, by=asked_by(), asked_ms=time.time_ns() // 1_000_000).to_bytes(identifier)
    registry.part("sinks.topics.records.signals:send_command")(config.sink, config.name, identifier.encode(), value)
    if as_json:
        click.echo(orjson.dumps({"id": identifier, "tables": list(command.tables)}).decode())
    else:
        what = "to stop reading" if command.stop else "to read again"
        shown = pasteable("cdc snapshot status CONNECTOR.yaml shows it", {CONNECTOR: file})
        when = f"at once if it runs, else as it starts; {shown}"
        say(f"asked {config.name} {what} {', '.join(command.tables)}: {when}", err=True)
