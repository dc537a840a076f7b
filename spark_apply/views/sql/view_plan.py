"""What is known of a view before it runs: the statements by which an engine keeps its nodes up to date. Pure.

The rule
========
A view is a graph of nodes: its CTEs, subqueries and branches of UNION ALL, and itself, the last one. A node's rows are
divided into units by its unit columns. An output row can differ between two states only if one of its derivations,
before or after, holds a row that differs (or, of an outer join, has lost or gained its last match): so the units of
such derivations are recomputed, no others, and what differs is the node's change. See docs/views.md.

What an engine must have when it runs a node's statements, by relation R (a captured table or an earlier node):

    before."R"    its rows before the step
    after."R"     its rows after it
    both."R"      the rows of both states
    changed."R"   the distinct values of `Relation.change_columns` of rows that differ
    units."N"     of node N: the distinct units to recompute, filled from `Node.touched` and `Node.due`

Spark's statements read temporary views in their place (`expressions.engines.dialects.stand_in`), and of the rows of
``before``, ``after`` and ``both`` those that differ from views of their own: no table is searched for them.

Of a node the tables before, after and both have its unit columns that are no output columns, then its columns, as
`Node.restricted` gives them, and `changed` its unit columns, NULL among the values. A node without units is recomputed,
by `Node.whole`, where a relation that it reads has changed or a statement of `Node.due` gives a row; nothing reads its
`changed`. The session's time zone is UTC.

A node whose rows no SQL gives has `Node.computed` as well: it is asked before the statements, and what it finds is then

    work."N#found"  rows of the node, by `columns`: all of them, or those that changed rows can have touched
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from cdc.model.change import Kind

if TYPE_CHECKING:
    import pyarrow as pa

CLOCK_BEFORE, CLOCK_AFTER = "$clock_before", "$clock_after"
"""Parameters of statements: the clock of the state before the step and after it, TIMESTAMP without a zone, in UTC."""


@dataclass(frozen=True, slots=True)
class Relation:
    """A table that views may name."""

    name: str
    """``schema.table``."""
    columns: Mapping[str, Kind]
    """In order."""
    change_columns: tuple[str, ...]
    """Its key: what tells its rows apart, never null."""


def found_by(node: str) -> str:
    """Return the name of the table that has what `Node.computed` has found."""
    return f"{node}#found"


@dataclass(frozen=True, slots=True)
class Division:
    """What views.yaml says of the units of a view."""

    full: bool = False
    """Whether the whole is one unit, and may be what cannot be divided: ordered and limited, for one."""
    unit: tuple[str, ...] = ()
    """Columns of the key that divide it; empty: all those that can be shown to."""
    limit: int | None = None
    """Of how many rows a unit may be computed."""


Read = Callable[[str], "pa.RecordBatchReader"]
"""Runs a statement over the relations of a step. A reader must be read to its end before the next statement."""


class Computed(Protocol):
    """Finds the rows of a node that is not computed by SQL."""

    def __call__(self, read: Read, changed: Collection[str], *, whole: bool) -> tuple[pa.Table, pa.Table]:
        """Return rows of the node: all, or each that can differ since rows of these relations differ.

        And the values of `Node.held_by` of which there are no rows because what they come from is wrong, all of them,
        with a `reason`. They go into quarantine.
        """


@dataclass(frozen=True, slots=True)
class Check:
    """What must not be where a node is computed: if a statement gives a row, the view is stopped, and nothing of it."""

    what: str
    """What is wrong then."""
    way_out: str
    hint: str
    """The way out as a hint."""
    restricted: str
    """Over ``after`` and the units in ``units."N"``; may use `CLOCK_AFTER`."""
    whole: str
    """The same of all units."""


@dataclass(frozen=True, slots=True)
class Node:
    """A step of a view. Its statements are SQL of the engine they were made for, one SELECT each."""

    name: str
    """The view's name for the last node; others have a number behind it: ``timeline#1``."""
    reads: tuple[str, ...]
    """The relations that it reads: captured tables, other views, earlier nodes."""
    columns: tuple[str, ...]
    """Names of its output columns, in order."""
    units: tuple[str, ...]
    """Names of its unit columns, in order; of a view they are among `columns`. Empty: the whole is one unit."""
    divided_by: tuple[str, ...]
    """What its units are, for people: `units`, with expressions of the SQL for those that are not in `columns`."""
    touched: tuple[str, ...]
    """Their union has, by `units` in order, every unit that changed rows can touch; it may have more. Where the clock
    moves units, they use `CLOCK_BEFORE` and `CLOCK_AFTER`."""
    due: tuple[str, ...]
    """The same for units that the clock alone can touch; uses `CLOCK_BEFORE` and `CLOCK_AFTER`."""
    next_due: tuple[str, ...]
    """Each gives one value: the earliest instant after `CLOCK_AFTER` at which the clock touches a unit, or null."""
    restricted: str
    """Unit columns that are not in `columns`, then `columns`, of the units in ``units."N"``, over ``after``; may use
    `CLOCK_AFTER`."""
    whole: str
    """The same of all units."""
    every: str = ""
    """All units, in `units` order, without computing rows of them: it may have more; may use `CLOCK_AFTER`. Not of a
    node that has `computed`, or no units."""
    derived: tuple[str, ...] = ()
    """What `touched` is if it is asked which rows a unit comes from; empty: the same. Here a row differs in any way."""
    computed: Computed | None = None
    """Finds what is then in ``work."N#found"``; None: the statements are all there is."""
    lookups: tuple[tuple[str, str], ...] = ()
    """Relations, and columns of them by which the statements look rows up: where an engine has indexes, these help."""
    held_by: tuple[str, ...] = ()
    """Columns by which rows go into quarantine together; empty: `units`."""
    checks: tuple[Check, ...] = ()
    """They come before `restricted` and `whole`."""


@dataclass(frozen=True, slots=True)
class ViewPlan:
    """Everything that keeps a view up to date."""

    name: str
    key: tuple[str, ...]
    """Output columns; every unit column of the last node is one of them."""
    nodes: tuple[Node, ...]
    """In the order in which they are computed; the last one is the view."""
    reads: tuple[str, ...]
    """Captured tables and other views that it reads, sorted."""
    uses_clock: bool
    null_keys: bool = False
    """Whether a key may be null: it is that of a group, and nulls are one group."""
    unique_key: bool = False
    """Whether the SQL alone shows that no two rows have one key."""
    warnings: tuple[str, ...] = ()
    """What a user should know though it is no error."""
    divided: Division = Division()
