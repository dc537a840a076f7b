"""Looks at a MySQL or MariaDB server for `cdc check`, `cdc status` and `cdc token`: every precondition at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

from cdc.config.config import ConnectorConfig
from cdc.config.findings import Checked, Finding, Level, probed, refused
from cdc.model.errors import CdcError
from cdc.model.state import Phase, State
from connectors import captured_tables
from connectors.mysql import session
from connectors.mysql.catalog import server
from connectors.mysql.catalog.catalog import Captured, Catalog
from connectors.triggers.mysql import preconditions, source
from connectors.triggers.mysql.change_log import ChangeLog
from connectors.triggers.mysql.rounds import behind
from connectors.triggers.mysql.source import differences, unused_refusals


def check(config: ConnectorConfig, state: State | None, *, known: bool = True) -> Checked:
    """Look at the server as the connector's user; `known` False: whether there is a position was not learnt."""
    return _Check(config, state, known=known).run()


class _Check:
    """Is one look: it holds what the probes have in common."""

    def __init__(self, config: ConnectorConfig, state: State | None, *, known: bool) -> None:
        self._config, self._state, self._known = config, state, known
        self._address = session.address(config.source.url)
        self._captured: tuple[Captured, ...] = ()
        self._identity: dict[str, str] = {}

    def run(self) -> Checked:
        where = self._address.endpoint
        findings = list(self._connection())
        try:
            connection = session.connect(self._address)
            found = server.look(connection)
        except CdcError as exc:
            return Checked((*findings, refused("server", exc)), (), {})
        with closing(connection):
            changes = ChangeLog(connection, self._config.name, found)
            self._identity = {"schema": changes.names.schema}
            findings += [
                *probed("server", lambda: self._server(connection, found, where)),
                *probed("tables", lambda: self._tables(changes.catalog)),
                *probed("rights", lambda: self._rights(connection, changes, found)),
                *probed("change tables", lambda: self._log(changes)),
            ]
        return Checked(tuple(findings), tuple(one.table for one in self._captured), self._identity)

    def _connection(self) -> Iterator[Finding]:
        weak = session.weakness(self._address)
        if weak is not None:
            fix = "source.url: …?ssl_mode=verify_identity"
            yield Finding(Level.WARNING, "connection", f"MySQL at {self._address.endpoint}: {weak}", fix)

    def _server(self, connection: session.Connection, found: server.Server, where: str) -> Iterator[Finding]:
        refusals = list(preconditions.refusals(connection, found, where))
        yield from (refused("server", one) for one in refusals if one is not None)
        if None in refusals:
            what = "whether it is a replica may not be known: if so, what it replicates calls no trigger"
            right = "REPLICA MONITOR" if found.mariadb else "REPLICATION CLIENT"
            yield Finding(Level.WARNING, "server", what, f"GRANT {right} ON *.* TO {found.account}")
        for warning in preconditions.warnings(connection, where):
            yield Finding(Level.WARNING, "server", warning, "SET GLOBAL binlog_format = 'MIXED'")
        if not any(refusals):
            yield Finding(Level.OK, "server", f"{found.shown} at {where}, user {found.user}")

    def _tables(self, catalog: Catalog) -> Iterator[Finding]:
        of = self._config.source
        known = self._state.tables if self._state is not None else ()
        good, findings = captured_tables.sorted_out(catalog.refusals(of.tables, of.keys), of.tables, known)
        yield from findings
        self._captured = catalog.captured(good, of.keys) if good else ()
        for one in self._captured:
            yield Finding(Level.OK, f"table {one.table.qualified}", f"key ({', '.join(one.table.key)})")

    def _rights(self, connection: session.Connection, changes: ChangeLog, found: server.Server) -> Iterator[Finding]:
        refusals = [refused("rights", one) for one in preconditions.rights(connection, changes, found, self._captured)]
        try:
            changes.stores()
        except CdcError as exc:
            refusals.append(refused("rights", exc))
        yield from refusals or [Finding(Level.OK, "rights", "this user may make the change tables and the triggers")]

    def _log(self, changes: ChangeLog) -> Iterator[Finding]:
        state, about, schema = self._state, "change tables", changes.names.schema
        if state is None or state.phase is Phase.CREATING:
            refusals = unused_refusals(changes, self._config.name) if state is None and self._known else ()
            found = [refused(about, refusal) for refusal in refusals]
            yield from found or [Finding(Level.OK, about, f"database {schema} will be made at the start")]
            return
        gaps = [refused("position", refusal) for refusal in changes.refusals(state.offset)]
        if gaps:
            yield from gaps
            return
        yield Finding(Level.OK, "position", f"changes can be followed from round {state.offset['round']}")
        yield Finding(Level.OK, about, f"database {schema} holds about {changes.count()} changes")
        followed = [one for one in self._captured if one.table.qualified in state.tables]
        for name, reason in differences(state.carried, changes.standing(followed)).items():
            yield Finding(Level.WARNING, f"table {name}", f"{reason}: its rows are read again")


def standing(config: ConnectorConfig, state: State | None) -> dict[str, object]:
    """Describe the change tables now; `lag_bytes` is not known."""
    del state
    with closing(session.connect(session.address(config.source.url))) as connection:
        changes = ChangeLog(connection, config.name, server.look(connection))
        made = changes.identity() is not None
        last = changes.last() if made else 0
        return {
            "log_end": str(last),
            "log_end_number": behind(last),
            "lag_bytes": None,
            "reading": None,
            "owner": None,
            "clock_ms": server.clock_ms(connection),
            "changes": {"table": f"{changes.names.schema}.changes_*", "rows": changes.count() if made else 0},
        }


def end(config: ConnectorConfig, state: State) -> int:
    """Return a commit position behind all that was committed before the call, which is reached at once."""
    del state
    with closing(session.connect(session.address(config.source.url))) as connection:
        return source.end(connection, ChangeLog(connection, config.name, server.look(connection)))
