"""Reads again what has changed without events: rows by their keys, or tables, by the incremental snapshot.

Why no hole of the log is forgotten: what asks for a row or a table is committed together with the position behind the
hole. A table stands in the position record as one that is being read. Keys are a command in the signal topic, of the
kind that `cdc snapshot` leaves there, which stays until it is answered; the position record has the names of tables
that have such commands, so that commands which are gone (somebody has deleted the topic) are noticed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final
from uuid import uuid4

from cdc.capture.control import signals
from cdc.capture.snapshots.incremental_snapshot import IncrementalSnapshot
from cdc.encode.window_keys import RequestedRows
from cdc.model.change import Table
from cdc.model.interfaces import Sink
from cdc.model.state import Key, State

MOST_KEYS: Final = 10_000
"""More rows of a table than these are not read again by their keys: the table is."""
_COMMAND_BYTES: Final = 256 * 1024
_OURS: Final = b"reread-"
"""How the keys of the connector's own commands begin."""

log = logging.getLogger("cdc")


class Rereads:
    """Asks an incremental snapshot for rows and tables; `since` gives a position behind all that is written."""

    def __init__(
        self,
        incremental: IncrementalSnapshot,
        sink: Sink,
        tables: Mapping[str, Table],
        state: State,
        *,
        since: Callable[[], str],
        log_end: Callable[[], str],
    ) -> None:
        """`log_end` gives a position behind all that is in the log by now."""
        self._incremental, self._sink, self._tables = incremental, sink, tables
        self._since, self._log_end = since, log_end
        self.first: tuple[str, str] | None = None
        """The table whose first window is being written, and its place in the log; None between such windows."""
        self._keys: dict[str, dict[Key, None]] = {}
        """The keys of rows that have changed without events since the last commit, by table."""
        self._named: set[str] = set()
        """The tables that were asked for since the last commit, whole or in part."""
        self.told: dict[str, str] = {}
        """Why tables are read again, as was told last; by a start, too."""
        self._before = state.asked
        self._count = state.rereads

    def __bool__(self) -> bool:
        """Whether something is to be asked for with the next commit."""
        return bool(self._keys)

    def add(self, table: Table, key: Key | None, reason: str = "") -> None:
        """Ask for a row, or for all rows of a table: they have changed, and the log does not say how.

        `reason` is told, unless it was told of the reading that goes on.
        """
        name = table.qualified
        if name not in self._tables:  # as in `resnapshot`
            return
        if reason and not self._is_told(name, reason):
            self._tell(name, reason)
        self._named.add(name)
        keys = self._keys.setdefault(name, {})
        if key is not None and len(keys) < MOST_KEYS and self._tables[name].key == table.key:
            keys[key] = None
            return
        del self._keys[name]
        self._incremental.add_again(name, self._since())

    def resnapshot(self, table: Table, reason: str, *, at_start: bool = False) -> None:
        """Snapshot a table incrementally: the topic's rows are not the source's, though no event said so.

        `at_start`: what was read of it, and what the log told since that was asked for, may be of the table as it was.
        """
        name = table.qualified
        if name not in self._tables:  # the log tells of its end, and it was gone before this session
            return
        if self.first is not None and self.first[0] == name:
            self._incremental.described_by(*self.first)  # its first rows have shown the change it is read for
            return
        is_told = self._is_told(name, reason)
        if self._incremental.add(name, self._log_end(), required=True, restart=at_start) and not is_told:
            self._tell(name, reason)

    def _is_told(self, name: str, reason: str) -> bool:
        return self.told.get(name) == reason and self._incremental.is_reading(name)

    def _tell(self, name: str, reason: str) -> None:
        self.told[name] = reason
        log.warning("table %s: %s: its rows are read again", name, reason)

    def emptied(self, table: Table) -> None:
        """Have a truncated table read: the many keys that are not there any more get their deletes at the end."""
        self._incremental.emptied(table, self._since())
        log.info("table %s was truncated: its keys get their deletes in parts, behind what is in it by now",
                 table.qualified)  # fmt: skip

    def commit(self) -> tuple[int, tuple[str, ...]]:
        """Write the commands that ask for the rows noted into the open transaction, and begin to carry them out.

        Returns how often something was asked for, ever, and the tables that have such commands.
        """
        for name, keys in self._keys.items():
            if self._incremental.pending(name) + len(keys) > MOST_KEYS:
                self._incremental.add_again(name, self._since())
                continue
            for some in _pieces(keys):
                identifier = f"{_OURS.decode()}{uuid4()}"
                command = signals.Command(tables=(name,), keys=tuple(some))
                self._sink.ask(identifier.encode(), command.to_bytes(identifier))
                self.request(identifier.encode(), name, some)
        self._count += len(self._named)
        self._keys.clear()
        self._named.clear()
        return self._count, self._incremental.requested(_OURS)

    def request(self, command: bytes, name: str, keys: Sequence[Key]) -> bool:
        """Carry out a command; False if that is being done already, or no row can have such keys."""
        ours = command.startswith(_OURS)
        if self._incremental.request(command, name, keys, first=ours):
            return True
        if ours and not self._incremental.is_requested(command):
            self._incremental.add_again(name, self._since())  # it has another key by now
        return False

    def wrote(self, requested: RequestedRows) -> None:
        """Note that a part of a command is written; one of ours whose rows could not be read asks for the table."""
        if requested.window is None and requested.command.startswith(_OURS):
            self._incremental.add_again(requested.name, self._since())

    def look_for(self, commands: Iterable[tuple[bytes, bytes]]) -> None:
        """Ask for the tables whose commands are gone, once, when a session has read what waits."""
        there = {name for key, value in commands if key.startswith(_OURS) for name in signals.parse(value).tables}
        for name in self._before:
            if name in self._tables and name not in there:
                self._incremental.add_again(name, self._since())
        self._before = ()


def is_ours(command: bytes) -> bool:
    """Whether the key of a command is one of those that the connector itself leaves."""
    return command.startswith(_OURS)


def _pieces(keys: Iterable[Key]) -> Iterator[list[Key]]:
    """Split keys into as many as one command may hold."""
    some: list[Key] = []
    size = 0
    for key in keys:
        some.append(key)
        size += sum(map(len, key)) + 8
        if size > _COMMAND_BYTES:
            yield some
            some, size = [], 0
    if some:
        yield some
