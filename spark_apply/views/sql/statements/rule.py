"""The rule: from a block and its units to the statements that find what changed rows touch.

An output row can differ between two states only if one of its derivations, in one of them, holds a row that differs, or
has lost or gained its match in an optional source (the null side of LEFT JOIN, a SEMI or ANTI JOIN).

A source that is not optional: all derivations that hold one of its changed rows, in each of the two states. The state
is one and the same for all sources, so nothing that was written may be left out that could hide a derivation; what only
filters more may be.

An optional source B: a derivation that differs because of B belongs to rows of the other sources that join with a
changed row of B, in one of the states. They are found over the rows of both states at once, with B joined INNER: a
derivation of either state is there too. (Where its ON depends on another optional source C that had no match in that
state, and has one among the rows of both, the match is a changed row of C, and C's own statement finds the derivation.)
Where the units are columns of sources that are not optional, they are at hand there. Otherwise the rows of one of
these, the roots, are kept, and the units are read from the roots' derivations in each of the states.

A unit that the clock moves (`GROUP BY CASE WHEN due <= clock() …`) is another one in each state though no row of it
differs. So units are read by the clock of the state whose rows are asked, and by both clocks where those are of both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sqlglot import exp

from spark_apply.views.sql.expressions.carrier import case
from spark_apply.views.sql.expressions.engines.dialects import POSTGRES, current
from spark_apply.views.sql.reading.blocks import Block, Source, aliases, has_clock, without_clock
from spark_apply.views.sql.statements import block as to
from spark_apply.views.sql.statements.asked import may_be_wrong

Units = Sequence[tuple[str, exp.Expr]]
"""Names of unit columns, and what they are in the block."""


def touched(block: Block, units: Units) -> Iterator[str]:
    """Yield statements whose union has the units that changed rows of the block's sources can touch."""
    needed = aliases(*(value for _, value in units))
    for source in block.sources:
        if not source.optional:
            yield from _by_a_needed_source(block, units, source, needed)
        elif needed & block.optional:
            yield from _by_roots(block, units, source, needed)
        else:
            yield from _by_an_optional_source(block, units, source)


def select_units(units: Units, state: str) -> Iterator[str]:
    """Yield the SELECT clauses of units of a state, of `to.BOTH` by each of the clocks if the clock moves them."""
    moves = any(has_clock(value) for _, value in units)
    for clock in (to.BEFORE, to.AFTER) if state == to.BOTH and moves else (state,):
        listed = (f"{to.text(value, clock)} AS {to.quoted(name)}" for name, value in units)
        yield f"SELECT DISTINCT {', '.join(listed)}"


def _by_a_needed_source(block: Block, units: Units, source: Source, needed: frozenset[str]) -> Iterator[str]:
    sources = connected(block, needed)
    conditions = conditions_over(block, sources)
    for schema in (to.BEFORE, to.AFTER):
        rows = to.from_clause(sources, schema, changed=source.alias, keep=lambda each: not has_clock(each))
        for select in select_units(units, schema):
            yield select + rows + to.where(conditions)


def _by_an_optional_source(block: Block, units: Units, source: Source) -> Iterator[str]:
    for select in select_units(units, to.BOTH):
        yield select + _matches(block, source)


def _by_roots(block: Block, units: Units, source: Source, needed: frozenset[str]) -> Iterator[str]:
    root = _root(block, source)
    key = root.input.change_columns
    if root.input.whole:
        is_root = "TRUE"
    else:
        columns = ", ".join(f"{to.quoted(root.alias)}.{to.quoted(name)}" for name in key)
        roots = f"(SELECT DISTINCT {columns}{_matches(block, source)})"
        never_null = frozenset(key) if root.input.keyed and current() is POSTGRES else frozenset[str]()
        is_root = to.is_one_of(roots, [(name, f"{to.ROW}.{to.quoted(name)}") for name in key], never_null)
    sources = connected(block, needed)
    for schema in (to.BEFORE, to.AFTER):
        rows = to.from_clause(sources, schema, restrictions={root.alias: [is_root]})
        for select in select_units(units, schema):
            yield select + rows + to.where(conditions_over(block, sources))


def _matches(block: Block, source: Source) -> str:
    """FROM and WHERE of the rows of both states that join with a changed row of an optional source."""
    sources = connected(block, frozenset({source.alias}))
    rows = to.from_clause(
        sources,
        to.BOTH,
        changed=source.alias,
        inner=frozenset({source.alias}),
        keep=lambda each: not has_clock(each),
    )
    kept = [each for each in without_clock(block.where) if not aliases(each) & block.optional]
    return rows + to.where(kept)


def _root(block: Block, source: Source) -> Source:
    """The source whose rows tell which derivations an optional source may change: one that its ON depends on."""
    chain = {each.alias for each in connected(block, frozenset({source.alias}))}
    mentioned = aliases(*source.on)
    always = [each for each in block.sources if not each.optional and each.alias in chain]
    return next((each for each in always if each.alias in mentioned), always[0])


def connected(block: Block, needed: frozenset[str]) -> tuple[Source, ...]:
    """The sources that a unit is read from: all that are not optional, those needed, and what their ON needs."""
    found = set(needed) | {source.alias for source in block.sources if not source.optional}
    for source in reversed(block.sources):  # an ON mentions earlier sources alone
        if source.alias in found:
            found |= aliases(*source.on)
    return tuple(source for source in block.sources if source.alias in found)


def conditions_over(block: Block, sources: Sequence[Source]) -> list[exp.Expr]:
    """The conjuncts of WHERE that can be asked of these sources, without those of the clock."""
    there = {source.alias for source in sources}
    return [each for each in without_clock(block.where) if aliases(each) <= there]


def restriction(block: Block, units: Units, rows: str) -> tuple[dict[str, list[str]], list[str]]:
    """Return the conditions by which a block's rows of FROM are those of units: by source, and on the joined rows.

    A source is restricted by the units that are made of its columns alone, before it is joined: that is what makes one
    changed row cheap. It is left as it is where a row can be derived without it, since its absence is a value too.
    """
    by_source: dict[str, list[str]] = {}
    covered = False
    for source in block.sources:
        own = [(name, value) for name, value in units if aliases(value) == {source.alias}]
        if own and not source.optional:
            keys = source.input.change_columns if source.input.keyed else ()
            never_null = frozenset(name for name, value in own if isinstance(value, exp.Column) and value.name in keys)
            pairs = [(name, to.of_row(_where_kept(value, block, source))) for name, value in own]
            by_source[source.alias] = [to.is_one_of(rows, pairs, never_null)]
            covered = covered or len(own) == len(units)
    if covered:
        return by_source, []
    return by_source, [to.is_one_of(rows, [(name, to.text(value)) for name, value in units])]


def _where_kept(value: exp.Expr, block: Block, source: Source) -> exp.Expr:
    """Return what a unit is in a row of a source, or NULL where WHERE leaves the row out, for which it may fail."""
    if not may_be_wrong(value):
        return value
    joined = [each for other in block.sources if not other.optional for each in other.on]
    kept = [each.copy() for each in without_clock((*block.where, *joined)) if aliases(each) == {source.alias}]
    return case((exp.and_(*kept), value.copy())) if kept else value
