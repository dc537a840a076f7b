"""Looks at a SQLite file for `cdc check`, `cdc status` and `cdc token`: every precondition at once."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial

from cdc.config.config import ConnectorConfig
from cdc.config.findings import Checked, Finding, Level, probed, refused
from cdc.model.change import Offset
from cdc.model.errors import CdcError, OperatorError
from cdc.model.state import State
from connectors.triggers.probes import Probes, described
from connectors.triggers.sqlite.catalog import Found, refuse_file, refuse_library
from connectors.triggers.sqlite.change_log import ChangeLog, with_views
from connectors.triggers.sqlite.session import Session, path_of
from connectors.triggers.sqlite.source import compared, unseen


def check(config: ConnectorConfig, state: State | None, *, known: bool = True) -> Checked:
    """Look at the file as the connector's user; `known` False: whether there is a position could not be learnt."""
    return _Check(config, state, known=known).run()


class _Check(Probes[Found]):
    """Is one look at a file."""

    def __init__(self, config: ConnectorConfig, state: State | None, *, known: bool) -> None:
        super().__init__(config, state and replace(state, offset=with_views(state)), known=known)
        self._path = path_of(config.source.url)
        self._identity = {"file": str(self._path.resolve())}

    def run(self) -> Checked:
        try:
            session = Session(self._path)
        except CdcError as exc:
            return self._checked([refused("file", exc)])
        with closing(session):
            changes = ChangeLog(session, self._config.name, self._config.source.where)
            if self._state is not None:
                then = self._state.identity.get("file", "")
                if changes.was_moved(then, self._identity["file"], self._state.offset):
                    self._identity = {"file": then}
            findings = [
                *probed("file", lambda: self._file(session)),
                *probed("tables", lambda: self._tables(changes.catalog)),
                *probed(self.about, lambda: self._log(changes, partial(compared, changes))),
            ]
        return self._checked(findings)

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

    def _warnings(self, one: Found) -> Iterator[str]:
        yield from unseen(one)

    def _shown(self, at: Offset) -> str:
        return str(at["change"])


def standing(config: ConnectorConfig, state: State | None) -> dict[str, object]:
    """Describe the change table now; `lag_bytes` is not known."""
    with closing(Session(path_of(config.source.url))) as session:
        changes = ChangeLog(session, config.name)
        commit = changes.last() + 1 if changes.identity() is not None else 1
        return described(
            changes, state, table=changes.names.changes, commit=commit, clock_ms=time.time_ns() // 1_000_000
        )


def end(config: ConnectorConfig, state: State) -> int:
    """Return a commit position behind all that was committed before the call, which is reached at once."""
    del state
    with closing(Session(path_of(config.source.url))) as session:
        return ChangeLog(session, config.name).last() + 1
