"""Asks a database which letters it has a place for. On a given cursor, in an open transaction; nothing commits.

Its server alone knows: of the encodings of East Asia no two programs have the same table, and to Python some are none.
"""

from __future__ import annotations

import psycopg2.errors

from spark_apply.stores.postgres.tables import Cursor


def takes(cur: Cursor, text: bytes) -> bool:
    """Whether the database has each letter of a text, which is UTF-8."""
    if text.isascii() or cur.connection.get_parameter_status("server_encoding") in ("UTF8", "SQL_ASCII"):
        return True
    cur.execute("SAVEPOINT cdc_letters")
    try:
        cur.execute(
            "SELECT pg_catalog.length(pg_catalog.convert(%s, 'UTF8', pg_catalog.getdatabaseencoding()))", (text,)
        )
    except psycopg2.errors.UntranslatableCharacter:
        cur.execute("ROLLBACK TO SAVEPOINT cdc_letters")
        return False
    cur.execute("RELEASE SAVEPOINT cdc_letters")
    return True
