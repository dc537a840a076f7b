"""PostgreSQL as a `Source`: the SQL connection answers, the replication connection streams."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import psycopg2.extensions

from cdc.change import Change, Idle, Offset, Op, Table, Transaction
from cdc.config import ConnectorConfig
from cdc.errors import BugError, OperatorError, ProtocolError
from cdc.interfaces import Start
from cdc.state import State
from connectors.postgres import pgoutput, session, slot
from connectors.postgres.assemble import Assembler
from connectors.postgres.catalog import OLDEST, Captured, Catalog
from connectors.postgres.stream import ReplicationConnection, at_record_end, data, keepalive, lsn_number, lsn_text

_WAIT_S: Final = 0.5
_DATA: Final = ord("w")
_KEEPALIVE: Final = ord("k")


class PostgresSource:
    """One database's logical WAL through one slot and one publication."""

    name = "postgresql"

    def __init__(self, config: ConnectorConfig) -> None:
        self._config = config
        self._params = session.parameters(config.source.url, f"cdc {config.name}")
        self._sql: psycopg2.extensions.connection | None = None
        self._replication: ReplicationConnection | None = None
        self._captured: tuple[Captured, ...] = ()
        self._catalog_of: Catalog | None = None
        self._read_to = 0
        self.database = ""

    def connect(self) -> Mapping[str, str]:
        self._sql = session.connect(self._params)
        catalog = self._catalog()
        rows = catalog.rows(
            "reading settings",
            "SELECT current_database(), current_setting('server_version_num')::int, current_setting('wal_level'),"
            " (SELECT rolreplication OR rolsuper FROM pg_roles WHERE rolname = current_user),"
            " current_user, current_setting('server_version'), pg_is_in_recovery()",
        )
        self.database, version, wal_level, may_replicate, user, shown, standby = rows[0]
        where = session.place(self._params)
        if version < OLDEST:
            raise OperatorError(f"PostgreSQL at {where} is {shown}; 14 or newer is needed", hint="upgrade the server")
        if wal_level != "logical":
            raise OperatorError(
                f"PostgreSQL at {where} has wal_level={wal_level}: its log has no rows to read",
                hint="ALTER SYSTEM SET wal_level = logical; then restart the server",
            )
        if standby:
            raise OperatorError(f"PostgreSQL at {where} is a standby", hint="point source.url at the primary")
        self._captured = catalog.captured(self._config.source.tables)
        if not may_replicate and not self._has_managed_replication(catalog):
            raise OperatorError(
                f"PostgreSQL at {where}: user {user} may not replicate",
                hint=f"ALTER ROLE {session.identifier(user)} REPLICATION",
            )
        slot.rehearse_publication(catalog, self._config.publication, self.tables())
        self._replication = ReplicationConnection(self._params)
        ((system, timeline, *_),) = self._replication.query("IDENTIFY_SYSTEM", "identifying the server")
        return {
            "system_identifier": system,
            "timeline": timeline,
            "database": self.database,
            "slot": self._config.slot,
        }

    @staticmethod
    def _has_managed_replication(catalog: Catalog) -> bool:
        """Managed services give the right through membership in a role of their own."""
        rows = catalog.rows(
            "reading roles",
            "SELECT 1 FROM pg_roles WHERE rolname IN ('rds_replication', 'cloudsqlsuperuser', 'azure_pg_admin')"
            " AND pg_has_role(oid, 'member')",
        )
        return bool(rows)

    def tables(self) -> tuple[Table, ...]:
        return tuple(captured.table for captured in self._captured)

    def captured(self) -> tuple[Captured, ...]:
        """`tables` with what reading them by SQL needs."""
        return self._captured

    def verify(self, state: State) -> None:
        slot.verify_slot(self._catalog(), self._config.slot, lsn_number(str(state.offset["lsn"])))
        followed = set(state.tables) & {table.qualified for table in self.tables()}
        slot.verify_publication(self._catalog(), self._config.publication, followed)

    def hold(self, tables: Sequence[Table]) -> Start:
        catalog, replication = self._catalog(), self._walsender()
        slot.ensure_publication(catalog, self._config.publication, tables)
        if slot.find_slot(catalog, self._config.slot) is not None:
            slot.drop_slot(replication, self._config.slot)
        lsn, view = slot.create_slot(replication, self._config.slot)
        return Start({"lsn": lsn_text(lsn)}, lsn, view)

    def unused(self) -> None:
        """Raise OperatorError if the slot's name is taken: nothing of ours can have made it."""
        if slot.find_slot(self._catalog(), self._config.slot) is not None:
            raise OperatorError(
                f"slot re-made or foreign: {self._config.slot} exists, but Kafka holds no position of connector "
                f"{self._config.name}",
                hint=f"if no other tool uses it: SELECT pg_drop_replication_slot('{self._config.slot}'); "
                "else set source.slot to another name",
            )

    def extend(self, tables: Sequence[Table]) -> None:
        slot.ensure_publication(self._catalog(), self._config.publication, tables)
        slot.await_older_transactions(self._catalog())  # whoever published them, and however long ago

    def current(self) -> int:
        ((text,),) = self._catalog().rows("reading the log's end", "SELECT pg_current_wal_insert_lsn()::text")
        return at_record_end(lsn_number(text))

    def stream(self, offset: Offset) -> Iterator[Transaction | Idle]:
        replication = self._walsender()
        resume = self._read_to = lsn_number(str(offset["lsn"]))
        replication.start(self._config.slot, self._config.publication, resume)
        assembler = Assembler()
        while True:
            message = self._next(replication, between=True)
            if message is None:
                yield Idle()
                replication.status(every_s=_WAIT_S, reply=True)  # the answer says how far an idle log has got
                replication.wait(_WAIT_S)
                continue
            _lsn, payload = message
            match begin := pgoutput.decode(payload):
                case pgoutput.Begin(commit_lsn, at_us, xid):
                    changes = self._changes(replication, assembler, begin)
                    if commit_lsn < resume:  # the server resends what a restart had not acknowledged
                        for _ in changes:
                            pass
                        continue
                    yield Transaction(f"{xid}:{commit_lsn}", xid, commit_lsn, at_us // 1000, changes)
                    if self._read_to <= commit_lsn:
                        raise BugError("a transaction was left before its end")
                case pgoutput.Relation():
                    self._learn(assembler, begin)
                case pgoutput.Skipped() | pgoutput.LogicalMessage():
                    pass
                case _:
                    raise ProtocolError(0, f"{type(begin).__name__} outside a transaction")

    def _changes(
        self, replication: ReplicationConnection, assembler: Assembler, begin: pgoutput.Begin
    ) -> Iterator[Change]:
        while True:
            received = self._next(replication, between=False)
            if received is None:
                replication.status()
                replication.wait(_WAIT_S)
                continue
            lsn, payload = received
            match message := pgoutput.decode(payload):
                case pgoutput.Insert() | pgoutput.Update() | pgoutput.Delete():
                    change = assembler.change(message, lsn)
                    if change is not None:
                        yield change
                case pgoutput.Relation():
                    self._learn(assembler, message)
                case pgoutput.Truncate(relations):
                    for relation in relations:
                        table = assembler.table(relation)
                        if table is not None:
                            yield Change(Op.TRUNCATE, table, None, None, lsn)
                case pgoutput.Commit(commit_lsn, end_lsn):
                    if commit_lsn != begin.commit_lsn:
                        raise ProtocolError(0, "the commit of another transaction")
                    self._read_to = end_lsn
                    replication.written(end_lsn)
                    return
                case pgoutput.Skipped() | pgoutput.LogicalMessage():
                    pass
                case _:
                    raise ProtocolError(0, f"{type(message).__name__} inside a transaction")

    def _next(self, replication: ReplicationConnection, *, between: bool) -> tuple[int, bytes] | None:
        """The next data message; keepalives are answered on the way. None: nothing more has come.

        `between` transactions a keepalive moves the position: what was committed before its end was sent before it.
        """
        while True:
            message = replication.receive()
            if message is None:
                return None
            if message[0] == _DATA:
                return data(message)
            if message[0] != _KEEPALIVE:
                raise ProtocolError(0, f"a replication message of unknown type 0x{message[0]:02x}")
            end, reply = keepalive(message)
            if between and end > self._read_to:
                self._read_to = end
                replication.written(end)
            if reply:
                replication.status(every_s=0)

    def _learn(self, assembler: Assembler, relation: pgoutput.Relation) -> None:
        by_oid = {captured.oid: captured.table for captured in self._captured}
        names = {(t.schema, t.name) for t in by_oid.values()}
        if (relation.schema, relation.name) in names:
            assembler.learn(relation, self._catalog().table(relation))
        elif relation.id in by_oid:
            raise OperatorError(
                f"table {by_oid[relation.id].qualified} is {relation.schema}.{relation.name} in the log",
                hint="a rename: name it in tables by the name it had when these rows were written",
            )
        else:
            assembler.learn(relation, None)

    def position(self) -> tuple[Offset, int]:
        return {"lsn": lsn_text(self._read_to)}, self._read_to

    def acknowledge(self, offset: Offset) -> None:
        replication = self._walsender()
        replication.flushed(lsn_number(str(offset["lsn"])))
        replication.status(every_s=0)

    def lag_bytes(self) -> int | None:
        return max(0, self.current() - self._read_to)

    def close(self) -> None:
        if self._replication is not None:
            self._replication.close()
        if self._sql is not None:
            self._sql.close()
        self._replication = self._sql = self._catalog_of = None

    def _catalog(self) -> Catalog:
        if self._sql is None:
            raise BugError("the source is not connected")
        if self._catalog_of is None:
            self._catalog_of = Catalog(self._sql)
        return self._catalog_of

    def _walsender(self) -> ReplicationConnection:
        if self._replication is None:
            raise BugError("the source is not connected")
        return self._replication


def open_source(config: ConnectorConfig) -> PostgresSource:
    """The registry's entry. Connects to nothing yet."""
    return PostgresSource(config)
