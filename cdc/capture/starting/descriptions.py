"""Which descriptions of its tables a session begins with, and whether what was begun still fits them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import orjson

from cdc.capture.settings import Settings
from cdc.config.published.outbox import OutboxConfig
from cdc.encode.schema_versions import KeptNumbers, SchemaVersions, is_described, newest_of
from cdc.model.change import Table
from cdc.model.interfaces import UNSURE, Sink, Source
from cdc.model.state import State
from cdc.rules.capture_rules import CaptureRules

log = logging.getLogger("cdc")


class Shown(NamedTuple):
    """A captured table as it is published."""

    table: Table
    shown: Table
    """Without what the rules leave out."""
    numbers: Mapping[str, Any] | None
    """Those that its fields have for good."""
    changed: bool
    """Whether it has changed since it was described."""


def as_published(
    described: Iterable[bytes], tables: Iterable[Table], rules: CaptureRules | None, outbox: OutboxConfig | None
) -> Iterator[Shown]:
    """Give tables as their records have them, but for the outbox, whose records are its messages."""
    said = list(described)
    numbers, newest = KeptNumbers(said), newest_of(said)
    for table in tables:
        if outbox is None or table.qualified != outbox.table:
            of = rules.of(table.qualified) if rules else None
            shown = table if of is None else of.published(table).table
            same = is_described(shown, newest.get((table.schema, table.name)))
            yield Shown(table, shown, numbers.of(shown), not same)


def open_versions(
    settings: Settings, sink: Sink, source: Source, tables: Sequence[Table], *, tend: Callable[[], None]
) -> SchemaVersions:
    """Read the schema topic, with what can be restored of it, and tell the source how its tables were described."""
    published = list(sink.schemas())
    versions = SchemaVersions(
        [*published, *restored(sink, published, {sink.topic(table) for table in tables})],
        connector=settings.connector,
        source=source.name,
        prefix=settings.prefix,
        database=source.database,
        rules=settings.rules,
        formats=settings.formats,
        wires=settings.wires,
        routes=settings.routes,
        tend=tend,
        tables=tables,
    )
    source.recall(versions.described())
    return versions


def unless_rekeyed(state: State, tables: Sequence[Table], versions: SchemaVersions) -> State:
    """Drop the progress of tables that have another key now from `state`: its ranges are of the old key."""
    of = {table.qualified: (table, versions.newest(table)) for table in tables}
    rekeyed = {name for name, (table, was) in of.items() if was is not None and was.key != table.key}
    progress = state.snapshot.get("tables")
    if not isinstance(progress, dict) or not rekeyed & progress.keys():
        return state
    left = {name: at for name, at in progress.items() if name not in rekeyed}
    return replace(state, snapshot={**state.snapshot, "tables": left})


def restored(sink: Sink, published: Sequence[bytes], topics: Collection[str]) -> list[bytes]:
    """Publish again those descriptions of tables that the schema topic has lost, as they were; return them.

    The numbers of versions are in the events for good, so none may ever mean anything else: each description is kept
    beside the position too. Copies that an older release has not made of tables of these `topics` are made.
    """
    kept = sink.kept_schemas()
    there = {}
    for value in published:
        record = orjson.loads(value)
        key = orjson.dumps({"schema": record["schema"], "table": record["table"], "version": record["version"]})
        there[key] = value
        sure = all(column["kind"] != UNSURE for column in record["columns"])
        if sure and key not in kept and record["topic"] in topics:
            sink.keep_schema(key, value)
    lost = {key: value for key, value in kept.items() if key not in there}
    for key, value in lost.items():
        sink.schema(key, value)
    if lost:
        log.warning("the schema topic has lost %d descriptions of tables: they are published again", len(lost))
    return list(lost.values())
