"""Shows other copies of a connector that this one is at work: an advisory lock on a session of its own.

The slot alone does not tell: it is not active before the log is followed, nor between two sessions, and another tool
may use it. The lock is held from the first look until the source is closed. It does not make anything exactly once,
which is Kafka's fencing alone, so losing it stops nobody. A copy that no longer tends its source loses it after
IDLE_S, one whose machine is gone after the server's probes: both in about two minutes.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from typing import Final

import psycopg2
import psycopg2.extensions

from cdc.model.errors import CdcError, OperatorError
from cdc.model.interfaces import Follower
from connectors.postgres import session
from connectors.postgres.catalog.catalog import Catalog

IDLE_S: Final = 120
"""A session that has asked for nothing for so long is ended by the server, and its lock with it."""
_KEPT_EVERY_S: Final = 10.0

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
WHERE s.slot_name = %s AND s.plugin = 'pgoutput' AND s.active AND s.active_pid IS NOT NULL
"""


def standby_name(connector: str) -> str:
    """Return the application name of a copy that stands by, by which `cdc status` counts them."""
    return f"cdc {connector} standby"


class Claim:
    """Is held, or watched while another copy holds it. Safe to close twice."""

    def __init__(self, params: Mapping[str, str], *, connector: str, slot: str) -> None:
        self._params = {**params, "application_name": standby_name(connector)}
        self._connector, self._slot = connector, slot
        self._key = int.from_bytes(sha256(f"cdc slot {slot}".encode()).digest()[:8], signed=True)
        self._connection: psycopg2.extensions.connection | None = None
        self._held = False
        self._kept_s = float("-inf")

    def follower(self) -> Follower | None:
        """Say who else is at work; None: nobody, and the lock is held. Raises RetryableError."""
        try:
            catalog = self._catalog()
            holder = self._take(catalog)
            active = catalog.rows("reading pg_replication_slots", _ACTIVE, (self._slot,))
        except OperatorError:  # the functions of locks are forbidden, or `connect` refuses the login with its reason
            self.close()
            return None
        except CdcError:
            self.close()
            raise
        if holder is not None:
            return Follower(holder, certain=True)
        if active:
            self._release(catalog)
            return Follower(f"slot {self._slot} is active for {active[0][0]}", certain=False)
        return None

    def keep(self) -> None:
        """Hold on to the lock, or try to get it: called all the time, does something every 10 s. Raises nothing."""
        now = time.monotonic()
        if now - self._kept_s < _KEPT_EVERY_S:
            return
        self._kept_s = now
        try:
            if self._take(catalog := self._catalog()) is None:
                catalog.rows("keeping the connector's lock", f"SET application_name = 'cdc {self._connector} claim'")
        except CdcError:
            self.close()

    def _catalog(self) -> Catalog:
        if self._connection is None:
            self._connection = session.connect(dict(self._params))
            Catalog(self._connection).rows("preparing a session", _PREPARE)
        return Catalog(self._connection)

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
        if connection is not None:
            with suppress(psycopg2.Error):
                connection.close()
