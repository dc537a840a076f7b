"""`cdc status` shows where a connector or its derived stores stand; it changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from typing import Any

import click
import orjson

from cdc.capture.snapshots.snapshot_progress import duration
from cdc.cli.terminal import JSON_OPTION, place_of, say, written_out
from cdc.config.config import ApplyConfig, describes_apply, load_apply, load_connector
from cdc.config.views import describes_views
from cdc.model.errors import ConfigError
from cdc.model.hints import APPLY, CONNECTOR, in_hints
from cdc.monitor.status import connector_status, instant, stores_status


@click.command()
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@JSON_OPTION
def status(file: Path, *, as_json: bool) -> None:
    """Phase, position, lag, slot and last error of a connector; of an apply job, how fresh each store is.

    Exit code 0 also while it is down: of a connector, `running` says whether something reads the slot, or the tables
    for a snapshot. FILE is connector.yaml or apply.yaml: its keys tell.
    """
    if describes_views(file):
        raise ConfigError(f"{file} is the file of a view job", hint="cdc view status VIEWS.yaml")
    if describes_apply(file):
        _show_stores(load_apply(file), file, as_json=as_json)
        return
    config = load_connector(file)
    found = in_hints(connector_status(config), {CONNECTOR: file})
    if as_json:
        click.echo(orjson.dumps(found).decode())
        return
    for name, value in _lines(found, file):
        click.echo(f"{name:<12}{written_out(value)}")


def _show_stores(config: ApplyConfig, file: Path, *, as_json: bool) -> None:
    found = in_hints(stores_status(config), {APPLY: file})
    if as_json:
        click.echo(orjson.dumps({"name": config.name, "stores": found}).decode())
        return
    say(f"{'store':<16}{'connector':<16}{'complete up to':<36}freshness")
    for store, connectors in found.items():
        for name, at in connectors.items():
            fresh = "" if at["freshness_seconds"] is None else f"{at['freshness_seconds']:,} s behind the source, "
            freshness = f"{fresh}published {at['published_at']}" if at["position"] else "not complete yet"
            say(f"{store:<16}{name:<16}{at['position'] or '-':<36}{freshness}")
            if at["remade"]:
                others = ", ".join(at["remade"])
                say(f"{'':<32}of another topic, cdc apply {quote(str(file))} --plan says what to do: {others}")
            if at["incomplete"]:
                say(f"{'':<32}not complete: {', '.join(at['incomplete'])}")
            if at["quarantined"]:
                held = ", ".join(f"{table} {count:,}" for table, count in at["quarantined"].items())
                say(f"{'':<32}in quarantine: {held}")
            for table, why in at["aside"].items():
                say(f"{'':<32}set aside: {table}: since {instant(why['at_ms'])}: {why['reason']}")
                if why["hint"]:
                    say(f"{'':<32}hint: {why['hint']}")
            for table, why in at["refused"].items():
                say(f"{'':<32}refused: {table}: {why['reason']}")
                if why["hint"]:
                    say(f"{'':<32}hint: {why['hint']}")


def _rows(*, rows: int, estimate: int | None, done: bool) -> str:
    return f"{rows:,} rows" if done or estimate is None else f"{rows:,} rows of about {estimate:,}"


def _standing_by(copies: int | None) -> str:
    return f", {copies} more standing by" if copies else ""


def _asked(act: Mapping[str, Any]) -> str:
    tables = [name for name in act["about"].get("tables", ()) if name.isprintable()]  # anybody may have written it
    by = f", by {act['by']}" if act["by"] else ""
    at = f" at {act['asked_at']}" if act["asked_at"] else ""
    return f"{act['action']}{' of ' + ', '.join(tables) if tables else ''}{by}{at}"


def _lines(found: dict[str, Any], file: Path) -> list[tuple[str, str]]:
    error = found["last_error"]
    position = place_of(found["position"] or {})
    lag = "unknown bytes" if found["lag_bytes"] is None else f"{found['lag_bytes']:,} bytes"
    if found["source_at"] is not None:
        lag += f", {found['lag_seconds']:,} s: all that was committed up to {found['source_at']} is in Kafka"
    paused = "" if found["paused_at"] is None else f", paused since {found['paused_at']}"
    running = "" if found["running"] else " (not running)"
    lines = [
        ("connector", found["name"]),
        ("phase", f"{found['phase']}{paused}{running}{_standing_by(found['standby'])}"),
        ("position", position + (f", committed {found['committed_at']}" if found["committed_at"] else "")),
        ("lag", lag),
    ]
    if found["paused_at"] is not None:
        lines.append(("", f"hint: cdc resume {quote(str(file))}"))
    for act in found["asked"] or ():
        when = "takes it up next" if found["running"] else "takes it up when it starts"
        lines.append(("asked", f"{_asked(act)}: the connector {when}"))
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
    lines += of_server(found["source"], found["slot"])
    for beside in found["source"].get("left_behind", ()):
        lines += [("left behind", beside["reason"]), ("", f"hint: {beside['hint']}")]
    if found["dead_letters"]:
        lines.append(("dead", f"{found['dead_letters']:,} events could not be written; they are dead letters"))
    if found["rereads"]:
        lines.append(("read again", f"{found['rereads']:,} times, because the log did not say what was changed"))
    for table, why in found["left_out"].items():
        lines.append(("left out", f"{table}: since {instant(why['at_ms'])}: {why['reason']}"))
        if why["hint"]:
            lines.append(("", f"hint: {why['hint']}"))
    lines.append(("last error", f"{instant(error['at_ms'])} {error['message']}" if error else "none"))
    if error and error["hint"]:
        lines.append(("", f"hint: {error['hint']}"))
    return lines


def of_server(source: dict[str, Any], slot: dict[str, Any] | None) -> list[tuple[str, str]]:
    """Say what the server keeps for the connector: a slot, a binlog, tables of changes."""
    if slot:
        retained = f"retains {slot['retained_wal_bytes'] or 0:,} bytes of WAL"
        kept = [("slot", f"{slot['name']}: {slot['wal_status']}, at {slot['confirmed_flush_lsn']}, {retained}")]
        return kept + ([("warning", slot["warning"]), ("", f"hint: {slot['hint']}")] if slot.get("warning") else [])
    if "unreachable" in source:
        return [("source", source["unreachable"])]
    if "binlog" in source:
        kept_s = source["binlog"]["kept_for_seconds"]
        return [("binlog", "kept for ever" if kept_s is None else f"kept for {duration(kept_s)}")]
    if "changes" in source:
        aside = [
            f"{table}: its triggers are to be made, and others hold a lock" for table in source["changes"]["set_aside"]
        ]
        rows = f"{source['changes']['table']}: {source['changes']['rows']:,} rows"
        return [("changes", rows), *(("set aside", table) for table in aside)]
    if "revisions_behind" in source:  # etcd
        behind = source["revisions_behind"]
        return [("behind", "unknown revisions" if behind is None else f"{behind:,} revisions")]
    return [("slot", "none")]
