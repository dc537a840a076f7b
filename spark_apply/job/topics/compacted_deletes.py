"""Refuses to go on with a copy that has rows whose deletes compaction has removed before the copy had read them.

A deleted key ends in the topic with a ``d`` and, right behind it, a tombstone. Compaction may remove the ``d`` as soon
as the segment that holds it is closed, and leaves the tombstone for ``delete.retention.ms``. A tombstone has no
position, so it cannot be applied; but it tells that its key is gone. A copy that has a row under such a key would keep
it for good.

This can only be so where a copy was away, or lagged: the segment that is being written is not compacted. So it is asked
before a copy goes on from its own offsets, of what it has not read yet.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, TypeAlias

import orjson
from confluent_kafka import Message
from pyspark.sql import SparkSession

from cdc.config.apply_config import ApplySource
from spark_apply.events.kafka.offsets import committed_ends
from spark_apply.events.kafka.records import records_between
from spark_apply.events.projected import key_documents
from spark_apply.job.topics.retention import MissedDeletesError, held_offsets, rebuild_command
from spark_apply.model.store import Offsets, RereadStore, Store
from spark_apply.model.target_table import TargetTable

_AT_ONCE: Final = 10_000
_MAYBE_DELETE: Final = re.compile(rb'"op"\s*:\s*"d"')
"""What stands in each delete, and in few other events: in a text of a row, quotes are behind a backslash."""


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
    has = held_offsets(store, table)
    if table.history or not (has or store.due(table)):  # what is filled for the first time has no rows
        return
    found = {} if found is None else found
    at = (table.topic, tuple(sorted(has.items())))
    if at not in found:
        found[at] = buried_keys(records_between(source, table.topic, has, committed_ends(source, table.topic)), has)
    keys = found[at]
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


def buried_keys(records: Iterable[Message], begin: Offsets) -> list[str]:
    """Return the keys whose last record is a tombstone, and whose delete is not among the records before it.

    `records` are those from `begin` on, in order within each partition. A tombstone right at the beginning of a
    partition may be that of a delete that was read before.
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
            elif record.offset() != begin.get(record.partition() or 0, 0):
                buried[key] = None
            continue
        buried.pop(key, None)
        if _is_delete(value):
            deleted.add(key)
        else:
            deleted.discard(key)
    return [key.decode(errors="replace") for key in buried]


def _is_delete(value: bytes | str) -> bool:
    if isinstance(value, bytes) and _MAYBE_DELETE.search(value) is None:  # most events: they are not parsed
        return False
    try:
        event = orjson.loads(value)
    except orjson.JSONDecodeError:
        return False
    return isinstance(event, dict) and event.get("op") == "d"
