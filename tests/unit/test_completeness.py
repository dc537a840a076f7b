"""A copy never claims to hold more source transactions than it does."""

from __future__ import annotations

import json
import random
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cdc.model.errors import OperatorError
from cdc.model.state import Phase, State
from spark_apply.job.copies.route import Route
from spark_apply.job.watermarks.publisher import WatermarkPublisher
from spark_apply.model.completeness import Barrier, Barriers, Complete, Mark, complete_tables, lowest, position_of
from spark_apply.model.target_table import TargetTable
from spark_apply.stores.iceberg.marks import mark_in_folder

TOPICS = {"shop.public.a": 2, "shop.public.b": 1}


def _state(commit: int = 100, **more: object) -> State:
    known: dict[str, object] = {"identity": {}, "phase": Phase.STREAM, "tables": ("public.a", "public.b")}
    return State(connector="shop", epoch=1, commit=commit, **{**known, **more})  # type: ignore[arg-type]


def _barrier(commit: int, highs: dict[str, dict[int, int]], connector: str = "shop") -> Barrier:
    return Barrier(connector, frozenset({"public.a"}), position_of(_state(commit)), None, highs)


def test_a_copy_holds_what_is_below_all_of_its_ends() -> None:
    """One partition that is behind is enough: a delete may be in it."""
    mark = Mark({0: 5, 1: 3}, None)
    for held in ({}, {0: 5, 1: 3}, {1: 2, 2: 0}):
        assert mark.holds(held), held
    for missing in ({0: 5, 1: 4}, {0: 6, 1: 3}, {0: 1, 2: 1}):
        assert not mark.holds(missing), missing


def test_a_barrier_is_passed_where_every_partition_is() -> None:
    barriers = Barriers()
    barriers.add(_barrier(10, {"a": {0: 5, 1: 0}, "b": {0: 3}}))
    barriers.add(_barrier(20, {"a": {0: 9, 1: 0}, "b": {0: 3}}))
    assert barriers.passed({}) == {}
    assert barriers.passed({"a": {0: 9, 1: 9}, "b": {0: 2}}) == {}
    assert barriers.passed({"a": {0: 8}, "b": {0: 3}})["shop"].position == position_of(_state(10))
    assert barriers.passed({"a": {0: 9}, "b": {0: 4}})["shop"].position == position_of(_state(20))
    # nothing new in the topics: a position that moved is passed by the same offsets
    barriers.add(_barrier(30, {"a": {0: 9, 1: 0}, "b": {0: 3}}))
    assert barriers.passed({"a": {0: 9}, "b": {0: 4}})["shop"].position == position_of(_state(30))


def test_connectors_are_complete_each_by_itself() -> None:
    barriers = Barriers()
    barriers.add(_barrier(10, {"a": {0: 5}}))
    barriers.add(_barrier(90, {"b": {0: 5}}, connector="other"))
    assert {c: b.position for c, b in barriers.passed({"a": {0: 0}, "b": {0: 5}}).items()} == {
        "other": position_of(_state(90))
    }


@pytest.mark.parametrize("seed", range(40))
def test_what_is_said_to_be_complete_is_there(seed: int) -> None:
    """A model of a connector, a broker whose markers come one after the other, a watcher and a job, in any order."""
    rng = random.Random(seed)
    logs: dict[tuple[str, int], list[int]] = {(t, p): [] for t, count in TOPICS.items() for p in range(count)}
    stable = dict.fromkeys(logs, 0)  # the last stable offset: what read_committed readers get to
    unmarked: list[tuple[str, int]] = []  # of the transaction committed last: its markers are under way
    barriers, ends, commit, committed, seen = Barriers(), dict.fromkeys(logs, 0), 0, 0, 0
    for _ in range(600):
        step = rng.choice(("write", "mark", "watch", "batch", "batch"))
        if step == "write" and not unmarked:  # a producer's next transaction begins when all markers are written
            for _ in range(rng.randint(0, 3)):
                commit += 1
                for place in rng.sample(sorted(logs), rng.randint(1, len(logs))):
                    logs[place].append(commit)
            unmarked = [place for place in logs if len(logs[place]) > stable[place]]
            rng.shuffle(unmarked)
            committed = commit
        elif step == "mark" and unmarked:
            place = unmarked.pop()
            logs[place].append(0)  # a marker has an offset too
            stable[place] = len(logs[place])
        elif step == "watch" and committed > seen:
            seen = committed
            highs: dict[str, dict[int, int]] = {}
            for (topic, partition), log in logs.items():
                highs.setdefault(topic, {})[partition] = len(log)
            barriers.add(_barrier(seen + 1, highs))
        elif step == "batch":
            for place in logs:
                ends[place] = max(ends[place], rng.randint(ends[place], stable[place]))
            by_topic: dict[str, dict[int, int]] = {}
            for (topic, partition), end in ends.items():
                by_topic.setdefault(topic, {})[partition] = end
            passed = barriers.passed(by_topic)
            if passed:
                said = int(passed["shop"].position.split(".")[1], 16)
                for place, log in logs.items():
                    assert all(other >= said for other in log[ends[place] :] if other), "it was said too early"
    assert seen, "nothing was ever complete: the model shows nothing"


def test_a_job_far_behind_keeps_few_barriers_and_the_newest() -> None:
    barriers = Barriers()
    for n in range(1, 1000):
        barriers.add(_barrier(n, {"a": {0: n}}))
    assert sum(len(ahead) for ahead in barriers._ahead.values()) <= 64
    assert barriers.passed({"a": {0: 999}})["shop"].position == position_of(_state(999))


def test_a_table_whose_topic_is_not_whole_is_not_spoken_for() -> None:
    both = ("public.a", "public.b")
    assert complete_tables(_state(), both) == {"public.a", "public.b"}
    assert complete_tables(_state(phase=Phase.SNAPSHOT), both) is None
    assert complete_tables(_state(reading={"public.a": {"required": True}}), both) == {"public.b"}
    assert complete_tables(_state(reading={"public.a": {"required": False}}), both) == {"public.a", "public.b"}
    assert complete_tables(_state(tables=("public.b",)), both) == {"public.b"}


def test_marks_are_kept_as_json_and_the_lowest_counts() -> None:
    low, high = (Complete("shop", position_of(_state(n)), 5, 6) for n in (1, 2))
    mark = Mark({0: 7, 11: 9}, low)
    assert Mark.from_json(mark.to_json()) == mark
    assert Mark.from_json(Mark({}, None).to_json()) == Mark({}, None)
    assert mark.holds({0: 7})
    assert not mark.holds({0: 8})
    assert not mark.holds({1: 1})
    assert lowest([mark, Mark({}, high)]) == low
    assert lowest([mark, None]) is None
    assert lowest([mark, Mark({}, None)]) is None
    assert lowest([]) is None


class Copy:
    """As much of a store as a WatermarkPublisher needs."""

    def __init__(self, mark: Mark | None = None) -> None:
        self.kept = mark

    def mark(self, table: TargetTable) -> Mark | None:
        return self.kept

    def set_mark(self, table: TargetTable, mark: Mark) -> None:
        self.kept = mark


class Expiring(Copy):
    expires = True


def _publisher(*copies: Copy) -> tuple[WatermarkPublisher, Barriers]:
    table = TargetTable("shop", "public", "a", "shop.public.a", ("id",), (), 1)
    barriers = Barriers()
    routes = {table.topic: Route(table, cast("Any", {f"copy{n}": copy for n, copy in enumerate(copies)}))}
    applier: Any = SimpleNamespace(routes=routes, contained=lambda *_: nullcontext(), is_behind=lambda *_: False)
    return WatermarkPublisher(applier, cast("Any", SimpleNamespace(barriers=barriers, failure=None))), barriers


def test_a_copy_is_complete_once_what_lies_before_a_barrier_is_in_it() -> None:
    copy = Copy()
    publisher, barriers = _publisher(copy)
    publisher.begin(None, checkpoint="c")
    assert copy.kept is None
    barriers.add(_barrier(10, {"shop.public.a": {0: 5}}))
    publisher.publish_pending()
    publisher.applied({"shop.public.a": {0: 4}}, {})
    assert copy.kept == Mark({0: 4}, None, version=1)
    publisher.applied({"shop.public.a": {0: 5}}, {})
    assert copy.kept is not None
    assert copy.kept.complete is not None
    assert copy.kept.complete.position == position_of(_state(10))
    # the source is idle, its position moves, no batch comes
    barriers.add(_barrier(20, {"shop.public.a": {0: 5}}))
    publisher.publish_pending()
    assert copy.kept.complete.position == position_of(_state(20))
    # the table is being read again at the source: it stays where it was
    barriers.add(Barrier("shop", frozenset(), position_of(_state(30)), None, {}))
    publisher.applied({"shop.public.a": {0: 9}}, {})
    assert copy.kept.ends == {0: 9}
    assert copy.kept.complete.position == position_of(_state(20))


def test_a_copy_that_is_filled_again_is_complete_no_more() -> None:
    was = Complete("shop", position_of(_state(10)), None, 1)
    copy = Copy(Mark({0: 5}, was, version=1))
    publisher, _ = _publisher(copy)
    publisher.begin(None, checkpoint="c")
    assert copy.kept == Mark({}, None, version=1)


def test_a_copy_older_than_the_checkpoint_stops_the_job() -> None:
    """The missing events would never come again, although the copy claims to have them."""
    was = Complete("shop", position_of(_state(10)), None, 1)
    applied = {"shop.public.a": {0: 5}}
    for older in (Copy(Mark({0: 4}, was)), Expiring(Mark({0: 4}, was))):
        publisher, barriers = _publisher(Copy(Mark({0: 5}, was)), older)
        with pytest.raises(
            OperatorError, match=r"store copy1: its copy of public\.a is older than the .* /c/1"
        ) as told:
            publisher.begin(applied, checkpoint="/c/1")
        assert ("expire its snapshots?" in (told.value.hint or "")) == isinstance(older, Expiring)
    copy = Copy(Mark({0: 5}, was, version=1))
    publisher, barriers = _publisher(copy)
    publisher.begin(applied, checkpoint="/c/1")
    barriers.add(_barrier(8, {"shop.public.a": {0: 5}}))
    publisher.publish_pending()
    assert copy.kept == Mark({0: 5}, was, version=1), "what is complete stays so"


def test_a_table_that_was_rolled_back_says_nothing(tmp_path: Path) -> None:
    """The property was restored, its rows were not: the snapshot that it names is no ancestor of the current one."""
    mark = json.dumps({"ends": {"0": 5}, "complete": None, "snapshot": 2})
    snapshots = [{"snapshot-id": 1}, {"snapshot-id": 2, "parent-snapshot-id": 1}]
    snapshots.append({"snapshot-id": 3, "parent-snapshot-id": 2})
    assert mark_in_folder(tmp_path) is None
    for version, (current, properties, said) in enumerate(
        [(2, {}, None), (2, {"cdc.mark": mark}, mark), (3, {"cdc.mark": mark}, mark), (1, {"cdc.mark": mark}, None)],
        start=1,
    ):
        found = {"properties": properties, "current-snapshot-id": current, "snapshots": snapshots}
        (tmp_path / f"v{version}.metadata.json").write_text(json.dumps(found))
        (tmp_path / "version-hint.text").write_text(str(max(1, version - 1)))  # may lag
        assert mark_in_folder(tmp_path) == said
