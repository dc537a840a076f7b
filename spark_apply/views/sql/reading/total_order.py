"""Which rows an order tells apart: without one, row_number() and the like would not be the same each time.

Known columns of a block grow by what follows from them: by the columns that tell an input's rows apart, all of its
columns; by an equality, the other side. Of an optional source (LEFT JOIN) the row is known by its own columns, or by an
equality with a source whose row is known; from its columns nothing follows for the source it is joined to. Of a table
that is looked up as it was, a key has one version at most for each time, or position, that looks it up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from sqlglot import exp

from spark_apply.views.model.uses import FROM_POSITION, VALID_FROM
from spark_apply.views.sql.reading.blocks import Block, Side, Source, aliases, column
from spark_apply.views.sql.reading.written import Written, as_written

_ORDERED = (exp.RowNumber, exp.Ntile, exp.Lag, exp.Lead, exp.FirstValue, exp.LastValue, exp.NthValue)


def check_orders(block: Block, written: Written) -> None:
    """Refuse windows and limits whose answer depends on the order of rows that their ORDER BY does not tell apart."""
    for window in block.windows:
        function = _function(window)
        order = window.args.get("order")
        by_rows = window.args.get("spec") is not None and str(window.args["spec"].args.get("kind")).upper() == "ROWS"
        framed = by_rows and not _whole_frame(window.args["spec"])
        if not isinstance(function, _ORDERED) and not framed:
            continue
        ordered = [each.this for each in order.expressions] if order is not None else []
        missing = _missing(block, [*ordered, *(window.args.get("partition_by") or ())])
        if missing:
            raise written.refuse(
                f"{as_written(function)} has no total order: rows that are equal in it could come in any order",
                at=window,
                hint=f"add to its ORDER BY: {', '.join(missing)}",
            )
    if block.limit is not None:
        missing = _missing(block, [each.this for each in block.order])
        if missing:
            raise written.refuse(
                "LIMIT has no total order: rows that are equal in it could come in any order",
                at=block.limit,
                hint=f"add to ORDER BY: {', '.join(missing)}",
            )


def _function(window: exp.Expr) -> exp.Expr:
    """Return what is computed over a window, without the words that say of which of its rows."""
    function: exp.Expr = window.this
    while isinstance(function, exp.IgnoreNulls | exp.RespectNulls | exp.Filter):
        function = function.this
    return function


def _whole_frame(spec: exp.Expr) -> bool:
    return spec.args.get("start") == "UNBOUNDED" and spec.args.get("end") == "UNBOUNDED"


def _missing(block: Block, given: Sequence[exp.Expr]) -> list[str]:
    """Return the columns that are missing to tell rows apart; none if none are."""
    if block.group is not None:
        return [as_written(each) for each in block.group if each not in given]
    known = set(_columns(given))
    fixed = _closure(block, known)
    if block.distinct:  # rows that are equal in all outputs are one
        return [as_written(each) for each in block.outputs.values() if not _is_known(each, given, known, fixed)]
    if block.outputs and all(each in given for each in _used(block)):
        return []
    missing = []
    for source in block.sources:
        if source.side in (Side.INNER, Side.LEFT) and source.alias not in fixed:
            parts = _apart(source) or [(source.alias, name) for name in source.input.columns]
            missing += [as_written(column(alias, name)) for alias, name in parts if alias == source.alias]
            known |= set(parts)
            fixed = _closure(block, known)
    return missing


def _used(block: Block) -> Iterator[exp.Column]:
    """Yield the columns of which the output is made: rows that are equal in them can change places."""
    for value in block.outputs.values():
        yield from value.find_all(exp.Column)


def _columns(given: Iterable[exp.Expr]) -> Iterator[tuple[str, str]]:
    for each in given:
        if isinstance(each, exp.Column):
            yield each.table, each.name


def _closure(block: Block, given: set[tuple[str, str]]) -> set[str]:
    """Return the sources whose row is told apart by the columns given."""
    known = set(given)
    fixed: set[str] = set()
    required = [each for each in block.where if isinstance(each, exp.EQ | exp.NullSafeEQ)]
    for source in block.sources:
        if source.side is Side.INNER:
            required += [each for each in source.on if isinstance(each, exp.EQ | exp.NullSafeEQ)]
    for each in block.where:  # a row without a match, of which all columns are known
        if isinstance(each, exp.Is) and isinstance(each.this, exp.Column) and isinstance(each.expression, exp.Null):
            known.add((each.this.table, each.this.name))
    while True:
        before = len(known), len(fixed)
        for each in required:
            for one, other in ((each.this, each.expression), (each.expression, each.this)):
                if isinstance(other, exp.Column) and all(part in known for part in _all_columns(one)):
                    known.add((other.table, other.name))
        for source in block.sources:
            if source.side is Side.LEFT:
                known |= _by_match(source, fixed)
            if _is_fixed(source, known):
                fixed.add(source.alias)
                known |= {(source.alias, name) for name in (*source.input.columns, *source.input.change_columns)}
        if (len(known), len(fixed)) == before:
            return fixed


def _all_columns(value: exp.Expr) -> list[tuple[str, str]]:
    return [(each.table, each.name) for each in value.find_all(exp.Column)]


def _by_match(source: Source, fixed: set[str]) -> set[tuple[str, str]]:
    """Return the columns of an optional source that are equal to what is known of sources whose row is known."""
    found = set()
    for each in source.on:
        if isinstance(each, exp.EQ | exp.NullSafeEQ):
            for one, other in ((each.this, each.expression), (each.expression, each.this)):
                if isinstance(other, exp.Column) and other.table == source.alias and aliases(one) <= fixed:
                    found.add((other.table, other.name))
    return found


def _is_fixed(source: Source, known: set[tuple[str, str]]) -> bool:
    parts = _apart(source)
    return parts is not None and known.issuperset(parts)


def _apart(source: Source) -> list[tuple[str, str]] | None:
    """Return the columns that tell a source's rows apart, if such are known; of versions also what looks them up."""
    names = source.input.unique
    if names is None or FROM_POSITION not in names:
        return None if names is None else [(source.alias, name) for name in names]
    begins = {(source.alias, FROM_POSITION), (source.alias, VALID_FROM)}
    looked_up = [parts for each in source.on if begins & set(parts := _all_columns(each))]
    times = {part for parts in looked_up for part in parts if part[0] != source.alias}
    return [*((source.alias, name) for name in names if name != FROM_POSITION), *sorted(times)]


def _is_known(value: exp.Expr, given: Sequence[exp.Expr], known: set[tuple[str, str]], fixed: set[str]) -> bool:
    """Whether a value is one and the same wherever what is given is."""
    parts = _all_columns(value)
    return value in given or all(alias in fixed or (alias, name) in known for alias, name in parts)


def undetermined(block: Block, key: Iterable[str]) -> list[str]:
    """Return what rows of a view may differ in though they have one key."""
    given = [block.outputs[name] for name in key if name in block.outputs]
    if block.group is None and not block.distinct:
        return _missing(replace(block, outputs={}), given) if given else []
    known = set(_columns(given))
    fixed = _closure(block, known)
    return [
        as_written(each)
        for each in (block.outputs.values() if block.distinct else block.group or ())
        if not _is_known(each, given, known, fixed)
    ]


def unique_outputs(block: Block) -> tuple[str, ...] | None:
    """Return output columns of a block that tell its rows apart, as few as are found, or None."""
    if block.group is not None and not block.distinct:
        names = [next((name for name, value in block.outputs.items() if value == each), None) for each in block.group]
        return tuple(name for name in names if name is not None) if None not in names else None
    if block.distinct:
        return tuple(block.outputs)
    bare = {name: value for name, value in block.outputs.items() if isinstance(value, exp.Column)}
    every = {source.alias for source in block.sources if source.side in (Side.INNER, Side.LEFT)}

    def tells_apart(names: Iterable[str]) -> bool:
        return every <= _closure(block, set(_columns(bare[name] for name in names)))

    if not tells_apart(bare):
        return None
    kept = list(bare)
    for name in reversed(list(bare)):
        fewer = [each for each in kept if each != name]
        if tells_apart(fewer):
            kept = fewer
    return tuple(kept)
