"""The schema topic as those who apply find it in a connector's first moments."""

from __future__ import annotations

import threading

import pytest

from cdc.config.apply_config import ApplySource
from spark_apply.events.kafka import schema_topic
from tests.spark.records import Publisher, SourceTable


def test_a_first_transaction_is_waited_for(kafka: str, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that is started beside its connector does not say that there are no tables; nor does it wait for ever."""
    publisher, table = Publisher(kafka, prefix), SourceTable(prefix, "t", {"id": {"kind": "int32"}})
    publisher.create([])
    source = ApplySource(bootstrap_servers=kafka, topic_prefix=prefix)
    asked, answered = threading.Event(), list[dict[str, object]]()
    begun = schema_topic._has_begun

    def has_begun(source: ApplySource, topic: str) -> bool:
        found = begun(source, topic)
        asked.set()
        return found

    assert schema_topic.schema_versions(source) == {}, "nothing has begun"
    monkeypatch.setattr(schema_topic, "_has_begun", has_begun)
    with publisher.transaction():
        key, value = table.schema_record()
        publisher._producer.produce(f"{prefix}.schema", key=key, value=value)
        publisher._producer.flush(30)
        reader = threading.Thread(target=lambda: answered.append({**schema_topic.schema_versions(source)}))
        reader.start()
        assert asked.wait(30)
        assert answered == []
        with monkeypatch.context() as patch:
            patch.setattr(schema_topic, "_FIRST_WITHIN_S", 0.2)
            assert schema_topic.schema_versions(source) == {}
    reader.join(30)
    assert list(answered[0]) == ["public.t"]
