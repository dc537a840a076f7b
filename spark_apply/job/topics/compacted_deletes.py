"""Refuses to go on with a copy that has rows whose deletes compaction has removed before the copy had read them.

A deleted key ends in the topic with a ``d`` and, right behind it, a tombstone. Compaction may remove the ``d`` as soon
as the segment that holds it is closed, and leaves the tombstone for ``delete.retention.ms``. A tombstone has no
position, so it cannot be applied; but it tells that its key is gone. A copy that has a row under such a key would keep
it for good.

This can only be so where a copy was away, or lagged: the segment that is being written is not compacted. So it is asked
before a copy goes on from its own offsets, of what it has not read yet. A job that runs may lag, too: with each batch
Spark combines the hashes of the tombstones' keys with those of the deletes' (exclusive or, so that pairs cancel out),
which costs next to nothing. Where something is left over, the batch's records are looked through, before a store has
them.

Of a job that lags for longer than `delete.retention.ms` the tombstones may be gone as well. If all that is unread is
younger than half of that, what is read in the other half is whole: so often the broker is asked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeAlias

import orjson
from confluent_kafka import Message
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses

from cdc.config.apply_config import ApplySource
from cdc.machine.elapsed import Elapsed
from spark_apply.events.kafka.offsets import committed_ends, ends_by_topic
from spark_apply.events.kafka.records import records_between
from spark_apply.events.projected import key_documents
from spark_apply.events.validation import RowObservation
from spark_apply.job.topics.identity import patiently
from spark_apply.job.topics.retention import (
    MissedDeletesError,
    extents,
    held_offsets,
    kept_deletes,
    missed_deletes,
    rebuild_command,
    repair_command,
    span,
)
from spark_apply.model.clock import CLOCK
from spark_apply.model.store import Offsets, RereadStore, Store, has_rows, is_whole
from spark_apply.model.target_table import TargetTable

_AT_ONCE: Final = 10_000
_MAYBE_DELETE: Final = re.compile(rb'"op"\s*:\s*"d"')
"""What stands in each delete, and in few other events: in a text of a row, quotes are behind a backslash."""
_DELETE: Final = bytearray(b'"op":"d"')
_TAIL: Final = 64
"""So many bytes at the end of an event have what kind it is. Of other writers' deletes more is looked through."""


Buried: TypeAlias = dict[tuple[str, tuple[tuple[int, int], ...]], list[str]]
"""Keys that were found, by topic and the offsets from which it was looked through."""


def require_deletes_read(
    spark: SparkSession,
    source: ApplySource,
    table: TargetTable,
    name: str,
    store: Store,
    *,
    found: Buried | None = None,
) -> None:
    """Raise MissedDeletesError for a copy, which was opened, that has rows whose deletes are gone from its topic.

    Of a store that is not to be asked for rows it is not known whether it has them. `found` keeps what was found for
    other copies of the topic: what is unread may be large.
    """
    due = store.due(table)
    mark = store.mark(table) if due is None else None
    has = due.begin if due is not None else mark.ends if mark is not None else {}
    if table.history or (not has and due is None and (mark is not None or not _tells_rows(table, store))):
        return  # what is filled for the first time has no rows
    if not has:
        _require_young(source, table, name, due.live_until_ms if due is not None else 0)
    found = {} if found is None else found
    at = (table.topic, tuple(sorted(has.items())))
    if at not in found:
        unread = records_between(source, table.topic, has, committed_ends(source, table.topic))
        found[at] = buried_keys(unread, has, partial(_delete_before, source, table.topic, has))
    _require_none_kept(spark, table, name, store, found[at])


def _tells_rows(table: TargetTable, store: Store) -> bool:
    """Whether a copy without a mark has rows: those of a `WholeStore` are replaced by what is read again.

    A copy is made with a mark. So one was put back or restored, or has lost it, and its rows can be of any time.
    """
    return not is_whole(store) and not isinstance(store, RereadStore) and has_rows(store, table)


def _require_young(source: ApplySource, table: TargetTable, name: str, then_ms: int) -> None:
    """Raise MissedDeletesError for a copy as it was then, if its topic may have deletes of a later time no more."""
    there = extents(source, [table.topic])[table.topic]
    kept_ms = max((extent.retention_ms for extent in there.values()), default=0)
    first = {number: extent.first for number, extent in there.items()}
    if then_ms < CLOCK.later_ms() - kept_ms and missed_deletes("", first, there) is not None:
        raise MissedDeletesError(
            f"{table.qualified} in {name} is of an earlier time, as after a rollback by another hand, and does not say "
            f"which. Its topic keeps deletes for {span(kept_ms)}: rows that were deleted may stay in it for good",
            hint=rebuild_command(table, name),
        )


def _require_none_kept(spark: SparkSession, table: TargetTable, name: str, store: Store, keys: list[str]) -> None:
    """Raise MissedDeletesError if a copy has rows under these keys, or does not say which rows it has."""
    for first in range(0, len(keys), _AT_ONCE):
        some = key_documents(spark, table, keys[first : first + _AT_ONCE])
        ids = {store.id_of(key, document) for key, document in some}
        rereads = isinstance(store, RereadStore)
        if ids and (rereads or any(True for _ in store.rows(table, ids))):
            way_out = "stop the job and start it again: it reads all topics again"
            raise MissedDeletesError(
                f"{table.qualified} in {name}: rows of it were deleted at the source, and compaction removed their "
                "deletes from the topic before the copy had read them",
                hint=f"{way_out if rereads else rebuild_command(table, name)}  # min.compaction.lag.ms on topic "
                f"{table.topic} keeps compaction away for as long as the job may be away",
            )


def buried_keys(records: Iterable[Message], begin: Offsets, delete_before: Callable[[int, str], bool]) -> list[str]:
    """Return the keys whose last record is a tombstone, and whose delete is not among the records before it.

    `records` are those from `begin` on, in order within each partition. A tombstone right at the beginning of a
    partition may be that of a delete that was read before: `delete_before` says of partition and key whether one is
    there. If it is not, compaction has removed it, before it was read or since: what a copy has tells that.
    """
    deleted: set[bytes] = set()
    buried: dict[bytes, None] = {}
    for record in records:
        key, value = record.key(), record.value()
        if not isinstance(key, bytes):
            continue
        if value is None:
            if key in deleted:
                deleted.discard(key)  # the two are a pair
            elif record.offset() != begin.get(number := record.partition() or 0, 0) or not delete_before(
                number, key.decode(errors="replace")
            ):
                buried[key] = None
            continue
        buried.pop(key, None)
        if _is_delete(value):
            deleted.add(key)
        else:
            deleted.discard(key)
    return [key.decode(errors="replace") for key in buried]


def _delete_before(source: ApplySource, topic: str, begin: Offsets, number: int, key: str) -> bool:
    """Whether the last record before the beginning of a partition is a delete of a key; it was read, as it is there."""
    end = begin.get(number, 0)
    before = records_between(source, topic, {number: end - 1}, {number: end}) if end else ()
    return any(
        isinstance(of := record.key(), bytes)
        and of.decode(errors="replace") == key
        and (value := record.value()) is not None
        and _is_delete(value)
        for record in before
    )


@dataclass(slots=True)
class UnreadDeletes:
    """Finds out of each batch whether deletes are gone that were in it."""

    spark: SparkSession
    source: ApplySource
    begins: Callable[[str], Offsets]
    """Returns the offsets from which a topic is read next; empty: from its beginning, into copies without rows."""
    held: Mapping[tuple[str, str], Offsets] = field(default_factory=dict)
    """By topic and store, what copies had of their topics when the job began; this was judged then."""
    filling: dict[str, Offsets] = field(default_factory=dict)
    """The ends of topics when copies began to be filled with them, until they are filled so far."""
    kept_ms: dict[str, int] = field(default_factory=dict)
    """By compacted topic, how long deletes are kept there, as the broker said last."""
    _looked: Elapsed | None = None
    """Since the last look, which found that for `_kept_s` nothing unread is removed; a machine may sleep meanwhile."""
    _kept_s: float = 0.0

    def begin(self, topics: Collection[str]) -> None:
        """Note which topics are read from their beginnings. Raises OperatorError when the broker does not answer."""
        fresh = sorted(topic for topic in topics if not self.begins(topic))
        self.filling.update(ends_by_topic(self.source, fresh) if fresh else {})
        kept_ms, compacted = kept_deletes(self.source, sorted(topics))
        self.kept_ms = {topic: kept for topic, kept in kept_ms.items() if compacted[topic]}

    def observation(self, apart: Collection[str]) -> RowObservation:
        """Return what is to see the records of a batch, but of the topics `apart`."""
        asked = ~F.col("topic").isin(sorted(apart)) if apart else F.lit(True)  # noqa: FBT003 - a literal column
        gone = F.col("value").isNull()
        delete = F.contains(F.substring("value", -_TAIL, _TAIL), F.lit(_DELETE))
        either = F.when((gone | delete) & asked, F.xxhash64("topic", "key"))
        return RowObservation(F.count_if(gone & asked).alias("gone"), F.bit_xor(either).alias("left"))

    def look(self, routes: Iterable[tuple[TargetTable, Mapping[str, Store]]], contained: Contained) -> None:
        """Have copies set aside that may have lagged behind for longer than their topics keep deletes."""
        if self._looked is not None and self._looked.longest_s() < self._kept_s:
            return
        begun = Elapsed()
        followed = {table.topic: (table, stores) for table, stores in routes if stores and not self._is_filled(table)}
        topics = sorted(followed)
        there = patiently(lambda: extents(self.source, topics, within=0.5))
        kept_ms = [extent.retention_ms for of in there.values() for extent in of.values()]
        self.kept_ms |= {t: of[0].retention_ms for t, of in there.items() if t in self.kept_ms}
        old = [topic for topic in topics if missed_deletes("", self.begins(topic), there[topic]) is not None]
        if not old:
            self._looked, self._kept_s = begun, min(kept_ms, default=0) / 2000
            return
        there = patiently(lambda: extents(self.source, old))
        for topic in old:
            table, stores = followed[topic]
            for name, store in list(stores.items()):
                with contained(topic, name):
                    has = (held_offsets(store, table), self.held.get((topic, name), {}))
                    at = {
                        number: max(end, *(ends.get(number, 0) for ends in has))
                        for number, end in self.begins(topic).items()
                    }  # a copy that was rebuilt is ahead of what the job reads next, whatever its mark says by then
                    why = missed_deletes(f"{table.qualified} in {name}", at, there[topic])
                    if why is not None:
                        raise MissedDeletesError(why, hint=repair_command(table, name))

    def _is_filled(self, table: TargetTable) -> bool:
        """Whether copies of a table are still filled for the first time: all the rows they have were read just now."""
        ends, at = self.filling.get(table.topic), self.begins(table.topic)
        if ends is not None and all(at.get(number, 0) >= end for number, end in ends.items()):
            del self.filling[table.topic]
        return table.topic in self.filling

    def require(
        self,
        seen: RowObservation,
        records: DataFrame,
        routes: Iterable[tuple[TargetTable, Mapping[str, Store]]],
        contained: Contained,
    ) -> None:
        """Have copies set aside that have rows whose deletes are gone from a batch, which `seen` has seen."""
        about = seen.found()
        if about is not None and not (about["gone"] and about["left"]):
            return
        tables = {table.topic: (table, stores) for table, stores in routes if not table.history and stores}
        tables = {topic: of for topic, of in tables.items() if self.begins(topic)}
        for topic, keys in self._buried(records, [*tables]).items():
            table, stores = tables[topic]
            for name, store in list(stores.items()):
                if not (isinstance(store, RereadStore) and self._is_filled(table)):
                    with contained(topic, name):
                        _require_none_kept(self.spark, table, name, store, keys)

    def _buried(self, records: DataFrame, topics: list[str]) -> dict[str, list[str]]:
        """Return what `buried_keys` finds, by topic; Spark looks through the records."""
        gone, op = F.col("value").isNull(), F.get_json_object(F.col("value").cast("string"), "$.op")
        of_key = [
            F.max(F.when(gone, F.col("offset"))).alias("gone"),
            F.max(F.when(~gone, F.col("offset"))).alias("last"),
            F.max_by(F.when(~gone, op), F.when(~gone, F.col("offset"))).alias("op"),
        ]
        read = records.where(F.col("topic").isin(topics) & F.col("key").isNotNull())
        keyed = read.groupBy("topic", "partition", F.col("key").cast("string").alias("key")).agg(*of_key)
        found = keyed.where((F.col("gone") > F.coalesce("last", F.lit(-1))) & ~F.col("op").eqNullSafe("d"))
        buried: dict[str, list[str]] = {}
        for row in found.toLocalIterator() if topics else ():
            begin, number = self.begins(row["topic"]), row["partition"]
            first = row["gone"] == begin.get(number, 0)
            if not (first and _delete_before(self.source, row["topic"], begin, number, row["key"])):
                buried.setdefault(row["topic"], []).append(row["key"])
        return buried


Contained: TypeAlias = Callable[[str, str], AbstractContextManager[None]]
"""Contains what fails for a topic's copy in a store."""


def _is_delete(value: bytes | str) -> bool:
    if isinstance(value, bytes) and _MAYBE_DELETE.search(value) is None:  # most events: they are not parsed
        return False
    try:
        event = orjson.loads(value)
    except orjson.JSONDecodeError:
        return False
    return isinstance(event, dict) and event.get("op") == "d"
