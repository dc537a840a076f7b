"""What has to hold of a node's units that its SQL does not show: statements that give a row where it does not.

`unit:` divides a view by columns that a clause of it (GROUP BY, PARTITION BY) does not have. That is right as long as
the rows that the clause brings together are of one unit: then each unit's rows give what they give among all rows. So
of the units that a step touches those rows are looked at that the clause brings together with rows of them, whatever
unit these are of. No other rows need to be: where they were of one unit before the step, they can be of several only
through a derivation that the step has changed, and its unit after the step is touched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sqlglot import exp

from spark_apply.views.sql.reading.blocks import Block, unlike
from spark_apply.views.sql.statements import block as to
from spark_apply.views.sql.statements.rule import Units, restriction
from spark_apply.views.sql.view_plan import Check


class Claim(NamedTuple):
    """That rows which a clause brings together are of one unit."""

    clause: str
    """As it was written."""
    by: tuple[exp.Expr, ...]
    """By what it brings rows together."""
    unit: tuple[str, ...]
    """What `unit:` names."""


Claims = tuple[Claim, ...]


def spread(block: Block, units: Units, claim: Claim, of_units: tuple[to.Restrictions, Sequence[str]]) -> Check:
    """Return the check that rows of a clause are of one unit; `of_units` restricts rows to those of units."""
    by = [(unlike(f"_by{number}", (block,)), value) for number, value in enumerate(claim.by)]
    columns, among = ", ".join(to.quoted(name) for name, _ in by), rows_of(block, by, *of_units, distinct=True)

    def of_several(restrictions: Mapping[str, Sequence[str]], conditions: Sequence[str]) -> str:
        rows = rows_of(block, [*by, *units], restrictions, conditions, distinct=True)
        return f"SELECT count(*) AS n FROM ({rows}) AS r GROUP BY {columns} HAVING count(*) > 1"

    names = ", ".join(claim.unit)
    return Check(
        f"rows of one {claim.clause} have several values of {names}, by which unit: divides them",
        f"Correct the rows, add {names} to the clause, or say refresh: full",
        "correct the rows that the clause brings together, or change unit: in views.yaml",
        of_several(*restriction(block, by, f"({among})")),
        of_several({}, ()),
    )


def too_many(units: Sequence[str], shown: Sequence[str], limit: int, restricted: str, whole: str) -> Check:
    """Return the check that no unit has more rows than that; the statements give each row's unit.

    `shown`: what the units are, as the SQL has it.
    """
    group = f" GROUP BY {', '.join(map(to.quoted, units))}" if units else ""
    counted = (
        f"SELECT count(*) AS n FROM ({rows}) AS r{group} HAVING count(*) > {limit}" for rows in (restricted, whole)
    )
    named = f" (by {', '.join(shown)})" if shown else ""
    what = f"one of its units{named}" if units else "it has no units, and"
    return Check(
        f"{what} is of more than {limit:,} rows",
        "Divide the view more finely, or raise its unit_limit",
        "raise unit_limit of the view in views.yaml, or take it out",
        *counted,
    )


def rows_of(
    block: Block, values: Units, restrictions: to.Restrictions, conditions: Sequence[str], *, distinct: bool = False
) -> str:
    """Return values of each row that a block's clauses are over, before they bring any together."""
    listed = ", ".join(f"{to.text(value)} AS {to.quoted(name)}" for name, value in values) or "1 AS one"
    rows = to.from_clause(block.sources, to.AFTER, restrictions=restrictions) if block.sources else ""
    return f"SELECT {'DISTINCT ' if distinct else ''}{listed}{rows}{to.where([*block.where, *conditions])}"
