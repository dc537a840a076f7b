"""A SELECT with its names resolved: tables that it reads, and its clauses over their columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from sqlglot import exp


class Side(Enum):
    """How a source is joined to those before it."""

    INNER = "JOIN"
    LEFT = "LEFT JOIN"
    SEMI = "SEMI JOIN"
    ANTI = "ANTI JOIN"


@dataclass(frozen=True, slots=True)
class Input:
    """What a block can read: a captured table, another view, or a node made before."""

    name: str
    columns: Mapping[str, str]
    """Visible columns in order, with their types in Spark."""
    change_columns: tuple[str, ...]
    unique: tuple[str, ...] | None
    """Columns that tell its rows apart, if such are known."""
    whole: bool = False
    """A node without units: it counts as changed all over."""
    keyed: bool = False
    """Whether no change column is ever null."""


@dataclass(frozen=True, slots=True)
class Source:
    """One occurrence of an input in FROM."""

    alias: str
    input: Input
    side: Side
    on: tuple[exp.Expr, ...]
    """Conjuncts."""

    @property
    def optional(self) -> bool:
        """Whether a row can be derived without a row of it."""
        return self.side is not Side.INNER


@dataclass(frozen=True, slots=True)
class Block:
    """One SELECT over sources. Its expressions are the engine's; columns are named by source and column.

    Each source's ON mentions that source and earlier ones alone.
    """

    sources: tuple[Source, ...]
    outputs: Mapping[str, exp.Expr]
    types: Mapping[str, str]
    """The outputs' types in Spark."""
    where: tuple[exp.Expr, ...] = ()
    group: tuple[exp.Expr, ...] | None = None
    """None: no aggregation. Empty: one row of all."""
    having: tuple[exp.Expr, ...] = ()
    distinct: bool = False
    order: tuple[exp.Expr, ...] = ()
    limit: exp.Expr | None = None
    windows: tuple[exp.Window, ...] = field(default=())
    groups: bool = False
    """Whether its rows are groups that a node has, whose key may be null, though it has no GROUP BY itself."""

    @property
    def plain(self) -> bool:
        """Whether each output row comes from one row of FROM alone."""
        return self.group is None and not self.distinct and not self.windows and self.limit is None

    @property
    def optional(self) -> frozenset[str]:
        """The aliases of sources that a row can be derived without."""
        return frozenset(source.alias for source in self.sources if source.optional)

    def expressions(self) -> Iterator[exp.Expr]:
        """All expressions, conjunct by conjunct."""
        for source in self.sources:
            yield from source.on
        yield from self.where
        yield from self.group or ()
        yield from self.having
        yield from self.outputs.values()
        yield from self.order


def column(alias: str, name: str) -> exp.Column:
    """A column of a source."""
    return exp.column(exp.to_identifier(name, quoted=True), table=exp.to_identifier(alias, quoted=True))


def aliases(*expressions: exp.Expr) -> frozenset[str]:
    """The sources that expressions mention."""
    return frozenset(found.table for each in expressions for found in each.find_all(exp.Column))


def operand(expression: exp.Expr) -> exp.Expr:
    """An expression that stays one part wherever it is put."""
    if isinstance(expression, exp.Paren) or not isinstance(expression, exp.Binary | exp.Unary | exp.Between | exp.In):
        return expression
    return exp.Paren(this=expression)


def conjuncts(condition: exp.Expr | None) -> tuple[exp.Expr, ...]:
    """The parts of a condition that are joined by AND."""
    if condition is None:
        return ()
    condition = condition.unnest()
    if isinstance(condition, exp.And):
        return conjuncts(condition.this) + conjuncts(condition.expression)
    return (condition,)


CLOCK = "$clock"
"""What stands for `clock()` in a block's expressions until a statement is made of them."""


def clock(at: exp.Expr) -> exp.Var:
    """`clock()` as a block has it, with its place in the SQL."""
    found = exp.Var(this=CLOCK)
    found.meta.update(at.meta)
    return found


def has_clock(expression: exp.Expr) -> bool:
    """Whether an expression holds `clock()`."""
    return any(each.name == CLOCK for each in expression.find_all(exp.Var))


def without_clock(expressions: Iterable[exp.Expr]) -> tuple[exp.Expr, ...]:
    """The conjuncts that do not depend on the clock."""
    return tuple(each for each in expressions if not has_clock(each))


def unlike(name: str, blocks: Sequence[Block]) -> str:
    """Return a name, or one made of it, that no output column has."""
    taken = {output.casefold() for block in blocks for output in block.outputs}
    while name in taken:
        name = f"_{name}"
    return name
