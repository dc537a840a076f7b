"""Writes heartbeats to the log while a connector runs, and watches how much log its slot holds back.

The slot's position follows the log by itself: the server tells how far it has read for us, also through what is not
captured and what belongs to other databases. A heartbeat makes that certain and visible: it is a transaction of this
database, so it always comes through the slot, in order with all others.
"""

from __future__ import annotations

import logging
import time
from contextlib import AbstractContextManager
from typing import Final

import psycopg2.extensions

from cdc.model.errors import GapError, OperatorError
from connectors.postgres.catalog.catalog import Catalog
from connectors.postgres.deadline import Deadline
from connectors.postgres.lsn import lsn_number
from connectors.postgres.slot import retention
from connectors.postgres.slot.invalidation import loss

OURS: Final = "cdc."
"""Messages whose prefix begins so are never published."""
HEARTBEAT: Final = "cdc.heartbeat"
TOKEN: Final = "cdc.token"  # noqa: S105 - no secret
MOVED_BYTES: Final = 64 * 1024
"""Others have written if the log has grown by this much: a server writes a little by itself after each heartbeat."""
WATCHED_EVERY_S: Final = 30.0
_REPEATED_EVERY_S: Final = 300.0
_ANSWER_S: Final = 60.0

_GRANT: Final = """
SELECT format('GRANT EXECUTE ON FUNCTION %s TO %I', oid::regprocedure, current_user) FROM pg_proc
WHERE proname = 'pg_logical_emit_message' AND proargtypes[2] = 'text'::regtype
"""

log = logging.getLogger("cdc")


class Upkeep:
    """Does both for one session, when they are due, on the session's SQL connection."""

    def __init__(
        self, connection: psycopg2.extensions.connection, catalog: Catalog, *, slot: str, heartbeat_s: float
    ) -> None:
        self._deadline = Deadline(connection, _ANSWER_S)
        self._catalog = catalog
        self._slot = slot
        self._heartbeat_s = heartbeat_s
        now = time.monotonic()
        self._beat_at_s = now + heartbeat_s if heartbeat_s else float("inf")
        self._watch_at_s = now
        self._beaten_to = 0
        self._level = retention.QUIET
        self._was_kept = False
        """The server has kept the log in this session."""
        self._told_at_s = float("-inf")

    def follows(self, lsn: int) -> None:
        """Note that the log is followed from here: what is before it needs no heartbeat."""
        self._beaten_to = max(self._beaten_to, lsn)

    def asking(self) -> AbstractContextManager[None]:
        """Cut the connection where a statement inside gets no answer."""
        return self._deadline.answered()

    def tend(self, *, following: bool) -> None:
        """Do what is due. Raises RetryableError if the server does not answer, GapError once it keeps the log no more.

        While tables are read for the first time nothing else would tell, for as long as that takes.
        """
        now = time.monotonic()
        if following and now >= self._beat_at_s:
            self._beat_at_s = now + self._heartbeat_s
            with self.asking():
                self._beat()
        if now >= self._watch_at_s:
            self._watch_at_s = now + WATCHED_EVERY_S
            with self.asking():
                self._watch(now)

    def _beat(self) -> None:
        if self._catalog.end() - self._beaten_to < MOVED_BYTES:
            return
        try:
            ((end,),) = self._catalog.rows(
                "writing a heartbeat", "SELECT pg_logical_emit_message(true, %s, '')::text", (HEARTBEAT,)
            )
        except OperatorError as exc:
            self._beat_at_s = float("inf")
            ((grant,),) = self._catalog.rows("reading pg_proc", _GRANT)
            log.warning(
                "%s: going on without heartbeats; to have them: %s; else source.heartbeat_s: 0", exc.message, grant
            )
            return
        self._beaten_to = lsn_number(end)

    def _watch(self, now: float) -> None:
        found = retention.read(self._catalog, self._slot)
        kept = found is not None and found.wal_status != "lost"
        if found is not None and self._was_kept and not kept:
            lost = loss(found.slot, found.reason)
            raise GapError(lost.message, hint=lost.hint)
        self._was_kept = kept
        warned = retention.judge(found) if found is not None else None
        level = warned.level if warned is not None else retention.QUIET
        if warned is not None and (level > self._level or now - self._told_at_s >= _REPEATED_EVERY_S):
            log.warning("%s; %s", warned.message, warned.hint)
            self._told_at_s = now
        elif warned is None and self._level != retention.QUIET:
            log.info("slot %s holds back little of the log again", self._slot)
        self._level = level
