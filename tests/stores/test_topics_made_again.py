"""Topics that were deleted and made again, emptied, or that lie in another Kafka: told, and never gone on with."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession

from cdc.cli.main import cdc
from cdc.config.apply_config import StoreConfig
from cdc.config.config import ApplyConfig
from cdc.dev.servers.process import Server
from cdc.dev.stack import SERVERS
from cdc.model.errors import OperatorError
from cdc.model.state import Phase
from spark_apply.job import batch_loop
from spark_apply.job.job import run_apply
from spark_apply.job.plan import run_plan
from spark_apply.rebuild.rebuild import run_rebuild
from tests.conftest import Database
from tests.spark.laws import Job, Record, Setting, order, until
from tests.spark.records import SourceTable, position

pytest_plugins = ["tests.spark.fixtures"]
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # py4j's, one for each thread


@pytest.fixture
def setting(apply_spark: SparkSession, kafka: str, tmp_path: Path) -> Setting:
    return Setting(apply_spark, kafka, tmp_path, lambda path: StoreConfig(type="iceberg", path=str(path)))


@pytest.fixture
def config(setting: Setting, postgres18: Database) -> ApplyConfig:
    """All kinds of stores by how they keep their marks and refuse older events."""
    stores = {
        "lake": setting.store(setting.folder / "lake"),
        "search": StoreConfig(type="tantivy", path=str(setting.folder / "search")),
        "warehouse": StoreConfig(type="postgres", url=postgres18.url),
    }
    tables = {name: replace(of, stores=tuple(stores)) for name, of in setting.config().tables.items()}
    return replace(setting.config(), stores=stores, tables=tables)


def _made_again(bootstrap: str, topic: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([topic])[topic].result(30)
    until(lambda: topic not in admin.list_topics(timeout=60).topics)
    again = NewTopic(topic, partitions, 1, config={"cleanup.policy": "compact,delete"})
    admin.create_topics([again])[topic].result(30)


def _assert_equal(setting: Setting, config: ApplyConfig, table: SourceTable, records: list[Record]) -> None:
    for name, store in config.stores.items():
        alone = replace(config, stores={"copy": store}, tables=setting.config().tables)
        assert setting.contents(table, alone) == setting.folded(table, records), name


def _status(config: ApplyConfig, file: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    about = {
        "name": config.name,
        "source": {"bootstrap_servers": config.source.bootstrap_servers, "topic_prefix": config.source.topic_prefix},
        "stores": {
            name: {key: value for key, value in (("type", s.type), ("path", s.path), ("url", s.url)) if value}
            for name, s in config.stores.items()
        },
        "tables": {"public.*": {"stores": [*config.stores]}},
        "checkpoint": config.checkpoint,
    }
    file.write_text(json.dumps(about))
    capsys.readouterr()
    cdc.main(["status", str(file), "--json"], standalone_mode=False)
    return {name: of[config.source.topic_prefix] for name, of in json.loads(capsys.readouterr().out)["stores"].items()}


@pytest.mark.timeout(900)
def test_a_topic_that_was_made_again_is_read_from_its_beginning_or_not_at_all(
    setting: Setting, config: ApplyConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Past the old end, with lower positions, and without some rows: plan, status and start tell it.

    The hint, followed, repairs it. The second time it happens while a job follows.
    """
    table, other, publisher = setting.table(), setting.table("items"), setting.publisher()
    publisher.create([table, other], partitions=1)
    stays = [r for n in range(3) for r in other.event("c", order(n), position(1_000 + n))]
    before = [r for n in range(50) for r in table.event("c", order(n), position(1_000 + n))]
    publisher.stand(Phase.STREAM, 2_000, [table, other], [*before, *stays])
    run_apply(config, once=True)
    shown = _status(config, tmp_path / "apply.yaml", capsys)
    assert all((of["remade"], of["incomplete"]) == ([], []) and of["position"] for of in shown.values())

    _made_again(setting.bootstrap, table.topic, 1)
    publisher = setting.publisher()  # with sequence numbers that the new topic takes
    records = [r for n in range(40, 110) for r in table.event("r", order(n, "again"), position(5, 0))]
    publisher.stand(Phase.STREAM, 3_000, [table, other], records)
    plan = run_plan(config)
    assert not plan.starts
    refused = {(copy.table, copy.store): copy for copy in plan.copies if copy.action == "refused"}
    assert {*refused} == {("public.orders", name) for name in config.stores}
    why = f"is a copy of another topic {table.topic}: it was deleted and made again"
    assert all(why in (copy.why or "") for copy in refused.values())
    shown = _status(config, tmp_path / "apply.yaml", capsys)
    assert all(of["remade"] == of["incomplete"] == ["public.orders"] for of in shown.values())
    assert all(of["position"] is None for of in shown.values())
    with pytest.raises(OperatorError, match=f"has offsets of another topic {table.topic}") as caught:
        run_apply(config, once=True)
    assert str(caught.value.hint).startswith("cdc apply APPLY.yaml --reset-checkpoint")
    aside = run_apply(config, once=True, reset_checkpoint=True).aside  # not enough: rows that are gone would stay
    assert {name: why in reason for name, reason in aside["public.orders"].items()} == dict.fromkeys(
        config.stores, True
    )
    _assert_equal(setting, config, other, stays)
    run_rebuild(config, table="public.orders")
    assert run_apply(config, once=True).aside == {}
    _assert_equal(setting, config, table, records)
    _assert_equal(setting, config, other, stays)

    records += (
        more := table.event("u", order(41, "x"), position(3_012)) + table.event("d", order(42), position(3_013))
    )
    publisher.stand(Phase.STREAM, 3_020, [table, other], more)
    run_apply(config, once=True)
    _assert_equal(setting, config, table, records)
    shown = _status(config, tmp_path / "apply.yaml", capsys)
    assert all((of["remade"], of["position"]) == ([], position(3_020, 0)) for of in shown.values())

    with _following(config) as job:
        _made_again(setting.bootstrap, table.topic, 1)
        setting.publisher().publish([r for n in range(200) for r in table.event("r", order(n), position(30, 0))])
        until(lambda: job.failure is not None, 300)
    assert isinstance(job.failure, OperatorError)
    with pytest.raises(OperatorError, match=f"has offsets of another topic {table.topic}"):
        run_apply(config, once=True)


@pytest.mark.parametrize("under_a_batch", [False, True], ids=["between_batches", "under_a_batch"])
def test_a_topic_that_is_deleted_while_the_job_runs_is_told(
    setting: Setting, monkeypatch: pytest.MonkeyPatch, *, under_a_batch: bool
) -> None:
    """In words of ours; a new start goes on with the other tables, and an event of them does not hide it.

    A batch that was to read the topic does not wait for it: each try would take Spark two minutes.
    """
    table, other, publisher = setting.table(), setting.table("other"), setting.publisher()
    publisher.create([table, other], partitions=1)
    records = [r for n in range(3) for of in (table, other) for r in of.event("c", order(n), position(10 + n))]
    publisher.stand(Phase.STREAM, 20, [table, other], records)
    config = setting.config()
    more = other.event("u", order(1, "later"), position(21))

    def delete() -> None:
        admin = AdminClient({"bootstrap.servers": setting.bootstrap})
        admin.delete_topics([table.topic])[table.topic].result(30)
        until(lambda: table.topic not in admin.list_topics(timeout=60).topics)
        publisher.publish(more)

    if under_a_batch:
        folded = batch_loop.fold_batch

        def fold(*given: Any, **named: Any) -> Any:
            monkeypatch.setattr(batch_loop, "fold_batch", folded)
            delete()
            return folded(*given, **named)

        monkeypatch.setattr(batch_loop, "fold_batch", fold)
    with _following(config) as job:
        if not under_a_batch:
            delete()
        until(lambda: job.failure is not None, 115)
    assert isinstance(job.failure, OperatorError)
    assert job.failure.message == f"topic {table.topic} of {table.qualified} was deleted while the job ran"
    assert (job.failure.hint or "").startswith("start again: the other tables go on")
    assert set(run_apply(config, once=True).aside) == {table.qualified}
    assert setting.contents(other) == setting.folded(other, records + more)


@contextmanager
def _following(config: ApplyConfig) -> Iterator[Job]:
    job = Job(config)
    job.start()
    until(lambda: job.said("following"), 300)
    time.sleep(1)
    try:
        yield job
    finally:
        job.stop()


@pytest.mark.full
@pytest.mark.timeout(600)
def test_another_kafka_under_the_same_name_is_told(setting: Setting, config: ApplyConfig, tmp_path: Path) -> None:
    """Topics, keys, offsets are the same there; the cluster is not."""
    table = setting.table()

    def fill(bootstrap: str) -> None:
        publisher = replace(setting, bootstrap=bootstrap).publisher()
        publisher.create([table], partitions=1)
        publisher.publish([r for n in range(5) for r in table.event("c", order(n), position(10 + n))])

    fill(setting.bootstrap)
    run_apply(config, once=True)
    elsewhere = Server("kafka", tmp_path / "kafka", SERVERS["kafka"])
    elsewhere.start()
    try:
        fill(elsewhere.url)
        moved = replace(config, source=replace(config.source, bootstrap_servers=elsewhere.url))
        with pytest.raises(OperatorError, match="another Kafka cluster answers under this name"):
            run_apply(moved, once=True)
    finally:
        elsewhere.stop()


@pytest.mark.full  # test_what_a_topic_has_forgotten_is_never_skipped
def test_records_that_were_deleted_before_they_were_read_are_told(setting: Setting) -> None:
    """The copy is rebuilt from what is left, as the hint says."""
    table, publisher = setting.table(), setting.publisher()
    publisher.create([table], partitions=1)
    _made_again(setting.bootstrap, table.topic, 1)
    publisher.publish([r for n in range(5) for r in table.event("c", order(n), position(10 + n))])
    setting.apply()
    publisher.publish([r for n in range(5, 9) for r in table.event("c", order(n), position(10 + n))])
    _deleted(setting.bootstrap, table.topic)
    left = [r for n in range(20, 23) for r in table.event("c", order(n), position(30 + n))]
    publisher.publish(left)
    with pytest.raises(OperatorError, match=r"offsets \d+ to \d+ of its topic, partition 0, were deleted") as caught:
        setting.apply()
    assert str(caught.value.hint).startswith("cdc rebuild APPLY.yaml")
    run_rebuild(setting.config())
    run_apply(setting.config(), once=True, reset_checkpoint=True)
    assert setting.contents(table) == setting.folded(table, left)


def _deleted(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.delete_records([TopicPartition(topic, 0, -1)]).values():
        future.result(30)
