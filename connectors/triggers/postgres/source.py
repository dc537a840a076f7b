"""PostgreSQL by triggers as a `Source`: it reads the change tables that the triggers write."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import psycopg2.errors
import psycopg2.extensions

from cdc.config.config import ConnectorConfig
from cdc.model.change import Coordinates, Idle, Message, Offset, Table, Transaction, TransactionBatch
from cdc.model.errors import BugError, ChangedError, OperatorError, raise_first
from cdc.model.interfaces import Start
from cdc.model.state import State
from connectors.postgres import same_server, session
from connectors.postgres.catalog import server
from connectors.postgres.catalog.catalog import Captured
from connectors.postgres.reliance import ledger
from connectors.triggers.following import LONGEST_S, SHORTEST_S, TriggerSource
from connectors.triggers.postgres.change_log import ChangeLog
from connectors.triggers.postgres.rounds import Place, Rounds, make_safe, with_views
from connectors.triggers.postgres.sequence import ROOM
from connectors.triggers.postgres.standing import differs
from connectors.triggers.postgres.triggers import LONGEST


class PostgresTriggers(TriggerSource[Captured]):
    """Follows one database through one schema of change tables."""

    name = "postgresql"
    places: tuple[str, ...] = ("txId", "change")

    def __init__(self, config: ConnectorConfig) -> None:
        super().__init__(config, longest_name=LONGEST)
        self._params = session.parameters(config.source.url, f"cdc {config.name}")
        self._sql: psycopg2.extensions.connection | None = None
        self._changes: ChangeLog | None = None
        self._reading: psycopg2.extensions.connection | None = None
        self._seen: str | None = None
        """The snapshot of the position that the session begins at."""
        self._shapes: dict[int, Table | None] = {}
        self._divided: dict[int, bool] = {}
        self._parts: dict[int, tuple[str, str]] = {}
        """Partitions that changes tell of, with their tables: see `ledger.with_parts`."""

    def clock_ms(self) -> int:
        return self._log().clock_ms()

    def connect(self) -> Mapping[str, str]:
        self._sql = same_server.first(self._params)
        changes = self._log()
        changes.prepare()
        found = server.look(changes.catalog)
        self.database = found.database
        raise_first(server.refusals_by_triggers(found, session.endpoint(self._params)))
        session.tell_of_weak_tls(session.endpoint(self._params), session.weakness(self._params))
        self._choose()
        return {"database": found.database, "schema": changes.names.schema}

    def _rights(self, captured: Sequence[Captured]) -> Iterator[OperatorError]:
        return self._log().rights(captured)

    def _known(self) -> Collection[str]:
        return self._log().known()

    def _wait_for_locks(self, seconds: float) -> None:
        self._log().wait_for_locks(seconds)

    def _compared(self, captured: Sequence[Captured]) -> Look:
        return Look.at(self._log(), self._config.source.keys, captured)

    def _note(self, captured: Sequence[Captured]) -> None:
        super()._note(captured)
        self._shapes = {}

    def _make(self, held: Sequence[Captured]) -> Start:
        changes = self._log()
        made = changes.make(held)
        last, following, seen = changes.now()
        safe = make_safe(changes.catalog, changes.names)
        self._place = Place(made, seen, (last + 1) << ROOM, drawn=f"{last} {following}", safe=safe)
        return Start(self._place.offset(), self._place.commit, None)

    def tend(self) -> None:
        self._log().catalog.rows("looking after the session", "SELECT")

    def current(self) -> int:
        at, _ = self.position()
        return self._log().end(str(at["seen"]) if at else self._seen)

    def verify(self, state: State) -> tuple[Offset, int] | None:
        self._seen = str(state.offset["seen"])
        return super().verify(replace(state, offset=with_views(state)))

    def stream(self, offset: Offset) -> Iterator[Transaction | TransactionBatch | Message | Idle]:
        self._reading = same_server.beside(self._params)
        self._place = place = Place.of(offset)
        rounds = self._rounds = Rounds(
            ChangeLog(self._reading, self._config.name), place, table_of=self._table, missed=self._missed,
            parts=self._parts, partitioned=self._is_divided,
        )  # fmt: skip
        pause_s = SHORTEST_S
        while True:
            self._look()
            before = rounds.place.last
            yield from rounds.read()
            yield Idle()
            pause_s = SHORTEST_S if rounds.place.last != before else min(2 * pause_s, LONGEST_S)
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

    def _is_divided(self, number: int) -> bool:
        if number not in self._divided:
            self._divided = {other: shape.partitioned for other, shape in self._log().shapes().items()}
        return self._divided[number]

    def carried(self) -> Mapping[str, str]:
        told = self._parts.copy()  # the session that reads notes more
        return with_parts(self._carried, told) if told else self._carried

    def _missed(self, number: int) -> bool:
        """Note a miss of a shape; return whether to look again: a table that is set aside is read again anyway."""
        table = self._table(number)
        return self._log().missed(number) and not (table is not None and table.qualified in self._aside)

    def _is_captured(self, table: Table) -> bool:
        return any(one.table.qualified == table.qualified for one in self._captured)

    def _elsewhere(self, captured: Iterable[Captured]) -> Iterator[tuple[str, str | None]]:
        """Tables are known by their oids."""
        catalog = self._log().catalog
        now = catalog.names([one.oid for one in captured])
        for one in captured:
            was, there = (one.table.schema, one.table.name), now.get(one.oid)
            if there is None and catalog.exists(*was):
                raise ChangedError(f"table {one.table.qualified} was dropped and made again: looking at it again")
            if there != was:
                yield one.table.qualified, None if there is None else ".".join(there)

    def _forget(self, offset: Offset) -> bool:
        """Raises ChangedError where a publication has the change tables by now: the next start lets rows go there."""
        try:
            return self._log().forget(offset)
        except OperatorError as exc:
            if isinstance(exc.__cause__, psycopg2.errors.ObjectNotInPrerequisiteState) and self._log().wrong():
                raise ChangedError("a publication has the connector’s own tables now: looking at them again") from exc
            raise

    def coordinates(self, commit: int) -> tuple[bytes, Coordinates]:
        return b'"txId":null,"change":%d', commit >> ROOM

    def close(self) -> None:
        if self._reading is not None:
            self._reading.close()
        same_server.close(self._params, self._sql)
        self._sql = self._reading = self._changes = None

    def _log(self) -> ChangeLog:
        if self._sql is None:
            raise BugError("the source is not connected")
        if self._changes is None:
            self._changes = ChangeLog(self._sql, self._config.name, self._config.source.where)
        return self._changes


@dataclass(frozen=True, slots=True)
class Look:
    """Is what the catalog says of tables and their triggers at one time."""

    standing: Mapping[str, str | None]
    """By table: how its triggers stand; None: not as they were made."""
    facts: Mapping[str, ledger.Facts]
    """What the log's connector compares too."""

    @classmethod
    def at(cls, changes: ChangeLog, keys: Mapping[str, Sequence[str]], captured: Sequence[Captured]) -> Look:
        """`keys` has those that the file gives, by table."""
        standing = changes.standing(captured)
        named = {one.oid: one.table.qualified for one in captured}
        return cls(standing, ledger.look(changes.catalog, "", named, None, keys) if named else {})

    def entries(self, then: Mapping[str, str]) -> dict[str, str]:
        """Return what is kept with the position of each table whose triggers are as they were made."""
        return {
            name: f"{stands} {ledger.record(self.facts[name], _split(then[name])[1] if name in then else '')}"
            for name, stands in self.standing.items()
            if stands is not None and name in self.facts
        }

    def differences(self, then: Mapping[str, str]) -> dict[str, str]:
        """Return the tables whose rows may have changed without being written down, with the reason of each."""
        found = {name: _reason(then.get(name), stands, self.facts.get(name)) for name, stands in self.standing.items()}
        return {name: reason for name, reason in found.items() if reason is not None}


def with_parts(entries: Mapping[str, str], told: Mapping[int, tuple[str, str]]) -> dict[str, str]:
    """Return entries of tables whose partitions, of which changes tell, no look has found yet."""
    divided = {name: _split(entries[name]) for name, _ in told.values() if name in entries}
    records = ledger.with_parts({name: record for name, (_, record) in divided.items()}, told)
    return {**entries, **{name: f"{stood} {records[name]}" for name, (stood, _) in divided.items()}}


def _split(entry: str) -> tuple[str, str]:
    """Return how the triggers stood, and the ledger's record."""
    _, end = json.JSONDecoder().raw_decode(entry)
    return entry[:end], entry[end:].strip()


def _reason(then: str | None, stands: str | None, facts: ledger.Facts | None) -> str | None:
    """Say why a table's rows may have changed without being written down; None: they have not."""
    if then is None:
        return "nothing is known of its triggers"
    if stands is None or facts is None:
        return "it was altered, or its triggers are not as they were made"
    stood, record = _split(then)
    if differs(stood, stands):
        return "its triggers were altered, or made again"
    return ledger.difference(record, facts, "")


def open_source(config: ConnectorConfig) -> PostgresTriggers:
    """Make the source, for the registry. Connects to nothing yet."""
    return PostgresTriggers(config)
