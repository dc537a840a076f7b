"""Which records of a stream are events, by Spark's own reader of JSON."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses

from cdc.config.apply_config import ApplySource
from cdc.config.views import StreamConfig
from cdc.model.errors import ConfigError
from spark_apply.events.kafka import offsets, topics
from spark_apply.events.kafka.offsets import ends_by_topic
from spark_apply.views.planning.streams import _stream, events_of
from spark_apply.views.running.stream_reader import StreamReader
from tests.spark.laws import until

pytest_plugins = ["tests.spark.fixtures"]

SCHEMA = "id STRING, n BIGINT, of STRING, at TIMESTAMP, day DATE, local TIMESTAMP_NTZ, every ARRAY<TIMESTAMP>"
EVENTS = {
    b'{"id":"plain","n":1,"of":{"a":1},"at":"2026-11-29T10:00:00Z"}': ("plain", 1),
    b' {"more":{"x":[{}]},"id":"others","n":null} \n': ("others", None),
    '{"id":"é€😀"}'.encode(): ("é€😀", None),
    b'{"id":"deep","of":' + b"[" * 249 + b"]" * 249 + b"}": ("deep", None),
    b'{"id":"}{\\"","n":7}': ('}{"', 7),
}
NONE = (
    b'{"id":"one"}{"id":"two"}',
    b'{"id":"one"} x',
    b'{"id":"one"}}',
    b'{"id":"one"},',
    b'{"id":"one"},{"id":"two"}',
    b'[{"id":"one"}]',
    b'[{"id":"one"},{"id":"two"}]',
    b'{"id":"one"',
    b'{"id":"one","n":"x"}',
    b'{"id":null}',
    b'{"id":"\xff"}',
    b'{"id":"one","at":"10000-01-01T00:00:00Z"}',
    b'{"id":"one","at":1767225600000}',
    b'{"id":"one","at":1767225600000000}',
    b'{"id":"one","at":1780000000000000}',
    b'{"id":"one","at":1767225600000000000}',
    b'{"id":"one","at":1767225600.5}',
    b'{"id":"one","at":"1767225600"}',
    b'{"id":"one","at":"20260101"}',
    b'{"id":"one","at":"10:05"}',
    b'{"id":"one","at":"T10:05:00Z"}',
    b'{"id":"one","at":"today"}',
    b'{"id":"one","at":""}',
    b'{"id":"one","at":true}',
    b'{"id":"one","at":{"seconds":1767225600}}',
    b'{"id":"one","at":{"a":1,"a":2}}',
    b'{"id":"one","at":' + b'{"a":' * 240 + b"1" + b"}" * 241,
    b'{"id":"one","at":' + b"[" * 240 + b"]" * 240 + b"}",
    b'{"id":"one","at":' + b'{"a":' * 950 + b"1" + b"}" * 951,
    b'{"id":"one","at":' + b'{"a":' * 50_000 + b"1" + b"}" * 50_001,
    b'{"id":"one","every":[' + b"[" * 50_000 + b"]" * 50_000 + b"]}",
    b'{"id":"one","of":' + b"[" * 250 + b"]" * 250 + b"}",
    b'{"id":"one","at":"2026-02-30"}',
    b'{"id":"one","at":"' + b"2026-01-01" * 2_000_000 + b'"}',
    b'{"id":"one","day":"20260101"}',
    b'{"id":"one","day":"20454"}',
    b'{"id":"one","day":20454}',
    b'{"id":"one","day":"10:05"}',
    b'{"id":"one","local":"10:05"}',
    b'{"id":"one","local":"20260101"}',
    b'{"id":"one","local":"2026-01-01T00:00:00+05:00"}',
    b'{"id":"one","local":1767225600}',
    b'{"id":"one","every":["2026-01-01",1767225600000000]}',
    b'{"id":"one","every":["10:05"]}',
    b'"one"',
    b"null",
    b"",
    b"{}",
)
TIMES = {
    b'"at":"2026-11-29T10:00:00.123456789Z"': "2026-11-29 10:00:00.123456",
    b'"at":" 2026-11-29 10:00 "': "2026-11-29 10:00:00",
    b'"at":"2026-11-29T10:00:00+02:00"': "2026-11-29 08:00:00",
    b'"at":"2026-11-29T10:00:00 Europe/Berlin"': "2026-11-29 09:00:00",
    b'"at":"2026-11"': "2026-11-01 00:00:00",
    b'"at":"2026"': "2026-01-01 00:00:00",
    b'"at":"0001-01-01T00:00:00Z"': "0001-01-01 00:00:00",
    b'"at":1767225600': "2026-01-01 00:00:00",
    b'"at":2026': "1970-01-01 00:33:46",
    b'"at":0': "1970-01-01 00:00:00",
    b'"at":-5': "1969-12-31 23:59:55",
    b'"at":null': None,
    b'"day":"2026-11-29"': "2026-11-29",
    b'"day":"2026-11-29T10:00:00Z"': "2026-11-29",
    b'"day":null': None,
    b'"local":"2026-11-29T10:00:00"': "2026-11-29 10:00:00",
    b'"every":["2026-01-01",null,1767225600]': "[2026-01-01 00:00:00, null, 2026-01-01 00:00:00]",
    b'"every":[]': "[]",
    b'"every":null': None,
}
"""A column with a time, and the text of its value."""


def _read(spark: SparkSession, values: Iterable[bytes]) -> list[Row]:
    at = dt.datetime(2026, 11, 29, tzinfo=dt.UTC)
    rows = [(0, offset, at, value) for offset, value in enumerate(values)]
    records = spark.createDataFrame(rows, "partition INT, offset BIGINT, timestamp TIMESTAMP, value BINARY")
    stream = _stream("clicks", StreamConfig(topic="clicks", schema=SCHEMA, key=("id",)), None)
    times = [F.col(name).cast("string") for name in ("at", "day", "local", "every")]
    return events_of(records, stream).orderBy("_cdc_position").select("_cdc_key", "id", "n", *times).collect()


def test_columns_that_are_one_name_to_the_engine_are_refused(apply_spark: SparkSession) -> None:
    for schema in ("id STRING, n BIGINT, N BIGINT", "id STRING, n BIGINT, n STRING"):
        with pytest.raises(ConfigError, match=r"streams\.clicks\.schema: n and [nN] are one name to the engine"):
            _stream("clicks", StreamConfig(topic="clicks", schema=schema, key=("id",)), None)


@pytest.fixture(scope="module")
def found(apply_spark: SparkSession) -> list[tuple[str | None, str, int | None]]:
    return [(row["_cdc_key"], row["id"], row["n"]) for row in _read(apply_spark, (*EVENTS, *NONE))]


def test_events_are_read(found: list[tuple[str | None, str, int | None]]) -> None:
    events = found[: len(EVENTS)]
    assert [(id_, n) for _, id_, n in events] == list(EVENTS.values())
    assert all(key is not None for key, *_ in events)


def test_times_are_read(apply_spark: SparkSession) -> None:
    rows = _read(apply_spark, (b'{"id":"one",' + of + b"}" for of in TIMES))
    names = [of.split(b'"')[1].decode() for of in TIMES]
    assert [row["_cdc_key"] for row in rows] == ['{"id":"one"}'] * len(TIMES)
    assert [row[name] for name, row in zip(names, rows, strict=True)] == list(TIMES.values())


@pytest.mark.parametrize("number", range(len(NONE)), ids=[repr(value[:60]) for value in NONE])
def test_what_is_no_event_is_none_as_a_whole(found: list[tuple[str | None, str, int | None]], number: int) -> None:
    """Of a record with more than an object nothing is taken: it is counted, and told."""
    assert found[len(EVENTS) + number][0] is None


def test_where_streams_end_is_asked_by_the_connection_that_is_there(
    kafka: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each second: as other readers are told it, without records that are not committed, and without new clients."""
    topic, source = f"clicks-{uuid.uuid4().hex[:8]}", ApplySource(bootstrap_servers=kafka, topic_prefix="shop")
    admin = AdminClient({"bootstrap.servers": kafka})
    admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(30)
    nothing: Any = None
    stream: Any = SimpleNamespace(config=SimpleNamespace(topic=topic))
    reader = StreamReader(nothing, source, nothing, {"clicks": stream}, print)
    producer = Producer({"bootstrap.servers": kafka, "transactional.id": topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"{}", partition=0)
    producer.commit_transaction(30)
    producer.begin_transaction()
    producer.produce(topic, b"{}", partition=0)
    producer.produce(topic, b"{}", partition=1)
    producer.flush(30)
    ends = ends_by_topic(source, [topic])
    with monkeypatch.context() as patch:
        for module, client in ((offsets, "Consumer"), (topics, "AdminClient")):
            patch.setattr(module, client, lambda _settings: pytest.fail("another client"))
        assert reader._ends() == ends == {topic: {0: 2, 1: 0}}
        admin.delete_topics([topic])[topic].result(30)
        until(lambda: reader._ends() == {topic: {}})
    producer.abort_transaction(30)
