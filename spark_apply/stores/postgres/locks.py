"""Tables in PostgreSQL taken for oneself without making their readers wait. On a given cursor, no commit.

Who waits for a table that is being read makes all later readers wait behind him. So each try is short, and between two
of them whoever came meanwhile is let in.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Collection, Sequence
from typing import Final

from psycopg2 import errors, sql

from cdc.model.errors import OperatorError
from spark_apply.stores.postgres.tables import Cursor

_TRY_MS: Final = 1_500  # above deadlock_timeout: an autovacuum gives way no sooner
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.5, 8.0
_WITHIN_S = 60.0


def lock_exclusively(cur: Cursor, relations: Sequence[sql.Identifier], doing: str) -> None:
    """Let nobody else read or write these tables until the transaction ends; those that are not there are passed over.

    Raises OperatorError where others have read one of them all the while: it names their sessions, and the transaction
    may go on, or end, without.
    """
    places = _there(cur, relations)
    if not places:
        return
    until, wait_s = time.monotonic() + _WITHIN_S, _FIRST_WAIT_S
    cur.execute(sql.SQL("SET LOCAL lock_timeout = {}").format(sql.Literal(_TRY_MS)))
    while True:
        cur.execute("SELECT clock_timestamp()")
        ((tried_at,),) = cur.fetchall()
        if _try_lock(cur, places):
            break
        if time.monotonic() > until:
            raise _blocked_by(cur, places, doing, tried_at)
        time.sleep(wait_s)
        wait_s = min(2 * wait_s, _LONGEST_WAIT_S)
    cur.execute("SET LOCAL lock_timeout TO DEFAULT")


def _there(cur: Cursor, relations: Sequence[sql.Identifier]) -> list[sql.Identifier]:
    found = []
    for relation in relations:
        cur.execute("SELECT to_regclass(%s) IS NOT NULL", (relation.as_string(cur),))
        ((there,),) = cur.fetchall()
        if there:
            found.append(relation)
    return found


def _try_lock(cur: Cursor, places: Collection[sql.Identifier]) -> bool:
    cur.execute("SAVEPOINT cdc_alone")
    try:
        cur.execute(sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE").format(sql.SQL(", ").join(places)))
    except errors.LockNotAvailable:
        cur.execute("ROLLBACK TO SAVEPOINT cdc_alone")
        return False
    cur.execute("RELEASE SAVEPOINT cdc_alone")
    return True


def _blocked_by(cur: Cursor, places: Collection[sql.Identifier], doing: str, tried_at: dt.datetime) -> OperatorError:
    """Name who has a lock on a table, any lock, since before the last try began.

    ``pg_blocking_pids`` would say it of a session that waits, which can itself ask nothing.
    """
    cur.execute(
        "SELECT DISTINCT pid FROM pg_locks l JOIN pg_stat_activity a USING (pid)"
        " WHERE locktype = 'relation' AND granted AND relation = ANY (%s::regclass[]) AND pid <> pg_backend_pid()"
        " AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        " AND coalesce(a.xact_start < %s, true) ORDER BY pid",  # null: a session that this user is told nothing of
        ([place.as_string(cur) for place in places], tried_at),
    )
    pids = ", ".join(str(pid) for (pid,) in cur.fetchall())
    names = ", ".join(place.as_string(cur) for place in places)
    if not pids:
        msg = f"{doing}: {names} was read all the while, by one session or another or a prepared transaction"
        hint = "nothing was changed; run it again when fewer read it. SELECT * FROM pg_prepared_xacts"
        return OperatorError(msg, hint=hint)
    msg = f"{doing}: {names} was being read for {_WITHIN_S:.0f} s on end, at last by the sessions with pid {pids}"
    about = "SELECT pid, usename, state, xact_start FROM pg_stat_activity"
    hint = f"nothing was changed. {about}; wait for them to end, or pg_terminate_backend(pid), and run it again"
    return OperatorError(msg, hint=hint)
