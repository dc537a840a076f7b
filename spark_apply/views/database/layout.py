"""Knows the tables of a job's schema as it has left them: what another hand has dropped, altered or emptied it tells.

A table that is gone would be made again, empty, and be taken for one of which all events were read.
"""

from __future__ import annotations

import json
from collections.abc import Set as AbstractSet
from typing import Final

from spark_apply.stores.postgres.session.server import Cursor
from spark_apply.views.database.names import base, is_ours, short
from spark_apply.views.model.values import text

_LAYOUT: Final = """
SELECT c.relname, a.attname, format_type(a.atttypid, a.atttypmod), coalesce(l.collname, ''), c.relpersistence
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_attribute a ON a.attrelid = c.oid
LEFT JOIN pg_collation l ON l.oid = a.attcollation
WHERE n.nspname = %s AND c.relkind = 'r' AND a.attnum > 0 AND NOT a.attisdropped
"""
_WITH_ROWS: Final = """
SELECT relation FROM sizes WHERE rows > 0 AND (
    relation IN (SELECT relation FROM kept) OR relation IN (SELECT 'view.' || name FROM views)
    OR split_part(relation, '#', 1) IN (SELECT name FROM views)
)
"""
"""Relations that are read, and had rows after the last step."""


def keep(cursor: Cursor, schema: str) -> None:
    """Keep the layout as it is now."""
    found = json.dumps(sorted(_layout(cursor, schema)))
    cursor.execute("DELETE FROM meta WHERE name = 'layout'")
    cursor.execute("INSERT INTO meta VALUES ('layout', %s)", (found,))


def touched(cursor: Cursor, schema: str) -> str | None:
    """Name a table that is read, and is not as the job has left it; None where all are, or none is known.

    Of rows it is known alone whether there are any: to count them takes long.
    """
    now = _layout(cursor, schema)
    return _altered(cursor, now) or _emptied(cursor, {row[0] for row in now})


def _emptied(cursor: Cursor, tables: AbstractSet[str]) -> str | None:
    cursor.execute(_WITH_ROWS)
    there = [of for (of,) in cursor.fetchall()]
    for of in there:
        if short(of) not in tables:  # dropped, and no layout is known that has it: an earlier release has kept none
            return short(of)
    one = " UNION ALL ".join(f"SELECT {text(short(of))} WHERE NOT EXISTS (SELECT FROM {base(of)})" for of in there)
    if not one:
        return None
    cursor.execute(f"{one} LIMIT 1")
    return next((str(name) for (name,) in cursor.fetchall()), None)


def _altered(cursor: Cursor, now: AbstractSet[tuple[str, ...]]) -> str | None:
    cursor.execute("SELECT value FROM meta WHERE name = 'layout'")
    kept = cursor.fetchall()
    gone = {tuple(row) for (text,) in kept for row in json.loads(text)} - now
    tables = sorted({str(row[0]) for row in gone}, key=_is_of_view)
    if not tables or not _is_of_view(tables[0]):
        return tables[0] if tables else None
    cursor.execute("SELECT name FROM views")  # others were taken out of the file, and are not read
    views = [name for (name,) in cursor.fetchall()]
    read, nodes = {short(f"view.{name}") for name in views}, tuple(f"{name}#" for name in views)
    return next((each for each in tables if each in read or each.startswith(nodes)), None)


def _layout(cursor: Cursor, schema: str) -> set[tuple[str, ...]]:
    cursor.execute(_LAYOUT, (schema,))
    return {row for row in cursor.fetchall() if is_ours(row[0])}


def _is_of_view(table: str) -> bool:
    """Whether a table is a view's, or a node's of it."""
    return table.startswith("view.") or "#" in table
