"""Checkpoints that were damaged, and a run with `--once` after a crash: told, followed to the end, nothing lost."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from confluent_kafka.admin import AdminClient, NewPartitions
from pyspark.sql import SparkSession

from cdc.config.apply_config import StoreConfig
from cdc.model.change import Position
from cdc.model.errors import CdcError, OperatorError
from cdc.model.state import Phase
from cdc.offsets.exported import Exported
from spark_apply.events.kafka import stream
from spark_apply.job.batch_loop import BatchLoop
from spark_apply.job.checkpoint.files import AGAIN
from spark_apply.job.job import Replayed, run_apply
from spark_apply.job.plan import run_plan
from spark_apply.replay import offsets
from spark_apply.replay import replay as replays
from spark_apply.spark.at_work import at_work
from spark_apply.stores.tantivy.store import TantivyStore
from tests.conftest import Database
from tests.spark.laws import Record, Setting, order, until
from tests.spark.records import position

pytest_plugins = ["tests.spark.fixtures"]
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # py4j's, one for each thread


@pytest.fixture
def setting(apply_spark: SparkSession, kafka: str, tmp_path: Path) -> Setting:
    return Setting(apply_spark, kafka, tmp_path, lambda path: StoreConfig(type="tantivy", path=str(path)))


def _emptied(file: Path) -> None:
    _without_sum(file)
    file.write_bytes(b"")


def _cut(file: Path) -> None:
    _without_sum(file)
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def _garbled(file: Path) -> None:
    """Its sum, which the file system has beside it, shows that."""
    file.write_bytes(bytes(byte ^ 1 for byte in file.read_bytes()))


def _gone(place: Path) -> None:
    if place.is_dir():
        shutil.rmtree(place)
    else:
        _without_sum(place)
        place.unlink()


def _without_sum(file: Path) -> None:
    file.with_name(f".{file.name}.crc").unlink(missing_ok=True)


DAMAGES: tuple[tuple[Callable[[Path], None], str, str], ...] = (
    (_emptied, "metadata", "metadata: it is empty"),
    (_cut, "metadata", "metadata: it is not whole"),
    (_gone, "metadata", "metadata: it is missing"),
    (_emptied, "offsets/2", "offsets/2: it is empty"),
    (_cut, "offsets/2", "offsets/2: it is not whole"),
    (_garbled, "offsets/2", "offsets/2: it cannot be read (ChecksumException)"),
    (_gone, "offsets/2", "offsets/2: it is missing"),
    (_gone, "offsets/1", "offsets/1: it is missing"),
    (_gone, "offsets", "offsets/2: it is missing"),
    (_emptied, "commits/2", "commits/2: it is empty"),
    (_cut, "commits/2", "commits/2: it is not whole"),
    (_gone, "commits", "commits/1: it is missing"),
    (_emptied, "cdc-topics.json", "cdc-topics.json: it is empty"),
    (_cut, "cdc-topics.json", "cdc-topics.json: it is not whole"),
)
HARMLESS = ((_gone, "sources"), (_gone, "commits/2"), (_gone, "cdc-topics.json"))


@pytest.mark.timeout(900)
def test_a_damaged_checkpoint_is_named_and_set_aside_without_a_loss(setting: Setting) -> None:
    """Each file empty, cut, garbled or gone: plan and start name it, no row changes, and the way out works."""
    table, publisher = setting.table(), setting.publisher()
    publisher.create([table])
    records: list[Record] = []
    for batch in range(3):
        part = [r for n in range(4) for r in table.event("c", order(10 * batch + n), position(10 + 10 * batch + n))]
        part += table.event("d", order(10 * batch), position(19 + 10 * batch))
        publisher.publish(part)
        records += part
        setting.apply()
    (folder,) = (setting.folder / "checkpoints").iterdir()
    whole = setting.folder / "whole"
    shutil.copytree(folder, whole)

    def damaged(damage: Callable[[Path], None], name: str) -> None:
        shutil.rmtree(folder)
        shutil.copytree(whole, folder)
        damage(folder / name)

    for damage, name, said in DAMAGES:
        damaged(damage, name)
        with pytest.raises(OperatorError) as refused:
            setting.apply()
        assert refused.value.message == f"the checkpoint is damaged: {folder}/{said}"
        assert refused.value.hint == AGAIN
    (problem,) = run_plan(setting.config()).problems
    assert (problem.what, problem.hint) == (refused.value.message, AGAIN)
    assert setting.contents(table) == setting.folded(table, records)

    later = table.event("u", order(1, "later"), position(90))
    publisher.publish(later)
    told: list[str] = []
    run_apply(setting.config(), once=True, reset_checkpoint=True, progress=told.append)
    (line,) = [line for line in told if "set aside" in line]
    assert (Path(line.rpartition(" ")[2]) / name).exists(), "it is renamed, not removed"
    records += later
    assert setting.contents(table) == setting.folded(table, records)
    assert setting.apply().batches == 0

    shutil.rmtree(whole)
    shutil.copytree(folder, whole)
    last = max(int(file.name) for file in (whole / "commits").iterdir() if file.name.isdigit())
    for number, (damage, name) in enumerate(HARMLESS):
        damaged(damage, name.replace("/2", f"/{last}"))
        more = table.event("u", order(number, "more"), position(100 + number))
        publisher.publish(more)
        records += more
        setting.apply()
        assert setting.contents(table) == setting.folded(table, records), name


@pytest.mark.parametrize("damage", [_emptied, _cut, _garbled])
def test_a_note_of_copies_that_is_damaged_ends_no_start(damage: Callable[[Path], None], setting: Setting) -> None:
    """A full disk has left it so, and one of the copies cannot be opened now: the other goes on, and then both."""
    orders, items = setting.table(), setting.table("items")
    publisher = setting.publisher()
    publisher.create([orders, items])
    records = [r for n in range(4) for of in (orders, items) for r in of.event("c", order(n), position(10 + n))]
    publisher.publish(records)
    setting.apply()
    (folder,) = (setting.folder / "checkpoints").iterdir()
    damage(folder / "cdc-copies.json")
    more = [r for of in (orders, items) for r in of.event("u", order(1, "more"), position(50))]
    publisher.publish(more)
    other = TantivyStore(setting.folder / "copy")
    other.open(setting.target(items))
    assert set(setting.apply().aside) == {items.qualified}
    assert setting.contents(orders) == setting.folded(orders, records + more)
    other.close()
    assert setting.apply().aside == {}
    assert setting.contents(items) == setting.folded(items, records + more)
    assert set(json.loads((folder / "cdc-copies.json").read_text())) == {orders.qualified, items.qualified}


def test_offsets_are_exported_and_imported(setting: Setting, tmp_path: Path) -> None:
    """Back: read again, and nothing changes. A job at work, other copies and topics made again are refused."""
    table, publisher = setting.table(), setting.publisher()
    publisher.create([table])
    with pytest.raises(OperatorError, match="has applied nothing yet"):
        offsets.export(setting.config())
    records = [record for n in range(5) for record in table.event("c", order(n), position(10 + n))]
    publisher.publish(records)
    setting.apply()
    first = Exported.from_json(orjson.dumps(offsets.export(setting.config()).to_json()), where="f")
    later = [*table.event("u", order(1, "later"), position(50)), *table.event("d", order(2), position(51))]
    publisher.publish(later)
    setting.apply()
    second = offsets.export(setting.config())
    assert first.ends != second.ends
    with pytest.raises(OperatorError, match=r"offsets of 1 topics \(.*\) would be read again"):
        offsets.import_offsets(setting.config(), first, force=False)
    with at_work(setting.config().checkpoint), pytest.raises(OperatorError, match="apply job law is at work"):
        offsets.import_offsets(setting.config(), first, force=True)
    with pytest.raises(OperatorError, match="of other copies"):
        offsets.import_offsets(setting.config(), replace(first, copies={}), force=True)
    topics = dict.fromkeys(first.topics, next(iter(first.topics.values())).replace("/", "/x", 1))
    with pytest.raises(OperatorError, match="of another topic"):
        offsets.import_offsets(setting.config(), replace(first, topics=topics), force=True)
    gone = {topic: {number: end + 1_000 for number, end in of.items()} for topic, of in first.ends.items()}
    with pytest.raises(OperatorError, match="are not in the topics any more"):
        offsets.import_offsets(setting.config(), replace(first, ends=gone), force=True)
    assert offsets.export(setting.config()).ends == second.ends, "nothing of that was done"
    assert offsets.import_offsets(setting.config(), second, force=False).kind == "same"
    done = offsets.import_offsets(setting.config(), first, force=True)
    assert done.kind == "repeat"
    assert offsets.export(setting.config()).ends == first.ends
    assert Path(done.kept or "").is_dir()
    publisher.publish(more := table.event("u", order(3, "more"), position(60)))
    again = setting.apply()
    assert again.tables["public.orders"]["copy"].events >= len(later)
    assert setting.contents(table) == setting.folded(table, [*records, *later, *more])
    assert setting.apply().batches == 0


def test_once_ends_after_a_crash_with_partitions_added_since(
    setting: Setting, postgres18: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two tables, one new; and with a topic of no record at all. What is in the new partitions is there, too."""
    config = replace(
        setting.config(),
        stores={"copy": setting.config().stores["copy"], "pg": StoreConfig(type="postgres", url=postgres18.url)},
        tables={"public.*": replace(setting.config().tables["public.*"], stores=("copy", "pg"))},
    )
    one, other, empty = setting.table(), setting.table("items"), setting.table("empty")
    publisher = setting.publisher()
    publisher.create([one, other, empty], partitions=1)
    assert setting.apply(config).batches <= 1, "nothing is there, and it ends"
    records = [r for n in range(20) for r in one.event("c", order(n), position(10 + n))]
    publisher.publish(records)
    setting.apply(config)
    records += (unfinished := one.event("d", order(3), position(40)) + one.event("u", order(4, "x"), position(41)))
    publisher.publish(unfinished)

    def crash(*_: Any) -> None:
        msg = "as if it had been killed here"
        raise RuntimeError(msg)

    with monkeypatch.context() as patch:
        patch.setattr(TantivyStore, "apply", crash)
        with pytest.raises(CdcError, match="RuntimeError"):
            setting.apply(config)
    admin = AdminClient({"bootstrap.servers": setting.bootstrap})
    for future in admin.create_partitions([NewPartitions(t.topic, 3) for t in (one, other, empty)]).values():
        future.result(30)
    records += (more := [r for n in range(20, 60) for r in one.event("c", order(n), position(50 + n))])
    items = [r for n in range(30) for r in other.event("c", order(n), position(200 + n))]
    publisher.publish([*more, *items])
    told: list[str] = []
    run_apply(config, once=True, progress=told.append)
    assert any(line == f"topic {one.topic} has 3 partitions, and had 1: the new ones are read, too" for line in told)
    for table, of in ((one, records), (other, items), (empty, [])):
        for store in config.stores:
            alone = replace(config, stores={"copy": config.stores[store]}, tables=setting.config().tables)
            assert setting.contents(table, alone) == setting.folded(table, of), (table.name, store)
    assert setting.apply(config).batches == 0


@pytest.mark.full  # a lake's, of which several jobs may be writers; the law of two jobs on one target in each push
def test_two_jobs_on_one_checkpoint(setting: Setting) -> None:
    """In one JVM Spark ends the first; elsewhere the one whose batch is there already: told, and nothing is lost."""
    setting = replace(setting, store=lambda path: StoreConfig(type="iceberg", path=str(path)))
    table, publisher = setting.table(), setting.publisher()
    publisher.create([table])
    records: list[Record] = []

    def publish(at: int) -> None:
        more = [r for n in range(5) for r in table.event("u", order(n, f"{at}"), position(at))]
        publisher.publish(more)
        records.extend(more)

    publish(10)
    with setting.running("checkpoints") as one:
        until(lambda: one.said("batch 1"), 240)
        with setting.running("checkpoints") as other:
            until(lambda: one.failure is not None, 240)
            publish(20)
            until(lambda: other.said("batch 1"), 240)
            (folder,) = (setting.folder / "checkpoints").iterdir()
            last = max(int(file.name) for file in (folder / "offsets").iterdir() if file.name.isdigit())
            shutil.copy(folder / "offsets" / f"{last}", folder / "offsets" / f"{last + 1}")
            publish(30)
            until(lambda: other.failure is not None, 240)
    for job, said in ((one, "its query was stopped by another hand"), (other, "another job has begun to use it")):
        assert isinstance(job.failure, OperatorError)
        assert job.failure.message.startswith(f"checkpoint {folder}: {said}")
    setting.apply()
    assert setting.contents(table) == setting.folded(table, records)


@pytest.mark.full  # the one before it reads to such an end, and most tests run once
def test_a_run_of_once_reads_to_the_end_it_found(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    """In several batches, with offsets of markers and of what was aborted at the end."""
    monkeypatch.setattr(stream, "MAX_EVENTS_PER_BATCH", 7)
    table, publisher = setting.table(), setting.publisher()
    publisher.create([table], partitions=2)
    records = [r for n in range(40) for r in table.event("c", order(n), position(10 + n))]
    publisher.publish(records)
    publisher.publish(table.event("c", order(99), position(99)), commit=False)
    assert setting.apply().batches > 3
    assert setting.contents(table) == setting.folded(table, records)
    assert setting.apply().batches == 0
    (folder,) = (setting.folder / "checkpoints").iterdir()
    assert set(json.loads((folder / "cdc-topics.json").read_text())) == {table.topic}


def _killed_behind_its_batch(monkeypatch: pytest.MonkeyPatch, start: Callable[[], object]) -> None:
    """A job's first batch is in the stores, and Spark has not noted it."""
    real = BatchLoop._apply

    def apply(loop: BatchLoop, *given: Any) -> None:
        real(loop, *given)
        raise RuntimeError

    with monkeypatch.context() as patched:
        patched.setattr(BatchLoop, "_apply", apply)
        with pytest.raises(OperatorError, match="Spark stopped"):
            start()


def test_a_query_that_was_killed_in_its_first_batch_goes_on_where_it_had_begun(
    apply_spark: SparkSession, kafka: str, postgres18: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What had come before is not read again, and so is not taken for gone from the topics: live, and in a replay."""
    setting = Setting(apply_spark, kafka, tmp_path, lambda _: StoreConfig(type="postgres", url=postgres18.url))
    table, later, publisher = setting.table(), setting.table("later"), setting.publisher()
    publisher.create([table, later], partitions=1)
    records = [r for n in range(5) for r in table.event("c", order(n), position(10 + n))]
    publisher.stand(Phase.STREAM, 20, [table, later], [*records, *later.event("c", order(7), position(19))])
    alone, both = setting.config("public.orders"), setting.config("public.orders", "public.later")
    setting.apply(alone)
    replays.run(replays.prepare(both, name="r", since=Position(1, 12, 1)), once=True)
    more = [*table.event("u", order(1, "x"), position(30)), *table.event("d", order(2), position(31))]
    publisher.stand(Phase.STREAM, 40, [table, later], more)
    ends = {topic: {int(n): end for n, end in of.items()} for topic, of in offsets.export(alone).ends.items()}
    begun = Replayed(ends, goes_on=True, left={})  # as a round behind new tables begins
    _killed_behind_its_batch(monkeypatch, lambda: run_apply(both, once=True, replayed=begun))
    again = replays.prepare(alone, name="r", since=None)
    _killed_behind_its_batch(monkeypatch, lambda: replays.run(again, once=True))
    assert setting.apply(both).tables[table.qualified]["copy"].events == 2, "nothing is read again"
    assert setting.contents(table) == setting.folded(table, [*records, *more])
    replays.run(replays.prepare(alone, name="r", since=None), once=True)
    assert postgres18.rows("SELECT id, status FROM orders_r ORDER BY id") == [(1, "x"), (3, "new"), (4, "new")]
