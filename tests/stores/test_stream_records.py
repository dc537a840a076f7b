"""Which records of a stream are events, by Spark's own reader of JSON."""

from __future__ import annotations

import datetime as dt

import pytest
from pyspark.sql import SparkSession

from cdc.config.views import StreamConfig
from spark_apply.views.planning.streams import _stream, events_of

pytest_plugins = ["tests.spark.fixtures"]

SCHEMA = "id STRING, n BIGINT, of STRING, at TIMESTAMP"
EVENTS = {
    b'{"id":"plain","n":1,"of":{"a":1},"at":"2026-11-29T10:00:00Z"}': ("plain", 1),
    b' {"more":{"x":[{}]},"id":"others","n":null} \n': ("others", None),
    '{"id":"é€😀"}'.encode(): ("é€😀", None),
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
    b'"one"',
    b"null",
    b"",
    b"{}",
)


@pytest.fixture(scope="module")
def found(apply_spark: SparkSession) -> list[tuple[str | None, str, int | None]]:
    at = dt.datetime(2026, 11, 29, tzinfo=dt.UTC)
    rows = [(0, offset, at, value) for offset, value in enumerate((*EVENTS, *NONE))]
    records = apply_spark.createDataFrame(rows, "partition INT, offset BIGINT, timestamp TIMESTAMP, value BINARY")
    stream = _stream("clicks", StreamConfig(topic="clicks", schema=SCHEMA, key=("id",)), None)
    read = events_of(records, stream).orderBy("_cdc_position").select("_cdc_key", "id", "n").collect()
    return [(row["_cdc_key"], row["id"], row["n"]) for row in read]


def test_events_are_read(found: list[tuple[str | None, str, int | None]]) -> None:
    events = found[: len(EVENTS)]
    assert [(id_, n) for _, id_, n in events] == list(EVENTS.values())
    assert all(key is not None for key, *_ in events)


@pytest.mark.parametrize("number", range(len(NONE)), ids=[repr(value) for value in NONE])
def test_what_is_no_event_is_none_as_a_whole(found: list[tuple[str | None, str, int | None]], number: int) -> None:
    """Of a record with more than an object nothing is taken: it is counted, and told."""
    assert found[len(EVENTS) + number][0] is None
