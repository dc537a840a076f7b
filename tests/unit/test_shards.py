"""Which tests a push runs, and which worker runs them.

Shards go to the workers that have their servers already, and no worker is left with a long one at the end.
"""

from __future__ import annotations

import heapq
import json
from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.pushes import (
    IN_TURNS,
    SAMPLE_S,
    SHORT_S,
    TURNS,
    is_of_another_turn,
    number_of_the_commit,
    sample_of,
    samples,
)
from tests.shards import Recorder, known_durations, next_of

ROOT = Path(__file__).parent.parent.parent
SECONDS = {"spark 1": 250.0, "spark 2": 240.0, "postgres 1": 230.0, "spark 3": 220.0, "alone.py 1": 90.0}


def played(seconds: Mapping[str, float], workers: int) -> tuple[list[list[str]], list[float]]:
    """What each worker of a run is given, in order, and when it has done with it."""
    waiting = sorted(seconds, key=lambda name: -seconds[name])
    had: list[list[str]] = [[] for _ in range(workers)]
    free = [(0.0, worker) for worker in range(workers)]
    while waiting:
        now, worker = heapq.heappop(free)
        others = [theirs for other, theirs in enumerate(had) if other != worker]
        chosen = next_of(waiting, seconds, had[worker], others)
        waiting.remove(chosen)
        had[worker].append(chosen)
        heapq.heappush(free, (now + seconds[chosen], worker))
    return had, [at for at, _ in free]


def test_a_worker_goes_on_with_what_needs_its_servers() -> None:
    assert next_of(SECONDS, SECONDS, ["postgres 2"], [["spark 4"]]) == "postgres 1"
    assert next_of(SECONDS, SECONDS, ["spark 4"], []) == "spark 1"
    left = ["spark 3", "alone.py 1"]
    assert next_of(left, SECONDS, ["alone.py 2", "postgres 2"], [["spark 4"], ["spark 5"]]) == "alone.py 1"


def test_one_that_has_none_begins_where_most_is_left_for_each() -> None:
    assert next_of(SECONDS, SECONDS, [], []) == "spark 1"
    assert next_of(SECONDS, SECONDS, [], [["spark 4"]]) == "spark 1"
    assert next_of(SECONDS, SECONDS, [], [["spark 4"], ["spark 5"], ["spark 6"]]) == "postgres 1"


def test_what_is_half_of_all_is_shared_by_half_of_the_workers() -> None:
    """Of three, two start a JVM of Spark, and they are done at the same time."""
    seconds = {f"spark {n}": 230.0 + n for n in range(20)} | {f"postgres {n}": 200.0 + n for n in range(13)}
    seconds |= {f"mysql {n}": 210.0 + n for n in range(4)} | {f"{n}.py 1": 5.0 * n for n in range(30)}
    had, ends = played(seconds, 3)
    kinds = Counter(kind for mine in had for kind in {name.rpartition(" ")[0] for name in mine})
    assert kinds["spark"] == 2
    assert max(ends) - min(ends) < 30


@given(
    st.dictionaries(
        st.tuples(st.sampled_from("abcdef"), st.integers(0, 9)).map(lambda of: f"{of[0]} {of[1]}"),
        st.floats(1, 300),
        min_size=1,
    ),
    st.integers(1, 4),
)
def test_each_shard_is_given_once_the_longest_of_its_kind_first(seconds: Mapping[str, float], workers: int) -> None:
    """And none is left with more than a whole shard while others have nothing."""
    had, ends = played(seconds, workers)
    assert Counter(name for mine in had for name in mine) == Counter(seconds.keys())
    assert max(ends) - min(ends) <= max(seconds.values()) or any(not mine for mine in had)
    for mine in had:
        for one, other in pairwise(mine):
            if one.split()[0] == other.split()[0]:
                assert seconds[one] >= seconds[other]


def test_each_test_has_one_turn_and_no_turn_has_much_more_than_another() -> None:
    names = [f"{file}::test_{number}[{server}]" for file in IN_TURNS for number in range(10) for server in ("a", "b")]
    turns = {name: [turn for turn in range(TURNS) if not is_of_another_turn(name, turn)] for name in names}
    assert {len(mine) for mine in turns.values()} == {1}
    sizes = Counter(mine[0] for mine in turns.values())
    assert max(sizes.values()) < 1.2 * min(sizes.values())
    assert not any(is_of_another_turn("tests/stores/test_kills.py::test_any", turn) for turn in range(TURNS))


def test_files_with_turns_are_there_and_the_commit_says_which_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [file for file in sorted(IN_TURNS) if not (ROOT / file).is_file()] == []
    assert number_of_the_commit() == number_of_the_commit()
    monkeypatch.setenv("CDC_TEST_TURN", "17")
    assert number_of_the_commit() == 17


@given(st.dictionaries(st.integers(0, 999).map("tests/test_a.py::test_{}".format), st.floats(0.1, 60), max_size=300))
def test_each_short_full_test_is_run_by_some_push_none_twice_and_no_push_takes_long(took: Mapping[str, float]) -> None:
    durations = {**took, "tests/test_a.py": 240.0, "tests/test_a.py::test_any[mariadb11]": 1.0}
    made = samples(durations)
    short = {name for name, seconds in took.items() if seconds <= SHORT_S}
    assert Counter(name for sample in made for name in sample) == Counter(short)
    assert all(sum(took[name] for name in sample) <= SAMPLE_S for sample in made)
    assert [sample_of(number, durations) for number in range(len(made))] == [frozenset(sample) for sample in made]


def test_full_tests_of_which_it_is_known_how_long_they_take_are_there() -> None:
    """One that was renamed would never be run by a push again."""
    named = {name.partition("[")[0] for name in known_durations() if "::" in name}
    assert named
    gone = [name for name in sorted(named) if not _is_there(*name.split("::"))]
    assert gone == []


def _is_there(file: str, function: str) -> bool:
    return (ROOT / file).is_file() and f"def {function}(" in (ROOT / file).read_text()


def test_pushes_write_what_files_took_and_full_runs_what_full_tests_did(tmp_path: Path) -> None:
    path = tmp_path / "durations.json"
    path.write_text(
        '{"tests/test_old.py": 9.0, "tests/test_a.py::test_full": 7.0, "tests/test_a.py::test_broken": 3.0}'
    )

    def ran(*, full: bool) -> dict[str, float]:
        recorder = Recorder(path, full=full)
        for name, marks, outcome in (
            ("a", {}, "passed"),
            ("full", {"full": 1}, "passed"),
            ("broken", {"full": 1}, "failed"),
        ):
            for when in ("setup", "call"):
                took = pytest.TestReport(
                    f"tests/test_a.py::test_{name}", ("", 0, ""), marks, outcome, None, when, duration=2.0
                )  # type: ignore[arg-type]
                recorder.pytest_runtest_logreport(took)
        recorder.pytest_sessionfinish()
        found: dict[str, float] = json.loads(path.read_text())
        return found

    full = {"tests/test_a.py::test_full": 4.0, "tests/test_a.py::test_broken": 3.0}
    assert ran(full=True) == {"tests/test_old.py": 9.0, **full}
    assert ran(full=False) == {"tests/test_a.py": 4.0, **full}
