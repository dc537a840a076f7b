"""A small engine for views' plans, as `spark_apply.views.sql.view_plan` asks for one: rows are kept in Python."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any

import duckdb
import sqlglot
from sqlglot import exp

from cdc.model.change import Kind
from spark_apply.views.embedded.sketches import register
from spark_apply.views.embedded.state import without_wrong_optimizers
from spark_apply.views.sql.view_plan import Node, Relation, ViewPlan

Row = tuple[Any, ...]
START = datetime(2026, 1, 1)  # noqa: DTZ001 - in UTC, as clocks are
SCHEMAS = ("before", "after", "both", "changed", "coming", "units")
TYPES = {
    "int64": "BIGINT",
    "string": "VARCHAR",
    "timestamp_micros": "TIMESTAMP",
    "boolean": "BOOLEAN",
    "date": "DATE",
    "float64": "DOUBLE",
}


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


class RefusedError(Exception):
    """A check of a node has given a row."""


class SmallEngine:
    """Keeps the nodes of one view up to date, batch by batch."""

    def __init__(self, plan: ViewPlan, relations: Mapping[str, Relation]) -> None:
        self.plan = plan
        self.relations = relations
        self.rows: dict[str, list[Row]] = {}
        self.changed: dict[str, bool] = {}
        self._filled: dict[str, str] = {}
        """What the engine's tables hold, as text: most of them stay as they are from one step to the next."""
        self.clock = START
        self.duck = duckdb.connect()
        self.duck.execute("SET threads = 1; SET TimeZone = 'UTC'")
        register(self.duck)
        without_wrong_optimizers(self.duck)
        for schema in SCHEMAS:
            self.duck.execute(f"CREATE SCHEMA {quoted(schema)}")
        for name in plan.reads:
            relation = relations[name]
            columns = {column: TYPES[kind.name] for column, kind in relation.columns.items()}
            self._create(name, columns, relation.change_columns)
        for node in plan.nodes:
            described = self.duck.execute(f"DESCRIBE {_without_clock(node.whole)}").fetchall()
            self._create(node.name, {name: kind for name, kind, *_ in described}, node.units or ("_whole",))

    def begin(self) -> None:
        """Begin with empty tables."""
        self.clock = START
        for name in self.plan.reads:
            self._state(name, [], set())
        for node in self.plan.nodes:
            self._state(node.name, self._rows(node.whole), set())

    def _create(self, name: str, columns: Mapping[str, str], change_columns: Sequence[str]) -> None:
        every = ", ".join(f"{quoted(column)} {kind}" for column, kind in columns.items())
        some = ", ".join(f"{quoted(column)} {columns.get(column, 'BOOLEAN')}" for column in change_columns)
        table = quoted(name)
        self.duck.execute(f"CREATE TABLE before.{table} ({every}); CREATE TABLE after.{table} ({every})")
        self.duck.execute(
            f'CREATE VIEW "both".{table} AS SELECT * FROM before.{table} UNION ALL SELECT * FROM after.{table}'
        )
        self.duck.execute(f"CREATE TABLE changed.{table} ({some}); CREATE TABLE units.{table} ({some})")
        same = " AND ".join(f"c.{quoted(each)} IS NOT DISTINCT FROM r.{quoted(each)}" for each in change_columns)
        same = "true" if "_whole" in change_columns else same
        differ = f"SELECT 1 FROM changed.{table} c WHERE {same}"
        self.duck.execute(f"CREATE VIEW coming.{table} AS SELECT * FROM after.{table} r WHERE EXISTS ({differ})")

    def _fill(self, table: str, rows: Sequence[Row]) -> None:
        shown = repr(rows)  # rows that are equal may be others: 0.0 is -0.0
        if shown == self._filled.get(table, "[]"):
            return
        self._filled[table] = shown
        self.duck.execute(f"DELETE FROM {table}")
        if rows:
            marks = ", ".join("(" + ", ".join("?" * len(row)) + ")" for row in rows)
            self.duck.execute(f"INSERT INTO {table} VALUES {marks}", [_listed(value) for row in rows for value in row])

    def _rows(self, statement: str, before: datetime | None = None) -> list[Row]:
        clocks = {"clock_before": before, "clock_after": self.clock}
        given = {name: value for name, value in clocks.items() if f"${name}" in statement}
        found = self.duck.execute(statement, given or None).fetchall()
        return [tuple(map(_hashable, row)) for row in found]

    def step(self, tables: Mapping[str, Sequence[Row]], clock: datetime) -> None:
        """Go to another state of the tables and another clock."""
        before, self.clock = self.clock, clock
        for name in self.plan.reads:
            new = list(tables[name])
            columns = list(self.relations[name].columns)
            key = [columns.index(column) for column in self.relations[name].change_columns]
            differing = _differing(self.rows[name], new)
            self._state(name, new, {tuple(row[i] for i in key) for row in differing})
        for node in self.plan.nodes:
            self._step(node, before)

    def _check(self, node: Node, *, whole: bool) -> None:
        for check in node.checks:
            if self._rows(check.whole if whole else check.restricted):
                raise RefusedError(f"{check.what}. {check.way_out}")

    def _step(self, node: Node, before: datetime) -> None:
        places = _unit_places(node)
        old = self.rows[node.name]
        self._fill(f"before.{quoted(node.name)}", old)
        if node.units:
            union = " UNION ".join(f"SELECT * FROM ({statement})" for statement in (*node.touched, *node.due))
            units = self._rows(union, before)
            self._fill(f"units.{quoted(node.name)}", units)
            self._check(node, whole=False)
            found = self._rows(node.restricted)
            at = set(units)
            assert {tuple(row[i] for i in places) for row in found} <= at, "rows of units that were not asked for"
            new = [row for row in old if tuple(row[i] for i in places) not in at] + found
        elif any(self.changed[name] for name in node.reads) or any(self._rows(each, before) for each in node.due):
            self._check(node, whole=True)
            new = self._rows(node.whole)
        else:
            new = old
        differing = _differing(old, new)
        changed = (
            {tuple(row[i] for i in places) for row in differing} if node.units else {(True,)} if differing else set()
        )
        self._state(node.name, new, changed)

    def _state(self, name: str, new: list[Row], changed: set[Row]) -> None:
        self._fill(f"before.{quoted(name)}", self.rows.get(name, []))
        self._fill(f"after.{quoted(name)}", new)
        self._fill(f"changed.{quoted(name)}", list(changed))
        self.changed[name] = bool(changed)
        self.rows[name] = new

    def view(self) -> Counter[Row]:
        return Counter(self.rows[self.plan.name])

    def next_due(self) -> datetime | None:
        found = [self._rows(statement)[0][0] for node in self.plan.nodes for statement in node.next_due]
        return min((each for each in found if each is not None), default=None)

    def whole(self, node: Node) -> Counter[Row]:
        return Counter(self._rows(node.whole))

    def answer(self, sql: str) -> Counter[Row]:
        """Return what DuckDB makes of the user's SQL as a whole, over the state after the step."""
        return Counter(self._rows(_in_duckdb(sql)))


@cache
def _in_duckdb(sql: str) -> str:
    """Write a user's SQL over the tables of a small engine."""
    tree = sqlglot.parse_one(sql, read="spark")
    for table in list(tree.find_all(exp.Table)):
        if table.db:
            name = exp.to_identifier(f"{table.db}.{table.name}", quoted=True)
            alias = table.alias or table.name
            table.replace(
                exp.Table(this=name, db=exp.to_identifier("after"), alias=exp.TableAlias(this=exp.to_identifier(alias)))
            )
    for call in list(tree.find_all(exp.CountIf)):  # Spark's gives 0 for NULLs alone, DuckDB's NULL
        call.replace(exp.Count(this=exp.case().when(call.this, exp.Literal.number(1))))
    for call in list(tree.find_all(exp.Anonymous)):
        if call.name.casefold() == "clock":
            call.replace(exp.cast(exp.Placeholder(this="clock_after"), "TIMESTAMP_NTZ"))
    return tree.transform(_exact).sql("duckdb")


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


_SKETCHES = {
    "hll_sketch_agg": "list(DISTINCT {})",
    "hll_union_agg": "list_distinct(flatten(list({})))",
    "hll_sketch_estimate": "len({})",
}
"""A sketch as the values that it is of: of few ones it tells all apart, but NULL, which `len` does not count here."""

_TOP = """coalesce(list_transform(list_slice(list_sort(list_transform(list_distinct(list({0})),
lambda v: {{'n': -len(list_filter(list({0}), lambda w: w = v)), 'v': v}})), 1, {1}), lambda r: r.v), [])"""


def _exact(node: exp.Expr) -> exp.Expr:
    """Return what an approximate function is about, counted."""
    if isinstance(node, exp.ApproxDistinct):
        return exp.Count(this=exp.Distinct(expressions=[node.this]))
    if isinstance(node, exp.ApproxQuantile):
        return exp.AnonymousAggFunc(this="quantile_disc", expressions=[node.this, node.args["quantile"]])
    if isinstance(node, exp.ApproxTopK):
        return sqlglot.parse_one(_TOP.format(node.this.sql("duckdb"), node.expression.sql()), read="duckdb")
    if isinstance(node, exp.Anonymous) and node.name.lower() in _SKETCHES:
        of = _exact(node.expressions[0]).sql("duckdb")
        return sqlglot.parse_one(_SKETCHES[node.name.lower()].format(of), read="duckdb")
    return node


def _differing(old: Sequence[Row], new: Sequence[Row]) -> set[Row]:
    one, other = Counter(old), Counter(new)
    return set((one - other) | (other - one))


def _unit_places(node: Node) -> list[int]:
    every = [unit for unit in node.units if unit not in node.columns] + list(node.columns)
    return [every.index(unit) for unit in node.units]


def _without_clock(statement: str) -> str:
    return statement.replace("$clock_after", "TIMESTAMP '2026-01-01'")


def relation(name: str, key: Sequence[str], **kinds: str) -> Relation:
    return Relation(name, {column: Kind(kind) for column, kind in kinds.items()}, tuple(key))
