"""PostgreSQL by triggers as a `Source`: it reads the change tables that the triggers write."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import psycopg2.extensions

from cdc.config.config import ConnectorConfig
from cdc.model.change import Coordinates, Idle, Message, Offset, Table, Transaction, TransactionBatch
from cdc.model.errors import BugError, CdcError, ChangedError, ConfigError, OperatorError, raise_first
from cdc.model.interfaces import Start
from cdc.model.state import State
from cdc.model.table_schema import Description
from connectors.captured_tables import LeftOut
from connectors.postgres import session
from connectors.postgres.catalog import server
from connectors.postgres.catalog.catalog import Captured, Catalog
from connectors.postgres.slot import ledger
from connectors.triggers.postgres.change_log import ROOM, ChangeLog
from connectors.triggers.postgres.rounds import Place, Rounds
from connectors.triggers.postgres.standing import differs
from connectors.triggers.postgres.triggers import LONGEST

log = logging.getLogger("cdc")

_LOCKS_S: Final = 10
_SHORTEST_S: Final = 0.02
_LONGEST_S: Final = 0.25
_LOOK_S: Final = 1.0
_LOOK_SHARE: Final = 20
"""A look takes at most one part in so many of the time."""
_FORGET_S: Final = 2.0


class PostgresTriggers:
    """Follows one database through one schema of change tables."""

    name = "postgresql"

    def __init__(self, config: ConnectorConfig) -> None:
        self._config = config
        if len(config.name) > LONGEST:
            raise ConfigError(
                f"name: {config.name} is too long for a connector by triggers", hint=f"at most {LONGEST} characters"
            )
        self._params = session.parameters(config.source.url, f"cdc {config.name}")
        self.database = ""
        self._sql: psycopg2.extensions.connection | None = None
        self._changes: ChangeLog | None = None
        self._reading: psycopg2.extensions.connection | None = None
        self._captured: tuple[Captured, ...] = ()
        self._left_out: Mapping[str, CdcError] = {}
        self._carried: dict[str, str] = {}
        self._stale: dict[str, str] = {}
        self._shapes: dict[int, Table | None] = {}
        self._place: Place | None = None
        self._rounds: Rounds | None = None
        self._look_at_s = 0.0
        self._forgot_s = 0.0
        self._differ: set[str] = set()
        self._gone: set[str] = set()

    def clock_ms(self) -> int:
        statement = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::int8"
        ((now_ms,),) = self._log().catalog.rows("reading the clock", statement)
        return int(now_ms)

    def connect(self) -> Mapping[str, str]:
        self._sql = session.connect(self._params)
        changes = self._log()
        changes.prepare()
        catalog = changes.catalog
        catalog.rows("limiting waits for locks", f"SET lock_timeout = '{_LOCKS_S}s'")
        found = server.look(catalog)
        self.database = found.database
        raise_first(server.refusals_by_triggers(found, session.endpoint(self._params)))
        session.tell_of_weak_tls(session.endpoint(self._params), session.weakness(self._params))
        left_out, of = LeftOut(self._config.source.tables), self._config.source
        self._captured = catalog.captured(of.tables, of.keys, left_out)
        left_out.tell(self._captured)
        self._left_out = left_out.found
        raise_first(changes.rights(self._captured))
        return {"database": found.database, "schema": changes.names.schema}

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
        look = Look.at(changes, followed)
        self._stale = look.differences(state.carried)
        self._carried, self._shapes = look.entries(), {}
        self._install([one for one in followed if look.standing[one.table.qualified] is None])
        return None

    def _install(self, wanted: Sequence[Captured]) -> None:
        """Make triggers, and note how those stand; of others it stays as it was compared."""
        self._log().install(wanted, self._captured)
        self._carried |= Look.at(self._log(), wanted).entries()
        self._shapes = {}

    def hold(self, tables: Sequence[Table]) -> Start:
        wanted = {table.qualified for table in tables}
        changes, held = self._log(), [one for one in self._captured if one.table.qualified in wanted]
        made = changes.make(held)
        last, seen = changes.now()
        self._place = Place(made, seen, (last + 1) << ROOM)
        self._stale, self._shapes = {}, {}
        self._carried = Look.at(changes, held).entries()
        return Start(self._place.offset(), self._place.number, None)

    def extend(self, tables: Sequence[Table]) -> None:
        wanted = {table.qualified for table in tables} - self._carried.keys()
        self._install([one for one in self._captured if one.table.qualified in wanted])

    def carried(self) -> Mapping[str, str]:
        return self._carried

    def stale(self) -> Mapping[str, str]:
        return self._stale

    def recall(self, described: Mapping[tuple[str, str], Sequence[Description]]) -> None:
        """Do nothing: the schema knows the columns of its changes."""

    def tend(self) -> None:
        self._log().catalog.rows("looking after the session", "SELECT")

    def current(self) -> int:
        return self._log().end()

    def stream(self, offset: Offset) -> Iterator[Transaction | TransactionBatch | Message | Idle]:
        self._reading = session.connect(self._params)
        self._place = Place.of(offset)
        rounds = self._rounds = Rounds(ChangeLog(self._reading, self._config.name), self._table, self._place)
        pause_s = _SHORTEST_S
        while True:
            self._look()
            before = rounds.place.last
            yield from rounds.read()
            yield Idle()
            pause_s = _SHORTEST_S if rounds.place.last != before else min(2 * pause_s, _LONGEST_S)
            time.sleep(pause_s)

    def _table(self, number: int) -> Table | None:
        """Return the table of a shape; None: it is not captured any more."""
        if number not in self._shapes:
            catalog, shapes = self._log().catalog, self._log().shapes()
            captured = {one.oid: one.table for one in self._captured}
            for other, shape in shapes.items():
                table = captured.get(shape.oid)
                if table is not None:
                    types = catalog.learn_types(of.type_oid for of in shape.columns)
                    told = shape.table(types)
                    same = (told.columns, told.key, told.qualified) == (table.columns, table.key, table.qualified)
                    table = table if same else told
                self._shapes[other] = table if table is not None and self._is_captured(table) else None
        return self._shapes[number]

    def _is_captured(self, table: Table) -> bool:
        return any(one.table.qualified == table.qualified for one in self._captured)

    def _look(self) -> None:
        """Compare the triggers, and all else that the tables rely on, every second or less often.

        A difference is given a moment: it may be a table on its way through the statements of a migration.
        """
        begun_s = time.monotonic()
        if begun_s < self._look_at_s:
            return
        self._compare()
        self._look_at_s = begun_s + max(_LOOK_S, (time.monotonic() - begun_s) * _LOOK_SHARE)

    def _compare(self) -> None:
        changes = self._log()
        if self._place is not None:
            raise_first(changes.refusals(self._position().offset()))
        self._look_at_names(changes.catalog)
        there = [one for one in self._captured if one.table.qualified not in self._gone]
        differ = set(Look.at(changes, there).differences(self._carried))
        again, self._differ = differ & self._differ, differ
        if again:
            names = ", ".join(sorted(again))
            raise ChangedError(f"table {names} was altered, or its triggers were: looking again")

    def _look_at_names(self, catalog: Catalog) -> None:
        now = catalog.names([one.oid for one in self._captured])
        for one in self._captured:
            was, there = (one.table.schema, one.table.name), now.get(one.oid)
            if there is not None and there != was:
                raise ChangedError(f"table renamed: {'.'.join(was)} is {'.'.join(there)} now: looking again")
            if there is None and catalog.exists(*was):
                raise ChangedError(f"table {'.'.join(was)} was dropped and made again: looking at it again")
            if there is None and one.table.qualified not in self._gone:
                self._gone.add(one.table.qualified)
                log.warning("table %s was dropped: its topic keeps the rows it had", one.table.qualified)

    def _position(self) -> Place:
        place = self._rounds.place if self._rounds is not None else self._place
        if place is None:
            raise BugError("there is no position yet")
        return place

    def position(self) -> tuple[Offset, int]:
        if self._rounds is None and self._place is None:
            return {}, 0
        place = self._position()
        return place.offset(), place.number

    def acknowledge(self, offset: Offset) -> None:
        now_s = time.monotonic()
        if now_s - self._forgot_s < _FORGET_S or self._place is None or offset["log"] != self._place.log:
            return
        if self._log().forget(offset):
            self._forgot_s = now_s

    def coordinates(self, commit: int) -> tuple[bytes, Coordinates]:
        return b'"txId":null,"change":%d', commit >> ROOM

    def lag_bytes(self) -> int | None:
        return None

    def close(self) -> None:
        for connection in (self._sql, self._reading):
            if connection is not None:
                connection.close()
        self._sql = self._reading = self._changes = None

    def _log(self) -> ChangeLog:
        if self._sql is None:
            raise BugError("the source is not connected")
        if self._changes is None:
            self._changes = ChangeLog(self._sql, self._config.name)
        return self._changes


@dataclass(frozen=True, slots=True)
class Look:
    """Is what the catalog says of tables and their triggers at one time."""

    standing: Mapping[str, str | None]
    """By table: how its triggers stand; None: not as they were made."""
    facts: Mapping[str, ledger.Facts]
    """What the log's connector compares too."""

    @classmethod
    def at(cls, changes: ChangeLog, captured: Sequence[Captured]) -> Look:
        standing = changes.standing(captured)
        named = {one.oid: one.table.qualified for one in captured}
        return cls(standing, ledger.look(changes.catalog, "", named) if named else {})

    def entries(self) -> dict[str, str]:
        """Return what is kept with the position of each table whose triggers are as they were made."""
        return {
            name: f"{stands} {self.facts[name].record}"
            for name, stands in self.standing.items()
            if stands is not None and name in self.facts
        }

    def differences(self, then: Mapping[str, str]) -> dict[str, str]:
        """Return the tables whose rows may have changed without being written down, with the reason of each."""
        found = {name: _reason(then.get(name), stands, self.facts.get(name)) for name, stands in self.standing.items()}
        return {name: reason for name, reason in found.items() if reason is not None}


def _reason(then: str | None, stands: str | None, facts: ledger.Facts | None) -> str | None:
    """Say why a table's rows may have changed without being written down; None: they have not."""
    if then is None:
        return "nothing is known of its triggers"
    if stands is None or facts is None:
        return "it was altered, or its triggers are not as they were made"
    were, end = json.JSONDecoder().raw_decode(then)
    if differs(json.dumps(were), stands):
        return "its triggers were altered, or made again"
    return ledger.difference(then[end:].strip(), facts, "")


def unused_refusals(changes: ChangeLog, connector: str) -> Iterator[OperatorError]:
    """Give why a connector without a position cannot make its schema: it cannot have made the one there is."""
    if changes.exists():
        yield OperatorError(
            f"change table re-made or foreign: schema {changes.names.schema} exists, but Kafka holds no position of "
            f"connector {connector}",
            hint="if the connector has run before, its position is lost: start over under a new connector name. "
            "docs/triggers.md says how the old schema and its triggers are taken away",
        )


def open_source(config: ConnectorConfig) -> PostgresTriggers:
    """Make the source, for the registry. Connects to nothing yet."""
    return PostgresTriggers(config)
