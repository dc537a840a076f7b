"""Two runs write the mark of one copy, by turns. No server: tests/stores/test_two_jobs.py has real ones."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spark_apply.model.altered import AlteredError
from spark_apply.model.completeness import Complete, Mark
from spark_apply.model.ownership import Ownership

COMPLETE = Complete("shop", "00000001.0000000000000014.00000000", None, 1)
TABLE, COPY = "public.orders", "a copy"


class Copy:
    """One that keeps its mark as text, as stores do."""

    def __init__(self, mark: Mark) -> None:
        self.text = mark.to_json()

    @property
    def mark(self) -> Mark:
        return Mark.from_json(self.text)

    def opened(self) -> Ownership:
        run = Ownership()
        run.opened(TABLE, self.mark)
        return run

    def writes(self, run: Ownership) -> None:
        run.writes(TABLE, self.mark, COPY)

    def set_mark(self, run: Ownership, mark: Mark) -> None:
        there = self.mark
        made = run.wanted(TABLE, there, mark)
        self.text = made.to_json() if made is not None else self.text
        run.wrote(TABLE, there, made, COPY)


def test_one_run_after_the_other_goes_on() -> None:
    copy = Copy(Mark({0: 5}, COMPLETE))
    for end in (6, 7):
        run = copy.opened()
        for _ in range(2):
            copy.writes(run)
            copy.set_mark(run, Mark({0: end}, COMPLETE))
        assert copy.mark == Mark({0: end}, COMPLETE)


@pytest.mark.parametrize("by", [Copy.writes, lambda copy, run: copy.set_mark(run, Mark({0: 9}, COMPLETE))])
def test_a_run_writes_nothing_over_the_mark_of_another(by: Callable[[Copy, Ownership], None]) -> None:
    """It goes on from that mark, once it has opened the copy again; then it is the other's turn to do so."""
    copy = Copy(Mark({0: 5}, COMPLETE))
    first, second = copy.opened(), copy.opened()
    copy.set_mark(first, Mark({0: 8}, COMPLETE))
    copy.set_mark(again := copy.opened(), Mark({}, None))
    for run in (first, second):
        with pytest.raises(AlteredError, match="a copy is written by another job too"):
            by(copy, run)
        assert copy.mark == Mark({}, None)
    first.opened(TABLE, copy.mark)
    copy.set_mark(first, Mark({0: 9}, COMPLETE))
    with pytest.raises(AlteredError):
        by(copy, again)


def test_rows_that_came_behind_the_mark_of_another_take_it_back() -> None:
    """They may be older than what that mark says, so it goes back to where both were; not if nothing was written."""
    copy = Copy(Mark({0: 5, 1: 5}, COMPLETE))
    first, second = copy.opened(), copy.opened()
    copy.writes(first)
    copy.set_mark(second, Mark({0: 3, 1: 9}, COMPLETE))
    with pytest.raises(AlteredError):
        copy.set_mark(first, Mark({0: 7, 1: 7}, COMPLETE))
    assert copy.mark == Mark({0: 3, 1: 5}, None)
    with pytest.raises(AlteredError):
        copy.set_mark(second, Mark({0: 3, 1: 10}, COMPLETE))
    assert copy.mark == Mark({0: 3, 1: 5}, None)


def test_a_copy_that_is_opened_for_a_new_version_is_not_taken_over_by_that() -> None:
    """The job goes on from what it has itself: it would mark as complete what the other run has brought back."""
    copy = Copy(Mark({0: 5}, COMPLETE))
    first, second = copy.opened(), copy.opened()
    copy.set_mark(first, Mark({0: 8}, COMPLETE))
    copy.set_mark(copy.opened(), Mark({}, None))
    first.opened(TABLE, copy.mark)
    for by in (copy.writes, lambda run: copy.set_mark(run, Mark({0: 9}, COMPLETE))):
        with pytest.raises(AlteredError):
            by(first)
    assert copy.mark == Mark({}, None)
    second.altered(TABLE)
    second.opened(TABLE, copy.mark)
    copy.set_mark(second, copy.mark)
    assert copy.mark == Mark({}, None), "a copy that was put back is gone on from, whichever run has written its mark"


def test_rows_that_may_have_come_before_a_store_was_away_take_the_mark_of_another_back() -> None:
    """The job opens the copy again and finds a mark behind which they may lie, older than what it says."""
    copy = Copy(Mark({0: 5}, COMPLETE))
    first, second = copy.opened(), copy.opened()
    copy.writes(first)  # and nobody answered
    copy.set_mark(second, Mark({0: 9}, COMPLETE))
    first.opened(TABLE, copy.mark)
    with pytest.raises(AlteredError):
        copy.set_mark(first, copy.mark)
    assert copy.mark == Mark({0: 5}, None)
    with pytest.raises(AlteredError):
        copy.set_mark(first, Mark({0: 9}, COMPLETE))
    assert copy.mark == Mark({0: 5}, None), "it is gone on from when the copy was opened again, not before"
    first.opened(TABLE, copy.mark)
    copy.set_mark(first, Mark({0: 9}, COMPLETE))
    assert copy.mark == Mark({0: 9}, COMPLETE)


def test_a_mark_that_was_written_and_not_answered_is_not_of_another_run() -> None:
    """One job alone, whose server had it: it writes the mark again."""
    copy = Copy(Mark({0: 5}, COMPLETE))
    run = copy.opened()
    made = run.wanted(TABLE, copy.mark, Mark({0: 5}, COMPLETE))
    assert made is not None
    copy.text = made.to_json()
    copy.writes(run)
    copy.set_mark(run, Mark({0: 6}, COMPLETE))
    assert copy.mark == Mark({0: 6}, COMPLETE)
