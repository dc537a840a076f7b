"""Has a server keep a new, empty table as it keeps another: where, with which options, and with which statistics.

``LIKE … INCLUDING ALL`` has none of it. On a given cursor; nothing commits.
"""

from __future__ import annotations

from typing import Final

import psycopg2.extensions
from psycopg2 import sql

_KEPT: Final = """
WITH t AS (SELECT * FROM pg_class WHERE oid = to_regclass(%s)), options AS (SELECT unnest(reloptions) AS one FROM t
    UNION ALL SELECT 'toast.' || unnest(o.reloptions) FROM t JOIN pg_class o ON o.oid = t.reltoastrelid),
    a AS (SELECT a.* FROM t JOIN pg_attribute a ON attrelid = t.oid WHERE attnum > 0 AND NOT attisdropped)
SELECT format('SET TABLESPACE %%I', spcname) FROM t JOIN pg_tablespace s ON s.oid = reltablespace
UNION ALL SELECT format('SET (%%s = %%L)', split_part(one, '=', 1), substr(one, strpos(one, '=') + 1)) FROM options
UNION ALL SELECT format('ALTER %%I SET STATISTICS %%s', attname, attstattarget) FROM a WHERE attstattarget >= 0
UNION ALL SELECT format('ALTER %%I SET (%%s)', attname, array_to_string(attoptions, ', ')) FROM a
    WHERE attoptions IS NOT NULL
"""


def store_like(cur: psycopg2.extensions.cursor, table: sql.Identifier, other: sql.Identifier) -> None:
    """Give a table without rows what the server notes about keeping another, whose columns it has."""
    cur.execute(_KEPT, (other.as_string(cur),))
    for (action,) in cur.fetchall():  # the server has quoted each name in it
        cur.execute(sql.SQL("ALTER TABLE {} {}").format(table, sql.SQL(action)))
