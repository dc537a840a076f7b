"""Looks at a PostgreSQL database for `cdc check`, `cdc status` and `cdc token`: every precondition at once."""

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
from connectors.postgres import session
from connectors.postgres.catalog import server
from connectors.postgres.catalog.catalog import Captured
from connectors.triggers.postgres.change_log import ChangeLog
from connectors.triggers.postgres.rounds import with_views
from connectors.triggers.postgres.sequence import ROOM
from connectors.triggers.postgres.source import Look
from connectors.triggers.probes import Probes, described


def check(config: ConnectorConfig, state: State | None, *, known: bool = True) -> Checked:
    """Look at the database as the connector's user; `known` False: whether there is a position was not learnt."""
    return _Check(config, state, known=known).run()


class _Check(Probes[Captured]):
    """Is one look at a database."""

    def __init__(self, config: ConnectorConfig, state: State | None, *, known: bool) -> None:
        super().__init__(config, state and replace(state, offset=with_views(state)), known=known)
        self._params = session.parameters(config.source.url, f"cdc {config.name} check")

    def run(self) -> Checked:
        try:
            connection = session.connect(self._params)
        except CdcError as exc:
            return Checked((refused("server", exc),), (), {})
        with closing(connection):
            changes = ChangeLog(connection, self._config.name, self._config.source.where)
            findings = [
                *probed("server", lambda: self._server(changes)),
                *probed("tables", lambda: self._tables(changes.catalog)),
                *probed("rights", lambda: self._rights(changes)),
                *probed(self.about, lambda: self._log(changes, partial(Look.at, changes, self._config.source.keys))),
            ]
        return self._checked(findings)

    def _server(self, changes: ChangeLog) -> Iterator[Finding]:
        where = session.endpoint(self._params)
        found = server.look(changes.catalog)
        self._identity = {"database": found.database, "schema": changes.names.schema}
        refusals = [refused("server", one) for one in server.refusals_by_triggers(found, where)]
        yield from refusals or [Finding(Level.OK, "server", f"PostgreSQL {found.shown} at {where}, user {found.user}")]

    def _rights(self, changes: ChangeLog) -> Iterator[Finding]:
        yield from self._missing(changes.rights) or [
            Finding(Level.OK, "rights", "this user may make the schema and the triggers")
        ]
        for name in changes.seldom(self._captured):
            what = (
                "sessions with session_replication_role = replica, as those of logical replication, write to it unseen"
            )
            yield Finding(
                Level.WARNING, f"table {name}", what, "its owner as the connector's user; or docs/triggers.md"
            )

    def _shown(self, at: Offset) -> str:
        return str(int(at["number"]) >> ROOM)


def standing(config: ConnectorConfig, state: State | None) -> dict[str, object]:
    """Describe the change tables now; `lag_bytes` is not known."""
    with closing(session.connect(session.parameters(config.source.url, f"cdc {config.name} status"))) as connection:
        changes = ChangeLog(connection, config.name)
        commit = (changes.last() + 1 if changes.identity() is not None else 1) << ROOM
        return described(
            changes, state, table=f"{changes.names.schema}.changes", commit=commit, clock_ms=changes.clock_ms()
        )


def end(config: ConnectorConfig, state: State) -> int:
    """Return a commit position behind all that was committed before the call, which is reached at once."""
    del state
    with closing(session.connect(session.parameters(config.source.url, f"cdc {config.name} token"))) as connection:
        return ChangeLog(connection, config.name).end()
