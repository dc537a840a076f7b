"""Our events are Debezium's: what the loop writes passes the documented envelope, and the envelope can refuse."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from cdc.capture.pipeline import Pipeline, Settings
from cdc.model.change import UNCHANGED, Row
from cdc.testing import (
    MemoryKafka,
    MemoryLog,
    MemorySink,
    MemorySnapshotter,
    MemorySource,
    delete,
    insert,
    truncate,
    update,
)
from tests.debezium import validate
from tests.text_tables import text_column, text_table

DOCUMENTED = {
    "before": None,
    "after": {"id": 1, "first_name": "Anne", "last_name": "Kretchmar", "email": "annek@noanswer.org"},
    "source": {
        "version": "3.5.0.Final",
        "connector": "postgresql",
        "name": "PostgreSQL_server",
        "ts_ms": 1559033904863,
        "ts_us": 1559033904863123,
        "ts_ns": 1559033904863123000,
        "snapshot": True,
        "db": "postgres",
        "sequence": '["24023119","24023128"]',
        "schema": "public",
        "table": "customers",
        "txId": 555,
        "lsn": 24023128,
        "xmin": None,
    },
    "op": "c",
    "ts_ms": 1559033904863,
    "transaction": {"id": "555:24023128", "total_order": 1, "data_collection_order": 1},
}
KEY = b'{"id":1}'


def _with(path: str, value: Any = ...) -> bytes:
    """The documented event with one field changed, or left out."""
    event = copy.deepcopy(DOCUMENTED)
    *parents, last = path.split(".")
    at: Any = event
    for name in parents:
        at = at[name]
    if value is ...:
        del at[last]
    else:
        at[last] = value
    return json.dumps(event).encode()


def test_the_documented_example_is_valid() -> None:
    """Debezium's own event, with fields we do not write and one nobody documents."""
    validate(KEY, json.dumps(DOCUMENTED).encode())
    validate(KEY, _with("source.origin", "a later release"))
    validate(KEY, None)


@pytest.mark.parametrize("path", ["ts_ms", "transaction", "source.snapshot", "source.txId", "source.lsn", "before"])
def test_what_the_documentation_calls_optional_may_be_absent(path: str) -> None:
    """And null, but for the snapshot's row."""
    validate(KEY, _with(path))
    validate(KEY, _with(path, None))


WRONG = [
    *(_with(path) for path in ("op", "source", "after")),
    *(_with(f"source.{name}") for name in ("version", "connector", "name", "ts_ms", "db", "schema", "table")),
    *(_with(f"transaction.{name}") for name in ("id", "total_order", "data_collection_order")),
    _with("op", "x"),
    _with("op", "d"),  # with an after and without a before
    _with("op", "u").replace(b'"after": {', b'"after": null, "was": {'),
    _with("before", {"id": 1}),  # a create has none
    _with("after", [1]),
    _with("after", {"id": 2}),  # of another row than the key's
    _with("after", {"first_name": "Anne"}),
    _with("ts_ms", "1559033904863"),
    _with("ts_ms", 1.5),
    _with("source.connector", "mysql"),
    _with("source.ts_ms", None),
    _with("source.txId", "555"),
    _with("source.lsn", "0/16E8F98"),
    _with("source.snapshot", "maybe"),
    _with("source.table", None),
    _with("transaction.total_order", 0),
    b"[]",
    b"null",
    b'{"op":"c","op":"u"}',
    b'{"after":NaN}',
    b"\xff",
    json.dumps(DOCUMENTED).encode()[:-1],
]


@pytest.mark.parametrize("value", WRONG, ids=range(len(WRONG)))
def test_another_event_is_refused(value: bytes) -> None:
    """The oracle can fail."""
    with pytest.raises(AssertionError):
        validate(KEY, value)


@pytest.mark.parametrize("key", [None, b"", b"1", b"null", b"{}", b'{"id":2}', b'{"id":1,"id":1}', b'{"other":1}'])
def test_another_key_is_refused(key: bytes | None) -> None:
    """A record has a key: a non-empty object, of the row it is about."""
    with pytest.raises(AssertionError):
        validate(key, json.dumps(DOCUMENTED).encode())


class Postgres(MemorySource):
    """A memory source by PostgreSQL's name."""

    name = "postgresql"


def test_every_record_of_the_loop_is_a_debezium_record() -> None:
    """Snapshot rows, all operations, key changes, truncates and values left out; a tombstone behind each delete."""
    table = text_table("docs", ["note", "id", text_column("doc", toastable=True)])
    log, kafka = MemoryLog(), MemoryKafka()

    def run() -> None:
        Pipeline(
            Settings(connector="c", prefix="p"),
            open_source=lambda: Postgres(log, [table]),
            open_snapshotter=lambda: MemorySnapshotter(log),
            sink=MemorySink(kafka, "c", "p"),
        ).run(until_caught_up=True)

    def row(key: str, doc: Any = b"w" * 2_100) -> Row:
        return (None, key.encode(), doc)

    log.commit(insert(table, row("1")), insert(table, row("2")))
    run()
    log.commit(
        update(table, row("1", UNCHANGED)), update(table, row("3", UNCHANGED), key=(b"2",)), delete(table, (b"1",))
    )
    log.commit(insert(table, row("4")), truncate(table), insert(table, row("5", None)))
    run()
    records = kafka.committed("p.s.docs")
    operations = []
    for n, record in enumerate(records):
        validate(record.key, record.value)
        operations.append("-" if record.value is None else json.loads(record.value)["op"])
        if operations[-1] == "d":
            assert (records[n + 1].key, records[n + 1].value) == (record.key, None)
    assert "".join(operations) == "rrud-cd-cd-d-c"
