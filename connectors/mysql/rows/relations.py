"""Finds the table of a row in the log, as it was then: by what the log itself says of its columns and key."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from cdc.config.config import SourceConfig
from cdc.model.change import Change, Op, Table
from cdc.model.errors import GapError, OperatorError, RetryableError
from cdc.model.table_schema import Description
from connectors.mysql.binlog import events
from connectors.mysql.binlog.positions import BinlogPosition
from connectors.mysql.catalog.catalog import Captured, Catalog
from connectors.mysql.rows import holes, partial_images, row_images
from connectors.mysql.rows.judgement import Both, Hangs, Judgement, Temporary, tables_of
from connectors.mysql.rows.statements import (
    Altered,
    ChangesRows,
    Dropped,
    Emptied,
    Filled,
    Name,
    Partitions,
    Renamed,
)
from connectors.mysql.rows.temporary_tables import NOBODY, Session, TemporaryTables
from connectors.mysql.values import mapping

log = logging.getLogger("cdc")


class Followed:
    """Knows the captured tables as one session found them, and what the log has said of them since."""

    def __init__(self, config: SourceConfig, captured: Sequence[Captured]) -> None:
        self._config = config
        self._now: dict[Name, Table] = {}
        self._filled = {(c.table.schema, c.table.name): c.filled for c in captured}
        self._marks = {(c.table.schema, c.table.name): c.table.marks for c in captured}
        self._known: dict[Name, Description] = {}
        self._holes = holes.Holes(stops=config.on_hole == "stop")
        self._temporary = TemporaryTables()
        self._described: dict[object, tuple[Table, row_images.Reader]] = {}
        self._last: dict[Name, tuple[events.TableMap, tuple[Table, row_images.Reader]]] = {}
        """Holds what was found last, since looking up a description takes as long as reading a row."""
        for one in captured:
            self._now[one.table.schema, one.table.name] = one.table

    def recall(self, described: Mapping[Name, Sequence[Description]]) -> None:
        """Remember what the topics say of the tables, oldest first."""
        self._known = {name: said[-1] for name, said in described.items() if said}

    def wanted(self, told: events.TableMap) -> bool:
        """Tell whether the table is captured."""
        return (told.schema, told.table) in self._now

    def table(self, told: events.TableMap, at: BinlogPosition) -> tuple[Table, row_images.Reader] | None:
        """Return the table of rows in the log, and what decodes them; None: it is not captured."""
        name = (told.schema, told.table)
        last = self._last.get(name)
        if last is not None and last[0].columns is told.columns and last[0].primary_key == told.primary_key:
            return last[1]
        if name not in self._now:
            return None
        of = (name, told.columns, told.primary_key)
        found = self._described.get(of)
        if found is None:
            found = self._described[of] = (self._describe(told, name, at), row_images.Reader(told))
        self._now[name] = found[0]
        self._last[name] = told, found
        return found

    def _describe(self, told: events.TableMap, name: Name, at: BinlogPosition) -> Table:
        if not told.has_metadata:
            raise GapError(
                f"table {'.'.join(name)}: the log at {at} has no names of its columns: it was written without "
                "binlog_row_metadata = FULL, and today's columns may not be those of then",
                hint="SET PERSIST binlog_row_metadata = FULL (MariaDB: SET GLOBAL); then "
                "cdc snapshot start CONNECTOR.yaml --after-gap",
            )
        columns = tuple(mapping.column(column) for column in told.columns)
        names = [column.name for column in columns]
        wanted = self._config.keys.get(".".join(name), ())
        key = tuple(wanted) or tuple(names[index] for index, _ in told.primary_key or ())
        known = self._known.get(name)
        if not set(key) <= set(names) or not key:
            before = known.key if known is not None else self._now[name].key
            if not before or not set(before) <= set(names):
                raise GapError(
                    f"table {'.'.join(name)} has no primary key in the log at {at}: its rows cannot be told apart",
                    hint=f"ALTER TABLE {'.'.join(name)} ADD PRIMARY KEY (…), or tables: [{{table: {'.'.join(name)}, "
                    "key: […]}]; then cdc snapshot start CONNECTOR.yaml --after-gap",
                )
            key = before
        filled = self._filled.get(name, frozenset())
        columns = tuple(replace(c, filled=c.name in filled) for c in columns)
        table = Table(*name, columns, key, self._marks.get(name, ()))
        self._known[name] = Description.of(table)
        return table

    def changes(
        self,
        event: events.Rows | events.PartialUpdateRows,
        known: tuple[Table, row_images.Reader],
        at: BinlogPosition,
    ) -> Iterable[Change]:
        """Give the rows of one event, which begins at `at`; rows of which parts are missing are to be read again."""
        table, read = known
        try:
            if isinstance(event, events.PartialUpdateRows):
                told = self._last[table.schema, table.name][0]
                images = partial_images.images(event, told.columns)
            elif event.whole:
                return read.changes(event, table, at.offset)
            else:
                images = read(event)
        except ValueError as exc:
            raise OperatorError(
                f"table {table.qualified}, the log at {at}: {exc}",
                hint="repair the row (its bytes are not of the column's character set), or leave the table out",
            ) from None
        partial = isinstance(event, events.PartialUpdateRows)
        op = Op.UPDATE if isinstance(event, events.PartialUpdateRows) else event.op
        return list(self._holes.of_images(op, table, images, at, partial=partial))

    def unsure(self, names: Iterable[Name], at: BinlogPosition) -> Iterator[Change]:
        """Give what follows of a transaction, begun at `at`, of which a part was rolled back: its tables are read."""
        for name in sorted(set(names) & self._now.keys()):
            yield self._holes.rolled_back(self._now[name], at)

    def restarted(self) -> None:
        """Note that the server has started again: no session goes on."""
        self._temporary.clear()

    def of_statement(
        self,
        said: Judgement,
        at: BinlogPosition,
        catalog: Callable[[], Catalog],
        session: Session = NOBODY,
    ) -> Iterator[Change]:
        """Give what a statement does to the captured tables. Raises for what no event tells of."""
        match said:
            case Both(filled, written):
                yield from self.of_statement(filled, at, catalog, session)
                yield from self.of_statement(written, at, catalog, session)
            case Temporary(tables, made):
                for name in tables if made else ():
                    self._temporary.made(session, name)
                self._temporary.dropped(session, () if made else tables)
            case Hangs(dropped):
                yield from self._holes.altered(self._now, at, dropped=dropped)
            case ChangesRows(verb, tables):
                if tables is not None:
                    tables = tuple(name for name in tables if not self._temporary.has(session, name))
                yield from self._holes.of_statement(verb, tables, self._now, at, catalog)
            case _:
                yield from self._of_ddl(said, at, catalog, session)

    def _of_ddl(
        self, said: Judgement, at: BinlogPosition, catalog: Callable[[], Catalog], session: Session
    ) -> Iterator[Change]:
        names = tables_of(said)
        database = said.database if isinstance(said, Dropped) else None
        concerns = any(name in names or name[0] == database for name in self._holes.looked_at())
        yield from self._holes.altered(self._now, at, dropped=concerns)
        hidden = {name for name in names if self._temporary.has(session, name)}
        if hidden or (session.specific and not hidden and self._now.keys() & set(names)):
            if isinstance(said, Emptied) and said.dropped:
                self._temporary.dropped(session, hidden)
            elif isinstance(said, Renamed):
                self._temporary.dropped(session, [old for old, _ in said.tables if old in hidden])
                for old, new in said.tables:
                    if old in hidden:
                        self._temporary.made(session, new)
            others = sorted((set(names) - hidden) & self._now.keys())
            yield from self._holes.of_statement("DDL of a temporary table", tuple(others), self._now, at, catalog)
            return
        match said:
            case Emptied(tables, _):
                for name in tables:
                    if name in self._now:
                        yield Change(Op.TRUNCATE, self._now[name], None, None, (at.offset, 0))
                    elif self._matches(name):
                        self._look(name, catalog)
            case Dropped(database):
                for name in [name for name in self._now if name[0] == database]:
                    yield Change(Op.TRUNCATE, self._now[name], None, None, (at.offset, 0))
            case Renamed(pairs):
                yield from self._renamed(pairs, at, catalog)
            case Altered(name) | Filled(name) | Partitions(name):
                if name in self._now:
                    self._learn(name, catalog)
                    if not isinstance(said, Altered):
                        log.warning(
                            "table %s: rows have come or gone without events in the log at %s", ".".join(name), at
                        )
                        yield self._others(name, at)
                elif self._matches(name):
                    self._look(name, catalog)

    def _renamed(
        self, pairs: Sequence[tuple[Name, Name]], at: BinlogPosition, catalog: Callable[[], Catalog]
    ) -> Iterator[Change]:
        left = {old for old, _ in pairs if old in self._now}
        taken = {new for _, new in pairs if new in self._now}
        for name in sorted(taken):
            log.warning("table %s: another table has taken its name in the log at %s", ".".join(name), at)
            self._learn(name, catalog)
            yield self._others(name, at)
        for name in sorted(left - taken):
            new = next(new for old, new in pairs if old == name)
            if self._matches(new):
                raise RetryableError(
                    f"table renamed: {'.'.join(name)} is {'.'.join(new)} now: it is taken up under that name, in a "
                    "topic of its own"
                )
            if not catalog().exists(*name):
                raise OperatorError(
                    f"table renamed: {'.'.join(name)} is {'.'.join(new)} now, which source.tables does not name: what "
                    "is written to it since is not captured",
                    hint=f"in source.tables write {'.'.join(new)} in place of {'.'.join(name)}: it is read into a "
                    f"topic of its own; or take the name back: RENAME TABLE {'.'.join(new)} TO {'.'.join(name)}",
                )
        for _, new in pairs:
            if new not in self._now and self._matches(new):
                self._look(new, catalog)

    def _others(self, name: Name, at: BinlogPosition) -> Change:
        """Say that what was written to the rows that the table has now may never have been captured."""
        table = self._now[name] = replace(self._now[name], marks=self._marks.get(name, ()))
        return Change(Op.READ, table, None, None, (at.offset, 0))

    def _learn(self, name: Name, catalog: Callable[[], Catalog]) -> None:
        """Describe the next of its rows again, with what the catalog says: they may be others by now."""
        now = catalog().find(*name, self._config.keys)
        if now is not None:
            self._filled[name], self._marks[name] = now.filled, now.table.marks
        self._last.pop(name, None)
        for of in [of for of, (table, _) in self._described.items() if (table.schema, table.name) == name]:
            del self._described[of]

    def _matches(self, name: Name) -> bool:
        return self._config.captures(".".join(name))

    def _look(self, name: Name, catalog: Callable[[], Catalog]) -> None:
        try:
            found = catalog().find(*name, self._config.keys)
        except OperatorError as exc:
            log.warning("%s; it is left out of what source.tables names; %s", exc.message, exc.hint)
            return
        if found is not None:
            raise RetryableError(f"table {'.'.join(name)} is new: it is taken up")
