"""Knows by what a partition's replica identity may have been given to another index for a time, and been taken back.

A partition keeps its own replica identity, and the log describes its rows by its root's. While another unique index is
the identity, an UPDATE of the key says nothing of the key that was: the row stays in the topic under it. Taken back, it
leaves one trace, which lasts as long as the index: its row of pg_index was written. The entry of the position record
has it for each such index of a partition: its number, and a hash of the transaction that wrote the row last. A table
that is no partition needs none of this, because the log describes it again when its identity changes.
"""

from __future__ import annotations

import hashlib
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from typing import Final

from connectors.postgres.catalog.queries import Rows

_ASKED: Final = """
WITH RECURSIVE part(root, oid) AS (
    SELECT oid, oid FROM pg_class WHERE oid = ANY (%s::oid[]) AND relkind = 'p'
    UNION ALL
    SELECT part.root, i.inhrelid FROM part JOIN pg_inherits i ON i.inhparent = part.oid
)
SELECT part.root::int8, x.indexrelid::int8, x.xmin::text
FROM part JOIN pg_class c ON c.oid = part.oid AND c.relkind = 'r' JOIN pg_index x ON x.indrelid = c.oid
WHERE x.indisunique AND x.indimmediate AND NOT x.indisprimary AND x.indpred IS NULL AND x.indexprs IS NULL
ORDER BY 1, 2
"""
NONE: Final = "-"
_WIDTH: Final = 4
"""Characters of the hash: 24 bits."""


def look(rows: Rows, oids: Sequence[int]) -> dict[int, str]:
    """Return, by table, the part of its entry; tables without such indexes are not there."""
    found: dict[int, list[str]] = {}
    for root, index, written in rows("reading the catalog", _ASKED, (list(oids),)):
        digest = hashlib.md5(written.encode(), usedforsecurity=False).digest()
        found.setdefault(root, []).append(f"{index}:{urlsafe_b64encode(digest)[:_WIDTH].decode()}")
    return {root: ",".join(marks) for root, marks in found.items()}


def difference(then: str, now: str) -> str | None:
    """Say why rows may be under keys that they no longer have; an index that has come or gone says nothing."""
    were, are = _marks(then), _marks(now)
    if all(are.get(index, mark) == mark for index, mark in were.items()):
        return None
    return "a partition had another replica identity for a time, and its keys may have changed without events"


def _marks(part: str) -> dict[str, str]:
    return dict(one.split(":") for one in part.split(",") if one != NONE)
