"""SQLite as a `Source`: it reads the change table that the triggers write."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from cdc.config.config import ConnectorConfig
from cdc.model.change import (
    Change,
    Coordinates,
    Idle,
    Message,
    Offset,
    Op,
    Position,
    Row,
    Table,
    Transaction,
    TransactionBatch,
)
from cdc.model.errors import BugError, ChangedError, OperatorError, RetryableError, raise_first
from cdc.model.interfaces import Start
from cdc.model.state import State
from connectors.triggers.change_tables import Look, Standing
from connectors.triggers.following import TriggerSource
from connectors.triggers.sqlite import values
from connectors.triggers.sqlite.catalog import Found, refuse_file, refuse_library
from connectors.triggers.sqlite.change_log import ChangeLog, Logged, offset, with_views
from connectors.triggers.sqlite.session import Session, path_of
from connectors.triggers.sqlite.triggers import MARK

log = logging.getLogger("cdc")

WHERE: Final = b'"change":%d'
"""An event's place: the number of its row in the change table."""
_POLL_S: Final = 0.05
_IDLE_S: Final = 0.5
_SMALL: Final = 1_000
"""So many rows are given in a list."""
_NEVER: Final = -1


class SqliteSource(TriggerSource[Found]):
    """Follows one file through one change table."""

    name = "sqlite"
    places: tuple[str, ...] = ("change",)

    def __init__(self, config: ConnectorConfig) -> None:
        super().__init__(config)
        self._path = path_of(config.source.url)
        self.database = self._path.name
        self._session: Session | None = None
        self._reading: Session | None = None
        self._shapes: dict[int, Table | None] = {}
        self._at: Offset = {}
        self._looked: list[int] = []
        """Where the log ended when `current` was asked: no transaction that is given spans such a place.

        One since which a table is read again outlives the process that has asked.
        """
        self._schema = _NEVER
        """The file's schema version, as it was last looked at."""
        self._keyless: set[str] = set()
        self._warned: set[tuple[str, str]] = set()

    def connect(self) -> Mapping[str, str]:
        raise_first(refuse_library())
        session = self._session = Session(self._path)
        raise_first(refuse_file(session))
        self._choose()
        self._warn()
        return {"file": str(self._path.resolve())}

    def renamed(self, then: Mapping[str, str], at: Offset) -> Mapping[str, str]:
        here = str(self._path.resolve())
        if not self._log().was_moved(then.get("file", here), here, at):
            return then
        log.warning("SQLite file %s is %s by now", then["file"], here)
        return {**then, "file": here}

    def _warn(self) -> None:
        """Say once what triggers cannot see of the tables as they are now."""
        for found in self._captured:
            for warning in unseen(self._log().catalog.find(found.name) or found):
                if (found.name, warning) not in self._warned:
                    self._warned.add((found.name, warning))
                    log.warning("table %s: %s", found.qualified, warning)

    def verify(self, state: State) -> tuple[Offset, int] | None:
        state = replace(state, offset=with_views(state))
        raise_first(self._log().refusals(state.offset))
        self._tell_of_gone(state.carried)  # whose triggers still tell what they are called now
        self._looked = [Position.parse(str(of["since"])).commit for of in state.reading.values()]
        return super().verify(state)

    def _tell_of_gone(self, followed: Iterable[str]) -> None:
        """Say which tables that were followed are there no more: nothing is written to their topics from now on."""
        there = {found.qualified for found in self._captured} | self._left_out.keys()
        for name in sorted(name for name in followed if name not in there and self._config.source.captures(name)):
            now = self._log().renamed(name)
            said = f"{name} is {now} now" if now else "it was dropped"
            log.warning("table %s: %s, and its topic keeps the rows it had", name, said)

    def _rights(self, captured: Sequence[Found]) -> Iterator[OperatorError]:  # noqa: ARG002 - a file has none
        yield from ()

    def _wait_for_locks(self, seconds: float) -> None:
        self._connected().rows("limiting waits for locks", f"PRAGMA busy_timeout = {seconds * 1000:.0f}")

    def _compared(self, captured: Sequence[Found]) -> Look:
        return compared(self._log(), captured)

    def _make(self, held: Sequence[Found]) -> Start:
        at = self._log().make(held)
        return Start(at, int(at["change"]) + 1, None)

    def tend(self) -> None:
        self._connected().require_same_file()

    def current(self) -> int:
        end = self._log().last()
        if end > int(self._at.get("change", 0)) and end not in self._looked:
            self._looked.append(end)
        return end + 1

    def stream(self, offset: Offset) -> Iterator[Transaction | TransactionBatch | Message | Idle]:
        self._at = dict(offset)
        session = self._reading = Session(self._path)
        while True:
            version = session.rows("looking for changes", "PRAGMA data_version")
            self._look()
            yield from self._transactions(session)
            yield Idle()
            until_s = time.monotonic() + _IDLE_S
            while time.monotonic() < until_s and version == session.rows("looking for changes", "PRAGMA data_version"):
                time.sleep(_POLL_S)

    def _transactions(self, session: Session) -> Iterator[Transaction | TransactionBatch]:
        """Give what can be seen now: it ends where a transaction ends, and so does what lies before a mark."""
        changes = self._log().names.changes
        while True:
            session.rows("reading changes", "BEGIN")
            try:
                after = int(self._at["change"])
                ((end, mark, at_ms),) = session.rows(
                    "reading changes",
                    f'SELECT (SELECT max(seq) FROM "{changes}"),'
                    f" (SELECT min(seq) FROM \"{changes}\" WHERE seq > ? AND op = '{MARK}'),"
                    f' (SELECT at_ms FROM "{changes}" WHERE seq = ?)',
                    (after, after),
                )
                if at_ms != self._at["at_ms"] or end < after:
                    raise ChangedError("the change table is not the one that was followed: looking at it again")
                if end == after:
                    self._require_none_deleted(after)
                    return
                self._looked = [looked for looked in self._looked if looked > after]
                end = min([mark or end, end, *self._looked])
                rows = session.cursor(
                    "reading changes",
                    f'SELECT seq, shape, op, before, after, at_ms FROM "{changes}"'
                    " WHERE seq > ? AND seq <= ? ORDER BY seq",
                    (after, end),
                )
                logged = self._whole(map(Logged.of, rows), after, end)
                if end - after <= _SMALL:
                    found = list(logged)
                    session.rollback()
                    given = [change for one in found for change in self._changes(one)]
                    if given:
                        yield TransactionBatch([_transaction(end, found[-1].at_ms, given)])
                    continue
                ((at_ms,),) = session.rows("reading changes", f'SELECT at_ms FROM "{changes}" WHERE seq = ?', (end,))
                yield _transaction(end, at_ms, (change for one in logged for change in self._changes(one)))
                if int(self._at["change"]) < end:
                    raise BugError("a transaction was left before its end")
            finally:
                session.rollback()

    def _whole(self, rows: Iterator[Logged], after: int, end: int) -> Iterator[Logged]:
        """Move the position when the last row has come. Raises GapError if one is missing."""
        expected = after + 1
        for one in rows:
            if one.seq != expected:
                raise self._log().hole(expected)
            expected += 1
            yield one
            if one.seq == end:
                self._at = offset(str(self._at["log"]), one.seq, one.at_ms)
        if expected <= end:
            raise self._log().hole(expected)

    def _require_none_deleted(self, after: int) -> None:
        if self._log().last() != after and not self._log().has(after + 1):
            raise self._log().hole(after + 1)

    def _changes(self, logged: Logged) -> Iterator[Change]:
        if logged.op == MARK:
            return
        table = self._table(logged.shape)
        if table is None:
            return
        before, after = self._row(table, logged.before), self._row(table, logged.after)
        if logged.op == "d":
            if before is not None:
                yield Change(Op.DELETE, table, before, None, logged.seq)
        elif after is None:
            if before is not None:  # its key is NULL now
                yield Change(Op.DELETE, table, before, None, logged.seq)
        elif logged.op == "c":
            yield Change(Op.CREATE, table, None, after, logged.seq)
        else:
            yield Change(Op.UPDATE, table, before, after, logged.seq)

    def _table(self, shape: int) -> Table | None:
        """Return the table of a shape; None: it is not captured any more."""
        if shape not in self._shapes:
            name, columns = self._log().shape(shape)
            captured = any(found.name == name for found in self._captured)
            self._shapes[shape] = columns.table(name) if captured else None
        return self._shapes[shape]

    def _row(self, table: Table, image: bytes | None) -> Row | None:
        if image is None:
            return None
        row = values.row(image, table.columns)
        if all(row[index] is not None for index in table.key_indexes):
            return row
        if table.qualified not in self._keyless:
            self._keyless.add(table.qualified)
            log.warning("table %s: rows whose key is NULL are left out, for they cannot be told apart", table.qualified)
        return None

    def _look(self) -> None:
        self._connected().require_same_file()
        super()._look()

    def _may_differ(self) -> bool:
        """Tell whether the schema has changed since the last look, or differed then."""
        ((version,),) = self._connected().rows("looking at the schema", "PRAGMA schema_version")
        was, self._schema = self._schema, int(version)
        if was != self._schema:
            self._warn()
        return was != self._schema or bool(self._differ)

    def _elsewhere(self, captured: Iterable[Found]) -> Iterator[tuple[str, str | None]]:
        for found in captured:
            now = self._log().catalog.find(found.name)
            if now is None or now.kind != "table":
                yield found.qualified, self._log().renamed(found.qualified)

    def position(self) -> tuple[Offset, int]:
        return self._at, int(self._at.get("change", -1)) + 1

    def _forget(self, offset: Offset) -> bool:
        try:
            self._log().forget_before(int(offset["change"]))
        except RetryableError as exc:  # the application has the file for itself
            log.debug("%s", exc.message)
        return True

    def coordinates(self, commit: int) -> tuple[bytes, Coordinates]:
        return WHERE, commit

    def close(self) -> None:
        for session in (self._session, self._reading):
            if session is not None:
                session.close()
        self._session = self._reading = None

    def _connected(self) -> Session:
        if self._session is None:
            raise BugError("the source is not connected")
        return self._session

    def _log(self) -> ChangeLog:
        return ChangeLog(self._connected(), self._config.name, self._config.source.where)


def _transaction(end: int, at_ms: int, changes: Iterator[Change] | list[Change]) -> Transaction:
    return Transaction(str(end), end, end, at_ms, changes, WHERE)


def compared(changes: ChangeLog, captured: Sequence[Found]) -> Look:
    """Look at tables as they are now, and at their triggers."""
    there = [changes.catalog.find(found.name) or found for found in captured]
    return Standing(changes.standing(there), "its triggers were made again")


def unseen(found: Found) -> Iterator[str]:
    """Give what triggers cannot see of a table."""
    partial = [unique.name for unique in found.unique if not unique.collations]
    if partial:
        yield (
            f"unique index {', '.join(partial)} is of expressions or of some rows: rows that INSERT OR REPLACE removes "
            "for it are not seen, unless the application sets PRAGMA recursive_triggers = ON"
        )
    computed = [of for of in found.computed if any(of in unique.collations for unique in found.unique)]
    if computed:
        yield (
            f"the default of column {', '.join(computed)} is an expression: where it takes the place of a NULL, rows "
            "that INSERT OR REPLACE removes for it are not seen, unless the application sets PRAGMA recursive_triggers "
            "= ON"
        )
    if found.ignoring:
        yield (
            f"trigger {', '.join(found.ignoring)} says RAISE(IGNORE) after a row was changed, which ends the "
            "statement's other triggers: such changes are not seen where it is called before the connector's"
        )
    if found.writing:
        yield (
            f"trigger {', '.join(found.writing)} writes what is unique in its own table: rows that an INSERT OR "
            "REPLACE which calls it removes may not be seen, unless the application sets PRAGMA recursive_triggers = ON"
        )
    if found.mixed:
        yield (
            f"key column {', '.join(found.mixed)} holds texts and blobs, or may: of two rows whose keys are a text "
            "and a blob of the same bytes the topic keeps one"
        )
    if found.nullable:
        yield f"key column {', '.join(found.nullable)} may be NULL: such rows are left out"


def open_source(config: ConnectorConfig) -> SqliteSource:
    """Make the source, for the registry. Connects to nothing yet."""
    return SqliteSource(config)
