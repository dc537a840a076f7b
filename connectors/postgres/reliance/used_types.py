"""Knows enums and composite types in a table's columns: rows are printed with what they are when they are read.

No event tells that a label has another name. One that has its name back was told with the other one meanwhile: the
transaction that gave it its name says so. Labels that were added since change nothing of older rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from connectors.postgres.catalog.catalog import Catalog
from connectors.postgres.reliance.entry_text import hashed

NOTHING: Final = "-"
_LONG: Final = 6

_USED: Final = """
WITH RECURSIVE used(root, oid) AS (
    SELECT a.attrelid, a.atttypid FROM pg_attribute a
    WHERE a.attrelid = ANY (%s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped AND a.atttypid >= 16384
    UNION
    SELECT used.root, within.oid FROM used JOIN pg_type t ON t.oid = used.oid CROSS JOIN LATERAL (
        SELECT t.typbasetype UNION ALL SELECT t.typelem
        UNION ALL SELECT a.atttypid FROM pg_attribute a
                  WHERE t.typtype = 'c' AND a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped
        UNION ALL SELECT r.rngsubtype FROM pg_range r WHERE r.rngtypid = t.oid
        UNION ALL SELECT r.rngtypid FROM pg_range r WHERE r.rngmultitypid = t.oid
    ) within(oid) WHERE within.oid >= 16384
)
SELECT used.root::int8, t.oid::int8, t.typname::text,
       CASE t.typtype WHEN 'e' THEN
           (SELECT array_agg(e.enumlabel::text ORDER BY e.oid) FROM pg_enum e WHERE e.enumtypid = t.oid)
       ELSE
           (SELECT array_agg(a.attnum || ':' || a.atttypid ORDER BY a.attnum) FROM pg_attribute a
            WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped)
       END, t.typtype = 'e',
       (SELECT array_agg(e.xmin::text ORDER BY e.oid) FROM pg_enum e WHERE e.enumtypid = t.oid)
FROM used JOIN pg_type t ON t.oid = used.oid WHERE t.typtype IN ('e', 'c') ORDER BY 1, 2
"""


class UsedType(NamedTuple):
    """Is an enum or a composite type."""

    name: str
    defined: Sequence[str]
    """Labels of an enum, in the order of their making; attributes of a composite type."""
    enum: bool
    made: Sequence[str] = ()
    """The transactions that gave the labels their names."""

    @property
    def record(self) -> str:
        return f"{len(self.defined)}:{hashed(','.join(self.defined), _LONG)}:{hashed(','.join(self.made), 4)}"


def look(catalog: Catalog, oids: Sequence[int]) -> dict[int, dict[int, UsedType]]:
    """Return the types that tables use, by the table's oid and by their own."""
    found: dict[int, dict[int, UsedType]] = {}
    for root, oid, name, defined, enum, by in catalog.rows("reading the catalog", _USED, (oids,)):
        found.setdefault(root, {})[oid] = UsedType(name, tuple(defined or ()), enum, tuple(by or ()))
    return found


def record(types: Mapping[int, UsedType]) -> str:
    """Write the part of an entry."""
    return ",".join(f"{oid}:{of.record}" for oid, of in types.items())


def difference(then: str, now: Mapping[int, UsedType]) -> str | None:
    """Say why rows may be printed otherwise than they would be now; None: they are not."""
    for entry in then.split(",") if then != NOTHING else ():
        oid, count, *known = entry.split(":")
        type_ = now.get(int(oid))
        if type_ is None:
            continue
        first = type_.defined[: int(count)] if type_.enum else type_.defined
        if hashed(",".join(first), _LONG) != known[0]:
            what = "labels" if type_.enum else "attributes"
            return f"type {type_.name} has other {what}, and older rows are printed with them"
        if type_.enum and len(known) > 1 and hashed(",".join(type_.made[: int(count)]), 4) != known[1]:
            return f"type {type_.name} may have had other labels for a time, and rows may be printed with them"
    return None
