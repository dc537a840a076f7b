"""Carries out what users ask by the signal topic; a command and what it changes are committed together."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection
from typing import Final

from cdc.capture.control import signals
from cdc.capture.control.rereads import Rereads, is_ours
from cdc.capture.snapshots.incremental_snapshot import IncrementalSnapshot
from cdc.model.audit import DONE, READ_AGAIN, Act, asked_by
from cdc.model.interfaces import Sink, Source
from cdc.rules.keyring import Keyring

COMMANDS_S: Final = 1.0

log = logging.getLogger("cdc")


class RestartSession(Exception):  # noqa: N818 - not an error
    """Restart the session: a command needs it (an unknown table, a gap), or a topic is another one now."""


class UserCommands:
    """Looks regularly at what is asked; between two looks it costs nothing."""

    def __init__(
        self,
        sink: Sink,
        source: Source,
        rereads: Rereads,
        incremental: IncrementalSnapshot,
        *,
        connector: str,
        captured: Collection[str],
        looked_for: set[bytes],
        since: Callable[[], str],
        paused_ms: int,
        told: threading.Event,
        keys: Keyring | None = None,
    ) -> None:
        """`looked_for` are the commands for whose tables a session was restarted; `since` gives a position.

        `told` is set where the process was told to read its file again. `keys` are those of encrypted values.
        """
        self._keys = keys
        self._sink, self._source, self._rereads, self._incremental = sink, source, rereads, incremental
        self._captured, self._looked_for, self._since = captured, looked_for, since
        self._connector = connector
        self._told = told
        self._noted = False
        """Whether it is noted that the process was told to read the file again."""
        self._of_rows: dict[bytes, signals.Command] = {}
        """Commands for rows that are being read, by key."""
        self._read_s = 0.0
        self._erased_behind: dict[bytes, int] = {}
        """Where the log ended when it was asked to erase a key, by the command."""
        self._gap_before: int | None = None
        """Where the log ended when the user reported a gap: the gap may still come before that."""
        self.paused_ms = paused_ms
        """Since when the connector is paused; 0: it is not."""
        self.reload = False
        """Whether the file is to be read again, once the answer is committed."""

    def look(self, reached: Callable[[], int], look_at_topics: Callable[[], None]) -> bool:
        """Carry out what is asked, regularly; whether something still waits for a place of the log.

        The log has been read up to the commit position that `reached` returns. A source writes a whole position for it,
        with each GTID, so it is not asked at each frame.
        """
        now = time.monotonic()
        no_gap = self._gap_before is not None and not self._gap_may_come(reached())
        if no_gap or now - self._read_s >= COMMANDS_S:
            self._read_s = now
            look_at_topics()
            self._carry_out(reached())
            self._gap_before = None if no_gap else self._gap_before
        return self._gap_before is not None or bool(self._erased_behind)

    def is_paused(self, *, look: bool = False, now: bool = False) -> bool:
        """Whether the connector is to be paused; `look` regularly, or `now`, at what is asked of that alone."""
        if now or (look and time.monotonic() - self._read_s >= COMMANDS_S):
            if look:
                self._read_s = time.monotonic()
            for key, value in self._sink.commands():
                self._of_connector(key, signals.parse(value))
        return self.paused_ms > 0

    def is_to_reload(self) -> bool:
        """Whether the file is to be read again: a command says so, or the process was told, which is noted."""
        if self._told.is_set() and not self._noted:
            self._noted = True
            act = Act(action="reload", by=asked_by(), about={"by": "SIGHUP"}, outcome=READ_AGAIN)
            connector = self._connector
            self._sink.log("audit", connector.encode(), act.to_bytes(connector=connector, position=self._since()))
        return self.reload or self._noted

    def _of_connector(self, key: bytes, command: signals.Command) -> bool:
        """Whether a command is about the connector, not about tables: then it is carried out."""
        if command.pause is None and not command.reload:
            return False
        outcome = DONE
        if command.reload:
            self.reload, outcome = True, READ_AGAIN
        elif command.pause == bool(self.paused_ms):
            outcome = "it was so already"
        elif command.pause:
            self.paused_ms = time.time_ns() // 1_000_000
        else:
            self.paused_ms = 0
        self._answer(key, command, outcome)
        return True

    def _shred(self, key: bytes, command: signals.Command, subject: bytes, reached: int) -> None:
        """Erase the key of a subject, once all is read that the log had when that was asked.

        Else an older row, or the old row of a delete that is still to come, would make a new key for the same values.
        """
        if key not in self._erased_behind:  # asked for once: by triggers that looks through all unread changes
            self._erased_behind[key] = self._source.current()
        if reached < self._erased_behind[key]:
            return
        del self._erased_behind[key]
        self._answer(key, command, self._erase(subject))

    def _erase(self, subject: bytes) -> str:
        if self._keys is None:
            log.warning("a key is to be erased, and source.master_key is not in the file: there is none that is used")
            return "the file has no source.master_key"
        self._keys.shred(subject)
        log.info("the key of a subject is erased, as asked: what was encrypted under it is unreadable from here on")
        return DONE

    def _answer(self, key: bytes, command: signals.Command, outcome: str = DONE) -> None:
        """Note in the open transaction that a command is carried out, and who has asked for it."""
        self._sink.answered(key)
        if command.asks and not is_ours(key):
            act = command.act(key, outcome).to_bytes(connector=self._connector, position=self._since())
            self._sink.log("audit", self._connector.encode(), act)

    def read(self, key: bytes) -> None:
        """Note that all rows of a command are read."""
        self._answer(key, self._of_rows.pop(key, signals.Command()))

    def _carry_out(self, reached: int) -> None:
        """Carry out all commands. One about a gap waits until the part of the log that may have the gap is read."""
        commands = self._sink.commands()
        self._rereads.look_for(commands)
        for key, value in commands:
            command = signals.parse(value)
            if command.shred is not None:
                self._shred(key, command, command.shred, reached)
                continue
            if self._of_connector(key, command) or (command.after_gap and self._gap_may_come(reached)):
                continue
            if command.refused:
                log.error("signal %s is refused, and nothing of it is done: %s", key.decode(errors="replace")[:80],
                          command.refused)  # fmt: skip
                self._answer(key, command, f"refused: {command.refused}")
                continue
            if not command.asks:
                log.warning("the signal topic holds a record that is no command of ours; it is left out")
            unknown = [name for name in command.tables if name not in self._captured]
            if unknown and not command.stop and key not in self._looked_for:
                self._looked_for.add(key)
                raise RestartSession
            for name in unknown:
                log.warning("table %s is not captured: it cannot be read", name)
            for name in command.tables:
                if name not in unknown:
                    self._read_or_stop(key, command, name)
            if command.keys and self._incremental.is_requested(key):
                self._of_rows[key] = command
            else:
                if command.outcome != DONE:
                    log.warning("signal %s asks for a blocking snapshot: its tables are read while the log is followed",
                                key.decode(errors="replace")[:80])  # fmt: skip
                self._answer(key, command, f"not captured: {', '.join(unknown)}" if unknown else command.outcome)

    def _read_or_stop(self, key: bytes, command: signals.Command, name: str) -> None:
        if command.keys and not command.stop:
            if self._rereads.request(key, name, command.keys):
                log.info("%d rows of table %s are read again, as asked", len(command.keys), name)
        elif command.stop:
            gone = self._incremental.remove(name)
            log.info("table %s is %s", name, "no longer read, as asked" if gone else "not read on request")
        elif self._incremental.add(name, self._since(), required=False):
            log.info("table %s is read again, as asked", name)
        else:
            log.info("table %s is being read already", name)

    def _gap_may_come(self, reached: int) -> bool:
        """Whether the log as it was when the user reported a gap is not all read yet."""
        if self._gap_before is None:
            self._gap_before = self._source.current()
        return reached < self._gap_before
