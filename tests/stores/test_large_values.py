"""What Kafka can carry, copies hold: values beyond the limits that Spark's reader of JSON has by itself."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from pyspark.sql import SparkSession

from cdc.config.apply_config import StoreConfig
from spark_apply.events.quarantine import read_entries
from tests.conftest import FULL
from tests.spark.laws import NO_EVENT, Record, Setting
from tests.spark.records import position

pytest_plugins = ["tests.spark.fixtures"]
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # py4j's, one for each thread

_MOST = 64 << 20
COLUMNS = {
    "id": {"kind": "int32"},
    "text": {"kind": "string"},
    "digits": {"kind": "decimal"},
    "doc": {"kind": "json"},
    "parts": {"kind": "array", "element": {"kind": "string"}},
}


@pytest.mark.timeout(600)
def test_no_value_is_too_long_or_too_deep(apply_spark: SparkSession, kafka: str, tmp_path: Path) -> None:
    """By both ways of reading; and a record that cannot be read is noted with a reason that is true."""
    setting = Setting(apply_spark, kafka, tmp_path, lambda path: StoreConfig(type="iceberg", path=str(path)))
    table, other, publisher = setting.table("docs", COLUMNS), setting.table(), setting.publisher()
    publisher.create([table, other], partitions=1)
    _widen(kafka, table.topic)
    long = "☂" + "x" * 20_000_000
    rows = [
        {"id": 1, "text": long, "digits": "9" * 5_000, "doc": "{}", "parts": []},
        {"id": 2, "text": "", "digits": "1", "doc": "[" * 3_000 + "]" * 3_000, "parts": [long if FULL else "y"]},
        {"id": 3, "text": "", "digits": "1", "doc": json.dumps({"n" * 60_000: 1}), "parts": ["x"]},
    ]
    records = [r for row in rows for r in table.event("c", row, position(10 + row["id"]))]
    topic, key, value = table.event("c", {**rows[2], "id": 4}, position(20))[0]
    deep = b'"more":%s,"n":%s,' % (b'[{"a":' * 900 + b"1" + b"}]" * 900, b"1" * 2_000)
    records.append((topic, key, b"{" + deep + (value or b"")[1:]))
    numberless = b'{"op":"c","after":{"id":9},"source":{"position":"%b"}}' % position(1).encode()
    strangers = [(topic, b'{"id":9}', numberless), (topic, b"{}", b"{")]
    _send(kafka, [*records, *strangers])
    sys.setrecursionlimit(20_000)  # Python reads the deepest record as the test's oracle does
    folded = setting.folded(table, records)
    sys.setrecursionlimit(1_000)
    for copy, tables in (("one", ("public.docs",)), ("two", ("public.docs", "public.orders"))):
        config = setting.config(*tables, copy=copy)
        setting.apply(config)
        assert setting.contents(table, config) == folded, copy
        found = {entry.offset: entry.reason for entry in read_entries(config).values()}
        assert found == {4: "not an event: source.schema_version is missing, or no number", 5: NO_EVENT}, copy


def _widen(bootstrap: str, topic: str) -> None:
    entry = ConfigEntry("max.message.bytes", str(_MOST), incremental_operation=AlterConfigOpType.SET)
    change = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": bootstrap})  # must live until its futures are done
    for future in admin.incremental_alter_configs([change]).values():
        future.result(30)


def _send(bootstrap: str, records: list[Record]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "message.max.bytes": _MOST, "log_level": 0})
    for topic, key, value in records:
        producer.produce(topic, key=key, value=value)
    assert producer.flush(60) == 0
