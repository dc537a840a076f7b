"""Finds the poison records of a batch, and the events that take their place. DataFrame -> DataFrame, and short lists.

The copy has the newest valid event of a key, wherever a batch ends: a poison record leaves what an older event wrote,
whether that is in the store or in the same batch.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson
from pyspark.sql import Column, DataFrame, Observation, Row
from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses

from cdc.config.apply_config import ApplySource
from cdc.model.errors import OperatorError
from spark_apply.events.envelope import POSITION as WRITTEN
from spark_apply.events.kafka.records import records_between
from spark_apply.events.latest import latest
from spark_apply.events.projected import project
from spark_apply.events.quarantine import Entry
from spark_apply.events.typed import KEY, MISFITS, OFFSET, OP, PARTITION, POSITION
from spark_apply.model.completeness import TakenIn
from spark_apply.model.target_table import TargetTable
from spark_apply.spark.failures import spark_failure
from spark_apply.spark.names import quoted

_TOLD_WITHIN_S = 10.0


class RecordRef(NamedTuple):
    """The place of a record in its topic, and its key and position."""

    partition: int
    offset: int
    key: str | None
    position: str | None
    """None for a record that is no event."""


@dataclass(frozen=True, slots=True)
class PoisonRecord:
    """A record that cannot be applied, and why."""

    at: RecordRef
    columns: tuple[str, ...] = ()
    """The columns whose value does not fit their type; empty: the record is no event."""
    reason: str = ""
    """The store's reason, if a store refused it."""
    missing: str = ""
    """What an event must have and this record has not, if it is no event."""

    @property
    def why(self) -> str:
        if self.reason:
            return self.reason
        return f"a value does not fit: {', '.join(self.columns)}" if self.columns else f"not an event: {self.missing}"


def record_ref(source: ApplySource, topic: str, partition: int, offset: int) -> RecordRef:
    """Return the key and the position of an event that is in no batch any more, from its topic.

    Without them, if compaction has removed the record: then a newer event of the key comes, or has come.
    """
    for record in records_between(source, topic, {partition: offset}, {partition: offset + 1}):
        key, value = record.key(), record.value()
        if record.offset() == offset and isinstance(key, bytes) and value is not None:
            return RecordRef(partition, offset, key.decode(), str(orjson.loads(value)["source"]["position"]))
    return RecordRef(partition, offset, None, None)


def non_events(newest: DataFrame, topic: str, most: int) -> list[PoisonRecord]:
    """Return the records of a topic that are no events, at most `most`."""
    found = newest.where((F.col("topic") == topic) & ~F.col("valid")).limit(most)
    parts = found.select(
        "partition", "offset", "key", "op", "position", "schema_version", F.isnull("after").alias("bare")
    )
    return [
        PoisonRecord(RecordRef(row["partition"], row["offset"], row["key"], None), missing=_missing(row))
        for row in parts.collect()
    ]


_OPS = ("r", "c", "u", "d")


def _missing(row: Row) -> str:
    """Say by which part a record is no event, without a value of it."""
    if row["key"] is None:
        return "it has no key"
    if row["bare"] and row["op"] is None and row["position"] is None and row["schema_version"] is None:
        return "no JSON object with the parts of an event can be read from its value"
    if row["op"] not in _OPS:
        return f"its op is none of {', '.join(_OPS)}"
    if row["position"] is None:
        return "source.position is missing"
    if re.fullmatch(WRITTEN, row["position"]) is None:
        return "source.position is no position of a connector"
    if row["schema_version"] is None:
        return "source.schema_version is missing, or no number"
    return "after is no row"


def misfits(rows: DataFrame, table: TargetTable, most: int) -> tuple[list[PoisonRecord], int]:
    """Fill the cache of `rows`; return those with a value that does not fit (at most `most`) and the number of rows.

    Its exceptions hold no value of a row.
    """
    found = surveyed(rows, table)
    if not found["bad"]:
        return [], found["rows"]
    some = rows.where(misfit()).select(PARTITION, OFFSET, KEY, POSITION, MISFITS).limit(most).collect()
    return [PoisonRecord(RecordRef(*row[:4]), tuple(row[MISFITS])) for row in some], found["rows"]


def surveyed(rows: DataFrame, table: TargetTable, *more: Column) -> Row:
    """Fill the cache of `rows`; return how many are ``bad``, how many ``rows`` there are, and `more`."""
    try:
        counted = F.count_if(misfit()).alias("bad"), F.count(F.lit(1)).alias("rows")
        (found,) = rows.agg(*counted, F.count(KEY), F.count(OP), F.count(POSITION), *more).collect()
    except Exception as exc:
        said = spark_failure(exc)
        if said is None or table.projection is None:
            raise
        msg = f"{table.qualified}: where or computed fails for a row. {said}"
        hint = "let it give null instead (try_divide, try_cast, nullif, …), then: cdc rebuild APPLY.yaml"
        raise OperatorError(msg, hint=hint) from exc
    return found


class RowObservation:
    """Computes aggregates over rows that are not cached, with the first action on them."""

    def __init__(self, *asked: Column) -> None:
        self._asked = asked
        self._observation = Observation()

    def of(self, rows: DataFrame) -> DataFrame:
        return rows.observe(self._observation, *self._asked)

    def found(self) -> Mapping[str, Any] | None:
        """Return the aggregates after the action; None if Spark does not have them within 10 s."""
        until = time.monotonic() + _TOLD_WITHIN_S
        seen: Any = self._observation._jo  # noqa: SLF001 - its `get` waits for ever
        while seen.getOrEmpty().isEmpty():
            if time.monotonic() > until:
                return None
            time.sleep(0.01)
        return self._observation.get


def misfit() -> Column:
    """Whether a row, as `spark_apply.events.typed` makes it, has a value that does not fit; a condition."""
    return F.size(MISFITS) > 0


def without_misfits(
    rows: DataFrame, events: DataFrame, table: TargetTable, bad: Sequence[PoisonRecord], limit: str | None
) -> DataFrame:
    """Replace the `bad` records in `rows` with the newest valid event of their keys in the batch, if there is one.

    With `limit`, it is the newest before the limit and all from it on. A history has every event of a key anyway.
    """
    if not bad:
        return rows
    fits = ~misfit()
    if table.history:
        return rows.where(fits)
    keys = [one.at.key for one in bad]
    theirs = F.col(KEY).isin(keys)
    of_keys = events.where((F.col("topic") == table.topic) & F.col("valid") & F.col("key").isin(keys))
    every = project(latest(of_keys, {table.topic: ""}), table).where(fits)
    # `fits` too: a key that is no text (bytes outside UTF-8) is told as another, and found by none
    return rows.where(~theirs & fits).unionByName(newest(every, limit))


def newest(rows: DataFrame, limit: str | None) -> DataFrame:
    """Return the newest row of each key; with `limit`, the newest before it and all from it on."""
    held = F.when(F.col(POSITION) >= F.lit(limit), F.col(POSITION))
    found = rows.groupBy(KEY, held).agg(F.max_by(F.struct(*map(quoted, rows.columns)), POSITION).alias("newest"))
    return found.select("newest.*")


def resolved_entries(entries: Iterable[Entry], rows: DataFrame, had: TakenIn, *, history: bool) -> list[Entry]:
    """Return the entries whose event, or a newer one of its key, is among the rows that a store has taken.

    In a history no event replaces another, so there only the event itself counts. What the store `had` it was not
    given again: an event that waits in quarantine was not taken then, and is not now, although it is among the rows.
    """
    waiting = list(entries)
    if not waiting:
        return []
    keys, places = {entry.key for entry in waiting if entry.key is not None}, {_place(entry) for entry in waiting}
    found = rows.where(F.col(KEY).isin(keys)).select(PARTITION, OFFSET, KEY, POSITION).collect()
    there = [one for one in (RecordRef(*row) for row in found) if one[:2] not in places or not _is_known(one, had)]
    return [entry for entry in waiting if any(_resolves(one, entry, history=history) for one in there)]


def _place(entry: Entry) -> tuple[int, int]:
    return entry.partition, entry.offset


def _is_known(one: RecordRef, had: TakenIn) -> bool:
    return had.has(one.partition, one.offset, one.position or "")


def _resolves(one: RecordRef, entry: Entry, *, history: bool) -> bool:
    if one.key != entry.key or one.position is None:
        return False
    if entry.position is None:
        return not history and one.partition == entry.partition and one.offset > entry.offset
    return one.position == entry.position if history else one.position >= entry.position


def superseded(entries: Iterable[Entry], by: Iterable[PoisonRecord]) -> list[Entry]:
    """Return the entries that a newer poison record of the same key replaces."""
    others = [one.at for one in by]
    return [
        entry
        for entry in entries
        if any(one[:2] != (entry.partition, entry.offset) and _resolves(one, entry, history=False) for one in others)
    ]


def refusal(table: TargetTable, one: PoisonRecord, store: str) -> OperatorError:
    """Return the error that stops a job whose quarantine is full."""
    at = f"topic {table.topic}, partition {one.at.partition}, offset {one.at.offset}"
    if one.reason:
        msg = f"{table.qualified}: store {store} does not take an event ({at}): {one.reason}"
        return OperatorError(msg, hint="leave the column out of this store, or correct the row at the source")
    if not one.columns:
        hint = "what else writes to this topic? docs/events.md says what may be in it"
        return OperatorError(f"{at}: this record is not an event: {one.missing}", hint=hint)
    msg = (
        f"{table.qualified}, column {', '.join(one.columns)}: a value does not fit its type in the derived table "
        f"({at}; key column {', '.join(table.key)})"
    )
    hint = (
        f"set types: {{{one.columns[0]}: string}} under tables.{table.qualified} to keep it as text, and give the "
        "stores a new path or index: they are filled again from the topics"
    )
    return OperatorError(msg, hint=hint)
