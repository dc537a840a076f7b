"""Says where connectors and derived stores stand: what `cdc status` prints, and the page shows."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Final

from cdc.capture.control import signals
from cdc.capture.control.rereads import is_ours
from cdc.capture.snapshots.snapshot_progress import SnapshotProgress, snapshot_progress, tables_being_read
from cdc.capture.starting.verdicts import is_of_source
from cdc.config import registry
from cdc.config.config import ApplyConfig, ConnectorConfig
from cdc.config.table_patterns import chooses
from cdc.model.errors import CdcError
from cdc.model.state import Phase, State


def stores_status(config: ApplyConfig) -> dict[str, dict[str, Any]]:
    """Say up to which position each store has all of a connector's transactions, and its incomplete tables."""
    now_ms = time.time_ns() // 1_000_000
    found: dict[str, dict[str, Any]] = {}
    with registry.part("spark_apply.job.watermarks.progress:Reader")(config) as reader:
        for store, connectors in reader.stores().items():
            found[store] = {name: _freshness(reader.read(store, name), now_ms) for name in connectors}
    entries = registry.part("spark_apply.events.quarantine:read_entries")(config).values()
    asides = registry.part("spark_apply.events.set_aside:read_set_aside")(config).values()
    for store, connectors in found.items():
        for at in connectors.values():
            missing = Counter(entry.table for entry in entries if entry.store == store and entry.table in at["tables"])
            at["quarantined"] = dict(missing)
            mine = [one for one in asides if one.store == store and one.table in at["tables"]]
            at["aside"] = {one.table: one.as_json() for one in mine}
            at["refused"] = {table: why for table, why in at["refused"].items() if table not in at["aside"]}
    return found


def _freshness(found: Any, now_ms: int) -> dict[str, Any]:  # noqa: ANN401 - spark_apply.job.watermarks.progress.StoreProgress
    complete = found.complete
    fresh = None if complete is None or complete.source_ms is None else round((now_ms - complete.source_ms) / 1000, 1)
    return {
        "position": complete.position if complete else None,
        "freshness_seconds": None if fresh is None else max(0.0, fresh),
        "source_at": instant(complete.source_ms) if complete and complete.source_ms is not None else None,
        "published_at": instant(complete.published_ms) if complete else None,
        "tables": list(found.tables),
        "incomplete": list(found.incomplete),
        "remade": list(found.remade),
        "refused": {table: {"reason": error.message, "hint": error.hint} for table, error in found.refused.items()},
    }


def connector_status(config: ConnectorConfig) -> dict[str, Any]:
    """Say where a connector stands, as `cdc status --json` prints it."""
    kafka = standing(config)
    state = kafka.state if kafka else None
    try:
        ours = state if state is not None and is_of_source(state, config.binding) else None
        server = registry.standing(config)(config, ours)
    except CdcError as exc:
        server = {"unreachable": exc.message}
    ago_s = None if kafka is None or tells_who(server) else committed_ago_s(config, kafka.committed_at_ms)
    return {**status_of(config, kafka, server, ago_s), "asked": _asked(config) if kafka else []}


def _asked(config: ConnectorConfig) -> list[dict[str, Any]] | None:
    """Return what a connector is asked for; None: its signal topic cannot be read, as without the right to."""
    try:
        return asked_for(registry.part("sinks.topics.records.signals:waiting_commands")(config.sink, config.name))
    except CdcError:
        return None


def asked_for(waiting: Iterable[tuple[bytes, bytes]]) -> list[dict[str, Any]]:
    """Say what the commands ask for that a connector has not carried out yet, as one that is down has not."""
    commands = [(key, signals.parse(value)) for key, value in waiting if not is_ours(key)]
    return [
        {
            "action": act.action,
            "by": act.by,
            "asked_at": None if act.asked_ms is None else instant(act.asked_ms),
            "about": dict(act.about),
        }
        for act in (command.act(key) for key, command in commands if command.asks)
    ]


_LATE_S: Final = 20.0
"""Beside how often a position is committed where nothing happens: so late a commit may be of one that is at work."""


def tells_who(server: Mapping[str, Any]) -> bool:
    """Whether a source's server tells who follows its log."""
    return server.get("reading") is not None or "slot" in server


def committed_ago_s(config: ConnectorConfig, committed_at_ms: int) -> float:
    """Return how long ago a connector's last commit was, by the brokers' clocks where they tell."""
    topic = registry.part("sinks.topics.names:position_topic")(config.sink.prefix, config.name)
    with registry.part("sinks.topics.topics:Topics")(config.sink.bootstrap_servers, config.sink.options) as topics:
        ago_s: float = topics.committed_ago_s(topic, committed_at_ms)
    return ago_s


def at_work(config: ConnectorConfig, server: Mapping[str, Any], ago_s: float | None) -> bool | None:
    """Tell whether somebody follows the log; where the server does not, by how long ago the last commit was.

    None: it is not known, as the server does not answer, or neither it nor Kafka (`ago_s`) was asked yet.
    """
    if "unreachable" in server or not server:
        return None
    if tells_who(server):
        return bool((server.get("slot") or {}).get("active") or server.get("reading"))
    return None if ago_s is None else ago_s < _LATE_S + config.sink.idle_position_s


def status_of(
    config: ConnectorConfig,
    kafka: Any,  # noqa: ANN401 - Standing
    server: dict[str, Any],
    ago_s: float | None,
) -> dict[str, Any]:
    """Put together what Kafka and the source's server say; `server` may have `unreachable`, and why, alone.

    `ago_s` is how long ago the last commit was, needed where the server does not tell who follows.
    """
    state, server = kafka.state if kafka else None, dict(server)
    lag_bytes = server.pop("lag_bytes", None)
    now_ms = server.pop("clock_ms", None) or time.time_ns() // 1_000_000
    source_ms = source_ms_of(state, lag_bytes, now_ms)
    running = bool(at_work(config, server, ago_s))
    slot, _ = server.pop("slot", None), server.pop("reading", None)
    snapshot = (
        snapshot_progress(state.snapshot, kafka.committed_at_ms) if state and kafka else SnapshotProgress({}, None)
    )
    again = tables_being_read(state, kafka.committed_at_ms) if state and kafka else {}
    left, held = kafka.left_out if kafka else {}, state is not None and state.paused_ms > 0
    again = {name: at for name, at in again.items() if at.phase != "initial"}
    return {
        "name": config.name,
        "phase": state.phase.value if state else "new",
        "running": running,
        "paused_at": instant(state.paused_ms) if state and state.paused_ms else None,
        "standby": server.pop("standby", None),
        "position": dict(state.offset) if state else None,
        "committed_at": instant(kafka.committed_at_ms) if kafka and state else None,
        "lag_bytes": lag_bytes,
        "lag_seconds": None if source_ms is None else round(max(0, now_ms - source_ms) / 1000, 1),
        "source_at": None if source_ms is None else instant(source_ms),
        "tables": list(state.tables) if state else [],
        "logged": [table for table in state.tables if config.sink.log and config.sink.log.has(table)] if state else [],
        "snapshot": {name: asdict(table) for name, table in snapshot.tables.items()},
        "reading": {name: asdict(at) for name, at in again.items()},
        "eta_seconds": None if snapshot.eta_s is None or not running or held else round(snapshot.eta_s, 1),
        "slot": slot,
        "dead_letters": state.dead_letters if state else 0,
        "rereads": state.rereads if state else 0,
        "left_out": {t: dict(of) for t, of in left.items() if chooses(config.source.tables, t)},
        "source": server,
        "last_error": kafka.error if kafka else None,
    }


def source_ms_of(state: State | None, lag_bytes: int | None, now_ms: int) -> int | None:
    """Return a time of the source's clock up to which all that was committed there is in Kafka; None: there is none.

    Without a word of the server, which may be away, what the position says holds all the same.
    """
    if state is None or state.phase is not Phase.STREAM:
        return None
    return now_ms if lag_bytes == 0 else state.source_ms or None


def standing(config: ConnectorConfig) -> Any:  # noqa: ANN401 - sinks.topics.records.positions.Standing | None
    """Read the committed state, its time and the last error; None where the connector has never run."""
    topic = registry.part("sinks.topics.names:position_topic")(config.sink.prefix, config.name)
    with registry.part("sinks.topics.topics:Topics")(config.sink.bootstrap_servers, config.sink.options) as topics:
        if not topics.exists(topic):
            return None
    return registry.part("sinks.topics.records.positions:read_standing")(config.sink, config.name)


def instant(at_ms: int) -> str:
    """Write a time in UTC, with its zone."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")
