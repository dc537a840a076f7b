"""Looks at a MySQL or MariaDB server for `cdc check`, `cdc status` and `cdc token`: every precondition at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial

from cdc.config.config import ConnectorConfig
from cdc.config.findings import Checked, Finding, Level, probed, refused
from cdc.model.change import Offset
from cdc.model.errors import CdcError
from cdc.model.state import State
from connectors.mysql import session
from connectors.mysql.catalog import server
from connectors.mysql.catalog.catalog import Captured
from connectors.triggers.mysql import preconditions, source
from connectors.triggers.mysql.change_log import ChangeLog, with_views
from connectors.triggers.mysql.rounds import behind
from connectors.triggers.probes import Probes, described


def check(config: ConnectorConfig, state: State | None, *, known: bool = True) -> Checked:
    """Look at the server as the connector's user; `known` False: whether there is a position was not learnt."""
    return _Check(config, state, known=known).run()


class _Check(Probes[Captured]):
    """Is one look at a server."""

    about = "change tables"

    def __init__(self, config: ConnectorConfig, state: State | None, *, known: bool) -> None:
        super().__init__(config, state and replace(state, offset=with_views(state)), known=known)
        self._address = session.address(config.source.url)

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
                *probed(self.about, lambda: self._log(changes, partial(source.compared, changes))),
            ]
        return self._checked(findings)

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
        for warning, fix in preconditions.warnings(connection, where):
            yield Finding(Level.WARNING, "server", warning, fix)
        if not any(refusals):
            yield Finding(Level.OK, "server", f"{found.shown} at {where}, user {found.user}")

    def _rights(self, connection: session.Connection, changes: ChangeLog, found: server.Server) -> Iterator[Finding]:
        refusals = self._missing(partial(preconditions.rights, connection, changes, found))
        try:
            changes.stores()
        except CdcError as exc:
            refusals.append(refused("rights", exc))
        yield from refusals or [Finding(Level.OK, "rights", "this user may make the change tables and the triggers")]

    def _shown(self, at: Offset) -> str:
        return f"round {at['round']}"


def standing(config: ConnectorConfig, state: State | None) -> dict[str, object]:
    """Describe the change tables now; `lag_bytes` is not known."""
    with closing(session.connect(session.address(config.source.url))) as connection:
        changes = ChangeLog(connection, config.name, server.look(connection))
        commit = behind(changes.last() if changes.identity() is not None else 0)
        return described(
            changes,
            state,
            table=f"{changes.names.schema}.changes_*",
            commit=commit,
            clock_ms=server.clock_ms(connection),
        )


def end(config: ConnectorConfig, state: State) -> int:
    """Return a commit position behind all that was committed before the call, which is reached at once."""
    del state
    with closing(session.connect(session.address(config.source.url))) as connection:
        return source.end(connection, ChangeLog(connection, config.name, server.look(connection)))
