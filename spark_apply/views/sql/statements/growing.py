"""A node of sketches that grow: a group's sketch takes in the rows that come, and is made again where a value is lost.

A sketch holds a set: taking a value in twice changes nothing, and none can be taken out. So of the groups that a step
touches, those are told apart that have lost a value: one of a row that was there before and differs, which no row has
after the step. Their sketches are made of the rows that there are, by the plain statement. All others are what they
were, united with a sketch of the rows that have come, and no other row is read for it. As a union says what one sketch
of all rows says, a group's value does not depend on which of the two was done.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from spark_apply.views.sql.expressions.types import SKETCH, is_sketch
from spark_apply.views.sql.reading.blocks import Block, has_clock
from spark_apply.views.sql.statements import block as to
from spark_apply.views.sql.statements.rule import Units, restriction

_COMING = "coming"
"""A schema: rows that differ, as they are after the step."""


def can_grow(block: Block, units: Units) -> bool:
    """Whether a block's rows come from one table each, and by nothing but its rows."""
    single = len(block.sources) == 1 and not block.sources[0].input.whole
    by_name = all(block.outputs.get(name) == value for name, value in units)
    return single and by_name and not any(has_clock(each) for each in block.expressions())


def grown(name: str, block: Block, units: Units, values: Sequence[exp.Expr]) -> str:
    """Return what `Node.restricted` gives, of a node of that name; its sketches are of these values.

    All columns of the block are its units, or sketches.
    """
    source, own = block.sources[0], [to.quoted(unit) for unit, _ in units]
    kept = [column for column in block.outputs if is_sketch(block.types[column])]
    listed = [f"{to.text(value)} AS {unit}" for (_, value), unit in zip(units, own, strict=True)]
    held = [f"_v{number}" for number, _ in enumerate(values)]
    pairs = [*listed, *(f"{to.text(value)} AS {of}" for value, of in zip(values, held, strict=True))]
    alias, of_rows = to.quoted(source.alias), to.where(block.where)

    def select(what: Sequence[str], rows: str) -> str:
        return f"SELECT {', '.join(what)} FROM {rows} AS {alias}{of_rows}"

    def same(one: str, other: str, columns: Sequence[str]) -> str:
        return " AND ".join(f"{one}.{each} IS NOT DISTINCT FROM {other}.{each}" for each in columns)

    coming, after = to.table(_COMING, source.input.name), to.table(to.AFTER, source.input.name)
    there = f"SELECT * FROM ({select(pairs, after)}) r"
    again = "(SELECT * FROM _cdc_again)"
    by_source, on_rows = restriction(block, units, again)
    sketches = ", ".join(
        f"cdc_hll_union([b.{to.quoted(each)}, a.{to.quoted(each)}], {block.types[each].removeprefix(SKETCH)}) "
        f"AS {to.quoted(each)}"
        for each in kept
    )
    added = to.query(block, _COMING, {}, ())
    some = to.quoted(kept[0])
    return (
        f"WITH _cdc_gone AS MATERIALIZED ({select(pairs, to.changed_rows(source, to.BEFORE))} "
        f"EXCEPT {select(pairs, coming)}), "
        f"_cdc_lost AS MATERIALIZED (SELECT * FROM _cdc_gone EXCEPT {there} "
        f"WHERE EXISTS (SELECT 1 FROM _cdc_gone g WHERE {same('g', 'r', [*own, *held])})), "
        f"_cdc_again AS MATERIALIZED (SELECT DISTINCT {', '.join(own)} FROM _cdc_lost) "
        f"({to.query(block, to.AFTER, by_source, on_rows)}) UNION ALL "
        f"(SELECT {', '.join(f'u.{each}' for each in own)}, {sketches} FROM {to.table(to.UNITS, name)} u "
        f"LEFT JOIN {to.table(to.BEFORE, name)} b ON {same('b', 'u', own)} "
        f"LEFT JOIN ({added}) a ON {same('a', 'u', own)} "
        f"WHERE (b.{some} IS NOT NULL OR a.{some} IS NOT NULL) "
        f"AND NOT EXISTS (SELECT 1 FROM _cdc_again x WHERE {same('x', 'u', own)}))"
    )
