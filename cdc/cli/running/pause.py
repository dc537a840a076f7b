"""`cdc pause`, `cdc resume` and `cdc reload` steer a connector by its signal topic: each is carried out once."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import click
import orjson

from cdc.capture.control.signals import Command
from cdc.capture.snapshots.snapshot_progress import duration
from cdc.cli.terminal import JSON_OPTION
from cdc.config import registry
from cdc.config.config import ConnectorConfig, load_connector
from cdc.model.audit import asked_by
from cdc.model.errors import CdcError, OperatorError
from cdc.model.hints import CONNECTOR, pasteable
from cdc.monitor.status import standing

_SAMPLE_S: Final = 2.0
"""So long the growth of the server's log is watched."""
_MB: Final = 1_000_000

_FILE = click.argument("file", metavar="CONNECTOR.yaml", type=click.Path(path_type=Path))


@click.command()
@_FILE
@JSON_OPTION
def pause(file: Path, *, as_json: bool) -> None:
    """Hold a connector: it keeps its place in the log and reads nothing, until `cdc resume`.

    Everything that was read whole is committed first. The slot stays active and is answered, other copies stand by, and
    a restart changes nothing. The server must keep its log meanwhile: the answer says how long it will, if that is
    known.
    """
    config = load_connector(file)
    identifier = _ask(config, Command(pause=True))
    left = _log_left(config)
    if as_json:
        _as_json(config, identifier, {"log_seconds": left.seconds, "log": left.said})
    else:
        click.echo(f"{_asked(config, 'to pause', file)}\n{left.said}", err=True)


@click.command()
@_FILE
@JSON_OPTION
def resume(file: Path, *, as_json: bool) -> None:
    """Let a connector go on that `cdc pause` holds: it compares everything with its position, as at a start."""
    config = load_connector(file)
    identifier = _ask(config, Command(pause=False))
    if as_json:
        _as_json(config, identifier, {})
    else:
        click.echo(_asked(config, "to go on", file), err=True)


@click.command()
@_FILE
@JSON_OPTION
def reload(file: Path, *, as_json: bool) -> None:
    """Have a connector read its file again while it runs, as SIGHUP does.

    Taken up are source.url, tables, heartbeat_s and on_hole, and snapshot: tables that are new are read while the log
    is followed. A file that is wrong, that changes anything else, or that a session cannot begin with, is refused with
    a line in the connector's log, and the connector goes on as before. Another password or user in sink.options or
    sink.registry.options holds up nothing: it is taken at the next start. One that is down reads its file as it starts.
    """
    config = load_connector(file)
    identifier = _ask(config, Command(reload=True))
    if as_json:
        _as_json(config, identifier, {})
    else:
        click.echo(f"asked {config.name} to read its file again; its log says whether it is taken up", err=True)


def _ask(config: ConnectorConfig, command: Command) -> str:
    """Leave the command; return its identifier."""
    found = standing(config)
    if found is None or found.state is None:
        raise OperatorError(
            f"connector {config.name} has never run: nothing can be asked of it", hint="cdc run CONNECTOR.yaml"
        )
    identifier = uuid.uuid4().hex
    value = replace(command, by=asked_by(), asked_ms=time.time_ns() // 1_000_000).to_bytes(identifier)
    registry.part("sinks.topics.records.signals:send_command")(config.sink, config.name, identifier.encode(), value)
    return identifier


def _as_json(config: ConnectorConfig, identifier: str, more: Mapping[str, object]) -> None:
    click.echo(orjson.dumps({"id": identifier, "connector": config.name, **more}).decode())


def _asked(config: ConnectorConfig, what: str, file: Path) -> str:
    shown = pasteable("cdc status CONNECTOR.yaml shows it", {CONNECTOR: file})
    return f"asked {config.name} {what}: at once if it runs, else as it starts; {shown}"


@dataclass(frozen=True, slots=True)
class LogLeft:
    """How long the server will keep the log that a held connector needs."""

    seconds: float | None
    """None: it is not known."""
    said: str


def _log_left(config: ConnectorConfig) -> LogLeft:
    try:
        ask = registry.standing(config)
        first = ask(config, None)
        slot = first.get("slot")
        limited = slot is not None and slot["safe_wal_size_bytes"] is not None
        return log_left(first, (lambda: ask(config, None)) if limited else None)
    except CdcError as exc:
        return LogLeft(None, f"how long the server keeps its log is not known: {exc.message}")


def log_left(first: Mapping[str, Any], again: Callable[[], Mapping[str, Any]] | None) -> LogLeft:
    """Tell from what a source's `standing` says; asked `again` after a moment, it tells how fast the log grows."""
    slot = first.get("slot")
    if slot is not None and slot["safe_wal_size_bytes"] is not None and again is not None:
        begun_s = time.monotonic()
        time.sleep(_SAMPLE_S)
        then = again()
        took_s = time.monotonic() - begun_s
        after = then.get("slot") or slot
        safe = max(0, after["safe_wal_size_bytes"] or 0)
        rate = max(0, then["log_end_number"] - first["log_end_number"]) / took_s
        room = f"{safe // _MB:,} MB are left of max_slot_wal_keep_size, then the slot is lost"
        if rate == 0:
            return LogLeft(None, f"the log does not grow at present; {room}")
        return LogLeft(
            safe / rate, f"the server keeps the log for about {duration(safe / rate)} more at its present rate: {room}"
        )
    if slot is not None:
        return LogLeft(
            None,
            "how long the server keeps its log is not known: max_slot_wal_keep_size sets no limit, so it does until "
            "its disk is full",
        )
    binlog = first.get("binlog")
    if binlog is not None:
        kept = binlog["kept_for_seconds"]
        if kept is None:
            return LogLeft(None, "the server keeps its binlog for ever by its settings, or until its disk is full")
        return LogLeft(float(kept), f"the server keeps each part of its binlog for {duration(kept)} by its settings")
    return LogLeft(None, "how long the server keeps its log is not known")
