"""MySQL and MariaDB by triggers as a `Source`: it reads the change tables that the triggers write."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from cdc.config.config import ConnectorConfig
from cdc.model.change import Coordinates, Idle, Message, Offset, Table, Transaction, TransactionBatch
from cdc.model.errors import BugError, CdcError, ChangedError, ConfigError, OperatorError, raise_first
from cdc.model.interfaces import Start
from cdc.model.state import State
from cdc.model.table_schema import Description
from connectors.captured_tables import LeftOut
from connectors.mysql import session
from connectors.mysql.catalog import server
from connectors.mysql.catalog.catalog import Captured
from connectors.triggers.mysql import preconditions
from connectors.triggers.mysql.change_log import ChangeLog
from connectors.triggers.mysql.rounds import ROOM, Pins, Place, Rounds, behind, looking_again
from connectors.triggers.mysql.shape import Shape
from connectors.triggers.mysql.triggers import LONGEST

log = logging.getLogger("cdc")

_SHORTEST_S: Final = 0.02
_LONGEST_S: Final = 0.25
_POLL_SHARE: Final = 10
"""Looking whether there are changes takes at most one part in so many of the time, where it takes long."""
_LOOK_S: Final = 1.0
_LOOK_SHARE: Final = 20
"""A look takes at most one part in so many of the time."""
_FORGET_S: Final = 1.0
_PATIENCE: Final = {"wait_timeout": "120"}
"""The server ends a session that says nothing for so long: a copy that is frozen may hold the lock of rounds."""


class MysqlTriggers:
    """Follows one server through one database of change tables."""

    name = "mysql"
    database = ""

    def __init__(self, config: ConnectorConfig) -> None:
        self._config = config
        if len(config.name) > LONGEST:
            raise ConfigError(
                f"name: {config.name} is too long for a connector by triggers", hint=f"at most {LONGEST} characters"
            )
        self._address = session.address(config.source.url)
        self._server = server.Server("", {}, "")
        self._sql: session.Connection | None = None
        self._changes: ChangeLog | None = None
        self._reading: session.Connection | None = None
        self._captured: tuple[Captured, ...] = ()
        self._left_out: Mapping[str, CdcError] = {}
        self._carried: dict[str, str] = {}
        self._stale: dict[str, str] = {}
        self._shapes: dict[int, tuple[Shape, Table] | None] = {}
        self._tables: list[int] = []
        self._pins: Pins | None = None
        self._place: Place | None = None
        self._rounds: Rounds | None = None
        self._look_at_s = 0.0
        self._forgot_s = 0.0
        self._differ: set[str] = set()
        self._gone: set[str] = set()

    def clock_ms(self) -> int:
        return server.clock_ms(self._connected())

    def connect(self) -> Mapping[str, str]:
        sql = self._sql = session.connect(self._address, settings=_PATIENCE)
        found = self._server = server.look(sql)
        where = self._address.endpoint
        for refusal in preconditions.refusals(sql, found, where):
            if refusal is not None:
                raise refusal
            log.warning("MySQL at %s may be a replica: if so, what it replicates never comes", where)
        for warning in preconditions.warnings(sql, where):
            log.warning("MySQL at %s: %s", where, warning)
        session.tell_of_weak_tls(where, session.weakness(self._address))
        changes = self._log()
        changes.prepare()
        left_out, of = LeftOut(self._config.source.tables), self._config.source
        self._captured = changes.catalog.captured(of.tables, of.keys, left_out)
        left_out.tell(self._captured)
        self._left_out = left_out.found
        raise_first(preconditions.rights(sql, changes, found, self._captured))
        changes.stores()  # whether this user may see them
        return {"schema": changes.names.schema}

    def left_out(self) -> Mapping[str, CdcError]:
        return self._left_out

    def tables(self) -> tuple[Table, ...]:
        return tuple(captured.table for captured in self._captured)

    def unused(self) -> None:
        raise_first(unused_refusals(self._log(), self._config.name))

    def verify(self, state: State) -> tuple[Offset, int] | None:
        changes = self._log()
        raise_first(changes.refusals(state.offset))
        followed = [one for one in self._captured if one.table.qualified in state.tables]
        standing = changes.standing(followed)
        self._stale = differences(state.carried, standing)
        self._carried = {name: stands for name, stands in standing.items() if stands is not None}
        self._install([one for one in followed if standing[one.table.qualified] is None])
        return None

    def _install(self, wanted: Sequence[Captured]) -> None:
        """Make triggers, and note how those stand; of others it stays as it was compared."""
        self._log().install(wanted, self._captured)
        if wanted:  # a server that was started since holds no table for what is prepared
            server.await_prepared(self._connected(), self.tend)
        self._note(wanted)

    def _note(self, wanted: Sequence[Captured]) -> None:
        found = self._log().standing(wanted)
        self._carried |= {name: stands for name, stands in found.items() if stands is not None}
        self._shapes = {}
        self._tables = self._log().change_tables()

    def hold(self, tables: Sequence[Table]) -> Start:
        wanted = {table.qualified for table in tables}
        changes, held = self._log(), [one for one in self._captured if one.table.qualified in wanted]
        self._place = Place.of(changes.make(held))
        server.await_prepared(self._connected(), self.tend)
        self._stale, self._carried = {}, {}
        self._note(held)
        return Start(self._place.offset(), self._place.commit, None)

    def extend(self, tables: Sequence[Table]) -> None:
        wanted = {table.qualified for table in tables} - self._carried.keys()
        self._install([one for one in self._captured if one.table.qualified in wanted])

    def carried(self) -> Mapping[str, str]:
        return self._carried

    def stale(self) -> Mapping[str, str]:
        return self._stale

    def recall(self, described: Mapping[tuple[str, str], Sequence[Description]]) -> None:
        """Do nothing: the shapes in the database know the columns of the changes."""

    def tend(self) -> None:
        session.rows(self._connected(), "looking after the session", "SELECT 1")

    def current(self) -> int:
        return end(self._connected(), self._log(), self._pins)

    def stream(self, offset: Offset) -> Iterator[Transaction | TransactionBatch | Message | Idle]:
        reading = self._reading = session.connect(self._address)
        changes = self._log()
        self._place, self._tables = Place.of(offset), changes.change_tables()
        rounds = self._rounds = Rounds(reading, changes.names, self._place, table_of=self._table, missed=changes.missed)
        pins, pause_s = Pins(self._connected(), changes.names), _SHORTEST_S
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
            if found:
                took_s = time.monotonic() - begun_s
                yield from rounds.read()
            else:
                took_s = time.monotonic() - begun_s
            yield Idle()
            pause_s = _SHORTEST_S if rounds.place.round != before else min(2 * pause_s, _LONGEST_S)
            time.sleep(max(pause_s, min(took_s * _POLL_SHARE, _LONGEST_S) if took_s > _SHORTEST_S else 0.0))

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

    def _look(self) -> None:
        """Compare the triggers, and all else that the tables rely on, every second or less often.

        A difference is given a moment: it may be a table on its way through the statements of a migration.
        """
        begun_s = time.monotonic()
        if begun_s < self._look_at_s:
            return
        with looking_again():
            self._compare()
        self._look_at_s = begun_s + max(_LOOK_S, (time.monotonic() - begun_s) * _LOOK_SHARE)

    def _compare(self) -> None:
        changes = self._log()
        if self._place is not None:
            raise_first(changes.refusals(self._position().offset()))
        self._tables = changes.change_tables()
        self._look_at_names()
        there = [one for one in self._captured if one.table.qualified not in self._gone]
        differ = set(differences(self._carried, changes.standing(there)))
        again, self._differ = differ & self._differ, differ
        if again:
            names = ", ".join(sorted(again))
            raise ChangedError(f"table {names} was altered, or its triggers were: looking again")

    def _look_at_names(self) -> None:
        for one in self._captured:
            table = one.table
            if table.qualified in self._gone or self._log().catalog.exists(table.schema, table.name):
                continue
            if now := self._log().renamed(table):
                raise ChangedError(f"table renamed: {table.qualified} is {now} now: looking again")
            self._gone.add(table.qualified)
            log.warning("table %s was dropped: its topic keeps the rows it had", table.qualified)

    def _position(self) -> Place:
        place = self._rounds.place if self._rounds is not None else self._place
        if place is None:
            raise BugError("there is no position yet")
        return place

    def position(self) -> tuple[Offset, int]:
        if self._rounds is None and self._place is None:
            return {}, 0
        place = self._position()
        return place.offset(), place.commit

    def acknowledge(self, offset: Offset) -> None:
        now_s = time.monotonic()
        if now_s - self._forgot_s < _FORGET_S or self._place is None or offset["log"] != self._place.log:
            return
        if self._log().forget(int(offset["round"])):
            self._forgot_s = now_s

    def coordinates(self, commit: int) -> tuple[bytes, Coordinates]:
        return b'"round":%d,"change":null', commit >> ROOM

    def lag_bytes(self) -> int | None:
        return None

    def close(self) -> None:
        for connection in (self._sql, self._reading):
            session.close(connection)
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


def differences(then: Mapping[str, str], now: Mapping[str, str | None]) -> dict[str, str]:
    """Return the tables whose rows may have changed without being written down, with the reason of each."""
    return {
        name: _reason(then.get(name), stands) for name, stands in now.items() if then.get(name) != stands or not stands
    }


def _reason(then: str | None, stands: str | None) -> str:
    if stands is None:
        return "it was altered, or its triggers are not as they were made"
    if then is None:
        return "nothing is known of its triggers"
    return "it was altered or truncated, or its triggers were made again"


def unused_refusals(changes: ChangeLog, connector: str) -> Iterator[OperatorError]:
    """Give why a connector without a position cannot make its change tables: it cannot have made those there are."""
    if changes.exists():
        yield OperatorError(
            f"change tables re-made or foreign: database {changes.names.schema} has some, but Kafka holds no position "
            f"of connector {connector}",
            hint="if the connector has run before, its position is lost: start over under a new connector name. "
            "docs/triggers.md says how the old database and its triggers are taken away",
        )


def open_source(config: ConnectorConfig) -> MysqlTriggers:
    """Make the source, for the registry. Connects to nothing yet."""
    return MysqlTriggers(config)
