"""MySQL and MariaDB by triggers as a `Source`: it reads the change tables that the triggers write."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from cdc.config.config import ConnectorConfig
from cdc.model.change import Coordinates, Idle, Message, Offset, Table, Transaction, TransactionBatch
from cdc.model.errors import BugError, OperatorError, RetryableError
from cdc.model.interfaces import Start
from cdc.model.state import State
from connectors.mysql import same_server, session
from connectors.mysql.catalog import server
from connectors.mysql.catalog.catalog import Captured
from connectors.triggers.change_tables import Look, Standing
from connectors.triggers.following import LOCKS_S, LONGEST_S, SHORTEST_S, TriggerSource
from connectors.triggers.mysql import preconditions
from connectors.triggers.mysql.change_log import ChangeLog, with_views
from connectors.triggers.mysql.rounds import ROOM, Pins, Place, Rounds, behind, looking_again
from connectors.triggers.mysql.shape import Shape
from connectors.triggers.mysql.triggers import LONGEST

log = logging.getLogger("cdc")

_POLL_SHARE: Final = 10
"""Looking whether there are changes takes at most one part in so many of the time, where it takes long."""
_PATIENCE: Final = {"wait_timeout": "120"}
"""The server ends a session that says nothing for so long: a copy that is frozen may hold the lock of rounds."""


class MysqlTriggers(TriggerSource[Captured]):
    """Follows one server through one database of change tables."""

    name = "mysql"
    places: tuple[str, ...] = ("round", "change")

    def __init__(self, config: ConnectorConfig) -> None:
        super().__init__(config, longest_name=LONGEST)
        self._address = session.address(config.source.url)
        self._server = server.Server("", {}, "")
        self._sql: session.Connection | None = None
        self._changes: ChangeLog | None = None
        self._reading: session.Connection | None = None
        self._shapes: dict[int, tuple[Shape, Table] | None] = {}
        self._tables: list[int] = []
        self._pins: Pins | None = None

    def clock_ms(self) -> int:
        return server.clock_ms(self._connected())

    def connect(self) -> Mapping[str, str]:
        sql = self._sql = same_server.first(self._address, settings=_PATIENCE)
        found = self._server = server.look(sql)
        where = self._address.endpoint
        for refusal in preconditions.refusals(sql, found, where):
            if refusal is not None:
                raise refusal
            log.warning("MySQL at %s may be a replica: if so, what it replicates never comes", where)
        for warning, _ in preconditions.warnings(sql, where):
            log.warning("MySQL at %s: %s", where, warning)
        session.tell_of_weak_tls(where, session.weakness(self._address))
        changes = self._log()
        changes.prepare()
        self._choose()
        self._require_stores(changes)
        return {"schema": changes.names.schema}

    def _require_stores(self, changes: ChangeLog) -> None:
        """Raise OperatorError if this user may not see InnoDB's tables; who has one locked is not waited for."""
        self._wait_for_locks(0.0)
        try:
            changes.stores()
        except RetryableError as exc:
            if not exc.at_start:
                raise
        self._wait_for_locks(LOCKS_S)

    def _rights(self, captured: Sequence[Captured]) -> Iterator[OperatorError]:
        yield from preconditions.rights(self._connected(), self._log(), self._server, captured)
        yield from (error for one in captured if (error := self._log().too_wide(one)) is not None)

    def _known(self) -> Collection[str]:
        return self._log().known()

    def _wait_for_locks(self, seconds: float) -> None:
        statement = f"SET SESSION lock_wait_timeout = {max(1.0, seconds):.0f}"
        session.rows(self._connected(), "limiting waits for locks", statement)

    def _compared(self, captured: Sequence[Captured]) -> Look:
        return compared(self._log(), captured)

    def _install(self, wanted: Sequence[Captured]) -> None:
        super()._install(wanted)
        if wanted:
            self._await_prepared()

    def verify(self, state: State) -> tuple[Offset, int] | None:
        moved = super().verify(replace(state, offset=with_views(state)))
        if self._stale:  # their triggers may have been made while the others were followed
            self._await_prepared()
        return moved

    def extend(self, tables: Sequence[Table]) -> None:
        has_new = not {table.qualified for table in tables} <= self._carried.keys()
        super().extend(tables)
        if has_new:
            self._await_prepared()

    def _await_prepared(self) -> None:
        """Wait for what was prepared: of a server that was started since, it holds no table."""
        server.await_prepared(self._connected(), self.tend)

    def _note(self, captured: Sequence[Captured]) -> None:
        super()._note(captured)
        self._shapes = {}
        self._tables = self._log().change_tables()

    def _make(self, held: Sequence[Captured]) -> Start:
        self._place = Place.of(self._log().make(held))
        self._await_prepared()
        return Start(self._place.offset(), self._place.commit, None)

    def tend(self) -> None:
        session.rows(self._connected(), "looking after the session", "SELECT 1")

    def current(self) -> int:
        return end(self._connected(), self._log(), self._pins)

    def stream(self, offset: Offset) -> Iterator[Transaction | TransactionBatch | Message | Idle]:
        reading = self._reading = same_server.beside(self._address)
        changes = self._log()
        self._place = place = Place.of(offset)
        self._tables = changes.change_tables()
        rounds = self._rounds = Rounds(reading, changes.names, place, table_of=self._table, missed=self._missed)
        pins, pause_s = Pins(self._connected(), changes.names), SHORTEST_S
        self._pins = pins
        while True:
            self._look()
            before, begun_s = rounds.place.round, time.monotonic()
            yield from rounds.read()
            with looking_again():
                found = pins.anything(reading, self._tables)
                if found:
                    pins.pin(reading, session.VIEW, self._tables)
                    session.rows(reading, "ending a view", "ROLLBACK")
            took_s = time.monotonic() - begun_s
            if found:
                yield from rounds.read()
            yield Idle()
            pause_s = SHORTEST_S if rounds.place.round != before else min(2 * pause_s, LONGEST_S)
            time.sleep(max(pause_s, min(took_s * _POLL_SHARE, LONGEST_S) if took_s > SHORTEST_S else 0.0))

    def _table(self, number: int) -> tuple[Shape, Table] | None:
        """Return the table of a shape; None: it is not captured any more."""
        if number not in self._shapes:
            captured = {one.table.qualified: one.table for one in self._captured}
            for other, shape in self._log().shapes().items():
                now, told = captured.get(shape.qualified), shape.table
                same = now is not None and (told.columns, told.key) == (now.columns, now.key)
                self._shapes[other] = None if now is None else (shape, now if same else told)
            self._shapes.setdefault(number, None)
        return self._shapes[number]

    def _missed(self, number: int) -> bool:
        """Note a miss of a shape; return whether to look again: a table that is set aside is read again anyway."""
        known = self._table(number)
        is_aside = known is not None and known[1].qualified in self._aside
        return self._log().missed(number) and not is_aside

    def _compare(self) -> None:
        with looking_again():
            self._tables = self._log().change_tables()
            super()._compare()

    def _elsewhere(self, captured: Iterable[Captured]) -> Iterator[tuple[str, str | None]]:
        for one in captured:
            table = one.table
            if not self._log().catalog.exists(table.schema, table.name):
                yield table.qualified, self._log().renamed(table.qualified)

    def _forget(self, offset: Offset) -> bool:
        return self._log().forget(int(offset["round"]))

    def coordinates(self, commit: int) -> tuple[bytes, Coordinates]:
        return b'"round":%d,"change":null', commit >> ROOM

    def close(self) -> None:
        session.close(self._reading)
        same_server.close(self._address, self._sql)
        self._sql = self._reading = self._changes = self._pins = None

    def _connected(self) -> session.Connection:
        if self._sql is None:
            raise BugError("the source is not connected")
        return self._sql

    def _log(self) -> ChangeLog:
        if self._changes is None:
            self._changes = ChangeLog(self._connected(), self._config.name, self._server)
        return self._changes


def end(connection: session.Connection, changes: ChangeLog, pins: Pins | None = None) -> int:
    """Return a commit position: all that is committed by now lies below it, and all that comes later does not."""
    if changes.identity() is None:
        return behind(changes.last() + 1)  # behind the place that `make` begins at
    return (pins or Pins(connection, changes.names)).end(changes.change_tables())


def compared(changes: ChangeLog, captured: Sequence[Captured]) -> Look:
    """Look at tables and their triggers."""
    return Standing(changes.standing(captured), "it was altered or truncated, or its triggers were made again")


def open_source(config: ConnectorConfig) -> MysqlTriggers:
    """Make the source, for the registry. Connects to nothing yet."""
    return MysqlTriggers(config)
