"""The statements of a block, as SQL of the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from sqlglot import exp

from spark_apply.views.sql.expressions.carrier import cast
from spark_apply.views.sql.expressions.engines.dialects import DUCKDB, SPARK, current
from spark_apply.views.sql.reading.blocks import CLOCK, Block, Side, Source, column

BEFORE, AFTER, BOTH, CHANGED, UNITS = "before", "after", "both", "changed", "units"
"""Schemas; see `spark_apply.views.sql.view_plan`."""

Restrictions = Mapping[str, Sequence[str]]
"""Conditions on the rows of a source, by its alias, in which the source is called `ROW`."""

ROW = "_row"
_OTHER = "_other"


def quoted(name: str) -> str:
    """A name as an identifier."""
    return exp.to_identifier(name, quoted=True).sql(current().name)


def name(of: str) -> exp.Expr:
    """A name as an expression."""
    return exp.column(exp.to_identifier(of, quoted=True))


def table(schema: str, relation: str) -> str:
    """A relation's table."""
    return current().table(schema, relation)


def text(expression: exp.Expr, state: str = AFTER) -> str:
    """An expression as SQL, with the clock as a parameter: that of the state before the step, or after it."""
    engine = current()
    clock = engine.clock_before if state == BEFORE else engine.clock_after

    def parameter(node: exp.Expr) -> exp.Expr:
        return exp.Var(this=clock) if isinstance(node, exp.Var) and node.name == CLOCK else node

    return expression.transform(parameter).sql(engine.name)


def conjunction(conditions: Iterable[exp.Expr | str]) -> str:
    """Conditions joined by AND; TRUE where there are none."""
    texts = [each if isinstance(each, str) else text(each) for each in conditions]
    return " AND ".join(f"({each})" for each in texts) or "TRUE"


def where(conditions: Iterable[exp.Expr | str]) -> str:
    """A WHERE clause, or nothing."""
    found = list(conditions)
    return f" WHERE {conjunction(found)}" if found else ""


def is_one_of(rows: str, values: Sequence[tuple[str, str]], never_null: frozenset[str] = frozenset()) -> str:
    """The condition that a table or subquery has a row with these values, NULL-safe: pairs of column and value.

    Of columns whose value is `never_null` a plain equality says the same, and Spark looks them up much faster.
    """
    columns = [f"{_OTHER}.{quoted(name)}" for name, _ in values]
    if current().inner_first:
        inner = [f"{_OTHER}_{number}" for number in range(len(values))]
        listed = ", ".join(f"{quoted(name)} AS {own}" for (name, _), own in zip(values, inner, strict=True))
        rows, columns = f"(SELECT {listed} FROM {rows})", inner
    plain = never_null if current().changed_rows else frozenset()
    equal = ["=" if name in plain else current().same for name, _ in values]
    pairs = zip(columns, equal, values, strict=True)
    same = " AND ".join(f"{column} {equals} ({value})" for column, equals, (_, value) in pairs)
    return f"EXISTS (SELECT 1 FROM {rows} AS {_OTHER}{where([same])})"


def changed_rows(source: Source, schema: str) -> str:
    """The rows of a source that differ, or may, in one state: what FROM reads."""
    of = source.input
    if of.whole:
        return table(schema, of.name)
    if current().changed_rows:
        return table(f"{schema}_{CHANGED}", of.name)
    pairs = [(name, f"{ROW}.{quoted(name)}") for name in of.change_columns]
    condition = is_one_of(table(CHANGED, of.name), pairs)
    return f"(SELECT * FROM {table(schema, of.name)} AS {ROW}{where([condition])})"


def of_row(expression: exp.Expr) -> str:
    """An expression over one source, as a condition on its rows has it."""

    def on_row(node: exp.Expr) -> exp.Expr:
        return column(ROW, node.name) if isinstance(node, exp.Column) else node

    return text(expression.transform(on_row))


def from_clause(
    sources: Sequence[Source],
    schema: str,
    *,
    restrictions: Restrictions | None = None,
    changed: str | None = None,
    inner: frozenset[str] = frozenset(),
    keep: Callable[[exp.Expr], bool] = lambda _: True,
) -> str:
    """FROM over the tables of one state, of source `changed` over the rows that differ.

    `inner` names sources that are joined INNER whatever is written.
    """
    parts = []
    for number, source in enumerate(sources):
        rows = changed_rows(source, schema) if source.alias == changed else table(schema, source.input.name)
        conditions = (restrictions or {}).get(source.alias)
        if conditions:
            rows = f"(SELECT * FROM {rows} AS {ROW}{where(conditions)})"
        rows += f" AS {quoted(source.alias)}"
        on = [each for each in source.on if keep(each)]
        if number == 0:
            parts.append(rows)
        elif source.side is Side.INNER and not on:
            parts.append(f"CROSS JOIN {rows}")
        else:
            side = Side.INNER if source.alias in inner else source.side
            if side in (Side.SEMI, Side.ANTI) and not current().semi_joins:
                found = f"{'NOT ' if side is Side.ANTI else ''}EXISTS (SELECT 1 FROM {rows}{where(on)})"
                parts.append(f"CROSS JOIN LATERAL (SELECT 1 WHERE {found}) AS {quoted(f'_found_{number}')}")
                continue
            parts.append(f"{side.value} {rows} ON {conjunction(on)}")
    return " FROM " + " ".join(parts)


def _no_place(expression: exp.Expr) -> str:
    """An expression of GROUP BY or ORDER BY; a number there would be the place of an output column."""
    inner = expression.this if isinstance(expression, exp.Ordered) else expression
    number = inner
    while isinstance(number, exp.Paren | exp.Neg):
        number = number.this
    if not isinstance(number, exp.Literal):
        return text(expression)
    constant = f"coalesce({text(inner)})"
    return constant if inner is expression else f"{constant} DESC" if expression.args.get("desc") else constant


def _without_error(value: exp.Expr, group: Sequence[exp.Expr]) -> exp.Expr:
    """Have what fails in PARTITION BY and ORDER BY of windows fail by a cast: DuckDB takes no error() there.

    But what rows are grouped by stays as it is in GROUP BY: there it is a column.
    """
    found = value.copy()
    for window in found.find_all(exp.Window):
        order = window.args.get("order")
        for by in (*window.args["partition_by"], *(order.expressions if order is not None else ())):
            _fail_by_casts(by, group)
    return found


def without_error(value: exp.Expr) -> exp.Expr:
    """Return a value that fails by a cast where it would by error(), which DuckDB takes in no TRY either."""
    found = exp.Paren(this=value.copy())
    _fail_by_casts(found, ())
    return found


def _fail_by_casts(value: exp.Expr, group: Sequence[exp.Expr]) -> None:
    for node in list(value.walk(prune=lambda part: part in group)):
        if isinstance(node, exp.Anonymous) and node.name == "error":
            node.replace(cast(cast(node.expressions[0], "int"), "string"))


def _by_outputs(value: exp.Expr, outputs: Mapping[str, exp.Expr]) -> exp.Expr:
    """Return an expression of ORDER BY with output columns by their names: Spark computes no window or group there.

    An aggregate that is no output column is of the rows of FROM.
    """
    names = {each: of for of, each in outputs.items() if not isinstance(each, exp.Literal)}

    def named(node: exp.Expr) -> exp.Expr:
        if node in names:
            return name(names[node])
        return node.copy() if isinstance(node, exp.AggFunc) else node  # nothing is looked for in a copy

    return value.transform(named)


def query(block: Block, schema: str, restrictions: Restrictions, conditions: Sequence[str], hidden: str = "") -> str:
    """The block's own SELECT over one state, with more conditions on the rows of FROM."""
    values, order = list(block.outputs.values()), block.order
    if block.windows and current() is DUCKDB:
        values = [_without_error(each, block.group or ()) for each in values]
        order = tuple(_without_error(each, block.group or ()) for each in order)
    elif current() is SPARK:
        order = tuple(_by_outputs(each, block.outputs) for each in order)
    outputs = ", ".join(f"{text(value)} AS {quoted(of)}" for of, value in zip(block.outputs, values, strict=True))
    parts = [
        f"SELECT {'DISTINCT ' if block.distinct else ''}{hidden}{outputs}",
        from_clause(block.sources, schema, restrictions=restrictions) if block.sources else "",
        where([*block.where, *conditions]),
    ]
    if block.group:
        parts.append(f" GROUP BY {', '.join(_no_place(each) for each in block.group)}")
    if block.having:
        parts.append(f" HAVING {conjunction(block.having)}")
    if order:
        parts.append(f" ORDER BY {', '.join(_no_place(each) for each in order)}")
    if block.limit is not None:
        parts.append(f" LIMIT {text(block.limit)}")
    return "".join(parts)
