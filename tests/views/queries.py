"""Random views of the grammar, over the tables of `tests.views.shapes`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st


@dataclass(frozen=True)
class Query:
    """A SELECT with its integer columns, its key, and its columns that are timestamps or texts."""

    sql: str
    numbers: tuple[str, ...]
    key: tuple[str, ...]
    times: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()


@dataclass
class From:
    """FROM, with the columns that it has, by source; of the first source, those that a unit may be made of."""

    text: str
    numbers: list[str]
    keys: list[str]
    times: list[str]
    texts: list[str]


TABLES = (
    Query("public.a", ("id", "k", "n"), ("id",), ("at",), ("g",)),
    Query("public.b", ("id", "k", "z"), ("id",), ("at",)),
    Query("public.c", ("x", "y"), ("x", "y"), (), ("g",)),
)
AGGREGATES = (
    "count(*)", "count({})", "sum({})", "min({})", "max({})", "count(DISTINCT {})", "count_if({} > 1)",
    "sum(DISTINCT {})", "count(*) FILTER (WHERE {} > 1)", "max({0}) FILTER (WHERE {0} < 2)",
    "locate('2', listagg(CAST({0} AS STRING), ',') WITHIN GROUP (ORDER BY {0} DESC))",
    "max_by({0}, -{0})",
)  # fmt: skip
WINDOWS = (
    "row_number() OVER (PARTITION BY {unit} ORDER BY {order})",
    "rank() OVER (PARTITION BY {unit} ORDER BY {value})",
    "dense_rank() OVER (PARTITION BY {unit} ORDER BY {value} DESC)",
    "sum({value}) OVER (PARTITION BY {unit} ORDER BY {order} ROWS BETWEEN 1 PRECEDING AND CURRENT ROW)",
    "count({value}) OVER (PARTITION BY {unit} ORDER BY {value} RANGE BETWEEN 1 PRECEDING AND 1 FOLLOWING)",
    "max({value}) OVER (PARTITION BY {unit})",
    "lag({value}) OVER (PARTITION BY {unit} ORDER BY {order})",
    "lead({value}, 2, 7) OVER (PARTITION BY {unit} ORDER BY {order})",
    "first_value({value}) OVER (PARTITION BY {unit} ORDER BY {order})",
)


@st.composite
def queries(draw: Any, depth: int = 2) -> Query:
    """A SELECT whose key is of its output columns."""
    if depth and draw(st.integers(0, 5)) == 0:
        return draw(unions(depth))
    of = draw(from_clauses(depth))
    where = draw(st.lists(conditions(of), max_size=2))
    number = st.sampled_from(of.numbers)
    if draw(st.integers(0, 4)) == 0:
        where.append(f"{draw(number)} IN (SELECT {draw(st.sampled_from(['k', 'z']))} FROM public.b)")
    if draw(st.integers(0, 6)) == 0:
        more = draw(st.sampled_from(["", " AND e.z > 1", f" AND e.z < {draw(number)}"]))
        word = draw(st.sampled_from(["EXISTS", "NOT EXISTS"]))
        where.append(f"{word} (SELECT 1 FROM public.b e WHERE e.k = {draw(number)}{more})")
    tail = f" FROM {of.text}" + (f" WHERE {' AND '.join(where)}" if where else "")
    kind = draw(st.sampled_from(["plain", "plain", "group", "group", "distinct", "window", "whole"]))
    if kind == "plain":
        return draw(plain(of, tail))
    if kind == "window":
        return draw(windows(of, tail))
    aggregates = [draw(st.sampled_from(AGGREGATES)).format(draw(number)) for _ in range(draw(st.integers(1, 2)))]
    if kind == "whole":
        having = draw(st.sampled_from(["", "", f" HAVING {aggregates[0]} > 1"]))
        names = tuple(f"q{i}" for i in range(len(aggregates)))
        return Query(f"SELECT {_named(aggregates, names)}{tail}{having}", names, names)
    if of.times and draw(st.integers(0, 3)) == 0:
        aggregates = [f"count_if({draw(clocks(of.times))})"]
    group = draw(st.lists(groups(of), min_size=1, max_size=2, unique=True))
    if of.times and draw(st.integers(0, 2)) == 0:
        group.append(f"CASE WHEN {draw(clocks(of.times))} THEN 1 ELSE 0 END")
    texts = [text for text in of.texts if draw(st.integers(0, 3)) == 0][:1]
    parts = [*group, *texts]
    names = tuple(f"q{i}" for i in range(len(parts)))
    kinds = {"texts": names[len(group) :]}
    if kind == "distinct":
        return Query(f"SELECT DISTINCT {_named(parts, names)}{tail}", names[: len(group)], names, **kinds)
    values_ = [*parts, *aggregates]
    every = tuple(f"q{i}" for i in range(len(values_)))
    form = "{0} > {1}" if draw(st.booleans()) else "({0} > {1} OR count(*) = 1)"
    having = f" HAVING {form.format(aggregates[0], draw(st.integers(0, 2)))}" if draw(st.booleans()) else ""
    ranked = (
        f", rank() OVER (PARTITION BY {parts[0]} ORDER BY {aggregates[0]}) AS r" if draw(st.integers(0, 4)) == 0 else ""
    )
    by = draw(st.sampled_from([", ".join(parts), ", ".join(str(i + 1) for i in range(len(parts)))]))
    numbers = (*every[: len(group)], *every[len(parts) :], *(["r"] if ranked else []))
    return Query(f"SELECT {_named(values_, every)}{ranked}{tail} GROUP BY {by}{having}", numbers, names, **kinds)


@st.composite
def plain(draw: Any, of: From, tail: str) -> Query:
    outputs = {f"q{i}": name for i, name in enumerate(of.keys)}
    outputs["v"] = draw(values(of))
    outputs |= {f"t{i}": name for i, name in enumerate(of.times[:1])}
    outputs |= {f"g{i}": name for i, name in enumerate(of.texts[:1])}
    sql = f"SELECT {_named(outputs.values(), outputs)}{tail}"
    numbers = tuple(name for name in outputs if name[0] in "qv")
    times = tuple(name for name in outputs if name[0] == "t")
    texts = tuple(name for name in outputs if name[0] == "g")
    return Query(sql, numbers, tuple(outputs)[: len(of.keys)], times, texts)


@st.composite
def windows(draw: Any, of: From, tail: str) -> Query:
    unit = draw(groups(of))
    parts = {
        "unit": draw(st.sampled_from([unit, f"{unit}, {of.numbers[-1]}"])),
        "value": draw(st.sampled_from(of.numbers)),
        "order": ", ".join([f"{draw(st.sampled_from(of.numbers))} DESC", *of.keys]),
    }
    names = tuple(f"q{i}" for i in range(len(of.keys) + 1))
    functions = draw(st.lists(st.sampled_from(WINDOWS), min_size=1, max_size=2))
    more = {f"w{i}": each.format(**parts) for i, each in enumerate(functions)}
    sql = f"SELECT {_named([unit, *of.keys], names)}, {_named(more.values(), more)}{tail}"
    if draw(st.booleans()):
        return Query(sql, (*names, *more), names)
    kept = f"SELECT {', '.join(names)}, w0 AS v FROM ({sql}) w WHERE w0 <= {draw(st.integers(1, 2))}"
    return Query(kept, (*names, "v"), names)


@st.composite
def unions(draw: Any, depth: int) -> Query:
    way = draw(st.sampled_from(["UNION ALL", "UNION ALL", "UNION", "UNION", "EXCEPT", "INTERSECT"]))
    apart = 2 if way.startswith("UNION") else 1
    branches = []
    for number in range(draw(st.integers(2, 3))):
        inner = draw(queries(depth - 1))
        value = draw(st.sampled_from(inner.numbers))
        key = draw(st.sampled_from(inner.numbers))
        text = draw(st.sampled_from([*(f"t.{each}" for each in inner.texts), "'x'"]))
        branches.append(
            f"SELECT {number % apart} AS branch, t.{key} AS q0, t.{value} AS q1, {text} AS g FROM ({inner.sql}) t"
        )
    joined = f" {way} ".join(branches)
    key = ("branch", "q0", "q1", "g")
    return Query(f"SELECT branch, q0, q1, g FROM ({joined}) u", key[:3], key, (), ("g",))


@st.composite
def from_clauses(draw: Any, depth: int) -> From:
    """FROM, with its integer columns, its key and its timestamps, by source."""
    of = From("", [], [], [], [])
    for place in range(draw(st.integers(1, 3))):
        inner = draw(queries(depth - 1)) if depth and draw(st.integers(0, 2)) == 0 else draw(st.sampled_from(TABLES))
        alias = f"s{place}"
        table = inner.sql if inner in TABLES else f"({inner.sql})"
        own = From(
            "", *([f"{alias}.{name}" for name in part] for part in (inner.numbers, inner.key, inner.times, inner.texts))
        )
        if depth and draw(st.integers(0, 4)) == 0:  # a value that is there though no row matches
            table = f"(SELECT *, {draw(values(inner))} AS made FROM {table} {alias}_)"
            own.numbers.append(f"{alias}.made")
        if not place:
            of.text = f"{table} {alias}"
            visible = True
        else:
            joins = ["JOIN", "JOIN", "LEFT JOIN", "LEFT JOIN", "LEFT SEMI JOIN", "LEFT ANTI JOIN"]
            join = draw(st.sampled_from([*joins, "RIGHT JOIN"] if place == 1 else joins))
            same = draw(st.sampled_from(["=", "=", "<=>"]))
            other = draw(sides(of))
            equal = f"{draw(st.sampled_from(own.numbers))} {same} {other}"
            both = own if draw(st.booleans()) else From("", own.numbers + of.numbers, [], [*own.times, *of.times], [])
            more = draw(st.lists(conditions(both), max_size=1))
            of.text += f" {join} {table} {alias} ON {' AND '.join([equal, *more])}"
            visible = "SEMI" not in join and "ANTI" not in join
        if visible:
            of.numbers += own.numbers
            of.keys += own.keys
            of.times += own.times
            of.texts += own.texts
    return of


def _named(values_: Any, names: Any) -> str:
    return ", ".join(f"{value} AS {name}" for value, name in zip(values_, names, strict=True))


def groups(of: From) -> st.SearchStrategy[str]:
    number = st.sampled_from(of.numbers)
    return st.one_of(
        number, number, st.builds("{} % 2".format, number), st.builds("coalesce({}, {})".format, number, number)
    )


def sides(of: From) -> st.SearchStrategy[str]:
    """What a joined table's column can be equal to."""
    number = st.sampled_from(of.numbers)
    forms = [st.builds(each.format, number, number) for each in ("{} + {}", "coalesce({}, {})")]
    return st.one_of(number, number, number, *forms)


def conditions(of: From) -> st.SearchStrategy[str]:
    number = st.sampled_from(of.numbers)
    forms = [
        st.builds(
            "{} {} {}".format,
            number,
            st.sampled_from(["<", ">", "=", "<>", "<=>"]),
            st.one_of(number, st.integers(0, 3)),
        ),
        st.builds("{} IS {}NULL".format, number, st.sampled_from(["", "NOT "])),
        st.builds("({} > {} OR {} IS NULL)".format, number, st.integers(0, 2), number),
        st.builds("NOT ({} = {} AND {} > 1)".format, number, number, number),
        st.builds("{} + {} > {}".format, number, number, st.integers(0, 3)),  # it can fail: asked behind the others
    ]
    if of.times:
        forms.append(clocks(of.times))
    if of.texts:
        text = st.sampled_from(of.texts)
        forms.append(
            st.builds("{} {} {}".format, text, st.sampled_from(["=", "<>", "<"]), st.sampled_from(["'y'", *of.texts]))
        )
    return st.one_of(*forms)


def clocks(times: list[str]) -> st.SearchStrategy[str]:
    moved = st.builds("{} + INTERVAL {} MINUTES".format, st.sampled_from(times), st.integers(0, 2))
    return st.builds("{} {} clock()".format, moved, st.sampled_from(["<", "<=", ">", ">="]))


def values(of: Any) -> st.SearchStrategy[str]:
    number = st.sampled_from(of.numbers)
    forms = [
        number,
        st.builds("{} + {}".format, number, number),
        st.builds("coalesce({}, {})".format, number, st.one_of(number, st.just("9"))),
        st.builds("CASE WHEN {} IS NULL THEN 5 ELSE {} END".format, number, number),
        st.just("1"),
    ]
    if of.times and isinstance(of, From):
        forms.append(st.builds("CASE WHEN {} THEN {} ELSE 0 END".format, clocks(of.times), number))
    return st.one_of(*forms)
