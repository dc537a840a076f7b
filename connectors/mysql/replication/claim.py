"""Shows other copies of a connector that this one is at work: a named lock on a session of its own.

The server knows no slot, and takes a second dump of the same replica for the first one's successor. The lock is held
from the first look until the source is closed. It does not make anything exactly once, which is Kafka's fencing alone,
so losing it stops nobody. A copy that no longer tends its source, or whose machine is gone, loses it after IDLE_S.

Beside it the session holds a lock with this process's name. By that the next session of the process knows its own
former one, and does not wait for it: where the line broke, the server takes that one to be alive for IDLE_S.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import Final
from uuid import uuid4

from cdc.model.errors import CdcError, OperatorError
from cdc.model.interfaces import Follower
from connectors.mysql import session

IDLE_S: Final = 120
"""A session that has asked for nothing for so long is ended by the server, and its lock with it."""
_KEPT_EVERY_S: Final = 10.0
_THIS_PROCESS: Final = uuid4().hex[:8]
_HOLDER: Final = "SELECT IS_USED_LOCK(%s)"
_FREED_S: Final = 10.0
_FREED_LOOK_S: Final = 0.05
_TAKE: Final = "SELECT GET_LOCK(%s, 0), GET_LOCK(%s, 0), IS_USED_LOCK(%s), IS_USED_LOCK(%s)"


def is_held(connection: session.Connection, uuid: str) -> bool:
    """Tell whether a copy of the connector is at work, also one that follows no log now."""
    with suppress(OperatorError):  # a cluster that has no such locks
        ((holder,),) = session.texts(connection, "reading a lock's holder", _HOLDER, (_name(uuid),))
        return bool(holder)
    return False


def _name(uuid: str) -> str:
    return f"cdc {uuid}"


class Claim:
    """Is held, or watched while another copy holds it. Safe to close twice."""

    def __init__(self, at: session.Address, *, uuid: str) -> None:
        self._address = at
        self._lock = _name(uuid)
        self._connection: session.Connection | None = None
        self._held = False
        self._kept_s = float("-inf")

    def follower(self) -> Follower | None:
        """Say who else is at work; None: nobody, and the lock is held. Raises RetryableError."""
        try:
            return self._take()
        except OperatorError:  # a cluster that has no such locks, or a login that `connect` refuses with its reason
            self.close()
            return None
        except CdcError:
            self.close()
            raise

    def keep(self) -> None:
        """Hold on to the lock, or try to get it: called all the time, does something every 10 s. Raises nothing."""
        now = time.monotonic()
        if now - self._kept_s < _KEPT_EVERY_S:
            return
        self._kept_s = now
        try:
            if self._take() is None and self._connection is not None:
                session.rows(self._connection, "keeping the connector's lock", "SELECT 1")
        except CdcError:
            self.close()

    def free(self) -> None:
        """End the session by which a fenced copy holds the lock, and take it. Raises RetryableError.

        The same user may. The copy's dump is ended by the server itself, when that of its successor begins.
        """
        until_s = time.monotonic() + _FREED_S
        try:
            while self._take() is not None and self._connection is not None and time.monotonic() < until_s:
                ((holder,),) = session.texts(self._connection, "reading a lock's holder", _HOLDER, (self._lock,))
                if holder:
                    with suppress(CdcError):  # it may have ended by itself
                        session.rows(self._connection, "ending the session of a fenced copy", f"KILL {int(holder)}")
                time.sleep(_FREED_LOOK_S)
        except OperatorError:  # a cluster that has no such locks
            self.close()
        except CdcError:
            self.close()
            raise

    def _take(self) -> Follower | None:
        if self._connection is None:
            self._connection = session.connect(self._address, settings={"wait_timeout": str(IDLE_S)})
        if self._held:
            return None
        locks = (self._lock, f"{self._lock} {_THIS_PROCESS}{os.getpid()}")  # a fork has what was made before it
        ((got, _, holder, ours),) = session.texts(self._connection, "taking the connector's lock", _TAKE, locks * 2)
        self._held = got == "1"
        if self._held or (holder and holder == ours):
            return None
        return Follower(f"connection {holder or 'that has just ended'}", certain=True)

    def close(self) -> None:
        """Let go."""
        connection, self._connection, self._held = self._connection, None, False
        session.close(connection)
