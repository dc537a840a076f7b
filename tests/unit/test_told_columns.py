"""Columns of the log beside those of the catalog, over tables that are altered at random."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from connectors.postgres.reliance.told_columns import are_of

Columns = dict[int, tuple[str, str]]


class _Altered:
    """A table whose columns are added and dropped; names are few, so that one comes back as another column's."""

    def __init__(self, of: random.Random) -> None:
        self._of = of
        self.columns: Columns = {1: ("a", "int"), 2: ("b", "int"), 3: ("c", "text")}
        self._last = 3

    def alter(self) -> None:
        free = sorted(set("abcdef") - {name for name, _ in self.columns.values()})
        if free and self._of.random() < 0.5:
            self._last += 1
            self.columns[self._last] = self._of.choice(free), self._of.choice(["int", "text"])
        elif len(self.columns) > 1:
            del self.columns[self._of.choice(sorted(self.columns))]

    def told(self) -> list[tuple[str, str]]:
        return [self.columns[number] for number in sorted(self.columns)]


@given(seed=st.integers(0, 2**32), before=st.integers(0, 4), between=st.integers(0, 4), after=st.integers(0, 4))
def test_columns_that_come_and_go_explain_what_was_told(seed: int, before: int, between: int, after: int) -> None:
    table = _Altered(random.Random(seed))
    for _ in range(before):
        table.alter()
    then = set(table.columns)
    for _ in range(between):
        table.alter()
    told = table.told()
    for _ in range(after):
        table.alter()
    assert are_of(told, then, table.columns)


@given(seed=st.integers(0, 2**32), added=st.integers(0, 3))
def test_names_that_were_others_for_a_time_do_not(seed: int, added: int) -> None:
    """Whether columns were added before or after that; where some were dropped, it is not always to be told."""
    of = random.Random(seed)
    now: Columns = {number: (name, "int") for number, name in enumerate("abc", 1)}
    then = set(now)
    for name in "def"[:added]:
        now[len(now) + 1] = name, "int"
    there = of.randint(3, len(now))
    names = [now[number] for number in range(1, there + 1)]
    told = of.sample(names, there)
    assert are_of(told, then, now) == (told == names)
    told[of.randrange(there)] = "z", "int"
    assert not are_of(told, then, now)
    assert not are_of([(name, "text") for name, _ in names], then, now)
