"""The marks that are written never claim more than a copy holds."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from cdc.config.apply_config import ApplySource, ApplyTable, StoreConfig
from cdc.config.config import ApplyConfig
from cdc.model.errors import OperatorError
from cdc.telemetry.apply_meter import ApplyMeter
from cdc.telemetry.json_log import Place
from spark_apply.events.set_aside import aside_id
from spark_apply.job.batch.microbatch import Applier
from spark_apply.job.copies.route import Route
from spark_apply.job.pace import JobFigures
from spark_apply.job.watermarks.barriers import PositionWatcher
from spark_apply.job.watermarks.publisher import WatermarkPublisher
from spark_apply.model.completeness import Barrier, Barriers, Ends, Mark, TakenIn
from spark_apply.model.store import Applied, Visibility
from spark_apply.model.target_table import TargetTable
from spark_apply.spark.failures import StoreAwayError
from tests.unit.test_set_aside import asides

TOPIC = "shop.public.orders"
TABLE = TargetTable("shop", "public", "orders", TOPIC, ("id",), (), 1)
JOB = ApplyConfig(
    name="copies",
    source=ApplySource(bootstrap_servers="k:1", topic_prefix="shop"),
    stores={"search": StoreConfig(type="tantivy", path="x")},
    tables={"public.*": ApplyTable(stores=("search",))},
    checkpoint="x",
)
COMMITTED = "00000001.0000000000000018.00000000"


class Store:
    """Keeps the marks it is given."""

    def __init__(self) -> None:
        self.marks: list[Mark] = []

    def mark(self, _table: TargetTable) -> Mark:
        return Mark({0: 5}, None, version=TABLE.version)

    def set_mark(self, _table: TargetTable, mark: Mark) -> None:
        self.marks.append(mark)


def publisher(barriers: Barriers, store: Store) -> WatermarkPublisher:
    watcher = SimpleNamespace(barriers=barriers, failure=None, seen={"shop"})
    applier = Applier({TOPIC: Route(TABLE, {"copy": cast("Any", store)})}, lambda route: route, cast("Any", None))
    made = WatermarkPublisher(applier, cast("PositionWatcher", watcher))
    made.begin({TOPIC: {0: 5}}, checkpoint="checkpoint")
    return made


def test_a_copy_has_the_mark_of_this_run_before_its_rows() -> None:
    """Once, and only where rows come."""
    store = Store()
    made = publisher(Barriers(), store)
    made.claim({TOPIC: {0: 5}})
    assert store.marks == []
    for _ in range(2):
        made.claim({TOPIC: {0: 6}})
        assert store.marks == [Mark({0: 5}, None, version=TABLE.version)]


def test_a_mark_that_was_written_since_the_job_began_is_not_written_again_before_rows() -> None:
    barriers, store = Barriers(), Store()
    made = publisher(barriers, store)
    barriers.add(Barrier("shop", frozenset([TABLE.qualified]), COMMITTED, None, {TOPIC: {0: 5}}))
    made.publish_pending()
    assert len(store.marks) == 1
    made.claim({TOPIC: {0: 6}})
    assert len(store.marks) == 1


def test_a_batch_that_failed_completes_nothing() -> None:
    """A batch that failed after its visibility was computed leaves no mark, though the job publishes once more."""
    barriers, store = Barriers(), Store()
    made = publisher(barriers, store)
    barriers.add(Barrier("shop", frozenset({"public.orders"}), COMMITTED, 1, {TOPIC: {0: 10}}))
    made.visibility({TOPIC: {0: 10}})
    made.publish_pending()
    assert store.marks == []
    made.applied({TOPIC: {0: 10}}, {})
    (complete,) = (mark.complete for mark in store.marks)
    assert complete is not None
    assert complete.position == COMMITTED


class Together(Store):
    """A store that brings its tables together."""

    whole = True

    def __init__(self) -> None:
        super().__init__()
        self.shown: list[Visibility] = []

    def fold(self, _batches: object, visibility: Mapping[str, Visibility]) -> dict[str, Applied]:
        self.shown += visibility.values()
        return {}


def test_a_table_of_which_nothing_comes_is_told_once() -> None:
    """While its rows are read again, and when the connector captures it no more: no other one waits for it then."""
    barriers, store = Barriers(), Together()
    made = publisher(barriers, store)
    orders, none = frozenset({"public.orders"}), frozenset[str]()
    for position, whole, gone in (("17", orders, none), ("18", none, none), ("19", none, orders), ("20", none, orders)):
        at = f"00000001.00000000000000{position}.00000000"
        barriers.add(Barrier("shop", whole, at, 1, {TOPIC: {0: 5}}, gone))
        made.publish_pending()
    told = [(shown.limit[-11:-9], shown.reading, bool(shown.gone)) for shown in store.shown]
    assert told == [("17", False, False), ("17", True, False), ("17", False, True)]


def test_a_store_that_is_fed_otherwise_is_folded_where_it_is() -> None:
    """Its tables have nothing new, and the connector says nothing: it goes on at the position that it has."""
    barriers, store = Barriers(), Together()
    made = publisher(barriers, store)
    barriers.add(Barrier("shop", frozenset({"public.orders"}), COMMITTED, 1, {TOPIC: {0: 5}}))
    made.publish_pending()
    made.publish_pending()
    made.publish_pending(["another"])
    assert [shown.limit for shown in store.shown] == [COMMITTED]
    made.publish_pending(["copy"])
    assert [shown.limit for shown in store.shown] == [COMMITTED, COMMITTED]
    assert store.shown[0].mark == store.shown[1].mark


class Absent(Store):
    """A store at whose address nobody answers any more."""

    def set_mark(self, _table: TargetTable, _mark: Mark) -> None:
        raise StoreAwayError("nobody answers")


class AbsentWithMarks(Store):
    """Went away behind the start."""

    asked = 0

    def set_mark(self, _table: TargetTable, _mark: Mark) -> None:
        self.asked += 1
        raise StoreAwayError("nobody answers")


def test_a_store_that_goes_away_while_a_position_is_noted_ends_nothing() -> None:
    """All of its copies are set aside with the first: the next one's turn is over before it came."""
    copies, _, _ = asides()
    lake, search = Store(), Absent()
    for topic, route in copies.routes.items():
        copies.routes[topic] = replace(route, stores={"lake": cast("Any", lake), "search": cast("Any", search)})
    barriers = Barriers()
    watcher = SimpleNamespace(barriers=barriers, failure=None, seen={"shop"})
    applier = Applier(copies.routes, lambda route: route, cast("Any", None), asides=copies)
    made = WatermarkPublisher(applier, cast("PositionWatcher", watcher))
    at: Ends = {topic: {0: 5} for topic in copies.routes}
    made.begin(at, checkpoint="checkpoint")
    barriers.add(Barrier("shop", frozenset({"public.a", "public.b"}), COMMITTED, 1, at))
    made.publish_pending()
    assert len(lake.marks) == len(copies.routes)
    assert set(copies) == {(topic, "search") for topic in copies.routes}


def test_a_store_that_is_away_before_the_first_rows_is_asked_once() -> None:
    """Each answer that does not come takes time, of all tables: of hundreds, only the first one's is waited for."""
    copies, _, _ = asides()
    search = AbsentWithMarks()
    for topic, route in copies.routes.items():
        copies.routes[topic] = replace(route, stores={"lake": cast("Any", Store()), "search": cast("Any", search)})
    watcher = SimpleNamespace(barriers=Barriers(), failure=None, seen={"shop"})
    applier = Applier(copies.routes, lambda route: route, cast("Any", None), asides=copies)
    made = WatermarkPublisher(applier, cast("PositionWatcher", watcher))
    made.begin({topic: {0: 5} for topic in copies.routes}, checkpoint="checkpoint")
    made.claim({topic: {0: 6} for topic in copies.routes})
    assert set(copies) == {(topic, "search") for topic in copies.routes}
    assert search.asked == 1


def test_what_lies_before_a_batch_is_no_part_of_it() -> None:
    made = publisher(Barriers(), Store())
    ends: Ends = {TOPIC: {0: 10, 1: 20}, "other": {0: 5}}
    assert made.unread(ends) == 30
    made.applied({TOPIC: {0: 10, 1: 15}}, {})
    assert made.unread(ends) == 10


def test_a_replay_takes_nothing_from_what_a_copy_has() -> None:
    """The checkpoint lost its end: however small the batches are that come again, the copy has all of them."""
    barriers, store = Barriers(), Store()
    made = publisher(barriers, store)
    barriers.add(Barrier("shop", frozenset({"public.orders"}), COMMITTED, 1, {TOPIC: {0: 5}}))
    made.applied({TOPIC: {0: 3}}, {})
    made.applied({TOPIC: {0: 4}}, {})
    assert [mark.ends for mark in store.marks] == [{0: 5}] * len(store.marks)
    made.applied({TOPIC: {0: 5}}, {})
    made.applied({TOPIC: {0: 4}}, {})
    assert made.taken_in() == {(TOPIC, "copy"): TakenIn("00000001.0000000000000017.00000000", {0: 5})}
    made.applied({TOPIC: {0: 7}}, {})
    assert made.taken_in() == {(TOPIC, "copy"): TakenIn("00000001.0000000000000017.00000000", {})}
    assert store.marks[-1].ends == {0: 7}


def test_a_copy_that_was_swapped_in_ahead_of_the_job_is_given_nothing_again() -> None:
    """It remembers no deletes: an older event would bring a row back, for good if the copy is set aside then."""
    made = publisher(Barriers(), Store())
    made.replaced(TOPIC, "copy", {0: 9, 1: 4})
    assert made.taken_in() == {(TOPIC, "copy"): TakenIn("", {0: 9, 1: 4})}
    made.applied({TOPIC: {0: 7, 1: 4}}, {})
    assert made.taken_in() == {(TOPIC, "copy"): TakenIn("", {0: 9})}


def test_since_when_deletes_are_unread() -> None:
    """A job that has all there is stands for as long as it likes; one that lags, or a copy set aside, does not."""
    copies, _, _ = asides()
    topic, other = copies.routes
    lake = Store()
    for each, route in copies.routes.items():
        copies.routes[each] = replace(route, stores=dict.fromkeys(("lake", "search"), cast("Any", lake)))
    barriers, meter = Barriers(), ApplyMeter(JOB, Place())
    watcher = SimpleNamespace(barriers=barriers, failure=None, seen={"shop"})
    applier = Applier(copies.routes, lambda route: route, cast("Any", Unresolved()), asides=copies)
    applier.unread = cast("Any", SimpleNamespace(kept_ms={topic: 7_200_000, other: 3_600_000}))
    made = WatermarkPublisher(applier, cast("PositionWatcher", watcher))
    figures = JobFigures(meter, applier, made, copies)
    made.begin({topic: {0: 5}, other: {0: 5}}, checkpoint="checkpoint")

    def headroom_s() -> dict[str, float]:
        figures.tell()
        family = next(of for of in meter.figures.collect() if of.name == "cdc_apply_deletes_headroom_seconds")
        return {sample.labels["store"]: round(sample.value) for sample in family.samples}

    now_ms = time.time_ns() // 1_000_000
    for position, end, age_s in (("16", 4, 3300), ("17", 5, 3000), ("18", 10, 0)):
        at = f"00000001.00000000000000{position}.00000000"
        tables = frozenset({"public.a"} if end == 10 else {"public.a", "public.b"})  # b is read again
        barriers.add(Barrier("shop", tables, at, now_ms - 1000 * age_s, {topic: {0: end}}))
    made.applied({topic: {0: 4}, other: {0: 5}}, {})
    assert headroom_s() == {"lake": 300, "search": 300}, "it goes on, always an hour behind"
    made.applied({topic: {0: 5}, other: {0: 5}}, {})
    assert headroom_s() == {"lake": 600, "search": 600}
    marks = dict(made._marks)
    for key, mark in marks.items():
        assert mark.complete
        without = replace(mark.complete, source_ms=None, published_ms=now_ms - 2_000_000)
        made._marks[key] = replace(mark, complete=without)
    assert headroom_s() == {"lake": 1600, "search": 1600}, "when the source committed is not known"
    made._marks |= marks
    made.applied({topic: {0: 10}, other: {0: 5}}, {})
    assert headroom_s() == {"lake": 3600, "search": 3600}, "the mark of b is old, and nothing is unread"
    copies.put(topic, "search", OperatorError("the table was dropped"))
    noted = copies.known[aside_id(topic, "search")]
    copies.known[noted.id] = replace(noted, at_ms=noted.at_ms - 3_500_000)
    assert headroom_s() == {"lake": 3600, "search": 100}
    applier.unread.kept_ms.clear()
    assert headroom_s() == {}, "no topic forgets a delete"


class Unresolved:
    """A quarantine without entries."""

    def by_store(self) -> Counter[str]:
        return Counter()
