"""Topics deleted, made again, emptied or given partitions: read again or refused, and every hint is followed."""

from __future__ import annotations

import json
import time
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
)

from cdc.config.kafka_config import KafkaConfig
from cdc.model.change import Table
from cdc.model.errors import GapError, TopicError
from cdc.model.state import Phase, State
from sinks.kafka import KafkaSink
from sinks.topics.names import position_topic, schema_topic
from sinks.topics.records import bulk
from sinks.topics.records.read_back import read_to_end
from sinks.topics.settings_watch import SettingsWatch
from tests.conftest import Database
from tests.integration.connector import Connector
from tests.integration.running import Running, eventually, same
from tests.integration.test_verdicts import refused
from tests.servers import kafka_versions

LOST = {
    "deleted": "was deleted",
    "made_again": "was deleted and made again",
    "emptied": "has had records deleted from it",
}
ROWS = "SELECT x, 'v' || x FROM generate_series(1, 50) x"


class Topics:
    """What somebody does to topics."""

    def __init__(self, kafka: str) -> None:
        self._admin = AdminClient({"bootstrap.servers": kafka})
        self._kafka = kafka

    def delete(self, topic: str) -> None:
        self._admin.delete_topics([topic])[topic].result(30)
        eventually(lambda: topic not in self._admin.list_topics(timeout=60).topics, "the topic is gone")

    def make_again(self, topic: str, partitions: int = 3) -> None:
        self.delete(topic)
        self.make(topic, partitions)

    def make(self, topic: str, partitions: int) -> None:
        config = {"cleanup.policy": "compact", "delete.retention.ms": str(7 * 24 * 3600 * 1000)}
        until = time.monotonic() + 30
        while True:
            try:
                self._admin.create_topics([NewTopic(topic, partitions, 1, config=config)])[topic].result(30)
            except KafkaException:  # the broker may still be deleting it
                assert time.monotonic() < until
                time.sleep(0.1)
            else:
                return

    def empty(self, topic: str) -> None:
        """As somebody does who sets another policy for it, which brokers ask for, and then sets it back."""
        self.set_policy(topic, "delete")
        partitions = self._admin.list_topics(topic, timeout=60).topics[topic].partitions
        everything = [TopicPartition(topic, number, -1) for number in partitions]

        def deleted() -> bool:
            try:
                return all(future.result(30) for future in self._admin.delete_records(everything).values())
            except KafkaException:  # the broker does not know of the policy yet
                return False

        eventually(deleted, "the records are deleted")
        self.set_policy(topic, "compact")

    def set_policy(self, topic: str, policy: str) -> None:
        self.set(topic, "cleanup.policy", policy)

    def set(self, topic: str, name: str, value: str) -> None:
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
        self._admin.incremental_alter_configs([resource])[resource].result(30)

    def raise_partitions(self, topic: str, to: int) -> None:
        self._admin.create_partitions([NewPartitions(topic, to)])[topic].result(30)
        found = self._admin
        eventually(lambda: len(found.list_topics(topic, timeout=60).topics[topic].partitions) == to, "more partitions")

    def values(self, topic: str) -> dict[bytes, bytes | None]:
        return {m.key() or b"": m.value() for m in read_to_end(self._kafka, {}, topic, "read_committed")}


@pytest.fixture
def topics(kafka: str) -> Topics:
    return Topics(kafka)


def test_topics_lost_while_stopped_are_read_again(
    postgres18: Database, kafka: str, topics: Topics, prefix: str, tmp_path: Path
) -> None:
    """Each loss is named and its table read whole; other tables are left as they are; versions keep their numbers."""
    names = ["kept", *LOST]
    for name in names:
        postgres18.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, v text)", f"INSERT INTO {name} {ROWS}")
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, [f"public.{name}" for name in names])
    connector.catch_up()
    for name in names:
        postgres18.execute(f"ALTER TABLE {name} ADD COLUMN n int", f"UPDATE {name} SET n = id")
    connector.catch_up()
    described = topics.values(schema_topic(prefix))
    assert len(described) == 2 * len(names)
    kept = len(connector.records("public.kept"))
    topics.delete(f"{prefix}.public.deleted")
    topics.make_again(f"{prefix}.public.made_again")
    topics.empty(f"{prefix}.public.emptied")
    topics.delete(schema_topic(prefix))
    for name in names[1:]:
        postgres18.execute(f"DELETE FROM {name} WHERE id = 1", f"UPDATE {name} SET v = 'new' WHERE id = 2")
    found = connector.here("check", "FILE").stdout
    for name, what in list(LOST.items())[1:]:
        assert f"topic {prefix}.public.{name} {what}" in " ".join(found.split()), found
    said = connector.catch_up()
    for name, what in LOST.items():
        assert f"topic {prefix}.public.{name} {what}: the rows of table public.{name} are read again" in said
    assert "table public.kept are read again" not in said
    for name in names:
        same(connector, postgres18, f"public.{name}")
    assert len(connector.records("public.kept")) == kept
    assert topics.values(schema_topic(prefix)) == described
    postgres18.execute("ALTER TABLE deleted ADD COLUMN m int", "INSERT INTO deleted VALUES (99, 'x', 9, 9)")
    said = connector.catch_up()
    assert "read again" not in said
    versions = {e["source"]["schema_version"] for e in connector.events("public.deleted") if e["op"] == "c"}
    assert versions == {3}


def test_a_topic_deleted_while_running(
    postgres18: Database, kafka: str, topics: Topics, prefix: str, tmp_path: Path
) -> None:
    """Also one that nobody writes: it is made and filled again within seconds, and so is one made again by others."""
    for name in ("t", "u"):
        postgres18.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, v text)", f"INSERT INTO {name} {ROWS}")
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, ["public.t", "public.u"])
    with Running(connector) as running:
        running.await_following()
        topics.delete(f"{prefix}.public.t")
        running.await_line("table public.t was read while the log was followed")
        same(connector, postgres18, "public.t")
        topics.make_again(f"{prefix}.public.u")
        postgres18.execute("INSERT INTO u VALUES (100, 'w')")
        running.await_line("table public.u was read while the log was followed")
    connector.catch_up()
    same(connector, postgres18, "public.t")
    same(connector, postgres18, "public.u")


def test_partitions_raised_and_each_hint_followed(
    postgres18: Database, kafka: str, topics: Topics, prefix: str, tmp_path: Path
) -> None:
    """A key would have records in two partitions: refused, whatever sink.partitions says; the hint is followed."""
    postgres18.execute("CREATE TABLE t (id int PRIMARY KEY, v text)", f"INSERT INTO t {ROWS}")
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, ["public.t"])
    connector.catch_up()
    topics.make_again(f"{prefix}.public.t", 1)  # as a broker makes one by itself that a program asks for
    refused(connector, "has 1 partitions, 3 are asked for", f"--alter --topic {prefix}.public.t --partitions 3")
    topics.raise_partitions(f"{prefix}.public.t", 3)
    assert "was deleted and made again" in connector.catch_up()
    same(connector, postgres18, "public.t")
    for topic in (f"{prefix}.public.t", f"{prefix}.message"):
        topics.raise_partitions(topic, 6)
    postgres18.execute("UPDATE t SET v = 'new'", "DELETE FROM t WHERE id < 20")
    said = refused(connector, "has 6 partitions, 3 are asked for", "another name and another sink.topic_prefix")
    assert "set sink.partitions" not in said
    for partitions in (3, 6):
        changed = Connector(tmp_path, prefix, postgres18.url, kafka, ["public.t"], sink={"partitions": partitions})
        refused(changed, "has 6 partitions, 3", "another name and another sink.topic_prefix")
        assert "another name and another sink.topic_prefix" in changed.here("check", "FILE").stdout
    other = Connector(tmp_path, f"{prefix}b", postgres18.url, kafka, ["public.t"])
    other.catch_up()
    same(other, postgres18, "public.t")


@pytest.mark.full  # test_partitions_raised_and_each_hint_followed
def test_sink_partitions_changed_and_the_hint_followed(
    postgres18: Database, kafka: str, prefix: str, tmp_path: Path
) -> None:
    """The topic is as it was: the number it has is the one to set."""
    postgres18.execute("CREATE TABLE t (id int PRIMARY KEY, v text)", f"INSERT INTO t {ROWS}")
    Connector(tmp_path, prefix, postgres18.url, kafka, ["public.t"]).catch_up()
    postgres18.execute("UPDATE t SET v = 'new'", "DELETE FROM t WHERE id < 20")
    changed = Connector(tmp_path, prefix, postgres18.url, kafka, ["public.t"], sink={"partitions": 6})
    refused(changed, "has 3 partitions, 6 are asked for", "set sink.partitions: 3")
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, ["public.t"])
    connector.catch_up()
    same(connector, postgres18, "public.t")


def test_position_topic_deleted_and_each_hint_followed(
    postgres18: Database, kafka: str, topics: Topics, prefix: str, tmp_path: Path
) -> None:
    """The slot, then the topics, tell that it has run; a new name and prefix end in the table."""
    postgres18.execute("CREATE TABLE t (id int PRIMARY KEY, v text)", f"INSERT INTO t {ROWS}")
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, ["public.t"])
    connector.catch_up()
    topics.delete(position_topic(prefix, prefix))
    postgres18.execute("UPDATE t SET v = 'new'", "DELETE FROM t WHERE id < 20")
    refused(connector, "begin under a new name")
    same_prefix = {"topic_prefix": prefix}
    renamed = Connector(tmp_path, f"{prefix}b", postgres18.url, kafka, ["public.t"], sink=same_prefix)
    said = refused(renamed, "topic owned by another connector", "another sink.topic_prefix")
    assert "--delete" not in said
    postgres18.execute(f"SELECT pg_drop_replication_slot('cdc_{prefix}')")
    said = refused(connector, "holds records already", "another name and another sink.topic_prefix")
    assert "--delete" not in said
    other = Connector(tmp_path, f"{prefix}c", postgres18.url, kafka, ["public.t"])
    other.catch_up()
    same(other, postgres18, "public.t")


def test_a_table_taken_out_and_in_again(postgres18: Database, kafka: str, prefix: str, tmp_path: Path) -> None:
    """All its rows are read into its old topic, those that are gone are deleted, and no large value is an old one."""
    large = "(SELECT string_agg(md5('{}' || i || id), '') FROM generate_series(1, 200) i)"
    postgres18.execute(
        "CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE t (id int PRIMARY KEY, v int, wide text)",
        f"INSERT INTO t SELECT id, 0, {large.format('old')} FROM generate_series(1, 9) id",
    )  # fmt: skip

    def capturing(*tables: str) -> Connector:
        return Connector(tmp_path, prefix, postgres18.url, kafka, [f"public.{table}" for table in tables])

    capturing("a", "t").catch_up()
    capturing("a").catch_up()
    postgres18.execute(
        "DELETE FROM t WHERE id < 3", f"UPDATE t SET wide = {large.format('new')} WHERE id > 5",
        "INSERT INTO t VALUES (10, 0, 'x')",
    )  # fmt: skip
    capturing("a").catch_up()
    connector = capturing("a", "t")
    checked = connector.here("check", "FILE")
    assert checked.returncode == 0, checked.stdout
    postgres18.execute("UPDATE t SET v = 1", "INSERT INTO a VALUES (1)")
    assert "public.t was captured before" in connector.catch_up()
    postgres18.execute("UPDATE t SET v = 2 WHERE id IN (4, 7)", "DELETE FROM t WHERE id = 5")
    connector.catch_up()
    same(connector, postgres18, "public.a")
    same(connector, postgres18, "public.t")


_APART = "difference" if kafka_versions.asked() == "2.8.2" else "before"  # before 3.6 there was but one bound
DEMANDS = {
    "retention": ("", "delete.retention.ms", "86400000", str(7 * 24 * 3600 * 1000)),
    "policy": ("", "cleanup.policy", "compact,delete", "compact"),
    "logged": ("log.", "retention.ms", "1000", "-1"),
    "clocks": ("", f"message.timestamp.{_APART}.max.ms", "0", "9223372036854775807"),
}
"""By table: which of its topics somebody has set otherwise, how, and what is right."""


def test_one_tables_topic_stops_no_other(
    postgres18: Database, kafka: str, topics: Topics, prefix: str, tmp_path: Path
) -> None:
    """It is said by the log, `cdc check` and `cdc status`; once its topic is right its table is read again."""
    wrong = [*DEMANDS, "partitions"]
    for name in ("kept", *wrong):
        postgres18.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, v text)", f"INSERT INTO {name} {ROWS}")
    tables = [f"public.{name}" for name in ("kept", *wrong)]
    sink = {"log": {"tables": ["public.logged"], "retention": "forever"}}
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, tables, sink=sink)
    connector.catch_up()
    for name, (of, setting, value, _) in DEMANDS.items():
        topics.set(f"{prefix}.{of}public.{name}", setting, value)
    if not kafka_versions.asked():  # before 3.7 it would take no record
        topics.set(f"{prefix}.public.kept", "min.insync.replicas", "2")
    topics.make_again(f"{prefix}.public.partitions", 1)
    for name in ("kept", *wrong):
        postgres18.execute(f"DELETE FROM {name} WHERE id = 1", f"UPDATE {name} SET v = 'new' WHERE id = 2")
    checked = connector.here("check", "FILE")
    assert checked.returncode == 0, checked.stdout
    assert checked.stdout.count("its table is left out until that is right") == len(wrong)
    said = connector.catch_up()
    for name in wrong:
        of = DEMANDS.get(name, ("",))[0]
        assert f"table public.{name} is left out until its topic is right: topic {prefix}.{of}public.{name} has" in said
    same(connector, postgres18, "public.kept")
    status = json.loads(connector.here("status", "FILE", "--json").stdout)
    assert (status["tables"], sorted(status["left_out"])) == (["public.kept"], sorted(f"public.{n}" for n in wrong))
    for name, (of, setting, _, value) in DEMANDS.items():
        topics.set(f"{prefix}.{of}public.{name}", setting, value)
    topics.raise_partitions(f"{prefix}.public.partitions", 3)
    connector.catch_up()
    for table in tables:
        same(connector, postgres18, table)
    assert json.loads(connector.here("status", "FILE", "--json").stdout)["left_out"] == {}


def test_settings_changed_while_running(
    kafka: str, topics: Topics, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A policy that forgets rows, and records that were deleted: noticed where the log is followed."""
    monkeypatch.setattr("sinks.kafka.SettingsWatch", partial(SettingsWatch, every_s=0.0))
    monkeypatch.setattr("sinks.topics.settings_watch._SHARE", 0.0)  # a first look is slow, and the next would wait long
    table = Table("public", "t", (), ())
    state = State(connector=prefix, identity={}, phase=Phase.STREAM, epoch=1)
    sink = KafkaSink(KafkaConfig(bootstrap_servers=kafka, topic_prefix=prefix, partitions=1), prefix)
    try:
        sink.check([table])
        sink.create([table])
        sink.fence()
        for _ in range(3):
            sink.write(sink.topic(table), b'{"id":1}', b"{}")
        sink.commit(state)
        assert not sink.moved()
        topics.empty(sink.topic(table))
        eventually(sink.moved, "records were deleted")
        sink.create([table])
        topics.set_policy(sink.topic(table), "delete")
        with pytest.raises(TopicError, match=r"cleanup\.policy=delete: it would forget rows") as caught:
            eventually(sink.moved, "the policy is noticed")
        assert "--add-config cleanup.policy=compact" in (caught.value.hint or "")
        other = Table("public", "u", (), ())
        sink.check([other])
        sink.create([other])
        assert not sink.moved()
        topics.set_policy(sink.topic(table), "compact")
        eventually(sink.moved, "the topic whose table is left out is right")
    finally:
        sink.close()


def test_a_topic_made_again_while_a_program_reads_it(kafka: str, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the new one is longer, records were passed over without a word: an offset is of one topic alone."""
    monkeypatch.setattr(bulk, "_LOOK_S", 0.1)
    config, topic, topics = KafkaConfig(bootstrap_servers=kafka, topic_prefix=prefix), f"{prefix}.a.b", Topics(kafka)
    producer = Producer({"bootstrap.servers": kafka})

    def write(*values: str) -> None:
        for value in values:
            producer.produce(topic, value.encode(), b"key", partition=0)
        assert producer.flush(30) == 0

    topics.make(topic, 1)
    write("1", "2", "3")
    with closing(bulk.read_many(config, lambda: [topic], to_end=False)) as reading:
        assert next(batch for batch in reading if batch)
        topics.make_again(topic, 1)
        write(*"abcdefgh")
        with pytest.raises(GapError, match=f"{topic} was deleted and made again|the record that is next is gone"):
            for _ in reading:
                pass
    assert len([value for batch in bulk.read_many(config, lambda: [topic], to_end=True) for value in batch]) == 8
