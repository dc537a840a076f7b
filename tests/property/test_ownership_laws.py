"""Two runs write one copy in random order, and are killed. tests/unit/test_ownership.py names the known orders."""

from __future__ import annotations

import random

from spark_apply.model.altered import AlteredError
from spark_apply.model.completeness import Mark
from spark_apply.model.ownership import Ownership

TABLE, COPY = "public.orders", "a copy"
EVENTS = (("a", True), ("b", True), ("a", False), ("b", False))
"""By offset, a key and whether the event leaves a row of it."""


def fold(rows: dict[str, int], start: int, end: int) -> dict[str, int]:
    """Apply events by the guard of positions, which forgets rows that are deleted."""
    rows = dict(rows)
    for offset, (key, there) in enumerate(EVENTS[start:end], start):
        if rows.get(key, -1) < offset:
            rows.pop(key, None)
            rows |= {key: offset} if there else {}
    return rows


class Run:
    def __init__(self, at: int) -> None:
        self.at = at
        self.marks = Ownership()
        self.aside = False


class Runs:
    def __init__(self) -> None:
        self.rows = dict[str, int]()
        self.mark = Mark({0: 0}, None)
        self.runs = dict[int, Run]()
        self.last: Run | None = None

    def _may_raise(self, run: Run, last: Run | None) -> None:
        assert last is not run, "a run is set aside by its own mark"
        run.aside = True

    def _set_mark(self, run: Run, *, answered: bool = True) -> None:
        there, last = self.mark, self.last
        made = run.marks.wanted(TABLE, there, Mark({0: run.at}, None))
        if made is not None:
            self.mark, self.last = Mark.from_json(made.to_json()), run
        if answered:
            try:
                run.marks.wrote(TABLE, there, made, COPY)
            except AlteredError:
                self._may_raise(run, last)

    def begins(self, number: int, back: int) -> None:
        """Also in the place of one that was killed; from its own position, which is not behind the mark."""
        run = self.runs[number] = Run(max(self.mark.ends[0] - back, 0))
        run.marks.opened(TABLE, self.mark)
        self._set_mark(run)

    def writes_rows(self, number: int, count: int, *, answered: bool) -> None:
        run = self.runs.get(number)
        if run is None or run.aside:
            return
        try:
            run.marks.writes(TABLE, self.mark, COPY)
        except AlteredError:
            self._may_raise(run, self.last)
            return
        end = min(run.at + count, len(EVENTS))
        self.rows = fold(self.rows, run.at, end)
        run.at = end if answered else run.at

    def writes_its_mark(self, number: int, *, answered: bool) -> None:
        run = self.runs.get(number)
        if run is not None and not run.aside:
            self._set_mark(run, answered=answered)

    def opens_the_copy_again(self, number: int) -> None:
        """One that was set aside goes on from the mark; another one, as for a new version, from what it has itself."""
        run = self.runs.get(number)
        if run is None:
            return
        run.marks.opened(TABLE, self.mark)
        if run.aside:
            run.at, run.aside = self.mark.ends[0], False
            self._set_mark(run)

    def is_killed(self, number: int) -> None:
        self.runs.pop(number, None)

    def what_goes_on_from_the_mark_has_all(self) -> None:
        end = len(EVENTS)
        assert fold(self.rows, self.mark.ends[0], end) == fold({}, 0, end)


def test_of_runs_in_random_order_what_goes_on_from_the_mark_has_all() -> None:
    for seed in range(3_000):
        rng, runs = random.Random(seed), Runs()
        for _ in range(30):
            number, answered = rng.randrange(2), rng.random() < 0.8
            step = rng.choice(("begins", "rows", "rows", "rows", "mark", "mark", "opens", "killed"))
            if number not in runs.runs:
                runs.begins(number, rng.choice((0, 0, 1, len(EVENTS))))
            elif step == "rows":
                runs.writes_rows(number, rng.randint(1, 3), answered=answered)
            elif step == "mark":
                runs.writes_its_mark(number, answered=answered)
            elif step == "opens":
                runs.opens_the_copy_again(number)
            elif step == "killed":
                runs.is_killed(number)
            runs.what_goes_on_from_the_mark_has_all()
