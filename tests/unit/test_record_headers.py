"""Headers of records: none unless they are asked for; each half of a key change names the other; CloudEvents."""

from __future__ import annotations

import datetime as dt

import orjson
import pytest

from cdc.capture.pipeline import Pipeline, Settings
from cdc.formats.reading import Reading
from cdc.model.change import Change, Op
from cdc.rules.flat import Formats, is_flat
from cdc.testing import (
    MemoryKafka,
    MemoryLog,
    MemorySink,
    MemorySnapshotter,
    MemorySource,
    Record,
    delete,
    insert,
    truncate,
    update,
)
from tests.cloud_events import attributes
from tests.text_tables import text_table
from tests.unit.test_formats import Bench

TABLE = text_table("t", ["id", "note"])


def _moved(*, key_headers: bool, whole: bool) -> list[Record]:
    log, kafka = MemoryLog(), MemoryKafka()
    log.commit(insert(TABLE, (b"1", b"a")))

    def run() -> None:
        Pipeline(
            Settings(connector="c", prefix="p", key_headers=key_headers),
            open_source=lambda: MemorySource(log, [TABLE]),
            open_snapshotter=lambda: MemorySnapshotter(log),
            sink=MemorySink(kafka, "c", "p", logged=["s.t"]),
        ).run(until_caught_up=True)

    run()
    moved = update(TABLE, (b"2", b"b"), key=(b"1",))
    log.commit(Change(Op.UPDATE, TABLE, (b"1", b"a"), (b"2", b"b"), 0) if whole else moved)
    log.commit(update(TABLE, (b"2", b"c")))
    run()
    assert [r.headers for r in kafka.committed("p.log.s.t")] == [
        r.headers for r in kafka.committed("p.s.t") if r.value is not None
    ]
    return kafka.committed("p.s.t")


@pytest.mark.parametrize("whole", [False, True])
def test_a_key_change_names_the_other_key(*, whole: bool) -> None:
    """The delete and its tombstone the new one, the create the old one; nothing else has headers."""
    records = _moved(key_headers=True, whole=whole)
    new, old = (("__debezium.newkey", b'{"id":"2"}'),), (("__debezium.oldkey", b'{"id":"1"}'),)
    assert [r.headers for r in records] == [(), new, new, old, ()]


def test_without_being_asked_nothing_has_headers() -> None:
    """So no record is larger than before."""
    assert not any(r.headers for r in _moved(key_headers=False, whole=False))


ODD = text_table('q"source":{\n', ["id", "note"])
"""Its name is what the source block begins with, and has what CloudEvents' strings do not."""


def _records(bench: Bench) -> list[Record]:
    return [record for table in (TABLE, ODD) for record in bench.kafka.committed(f"p.s.{table.name}")]


@pytest.mark.parametrize("shape", ["envelope", "flat"])
@pytest.mark.parametrize("encoding", ["json", "connect-json", "avro", "protobuf", "json-schema"])
def test_cloud_events(shape: str, encoding: str) -> None:
    """Snapshot, stream, key change, delete, TRUNCATE, re-read: valid, one for each event, each with its own id."""
    bench, formats = Bench(), Formats(f"{shape} {encoding}")
    bench.log.commit(insert(TABLE, (b"1", b"a")), insert(TABLE, (b"2", b"b")), insert(ODD, (b"1", b'"source":{')))
    bench.run(formats, TABLE, ODD, cloud_events=True)
    bench.log.commit(insert(TABLE, (b"3", b"\xc3\xa4")), update(TABLE, (b"4", b"c"), key=(b"1",)))
    bench.log.commit(delete(TABLE, (b"2",)), insert(ODD, (b"2", b"x")))
    bench.log.commit(truncate(TABLE))
    bench.log.commit(insert(TABLE, (b"5", b"d")), insert(TABLE, (b"6", b"e")))
    bench.run(formats, TABLE, ODD, cloud_events=True)
    other = Formats(f"{'flat' if shape == 'envelope' else 'envelope'} {encoding}")
    bench.run(other, TABLE, ODD, cloud_events=True)  # it reads the rows again
    reading, found = Reading(bench.registry.schemas.get), []
    for record in _records(bench):
        told = attributes(record.headers, record.value)
        assert (told is None) == (record.value is None and not is_flat(record.headers))
        if told is None:
            continue
        event = orjson.loads(reading.event(record.value, record.headers) or b"")
        assert told["iodebeziumop"] == event["op"]
        assert told["iodebeziumposition"] == event["source"]["position"]
        assert told["source"] == "/debezium/memory/p"
        assert told["type"] == "io.debezium.connector.memory.DataChangeEvent"
        assert told["id"].startswith(f"{told['subject']}:{event['source']['position']}")
        assert ("iodebeziumtxid" in told) == (event["op"] != "r")
        framed = {
            "avro": "application/avro",
            "protobuf": "application/protobuf",
            "json-schema": "application/octet-stream",
        }
        assert record.value is None or told["datacontenttype"] == framed.get(encoding, "application/json")
        if told.get("datacontenttype") == "application/json":
            orjson.loads(record.value or b"")
        found.append(told)
    assert len({(told["source"], told["id"]) for told in found}) == len(found)
    assert {told["subject"] for told in found} == {"s.t", 's.q"source":{\\u000a'}
    ops = [told["iodebeziumop"] for told in found if told["subject"] == "s.t"]
    assert "".join(ops[:10]) == "rrcdcddd" + "cc"
    assert sorted(ops[10:]) == ["r", "r"]


def test_cloud_events_beside_the_other_key() -> None:
    """Both are there; the tombstone behind a delete has the key's alone."""
    bench = Bench()
    bench.log.commit(insert(TABLE, (b"1", b"a")))
    bench.run(Formats(), key_headers=True, cloud_events=True)
    bench.log.commit(update(TABLE, (b"2", b"b"), key=(b"1",)))
    bench.run(Formats(), key_headers=True, cloud_events=True)
    _, gone, tombstone, made = [[name for name, _ in r.headers] for r in bench.kafka.committed("p.s.t")]
    assert gone[:2] == ["__debezium.newkey", "ce_specversion"]
    assert tombstone == ["__debezium.newkey"]
    assert made[:2] == ["__debezium.oldkey", "ce_specversion"]


def test_the_time_is_the_commits() -> None:
    """To the millisecond, in UTC."""
    bench = Bench()
    bench.run(Formats(), cloud_events=True)
    bench.log.commit(insert(TABLE, (b"1", b"a")))
    bench.run(Formats(), cloud_events=True)
    (record,) = bench.kafka.committed("p.s.t")
    told = attributes(record.headers, record.value)
    assert told is not None
    at = dt.datetime.fromisoformat(told["time"])
    assert at.utcoffset() == dt.timedelta(0)
    ms = orjson.loads(record.value or b"")["source"]["ts_ms"]
    assert (
        (at - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(milliseconds=1)
        == ms
        == int(told["iodebeziumtsms"])
    )
