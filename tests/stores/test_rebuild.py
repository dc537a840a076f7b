"""Copies rebuilt from the topics, on real stores: under readers, beside a running job, through kills; and back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import opensearchpy
import orjson
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from cdc.cli.main import cdc
from cdc.config.apply_config import ApplyTable, StoreConfig
from cdc.config.config import ApplyConfig
from cdc.model.errors import OperatorError
from cdc.model.state import Phase
from spark_apply.events.kafka import stream
from spark_apply.job.job import run_apply
from spark_apply.model.store import Applied, Batch, Store, open_store
from spark_apply.model.target_table import TargetTable
from spark_apply.rebuild import rebuild
from spark_apply.rebuild.diff import Differences
from spark_apply.rebuild.rebuild import run_rebuild, run_rollback
from spark_apply.stores.iceberg.store import IcebergStore
from spark_apply.stores.opensearch.store import OpenSearchStore
from spark_apply.stores.tantivy.documents import document_of
from spark_apply.stores.tantivy.store import TantivyStore
from spark_apply.verify.contents import Contents, contents
from tests.spark.laws import Record, Setting, order
from tests.spark.records import Publisher, SourceTable, position

pytest_plugins = ["tests.spark.fixtures"]
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # py4j's, one for each thread

HOME = Path(__file__).parents[2]
STORES = ("warehouse", "index", "search")
CLASSES = (IcebergStore, TantivyStore, OpenSearchStore)
CHANGED, REMOVED, ADDED = '{"id":1}', '{"id":2}', '{"id":999}'


@dataclass
class Shop:
    """One table, its topic, its copies in three stores."""

    setting: Setting
    opensearch: str
    records: list[Record] = field(default_factory=list)
    commit: int = 10
    positions: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.table: SourceTable = self.setting.table()
        self.publisher: Publisher = self.setting.publisher()
        self.publisher.create([self.table])

    @property
    def config(self) -> ApplyConfig:
        server = {"shards": 1, "replicas": 0}
        stores = {
            "warehouse": StoreConfig(type="iceberg", path=str(self.setting.folder / "warehouse")),
            "index": StoreConfig(type="tantivy", path=str(self.setting.folder / "index")),
            "search": StoreConfig(type="opensearch", url=self.opensearch, options=server),
        }
        return replace(
            self.setting.config(), stores=stores, tables={"public.orders": ApplyTable(stores=tuple(sorted(stores)))}
        )

    def publish(self, *changes: tuple[str, dict[str, Any]]) -> None:
        """Each change (op, row) in a source transaction of its own, all in one Kafka transaction."""
        records = []
        for op, row in changes:
            self.commit += 1
            self.positions[row["id"]] = position(self.commit)
            records += self.table.event(op, row, position(self.commit))
        self.publisher.publish(records)
        self.records += records

    def apply(self) -> None:
        self.setting.apply(self.config)

    @property
    def made(self) -> TargetTable:
        return self.setting.target(self.table)

    @contextmanager
    def store(self, name: str) -> Iterator[Any]:
        spark = self.setting.spark.newSession()
        opened = open_store(self.config.stores[name], name=name, prefix=self.setting.prefix, spark=spark)
        yield opened
        opened.close()

    def contents(self, name: str) -> Contents:
        with self.store(name) as store:
            return contents(store, self.made)

    def all_contents(self) -> dict[str, Contents]:
        return {name: self.contents(name) for name in STORES}

    def folded(self) -> Contents:
        return self.setting.folded(self.table, self.records)

    def corrupted(self) -> Contents:
        """What `corrupt` leaves of the fold."""
        rows = self.folded()
        rows[CHANGED] = {**rows[CHANGED], "status": "wrong"}
        del rows[REMOVED]
        return {**rows, ADDED: order(999, "nobody")}

    def corrupt(self) -> None:
        """Change, remove and add a row behind the toolkit's back."""
        made = self.made
        with self.store("warehouse") as store:
            name, sql = store.table_name(made), store._tables.spark.sql
            sql(f"UPDATE {name} SET status = 'wrong' WHERE id = 1")
            sql(f"DELETE FROM {name} WHERE id = 2")
            sql(f"INSERT INTO {name} VALUES (999, 'nobody', 999.50, '{position(1)}')")
        with self.store("index") as store:
            store.open(made)
            opened = store._open[made.qualified]
            for key, row in ((CHANGED, order(1, "wrong")), (REMOVED, None), (ADDED, order(999, "nobody"))):
                opened.writer.delete_documents_by_term("_cdc_key", key)
                if row is not None:
                    at = self.positions.get(row["id"], position(1))
                    opened.writer.add_json(document_of(key, at, json.dumps(row), opened.shape.fields))
            opened.writer.commit()
        with self.store("search") as store:
            client = opensearchpy.OpenSearch(self.opensearch)
            alias = store.index(made)
            client.index(index=alias, id=CHANGED, body=order(1, "wrong"))
            client.delete(index=alias, id=REMOVED)
            client.index(index=alias, id=ADDED, body=order(999, "nobody"))
            client.close()
        assert self.all_contents() == dict.fromkeys(STORES, self.corrupted())


@pytest.fixture
def shop(apply_spark: SparkSession, kafka: str, opensearch: str, tmp_path: Path) -> Shop:
    """A table of 50 rows, all applied."""
    made = Shop(
        Setting(apply_spark, kafka, tmp_path, lambda path: StoreConfig(type="iceberg", path=str(path))), opensearch
    )
    made.publish(*(("c", order(number)) for number in range(50)))
    made.apply()
    return made


def _whole(found: Contents) -> str:
    """Which copy a read has seen: all three of its marks must be of the same one."""
    marks = (found[CHANGED]["status"] == "wrong", REMOVED not in found, ADDED in found)
    assert len(set(marks)) == 1, f"a part of a copy: {marks}"
    return "old" if marks[0] else "new"


@contextmanager
def _reading(shop: Shop) -> Iterator[dict[str, list[str]]]:
    """Read all copies all along, as others do; yields what was seen."""
    seen: dict[str, list[str]] = {name: [] for name in STORES}
    stop, failed = threading.Event(), []

    def read() -> None:
        try:
            with shop.store("warehouse") as warehouse, shop.store("index") as index, shop.store("search") as search:
                opened = dict(zip(STORES, (warehouse, index, search), strict=True))
                while not stop.is_set():
                    for name, store in opened.items():
                        seen[name].append(_whole(contents(store, made)))
        except BaseException as exc:
            failed.append(exc)
            raise

    made = shop.made
    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield seen
    finally:
        stop.set()
        reader.join(60)
    assert not failed, failed


@contextmanager
def _job(shop: Shop) -> Iterator[None]:
    stop, lines, failed = threading.Event(), [], []

    def run() -> None:
        try:
            run_apply(shop.config, once=False, stop=stop, progress=lines.append)
        except BaseException as exc:
            failed.append(exc)
            raise

    job = threading.Thread(target=run)
    job.start()
    try:
        _until(lambda: any(line.startswith("following the topics") for line in lines) or not job.is_alive())
        yield
        assert job.is_alive()
    finally:
        stop.set()
        job.join(60)
    assert not failed, failed


def _until(true: Callable[[], bool], within_s: float = 120) -> None:
    deadline = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.1)


@pytest.mark.full  # test_rebuilt_under_readers_then_put_back
def test_readers_and_a_running_job_all_along(shop: Shop) -> None:
    """Every read is wholly the old copy or the new; the job goes on into the new one, and back into the old."""
    shop.corrupt()
    old = shop.corrupted()
    done: list[rebuild.Rebuilt] = []
    with _job(shop):
        with _reading(shop) as seen:
            rebuilding = threading.Thread(target=lambda: done.extend(run_rebuild(shop.config)))
            rebuilding.start()
            number = 100
            while rebuilding.is_alive():
                shop.publish(("c", order(number)), ("u", order(number, "paid")), ("d", order(number - 1 - number % 3)))
                number += 1
                time.sleep(0.05)
            rebuilding.join()
            shop.publish(("u", order(2, "last")), ("c", order(5000)), ("d", order(5000)), ("d", order(4)))
            _until(lambda: shop.all_contents() == dict.fromkeys(STORES, shop.folded()))
        assert len(run_rollback(shop.config)) == len(STORES)
        shop.publish(("c", order(6000)), ("d", order(5)))
        caught_up = {**shop.folded(), CHANGED: old[CHANGED], ADDED: old[ADDED]}
        _until(lambda: shop.all_contents() == dict.fromkeys(STORES, caught_up))
    assert {copy.store for copy in done} == set(STORES)
    for copy in done:
        assert min(copy.differences.only_old, copy.differences.only_new, copy.differences.different) >= 1
    for name, reads in seen.items():
        assert reads == sorted(reads, reverse=True), f"{name}: {reads}"  # old, …, old, new, …, new
        assert (reads[0], reads[-1]) == ("old", "new")


def test_what_the_job_writes_into_the_old_copy_is_due(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Events between the build and the swap: the rebuild takes those it sees, the job's next start the rest.

    The rest is in the old copies, and the job's checkpoint is behind it: only what is `due` says what is missing.
    """
    shop.corrupt()
    original = rebuild.compare

    def compare(live: Store, beside: Store, table: TargetTable) -> Differences:
        found = original(live, beside, table)
        shop.publish(("u", order(5, "seen")), ("d", order(6)), ("c", order(60)))
        return found

    monkeypatch.setattr(rebuild, "compare", compare)
    swaps: list[Contents] = []
    for made in CLASSES:

        def swap(store: Any, table: TargetTable, due: Any, *, original: Any = made.swap) -> None:
            if not swaps:
                swaps.append(shop.folded())
                shop.publish(("u", order(7, "unseen")), ("d", order(8)), ("d", order(60)), ("c", order(61)))
                shop.apply()
            original(store, table, due)

        monkeypatch.setattr(made, "swap", swap)
    done = run_rebuild(shop.config)
    first = [copy.differences for copy in done if copy.store == "index"]
    assert first == [Differences(rows=50, only_old=1, only_new=1, different=1)]
    assert shop.all_contents() == dict.fromkeys(STORES, swaps[0])
    assert shop.setting.apply(shop.config).batches == 0
    assert shop.all_contents() == dict.fromkeys(STORES, shop.folded())
    with shop.store("warehouse") as store:
        assert store.position(shop.made) == position(shop.commit)


def test_refused_then_killed_then_by_command_then_back(shop: Shop) -> None:
    """A rebuild killed in its midst leaves the live copies alone; the next one succeeds; --rollback undoes it once."""
    file = shop.setting.folder / "apply.yaml"
    file.write_text(json.dumps(_as_yaml(shop.config)))
    with pytest.raises(OperatorError, match="there is no earlier copy to put back"):
        run_rollback(shop.config)
    _refused_where_it_may_not_be(shop)
    shop.corrupt()
    _kill_a_rebuild(shop, file)
    assert shop.all_contents() == dict.fromkeys(STORES, shop.corrupted())

    with shop.store("search") as store:  # an alias of the application's, which must show what is live
        index, how = store._indexes.named(store.index(shop.made))[0], {"filter": {"term": {"id": 3}}}
        store._client.indices.put_alias(index=index, name=f"{shop.setting.prefix}-own", body=how)

    found = _cdc("rebuild", str(file), "--json")
    about = {"table": "public.orders", "events": 50, "rows": 50, "only_old": 1, "only_new": 1, "different": 1}
    assert found["copies"] == [{**about, "store": name} for name in sorted(STORES)]
    assert found["name"] == "law"
    assert shop.all_contents() == dict.fromkeys(STORES, shop.folded())
    assert _beside(shop) == {"warehouse": 0, "index": 1, "search": 1}  # one each to go back to, and no leftovers
    assert _own_alias(shop) == how

    old, applied = shop.corrupted(), shop.commit
    shop.publish(("u", order(2, "newer")), ("d", order(9)), ("c", order(70)))
    shop.apply()
    assert shop.all_contents() == dict.fromkeys(STORES, shop.folded())
    back = _cdc("rebuild", str(file), "--rollback", "--json")
    assert [(copy["store"], copy["live_until"][:3]) for copy in back["copies"]] == [(n, "202") for n in sorted(STORES)]
    assert shop.all_contents() == dict.fromkeys(STORES, old)
    for name in STORES:
        with shop.store(name) as store:
            assert store.position(shop.made) == position(applied), f"{name} says what the other copy had"
    with pytest.raises(OperatorError, match="there is no earlier copy to put back"):
        run_rollback(shop.config, store="index")
    shop.apply()
    caught_up = {**shop.folded(), CHANGED: old[CHANGED], ADDED: old[ADDED]}
    assert shop.all_contents() == dict.fromkeys(STORES, caught_up)
    assert _own_alias(shop) == how


def _own_alias(shop: Shop) -> Any:
    """How the application's alias shows the live index, which it alone names."""
    with shop.store("search") as store:
        found = store._client.indices.get_alias(name=f"{shop.setting.prefix}-own")
        assert list(found) == store._indexes.named(store.index(shop.made))
        return next(iter(found.values()))["aliases"][f"{shop.setting.prefix}-own"]


def _refused_where_it_may_not_be(shop: Shop) -> None:
    elsewhere = replace(shop.config.stores["index"], path=str(shop.setting.folder / "elsewhere"))
    empty = replace(shop.config, stores={**shop.config.stores, "index": elsewhere})
    with pytest.raises(OperatorError, match=r"public\.orders in index: nothing was ever applied there"):
        run_rebuild(empty, store="index")
    with (
        rebuild._locked(shop.config, "public.orders", "index"),
        pytest.raises(OperatorError, match="is being rebuilt by another process"),
    ):
        run_rebuild(shop.config)
    assert shop.all_contents() == dict.fromkeys(STORES, shop.folded())


def _kill_a_rebuild(shop: Shop, file: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(HOME)}
    process = subprocess.Popen([sys.executable, "-m", "cdc", "rebuild", str(file)], env=environment)
    try:
        _until(lambda: min(_beside(shop).values()) > 0 or process.poll() is not None)
    finally:
        process.send_signal(signal.SIGKILL)
        ended = process.wait()
    assert ended == -signal.SIGKILL


def _beside(shop: Shop) -> dict[str, int]:
    """Copies that are not live, by store; of Iceberg, branches."""
    made = shop.made
    with shop.store("warehouse") as warehouse, shop.store("search") as search:
        client = opensearchpy.OpenSearch(shop.opensearch)
        indices = len(client.indices.get_alias(index=f"{search.index(made)}.*"))
        client.close()
        refs = warehouse._tables.loaded(made).refs()
        branches = sum(name.startswith("cdc_beside_") for name in refs)
    folders = (shop.setting.folder / "index" / "public").glob("orders.*/")
    return {
        "warehouse": branches,
        "index": sum(not path.is_symlink() for path in folders) - 1,
        "search": indices - 1,
    }


def _cdc(*arguments: str) -> dict[str, Any]:
    done = CliRunner().invoke(cdc, arguments, catch_exceptions=False)
    assert done.exit_code == 0
    return dict(orjson.loads(done.stdout))


def _as_yaml(config: ApplyConfig) -> dict[str, Any]:
    stores = {
        name: {key: value for key, value in (("type", s.type), ("path", s.path), ("url", s.url)) if value}
        | ({"options": dict(s.options)} if s.options else {})
        for name, s in config.stores.items()
    }
    return {
        "name": config.name,
        "source": {
            "bootstrap_servers": config.source.bootstrap_servers,
            "topic_prefix": config.source.topic_prefix,
        },
        "stores": stores,
        "tables": {name: {"stores": list(table.stores)} for name, table in config.tables.items()},
        "checkpoint": config.checkpoint,
    }


@pytest.mark.full  # test_a_copy_that_was_swapped_in_ahead_of_the_job_is_given_nothing_again
def test_a_copy_that_was_swapped_in_and_then_set_aside_brings_no_row_back(
    apply_spark: SparkSession, kafka: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job lags: it comes to events that the new copy has, a row's change and then its delete, which fails."""
    setting = Setting(apply_spark, kafka, tmp_path, lambda path: StoreConfig(type="tantivy", path=str(path)))
    table, fine, publisher = setting.table(), setting.table("fine"), setting.publisher()
    publisher.create([table, fine], partitions=1)
    records = [*table.event("c", order(1), position(10)), *fine.event("c", order(1), position(10))]
    publisher.stand(Phase.STREAM, 20, [table, fine], records)
    setting.apply()
    more = [*table.event("u", order(1, "x"), position(30)), *table.event("d", order(1), position(31))]
    publisher.stand(Phase.STREAM, 40, [table, fine], more)
    run_rebuild(setting.config(), table="public.orders")
    real = TantivyStore.apply

    def apply(store: TantivyStore, batch: Batch) -> Applied:
        if batch.position == position(31):
            raise OperatorError("its disk is full")
        return real(store, batch)

    monkeypatch.setattr(stream, "MAX_EVENTS_PER_BATCH", 1)
    with monkeypatch.context() as patched:
        patched.setattr(TantivyStore, "apply", apply)
        setting.apply()
    setting.apply()
    assert setting.contents(table) == setting.folded(table, [*records, *more])
