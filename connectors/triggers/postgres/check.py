"""Looks at a PostgreSQL database for `cdc check`, `cdc status` and `cdc token`: every precondition at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

from cdc.config.config import ConnectorConfig
from cdc.config.findings import Checked, Finding, Level, probed, refused
from cdc.model.errors import CdcError
from cdc.model.state import Phase, State
from connectors import captured_tables
from connectors.postgres import session
from connectors.postgres.catalog import server
from connectors.postgres.catalog.catalog import Captured, Catalog
from connectors.triggers.postgres.change_log import ROOM, ChangeLog
from connectors.triggers.postgres.source import Look, unused_refusals


def check(config: ConnectorConfig, state: State | None, *, known: bool = True) -> Checked:
    """Look at the database as the connector's user; `known` False: whether there is a position was not learnt."""
    return _Check(config, state, known=known).run()


class _Check:
    """Is one look: it holds what the probes have in common."""

    def __init__(self, config: ConnectorConfig, state: State | None, *, known: bool) -> None:
        self._config, self._state, self._known = config, state, known
        self._params = session.parameters(config.source.url, f"cdc {config.name} check")
        self._captured: tuple[Captured, ...] = ()
        self._identity: dict[str, str] = {}

    def run(self) -> Checked:
        try:
            connection = session.connect(self._params)
        except CdcError as exc:
            return Checked((refused("server", exc),), (), {})
        with closing(connection):
            changes = ChangeLog(connection, self._config.name)
            findings = [
                *probed("server", lambda: self._server(changes)),
                *probed("tables", lambda: self._tables(changes.catalog)),
                *probed("rights", lambda: self._rights(changes)),
                *probed("change table", lambda: self._log(changes)),
            ]
        return Checked(tuple(findings), tuple(one.table for one in self._captured), self._identity)

    def _server(self, changes: ChangeLog) -> Iterator[Finding]:
        where = session.endpoint(self._params)
        found = server.look(changes.catalog)
        self._identity = {"database": found.database, "schema": changes.names.schema}
        refusals = [refused("server", one) for one in server.refusals_by_triggers(found, where)]
        yield from refusals or [Finding(Level.OK, "server", f"PostgreSQL {found.shown} at {where}, user {found.user}")]

    def _tables(self, catalog: Catalog) -> Iterator[Finding]:
        of = self._config.source
        known = self._state.tables if self._state is not None else ()
        good, findings = captured_tables.sorted_out(catalog.refusals(of.tables, of.keys), of.tables, known)
        yield from findings
        self._captured = catalog.captured(good, of.keys) if good else ()
        for one in self._captured:
            yield Finding(Level.OK, f"table {one.table.qualified}", f"key ({', '.join(one.table.key)})")

    def _rights(self, changes: ChangeLog) -> Iterator[Finding]:
        refusals = [refused("rights", one) for one in changes.rights(self._captured)]
        yield from refusals or [Finding(Level.OK, "rights", "this user may make the schema and the triggers")]

    def _log(self, changes: ChangeLog) -> Iterator[Finding]:
        state, about, schema = self._state, "change table", changes.names.schema
        if state is None or state.phase is Phase.CREATING:
            refusals = unused_refusals(changes, self._config.name) if state is None and self._known else ()
            found = [refused(about, refusal) for refusal in refusals]
            yield from found or [Finding(Level.OK, about, f"schema {schema} will be made at the start")]
            return
        gaps = [refused("position", refusal) for refusal in changes.refusals(state.offset)]
        if gaps:
            yield from gaps
            return
        yield Finding(Level.OK, "position", f"changes can be followed from {int(state.offset['number']) >> ROOM}")
        yield Finding(Level.OK, about, f"schema {schema} holds about {changes.count()} changes")
        followed = [one for one in self._captured if one.table.qualified in state.tables]
        for name, reason in Look.at(changes, followed).differences(state.carried).items():
            yield Finding(Level.WARNING, f"table {name}", f"{reason}: its rows are read again")


def standing(config: ConnectorConfig, state: State | None) -> dict[str, object]:
    """Describe the change tables now; `lag_bytes` is not known."""
    del state
    with closing(session.connect(session.parameters(config.source.url, f"cdc {config.name} status"))) as connection:
        changes = ChangeLog(connection, config.name)
        made = changes.identity() is not None
        last = changes.last() if made else 0
        statement = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::int8"
        ((clock_ms,),) = changes.catalog.rows("reading the clock", statement)
        return {
            "log_end": str(last),
            "log_end_number": (last + 1) << ROOM,
            "lag_bytes": None,
            "reading": None,
            "owner": None,
            "clock_ms": int(clock_ms),
            "changes": {"table": f"{changes.names.schema}.changes", "rows": changes.count() if made else 0},
        }


def end(config: ConnectorConfig, state: State) -> int:
    """Return a commit position behind all that was committed before the call, which is reached at once."""
    del state
    with closing(session.connect(session.parameters(config.source.url, f"cdc {config.name} token"))) as connection:
        return ChangeLog(connection, config.name).end()
