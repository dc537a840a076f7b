"""Finds the table of a row in the log, as it was then: by what the log itself says of its columns and key.

A statement in the log that changes a table is followed at once, with what the catalog says of the table by then: a new
description is published, and the rows are read again where their values may have changed without events.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from cdc.config.source_config import SourceConfig
from cdc.config.table_patterns import chooses
from cdc.model.change import Change, Described, Op, Table
from cdc.model.errors import ChangedError, OperatorError, VerdictError
from cdc.model.table_schema import Description, stale_reason
from connectors.mysql.binlog import events
from connectors.mysql.binlog.positions import BinlogPosition
from connectors.mysql.catalog.catalog import Captured, Catalog, comes_back, recalled, unreadable_key
from connectors.mysql.catalog.foreign_keys import ForeignKey
from connectors.mysql.catalog.names import as_compared
from connectors.mysql.rows import holes, own_columns, partial_images, row_images
from connectors.mysql.rows.cascades import Cascades
from connectors.mysql.rows.hidden_columns import HiddenColumns
from connectors.mysql.rows.kept_rules import KeptRules
from connectors.mysql.rows.own_columns import OwnColumns, OwnReader, RowReader, Shown
from connectors.mysql.statements.ddl import (
    Altered,
    ChangesRows,
    Dropped,
    Emptied,
    Filled,
    Granted,
    Partitions,
    Renamed,
    XaEnded,
)
from connectors.mysql.statements.judgement import Both, Hangs, Judgement, Temporary, relinked, tables_of
from connectors.mysql.statements.temporary_tables import NOBODY, Session, TemporaryTables
from connectors.mysql.statements.tokens import Name
from connectors.mysql.values import mapping

log = logging.getLogger("cdc")

_AGAIN_S: Final = 5.0
"""How long another table may take to take the name of one that was renamed, or one to have a key again that has lost
it: by the next statement, as a rule."""
_PAUSE_S: Final = 0.1
_OLD_TIMES: Final = "have times in the format of MariaDB before 10.1, of columns that are others now"


class Followed:
    """Knows the captured tables as one session found them, and what the log has said of them since.

    Names are as the server compares them: see `catalog.names`.
    """

    def __init__(
        self,
        config: SourceConfig,
        captured: Sequence[Captured],
        *,
        folds: bool = False,
        mariadb: bool = False,
        restricted: Callable[[str, str], bool | None] = lambda *_: False,
        foreign_keys: Callable[[Name], Sequence[ForeignKey] | None] | None = None,
        log_end: Callable[[], int] = lambda: 0,
        catalog: Callable[[], Catalog] | None = None,
    ) -> None:
        """`folds`: names are compared in small letters.

        `restricted`: whether not all columns of a table may be read; None: it is gone.

        `foreign_keys`: those of a table that write to it, if the server does not log what they write. `log_end`: the
        commit position of the log's end, which is asked for with them. `catalog` is asked where no statement is told.
        """
        self._config = config
        self._folds, self._mariadb, self._restricted, self._catalog = folds, mariadb, restricted, catalog
        self._now: dict[Name, Table] = {}
        self._shown: dict[Name, Captured] = {}
        """What the catalog has said of each."""
        self._gone: set[Name] = set()
        """Those that were not there any more when the log told of their end."""
        self._may_not: dict[Name, bool] = {}
        self._known: dict[Name, Description] = {}
        self._holes = holes.Holes(stops=config.on_hole == "stop")
        self._temporary = TemporaryTables()
        self._described: dict[object, tuple[Table, RowReader]] = {}
        self._last: dict[Name, tuple[events.TableMap, tuple[Table, RowReader]]] = {}
        """Holds what was found last, since looking up a description takes as long as reading a row."""
        self.since = 0  # what is logged before this commit position may be of before the connector's time
        self.new: set[str] = set()
        """Tables that the log has told of, and that are to be captured once everything before is in Kafka."""
        for one in captured:
            name = self._name((one.table.schema, one.table.name))
            self._now[name], self._shown[name] = one.table, one
        self._cascades = Cascades(
            self._now if foreign_keys else (), foreign_keys or (lambda _: None), self._name, log_end
        )
        self.kept = KeptRules(config, self._now, folds=folds)
        self._hidden = HiddenColumns(config, self._name)
        self._hidden.begin(self._now.values(), {})
        self.hanging = 0
        """How often other tables came to be followed for what hangs on them."""

    def _name(self, name: Name) -> Name:
        return as_compared(name[0], folds=self._folds), as_compared(name[1], folds=self._folds)

    def recall(self, described: Mapping[Name, Sequence[Description]]) -> None:
        """Remember what the topics say of the tables, oldest first."""
        self._known = {self._name(name): said[-1] for name, said in described.items() if said}
        told = {self._name(name): [c for one in said for c, _ in one.columns] for name, said in described.items()}
        self._hidden.begin(self._now.values(), told)

    def wanted(self, told: events.TableMap) -> bool:
        """Tell whether the table is captured, or rows of captured ones go along with its own."""
        name = self._name((told.schema, told.table))
        return name in self._now or name in self._cascades

    def takes_along(self, told: events.TableMap) -> bool:
        """Tell whether rows of captured tables go along with this one's, which the log does not tell."""
        return bool(self._cascades) and self._name((told.schema, told.table)) in self._cascades

    def cascaded(
        self, event: events.Rows | events.PartialUpdateRows, told: events.TableMap, at: BinlogPosition
    ) -> Iterator[Change]:
        """Ask for tables to be read of which a row event, which begins at `at`, has changed rows without events."""
        name = self._name((told.schema, told.table))
        for child in sorted(self._cascades.reached(event, told, name)):
            yield self._holes.cascaded(self._now[child], ".".join(name), at)

    def table(self, told: events.TableMap, at: BinlogPosition) -> tuple[Table, RowReader] | None:
        """Return the table of rows in the log, and what decodes them; None: it is not captured."""
        name = self._name((told.schema, told.table)) if self._folds else (told.schema, told.table)
        last = self._last.get(name)
        if last is not None and last[0].columns is told.columns and last[0].primary_key == told.primary_key:
            return last[1]
        if name not in self._now:
            return None
        of = (name, told.columns, told.primary_key)
        found = self._described.get(of)
        if found is None:
            found = self._described[of] = self._looked_at(told, name, at)
        self._now[name] = found[0]
        self._last[name] = told, found
        return found

    def _looked_at(self, told: events.TableMap, name: Name, at: BinlogPosition) -> tuple[Table, RowReader]:
        """Describe it; if it has not the columns that are known, and no statement said so, as the catalog has it now.

        Who writes its rows compares that with what was published, and has the table read again. Where the log is behind
        the catalog (also `since`) there is nothing new: a statement that changed the columns is still to come.
        """
        known, found = self._known.get(name), self._describe(told, name, at)
        if self._catalog is None or known is None or self._known[name].columns == known.columns:
            return found
        self._known[name] = known
        if at.commit < self.since:
            return found
        if any([*self._look(name, at, self._catalog)]):
            log.warning("table %s: other columns in the log at %s, without a statement on it", found[0].qualified, at)
        return self._describe(told, name, at)

    def _describe(self, told: events.TableMap, name: Name, at: BinlogPosition) -> tuple[Table, RowReader]:
        if not told.has_metadata:
            return self._shown[name].table, own_columns.NoRows(named=False)
        told = mapping.declared(told, self._shown[name].columns)
        if self._mariadb and mapping.strange_times(told, self._shown[name].columns):
            return self._shown[name].table, own_columns.NoRows(why=_OLD_TIMES)
        own = self._own(told, name)
        kept = [told.columns[at] for at in own.kept] if own is not None else told.columns
        columns = tuple(mapping.column(column) for column in kept)
        names = [column.name for column in columns]
        if self._hidden:
            self._hidden.refuse_strange(name, names, at)
        now = self._now[name]
        wanted = self._shown[name].key_wanted
        end = None if own is None else own.row_end  # MariaDB makes it a part of every key of a versioned table
        logged = [told.columns[index].name or "" for index, _ in told.primary_key or () if index != end]
        unreadable = own is not None and not wanted and set(logged) & set(own.unreadable)
        if unreadable and self._may_not.get(name):
            raise unreadable_key(now.qualified)
        key = tuple(wanted) or tuple(column for column in logged if column in names)
        known = self._known.get(name)
        if not key:
            return self._shown[name].table, own_columns.NoRows()
        if not set(key) <= set(names):
            before = known.key if known is not None else now.key
            if not before or not set(before) <= set(names):
                return self._shown[name].table, own_columns.NoRows()
            key = before
        filled = self._shown[name].filled
        equality = {column.name: column.equality for column in self._shown[name].table.columns}
        columns = tuple(replace(c, filled=c.name in filled, equality=equality.get(c.name, "")) for c in columns)
        table = Table(now.schema, now.name, columns, key, self._shown[name].table.marks)
        self._known[name] = Description.of(table)
        return table, row_images.Reader(told) if own is None else OwnReader(told, own)

    def _own(self, told: events.TableMap, name: Name) -> OwnColumns | None:
        """Compare the log's columns with those that the catalog shows."""
        shown = self._shown[name]

        def restricted() -> bool:
            if name not in self._may_not:
                found = self._restricted(shown.table.schema, shown.table.name)
                if found is None:
                    return True  # the table is gone by now: nobody can tell, and its rows go in the log, too
                self._may_not[name] = found
                if found:
                    log.warning(
                        "table %s: the connector's user may not read all of its columns: the others are in no event",
                        shown.table.qualified,
                    )
            return self._may_not[name]

        names = frozenset(column.name or "" for column in shown.columns)
        return own_columns.compare(told, Shown(names, shown.row_end), restricted, mariadb=self._mariadb)

    def changes(
        self, event: events.Rows | events.PartialUpdateRows, known: tuple[Table, RowReader], at: BinlogPosition
    ) -> Iterable[Change | Described]:
        """Give the rows of one event, which begins at `at`; rows of which parts are missing are to be read again."""
        table, read = known
        if isinstance(read, own_columns.NoRows):
            return [self._holes.unkeyed(table, at, read.why) if read.named else self._holes.unnamed(table, at)]
        try:
            if isinstance(event, events.PartialUpdateRows):
                told = self._last[self._name((table.schema, table.name))][0]
                images = read.own(partial_images.images(event, told.columns))
            elif event.whole:
                return read.changes(event, table, at.offset)
            else:
                images = read(event)
        except ValueError as exc:
            return [self._holes.undecodable(table, at, exc)]
        partial = isinstance(event, events.PartialUpdateRows)
        op = Op.UPDATE if isinstance(event, events.PartialUpdateRows) else event.op
        generated = self._shown[self._name((table.schema, table.name))].generated
        return list(self._holes.of_images(op, table, images, at, partial=partial, generated=generated))

    def unsure(self, names: Iterable[Name], at: BinlogPosition) -> Iterator[Change]:
        """Give what follows of a transaction, begun at `at`, of which a part was rolled back: its tables are read."""
        for name in sorted(set(map(self._name, names)) & self._now.keys()):
            yield self._holes.rolled_back(self._now[name], at)

    def restarted(self) -> None:
        """Note that the server has started again: no session goes on."""
        self._temporary.clear()

    def of_statement(
        self, said: Judgement, at: BinlogPosition, catalog: Callable[[], Catalog], session: Session = NOBODY
    ) -> Iterator[Change | Described]:
        """Give what a statement does to the captured tables. Raises for what no event tells of."""
        match said:
            case Both(filled, written):
                yield from self.of_statement(filled, at, catalog, session)
                yield from self.of_statement(written, at, catalog, session)
            case Temporary(tables, made):
                for name in map(self._name, tables) if made else ():
                    self._temporary.made(session, name)
                self._temporary.dropped(session, () if made else tuple(map(self._name, tables)))
            case Hangs(dropped):
                yield from self._holes.altered(self._now, at, dropped=dropped)
            case XaEnded():
                yield from self._holes.of_statement(holes.XA_COMMIT, None, self._now, at, catalog)
            case ChangesRows(verb, tables):
                if tables is not None:
                    tables = tuple(n for n in map(self._name, tables) if not self._temporary.has(session, n))
                yield from self._holes.of_statement(verb, tables, self._now, at, catalog)
            case _:
                names = {self._name(name) for name in tables_of(said)}
                database = as_compared(said.database, folds=self._folds) if isinstance(said, Dropped) else None
                for child in sorted(self._cascades.parted(names, database, at.commit) if relinked(said) else ()):
                    yield self._holes.parted(self._now[child], at)
                self.hanging += self._cascades.altered(names)
                looked_at = map(self._name, self._holes.looked_at())
                concerns = any(name in names or name[0] == database for name in looked_at)
                yield from self._holes.altered(self._now, at, dropped=concerns)
                hidden = {name for name in names if self._temporary.has(session, name)}
                self._hidden.of_statement(said, at, lambda name: name in self._now or self._matches(name), but=hidden)
                if hidden or (session.specific and self._now.keys() & names):
                    self._temporary.altered(session, said, hidden, self._name)
                    for name in sorted(names - hidden):  # of these a session may have temporary ones, or not
                        table = self._now.get(name)
                        gone = table is not None and not catalog().exists(table.schema, table.name)
                        yield from self._emptied(name, at) if gone else self._look(name, at, catalog, values=True)
                else:
                    yield from self._of_ddl(said, at, catalog)

    def _of_ddl(
        self, said: Judgement, at: BinlogPosition, catalog: Callable[[], Catalog]
    ) -> Iterator[Change | Described]:
        match said:
            case Emptied(tables, dropped):
                self.kept.gone(map(self._name, tables) if dropped else ())
                for name in map(self._name, tables):
                    yield from self._emptied(name, at)
                    yield from self._look(name, at, catalog) if dropped else ()
                    if dropped and (name in self._gone or name not in self._now) and (table := self._captured(name)):
                        log.warning("table %s: it was dropped, and its rows are deleted in its topic", table.qualified)
            case Dropped(database):
                self.kept.dropped(of := as_compared(database, folds=self._folds))
                gone = tuple(name for name in {**self._known, **self._now} if name[0] == of)
                yield from self._of_ddl(Emptied(gone, dropped=True), at, catalog)
            case Renamed(pairs):
                yield from self._renamed([(self._name(old), self._name(new)) for old, new in pairs], at, catalog)
            case Altered(name, values):
                self.kept.gone([self._name(name)] if said.made and not said.unless_there else ())
                yield from self._look(self._name(name), at, catalog, values=values)
            case Filled(name):
                yield from self._others(self._name(name), at, catalog)
            case Partitions(name, others, gone, both):
                came = [(other, name) for other in (*gone, *(others if both else ()))]
                for was, now in (map(self._name, pair) for pair in (*came, *((name, other) for other in others))):
                    self.kept.moved(was, now, is_captured=now in self._now or self._matches(now))
                self.kept.gone(map(self._name, gone))
                for one in map(self._name, gone):
                    yield from self._emptied(one, at)
                for one in map(self._name, (name, *others)):
                    yield from self._others(one, at, catalog)
            case Granted():
                yield from self._granted(at, catalog)

    def _granted(self, at: BinlogPosition, catalog: Callable[[], Catalog]) -> Iterator[Change | Described]:
        """Compare the columns that may be read now with those that were published: there is no event of a grant."""
        shown = {self._name(of): columns for of, columns in catalog().columns_shown(self._now.values()).items()}
        self._may_not.clear()
        for name, table in list(self._now.items()):
            if name not in shown and name in self._gone:
                continue
            if name not in shown:
                raise ChangedError(
                    f"table {table.qualified} is gone, or may not be read any more: looking at all again"
                )
            known = self._known.get(name)
            if known is not None and {column for column, _ in known.columns} != shown[name]:
                yield from self._look(name, at, catalog, values=True)

    def _renamed(
        self, pairs: Sequence[tuple[Name, Name]], at: BinlogPosition, catalog: Callable[[], Catalog]
    ) -> Iterator[Change | Described]:
        now: dict[Name, Name] = {}
        """By the name a table had: what it is called after all of them."""
        for old, new in pairs:
            first = next((was for was, name in now.items() if name == old), old)
            now[first] = new
        self.kept.renamed(now, lambda old, new: new in self._now or (old in self._now and self._matches(new)))
        taken = [new for new in now.values() if new in self._now]
        for name in sorted(taken):
            yield from self._others(name, at, catalog, said="another table has taken its name in the log at %s")
        for old in sorted(now.keys() - set(taken)):
            table = self._captured(old)
            if table is not None and not self._matches(now[old]) and not comes_back(table, catalog, _AGAIN_S):
                was, is_ = table.qualified, ".".join(now[old])
                is_named = was in self._config.tables
                left = f"take {was} out of it" if is_named else f'say that it is left out: "!{was}"'
                raise VerdictError(
                    f"table renamed: {was} is {is_} now, which source.tables does not name: what is written to it "
                    "since is not captured",
                    hint=f"in source.tables write {is_} in place of {was}: it is read into a topic of its own; or "
                    f"{left}; or take the name back: RENAME TABLE {is_} TO {was}",
                )
            yield from self._emptied(old, at)
            yield from self._look(old, at, catalog)
        for new in sorted(set(now.values()) - set(taken)):
            self._take_up(new, catalog)

    def _captured(self, name: Name) -> Table | None:
        """Return a table of which rows are in a topic; also one that was captured, and has gone while we were away."""
        if name in self._now or name not in self._known or not self._matches(name):
            return self._now.get(name)
        return recalled(name, self._known[name])

    def _emptied(self, name: Name, at: BinlogPosition) -> Iterator[Change]:
        """Delete the rows of a table in its topic."""
        if (table := self._captured(name)) is not None:
            yield Change(Op.TRUNCATE, table, None, None, (at.offset, 0))

    def _others(
        self, name: Name, at: BinlogPosition, catalog: Callable[[], Catalog],
        *, said: str = "rows have come or gone without events in the log at %s",
    ) -> Iterator[Change | Described]:  # fmt: skip
        """Say that what was written to the rows that a table has now may never have been captured."""
        if name in self._now:
            log.warning(f"table %s: {said}", self._now[name].qualified, at)  # noqa: G004 - one of two texts
        yield from self._look(name, at, catalog, values=True)

    def _look(
        self, name: Name, at: BinlogPosition, catalog: Callable[[], Catalog], *, values: bool = False
    ) -> Iterator[Change | Described]:
        """Compare what is known of a table with what the catalog says now. `values`: its rows may be others.

        What it says may be of a later time than the statement. Then the log has another statement that looks again.
        """
        if name not in self._now:
            self._take_up(name, catalog)
            return
        now = self._as_it_is(self._now[name], catalog)
        if now is None:
            self._gone.add(name)
            return  # by another statement, which the log has too
        self._gone.discard(name)
        self._shown[name] = now
        self._last.pop(name, None)
        for of in [of for of, (table, _) in self._described.items() if self._name((table.schema, table.name)) == name]:
            del self._described[of]
        known = self._known.get(name)
        if known is None and not values and not self._hidden.hides(name):
            return  # no row of it was published yet
        if values or (known is not None and stale_reason(known, now.table)):
            self._now[name] = now.table
            self._known[name] = Description.of(now.table)
            yield Change(Op.READ, now.table, None, None, (at.offset, 0))
        elif known != Description.of(now.table):
            self._now[name] = now.table
            self._known[name] = Description.of(now.table)
            yield Described(now.table)

    def _as_it_is(self, table: Table, catalog: Callable[[], Catalog]) -> Captured | None:
        """Ask the catalog for a table; one that cannot be captured, for it has no key, may have one in a moment.

        Nothing is published meanwhile. If it still has none, the next session goes on without it.
        """
        until_s = time.monotonic() + _AGAIN_S
        while True:
            try:
                return catalog().find(table.schema, table.name, self._config.keys)
            except OperatorError as exc:
                if time.monotonic() >= until_s:
                    raise ChangedError(f"{exc.message}: looking again") from exc
            time.sleep(_PAUSE_S)

    def _take_up(self, name: Name, catalog: Callable[[], Catalog]) -> None:
        """Note a table that is new, and of a name that is to be captured; one that cannot be is left out."""
        if not self._matches(name) or not catalog().exists(*name):
            return
        try:
            found = catalog().find(*name, self._config.keys)
        except OperatorError as exc:
            log.warning("%s; it is left out of what source.tables names; %s", exc.message, exc.hint)
            return
        if found is not None:
            self.new.add(".".join(name))

    def _matches(self, name: Name) -> bool:
        patterns = [as_compared(pattern, folds=self._folds) for pattern in self._config.tables]
        return chooses(patterns, as_compared(".".join(name), folds=self._folds))
