"""A node's statements, put together from those of its branches."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from spark_apply.views.sql.expressions.carrier import cast
from spark_apply.views.sql.expressions.engines.dialects import SPARK, current
from spark_apply.views.sql.expressions.types import FLOATS, common_type, is_number, is_sketch
from spark_apply.views.sql.reading.blocks import Block, aliases
from spark_apply.views.sql.reading.written import Written, as_written
from spark_apply.views.sql.statements import block as to
from spark_apply.views.sql.statements.checks import Claims, rows_of, spread, too_many
from spark_apply.views.sql.statements.deadlines import deadlines, due, next_due
from spark_apply.views.sql.statements.rule import Units, restriction, touched
from spark_apply.views.sql.view_plan import Check, Node


@dataclass(frozen=True, slots=True)
class Branch:
    """A block of a node, with what the node's unit columns are in it, by the node's order."""

    block: Block
    units: Units
    number: str = ""
    """The unit column that has the branch's number, where it takes one; of the others it has only its own."""
    claims: Claims = ()
    """Clauses that bring rows together, and by what, of which it is not shown that rows of one are of one unit."""


@dataclass(frozen=True, slots=True)
class Made:
    """Branches of a node with their units, and the names of these."""

    branches: tuple[Branch, ...]
    names: tuple[str, ...]


def node_of(written: Written, name: str, made: Made, limit: int | None) -> Node:
    """Return the node that branches are; `limit`: of how many rows a unit may be computed."""
    branches, units = made.branches, made.names
    checks = list[Check]()
    counted: tuple[list[str], list[str]] = [], []
    found: dict[str, list[str]] = {name: [] for name in ("touched", "due", "next_due", "restricted", "whole", "every")}
    columns = tuple(branches[0].block.outputs)
    divided_by = tuple(dict.fromkeys(each for branch in branches for each in _told(branch, columns)))
    for branch in branches:
        block = branch.block
        if units:
            found["touched"] += touched(block, branch.units)
            found["every"].append(rows_of(block, branch.units, {}, (), distinct=True))
        needed = aliases(*(value for _, value in branch.units))
        for deadline in deadlines(block, written, needed):
            found["due"] += due(block, branch.units, deadline)
            found["next_due"].append(next_due(block, deadline))
        hidden = "".join(
            f"{to.text(value)} AS {to.quoted(unit)}, " for unit, value in branch.units if unit not in columns
        )
        found["whole"].append(to.query(block, to.AFTER, {}, (), hidden))
        by_source, on_rows = _restriction(branch, to.table(to.UNITS, name)) if units else ({}, [])
        found["restricted"].append(to.query(block, to.AFTER, by_source, on_rows, hidden))
        checks += (spread(block, branch.units, claim, (by_source, on_rows)) for claim in branch.claims)
        counted[0].append(rows_of(block, branch.units, by_source, on_rows))
        counted[1].append(rows_of(block, branch.units, {}, ()))
    if limit is not None:
        checks.append(too_many(units, divided_by, limit, *map(_union_all, counted)))
    return Node(
        name=name,
        reads=tuple(dict.fromkeys(source.input.name for branch in branches for source in branch.block.sources)),
        columns=columns,
        units=tuple(units),
        touched=tuple(dict.fromkeys(found["touched"])),
        due=tuple(dict.fromkeys(found["due"])),
        next_due=tuple(dict.fromkeys(found["next_due"])),
        restricted=_union_all(found["restricted"]),
        whole=_union_all(found["whole"]),
        every=_union_all(found["every"]) if units else "",
        lookups=tuple(dict.fromkeys(each for branch in branches for each in _lookups(branch))),
        checks=tuple(checks),
        divided_by=divided_by,
    )


def _told(branch: Branch, columns: Collection[str]) -> Iterator[str]:
    """Yield what divides a branch, as its SQL has it: a unit column that is no output has a name that it has not."""
    for name, value in branch.units:
        if name in columns:
            yield name
        elif name != branch.number and not _is_null(value):
            yield as_written(value)


def _lookups(branch: Branch) -> Iterator[tuple[str, str]]:
    """Yield the columns of sources that are compared with others, or that divide them into units."""
    inputs = {source.alias: source.input.name for source in branch.block.sources}
    conditions = [*branch.block.where, *(each for source in branch.block.sources for each in source.on)]
    sides = [side for each in conditions if isinstance(each, exp.EQ) for side in (each.this, each.expression)]
    for value in (*sides, *(value for _, value in branch.units)):
        if isinstance(value, exp.Column):
            yield inputs[value.table], value.name


def _restriction(branch: Branch, rows: str) -> tuple[dict[str, list[str]], list[str]]:
    if not branch.number:
        return restriction(branch.block, branch.units, rows)
    number = next(value for name, value in branch.units if name == branch.number)
    own = [(name, value) for name, value in branch.units if name != branch.number and not _is_null(value)]
    is_of_branch = to.where([exp.EQ(this=to.name(branch.number), expression=number.copy())])
    of_branch = f"(SELECT * FROM {rows} AS {to.ROW}{is_of_branch})"
    return restriction(branch.block, own, of_branch)


def _is_null(value: exp.Expr) -> bool:
    return isinstance(value.this if isinstance(value, exp.Cast) else value, exp.Null)


def _union_all(queries: Sequence[str]) -> str:
    return queries[0] if len(queries) == 1 else " UNION ALL ".join(f"({each})" for each in queries)


def alike(blocks: Sequence[Block], written: Written) -> tuple[list[Block], dict[str, str]]:
    """Return the branches of a UNION ALL with values of the same types, and these.

    The engine would make a FLOAT of an exact number beside one, where Spark makes both a DOUBLE.
    """
    types = common_types(blocks, written)
    if current() is SPARK:
        return list(blocks), types
    floats = {number for block in blocks for number, of in enumerate(block.types.values()) if of == "float"}
    found = []
    for block in blocks:
        outputs = dict(block.outputs)
        for number, (name, value) in enumerate(block.outputs.items()):
            if number in floats and is_number(block.types[name]) and block.types[name] not in FLOATS:
                outputs[name] = cast(value.copy(), "double")
        found.append(replace(block, outputs=outputs))
    return found, types


def common_types(blocks: Sequence[Block], written: Written) -> dict[str, str]:
    """Return the types of the columns of a UNION ALL."""
    found = {}
    for number, name in enumerate(blocks[0].outputs):
        types = [list(block.types.values())[number] for block in blocks]
        common = types[0]
        for other in types[1:]:
            joint = common_type(common, other)
            if joint is None:
                value: exp.Expr = list(blocks[1].outputs.values())[number]
                raise written.refuse(
                    f"{name} is {common} in one branch and {other} in another",
                    at=value,
                    hint="make both with as many registers" if is_sketch(common) else "cast one of them",
                )
            common = joint
        found[name] = common
    return found
