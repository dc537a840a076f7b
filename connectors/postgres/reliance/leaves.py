"""Knows the relations that hold a table's rows, partitions above all: what came with them, what the log does not have.

Rows that a partition had before it was one are in the log as another table's, or in none. The catalog does not say
whether there were any, but how old the partition's rows in it are:

- The row of a system column is as old as its table, and the row of its place among the partitions as that: one that was
  attached later had rows, maybe.
- One that was made, filled and attached in one transaction has no such row that is older. But ATTACH writes the rows of
  its columns and that of its place in one command, and CREATE TABLE … PARTITION OF in two.
- One that was made in its place without a log (UNLOGGED), filled, and logged since, has another file than its first,
  which has the number of the table. So has one that was rewritten: that cannot be told apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from cdc.model.errors import OperatorError
from connectors.postgres.catalog import identities
from connectors.postgres.catalog.capturable import not_logged
from connectors.postgres.catalog.catalog import Catalog
from connectors.postgres.reliance import entry_text
from connectors.postgres.reliance.entry_text import hashed as _hash
from connectors.postgres.reliance.entry_text import number as _number
from connectors.postgres.session import identifier

_NONE: Final = "...."

_LEAVES: Final = """
WITH RECURSIVE part(root, oid, attached, joined, merged) AS (
    SELECT oid, oid, '', 2147483647, false FROM pg_class WHERE oid = ANY (%s::oid[])
    UNION ALL
    SELECT part.root, i.inhrelid, part.attached || ',' || i.xmin::text, least(part.joined, age(i.xmin)),
           part.merged OR EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = i.inhrelid AND a.attnum > 0
                                  AND (a.xmin::text, a.cmin::text) = (i.xmin::text, i.cmin::text))
    FROM part JOIN pg_class p ON p.oid = part.oid AND p.relkind = 'p' JOIN pg_inherits i ON i.inhparent = part.oid
)
SELECT part.root::int8, c.oid::int8, n.nspname, c.relname, part.attached, c.relfilenode::text, c.reltoastrelid::int8,
       c.relpersistence <> 'p', c.reltuples < 0,
       part.merged OR (c.oid <> part.root AND c.relfilenode <> c.oid)
       OR part.joined < age((SELECT a.xmin FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum = -1)),
       c.relkind = 'f'
FROM part JOIN pg_class c ON c.oid = part.oid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'f') ORDER BY 1, 2
"""


class Part(NamedTuple):
    """Is a relation that holds rows of a table."""

    oid: int
    schema: str
    name: str
    attached: str
    file: str
    toast: int
    unlogged: bool
    emptied: bool
    """No statistics since it was made or truncated."""
    brought_rows: bool
    """It was attached, or not in the log, and not just made where it is; and it had rows when that was asked first."""
    foreign: bool = False

    @property
    def record(self) -> str:
        toast = _hash(str(self.toast), 4) if self.toast else _NONE
        return _number(self.oid) + _hash(self.attached, 4) + _hash(self.file, 4) + toast


def look(catalog: Catalog, tables: Mapping[int, str], then: Mapping[str, str] | None) -> dict[int, list[Part]]:
    """Return the parts of each table, by its oid; of those that `then` has nothing of, whether they brought rows.

    Asking for a partition's size waits for who has locked it, so it is not asked of one that is known, nor of a table
    that is new. Without `then` all are asked.
    """
    found: dict[int, list[Part]] = {oid: [] for oid in tables}
    for root, *part in catalog.rows("reading the catalog", _LEAVES, ([*tables],)):
        found[root].append(Part(*part))
    may: list[Part] = []
    for root, parts in found.items():
        if (then is None or tables[root] in then) and any(part.brought_rows for part in parts):
            known = frozenset() if then is None else entry_text.known(then[tables[root]])
            may += [part for part in parts if part.brought_rows and part.oid not in known]
    filled = catalog.had_rows((part.oid, part.attached) for part in may)
    return {
        root: [part._replace(brought_rows=part.brought_rows and part.oid in filled) for part in parts]
        for root, parts in found.items()
    }


def refusals(table: str, oid: int, parts: Iterable[Part]) -> Iterator[OperatorError]:
    """Refuse a table, whose number this is, of which a part is not in the log."""
    for part in parts:
        name = identifier(part.schema, part.name)
        if part.foreign:
            yield identities.foreign(table, f"its partition {part.schema}.{part.name}", name)
        elif part.unlogged:
            what = f"table {table}" if part.oid == oid else f"partition {name} of table {table}"
            yield not_logged(what, table, name)
