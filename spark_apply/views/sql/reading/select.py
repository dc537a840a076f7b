"""One SELECT, from its syntax to a block: names resolved, clauses checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from sqlglot import exp

from spark_apply.views.sql.reading.blocks import Block, conjuncts
from spark_apply.views.sql.reading.from_clause import FromClause
from spark_apply.views.sql.reading.names import Names, find
from spark_apply.views.sql.reading.subqueries import with_joins
from spark_apply.views.sql.reading.written import Written, as_written

_CLAUSES = frozenset(
    {
        "expressions",
        "from_",
        "joins",
        "where",
        "group",
        "having",
        "windows",
        "distinct",
        "order",
        "limit",
        "with_",
        "hint",
    }
)
_NO_SUBQUERY = (
    "IN and EXISTS of one table may stand in WHERE, joined to the rest by AND; "
    "else write a LEFT SEMI JOIN, a LEFT ANTI JOIN, or a LEFT JOIN with a CTE for a value"
)


def block_of(select: exp.Select, clause: FromClause, written: Written, *, top: bool, named: bool) -> Block:
    """Return the block of a SELECT; `clause` makes its FROM.

    `top`: it may be ordered and limited. Not `named`: its output columns are known by their places, as they are of the
    second branch of a UNION.
    """
    _check_clauses(select, written)
    select = with_joins(select, written)
    _check_subqueries(select, written)
    windows = {each.name.casefold(): each for each in select.args.get("windows") or ()}
    from_ = select.args.get("from_")
    if from_ is None:
        raise written.refuse("a SELECT without FROM reads no table", at=select, hint="select from a captured table")
    clause.read(from_.this, select.args.get("joins") or ())
    names = Names(written, clause.tables, leading=clause.leading)
    where = (*clause.where, *_where(select, names, written))
    clause.check_equalities(where)
    outputs = _outputs(select, names, written, windows, named=named)
    having = _having(select, names, outputs, written, windows)
    group = _group(select, names, outputs, having, written)
    order, limit = _order(select, names, outputs, written, top=top)
    block = Block(
        sources=tuple(clause.sources),
        outputs=outputs,
        types={},
        where=where,
        group=group,
        having=having,
        distinct=bool(select.args.get("distinct")),
        order=order,
        limit=limit,
    )
    _check_aggregates(block, written)
    return replace(block, windows=_windows(block, written))


def _this(select: exp.Select, clause: str) -> exp.Expr | None:
    found = select.args.get(clause)
    return None if found is None else found.this


def _check_clauses(select: exp.Select, written: Written) -> None:
    if select.args.get("qualify"):
        raise written.refuse(
            "QUALIFY is no SQL of Spark 4.0",
            at=select.args["qualify"],
            hint="filter in a query over a CTE: WITH r AS (SELECT …, row_number() OVER (…) AS n FROM …) "
            "SELECT … FROM r WHERE n <= 3",
        )
    for name, value in select.args.items():
        if value and name not in _CLAUSES:
            part = value[0] if isinstance(value, list) else value
            shown = as_written(part) if isinstance(part, exp.Expr) else name.upper()
            raise written.refuse(
                f"{shown.strip() or name.upper()} is not known here",
                at=part if isinstance(part, exp.Expr) else select,
                hint="a view is made of SELECT, JOIN, WHERE, GROUP BY, HAVING, window functions, WITH and UNION ALL",
            )
    distinct = select.args.get("distinct")
    if distinct is not None and distinct.args.get("on"):
        raise written.refuse("DISTINCT ON is not known here", at=distinct, hint="use row_number() and keep row 1")


def _check_subqueries(select: exp.Select, written: Written) -> None:
    clauses = [select.args.get(name) for name in ("where", "having", "group", "order")]
    parts = [each for each in clauses if each is not None] + select.expressions
    parts += [join.args["on"] for join in select.args.get("joins") or () if join.args.get("on")]
    for part in parts:
        found = part.find(exp.Query)
        if found is not None:
            raise written.refuse(f"a subquery in {_place(part)}: {as_written(found)}", at=found, hint=_NO_SUBQUERY)


def _place(part: exp.Expr) -> str:
    places: dict[type[exp.Expr], str] = {
        exp.Where: "WHERE",
        exp.Having: "HAVING",
        exp.Group: "GROUP BY",
        exp.Order: "ORDER BY",
    }
    return places.get(type(part), "an expression")


def _where(select: exp.Select, names: Names, written: Written) -> tuple[exp.Expr, ...]:
    condition = _this(select, "where")
    found = tuple(names.resolve(each) for each in conjuncts(condition))
    for each in found:
        wrong = each.find(exp.AggFunc, exp.Window)
        if wrong is not None:
            raise written.refuse(
                f"{as_written(wrong)} in WHERE: rows are filtered before they are aggregated",
                at=wrong,
                hint="use HAVING, or filter in a query over a CTE",
            )
    return found


def _outputs(
    select: exp.Select, names: Names, written: Written, windows: Mapping[str, exp.Expr], *, named: bool
) -> dict[str, exp.Expr]:
    found: dict[str, exp.Expr] = {}
    for each in select.expressions:
        if isinstance(each, exp.Star) or (isinstance(each, exp.Column) and isinstance(each.this, exp.Star)):
            pairs = names.star(each)
        else:
            name = each.alias_or_name if isinstance(each, exp.Alias | exp.Column) else ""
            if not name and named:
                raise written.refuse(
                    f"an output column has no name: {as_written(each)}",
                    at=each,
                    hint=f"write {as_written(each)} AS name",
                )
            value = each.this if isinstance(each, exp.Alias) else each
            pairs = [(name, names.resolve(_with_windows(value, windows, written), found))]
        for wanted, value in pairs:
            free = wanted and wanted.casefold() not in {one.casefold() for one in found}
            name = wanted if named or free else f"_c{len(found) + 1}"
            if find(name, found) is not None or name.casefold() in {one.casefold() for one in found}:
                raise written.refuse(
                    f"two output columns are called {name}", at=each, hint=f"give one another name: {name} AS other"
                )
            found[name] = value
    return found


def _with_windows(value: exp.Expr, named: Mapping[str, exp.Expr], written: Written) -> exp.Expr:
    """Return the expression with named windows written out."""

    def write_out(node: exp.Expr) -> exp.Expr:
        if not isinstance(node, exp.Window) or not node.args.get("alias"):
            return node
        name = node.args["alias"].name
        definition = named.get(name.casefold())
        if definition is None:
            raise written.refuse(f"there is no window {name}", at=node, hint="define it: WINDOW w AS (PARTITION BY …)")
        whole = node.copy()
        whole.set("alias", None)
        for part in ("partition_by", "order", "spec"):
            if whole.args.get(part) is None and definition.args.get(part) is not None:
                given = definition.args[part]
                whole.set(part, [one.copy() for one in given] if isinstance(given, list) else given.copy())
        return whole

    return value.transform(write_out)


def _having(
    select: exp.Select,
    names: Names,
    outputs: Mapping[str, exp.Expr],
    written: Written,
    windows: Mapping[str, exp.Expr],
) -> tuple[exp.Expr, ...]:
    condition = _this(select, "having")
    if condition is None:
        return ()
    for column in condition.find_all(exp.Column):
        alias = None if column.table else find(column.name, outputs)
        if alias is None or column.find_ancestor(exp.AggFunc):
            continue
        of_table = names.known(column)
        if of_table is not None and of_table != outputs[alias]:
            raise written.refuse(
                f"{column.name} in HAVING is the name of an output column and of a table's column",
                at=column,
                hint=f"give the output column another name, or write the table before it: t.{column.name}",
            )
    found = tuple(names.resolve(_with_windows(each, windows, written), outputs) for each in conjuncts(condition))
    for each in found:
        if each.find(exp.Window):
            raise written.refuse(
                f"a window function in HAVING: {as_written(each)}", at=each, hint="filter in a query over a CTE"
            )
    return found


def _group(
    select: exp.Select, names: Names, outputs: Mapping[str, exp.Expr], having: Sequence[exp.Expr], written: Written
) -> tuple[exp.Expr, ...] | None:
    group = select.args.get("group")
    aggregated = any(_aggregates(each) for each in [*outputs.values(), *having])
    if group is None:
        return () if aggregated or having else None
    for option in ("rollup", "cube", "grouping_sets", "totals"):
        if group.args.get(option):
            raise written.refuse(
                f"GROUP BY {option.replace('_', ' ').upper()} is not known here",
                at=group,
                hint="write a GROUP BY for each level, joined by UNION ALL",
            )
    for each in group.expressions:
        if isinstance(each, exp.Cube | exp.Rollup | exp.GroupingSets):
            raise written.refuse(
                f"GROUP BY {as_written(each)} is not known here",
                at=each,
                hint="write a GROUP BY for each level, joined by UNION ALL",
            )
    if group.args.get("all"):
        return tuple(value for value in outputs.values() if not _aggregates(value))
    found = []
    for each in group.expressions:
        if isinstance(each, exp.Literal) and not each.is_string:
            number = int(each.name) if each.name.isdigit() else 0
            if not 1 <= number <= len(outputs):
                raise written.refuse(
                    f"GROUP BY {each.name}: there is no such output column", at=each, hint="name the column"
                )
            resolved = list(outputs.values())[number - 1].copy()
        else:
            resolved = names.resolve(each, outputs)
        if resolved.find(exp.AggFunc, exp.Window):
            raise written.refuse(
                f"GROUP BY {as_written(each)}: a group cannot be made of an aggregate or a window function",
                at=each,
                hint="make it in a CTE, and group in a query over the CTE",
            )
        if resolved not in found:
            found.append(resolved)
    return tuple(found)


def _order(
    select: exp.Select, names: Names, outputs: Mapping[str, exp.Expr], written: Written, *, top: bool
) -> tuple[tuple[exp.Expr, ...], exp.Expr | None]:
    order, limit = select.args.get("order"), select.args.get("limit")
    if order is None and limit is None:
        return (), None
    if not top:
        clause = order or limit
        what = "ORDER BY of the whole" if limit is None else "LIMIT of the whole"
        raise written.refuse(
            f"{what}: each change could move every row",
            at=clause,
            hint="a view is a table, it has no order: leave it out, or keep the first n of each group by row_number(), "
            "or say `refresh: full`",
        )
    resolved = []
    value: exp.Expr | None
    for each in order.expressions if order is not None else ():
        value = each.this
        if isinstance(value, exp.Literal) and not value.is_string and value.name.isdigit():
            number = int(value.name)
            if not 1 <= number <= len(outputs):
                raise written.refuse(
                    f"ORDER BY {number}: there is no such output column", at=each, hint="name the column"
                )
            value = list(outputs.values())[number - 1].copy()
        else:
            alias = find(value.name, outputs) if isinstance(value, exp.Column) and not value.table else None
            value = outputs[alias].copy() if alias is not None else names.resolve(value, outputs, outputs_first=True)
        ordered = each.copy()
        ordered.set("this", value)
        resolved.append(ordered)
    value = None if limit is None else limit.args.get("expression")
    alone = limit is None or [name for name, each in limit.args.items() if each] == ["expression"]
    if limit is not None and not (alone and isinstance(value, exp.Literal) and value.name.isdigit()):
        raise written.refuse(f"{as_written(limit).strip()} is no LIMIT with a number", at=limit, hint="write LIMIT 10")
    return tuple(resolved), value


def _aggregates(expression: exp.Expr) -> list[exp.Expr]:
    """Return the aggregate functions of an expression that are not a window's."""
    return [each for each in expression.find_all(exp.AggFunc) if not _is_windowed(each)]


def _is_windowed(function: exp.Expr) -> bool:
    node = function
    while isinstance(node.parent, exp.Filter | exp.IgnoreNulls | exp.RespectNulls) and node.parent.this is node:
        node = node.parent
    return isinstance(node.parent, exp.Window) and node.parent.this is node


def _check_aggregates(block: Block, written: Written) -> None:
    """Refuse columns that are neither grouped nor aggregated, and aggregates of aggregates."""
    if block.group is None:
        return
    for value in [*block.outputs.values(), *block.having]:
        for aggregate in _aggregates(value):
            inner = next((each for each in _aggregates(aggregate) if each is not aggregate), None)
            if inner is not None:
                raise written.refuse(
                    f"an aggregate of an aggregate: {as_written(aggregate)}",
                    at=aggregate,
                    hint="make the inner one in a CTE",
                )
        loose = _ungrouped(value, block.group)
        if loose is not None and loose.find_ancestor(exp.WithinGroup):
            raise written.refuse(
                f"WITHIN GROUP (ORDER BY {as_written(loose)}) is not known here",
                at=loose,
                hint="approx_percentile(x, 0.5) is exact here, and gives a value that is there; or keep the row that "
                "you want of row_number() OVER (PARTITION BY … ORDER BY … a key)",
            )
        if loose is not None:
            call = loose.find_ancestor(exp.Anonymous)
            raise written.refuse(
                f"{as_written(loose)} is neither in GROUP BY nor aggregated"
                + ("" if call is None else f": {call.name} is not known as an aggregate here"),
                at=loose,
                hint="add it to GROUP BY, or take max()",
            )


def _ungrouped(node: exp.Expr, group: Sequence[exp.Expr]) -> exp.Expr | None:
    """Return a column outside of groups and aggregates."""
    if node in group or (isinstance(node, exp.AggFunc) and not _is_windowed(node)):
        return None
    if isinstance(node, exp.Filter) and not _is_windowed(node.this):
        return None
    if isinstance(node, exp.Column):
        return node
    return next((found for child in node.iter_expressions() if (found := _ungrouped(child, group)) is not None), None)


def _windows(block: Block, written: Written) -> tuple[exp.Window, ...]:
    found: list[exp.Window] = []
    for value in [*block.outputs.values(), *block.order]:
        for each in value.find_all(exp.Window):
            if each.find_ancestor(exp.Window) or (isinstance(each.parent, exp.AggFunc)):
                raise written.refuse(
                    f"a window function within another: {as_written(each)}", at=each, hint="make the inner one in a CTE"
                )
            if each not in found:
                found.append(each)
    return tuple(found)
