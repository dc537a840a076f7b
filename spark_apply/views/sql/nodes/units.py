"""Which columns divide a node's rows into units: rows that are recomputed together."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from spark_apply.views.sql.expressions.carrier import cast
from spark_apply.views.sql.expressions.engines.dialects import POSTGRES, current
from spark_apply.views.sql.expressions.types import NULL
from spark_apply.views.sql.nodes.node import Branch, Made
from spark_apply.views.sql.reading.blocks import Block, Side, column, unlike
from spark_apply.views.sql.reading.written import FULL, UNIT, Written, as_written, did_you_mean
from spark_apply.views.sql.statements.checks import Claim, Claims


def _limits(block: Block) -> list[tuple[str, Sequence[exp.Expr]]]:
    """Return the clauses that bring rows of FROM together, and by what: a unit is of all of these."""
    found: list[tuple[str, Sequence[exp.Expr]]] = []
    if block.group is not None:
        by = ", ".join(as_written(each) for each in block.group)
        found.append((f"GROUP BY {by}" if by else "an aggregate without GROUP BY", block.group))
    found += [(as_written(each), each.args.get("partition_by") or ()) for each in block.windows]
    if block.distinct:
        found.append(("DISTINCT", tuple(block.outputs.values())))
    return found


def _reads_whole(block: Block) -> bool:
    return any(source.input.whole for source in block.sources)


def internal_units(blocks: Sequence[Block], unit: Sequence[str], written: Written) -> Made:
    """Return the units of an inner node: the finest ones, in columns of their own where they are no output.

    Where its clauses have none, it is divided by `unit`.
    """
    own = [_finest(each, unit, written) for each in blocks]
    if any(each is None for each in own):
        return Made(tuple(Branch(block, ()) for block in blocks), ())
    if len(blocks) == 1:
        block, values = blocks[0], own[0] or ()
        named = _named(block, values)
        return Made((Branch(block, named, claims=_claims(block, values, unit)),), tuple(name for name, _ in named))
    names = [
        [_hidden(f"{branch}_{number}", blocks) for number in range(len(values or ()))]
        for branch, values in enumerate(own)
    ]
    every = (_hidden("branch", blocks), *(name for of_branch in names for name in of_branch))
    nulls = {
        name: _null_like(block, value, written)
        for block, named, finest in zip(blocks, names, own, strict=True)
        for name, value in zip(named, finest or (), strict=True)
    }
    branches = []
    for branch, (block, finest) in enumerate(zip(blocks, own, strict=True)):
        mine = dict(zip(names[branch], finest or (), strict=True))
        units = [(every[0], exp.Literal.number(branch)), *((name, mine.get(name, nulls[name])) for name in every[1:])]
        branches.append(Branch(block, tuple(units), every[0], _claims(block, finest or (), unit)))
    return Made(tuple(branches), every)


def _null_like(block: Block, value: exp.Expr, written: Written) -> exp.Expr:
    """Return NULL for a unit that a branch does not have: PostgreSQL takes the types of a UNION from left to right."""
    if current() is not POSTGRES:
        return exp.Null()
    of = next((block.types[name] for name, output in block.outputs.items() if output == value), None)
    if isinstance(value, exp.Column):
        of = next(source.input.columns[value.name] for source in block.sources if source.alias == value.table)
    if of in (None, NULL):
        raise written.refuse(
            "PostgreSQL needs to know the type of what a branch of UNION is grouped by",
            at=value,
            hint="make it a column of the branch, or say `engine: duckdb`",
        )
    return cast(exp.Null(), str(of))


def _finest(block: Block, unit: Sequence[str], written: Written) -> tuple[exp.Expr, ...] | None:
    """Return the units of a block, or None where the whole is one."""
    if _reads_whole(block):
        return None
    limits = _limits(block)
    if not limits:
        return tuple(
            column(source.alias, name)
            for source in block.sources
            if source.side in (Side.INNER, Side.LEFT)
            for name in source.input.change_columns
        )
    found = tuple(dict.fromkeys(each for each in limits[0][1] if all(each in others for _, others in limits[1:])))
    if not found and block.group != () and unit:
        return tuple(_said(block, name, name, written) for name in unit)
    if not found and block.group != ():
        shown = " and ".join(clause for clause, _ in limits)
        raise written.refuse(
            f"no unit to recompute: {shown} have no expression in common"
            if len(limits) > 1
            else f"no unit to recompute: {shown} takes all rows together",
            at=limits[0][1][0] if limits[0][1] else next(iter(block.windows or block.outputs.values())),
            hint=f"add PARTITION BY with what rows belong to, {_unit_way(limits)}{FULL}",
        )
    return found or None


def _named(block: Block, values: Sequence[exp.Expr]) -> tuple[tuple[str, exp.Expr], ...]:
    """Return units with the names of output columns where they are such."""
    found = []
    for number, value in enumerate(values):
        name = next((name for name, output in block.outputs.items() if output == value), None)
        found.append((name or _hidden(str(number), (block,)), value))
    return tuple(found)


def _hidden(name: str, blocks: Sequence[Block]) -> str:
    """Return a name for a unit column that no output column has."""
    return unlike(f"_u{name}", blocks)


def last_units(blocks: Sequence[Block], key: Sequence[str], unit: Sequence[str], written: Written) -> Made:
    """Return the units of a view: `unit`, or else those columns of its key at which each branch can be divided."""
    positions = {name: number for number, name in enumerate(blocks[0].outputs)}
    outputs = [list(block.outputs) for block in blocks]

    def own(branch: int, name: str) -> exp.Expr:
        return blocks[branch].outputs[outputs[branch][positions[name]]]

    if unit:
        for name in unit:
            if name not in key:
                msg = f"unit: {name} is no column of the key, by which rows of a unit are told apart"
                raise written.refuse(msg, hint=did_you_mean(name, key))
        names = list(unit)
    else:
        names = [name for name in key if all(_divides(b, own(n, name)) for n, b in enumerate(blocks))]
    if not names and not (len(blocks) == 1 and blocks[0].group == ()):
        raise _no_unit(blocks, key, written)
    branches = []
    for number, block in enumerate(blocks):
        if unit:
            values = [_said(block, name, outputs[number][positions[name]], written) for name in names]
        else:
            values = [own(number, name) for name in names]
        branches.append(Branch(block, tuple(zip(names, values, strict=True)), claims=_claims(block, values, unit)))
    return Made(tuple(branches), tuple(names))


def _said(block: Block, name: str, output: str, written: Written) -> exp.Expr:
    """Return what a column of `unit:` is in the rows that a block's clauses bring together."""
    value = block.outputs.get(output)
    if value is None:
        clauses = " and ".join(clause for clause, _ in _limits(block))
        at = next(iter(block.windows or block.outputs.values()))
        raise written.refuse(
            f"unit: the query with {clauses} has no column {name}, by which it would be divided",
            at=at,
            hint=f"add {name} to what it selects, {FULL}",
        )
    value = _least_or_greatest(value) or value  # of a column that is the same in all rows of a group
    if value.find(exp.AggFunc, exp.Window):
        raise written.refuse(
            f"unit: {name} is made of several rows: {as_written(value)}",
            at=value,
            hint="name a column that each row has; of a group, its max(…)",
        )
    if _reads_whole(block):
        raise written.refuse(
            "unit: it reads an aggregate of all rows, so each change touches every row",
            at=value,
            hint=FULL.removeprefix("or "),
        )
    for clause, values in _limits(block):
        if not values or any(each.find(exp.AggFunc, exp.Window) for each in values):
            what = "is by what rows give together" if values else "takes all rows together"
            msg = f"unit: {clause} {what}, so {name} cannot divide it"
            way = "GROUP BY" if block.group == () and not values else "PARTITION BY"
            raise written.refuse(msg, at=value, hint=f"add {way} {name}, {FULL}")
    return value


def _claims(block: Block, values: Sequence[exp.Expr], unit: Sequence[str]) -> Claims:
    """Return that clauses bring no rows of several units together, of each of which that is not shown."""
    return tuple(
        Claim(clause, tuple(by), tuple(unit))
        for clause, by in _limits(block)
        if any(value not in by for value in values)
    )


def _least_or_greatest(value: exp.Expr) -> exp.Expr | None:
    """Return of what an aggregate is the least or greatest value."""
    found: exp.Expr | None = None
    if isinstance(value, exp.Max | exp.Min):
        found = value.this
    elif isinstance(value, exp.AnonymousAggFunc) and value.name.casefold() in ("max", "min"):
        found = value.expressions[0]
    return found.expressions[0] if isinstance(found, exp.Distinct) else found


def _unit_way(limits: Sequence[tuple[str, Sequence[exp.Expr]]]) -> str:
    return f"{UNIT}, " if all(values for _, values in limits) else ""


def _divides(block: Block, value: exp.Expr) -> bool:
    if _reads_whole(block) or value.find(exp.AggFunc, exp.Window):
        return False
    return all(value in values for _, values in _limits(block))


def _no_unit(blocks: Sequence[Block], key: Sequence[str], written: Written) -> Exception:
    keys = ", ".join(key)
    for block in blocks:
        if _reads_whole(block):
            read = next(source for source in block.sources if source.input.whole)
            return written.refuse(
                f"no unit to recompute: {read.alias} is an aggregate of all rows, so each change touches every row",
                at=next(iter(block.outputs.values())),
                hint=FULL.removeprefix("or "),
            )
        for clause, values in _limits(block):
            outputs = [block.outputs[name] for name in key if name in block.outputs]
            if not any(each in values for each in outputs):
                missing = ", ".join(as_written(each) for each in values)
                way = (
                    f"add {missing} to the output and to the key"
                    if missing
                    else "add PARTITION BY with a column of the key"
                )
                return written.refuse(
                    f"no unit to recompute: no column of the key ({keys}) is in {clause}",
                    at=values[0] if values else next(iter(block.windows or block.outputs.values())),
                    hint=f"{way}, {_unit_way(_limits(block))}{FULL}",
                )
    return written.refuse(
        f"no unit to recompute: no column of the key ({keys}) divides all of its clauses",
        hint=f"{UNIT}, {FULL}".removeprefix("or "),
    )
