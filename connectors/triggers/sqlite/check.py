"""Looks at a SQLite file for `cdc check`, `cdc status` and `cdc token`: every precondition at once."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import closing

from cdc.config.config import ConnectorConfig
from cdc.config.findings import Checked, Finding, Level, left_out, probed, refused
from cdc.model.change import Table
from cdc.model.errors import CdcError, OperatorError
from cdc.model.state import Phase, State
from connectors import captured_tables
from connectors.triggers.sqlite.catalog import Catalog, Found, refuse_file, refuse_library
from connectors.triggers.sqlite.change_log import ChangeLog
from connectors.triggers.sqlite.session import Session, path_of
from connectors.triggers.sqlite.source import unseen, unused_refusals


def check(config: ConnectorConfig, state: State | None, *, known: bool = True) -> Checked:
    """Look at the file as the connector's user; `known` False: whether there is a position could not be learnt."""
    return _Check(config, state, known=known).run()


class _Check:
    """Is one look: it holds what the probes have in common."""

    def __init__(self, config: ConnectorConfig, state: State | None, *, known: bool) -> None:
        self._config, self._state, self._known = config, state, known
        self._path = path_of(config.source.url)
        self._found: list[Found] = []

    def run(self) -> Checked:
        identity = {"file": str(self._path.resolve())}
        try:
            session = Session(self._path)
        except CdcError as exc:
            return Checked((refused("file", exc),), (), identity)
        with closing(session):
            findings = [
                *probed("file", lambda: self._file(session)),
                *probed("tables", lambda: self._tables(Catalog(session))),
                *probed("change table", lambda: self._log(ChangeLog(session, self._config.name))),
            ]
        shown: tuple[Table, ...] = tuple(found.table for found in self._found)
        return Checked(tuple(findings), shown, identity)

    def _file(self, session: Session) -> Iterator[Finding]:
        refusals = [*refuse_library(), *refuse_file(session)]
        refusals += [
            OperatorError(f"{path} cannot be written by this user", hint="the change table is written to the file")
            for path in (self._path, self._path.parent)
            if not os.access(path, os.W_OK)
        ]
        yield from (refused("file", refusal) for refusal in refusals)
        if not refusals:
            yield Finding(Level.OK, "file", f"SQLite file {self._path}, journal mode WAL")

    def _tables(self, catalog: Catalog) -> Iterator[Finding]:
        good, bad = list[str](), list[tuple[str, OperatorError]]()
        of = self._config.source.tables
        for name, refusal in catalog.refusals(of):
            if refusal is not None:
                bad.append((name, refusal))
            elif name not in good:
                good.append(name)
        known = self._state.tables if self._state is not None else ()
        for name, refusal in bad:
            stops = captured_tables.stops(name, of, known) or not good
            yield refused(f"table {name}", refusal) if stops else left_out(f"table {name}", refusal)
        for found in catalog.captured(good, self._config.source.keys) if good else ():
            self._found.append(found)
            yield Finding(Level.OK, f"table {found.qualified}", f"key ({', '.join(found.shape.key)})")
            for warning in unseen(found):
                yield Finding(Level.WARNING, f"table {found.qualified}", warning, "docs/triggers.md")

    def _log(self, changes: ChangeLog) -> Iterator[Finding]:
        state, about = self._state, "change table"
        if state is None or state.phase is Phase.CREATING:
            refusals = unused_refusals(changes, self._config.name) if state is None and self._known else ()
            found = [refused(about, refusal) for refusal in refusals]
            yield from found or [Finding(Level.OK, about, f"{changes.names.changes} will be made at the start")]
            return
        gaps = [refused("position", refusal) for refusal in changes.refusals(state.offset)]
        yield from gaps or [
            Finding(Level.OK, "position", f"changes can be followed from {state.offset['change']}"),
            Finding(Level.OK, about, f"{changes.names.changes} holds {changes.count()} changes"),
        ]
        for name, stands in changes.standing([f for f in self._found if f.qualified in state.tables]).items():
            if stands != state.carried.get(name):
                what = "it was altered, or its triggers were: they are made again, and its rows are read again"
                yield Finding(Level.WARNING, f"table {name}", what)


def standing(config: ConnectorConfig, state: State | None) -> dict[str, object]:
    """Describe the change table now; `lag_bytes` is not known."""
    del state
    with closing(Session(path_of(config.source.url))) as session:
        changes = ChangeLog(session, config.name)
        made = changes.identity() is not None
        end = changes.end() if made else 0
        return {
            "log_end": str(end),
            "log_end_number": end + 1,
            "lag_bytes": None,
            "reading": None,
            "owner": None,
            "clock_ms": time.time_ns() // 1_000_000,
            "changes": {"table": changes.names.changes, "rows": changes.count() if made else 0},
        }


def end(config: ConnectorConfig, state: State) -> int:
    """Return a commit position behind all that was committed before the call, which is reached at once."""
    del state
    with closing(Session(path_of(config.source.url))) as session:
        return ChangeLog(session, config.name).end() + 1
