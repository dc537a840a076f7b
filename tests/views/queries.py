"""Random views of the grammar, over the tables of `tests.views.shapes`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st


@dataclass(frozen=True)
class Query:
    """A SELECT with its integer columns, its key, and whether it has timestamps called `at`."""

    sql: str
    numbers: tuple[str, ...]
    key: tuple[str, ...]
    timed: bool = False


TABLES = (
    Query("public.a", ("id", "k", "n"), ("id",), timed=True),
    Query("public.b", ("id", "k", "z"), ("id",), timed=True),
    Query("public.c", ("x", "y"), ("x", "y")),
)
AGGREGATES = ("count(*)", "count({})", "sum({})", "min({})", "max({})", "count(DISTINCT {})", "count_if({} > 1)")


@st.composite
def queries(draw: Any, depth: int = 2) -> Query:
    """A SELECT whose key is of its output columns."""
    if depth and draw(st.integers(0, 5)) == 0:
        return draw(unions(depth))
    froms, numbers, keys, times = draw(from_clauses(depth))
    where = draw(st.lists(conditions(numbers, times), max_size=2))
    if draw(st.integers(0, 4)) == 0:
        where.append(f"{draw(st.sampled_from(numbers))} IN (SELECT {draw(st.sampled_from(['k', 'z']))} FROM public.b)")
    tail = f" FROM {froms}" + (f" WHERE {' AND '.join(where)}" if where else "")
    kind = draw(st.sampled_from(["plain", "plain", "group", "group", "distinct", "window"]))
    if kind == "plain":
        outputs = {f"q{i}": name for i, name in enumerate(keys)}
        outputs["v"] = draw(values(numbers, times))
        named = ", ".join(f"{value} AS {name}" for name, value in outputs.items())
        return Query(f"SELECT {named}{tail}", tuple(outputs), tuple(outputs)[: len(keys)])
    if kind == "window":
        unit = draw(st.sampled_from(numbers))
        order = ", ".join([f"{draw(st.sampled_from(numbers))} DESC", *keys])
        function = draw(st.sampled_from(["row_number()", "rank()", "sum({})", "lag({})"])).format(unit)
        named = ", ".join(f"{value} AS q{i}" for i, value in enumerate([unit, *keys]))
        window = f"{function} OVER (PARTITION BY {unit} ORDER BY {order})"
        names = tuple(f"q{i}" for i in range(len(keys) + 1))
        return Query(f"SELECT {named}, {window} AS w{tail}", (*names, "w"), names)
    if times and draw(st.integers(0, 3)) == 0:
        aggregate = f"count_if({draw(clocks(times))})"
        return Query(f"SELECT {numbers[0]} AS q0, {aggregate} AS q1{tail} GROUP BY 1", ("q0", "q1"), ("q0",))
    group = draw(st.lists(st.sampled_from(numbers), min_size=1, max_size=2, unique=True))
    if times and draw(st.integers(0, 2)) == 0:
        group.append(f"CASE WHEN {draw(clocks(times))} THEN 1 ELSE 0 END")
    names = tuple(f"q{i}" for i in range(len(group)))
    if kind == "distinct":
        named = ", ".join(f"{value} AS {name}" for value, name in zip(group, names, strict=True))
        return Query(f"SELECT DISTINCT {named}{tail}", names, names)
    aggregates = draw(st.lists(st.sampled_from(AGGREGATES), min_size=1, max_size=2))
    made = [each.format(draw(st.sampled_from(numbers))) for each in aggregates]
    values_ = [*group, *made]
    every = tuple(f"q{i}" for i in range(len(values_)))
    named = ", ".join(f"{value} AS {name}" for value, name in zip(values_, every, strict=True))
    having = f" HAVING {made[0]} > {draw(st.integers(0, 2))}" if draw(st.booleans()) else ""
    return Query(f"SELECT {named}{tail} GROUP BY {', '.join(group)}{having}", every, names)


@st.composite
def unions(draw: Any, depth: int) -> Query:
    branches = []
    for number in range(2):
        inner = draw(queries(depth - 1))
        value = draw(st.sampled_from(inner.numbers))
        key = inner.key[0]
        branches.append(f"SELECT {number} AS branch, t.{key} AS q0, t.{value} AS q1 FROM ({inner.sql}) t")
    distinct = draw(st.booleans())
    joined = f" UNION {'' if distinct else 'ALL '}".join(branches)
    return Query(f"SELECT branch, q0, q1 FROM ({joined}) u", ("q0", "q1", "branch"), ("branch", "q0", "q1"))


@st.composite
def from_clauses(draw: Any, depth: int) -> tuple[str, list[str], list[str], list[str]]:
    """FROM, with its integer columns, its key and its timestamps, by source."""
    text, numbers, keys, times = "", [], [], []
    for place in range(draw(st.integers(1, 3))):
        inner = draw(queries(depth - 1)) if depth and draw(st.integers(0, 2)) == 0 else draw(st.sampled_from(TABLES))
        alias = f"s{place}"
        table = inner.sql if inner in TABLES else f"({inner.sql})"
        own = [f"{alias}.{name}" for name in inner.numbers]
        if not place:
            text = f"{table} {alias}"
            visible = True
        else:
            join = draw(st.sampled_from(["JOIN", "JOIN", "LEFT JOIN", "LEFT JOIN", "LEFT SEMI JOIN", "LEFT ANTI JOIN"]))
            same = draw(st.sampled_from(["=", "=", "<=>"]))
            equal = f"{draw(st.sampled_from(own))} {same} {draw(st.sampled_from(numbers))}"
            more = draw(st.lists(conditions(own, []), max_size=1))
            text += f" {join} {table} {alias} ON {' AND '.join([equal, *more])}"
            visible = "SEMI" not in join and "ANTI" not in join
        if visible:
            numbers += own
            keys += [f"{alias}.{name}" for name in inner.key]
            times += [f"{alias}.at"] if inner.timed else []
    return text, numbers, keys, times


def conditions(numbers: list[str], times: list[str]) -> st.SearchStrategy[str]:
    number = st.sampled_from(numbers)
    forms = [
        st.builds(
            "{} {} {}".format,
            number,
            st.sampled_from(["<", ">", "=", "<>", "<=>"]),
            st.one_of(number, st.integers(0, 3)),
        ),
        st.builds("{} IS {}NULL".format, number, st.sampled_from(["", "NOT "])),
        st.builds("({} > {} OR {} IS NULL)".format, number, st.integers(0, 2), number),
        st.builds("{} + {} > {}".format, number, number, st.integers(0, 3)),  # it can fail: asked behind the others
    ]
    if times:
        forms.append(clocks(times))
    return st.one_of(*forms)


def clocks(times: list[str]) -> st.SearchStrategy[str]:
    moved = st.builds("{} + INTERVAL {} MINUTES".format, st.sampled_from(times), st.integers(0, 2))
    return st.builds("{} {} clock()".format, moved, st.sampled_from(["<", "<=", ">", ">="]))


def values(numbers: list[str], times: list[str]) -> st.SearchStrategy[str]:
    number = st.sampled_from(numbers)
    forms = [number, st.builds("{} + {}".format, number, number), st.builds("coalesce({}, {})".format, number, number)]
    if times:
        forms.append(st.builds("CASE WHEN {} THEN {} ELSE 0 END".format, clocks(times), number))
    return st.one_of(*forms)
