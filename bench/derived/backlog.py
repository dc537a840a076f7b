"""Writes events as a connector would, but fast: from one template for each table, filled in as bytes."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from confluent_kafka import Producer

from tests.spark.records import Publisher, SourceTable, dumps, position

PARTITIONS: Final = 6
COLUMNS: Final[Mapping[str, Mapping[str, Any]]] = {
    "id": {"kind": "int64"},
    "customer_id": {"kind": "int32"},
    "status": {"kind": "string"},
    "total": {"kind": "decimal", "precision": 10, "scale": 2},
    "quantity": {"kind": "int32"},
    "note": {"kind": "string"},
    "created_at": {"kind": "timestamp_micros"},
    "updated_at": {"kind": "timestamptz"},
    "active": {"kind": "boolean"},
}
"""The nine columns of `bench.capture.databases`."""
_TRANSACTION: Final = 100_000
_POLL_EVERY: Final = 10_000
_SLOT: Final = 7_777_777_777
"""A placeholder for the key in a template; the two below are for status and position."""
_STATUS: Final = "@status@"
_COMMIT: Final = 8_888_888_888


def table(prefix: str) -> SourceTable:
    return SourceTable(prefix, "orders", COLUMNS)


class Backlog:
    """The topics of one table, and what is written to them; positions go up from call to call."""

    def __init__(self, bootstrap: str, of: SourceTable, *, with_before: bool = False) -> None:
        """`with_before`: updates have a whole row as `before`, for readers that insist; it is the row after it."""
        self._of = of
        self._commit = 0
        self._with_before = with_before
        self.statuses: dict[int, int] = {}
        """The number that ends the newest status of each key."""
        publisher = Publisher(bootstrap, of.prefix)
        publisher.create([of], partitions=PARTITIONS)
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": f"{of.prefix}.bench",
                "partitioner": "murmur2_random",
                "linger.ms": 20,
                "batch.size": 1_000_000,
                "compression.type": "lz4",
                "queue.buffering.max.messages": 1_000_000,
                "log_level": 0,
            }
        )
        self._producer.init_transactions(30)

    def rows(self, count: int) -> None:
        """Write an insert for every key."""
        self._write("c", range(count))

    def updates(self, count: int, keys: int, *, seed: int) -> None:
        """Write updates of random keys."""
        rng = random.Random(seed)
        self._write("u", (rng.randrange(keys) for _ in range(count)))

    def _write(self, op: str, keys: Iterable[int]) -> None:
        topic = self._of.topic
        wanted = list(keys)
        made = records(self._of, op, wanted, self._commit, with_before=self._with_before)
        for number, (of, (key, value)) in enumerate(zip(wanted, made, strict=True)):
            self._commit += 1
            self.statuses[of] = self._commit % 7
            if number % _TRANSACTION == 0:
                if number:
                    self._producer.commit_transaction(60)
                self._producer.begin_transaction()
            self._producer.produce(topic, key=key, value=value)
            if number % _POLL_EVERY == 0:
                self._producer.poll(0)
        self._producer.commit_transaction(60)


def records(
    of: SourceTable, op: str, keys: Iterable[int], commit: int, *, with_before: bool = False
) -> Iterator[tuple[bytes, bytes]]:
    """Yield key and value of an event for each key, at the positions behind `commit`, as of `SourceTable.event`."""
    ((_, key, value),) = of.event(op, row(_SLOT, _STATUS), position(_COMMIT))
    assert value is not None
    if with_before and op == "u":
        value = value.replace(b'"before":null', b'"before":' + dumps(row(_SLOT, _STATUS)), 1)
    key_template, template = key.replace(b"%", b"%%"), value.replace(b"%", b"%%")
    key_template = key_template.replace(b"%d" % _SLOT, b"%d")
    for mark, slot in (
        (b"%d" % _SLOT, b"%(id)d"),
        (_STATUS.encode(), b"status %(status)d"),
        (b"%016x" % _COMMIT, b"%(commit)016x"),
        (b"%d" % _COMMIT, b"%(commit)d"),
    ):
        template = template.replace(mark, slot)
    for at, number in enumerate(keys, commit + 1):
        yield key_template % number, template % {b"id": number, b"status": at % 7, b"commit": at}


def row(key: int, status: str) -> dict[str, object]:
    return {
        "id": key,
        "customer_id": 977,
        "status": status,
        "total": "99.90",
        "quantity": 3,
        "note": f"a note of some length {key}",
        "created_at": 1_700_000_000_000_000,
        "updated_at": "2026-01-05T10:11:12.123456Z",
        "active": True,
    }
