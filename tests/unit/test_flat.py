"""The flat format: the value is the row, a delete is a tombstone alone; all that is read back is in a header."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import Any

import orjson
import pytest

from cdc.capture.pipeline import Pipeline, Settings
from cdc.config.apply_config import ApplyTable
from cdc.config.kafka_config import KafkaConfig, LogConfig
from cdc.config.published.column_rules import ColumnRules
from cdc.model.change import Table
from cdc.model.errors import ConfigError, OperatorError
from cdc.model.interfaces import Log, Source
from cdc.rules.capture_rules import CaptureRules
from cdc.rules.flat import Flat, Formats, as_event, is_flat
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
from spark_apply.model.target_table import derived, parse_version
from tests.text_tables import text_column, text_table

LOGS: frozenset[Log] = frozenset(["transaction", "dead-letter"])
TABLE = text_table("t", ["id", "note"])
OTHER = text_table("other", ["id", "note"])


class Bench:
    def __init__(self, *, largest_bytes: int = 1 << 20) -> None:
        self.log, self.kafka = MemoryLog(), MemoryKafka(largest_bytes=largest_bytes)

    def run(self, formats: Formats, *tables: Table, **more: Any) -> None:
        def opened(without: Collection[str] = ()) -> Source:
            return MemorySource(self.log, [of for of in tables or [TABLE] if of.qualified not in without])

        Pipeline(
            Settings(
                connector="c", prefix="p", formats=formats, logs=frozenset(["transaction", "dead-letter"]), **more
            ),
            open_source=opened,
            leaving_out=lambda names: partial(opened, names),
            open_snapshotter=lambda: MemorySnapshotter(self.log),
            sink=MemorySink(self.kafka, "c", "p"),
        ).run(until_caught_up=True)

    def records(self, topic: str = "p.s.t") -> list[tuple[bytes, Any]]:
        return [(r.key, r.value and orjson.loads(r.value)) for r in self.kafka.committed(topic)]


def test_rows_and_tombstones() -> None:
    """By snapshot and stream; a table beside it that is not flat has its envelope."""
    bench = Bench()
    bench.log.commit(insert(TABLE, (b"1", b"a")))
    formats = Formats("envelope", {"s.t": "flat"})
    bench.run(formats, TABLE, OTHER)
    bench.log.commit(
        update(TABLE, (b"1", b"b")), update(TABLE, (b"2", b"c"), key=(b"1",)), delete(TABLE, (b"2",)),
        insert(OTHER, (b"9", b"z")),
    )  # fmt: skip
    bench.run(formats, TABLE, OTHER, key_headers=True)
    one, two = b'{"id":"1"}', b'{"id":"2"}'
    assert bench.records() == [
        (one, {"id": "1", "note": "a"}), (one, {"id": "1", "note": "b"}), (one, None), (two, {"id": "2", "note": "c"}),
        (two, None),
    ]  # fmt: skip
    assert [value["op"] for _, value in bench.records("p.s.other")] == ["c"]
    headers = [[name for name, _ in r.headers] for r in bench.kafka.committed("p.s.t")]
    assert headers == [["__cdc"], ["__cdc"], ["__debezium.newkey", "__cdc"], ["__debezium.oldkey", "__cdc"], ["__cdc"]]
    (_, end) = [value for _, value in bench.records("p.transaction")]
    assert end["data_collections"] == [
        {"data_collection": "s.other", "event_count": 1}, {"data_collection": "s.t", "event_count": 4},
    ]  # fmt: skip


def test_what_is_asked_for_besides() -> None:
    """In the order of the file; the position is that of the header."""
    bench = Bench()
    bench.run(Formats("flat", metadata=("position", "op", "deleted", "ts_ms")))
    bench.log.commit(insert(TABLE, (b"1", b"a")))
    bench.run(Formats("flat", metadata=("position", "op", "deleted", "ts_ms")))
    (record,) = bench.kafka.committed("p.s.t")
    value = orjson.loads(record.value or b"")
    assert list(value) == ["id", "note", "__position", "__op", "__deleted", "__ts_ms"]
    assert (value["__op"], value["__deleted"], type(value["__ts_ms"])) == ("c", "false", int)
    assert record.headers == (("__cdc", f"{value['__position']} 1 c".encode()),)


def test_a_truncate_deletes_what_the_topic_has() -> None:
    """Keys that are gone already are not deleted again: their tombstones say so when they are read back."""
    bench = Bench()
    bench.run(Formats("flat"))
    bench.log.commit(insert(TABLE, (b"1", b"a")), insert(TABLE, (b"2", b"b")), delete(TABLE, (b"1",)))
    bench.log.commit(truncate(TABLE))
    bench.run(Formats("flat"))
    assert [key for key, value in bench.records() if value is None] == [b'{"id":"1"}', b'{"id":"2"}']


def test_a_row_that_is_too_large_is_a_dead_letter() -> None:
    """It is found again by its position, which the header has."""
    bench = Bench(largest_bytes=1_000_000)
    bench.run(Formats("flat"))
    bench.log.commit(insert(TABLE, (b"1", b"x" * 1_000_000)), insert(TABLE, (b"2", b"b")))
    bench.run(Formats("flat"))
    assert bench.records() == [(b'{"id":"2"}', {"id": "2", "note": "b"})]
    letters = [letter for _, letter in bench.records("p.dead-letter-c")]
    assert {(letter["table"], letter["key"]["id"]) for letter in letters} == {("t", "1")}


def test_a_record_without_the_header_is_read_as_it_is() -> None:
    """One of before, or of somebody else's."""
    at = "00000001.0000000000000001.00000002"
    header = Flat().header(b"u", at, 3)
    assert orjson.loads(as_event(b'{"id":1}', [header]) or b"") == {
        "op": "u", "after": {"id": 1}, "source": {"position": at, "schema_version": 3},
    }  # fmt: skip
    assert orjson.loads(as_event(None, [header]) or b"")["after"] is None
    for headers in (None, [], [("other", b"x")], [("__cdc", b"x")], [("__cdc", None)], [("__cdc", b"a b c")]):
        assert as_event(b"{}", headers) == b"{}"
        assert as_event(None, headers) is None
        assert not is_flat(headers)
    assert is_flat([header])


def test_another_format_has_the_rows_read_again() -> None:
    """In both directions, and when what stands beside the row changes."""
    bench = Bench()
    bench.log.commit(insert(TABLE, (b"1", b"a")))
    for formats in (Formats("envelope"), Formats("flat"), Formats("flat", metadata=("op",)), Formats()):
        bench.run(formats)
    values = [value for _, value in bench.records()]
    assert [value.get("op", value.get("__op")) for value in values] == ["r", None, "r", "r"]
    assert [value.get("format") for _, value in bench.records("p.schema")] == [None, "flat", "flat,op", None]


@pytest.mark.parametrize(
    ("formats", "columns", "why"),
    [
        (Formats("flat", metadata=("op",)), ["id", "__op"], "has a column __op of its own"),
        (Formats("flat", logs=["s.t"]), ["id"], "is flat and has a log"),
        (Formats(logs=["s.t", "s.u*"]), ["id"], r"sink.log.tables: “s.u\*” matches no table that is captured"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_made(
    formats: Formats, columns: Sequence[str], why: str
) -> None:
    """No topic is there yet."""
    bench = Bench()
    with pytest.raises(OperatorError, match=why):
        bench.run(formats, text_table("t", [text_column(name) for name in columns]))
    assert not bench.kafka.topics


@pytest.mark.parametrize("running", [True, False], ids=["running", "start"])
def test_a_column_that_is_called_as_metadata_stops_no_other_table(*, running: bool) -> None:
    """Its table is left out. It comes back where the rules leave the column out, as the hint says."""
    formats, other = Formats("flat", metadata=("op",)), text_table("u", ["id"])
    bench, taken = Bench(), text_table("t", ["id", "note", "__op"])
    bench.log.commit(insert(TABLE, (b"1", b"a")), insert(other, (b"1",)))
    bench.run(formats, TABLE, other)
    bench.log.commit(insert(taken, (b"2", b"b", b"mine")), insert(other, (b"2",)))
    bench.run(formats, TABLE if running else taken, other)
    assert {row["id"] for _, row in bench.records("p.s.u")} == {"1", "2"}
    assert {row["id"] for _, row in bench.records()} == {"1"}
    rules = CaptureRules({"s.t": ColumnRules(exclude=("__op",))}, {})
    bench.run(formats, taken, other, rules=rules)
    assert [(row["id"], row["__op"]) for _, row in bench.records()] == [("1", "r"), ("1", "r"), ("2", "r")]


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"format": "thrift"}, "format: “thrift” is not a format"),
        ({"format": "flat envelope"}, "format: “flat envelope” is not a format"),
        ({"format": ""}, "format: “” is not a format"),
        ({"formats": {"s.t": "raw"}}, "formats.s.t: “raw” is not a format"),
        ({"format": "flat", "flat_metadata": ("lsn",)}, "flat_metadata: “lsn” is not known"),
        ({"format": "flat", "flat_metadata": ("op", "op")}, "flat_metadata names something twice"),
        ({"flat_metadata": ("op",)}, "flat_metadata means nothing"),
        ({"headers": ("x",)}, "headers: “x” is not known"),
    ],
)
def test_files_that_are_refused(more: dict[str, Any], why: str) -> None:
    """Before anything is connected."""
    with pytest.raises(ConfigError, match=why):
        KafkaConfig(bootstrap_servers="h:1", **more)


def test_formats_of_a_file() -> None:
    """The first item that fits counts."""
    config = KafkaConfig(
        bootstrap_servers="h:1", format="flat", formats={"s.orders": "envelope", "s.o*": "flat", "s.*": "envelope"},
        log=LogConfig(tables=("s.orders",), retention="1d"),
    )  # fmt: skip
    formats = Formats.of_sink(config)
    assert [formats.of(name) is not None for name in ("s.orders", "s.other", "s.t", "x.t")] == [
        False,
        True,
        False,
        True,
    ]


def test_an_apply_job_refuses_a_flat_topic() -> None:
    """It would take no record of it for an event."""
    bench = Bench()
    bench.log.commit(insert(TABLE, (b"1", b"a")))
    bench.run(Formats("flat"))
    (record,) = bench.kafka.committed("p.schema")
    with pytest.raises(OperatorError, match="its topic is flat"):
        derived([parse_version(record.value or b"")], ApplyTable(stores=("w",)))
