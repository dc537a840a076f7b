"""IN and EXISTS in WHERE, written as the joins that they are.

``x IN (SELECT y …)`` keeps a row that has a match: a SEMI JOIN. ``EXISTS (SELECT … FROM t WHERE …)`` is one ON its
WHERE, and NOT EXISTS an ANTI JOIN. NOT IN is none of these: a single NULL in the subquery makes it keep nothing.
"""

from __future__ import annotations

from sqlglot import exp

from spark_apply.views.sql.reading.blocks import conjuncts
from spark_apply.views.sql.reading.written import Written, as_written

OWN_FIRST = "own names first"
"""In the meta of a join made of EXISTS: a name without a table is one of the subquery's table, if that has it."""
_OF_EXISTS = frozenset({"expressions", "from_", "where", "hint"})


def with_joins(select: exp.Select, written: Written) -> exp.Select:
    """Return the SELECT with the IN and EXISTS among the conjuncts of its WHERE as joins."""
    where = select.args.get("where")
    if where is None or where.find(exp.Query) is None:
        return select
    made = select.copy()
    kept: list[exp.Expr] = []
    joins = list(made.args.get("joins") or ())
    for number, each in enumerate(conjuncts(made.args["where"].this), start=1):
        join = _join(each, number, written)
        if join is None:
            kept.append(each)
        else:
            joins.append(join)
    made.set("joins", joins)
    made.set("where", exp.Where(this=exp.and_(*kept, copy=False)) if kept else None)
    return made


def _join(condition: exp.Expr, number: int, written: Written) -> exp.Join | None:
    """Return the join that a conjunct is, or None where it is none."""
    negated = isinstance(condition, exp.Not)
    asked = condition.this.unnest() if isinstance(condition, exp.Not) else condition
    if isinstance(asked, exp.Exists):
        return _exists(written.opened(asked.this), "ANTI" if negated else "SEMI")
    query = asked.args.get("query") if isinstance(asked, exp.In) else None
    if query is None or isinstance(asked.this, exp.Tuple):
        return None
    if negated:
        raise written.refuse(
            f"NOT IN with a subquery: {as_written(query)}: one NULL in it leaves no row",
            at=query,
            hint="write NOT EXISTS (SELECT 1 FROM … WHERE … = …), or a LEFT ANTI JOIN",
        )
    alias, value = f"in_{number}", f"value_of_in_{number}"
    names = exp.TableAlias(this=exp.to_identifier(alias), columns=[exp.to_identifier(value)])
    equal = exp.EQ(this=exp.paren(asked.this), expression=exp.column(value, table=alias))
    return exp.Join(this=exp.Subquery(this=written.opened(query), alias=names), side="LEFT", kind="SEMI", on=equal)


def _exists(query: exp.Expr, kind: str) -> exp.Join | None:
    if not isinstance(query, exp.Select) or query.args.get("from_") is None or query.args.get("where") is None:
        return None
    if any(value and name not in _OF_EXISTS for name, value in query.args.items()):
        return None
    if any(each.find(exp.AggFunc, exp.Query) for each in query.expressions) or query.args["where"].find(exp.Query):
        return None
    join = exp.Join(this=query.args["from_"].this, side="LEFT", kind=kind, on=query.args["where"].this)
    join.meta[OWN_FIRST] = True
    return join
