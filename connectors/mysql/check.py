"""Asks a MySQL or MariaDB server for `cdc check`: every precondition at once, each with the statement that meets it.

What a run would refuse is taken from where the run refuses it. Nothing is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final

from cdc.config.config import ConnectorConfig
from cdc.config.findings import Checked, Finding, Level, probed, refused
from cdc.model.change import Table
from cdc.model.errors import CdcError, GapError, OperatorError
from cdc.model.interfaces import LINEAGE
from cdc.model.state import Phase, State
from connectors import captured_tables
from connectors.mysql import session
from connectors.mysql.catalog import filters, server
from connectors.mysql.catalog.catalog import Catalog
from connectors.mysql.lag import replicas
from connectors.mysql.replication import continuity, last_transaction, mariadb_history
from connectors.mysql.replication.continuity import identity, look_at_log
from connectors.mysql.replication.dump_stream import replica_host, replica_uuid
from connectors.mysql.replication.dumps import duplicates, file_made_at, glance, server_id
from connectors.mysql.rows.relations import Followed
from connectors.mysql.values import mapping

_DAY_S: Final = 86_400


def check(config: ConnectorConfig, state: State | None, *, known: bool = True) -> Checked:
    """Look at the server as the connector's user; `known` False: whether there is a position could not be learnt."""
    del known  # the server holds nothing under the connector's name that a position could contradict
    return _Check(config, state).run()


class _Check:
    """Is one look: it holds what the probes have in common."""

    def __init__(self, config: ConnectorConfig, state: State | None) -> None:
        self._config = config
        self._state = state
        self._address = session.address(config.source.url)
        self._where = self._address.endpoint
        self._server = server.Server("", {}, "")
        self._tables: tuple[Table, ...] = ()
        self._restricted: set[str] = set()
        """Those whose definition is not shown."""
        self._identity: dict[str, str] = {}

    def run(self) -> Checked:
        findings = list(self._connection())
        try:
            connection = session.connect(self._address)
        except CdcError as exc:
            return Checked((*findings, refused("connection", exc)))
        probes: tuple[tuple[str, Callable[[session.Connection], Iterable[Finding]]], ...] = (
            ("server", self._look),
            ("rights", self._roles),
            ("server", self._settings),
            ("server", self._retention),
            ("server", self._replica),
            ("log", self._log),
            ("replicas", self._replicas),
            ("server", self._prepared),
            ("tables", self._captured),
            ("server", self._filters),
            ("tables", self._columns),
            ("tables", self._cascades),
            ("rights", self._rights),
            ("position", self._position),
        )
        try:
            for about, probe in probes:
                findings += probed(about, partial(probe, connection))
        finally:
            session.close(connection)
        once = {(finding.level, finding.what): finding for finding in reversed(findings)}
        return Checked(tuple(reversed(once.values())), self._tables, self._identity)

    def _connection(self) -> Iterator[Finding]:
        weak = session.weakness(self._address)
        if weak is not None:
            fix = "source.url: …?ssl_mode=verify_identity"
            yield Finding(Level.WARNING, "connection", f"MySQL at {self._where}: {weak}", fix)

    def _look(self, connection: session.Connection) -> Iterator[Finding]:
        found = self._server = server.look(connection)
        self._identity = identity(found)
        refusals = [refused("server", refusal) for refusal in server.refusals(found, self._where)]
        for refusal in server.unlogged(connection, found, self._where):
            if refusal is not None:
                refusals.append(refused("server", refusal))
                continue
            what = f"whether it is a replica may not be known: if so, {server.NOT_HANDED_ON}"
            right = "REPLICA MONITOR" if found.mariadb else "REPLICATION CLIENT"
            yield Finding(Level.WARNING, "server", what, f"GRANT {right} ON *.* TO {found.account}")
        yield from refusals
        if not refusals:
            what = f"{found.shown} at {self._where}: binlog of rows, whole, with the names of their columns"
            yield Finding(Level.OK, "server", what)

    def _settings(self, connection: session.Connection) -> Iterator[Finding]:
        found = self._server
        if not found.mariadb and not found.gtids:
            mode = found.variables.get("gtid_mode", "OFF")
            yield Finding(
                Level.WARNING,
                "server",
                f"gtid_mode is {mode}: no other server can continue this one's log for the connector, and tables are "
                "locked for a moment when they are read",
                "SET PERSIST gtid_mode = ON, step by step: "
                "https://dev.mysql.com/doc/refman/8.4/en/replication-mode-change-online-enable-gtids.html",
            )
        elif not found.mariadb:
            yield Finding(Level.OK, "server", "gtid_mode ON: a replica that is promoted is followed")
        ((strict,),) = session.texts(connection, "reading settings", _STRICT) if found.mariadb else (("1",),)
        if strict != "1":
            yield Finding(
                Level.WARNING,
                "server",
                "gtid_strict_mode is off: a replica may have transactions of its own, and cannot be followed then",
                "SET GLOBAL gtid_strict_mode = ON",
            )

    def _roles(self, connection: session.Connection) -> Iterator[Finding]:
        found = self._server
        if not found.mariadb and found.version < _ROLES_SHOWN:
            return
        statement = _ROLES.format("" if found.mariadb else _NOT_OF_MARIADB)
        try:
            idle = session.texts(connection, "reading roles", statement)
        except OperatorError as exc:
            if session.code_of_exception(exc.__cause__) != _LOST:
                raise
            return
        if not idle:
            return
        names, active = [name for name, _ in idle], idle[0][1]
        fix = f"SET DEFAULT ROLE ALL TO {found.account}"
        if found.mariadb:  # a session has one role, and those that are granted to it
            one, *others = map(mapping.quoted_name, (*filter(None, [active]), *names))
            set_ = () if active else (f"SET DEFAULT ROLE {one} FOR {found.account}",)
            fix = "; ".join((*set_, *(f"GRANT {other} TO {one}" for other in others)))
        what = f"{', '.join(names)}: granted to user {found.user}, but in none of its sessions: its rights are missing"
        yield Finding(Level.WARNING, "rights", f"role {what}", fix)

    def _retention(self, _connection: session.Connection) -> Iterator[Finding]:
        found, days = self._server, 7
        kept = found.expires_s
        set_ = f"SET PERSIST binlog_expire_logs_seconds = {days * _DAY_S}"
        if found.at_rds:
            set_ = f"CALL mysql.rds_set_configuration('binlog retention hours', {days * 24})"
        elif found.mariadb:
            set_ = f"SET GLOBAL expire_logs_days = {days}"
        if not found.tells_retention:
            what = (
                "how long Amazon keeps the binlog is not told: if nobody has set it, it is removed as soon as it can be"
            )
            fix = f"{set_}; GRANT SELECT ON mysql.rds_configuration TO {found.account} lets it be seen"
            yield Finding(Level.WARNING, "server", what, fix)
        elif kept is not None and kept < server.SHORTEST_S:
            what = f"the binlog is kept for {kept / _DAY_S:.1f} days: a connector that is stopped for longer has a gap"
            yield Finding(Level.WARNING, "server", what, set_)
        else:
            shown = "for ever" if kept is None else f"for {kept / _DAY_S:.0f} days"
            yield Finding(Level.OK, "server", f"the binlog is kept {shown}")
        if found.kept_bytes:
            what = f"the binlog is removed, read or not, where it has more than {found.kept_bytes:,} bytes"
            fix = (
                f"SET GLOBAL {'max_binlog_total_size' if found.mariadb else 'binlog_space_limit'} = 0, or room for days"
            )
            yield Finding(Level.WARNING, "server", what, fix)

    def _replica(self, connection: session.Connection) -> Iterator[Finding]:
        word = "SLAVE" if self._server.mariadb or self._server.version < (8, 0, 22) else "REPLICA"
        for of in filters.replication(connection, self._server):
            if of.get("channel_name", "").startswith(_OF_GROUP):
                continue  # by which a member of a group has caught up when it joined
            threads = [f"{word.capitalize()}_{thread}_Running" for thread in ("IO", "SQL")]
            stopped = [f"{thread}: {state}" for thread in threads if (state := of[thread.lower()]) != "Yes"]
            if stopped:
                what = f"it is a replica that has stopped ({', '.join(stopped)}): what its source commits does not come"
                fix = f"START {word}; SHOW {word} STATUS says why it stopped; or, without a source, RESET {word} ALL"
                yield Finding(Level.WARNING, "server", what, fix)

    def _log(self, connection: session.Connection) -> Iterator[Finding]:
        end, _ = server.status(connection, self._server)
        file_made_at(lambda: glance(self._config, self._address, self._server), end)
        yield Finding(Level.OK, "log", f"is sent to user {self._server.user}; it ends at {end}")

    def _replicas(self, connection: session.Connection) -> Iterator[Finding]:
        mine, ours, host = server_id(self._config), replica_uuid(self._config), replica_host(self._config.name)
        clash = [r for r in replicas(connection, self._server) or () if r.server_id == mine]
        others = [r for r in clash if (r.uuid != ours if r.uuid else r.host != host)]
        yield from (refused("replicas", refusal) for refusal in duplicates(self._config, self._server))
        for other in others:
            dropped = self._server.mariadb
            yield Finding(
                Level.ERROR if dropped else Level.WARNING,
                "replicas",
                f"duplicate server_id: {mine} is that of replica {other.host or other.uuid} as well: the server "
                + ("drops one for the other" if dropped else "serves both, and shows one of them"),
                "set source.server_id to a number that no server or replica has",
            )
        if not others:
            yield Finding(Level.OK, "replicas", f"server_id {mine} is nobody else's")

    def _prepared(self, connection: session.Connection) -> Iterator[Finding]:
        found = server.prepared(connection)
        if found is None:
            yield Finding(
                Level.WARNING,
                "rights",
                "what XA has prepared may not be seen: rows prepared before a first start, and committed after it, "
                "have all tables read again",
                f"GRANT XA_RECOVER_ADMIN ON *.* TO {self._server.account}; not needed where nobody uses XA",
            )
        elif found and self._state is None:
            what = f"{len(found)} XA transactions are prepared: a first start waits until they are ended"
            yield Finding(Level.WARNING, "server", what, "XA RECOVER; then XA COMMIT or XA ROLLBACK")

    def _captured(self, connection: session.Connection) -> Iterator[Finding]:
        catalog = Catalog(connection)
        known = self._state.tables if self._state is not None else ()
        refusals = catalog.refusals(self._config.source.tables, self._config.source.keys)
        good, found = captured_tables.sorted_out(refusals, self._config.source.tables, known)
        yield from found
        there = captured_tables.all_of(sorted(good), lambda names: catalog.captured(names, self._config.source.keys))
        for captured in there:
            table = captured.table
            self._tables += (table,)
            what = f"key ({', '.join(table.key)}), {len(table.columns)} columns, about {captured.rows:,} rows"
            yield captured.warning or Finding(Level.OK, f"table {table.qualified}", what)
        if self._state is not None:
            Followed(self._config.source, there, folds=self._server.folds).kept.begin(self._state.carried)

    def _filters(self, connection: session.Connection) -> Iterator[Finding]:
        for refusal in filters.refusals(connection, self._server, self._tables, self._where):
            yield refused("server", refusal)
        for warning in filters.warnings(connection, self._server):
            yield Finding(Level.WARNING, "server", warning)

    def _columns(self, connection: session.Connection) -> Iterator[Finding]:
        catalog = Catalog(connection)
        for table in self._tables:
            if catalog.restricted(table.schema, table.name):
                self._restricted.add(table.qualified)
                what = f"user {self._server.user} may not read all of its columns: the others are in no event"
                name = f"{mapping.quoted_name(table.schema)}.{mapping.quoted_name(table.name)}"
                fix = f"GRANT SELECT ON {name} TO {self._server.account}; not needed if that is what you want"
                yield Finding(Level.WARNING, f"table {table.qualified}", what, fix)

    def _cascades(self, connection: session.Connection) -> Iterator[Finding]:
        if self._server.logs_cascades:
            return
        for table in self._tables:
            for key in Catalog(connection).foreign_keys((table.schema, table.name)) or ():
                yield Finding(
                    Level.WARNING,
                    f"table {table.qualified}",
                    f"foreign key {key.name} changes its rows ({key.actions}) when {'.'.join(key.parent)} is written, "
                    "and the server does not log that: after such a change the whole table is read again",
                    f"delete the rows of {table.name} in the application, if that is too often",
                )

    def _rights(self, connection: session.Connection) -> Iterator[Finding]:
        for table in self._tables:
            name = f"{mapping.quoted_name(table.schema)}.{mapping.quoted_name(table.name)}"
            try:
                session.rows(connection, f"reading table {table.qualified}", f"SELECT 1 FROM {name} LIMIT 0")  # noqa: S608
            except OperatorError as exc:
                hint = f"GRANT SELECT ON {name} TO {self._server.account}"
                yield refused("rights", OperatorError(exc.message, hint=hint))
        if self._tables and not self._server.mariadb and not self._server.gtids:
            try:
                session.rows(connection, "locking a table", "SET SESSION lock_wait_timeout = 1")
                one = self._tables[0]
                name = f"{mapping.quoted_name(one.schema)}.{mapping.quoted_name(one.name)}"
                session.rows(connection, f"locking table {one.qualified}", f"LOCK TABLES {name} READ")
                session.rows(connection, "letting go of a table", "UNLOCK TABLES")
            except OperatorError as exc:
                hint = f"GRANT LOCK TABLES ON {mapping.quoted_name(one.schema)}.* TO {self._server.account}"
                yield refused("rights", OperatorError(exc.message, hint=hint))

    def _position(self, connection: session.Connection) -> Iterator[Finding]:
        state = self._state
        if state is None or state.phase is Phase.CREATING:
            return
        if any(state.identity.get(what) != found for what, found in self._identity.items() if what != LINEAGE):
            return  # another source: the caller says so
        here = look_at_log(connection, self._server)
        look = partial(glance, self._config, self._address, self._server)
        made_at, find = partial(file_made_at, look), partial(last_transaction.find, look)
        trace = partial(mariadb_history.trace, look, here.files)
        found = [*continuity.refusals(state, here, made_at, find, trace)]
        try:
            was_off = continuity.was_off(state, stops=self._config.source.on_hole == "stop")
        except GapError as exc:
            was_off, found = False, [*found, exc]
        at = continuity.resumes_at(state)
        yield from [refused("position", each) for each in found] or [
            Finding(Level.OK, "position", f"the log can be followed from {at}")
        ]
        if was_off:
            yield Finding(Level.WARNING, "position", f"{continuity.WAS_OFF}: all tables are read again")


_OF_GROUP: Final = "group_replication_"
_ROLES_SHOWN: Final = (8, 0, 19)
_ROLES: Final = (
    "SELECT DISTINCT role_name, CURRENT_ROLE() FROM information_schema.applicable_roles "
    "WHERE CONCAT_WS('@', grantee{}) = CURRENT_USER() AND role_name NOT IN "
    "(SELECT role_name FROM information_schema.enabled_roles WHERE role_name IS NOT NULL) ORDER BY role_name"
)
"""Roles of the user itself: those that are granted to a role which is active are, too, and MySQL does not list them."""
_NOT_OF_MARIADB: Final = ", grantee_host"
_LOST: Final = 1146
"""With a small tmp_table_size MySQL loses a table of its own that it makes for these views."""
_STRICT: Final = "SELECT @@GLOBAL.gtid_strict_mode"
