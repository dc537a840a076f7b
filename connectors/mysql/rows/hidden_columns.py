"""Follows, in the text of DDL, where the values go that a rule lets nobody see: to no name that is published.

A rule names a column, and a column may get another name while its old one is given to another column, before anybody
looks at the table: `RENAME COLUMN email TO old_email`, then `ADD COLUMN email`. The catalog does not show that, and on
these servers a new column may stand anywhere. But each statement is in the log. So for each table of such a rule there
is a set of names under which hidden values stand, which begins with the rule's own and goes through every statement:
`RENAME COLUMN`, `CHANGE`, `RENAME TABLE`, and `CREATE TABLE … LIKE`, by which tools for online DDL make the table that
takes the other's name. A name in it that the rule does not have stops the connector before a row is published.

Nothing passes because the log does not tell: a statement that is not understood, a table that has taken the name of one
with such a rule, and rows with a column that no statement has added, stop it if a column is there that nobody knows.
Rows that are read by SELECT wait until the log has been followed to the place at which they were read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from cdc.config.source_config import SourceConfig
from cdc.model.change import Table
from cdc.model.errors import OperatorError
from cdc.rules.capture_rules import CaptureRules, TableRules, stand_in
from connectors.mysql.binlog.positions import BinlogPosition
from connectors.mysql.statements.column_moves import ColumnMoves, small
from connectors.mysql.statements.ddl import Altered, Dropped, Emptied, Filled, Partitions, Renamed
from connectors.mysql.statements.judgement import Judgement
from connectors.mysql.statements.tokens import Name

_MOST: Final = 10_000


@dataclass(frozen=True, slots=True)
class Columns:
    """Says what the names of a table's columns stand for."""

    hidden: frozenset[str]
    """Names under which values stand that a rule hides."""
    known: frozenset[str] | None
    """Names that the log or the topics have told of; None: every name, for the table was made with them."""


class HiddenColumns:
    """Knows the tables of rules that hide columns, and tables that were made like them."""

    def __init__(self, config: SourceConfig, compared: Callable[[Name], Name]) -> None:
        """`compared` gives a table's name as the server compares it."""
        self._rules, self._compared = CaptureRules.of_source(config), compared
        self._of: dict[Name, Columns] = {}
        self._before: dict[Name, frozenset[str]] = {}
        """What was known of tables of these names that have gone, or have other names now."""
        self._strangers: set[Name] = set()
        """Tables that have taken the name of one with a rule, and of which the log has not told how they were made."""

    def __bool__(self) -> bool:
        return bool(self._rules)

    def begin(self, tables: Iterable[Table], described: Mapping[Name, Iterable[str]]) -> None:
        """Take the captured tables, and the columns that the topics have told of each; of some with their stand-ins."""
        for table in tables:
            name = self._compared((table.schema, table.name))
            if self.hides(name):
                said = set(described.get(name) or (column.name for column in table.columns))
                named = self._named(name)
                has = any(small(one) in named for one in said) or any(
                    stand_in(table.qualified, one) in said for one in self._as_written(name)
                )  # a rule of a pattern may name columns that this table has not
                self._of[name] = Columns(named, frozenset(map(small, said)) if has else None)

    def hides(self, name: Name) -> bool:
        """Tell whether a rule names columns of a table that must not be published, and not those that are."""
        of = self._rule(name)
        return of is not None and bool(of.named) and not (of.columns is not None and of.columns.include)

    def _rule(self, name: Name) -> TableRules | None:
        try:
            return self._rules.of(".".join(name)) if self._rules else None
        except OperatorError:  # of two patterns, which a start refuses for a table that is captured
            return None

    def _as_written(self, name: Name) -> tuple[str, ...]:
        of = self._rule(name)
        return () if of is None else of.named

    def _named(self, name: Name) -> frozenset[str]:
        return frozenset(map(small, self._as_written(name)))

    def _publishes_only_named(self, name: Name) -> bool:
        of = self._rule(name)
        return of is not None and of.columns is not None and bool(of.columns.include)

    def of_statement(
        self, said: Judgement, at: BinlogPosition, captured: Callable[[Name], bool], *, but: Iterable[Name] = ()
    ) -> None:
        """Follow one statement. Raises OperatorError where what is hidden would be published.

        `captured`: whether rows of a table of this name are published, or will be. `but`: temporary tables.
        """
        if not self._rules:
            return
        match said:
            case Altered(name) if (table := self._compared(name)) not in but:
                self._altered(said, table, at, captured)
            case Filled(name) if self.hides(table := self._compared(name)):
                self._took(table)
            case Renamed(pairs):
                for old, _ in pairs:
                    if said.moves is not None and (table := self._compared(old)) in self._of and table not in but:
                        self._of[table] = self._moved(self._of[table], said.moves, table, at)
                self._rename([(self._compared(old), self._compared(new)) for old, new in pairs], at, captured, set(but))
            case Emptied(tables, dropped) if dropped:
                for table in map(self._compared, tables):
                    if table not in but:
                        self._made(table, said.like)
                        self._check(table, at, captured)
            case Dropped(database):
                for table in [of for of in self._of if of[0] == self._compared((database, ""))[0]]:
                    self._made(table, None)
            case Partitions(name, others):
                for other in map(self._compared, others):  # EXCHANGE: both have the same columns
                    if self._compared(name) in self._of and other not in self._of:
                        self._keep(other, self._of[self._compared(name)])
                    self._check(other, at, captured)

    def _altered(self, said: Altered, table: Name, at: BinlogPosition, captured: Callable[[Name], bool]) -> None:
        if not said.made:
            if table in self._of:
                self._move(table, said.moves, at, captured)
            return
        before = self._of.get(table) if said.unless_there else None
        stranger = table in self._strangers
        self._made(table, said.like)
        if before is not None:  # what is hidden in the one that may be there stays so
            made = self._of.get(table, before)
            self._keep(table, replace(before, hidden=before.hidden | made.hidden))
            self._strangers |= {table} if stranger else set()
        self._check(table, at, captured)

    def _keep(self, table: Name, columns: Columns) -> None:
        if len(self._of) >= _MOST:
            others = (of for of in self._of if not self.hides(of))
            self._of.pop(next(others, next(iter(self._of))))
        self._of[table] = columns

    def _made(self, table: Name, like: Name | None) -> None:
        """Note that a table was made, or is gone: what its columns are called is said once and for all."""
        self._strangers.discard(table)
        self._note_before(table)
        source = None if like is None else self._compared(like)
        if source is not None and source in self._of:
            self._keep(table, replace(self._of[source], hidden=self._of[source].hidden | self._named(table)))
        elif self.hides(table):
            self._keep(table, Columns(self._named(table), None))
        else:
            self._of.pop(table, None)

    def _note_before(self, table: Name) -> None:
        known = self._of[table].known if table in self._of else None
        if known is not None:
            self._before[table] = known

    def _took(self, table: Name) -> None:
        """Note that a table has a name now of whose making the log has not told."""
        self._note_before(table)
        self._keep(table, Columns(self._named(table), self._before.get(table, frozenset())))
        self._strangers.add(table)

    def _moved(self, columns: Columns, moves: ColumnMoves, table: Name, at: BinlogPosition) -> Columns:
        if not moves.sure:
            raise OperatorError(
                f"table {'.'.join(table)}: the statement in the log at {at} cannot be read to its end: a column that "
                "source.columns hides may have another name by now, and would be published",
                hint=f"compare the table with source.columns, and say with include: […] which columns of "
                f"{'.'.join(table)} are published",
            )
        known = columns.known
        return Columns(moves.after(columns.hidden), known if known is None else moves.after(known) | set(moves.added))

    def _move(self, table: Name, moves: ColumnMoves, at: BinlogPosition, captured: Callable[[Name], bool]) -> None:
        self._of[table] = self._moved(self._of[table], moves, table, at)
        self._check(table, at, captured)

    def _rename(
        self,
        pairs: Sequence[tuple[Name, Name]],
        at: BinlogPosition,
        captured: Callable[[Name], bool],
        but: set[Name],
    ) -> None:
        for old, new in pairs:
            if old in but:
                continue
            stranger = old in self._strangers
            self._strangers -= {old, new}
            self._note_before(old)
            columns = self._of.pop(old, None)
            if columns is not None and not stranger:
                self._keep(new, columns)
            elif self.hides(new):
                self._took(new)
        for _, new in pairs:
            self._check(new, at, captured)

    def _check(self, table: Name, at: BinlogPosition, captured: Callable[[Name], bool]) -> None:
        """Raise if a table that is published has hidden values under a name that its rule does not have."""
        if table not in self._of or self._publishes_only_named(table) or not captured(table):
            return
        seen = ", ".join(sorted(self._of[table].hidden - self._named(table)))
        if seen:
            name = ".".join(table)
            raise OperatorError(
                f"source.columns: table {name}: by the statement in the log at {at} its column {seen} has, or may "
                "have, what must not be published: the column or the table had another name, or is made like one",
                hint=f"add {seen} to the rule of {name}, beside the names that it has; or leave the table out of "
                f'tables: "!{name}"',
            )

    def strange(self, table: Name, names: Iterable[str]) -> list[str]:
        """Return those of a table's columns of which the log has not told where they come from."""
        of = self._of.get(table)
        if of is None or of.known is None or not self.hides(table):
            return []
        known = of.known | of.hidden
        return [name for name in names if small(name) not in known]

    def refuse_strange(self, table: Name, names: Iterable[str], at: BinlogPosition) -> None:
        """Raise OperatorError for columns of rows in the log which no statement has added, or of a stranger."""
        strange = self.strange(table, names)
        if strange:
            what = "another table has taken its name" if table in self._strangers else "no statement in the log tells"
            raise OperatorError(
                f"source.columns: table {'.'.join(table)} has {', '.join(strange)} in the log at {at}, which nobody "
                f"knows: {what}, and what must not be published may be in there",
                hint=f"if it holds what must not be published, add {strange[0]} to the rule; if not, say with "
                "include: […] which columns are published",
            )
