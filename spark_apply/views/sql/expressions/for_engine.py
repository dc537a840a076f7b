"""The expressions of a block, carried over from Spark to the engine.

What is carried over is listed, with the types for which both give the same value; everything else is refused by name: a
view that is nearly right is wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from sqlglot import exp

from spark_apply.views.sql.expressions.carrier import Carrier, Rule, shown
from spark_apply.views.sql.expressions.engines.dialects import POSTGRES, current
from spark_apply.views.sql.expressions.engines.duckdb import in_duckdb
from spark_apply.views.sql.expressions.engines.postgres import LONGEST_NAME, in_postgres, refusal
from spark_apply.views.sql.expressions.guards import guarded
from spark_apply.views.sql.expressions.rules.aggregates import AGGREGATES
from spark_apply.views.sql.expressions.rules.approximate import APPROXIMATE, AS, OURS
from spark_apply.views.sql.expressions.rules.casts import CASTS
from spark_apply.views.sql.expressions.rules.dates_and_times import INSTANT_FUNCTIONS
from spark_apply.views.sql.expressions.rules.letter_case import LETTERS
from spark_apply.views.sql.expressions.rules.operators import OPERATORS
from spark_apply.views.sql.expressions.rules.texts_and_numbers import FUNCTIONS
from spark_apply.views.sql.reading.blocks import Block
from spark_apply.views.sql.reading.written import Written, kept_as

_RULES: Final[dict[type[exp.Expr], Rule]] = {
    **OPERATORS,
    **CASTS,
    **FUNCTIONS,
    **LETTERS,
    **INSTANT_FUNCTIONS,
    **AGGREGATES,
    **APPROXIMATE,
}


def carried(block: Block, written: Written) -> tuple[Block, tuple[str, ...]]:
    """Return a block with its expressions as the engine has them, and warnings."""
    types = {(source.alias, name): kind for source in block.sources for name, kind in source.input.columns.items()}
    on_postgres = current() is POSTGRES
    if on_postgres:
        _refuse_approximate(block, written)
        _refuse_long_aliases(block, written)
    carry = Carrier(written, _RULES, types, refusal if on_postgres else None)
    outputs = {name: carry.output(value) for name, value in block.outputs.items()}

    def conditions(parts: tuple[exp.Expr, ...]) -> tuple[exp.Expr, ...]:
        return tuple(carry.boolean(each).sql for each in parts)

    made = replace(
        block,
        sources=tuple(replace(source, on=conditions(source.on)) for source in block.sources),
        outputs={name: value.sql for name, value in outputs.items()},
        types={name: value.type for name, value in outputs.items()},
        where=conditions(block.where),
        group=None if block.group is None else tuple(kept_as(carry(each).sql, each) for each in block.group),
        having=conditions(block.having),
        order=tuple(carry(each).sql for each in block.order),
    )
    made = _translated(guarded(made), in_postgres if on_postgres else in_duckdb)
    windows = [each for value in [*made.outputs.values(), *made.order] for each in value.find_all(exp.Window)]
    return replace(made, windows=tuple(windows)), tuple(carry.warnings)


def _refuse_approximate(block: Block, written: Written) -> None:
    """Raise ConfigError for what takes a sketch or a count of every value, before it is asked for anything else."""
    for expression in block.expressions():
        for node in expression.walk():
            if isinstance(node, OURS):
                raise written.refuse(
                    f"{node.meta.get(AS) or shown(node)} is approximate, which `engine: postgres` does not have",
                    at=node,
                    hint="say `engine: duckdb`, which keeps what it takes; count(DISTINCT x) is exact, with any engine",
                )


def _refuse_long_aliases(block: Block, written: Written) -> None:
    """Raise ConfigError for a table whose name in the query PostgreSQL would cut off: another one may be called so."""
    for source in block.sources:
        if len(source.alias.encode()) > LONGEST_NAME:
            raise written.refuse(
                f"{source.alias} is a name of more than {LONGEST_NAME} bytes, which PostgreSQL cuts off",
                hint="give the table a shorter alias, or say `engine: duckdb`",
            )


def _translated(block: Block, written: Callable[[exp.Expr], exp.Expr]) -> Block:
    """Return a block with its expressions as an engine writes them."""

    def every(parts: tuple[exp.Expr, ...]) -> tuple[exp.Expr, ...]:
        return tuple(written(each) for each in parts)

    return replace(
        block,
        sources=tuple(replace(source, on=every(source.on)) for source in block.sources),
        outputs={name: written(value) for name, value in block.outputs.items()},
        where=every(block.where),
        group=None if block.group is None else every(block.group),
        having=every(block.having),
        order=every(block.order),
    )
