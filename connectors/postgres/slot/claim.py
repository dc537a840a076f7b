"""Shows other copies of a connector that this one is at work: an advisory lock on a session of its own.

The slot alone does not tell: it is not active before the log is followed, nor between two sessions, and another tool
may use it. The lock is held from the first look until the source is closed. It does not make anything exactly once,
which is Kafka's fencing alone, so losing it stops nobody. A copy that no longer tends its source loses it after
IDLE_S, one whose machine is gone after the server's probes: both in about two minutes. A copy that takes over does not
wait for that: it ends the sessions of the one it has fenced, which the same role may.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from typing import Final

import psycopg2
import psycopg2.extensions

from cdc.model.errors import CdcError, OperatorError, RetryableError
from cdc.model.interfaces import Follower
from connectors.postgres import session
from connectors.postgres.catalog.catalog import Catalog
from connectors.postgres.deadline import Deadline

log = logging.getLogger("cdc")

IDLE_S: Final = 120
"""A session that has asked for nothing for so long is ended by the server, and its lock with it."""
_KEPT_EVERY_S: Final = 10.0
_ANSWER_S: Final = 60.0
"""A server that has not answered for so long is gone, whatever acknowledges in between."""

_PREPARE: Final = f"""
SET idle_session_timeout = '{IDLE_S}s'; SET tcp_keepalives_idle = 30; SET tcp_keepalives_interval = 10;
SET tcp_keepalives_count = 3
"""
_TAKE: Final = "SELECT pg_try_advisory_lock(%s)"
_HOLDER: Final = """
SELECT 'process ' || l.pid || coalesce(' from ' || host(a.client_addr), '') FROM pg_locks l
LEFT JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
AND (l.classid::int8 << 32 | l.objid::int8) = %s
"""
_ACTIVE: Final = """
SELECT 'process ' || s.active_pid || coalesce(' from ' || host(a.client_addr), '') FROM pg_replication_slots s
LEFT JOIN pg_stat_activity a ON a.pid = s.active_pid
WHERE s.slot_name = %s AND s.plugin = 'pgoutput' AND s.active AND s.active_pid IS NOT NULL AND NOT pg_is_in_recovery()
"""
"""Who reads the slot. A standby's is not the connector's, which follows none: its server may be copying the slot."""


_END: Final = """
SELECT pg_terminate_backend(a.pid) FROM pg_stat_activity a
WHERE a.usename = current_user AND a.pid <> pg_backend_pid() AND (
  a.application_name = %s AND a.pid = (SELECT s.active_pid FROM pg_replication_slots s
    WHERE s.slot_name = %s AND s.plugin = 'pgoutput' AND s.database = current_database())
  OR a.application_name LIKE %s AND a.pid IN (SELECT l.pid FROM pg_locks l
    WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND (l.classid::int8 << 32 | l.objid::int8) = %s))
"""
"""Of this role and this connector alone: what has its slot, and what holds its lock."""
_FREED_S: Final = 10.0
_FREED_LOOK_S: Final = 0.05


def standby_name(connector: str) -> str:
    """Return the application name of a copy that stands by, by which `cdc status` counts them."""
    return f"cdc {connector} standby"


def is_held(catalog: Catalog, slot: str) -> bool:
    """Tell whether a copy of the connector is at work, also one that does not read its slot now."""
    with suppress(OperatorError):  # pg_locks is forbidden
        return bool(catalog.rows("reading pg_locks", _HOLDER, (_key(slot),)))
    return False


def _key(slot: str) -> int:
    return int.from_bytes(sha256(f"cdc slot {slot}".encode()).digest()[:8], signed=True)


def _like(text: str) -> str:
    """Write a text so that LIKE takes it as it is."""
    return text.replace("\\", "\\\\").replace("_", "\\_").replace("%", "\\%")


class Claim:
    """Is held, or watched while another copy holds it. Safe to close twice."""

    def __init__(self, params: Mapping[str, str], *, connector: str, slot: str) -> None:
        self._params = {**params, "application_name": standby_name(connector)}
        self._connector, self._slot = connector, slot
        self._key = _key(slot)
        self._connection: psycopg2.extensions.connection | None = None
        self._deadline: Deadline | None = None
        self._held = False
        self._kept_s = float("-inf")

    def follower(self) -> Follower | None:
        """Say who else is at work; None: nobody, and the lock is held. Raises RetryableError."""
        try:
            with self._asking() as catalog:
                holder = self._take(catalog)
                active = catalog.rows("reading pg_replication_slots", _ACTIVE, (self._slot,))
                if holder is None and active:
                    self._release(catalog)
        except OperatorError:  # the functions of locks are forbidden, or `connect` refuses the login with its reason
            self.close()
            return None
        except CdcError:
            self.close()
            raise
        if holder is not None:
            return Follower(holder, certain=True)
        if active:
            return Follower(f"slot {self._slot} is active for {active[0][0]}", certain=False)
        return None

    def free(self) -> None:
        """End the sessions by which a fenced copy has the slot and the lock, and take the lock. Raises RetryableError.

        One that follows on would be ended by Kafka at its next commit; one that is frozen would keep the slot until
        wal_sender_timeout. A session of another role or another name is left alone.
        """
        wanted = (f"cdc {self._connector}", self._slot, _like(f"cdc {self._connector} ") + "%", self._key)
        until_s, ended = time.monotonic() + _FREED_S, 0
        try:
            while True:
                with self._asking() as catalog:
                    ended += len(catalog.rows("ending the sessions of a fenced copy", _END, wanted))
                    holder = self._take(catalog)
                    active = catalog.rows("reading pg_replication_slots", _ACTIVE, (self._slot,))
                if (holder is None and not active) or time.monotonic() > until_s:
                    break
                time.sleep(_FREED_LOOK_S)
        except OperatorError as exc:  # the functions are forbidden: the server notices by itself, later
            log.debug("the fenced copy's sessions are left to the server: %s", exc.message)
            self.close()
            return
        except CdcError:
            self.close()
            raise
        if ended:
            log.info("connector %s: the sessions of the copy that was fenced are ended", self._connector)

    def keep(self) -> None:
        """Hold on to the lock, or try to get it: called all the time, does something every 10 s.

        Raises RetryableError where the server is gone without a word. At the statement
        behind it the loop would wait as long once more. For a lock that is lost in another way nobody ends.
        """
        now = time.monotonic()
        if now - self._kept_s < _KEPT_EVERY_S:
            return
        self._kept_s = now
        try:
            with self._asking() as catalog:
                if self._take(catalog) is None:
                    catalog.rows(
                        "keeping the connector's lock", f"SET application_name = 'cdc {self._connector} claim'"
                    )
        except CdcError as exc:
            self.close()
            if isinstance(exc, RetryableError) and time.monotonic() - now >= _ANSWER_S:
                raise

    @contextmanager
    def _asking(self) -> Iterator[Catalog]:
        """Connect if need be; the connection is cut where what is asked inside gets no answer."""
        is_new = self._connection is None
        if self._connection is None or self._deadline is None:
            self._connection = session.connect(dict(self._params))
            self._deadline = Deadline(self._connection, _ANSWER_S)
        catalog = Catalog(self._connection)
        with self._deadline.answered():
            if is_new:
                catalog.rows("preparing a session", _PREPARE)
            yield catalog

    def _take(self, catalog: Catalog) -> str | None:
        """Return who has the lock, if not we."""
        if not self._held:
            ((self._held,),) = catalog.rows("taking the connector's lock", _TAKE, (self._key,))
        if self._held:
            return None
        found = catalog.rows("reading pg_locks", _HOLDER, (self._key,))
        return str(found[0][0]) if found else "a process that has just ended"

    def _release(self, catalog: Catalog) -> None:
        catalog.rows("releasing the connector's lock", "SELECT pg_advisory_unlock(%s)", (self._key,))
        self._held = False

    def close(self) -> None:
        """Let go."""
        connection, self._connection, self._held = self._connection, None, False
        self._deadline = None
        if connection is not None:
            with suppress(psycopg2.Error):
                connection.close()
