"""Knows the temporary tables of the sessions that log statements: what is done to them is done to nobody's rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from connectors.mysql.statements.ddl import Emptied, Renamed
from connectors.mysql.statements.judgement import Judgement
from connectors.mysql.statements.tokens import Name

_MOST: Final = 10_000
THREAD_SPECIFIC: Final = 0x4
"""Header flag: the statement used temporary tables, so that it says nothing without its session."""


class Session(NamedTuple):
    """Is what the log tells of the session that gave a statement."""

    thread: int
    specific: bool
    """The statement used temporary tables."""


NOBODY: Final = Session(0, specific=False)


class TemporaryTables:
    """Holds what was made and not dropped since the log is followed; older ones are not known."""

    def __init__(self) -> None:
        self._made: dict[tuple[int, Name], None] = {}

    def made(self, session: Session, name: Name) -> None:
        if len(self._made) >= _MOST:
            del self._made[next(iter(self._made))]
        self._made[session.thread, name] = None

    def dropped(self, session: Session, names: Iterable[Name]) -> None:
        for name in names:
            self._made.pop((session.thread, name), None)

    def altered(self, session: Session, said: Judgement, hidden: set[Name], compared: Callable[[Name], Name]) -> None:
        """Follow what DDL does to a session's temporary tables, which `hidden` are."""
        if isinstance(said, Emptied) and said.dropped:
            self.dropped(session, hidden)
        elif isinstance(said, Renamed):
            pairs = [(compared(old), compared(new)) for old, new in said.tables]
            self.dropped(session, [old for old, _ in pairs if old in hidden])
            for old, new in pairs:
                if old in hidden:
                    self.made(session, new)

    def has(self, session: Session, name: Name) -> bool:
        """Tell whether it is a temporary table in this session, which hides any other of the name."""
        return (session.thread, name) in self._made

    def clear(self) -> None:
        """Forget all: the server has started again, and numbers its sessions from the beginning."""
        self._made.clear()
