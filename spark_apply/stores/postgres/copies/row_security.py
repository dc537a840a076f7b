"""Tells whether row security can hide rows of a copy from the job’s user.

PostgreSQL leaves such rows out of what a statement reads, changes and deletes, and raises nothing. Rows are shown whole
to a command if one permissive policy for it is true of all of them, and every restrictive one is.

A condition that looks at no column of the table is the same for all of its rows: true, as `USING (true)`, or false, as
`USING (current_user = 'dba')` is for anybody else. So it is asked, by the job’s own user in its own session. One that
looks at a column is never taken for true.
"""

from __future__ import annotations

from typing import Final

import psycopg2
from psycopg2 import sql

from spark_apply.stores.postgres.session.server import Cursor

_POLICIES: Final = """
SELECT current_user::text, polcmd::text, polpermissive, CASE WHEN polqual::text !~ '[{]VAR :varno 1 '
    THEN pg_get_expr(polqual, polrelid) END
FROM pg_class t LEFT JOIN pg_policy p ON polrelid = t.oid AND polcmd <> 'a' AND polqual IS NOT NULL
    AND EXISTS (SELECT FROM unnest(polroles) r WHERE r = 0 OR pg_has_role(r, 'USAGE'))
WHERE t.oid = to_regclass(%s) AND row_security_active(t.oid)
"""
"""The session’s user, and the conditions that bind it for rows that are there; NULL: it looks at a column."""
_COMMANDS: Final = "rwd"
"""SELECT, UPDATE and DELETE, as the catalog has them; a policy for ALL is ``*``."""


def hidden_from(cur: Cursor, table: str) -> str | None:
    """Return the session’s user, if policies can hide rows of `table` from it."""
    cur.execute(_POLICIES, (table,))
    user, shown = None, set[str]()
    for name, command, is_permissive, condition in cur.fetchall():
        user = str(name)
        if command is None:  # there is no policy, so nothing is shown
            continue
        holds = condition is not None and _holds(cur, condition)
        if not (is_permissive or holds):
            return user
        if is_permissive and holds:
            shown |= set(_COMMANDS if command == "*" else command)
    return user if shown < set(_COMMANDS) else None


def _holds(cur: Cursor, condition: str) -> bool:
    """Whether a condition of the table’s owner is true; one that fails is not. It can change nothing."""
    cur.execute("SAVEPOINT condition; SET LOCAL transaction_read_only = on")
    try:
        cur.execute(sql.SQL("SELECT ({}) IS TRUE").format(sql.SQL(condition)))
        ((found,),) = cur.fetchall()
    except psycopg2.OperationalError:  # the connection, or a lock: it says nothing of the condition
        raise
    except psycopg2.Error:
        found = False
    cur.execute("ROLLBACK TO condition; RELEASE condition")
    return bool(found)
