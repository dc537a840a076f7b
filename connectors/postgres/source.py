"""PostgreSQL as a `Source`: the SQL connection answers, the replication connection streams."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import psycopg2.extensions

from cdc.config.config import ConnectorConfig
from cdc.encode.envelope.frame import in_wal
from cdc.model.change import Change, Coordinates, Idle, Message, Offset, Op, Table, Transaction, TransactionBatch
from cdc.model.errors import BugError, GapError, OperatorError, ProtocolError, RetryableError, raise_first
from cdc.model.interfaces import LINEAGE, Follower, Start
from cdc.model.state import State
from cdc.model.table_schema import Description
from connectors import captured_tables
from connectors.captured_tables import LeftOut, Reasons
from connectors.postgres import same_server, session
from connectors.postgres.catalog import identities, server
from connectors.postgres.catalog.catalog import Captured, Catalog
from connectors.postgres.catalog.relations import Followed
from connectors.postgres.hangup import hung_up
from connectors.postgres.lsn import at_record_end, lsn_number, lsn_text
from connectors.postgres.pgoutput import fast_path, messages
from connectors.postgres.pgoutput.changes import Assembler
from connectors.postgres.reliance.joining import LOCKS_S, Joining
from connectors.postgres.reliance.reliance import Reliance
from connectors.postgres.slot import afresh, continuity, proving, slot
from connectors.postgres.slot.claim import Claim
from connectors.postgres.slot.heartbeat import OURS, Upkeep
from connectors.postgres.slot.history import LastTransaction
from connectors.postgres.slot.left_behind import left_behind
from connectors.postgres.slot.replication_stream import ReplicationConnection, data, keepalive, readable

log = logging.getLogger("cdc")

_CLOCK: Final = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::int8"
_WAIT_S: Final = 0.5
_TENDED_EVERY: Final = 4096
_AT_ONCE: Final = 1000
"""Rows between two looks at what else is due."""
_DATA: Final = ord("w")
_KEEPALIVE: Final = ord("k")


class PostgresSource:
    """Follows one database's logical WAL through one slot and one publication."""

    name = "postgresql"
    places: tuple[str, ...] = ("txId", "lsn")

    def __init__(self, config: ConnectorConfig) -> None:
        self._config = config
        self._names = continuity.SlotAndPublication(config.slot, config.publication)
        self._log_key = config.source.url, config.slot
        self._params = session.parameters(config.source.url, f"cdc {config.name}")
        self._claim = Claim(self._params, connector=config.name, slot=config.slot)
        self._sql: psycopg2.extensions.connection | None = None
        self._replication: ReplicationConnection | None = None
        self._captured: tuple[Captured, ...] = ()
        self._left_out: Reasons = {}
        self._joining = Joining(config.publication, config.source)
        self._followed = Followed(config, ())
        self._relied: Reliance | None = None
        self._catalog_of: Catalog | None = None
        self._upkeep: Upkeep | None = None
        self._read_to = 0
        self._last: LastTransaction | None = None
        self._version = 0
        self._identity: Mapping[str, str] = {}
        self.database = ""

    def follower(self) -> Follower | None:
        return self._claim.follower()

    def free(self) -> None:
        self._claim.free()

    def clock_ms(self) -> int:
        with self._tended().asking():
            ((now_ms,),) = self._catalog().rows("reading the clock", _CLOCK)
        return int(now_ms)

    def connect(self) -> Mapping[str, str]:
        self._sql = same_server.first(self._params)
        catalog = self._catalog()
        catalog.rows("limiting waits for locks", f"SET lock_timeout = '{LOCKS_S:.0f}s'")
        self._claim.keep()
        self._upkeep = Upkeep(self._sql, catalog, slot=self._config.slot, heartbeat_s=self._config.source.heartbeat_s)
        found = server.look(catalog)
        self.database, self._version = found.database, found.version
        raise_first(server.refusals(found, session.endpoint(self._params)))
        session.tell_of_weak_tls(session.endpoint(self._params), session.weakness(self._params))
        left_out = LeftOut((of := self._config.source).tables, of.outbox)
        self._captured = self._joining.possible(catalog, catalog.captured(of.tables, of.keys, left_out), left_out)
        left_out.refuse_all(self._captured)
        captured_tables.tell(one.warning for one in self._captured)
        self._left_out = left_out.found
        self._followed = Followed(self._config, self._captured)
        self._relied = Reliance(self._config, catalog, self._captured, self._followed, self._joining)
        identities.tell(catalog.rows, self._config.publication, {c.oid: c.table.qualified for c in self._captured})
        captured_tables.tell(left_behind(catalog, self._config))
        self._replication = ReplicationConnection(self._params)
        self._identity = continuity.identity(self._replication, database=self.database, names=self._names)
        return self._identity

    def renamed(self, then: Mapping[str, str], at: Offset) -> Mapping[str, str]:  # noqa: ARG002 - the seam's
        if not continuity.renamed(self._catalog(), then, self._identity):
            return then
        log.warning("database %s is called %s by now", then["database"], self.database)
        return {**then, "database": self.database}

    def left_out(self) -> Reasons:
        return self._left_out

    def tables(self) -> tuple[Table, ...]:
        return tuple(captured.table for captured in self._captured)

    def captured(self) -> tuple[Captured, ...]:
        """Return `tables` with what reading them by SQL needs."""
        return self._captured

    def verify(self, state: State) -> tuple[Offset, int] | None:
        here = self._identity[LINEAGE]
        self._reliance().verify(state, self._walsender(), self._names, here=here)
        return (state.offset, state.commit) if continuity.failed_over(state, here) else None

    def hold(self, tables: Sequence[Table]) -> Start:
        catalog, replication = self._catalog(), self._walsender()
        found = slot.slot_refusals(catalog, self._config.slot, 0)
        raise_first(refusal for refusal in found if not isinstance(refusal, GapError))  # another tool's
        slot.ensure_publication(catalog, self._config.publication, tables)
        self._reliance().begin()  # before the log: what changes then is seen
        if slot.find_slot(catalog, self._config.slot) is not None:
            slot.drop_slot(replication, self._config.slot)
        lsn, view = slot.create_slot(replication, self._config.slot, version=self._version)
        none = LastTransaction.none_yet(messages=self._config.source.messages)
        return Start({"lsn": lsn_text(lsn), "last": str(none)}, lsn, view)

    def require_rules(self, carried: Mapping[str, str]) -> None:
        self._reliance().require_rules(carried)

    def unused(self) -> None:
        raise_first(slot.unused_refusals(self._catalog(), self._config.slot, self._config.name))
        slot.rehearse_publication(self._catalog(), self._config.publication, self.tables())

    def extend(self, tables: Sequence[Table]) -> None:
        slot.ensure_publication(self._catalog(), self._config.publication, tables)
        self._reliance().extend()

    def carried(self) -> Mapping[str, str]:
        return self._reliance().carried()

    def stale(self) -> Mapping[str, str]:
        return self._reliance().stale

    def settled(self) -> bool:
        with self._tended().asking():
            return self._reliance().settled()

    def recall(self, described: Mapping[tuple[str, str], Sequence[Description]]) -> None:
        self._followed.recall(described)

    def current(self) -> int:
        with self._tended().asking():
            return at_record_end(self._catalog().end())

    def tend(self) -> None:
        self._claim.keep()
        self._tended().tend(following=False)
        self._walsender().status()
        self._walsender().require_open()
        if self._sql is None or hung_up(self._sql.fileno()):
            said = f"PostgreSQL at {session.endpoint(self._params)} has ended the session"
            raise RetryableError(said, hint=session.GO_ON)

    def stream(self, offset: Offset) -> Iterator[Transaction | TransactionBatch | Message | Idle]:
        try:
            yield from readable(self._frames(offset), lambda: self._read_to)
        except GapError:
            with self._tended().asking():
                self._reliance().require_publication()
            raise

    def _frames(self, offset: Offset) -> Iterator[Transaction | TransactionBatch | Message | Idle]:
        resume = self._read_to = lsn_number(str(offset["lsn"]))
        yield from self._prove(offset)
        self._begin(resume)
        self._tended().follows(resume)
        while True:
            yield from self._sent(self._read_to)
            self._begin_again()

    def _sent(self, resume: int) -> Iterator[Transaction | TransactionBatch | Message | Idle]:
        """Give what one walsender sends, until another one is asked for."""
        replication, upkeep, assembler = self._walsender(), self._tended(), Assembler()
        while not afresh.is_due(self._log_key, self._read_to):
            self._claim.keep()
            upkeep.tend(following=True)
            self._look()
            received = replication.receive_transactions(assembler.fast_path.transactions, resume, _AT_ONCE)
            self._reach(replication, received.end)
            if received.whole:
                yield self._batch(received.whole)
            message, begun = received.message, received.begun
            if not received.something:
                yield Idle()
                replication.status(every_s=_WAIT_S, reply=True)  # the answer says how far an idle log has got
                replication.wait(_WAIT_S)
                continue
            said: messages.Message | None = begun
            if said is None:
                if message is None:
                    continue
                if message[0] != _DATA:
                    self._keepalive(replication, message, between=True)
                    continue
                said = messages.decode(data(message)[1])
            match said:
                case messages.Begin(commit_lsn, at_us, xid):
                    first = (received.changes, message) if begun is not None else ([], None)
                    changes = readable(self._changes(replication, assembler, said, first), lambda: self._read_to)
                    if commit_lsn < resume:  # the server resends what a restart had not acknowledged
                        for _ in changes:
                            pass
                        continue
                    yield Transaction(f"{xid}:{commit_lsn}", xid, commit_lsn, at_us // 1000, changes, in_wal(xid))
                    if self._read_to <= commit_lsn:
                        raise BugError("a transaction was left before its end")
                case messages.Relation():
                    self._learn(assembler, said, None)
                case messages.LogicalMessage(_, lsn, prefix, content):
                    if lsn <= resume:
                        continue
                    self._reach(replication, lsn)
                    if not prefix.startswith(OURS):
                        yield Message(prefix, content, lsn)
                case messages.Skipped():
                    pass
                case _:
                    raise ProtocolError(0, f"{type(said).__name__} outside a transaction")

    def _begin_again(self) -> None:
        """Have the log sent by a new walsender from where it was read up to."""
        (before := self._walsender()).close()
        with self._tended().asking():
            proving.await_free(self._catalog(), self._config.slot)
        self._replication = ReplicationConnection(self._params)
        self._begin(self._read_to, before.kept)
        afresh.has_begun(self._log_key, self._read_to)

    def _begin(self, resume: int, kept: int | None = None) -> None:
        """Ask for the log. Raises GapError if the slot has been lost since it was compared: a snapshot takes long."""
        name, messages = self._config.slot, self._config.source.messages
        try:
            self._walsender().start(name, self._config.publication, resume, messages=messages, flushed=kept)
        except OperatorError:
            raise_first(slot.slot_refusals(self._catalog(), name, resume))
            raise

    def _prove(self, offset: Offset) -> Iterator[Idle]:
        """Make sure that the log before the position is the one that was followed, where it may be another."""
        self._last = LastTransaction.parse(str(offset["last"])) if "last" in offset else None
        if self._last is not None and self._last.messages == self._config.source.messages:
            for _ in proving.prove(self._params, self._catalog(), self._names, self._last, self._read_to):
                self.tend()
                yield Idle()

    def _batch(self, whole: list[Transaction]) -> TransactionBatch:
        last, messages = whole[-1], self._config.source.messages
        self._last = LastTransaction.of(last.commit, last.xid, last.committed_at_ms, messages=messages)
        return TransactionBatch(whole)

    def _changes(
        self,
        replication: ReplicationConnection,
        assembler: Assembler,
        begin: messages.Begin,
        first: tuple[list[Change], bytes | None],
    ) -> Iterator[Change | Message]:
        """Give what a transaction changes, of which the `first` changes have come, and maybe a message behind them."""
        upkeep, untended = self._tended(), 0
        begun = iter([first])
        while True:
            changes, received = next(begun, None) or replication.receive_changes(assembler.fast_path.changes, _AT_ONCE)
            yield from changes
            untended += len(changes) + 1
            if received is None or untended >= _TENDED_EVERY:
                self._claim.keep()
                upkeep.tend(following=True)
                untended = 0
            if received is None and changes:
                continue
            if received is None:
                received = replication.receive()
            if received is None:
                replication.status(reply=True)  # the answer says that it is still there
                replication.wait(_WAIT_S)
                continue
            if received[0] != _DATA:
                self._keepalive(replication, received, between=False)
                continue
            end = fast_path.commit(received)
            change = assembler.fast_path.change(received) if end is None else None
            if change is not None:
                yield change
                continue
            lsn, payload = data(received)
            message = end or messages.decode(payload)
            if isinstance(message, messages.Commit):
                if message.commit_lsn != begin.commit_lsn:
                    raise ProtocolError(0, "the commit of another transaction")
                self._reach(replication, message.end_lsn, begin)
                return
            yield from self._change(assembler, message, lsn, begin)

    def _change(
        self, assembler: Assembler, message: messages.Message, lsn: int, begin: messages.Begin
    ) -> Iterator[Change | Message]:
        """Give what a message inside a transaction says, which the fast path has declined."""
        match message:
            case messages.Insert() | messages.Update() | messages.Delete():
                change = assembler.change(message, lsn)
                if change is not None:
                    yield change
            case messages.Relation():
                self._learn(assembler, message, begin.commit_lsn)
            case messages.Truncate(relations):
                for relation in self._followed.truncated(relations):
                    table = assembler.table(relation)
                    if table is not None:
                        yield Change(Op.TRUNCATE, table, None, None, lsn)
            case messages.LogicalMessage(_, at, prefix, content):
                if not prefix.startswith(OURS):
                    yield Message(prefix, content, at)
            case messages.Skipped():
                pass
            case _:
                raise ProtocolError(0, f"{type(message).__name__} inside a transaction")

    def _keepalive(self, replication: ReplicationConnection, message: bytes, *, between: bool) -> None:
        """Answer it if it asks; `between` transactions it moves the position: what it ends behind was sent before."""
        if message[0] != _KEEPALIVE:
            raise ProtocolError(0, f"a replication message of unknown type 0x{message[0]:02x}")
        end, reply = keepalive(message)
        if between:
            self._reach(replication, end)
        if reply:
            replication.status(every_s=0)

    def _reach(self, replication: ReplicationConnection, lsn: int, whole: messages.Begin | None = None) -> None:
        """Note that between two transactions the log was read up to here; `whole` has just come to its end."""
        if lsn <= self._read_to:
            return
        self._read_to = lsn
        replication.written(lsn)
        if whole is not None:
            at_ms, emitted = whole.committed_at_us // 1000, self._config.source.messages
            self._last = LastTransaction.of(whole.commit_lsn, whole.xid, at_ms, messages=emitted)

    def _learn(self, assembler: Assembler, relation: messages.Relation, commit: int | None) -> None:
        with self._tended().asking():
            table = self._reliance().learn(relation, commit)
        assembler.learn(relation, table, needs_old=table is not None and self._needs_old(relation, table))

    def _needs_old(self, relation: messages.Relation, table: Table) -> bool:
        """Tell whether only whole old rows tell rows apart, and a partition may leave them out: it may not be FULL."""
        by_whole = table.deferred_key or table.qualified in self._config.source.keys
        return (
            relation.identity == "f" and by_whole and any(c.oid == relation.id for c in self._captured if c.partitioned)
        )

    def _look(self) -> None:
        if self._reliance().is_due():
            with self._tended().asking():
                self._reliance().look()

    def position(self) -> tuple[Offset, int]:
        last = {} if self._last is None else {"last": str(self._last)}
        return {"lsn": lsn_text(self._read_to), **last}, self._read_to

    def acknowledge(self, offset: Offset) -> None:
        replication = self._walsender()
        replication.flushed(lsn_number(str(offset["lsn"])))
        replication.status(every_s=0)

    def coordinates(self, commit: int) -> tuple[bytes, Coordinates]:
        return in_wal(None), commit

    def lag_bytes(self) -> int | None:
        return max(0, self.current() - self._read_to)

    def close(self) -> None:
        self._claim.close()
        if self._replication is not None:
            self._replication.close()
        same_server.close(self._params, self._sql)
        self._replication = self._sql = self._catalog_of = self._upkeep = None

    def _catalog(self) -> Catalog:
        if self._sql is None:
            raise BugError("the source is not connected")
        self._catalog_of = self._catalog_of or Catalog(self._sql, self._config.publication)
        return self._catalog_of

    def _reliance(self) -> Reliance:
        if self._relied is None:
            raise BugError("the source is not connected")
        return self._relied

    def _tended(self) -> Upkeep:
        if self._upkeep is None:
            raise BugError("the source is not connected")
        return self._upkeep

    def _walsender(self) -> ReplicationConnection:
        if self._replication is None:
            raise BugError("the source is not connected")
        return self._replication


def open_source(config: ConnectorConfig) -> PostgresSource:
    """Make the source, for the registry. Connects to nothing yet."""
    return PostgresSource(config)
