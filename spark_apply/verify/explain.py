"""Explains a key: all its records that the topic still has, and which of them a derived store must hold.

The rule is that of the stores: the event with the greatest position wins, in whatever order events came.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, cast

import orjson

from cdc.config.config import ApplyConfig
from cdc.model.errors import ConfigError
from cdc.model.suggestion import did_you_mean
from cdc.model.written_key import is_same, read_written
from spark_apply.events.expressions import resolved
from spark_apply.events.kafka.records import committed_records
from spark_apply.events.kafka.schema_topic import schema_versions
from spark_apply.events.kafka.topics import existing_topics
from spark_apply.events.projected import SourceImage, documents
from spark_apply.events.projection import projected_table
from spark_apply.events.quarantine import Entry, read_entries
from spark_apply.model.target_table import TargetTable, choose, derived
from spark_apply.spark.session import open_session

Verdict = Literal["won", "superseded", "late", "duplicate", "tombstone", "no event"]

_WITH_ROW: Final = ("r", "c", "u")


@dataclass(frozen=True, slots=True)
class Record:
    """A record of the key, as the topic has it."""

    partition: int
    offset: int
    value: Mapping[str, Any] | None
    """The event; None for a tombstone; empty where there is no JSON object."""


@dataclass(frozen=True, slots=True)
class JudgedRecord:
    """A record and its verdict, which is the same in every store."""

    partition: int
    offset: int
    verdict: Verdict
    because: str | None
    """``partition/offset`` of the record it lost to."""
    op: str | None
    position: str | None
    schema_version: int | None
    transaction: str | None
    committed_at_ms: int | None
    """The source's commit, or when a snapshot's row was read."""
    after: object
    """The row, as the event has it."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Everything that the topic tells about a key."""

    table: str
    topic: str
    key: Mapping[str, Any]
    records: tuple[JudgedRecord, ...]
    where: str | None = None
    """The filter that rows of the copies must match."""
    left_out: bool = False
    """Whether the row that won does not match `where`."""
    quarantined: tuple[Entry, ...] = ()
    """Records that stores could not take."""

    @property
    def outcome(self) -> Literal["row", "deleted", "left out", "unknown"]:
        """Return what a store must hold: the row that won, nothing (deleted or left out), or unknown."""
        won = _won(self.records)
        if won is None:
            return "unknown"
        return "deleted" if won.op == "d" else "left out" if self.left_out else "row"

    def as_json(self) -> dict[str, object]:
        """Return the stable JSON of ``cdc explain --json``."""
        return {
            "table": self.table,
            "topic": self.topic,
            "key": dict(self.key),
            "outcome": self.outcome,
            "where": self.where,
            "records": [asdict(seen) for seen in self.records],
            "quarantined": [entry.as_json() for entry in self.quarantined],
        }


def explain(config: ApplyConfig, table: str, key: str) -> Explanation:
    """Read the table's topic for one key; `key` is JSON of its columns, or the value of the only one.

    Takes as long as reading the topic once. Raises CdcError for an unknown table or an invalid key.
    """
    versions = schema_versions(config.source)
    chosen = choose(config.tables, versions)
    if table not in chosen:
        msg = f"--table {table}: the job follows no such table"
        raise ConfigError(msg, hint=did_you_mean(table, chosen, f"it follows {', '.join(sorted(chosen))}"))
    made = derived(versions[table], chosen[table], rekeys=True)
    wanted = parse_key(made, key)
    partitions = existing_topics(config.source, [made.topic]).get(made.topic, 0)
    found = (
        Record(message.partition() or 0, message.offset() or 0, _event(message.value()))
        for message in committed_records(config.source, made.topic, partitions)
        if _is_one(_json(message.key()), wanted)
    )
    records, settings = judged(found), chosen[table]
    left_out = settings.where is not None and _left_out(config, projected_table(versions[table], settings), records)
    quarantined = tuple(e for e in read_entries(config).values() if e.table == table and _of_key(e.key, wanted))
    return Explanation(table, made.topic, wanted[0], records, settings.where, left_out, quarantined)


def _won(records: Iterable[JudgedRecord]) -> JudgedRecord | None:
    return next((seen for seen in records if seen.verdict == "won"), None)


def _left_out(config: ApplyConfig, table: TargetTable, records: Iterable[JudgedRecord]) -> bool:
    """Ask Spark whether the row that won does not match the table's `where`."""
    won = _won(records)
    if won is None or won.op == "d":
        return False
    spark = open_session(config.name, config.spark)
    made = resolved(table, spark)
    after = orjson.dumps(won.after).decode()
    key = {name: cast("dict[str, Any]", won.after).get(name) for name in table.source_key}
    image = SourceImage(orjson.dumps(key).decode(), after, won.schema_version or table.version)
    return next(documents(spark, made, [image])) is None


def parse_key(table: TargetTable, text: str) -> list[dict[str, Any]]:
    """Parse ``{"id": 5}``; for a key of one column also its value, a number or a text. Raises ConfigError."""
    given = read_written(text)
    if not isinstance(given, dict) and len(table.key) == 1:
        values = [text] if given is None or isinstance(given, str) else [given, text]
        return [{table.key[0]: value} for value in values]
    if not isinstance(given, dict) or set(given) != set(table.key):
        example = json.dumps(dict.fromkeys(table.key, "…"), ensure_ascii=False)
        raise ConfigError(f"--key: {table.qualified} has the key {', '.join(table.key)}", hint=f"--key '{example}'")
    return [{name: given[name] for name in table.key}]


def _of_key(event_key: str | None, wanted: Sequence[Mapping[str, Any]]) -> bool:
    return event_key is not None and _is_one(_json(event_key.encode()), wanted)


def _is_one(key: object, wanted: Sequence[Mapping[str, Any]]) -> bool:
    return isinstance(key, dict) and any(is_same(key, of) for of in wanted)


def judged(records: Iterable[Record]) -> tuple[JudgedRecord, ...]:
    """Return the records of one key, in the topic's order, each with its verdict."""
    known = sorted(records, key=lambda record: (record.partition, record.offset))
    events = [(_position(record), record) for record in known]
    newest = max((position for position, _ in events if position is not None), default=None)
    won = next((record for position, record in events if position is not None and position == newest), None)
    before: dict[str, Record] = {}
    seen = []
    for position, record in events:
        verdict, cause = _verdict(position, record, won, before)
        seen.append(_seen(record, verdict, cause))
        if position is not None:
            before.setdefault(position, record)
    return tuple(seen)


def _verdict(
    position: str | None, record: Record, won: Record | None, before: Mapping[str, Record]
) -> tuple[Verdict, Record | None]:
    if record.value is None:
        return "tombstone", None
    if position is None:
        return "no event", None
    if record is won:
        return "won", None
    if position in before:
        return "duplicate", before[position]
    newer = max((other for other in before if other > position), default=None)
    return ("superseded", won) if newer is None else ("late", before[newer])


def _seen(record: Record, verdict: Verdict, cause: Record | None) -> JudgedRecord:
    event = record.value or {}
    about, transaction = event.get("source"), event.get("transaction")
    about = about if isinstance(about, dict) else {}
    return JudgedRecord(
        partition=record.partition,
        offset=record.offset,
        verdict=verdict,
        because=None if cause is None else f"{cause.partition}/{cause.offset}",
        op=event.get("op"),
        position=about.get("position"),
        schema_version=about.get("schema_version"),
        transaction=transaction.get("id") if isinstance(transaction, dict) else None,
        committed_at_ms=about.get("ts_ms"),
        after=event.get("after"),
    )


def _position(record: Record) -> str | None:
    """Return an event's position; None for a record that the job does not treat as an event."""
    event = record.value
    if event is None or not isinstance(event.get("source"), dict):
        return None
    whole = event.get("op") == "d" or (event.get("op") in _WITH_ROW and event.get("after") is not None)
    position = event["source"].get("position")
    versioned = event["source"].get("schema_version") is not None
    return position if whole and versioned and isinstance(position, str) else None


def _event(value: bytes | None) -> Mapping[str, Any] | None:
    if value is None:
        return None
    found = _json(value)
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _json(text: bytes | None) -> object:
    try:
        return orjson.loads(text or b"")
    except orjson.JSONDecodeError:
        return None
