"""`cdc status` shows where a connector or its derived stores stand; it changes nothing."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import orjson

from cdc.capture.snapshot_progress import SnapshotProgress, duration, snapshot_progress, tables_being_read
from cdc.config import registry
from cdc.config.config import ApplyConfig, ConnectorConfig, describes_apply, load_apply, load_connector
from cdc.config.views import describes_views
from cdc.model.errors import CdcError, ConfigError
from cdc.model.state import Phase, State


@click.command()
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="One JSON object; its keys are stable.")
def status(file: Path, *, as_json: bool) -> None:
    """Phase, position, lag, slot and last error of a connector; of an apply job, how fresh each store is.

    Exit code 0 also while it is down: of a connector, `running` says whether something reads the slot, or the tables
    for a snapshot. FILE is connector.yaml or apply.yaml: its keys tell.
    """
    if describes_views(file):
        raise ConfigError(f"{file} is the file of a view job", hint=f"cdc view status {file}")
    if describes_apply(file):
        _show_stores(load_apply(file), as_json=as_json)
        return
    config = load_connector(file)
    found = _status(config)
    if as_json:
        click.echo(orjson.dumps(found).decode())
        return
    for name, value in _lines(found):
        click.echo(f"{name:<12}{value}")


def _show_stores(config: ApplyConfig, *, as_json: bool) -> None:
    """Show up to which position each store has all of a connector's transactions, and its incomplete tables."""
    now_ms = time.time_ns() // 1_000_000
    found: dict[str, dict[str, Any]] = {}
    with registry.part("spark_apply.job.progress:Reader")(config) as reader:
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
    if as_json:
        click.echo(orjson.dumps({"name": config.name, "stores": found}).decode())
        return
    click.echo(f"{'store':<16}{'connector':<16}{'complete up to':<36}freshness")
    for store, connectors in found.items():
        for name, at in connectors.items():
            fresh = "" if at["freshness_seconds"] is None else f"{at['freshness_seconds']:,} s behind the source, "
            freshness = f"{fresh}published {at['published_at']}" if at["position"] else "not complete yet"
            click.echo(f"{store:<16}{name:<16}{at['position'] or '-':<36}{freshness}")
            if at["remade"]:
                others = ", ".join(at["remade"])
                click.echo(f"{'':<32}of another topic, cdc apply APPLY.yaml --plan says what to do: {others}")
            if at["incomplete"]:
                click.echo(f"{'':<32}not complete: {', '.join(at['incomplete'])}")
            if at["quarantined"]:
                held = ", ".join(f"{table} {count:,}" for table, count in at["quarantined"].items())
                click.echo(f"{'':<32}in quarantine: {held}")
            for table, why in at["aside"].items():
                click.echo(f"{'':<32}set aside: {table}: since {_instant(why['at_ms'])}: {why['reason']}")
                if why["hint"]:
                    click.echo(f"{'':<32}hint: {why['hint']}")


def _freshness(found: Any, now_ms: int) -> dict[str, Any]:  # noqa: ANN401 - spark_apply.job.progress.StoreProgress
    complete = found.complete
    fresh = None if complete is None or complete.source_ms is None else round((now_ms - complete.source_ms) / 1000, 1)
    return {
        "position": complete.position if complete else None,
        "freshness_seconds": None if fresh is None else max(0.0, fresh),
        "source_at": _instant(complete.source_ms) if complete and complete.source_ms is not None else None,
        "published_at": _instant(complete.published_ms) if complete else None,
        "tables": list(found.tables),
        "incomplete": list(found.incomplete),
        "remade": list(found.remade),
    }


def _status(config: ConnectorConfig) -> dict[str, Any]:
    kafka = standing(config)
    state = kafka.state if kafka else None
    try:
        server = registry.standing(config)(config, state)
    except CdcError as exc:
        server = {"unreachable": exc.message}
    lag_bytes = server.pop("lag_bytes", None)
    now_ms = server.pop("clock_ms", None) or time.time_ns() // 1_000_000
    source_ms = _source_ms(state, lag_bytes, now_ms)
    slot = server.pop("slot", None)
    running = bool(server.pop("reading", False) or (slot and slot["active"]))
    snapshot = (
        snapshot_progress(state.snapshot, kafka.committed_at_ms) if state and kafka else SnapshotProgress({}, None)
    )
    again = tables_being_read(state, kafka.committed_at_ms) if state and kafka else {}
    again = {name: at for name, at in again.items() if at.phase != "initial"}
    return {
        "name": config.name,
        "phase": state.phase.value if state else "new",
        "running": running,
        "paused_at": _instant(state.paused_ms) if state and state.paused_ms else None,
        "standby": server.pop("standby", None),
        "position": dict(state.offset) if state else None,
        "committed_at": _instant(kafka.committed_at_ms) if kafka and state else None,
        "lag_bytes": lag_bytes,
        "lag_seconds": None if source_ms is None else round(max(0, now_ms - source_ms) / 1000, 1),
        "source_at": None if source_ms is None else _instant(source_ms),
        "tables": list(state.tables) if state else [],
        "logged": [table for table in state.tables if config.sink.log and config.sink.log.has(table)] if state else [],
        "snapshot": {name: asdict(table) for name, table in snapshot.tables.items()},
        "reading": {name: asdict(at) for name, at in again.items()},
        "eta_seconds": None if snapshot.eta_s is None or not running else round(snapshot.eta_s, 1),
        "slot": slot,
        "dead_letters": state.dead_letters if state else 0,
        "rereads": state.rereads if state else 0,
        "source": server,
        "last_error": kafka.error if kafka else None,
    }


def _source_ms(state: State | None, lag_bytes: int | None, now_ms: int) -> int | None:
    """Return a time of the source's clock up to which all that was committed there is in Kafka; None: there is none.

    Without a word of the server, which may be away, what the position says holds all the same.
    """
    if state is None or state.phase is not Phase.STREAM:
        return None
    return now_ms if lag_bytes == 0 else state.source_ms or None


def standing(config: ConnectorConfig) -> Any:  # noqa: ANN401 - sinks.topics.positions.Standing | None
    """Read the committed state, its time and the last error; None where the connector has never run."""
    topic = registry.part("sinks.topics.names:position_topic")(config.sink.prefix, config.name)
    with registry.part("sinks.topics.topics:Topics")(config.sink.bootstrap_servers, config.sink.options) as topics:
        if not topics.exists(topic):
            return None
    return registry.part("sinks.topics.positions:read_standing")(config.sink, config.name)


def _instant(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")


def _rows(*, rows: int, estimate: int | None, done: bool) -> str:
    return f"{rows:,} rows" if done or estimate is None else f"{rows:,} rows of about {estimate:,}"


def _standing_by(copies: int | None) -> str:
    return f", {copies} more standing by" if copies else ""


def _lines(found: dict[str, Any]) -> list[tuple[str, str]]:
    source, slot, error = found["source"], found["slot"], found["last_error"]
    position = " ".join(f"{k} {v}" for k, v in (found["position"] or {}).items()) or "none"
    lag = "unknown bytes" if found["lag_bytes"] is None else f"{found['lag_bytes']:,} bytes"
    if found["source_at"] is not None:
        lag += f", {found['lag_seconds']:,} s: all that was committed up to {found['source_at']} is in Kafka"
    paused = "" if found["paused_at"] is None else f", paused since {found['paused_at']}: cdc resume lets it go on"
    running = "" if found["running"] else " (not running)"
    lines = [
        ("connector", found["name"]),
        ("phase", f"{found['phase']}{paused}{running}{_standing_by(found['standby'])}"),
        ("position", position + (f", committed {found['committed_at']}" if found["committed_at"] else "")),
        ("lag", lag),
    ]
    if found["logged"]:
        lines.append(("logged", ", ".join(found["logged"])))
    lines += [
        ("snapshot", f"{table}: {_rows(**done)}{'' if done['done'] else ', reading' if done['rows'] else ', waiting'}")
        for table, done in found["snapshot"].items()
    ]
    for table, at in found["reading"].items():
        left = "" if at["eta_s"] is None else f", about {duration(at['eta_s'])} left"
        lines.append(
            ("reading", f"{table}: {_rows(rows=at['rows'], estimate=at['estimate'], done=False)}, {at['phase']}{left}")
        )
    if found["eta_seconds"] is not None:
        lines.append(("", f"about {duration(found['eta_seconds'])} left"))
    if slot:
        retained = f"retains {slot['retained_wal_bytes'] or 0:,} bytes of WAL"
        lines.append(("slot", f"{slot['name']}: {slot['wal_status']}, at {slot['confirmed_flush_lsn']}, {retained}"))
    elif "unreachable" in source:
        lines.append(("source", source["unreachable"]))
    elif "binlog" in source:
        kept = source["binlog"]["kept_for_seconds"]
        lines.append(("binlog", "kept for ever" if kept is None else f"kept for {duration(kept)}"))
    else:
        lines.append(("slot", "none"))
    if slot and slot.get("warning"):
        lines += [("warning", slot["warning"]), ("", f"hint: {slot['hint']}")]
    if found["dead_letters"]:
        lines.append(("dead", f"{found['dead_letters']:,} events could not be written; they are dead letters"))
    if found["rereads"]:
        lines.append(("read again", f"{found['rereads']:,} times, because the log did not say what was changed"))
    lines.append(("last error", f"{_instant(error['at_ms'])} {error['message']}" if error else "none"))
    if error and error["hint"]:
        lines.append(("", f"hint: {error['hint']}"))
    return lines
