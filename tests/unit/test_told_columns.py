"""Columns of the log beside those of the catalog, over tables that are altered at random."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from connectors.postgres.reliance.ledger import Facts, keeps_hidden, record, tells
from connectors.postgres.reliance.told_columns import are_of

Columns = dict[int, tuple[str, str]]

_TABLE = Facts(oid=7, paths=("5:5",), changed="3", made="1", columns={}, parts=(), types={})


class _Altered:
    """A table whose columns are added and dropped; names are few, so that one comes back as another column's."""

    def __init__(self, of: random.Random) -> None:
        self._of = of
        self.columns: Columns = {1: ("a", "int"), 2: ("b", "int"), 3: ("c", "text")}
        self._last = 3
        self.entry = record(replace(_TABLE, columns=self.columns))

    def look(self) -> None:
        self.entry = record(replace(_TABLE, columns=self.columns), self.entry)

    def alter(self) -> None:
        free = sorted(set("abcdefgh") - {name for name, _ in self.columns.values()})
        if free and self._of.random() < 0.5:
            self._last += 1
            self.columns[self._last] = self._of.choice(free), self._of.choice(["int", "text"])
        elif len(self.columns) > 1:
            self.look()  # of a column that came and went between two looks nothing is known
            del self.columns[self._of.choice(sorted(self.columns))]
        if self._of.random() < 0.3:
            self.look()

    def told(self) -> list[tuple[str, str]]:
        return [self.columns[number] for number in sorted(self.columns)]


@given(seed=st.integers(0, 2**32), before=st.integers(0, 4), after=st.integers(0, 5))
def test_columns_that_come_and_go_explain_what_was_told(seed: int, before: int, after: int) -> None:
    """However far the log is behind the looks at the catalog: nothing is read again for ALTERs of every day."""
    table = _Altered(random.Random(seed))
    for _ in range(before):
        table.alter()
    told, numbers = table.told(), {name: number for number, (name, _) in table.columns.items()}
    made_again = False
    for _ in range(after):
        table.alter()
        made_again |= any(numbers.get(name, number) != number for number, (name, _) in table.columns.items())
    facts = replace(_TABLE, columns=table.columns)
    assert tells(table.entry, facts, told) or made_again, "that is read again anyway"
    for name, _ in table.columns.values():
        assert keeps_hidden(table.entry, facts, [name for name, _ in told], {name}) or made_again


@given(seed=st.integers(0, 2**32), added=st.integers(0, 3))
def test_names_that_were_others_for_a_time_do_not(seed: int, added: int) -> None:
    """Whether columns were added before or after that."""
    of = random.Random(seed)
    now: Columns = {number: (name, "int") for number, name in enumerate("abc", 1)}
    for name in "def"[:added]:
        now[len(now) + 1] = name, "int"
    there = of.randint(3, len(now))
    names = [now[number] for number in range(1, there + 1)]
    told = of.sample(names, there)
    assert are_of(told, {}, now) == (told == names)
    told[of.randrange(there)] = "z", "int"
    assert not are_of(told, {}, now)
    assert not are_of([(name, "text") for name, _ in names], {}, now)


@given(seed=st.integers(0, 2**32), added=st.integers(0, 3))
def test_what_a_rule_hides_under_the_name_of_another(seed: int, added: int) -> None:
    """It is noticed wherever the column stood, also before columns that were added since; others are free."""
    of = random.Random(seed)
    now: Columns = {number: (name, "int") for number, name in enumerate("abc", 1)}
    facts, told = replace(_TABLE, columns=now), of.sample("abc", 3)
    entry = record(facts)
    for name in "def"[:added]:
        now[len(now) + 1] = name, "int"
    for hidden in "abc":
        kept = told.index(hidden) == "abc".index(hidden)
        assert keeps_hidden(entry, facts, told, {hidden}) == kept
    assert keeps_hidden(entry, facts, told, {*"abc"})


def test_names_that_were_others_where_a_column_was_dropped_long_ago() -> None:
    """What no look of this connector has seen there explains nothing."""
    now: Columns = {1: ("id", "int"), 3: ("v", "int"), 4: ("n", "int")}
    swapped = [("id", "int"), ("n", "int"), ("v", "int")]
    assert not tells(record(replace(_TABLE, columns=now)), replace(_TABLE, columns=now), swapped)
    assert are_of([("id", "int"), ("x", "int"), ("v", "int")], {2: "x"}, now)


def test_a_column_that_was_dropped_explains_no_other_name() -> None:
    """Nor does one whose type was dropped; what was there at no look may have had any name."""
    now: Columns = {1: ("id", "int"), 3: ("v", "int"), 4: ("n", "int")}
    table = replace(_TABLE, columns={**now, 2: ("x", "int")})
    entry = record(replace(_TABLE, columns=now), record(table))
    swapped = [("id", "int"), ("n", "int"), ("v", "int")]
    assert not tells(entry, replace(_TABLE, columns=now), swapped)
    assert not tells(record(table), replace(_TABLE, columns=now), swapped)
    assert not tells(entry, replace(_TABLE, columns=now), [("id", "int"), ("n", None), ("v", "int")])
    assert tells(entry, replace(_TABLE, columns=now), [("id", "int"), ("x", None), ("v", None), ("n", "int")])
    assert are_of(swapped, {2: None}, now)
