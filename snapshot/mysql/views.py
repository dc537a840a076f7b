"""Takes views of MySQL's data whose place in the log is known, without a lock where the server allows that.

MariaDB reports the place of a view, and keeps commits out while it takes one: what lies before the place is seen. XA
COMMIT is not kept out. It is in the log first and visible later, so a view may have a place behind it and not see it.
What is under way was prepared, and XA RECOVER lists it until it is visible; and the server counts each as it begins.
So a place is believed if no XA COMMIT has begun while the view was taken, and before it either nothing was listed, or
none had begun for a second: what is listed then is prepared and no more, maybe for days. (One that waits for a replica
lies behind the place meanwhile.) Else the tables are locked, which waits for sessions that have prepared something.
What remains is an XA COMMIT by another session, because the first is gone: no lock of a table keeps it out, so it may
be hidden if it is just then under way.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Final
from weakref import WeakKeyDictionary

from cdc.model.change import Table
from cdc.model.errors import OperatorError, RetryableError
from connectors.mysql import session
from connectors.mysql.binlog.positions import BinlogPosition, GtidSet
from connectors.mysql.catalog import server
from snapshot.mysql import selects
from snapshot.mysql.rows import looked_at_again
from snapshot.mysql.visibility import BinlogView

log = logging.getLogger("cdc")

_LOCK_S: Final = 1
"""How long the lock waits for open writers, which is how long new ones may be blocked."""
_VIEW_S: Final = 60.0
_PAUSE_S: Final = 3.0
_CALM_S: Final = 1.0
"""What XA has prepared is not being committed where no XA COMMIT has begun for so long."""
_TRIED_S: Final = 2.0
"""How long MariaDB's views wait for such a moment, or one with nothing prepared, before the tables are locked."""
_begun: WeakKeyDictionary[session.Connection, tuple[str, float]] = WeakKeyDictionary()
"""Of each session, how many XA COMMIT its server had begun when it was looked at, and since when it is so many."""
_LOCKED_S: Final = 10.0
"""How long a snapshot tries for a view without open transactions: first in a pause of the writers, then by a lock."""


def take_view(
    sessions: Sequence[session.Connection],
    tables: Sequence[Table],
    connect: Callable[[], session.Connection],
    *,
    over: Callable[[], bool],
    all_: bool = True,
    exact: bool = False,
) -> tuple[BinlogView, int]:
    """Begin a view on each session; return what all of them saw, and a commit position that none saw beyond.

    `exact`: try for some seconds to take views that saw nothing else, in a pause of the writers or by a lock.
    `all_`: the views have seen all that is in the log by now; commits that are logged and not visible are waited for.
    """
    found = server.look(sessions[0])
    if not found.gtids and not found.mariadb:
        return _under_lock(sessions, found, tables, connect, over, within_s=_VIEW_S)
    if exact:
        taken = _in_a_pause(sessions, found) if found.gtids else _at_one_position(sessions, found)
        if taken is not None:
            return taken
        try:
            return _under_lock(sessions, found, tables, connect, over, within_s=_LOCKED_S)
        except (OperatorError, RetryableError) as exc:
            log.info("a view of transactions under way is taken (%s): some of them will be told twice", exc.message)
    if found.mariadb:
        return _by_status(sessions, found, over) or _under_lock(
            sessions, found, tables, connect, over, within_s=_VIEW_S
        )
    return _by_gtids(sessions, found, over, all_=all_)


def _by_gtids(
    sessions: Sequence[session.Connection], found: server.Server, over: Callable[[], bool], *, all_: bool
) -> tuple[BinlogView, int]:
    """Take views without a lock: the set is read before them, so they see all of it, and perhaps a few more."""
    asking, deadline = sessions[0], time.monotonic() + _VIEW_S
    if all_:
        owned = GtidSet.parse(_owned(server.global_text(asking, "gtid_owned")))
        while not owned <= GtidSet.parse(server.global_text(asking, "gtid_executed")):
            still = GtidSet.parse(_owned(server.global_text(asking, "gtid_owned")))
            if not owned <= still:
                owned = GtidSet.parse(",".join(gtid for gtid in str(owned).split(",") if GtidSet.parse(gtid) <= still))
            _wait(deadline, over)
    seen = GtidSet.parse(server.global_text(asking, "gtid_executed"))
    _begin(sessions)
    return BinlogView(None, seen), server.status(asking, found)[0].commit


def _in_a_pause(sessions: Sequence[session.Connection], found: server.Server) -> tuple[BinlogView, int] | None:
    """Take views while nothing is being committed: what they saw is the set. None: there was no such moment.

    A commit that is visible but not in the set yet is in gtid_owned until it is.
    """
    asking, deadline = sessions[0], time.monotonic() + _PAUSE_S
    while True:
        before = server.global_text(asking, "gtid_executed")
        _begin(sessions)
        owned = server.global_text(asking, "gtid_owned")
        if not owned and server.global_text(asking, "gtid_executed") == before:
            return BinlogView(None, GtidSet.parse(before)), server.status(asking, found)[0].commit
        for connection in sessions:
            end_view(connection)
        if time.monotonic() > deadline:
            return None


def _owned(text: str) -> str:
    """Remove the owning threads from ``uuid:7#12,uuid:8#15``."""
    return ",".join(part.partition("#")[0] for part in text.replace("\n", "").split(",") if ":" in part)


def _by_status(
    sessions: Sequence[session.Connection], found: server.Server, over: Callable[[], bool]
) -> tuple[BinlogView, int] | None:
    """Take views on MariaDB, which reports the place in the log that each is of. None: XA leaves no moment for it."""
    begun_s = time.monotonic()
    logged = server.status(sessions[0], found)[0].commit
    while True:
        places = _places(sessions)
        if places and min(places) >= logged:
            return BinlogView(min(places), None), max(places)
        for connection in sessions:
            end_view(connection)
        if not places and time.monotonic() - begun_s > _TRIED_S:
            return None
        _wait(begun_s + _VIEW_S, over)


def _at_one_position(sessions: Sequence[session.Connection], found: server.Server) -> tuple[BinlogView, int] | None:
    """Take views on MariaDB that are all of one place. None: each time, a transaction was committed between them."""
    deadline = time.monotonic() + _PAUSE_S
    logged = server.status(sessions[0], found)[0].commit
    while True:
        places = set(_places(sessions))
        if len(places) == 1 and (place := places.pop()) >= logged:
            return BinlogView(place, None), place
        for connection in sessions:
            end_view(connection)
        if not session.wait_until(deadline, 0.0 if places else 0.05):
            return None


def _places(sessions: Sequence[session.Connection]) -> list[int]:
    """Begin a view on each session and return their places; none of them where an XA COMMIT may be under way."""
    asking = sessions[0]
    before, since_s = _begun_by_xa(asking)
    if not ((before and time.monotonic() - since_s > _CALM_S) or server.prepared(asking) == set()):
        return []  # no view is taken, which would hold up who commits
    _begin(sessions)
    places = [_snapshot_position(connection) for connection in sessions]
    return places if _begun_by_xa(asking) == (before, since_s) else []


def _begun_by_xa(connection: session.Connection) -> tuple[str, float]:
    """Return how many XA COMMIT have begun on MariaDB, and since when we know of no other; "": it does not tell."""
    found = session.texts(connection, "taking a view", "SHOW GLOBAL STATUS LIKE 'Com_xa_commit'")
    now = found[0][1] if found else ""
    if _begun.get(connection, ("", 0.0))[0] != now:
        _begun[connection] = now, time.monotonic()
    return _begun[connection]


def _snapshot_position(connection: session.Connection) -> int:
    status = dict(session.texts(connection, "taking a view", "SHOW STATUS LIKE 'binlog_snapshot_%'"))
    named = {name.lower(): value for name, value in status.items()}
    return BinlogPosition(named["binlog_snapshot_file"], int(named["binlog_snapshot_position"])).commit


def _under_lock(
    sessions: Sequence[session.Connection],
    found: server.Server,
    tables: Sequence[Table],
    connect: Callable[[], session.Connection],
    over: Callable[[], bool],
    *,
    within_s: float,
) -> tuple[BinlogView, int]:
    """Take views while nobody writes the tables: they saw all up to the log's end, or all of the set."""
    deadline = time.monotonic() + within_s
    locking = connect()
    try:
        session.rows(locking, "preparing a session", f"SET SESSION lock_wait_timeout = {_LOCK_S}")
        while True:
            try:
                session.rows(locking, "locking the tables for a moment", selects.lock_statement(tables))
                break
            except RetryableError:
                _wait(deadline, over)
            except OperatorError as exc:
                if session.is_denied(exc):
                    why = "XA commits all the time" if found.mariadb else "there are no GTIDs to do without"
                    other = "" if found.mariadb else "; or set gtid_mode to ON, step by step"
                    raise OperatorError(
                        f"user {found.user} may not lock tables for the moment in which a view is taken, and {why}",
                        hint=f"GRANT LOCK TABLES ON *.* TO {found.account}{other}",
                    ) from exc
                with looked_at_again("locking the tables, of which one is gone"):
                    raise
        _begin(sessions)
        seen = GtidSet.parse(server.global_text(sessions[0], "gtid_executed")) if found.gtids else None
        end = server.status(sessions[0], found)[0].commit
        session.rows(locking, "letting go of the tables", "UNLOCK TABLES")
    finally:
        session.close(locking)
    return BinlogView(end if seen is None else None, seen), end


def _begin(sessions: Sequence[session.Connection]) -> None:
    for statement in session.VIEW:
        for connection in sessions:
            session.rows(connection, "taking a view", statement)
    for connection in sessions:
        session.check_settings(connection)


def end_view(connection: session.Connection) -> None:
    """End what a session sees; nothing is left to end where the connection is gone."""
    try:
        session.rows(connection, "ending a view", "ROLLBACK")
    except RetryableError:
        pass  # the connection is gone, and the view with it


def _wait(deadline_s: float, over: Callable[[], bool]) -> None:
    if over():
        raise RetryableError("reading was ended")
    if not session.wait_until(deadline_s, 0.05):
        raise RetryableError(
            "a view cannot be taken: transactions that are in the log already do not become visible, or the tables are "
            f"written without a pause of {_LOCK_S} s",
            hint="SELECT * FROM information_schema.INNODB_TRX ORDER BY trx_started; XA RECOVER",
        )
