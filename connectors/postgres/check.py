"""Asks a PostgreSQL server for `cdc check`: every precondition at once, each with the statement that meets it.

What a run would refuse is taken from where the run refuses it. Nothing is made: the publication is rehearsed in a
transaction that is rolled back.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from cdc.config.config import ConnectorConfig
from cdc.config.findings import Checked, Finding, Level, left_out, probed, refused
from cdc.model.change import Table
from cdc.model.errors import CdcError, ChangedError
from cdc.model.interfaces import LINEAGE
from cdc.model.state import Phase, State
from cdc.rules.capture_rules import CaptureRules
from connectors import captured_tables
from connectors.postgres import session
from connectors.postgres.catalog import identities, lock_room, server
from connectors.postgres.catalog.catalog import Captured, Catalog
from connectors.postgres.catalog.relations import Followed
from connectors.postgres.reliance import joining, ledger
from connectors.postgres.reliance.reliance import became_of, moved
from connectors.postgres.slot import continuity, retention, slot
from connectors.postgres.slot.left_behind import left_behind
from connectors.postgres.slot.replication_stream import STATUS_EVERY_S, ReplicationConnection

_CAPACITY: Final = """
SELECT current_setting('max_replication_slots')::int, (SELECT count(*) FROM pg_replication_slots),
       current_setting('max_wal_senders')::int, (SELECT count(*) FROM pg_stat_replication),
       EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = %s),
       EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = %s AND active)
"""
_SETTINGS: Final = """
SELECT (SELECT setting::int8 FROM pg_settings WHERE name = 'max_slot_wal_keep_size'),
       (SELECT setting::int8 FROM pg_settings WHERE name = 'wal_sender_timeout'),
       (SELECT setting::int8 FROM pg_settings WHERE name = 'idle_replication_slot_timeout'), current_user::text
"""
_IDENTITIES: Final = {"d": "DEFAULT", "f": "FULL", "i": "INDEX"}
_REPLICATION_TIMEOUT_MS: Final = int(3 * STATUS_EVERY_S * 1000)


def check(config: ConnectorConfig, state: State | None, *, known: bool = True) -> Checked:
    """Look at the server as the connector's user; `known` False: whether there is a position could not be learnt."""
    return _Check(config, state, known=known).run()


class _Check:
    """Is one look: it holds what the probes have in common."""

    def __init__(self, config: ConnectorConfig, state: State | None, *, known: bool) -> None:
        self._config = config
        self._names = continuity.SlotAndPublication(config.slot, config.publication)
        self._state = state
        self._known = known
        self._params = session.parameters(config.source.url, f"cdc {config.name} check")
        self._where = session.endpoint(self._params)
        self._tables: tuple[Table, ...] = ()
        self._all: tuple[Captured, ...] = ()
        self._oids: dict[int, str] = {}
        self._identity: dict[str, str] = {}
        self._made_again: set[str] = set()
        self._is_standby = False

    def run(self) -> Checked:
        findings = list(self._connection())
        try:
            connection = session.connect(self._params)
        except CdcError as exc:
            return Checked((*findings, refused("connection", exc)))
        try:
            catalog = Catalog(connection, self._names.publication)
            probes: tuple[tuple[str, Callable[[Catalog], Iterable[Finding]]], ...] = (
                ("server", self._server),
                ("server", self._capacity),
                ("server", self._settings),
                ("tables", self._captured),
                (f"publication {self._names.publication}", self._publication),
                (f"slot {self._names.slot}", self._slot),
                ("slots", partial(left_behind, config=self._config)),
                ("position", self._position),
                ("rules", self._became),
            )
            for about, probe in probes:
                findings += probed(about, partial(probe, catalog))
                if self._is_standby:  # which answers little of the rest
                    break
        finally:
            connection.close()
        once = {(finding.level, finding.what): finding for finding in reversed(findings)}
        return Checked(tuple(reversed(once.values())), self._tables, self._identity)

    def _connection(self) -> Iterator[Finding]:
        weak = session.weakness(self._params)
        if weak is not None:
            yield Finding(
                Level.WARNING, "connection", f"PostgreSQL at {self._where}: {weak}", "source.url: …?sslmode=verify-full"
            )

    def _server(self, catalog: Catalog) -> Iterator[Finding]:
        found = server.look(catalog)
        self._is_standby = found.standby
        refusals = [refused("server", refusal) for refusal in server.refusals(found, self._where)]
        yield from refusals
        if not refusals:
            what = f"PostgreSQL {found.shown} at {self._where}, wal_level logical; user {found.user} may replicate"
            yield Finding(Level.OK, "server", what)

    def _capacity(self, catalog: Catalog) -> Iterator[Finding]:
        name = self._config.slot
        ((slots, used, senders, sending, ours, active),) = catalog.rows("counting slots", _CAPACITY, (name, name))
        for setting, most, taken, held in (
            ("max_replication_slots", slots, used, ours),
            ("max_wal_senders", senders, sending, active),
        ):
            if held or taken < most:
                yield Finding(Level.OK, "server", f"{setting}: {taken} of {most} in use")
            else:
                yield Finding(
                    Level.ERROR,
                    "server",
                    f"{setting}: all {most} are in use, and this connector needs one",
                    f"ALTER SYSTEM SET {setting} = {most + 10}; then restart the server",
                )

    @staticmethod
    def _settings(catalog: Catalog) -> Iterator[Finding]:
        ((keep_mb, timeout_ms, idle, user),) = catalog.rows("reading settings", _SETTINGS)
        longer = f"ALTER ROLE {session.identifier(user)} SET wal_sender_timeout = '60s'"
        if idle:
            yield Finding(
                Level.WARNING,
                "server",
                "idle_replication_slot_timeout is set: a connector that is stopped for so long loses its slot",
                "ALTER SYSTEM SET idle_replication_slot_timeout = 0; SELECT pg_reload_conf()",
            )
        if keep_mb is not None and keep_mb < 0:
            yield Finding(
                Level.WARNING,
                "server",
                "max_slot_wal_keep_size is not set: while the connector is stopped, its log can fill the disk",
                "ALTER SYSTEM SET max_slot_wal_keep_size = '50GB'; SELECT pg_reload_conf()",
            )
        elif keep_mb is not None:
            yield Finding(Level.OK, "server", f"max_slot_wal_keep_size: {keep_mb} MB")
        if timeout_ms == 0:
            yield Finding(
                Level.WARNING,
                "server",
                "wal_sender_timeout is off: a connection that is dead keeps the slot from the next start",
                longer,
            )
        elif timeout_ms is not None and timeout_ms < _REPLICATION_TIMEOUT_MS:
            yield Finding(
                Level.WARNING,
                "server",
                f"wal_sender_timeout is {timeout_ms} ms: the connector answers every {STATUS_EVERY_S:.0f} s, and is "
                "cut off while Kafka is slow",
                longer,
            )
        elif timeout_ms is not None:
            yield Finding(Level.OK, "server", f"wal_sender_timeout: {timeout_ms // 1000} s")

    def _captured(self, catalog: Catalog) -> Iterator[Finding]:
        known, of = self._state.tables if self._state is not None else (), self._config.source
        refusals = catalog.refusals(of.tables, of.keys)
        good, found = captured_tables.sorted_out(refusals, of.tables, known)
        yield from found
        there = captured_tables.all_of(good, lambda names: catalog.captured(names, of.keys))
        without = self._without(catalog, there, known)
        oids = []
        for captured in there:
            if captured.oid in without and len(without) < len(there):
                name = captured.table.qualified
                yield left_out(f"table {name}", without[captured.oid], named=name in of.tables)
                continue
            self._tables += (captured.table,)
            self._all += (captured,)
            oids.append(captured.oid)
            self._oids[captured.oid] = captured.table.qualified
            yield captured.warning or self._table(catalog, captured.table, captured.oid)
        for parent, others in identities.children(catalog.rows, oids, good).items():
            what = f"rows of {', '.join(others)}, which inherit from it, are not captured"
            yield Finding(Level.WARNING, f"table {parent}", what, f"source.tables: [{', '.join([parent, *others])}]")
        read = self._state is not None and self._state.phase is Phase.STREAM
        for refusal in lock_room.refusals(catalog.rows, self._oids):
            yield Finding(Level.WARNING if read else Level.ERROR, "server", refusal.message, refusal.hint)

    def _without(self, catalog: Catalog, there: Sequence[Captured], known: Collection[str]) -> dict[int, CdcError]:
        """Say of the tables that a run leaves out, by oid, why they cannot join the publication.

        Where none is `known`, which were captured before, it stops at those that are named.
        """
        name, of = self._names.publication, captured_tables.LeftOut(self._config.source.tables)
        brought = [one for one in there if of.brings(one.table.qualified)]
        locked = joining.locked(catalog, name, brought)
        theirs = joining.unpublishable(catalog, name, there if known else brought)
        return {
            **{one.oid: joining.is_locked(one.table, pid) for one, pid in locked},
            **{one.oid: joining.may_not_publish(catalog, name, one.table) for one in theirs},
        }

    @staticmethod
    def _table(catalog: Catalog, table: Table, oid: int) -> Finding:
        ((identity,),) = catalog.rows(
            "reading the catalog", "SELECT relreplident::text FROM pg_class WHERE oid = %s", (oid,)
        )
        what = f"key ({', '.join(table.key)}), replica identity {_IDENTITIES.get(identity, identity)}"
        wide = [column.name for column in table.columns if column.toastable]
        if wide and identity != "f":
            what += f"; {', '.join(wide)}: left out of the log when unchanged, filled in from what the topic has"
        return Finding(Level.OK, f"table {table.qualified}", what)

    def _publication(self, catalog: Catalog) -> Iterator[Finding]:
        name, state = self._names.publication, self._state
        about = f"publication {name}"
        refusals = list(slot.publication_refusals(catalog, name, self._tables))
        if state is not None:
            followed = continuity.followed(state, self._tables)
            named = {oid: table for oid, table in self._oids.items() if table in followed}
            facts = ledger.look(catalog, name, named, state.carried, self._config.source.keys)
            self._made_again = ledger.made_again(state.carried, facts)
            refusals += slot.left(catalog, name, followed - self._made_again, slot.publications(state.carried))
            refusals += ledger.refusals(facts)
            rules = CaptureRules.of_source(self._config.source)
            yield from (refused("rules", refusal) for refusal in moved(rules, state.carried, facts))
            for table, reason in ledger.differences(state.carried, facts, name).items():
                what = f"{reason}: its rows are read again at the next start, or by the connector that runs"
                yield Finding(Level.WARNING, f"table {table}", what)
        yield from (refused(about, refusal) for refusal in refusals)
        for found in identities.accidents(catalog.rows, name, [table.qualified for table in self._tables]):
            what = f"publication {name} makes updates and deletes of {found.name} fail: {found.why}"
            yield Finding(Level.WARNING, about, what, found.hint)
        if not refusals and self._tables:
            made = slot.rehearse_publication(catalog, name, self._tables)
            yield Finding(Level.OK, about, "will be made or extended at the start" if made else "carries all tables")

    def _became(self, catalog: Catalog) -> Iterator[Finding]:
        """Say what has become of tables that are captured no more: one may have another name, without its rules."""
        if self._state is None or self._state.phase is Phase.CREATING or self._is_another():
            return
        with suppress(ChangedError):  # the catalog is just being changed
            yield from became_of(Followed(self._config, self._all), catalog, self._state).told

    def _slot(self, catalog: Catalog) -> Iterator[Finding]:
        name, state = self._names.slot, self._state
        about = f"slot {name}"
        if state is None and not self._known:
            return  # whose slot it would be is not known
        if state is None or state.phase is Phase.CREATING:
            refusals = slot.unused_refusals(catalog, name, self._config.name) if state is None else ()
            found = [refused(about, refusal) for refusal in refusals]
            yield from found or [Finding(Level.OK, about, "will be made at the start")]
            return
        held = retention.read(catalog, name)
        warned = retention.judge(held) if held is not None and held.wal_status != "lost" else None
        if warned is not None:
            yield Finding(Level.WARNING, about, warned.message, warned.hint)

    def _position(self, catalog: Catalog) -> Iterator[Finding]:
        ((database,),) = catalog.rows("reading settings", "SELECT current_database()::text")
        walsender = ReplicationConnection(self._params)
        try:
            here = self._identity = continuity.identity(walsender, database=database, names=self._names)
            state = self._state
            if state is None or state.phase is Phase.CREATING:
                return
            if continuity.renamed(catalog, state.identity, here):
                here = self._identity = {**here, "database": state.identity["database"]}
            if self._is_another():
                return  # another source: the caller says so, and this slot says nothing about it
            tables = [table for table in self._tables if table.qualified not in self._made_again]
            refusals = [
                refused("position", refusal)
                for refusal in continuity.refusals(
                    catalog, walsender, self._names, state, here=here[LINEAGE], tables=tables
                )
            ]
            at = state.offset.get("lsn")
            yield from refusals or [Finding(Level.OK, "position", f"the log can be followed from {at}")]
        finally:
            walsender.close()

    def _is_another(self) -> bool:
        """Whether the position is of another source than this one, which is known once `_position` has looked."""
        state, here = self._state, self._identity
        return state is None or any(state.identity.get(of) != found for of, found in here.items() if of != LINEAGE)
