"""Locks PostgreSQL tables exclusively without making their readers wait long. On a given cursor; nothing commits.

A session that waits for an exclusive lock makes all later readers queue behind it. So each try is short, and between
two tries the readers that have queued get their locks.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Collection, Sequence
from typing import Final

from psycopg2 import errors, sql

from cdc.model.errors import OperatorError
from spark_apply.stores.postgres.session.server import Cursor

_TRY_MS: Final = 1_500  # above deadlock_timeout, after which an autovacuum is cancelled
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.5, 8.0
_WITHIN_S = 60.0


def lock_exclusively(cur: Cursor, relations: Sequence[sql.Identifier], doing: str, then: Callable[[], None]) -> None:
    """Lock these tables exclusively until the transaction ends, and do `then`; tables that do not exist are skipped.

    `then` may need other tables, as those that foreign keys refer to: they are waited for as briefly, and all is given
    back meanwhile. Raises OperatorError, which names the sessions, if one of the tables was read all the time. The
    transaction is still usable after that.
    """
    places = _there(cur, relations)
    until, wait_s = time.monotonic() + _WITHIN_S, _FIRST_WAIT_S
    cur.execute(sql.SQL("SET LOCAL lock_timeout = {}").format(sql.Literal(_TRY_MS)))
    while True:
        cur.execute("SELECT clock_timestamp()")
        ((tried_at,),) = cur.fetchall()
        if _tried(cur, places, then):
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


def _tried(cur: Cursor, places: Collection[sql.Identifier], then: Callable[[], None]) -> bool:
    cur.execute("SAVEPOINT cdc_alone")
    try:
        if places:
            cur.execute(sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE").format(sql.SQL(", ").join(places)))
        then()
    except (errors.LockNotAvailable, errors.DeadlockDetected):  # a reader of one has waited for another
        cur.execute("ROLLBACK TO SAVEPOINT cdc_alone")
        return False
    cur.execute("RELEASE SAVEPOINT cdc_alone")
    return True


def _blocked_by(cur: Cursor, places: Collection[sql.Identifier], doing: str, tried_at: dt.datetime) -> OperatorError:
    """Return the error that names the sessions which have held a lock on a table since before the last try.

    ``pg_blocking_pids`` works only for a session that is waiting, and a waiting session cannot call it.
    """
    cur.execute(
        "SELECT DISTINCT pid, relation::regclass::text FROM pg_locks l JOIN pg_stat_activity a USING (pid)"
        " WHERE locktype = 'relation' AND granted AND relation IN (SELECT unnest(%s::regclass[]) UNION"
        " SELECT confrelid FROM pg_constraint WHERE conrelid = ANY (%s::regclass[])) AND pid <> pg_backend_pid()"
        " AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        " AND coalesce(a.xact_start < %s, true) ORDER BY pid",  # null: a session that this user may not see
        (*[[place.as_string(cur) for place in places]] * 2, tried_at),
    )
    found = cur.fetchall()
    pids = ", ".join(dict.fromkeys(str(pid) for pid, _ in found))
    names = ", ".join(sorted({name for _, name in found})) or ", ".join(place.as_string(cur) for place in places)
    if not pids:
        msg = f"{doing}: {names} was read all the while, by one session or another or a prepared transaction"
        hint = "nothing was changed; run it again when fewer read it. SELECT * FROM pg_prepared_xacts"
        return OperatorError(msg, hint=hint)
    msg = f"{doing}: {names} was being read for {_WITHIN_S:.0f} s on end, at last by the sessions with pid {pids}"
    about = "SELECT pid, usename, state, xact_start FROM pg_stat_activity"
    hint = f"nothing was changed. {about}; wait for them to end, or pg_terminate_backend(pid), and run it again"
    return OperatorError(msg, hint=hint)
