"""A store that does not answer is waited for once, and asked once for all of its copies: others do not wait for it."""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass, field
from typing import Any, cast

import psycopg2
import pytest
from pyspark.errors import PySparkException

from cdc.config.apply_config import ApplySource, ApplyTable, StoreConfig
from cdc.config.config import ApplyConfig
from cdc.model.errors import CdcError, OperatorError, RetryableError
from spark_apply.job.catch_up import asides as catching_up
from spark_apply.job.catch_up.asides import AsideWatch
from spark_apply.job.copies.chosen import open_stores
from spark_apply.job.copies.set_aside import AsideCopies, told
from spark_apply.model.completeness import Mark
from spark_apply.model.store import Patience, open_store
from spark_apply.spark.failures import StoreAwayError
from spark_apply.spark.query_failures import opening_errors
from spark_apply.spark.remedies import reaching
from spark_apply.stores.opensearch.failures import translated
from spark_apply.stores.postgres.session import server
from tests.unit.test_set_aside import AWAY, asides


@pytest.fixture
def nobody() -> int:
    """A port at which nobody listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


def test_a_lost_postgresql_is_waited_for_once(nobody: int, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr(server.time, "sleep", waited.append)
    monkeypatch.setattr(server, "_AWAY_S", 0.05)
    made = server.Server(f"postgresql://cdc@127.0.0.1:{nobody}/warehouse", "stores.warehouse")
    made.session = 1  # it has answered before
    for more in (True, False, False):
        before = len(waited)
        with pytest.raises(StoreAwayError, match=r"PostgreSQL of stores\.warehouse does not let us in"):
            made.begin("applying")
        assert (len(waited) > before) == more

    def refused(**_: Any) -> None:
        raise psycopg2.OperationalError('FATAL:  password authentication failed for user "cdc"')

    monkeypatch.setattr(psycopg2, "connect", refused)
    with pytest.raises(OperatorError, match="password authentication failed"):
        made.begin("applying")


@pytest.mark.parametrize(("others", "waits_s"), [(0, 10.0), (1, 2.0)])
def test_other_stores_wait_for_a_server_less_long(others: int, waits_s: float) -> None:
    """Restarts of a server are shorter than this; where it is the only one, its copies need not be set aside then."""
    stores = {f"of{n}": StoreConfig(type="postgres", url="postgresql://cdc@h/w") for n in range(1 + others)}
    table = ApplyTable(stores=tuple(stores))
    source = ApplySource(bootstrap_servers="kafka:9092", topic_prefix="shop")
    config = ApplyConfig(name="job", source=source, stores=stores, tables={"public.*": table}, checkpoint="there")
    opened: Any = open_stores(config, [table], cast("Any", None))
    assert {store.patience.seconds for store in opened.values()} == {waits_s}


def test_an_opensearch_that_is_away_is_opened(nobody: int) -> None:
    """What concerns it is said when a copy is opened, and is of its copies alone."""
    store = open_store(
        StoreConfig(type="opensearch", url=f"http://127.0.0.1:{nobody}"), name="search", prefix="shop", spark=None
    )
    client: Any = store
    with (
        pytest.raises(
            StoreAwayError, match=r"it cannot be read: OpenSearch does not answer \(ConnectionError\)"
        ) as told,
        translated("it cannot be read"),
    ):
        client._client.info()
    assert told.value.hint
    assert "is OpenSearch up" in told.value.hint
    store.close()


def test_a_mark_that_is_another_one_each_time_is_left_to_the_next_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """All copies wait meanwhile."""
    store: Any = open_store(
        StoreConfig(type="opensearch", url="http://127.0.0.1:1"), name="search", prefix="shop", spark=None
    )
    table: Any = asides()[0].routes["shop.public.a"].table
    tries, waited = list[str](), list[float]()
    monkeypatch.setattr(time, "sleep", waited.append)
    monkeypatch.setattr(store, "_require_opened", lambda _table: False)
    monkeypatch.setattr(store, "mark", lambda _table: None)
    monkeypatch.setattr(store._notes, "replace", lambda index, *_: tries.append(index))
    with pytest.raises(RetryableError, match="its mark was another one each time"):
        store.set_mark(table, Mark({}, None))
    assert len(tries) == len(waited) == 20
    store.close()


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("org.apache.iceberg.exceptions.RESTException: … java.net.ConnectException: refused", StoreAwayError),
        ("java.nio.file.AccessDeniedException: /lake", OperatorError),
        ("org.apache.spark.SparkException: something else", OperatorError),
    ],
)
def test_a_catalog_of_a_lake_that_does_not_answer_is_a_store_that_is_away(said: str, kind: type[CdcError]) -> None:
    """By whatever opens a copy, writes to it or asks it."""
    exc = PySparkException(said)
    assert type(told(exc, "public.a", "lake")) is kind
    for translates in (reaching("stores.lake"), opening_errors("public.a")):
        with pytest.raises(CdcError) as raised, translates:
            raise exc
        assert type(raised.value) is kind


def test_a_copy_of_a_replay_is_not_caught_up_from_before_it_began(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was set aside first, or was dropped and made again, has no mark; the others have their own."""
    made, _, _ = asides()
    watch = _watch(made)
    assert watch._behind("t", {}) == {}, "a job begins at the beginning"
    watch.first = {"t": {0: 5, 1: 8}}
    monkeypatch.setattr(catching_up, "offset_ranges", lambda *_: ({0: 0, 1: 9}, {0: 20, 1: 20}))
    assert watch._behind("t", {}) == {0: 5, 1: 9}, "what retention has taken is not asked for"
    assert watch._behind("t", {0: 7, 1: 12}) == {0: 7, 1: 12}
    assert watch._behind("other", {0: 1}) == {0: 1}


@dataclass
class Away:
    """A store at whose address nobody answers."""

    asked: list[str] = field(default_factory=list)

    def open(self, table: str) -> str:
        self.asked.append(table)
        raise StoreAwayError("nobody answers")


def _watch(made: AsideCopies) -> AsideWatch:
    anything: Any = None
    return AsideWatch(anything, anything, anything, made, anything, lambda table: table, anything)  # type: ignore[arg-type,return-value]


def test_one_copy_is_asked_for_all_of_its_store() -> None:
    made, _, lines = asides()
    lake, search = Away(), Away()
    for topic in list(made.routes):
        for name, store in (("lake", lake), ("search", search)):
            made.put(topic, name, AWAY)
            aside: Any = made.copies[topic, name]
            aside.store = store
    _watch(made).look(now=True)
    assert (lake.asked, search.asked) == (["public.a"], ["public.a"])
    assert [line for line in lines if "nobody answers" in line] == [
        f"warning: public.{table} in {store} is set aside, the others go on: nobody answers"
        for table in ("a", "b")
        for store in ("lake", "search")
    ]


@dataclass
class Slow:
    """A store that takes longer to open a copy than the others are to wait."""

    opened: list[str] = field(default_factory=list)

    def open(self, table: str) -> str:
        self.opened.append(table)
        time.sleep(0.02)
        raise OperatorError("it is not as it was made")


@pytest.mark.parametrize("batch_s", [0.01, 60.0])
def test_many_copies_have_their_turn_one_after_the_other_between_batches(
    monkeypatch: pytest.MonkeyPatch, batch_s: float
) -> None:
    """As long as the others have had, but for some seconds at most. No copy waits for what failed in another."""
    monkeypatch.setattr(catching_up, "_SWEEP_S", 5.0 if batch_s < 1 else 0.01)
    made, _, _ = asides()
    slow = Slow()
    for topic in list(made.routes):
        made.put(topic, "lake", AWAY)
        aside: Any = made.copies[topic, "lake"]
        aside.store = slow
    watch = _watch(made)
    watch.share_s = batch_s
    for tried in (["public.a"], ["public.b"], [], []):  # then the others have their nine tenths of the time
        slow.opened.clear()
        for aside in made.copies.values():
            aside.due_at = 0.0
        watch.look()
        assert slow.opened == tried
    watch._rests_until.clear()
    for aside in made.copies.values():
        aside.due_at = 0.0
    watch.look()
    assert slow.opened == ["public.a"]


def test_a_copy_that_is_tried_again_waits_for_no_server_that_is_away() -> None:
    """The others' time would pass meanwhile, and nine times as long would no copy of this store be tried."""
    made, _, _ = asides()
    waits: list[float] = []

    class Waiting:
        patience = Patience(2.0)

        def open(self, _table: str) -> str:
            waits.append(self.patience.seconds)
            raise StoreAwayError("nobody answers")

    made.put("shop.public.a", "lake", AWAY)
    aside: Any = made.copies["shop.public.a", "lake"]
    aside.store, aside.due_at = Waiting(), 0.0
    _watch(made).look()
    _watch(made).look(now=True)  # as at the end of a run by --once, where nobody else waits
    assert (waits, Waiting.patience.seconds) == ([0.0, 2.0], 2.0)
