"""Judges what publishing a table does to the application that writes it, and what the log then has of old rows.

PostgreSQL refuses each UPDATE and DELETE of a published relation whose replica identity it cannot log. It asks the
relation that has the row, which may be a partition with an identity of its own.

https://www.postgresql.org/docs/current/logical-replication-publication.html
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from cdc.model.change import Table
from cdc.model.errors import LeftOutError, OperatorError
from connectors.postgres.catalog import queries
from connectors.postgres.catalog.capturable import not_logged
from connectors.postgres.catalog.queries import Rows
from connectors.postgres.session import identifier

_APART: Final = "ALTER TABLE … DETACH PARTITION {}; or leave the table out of source.tables"

log = logging.getLogger("cdc")

_CHECKED: Final = 180000
"""The first version that asks whether a publication carries the generated columns of a replica identity."""

_RELATIONS: Final = """
WITH RECURSIVE part(root, oid) AS (
    SELECT oid, oid FROM pg_class WHERE oid = ANY (%s::oid[])
    UNION ALL
    SELECT part.root, i.inhrelid
    FROM part JOIN pg_class above ON above.oid = part.oid AND above.relkind = 'p'
    JOIN pg_inherits i ON i.inhparent = part.oid
)
SELECT part.root::int8, n.nspname, c.relname, part.root <> part.oid, c.relkind::text, c.relpersistence::text,
       c.relreplident::text,
       (SELECT array_agg(a.attname::text ORDER BY a.attnum)
        FROM pg_index i
        JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])
        WHERE i.indrelid = c.oid AND i.indimmediate AND i.indisvalid
          AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE false END),
       (SELECT array_agg(a.attname::text ORDER BY a.attnum) FROM pg_attribute a
        WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = 's'),
       (SELECT array_agg(a.attname::text ORDER BY a.attnum) FROM pg_attribute a
        WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = 'v'),
       current_setting('server_version_num')::int
FROM part JOIN pg_class c ON c.oid = part.oid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind <> 'p' ORDER BY n.nspname, c.relname
"""
"""Asks of each table, or of each partition of it that has rows, what its replica identity is."""

_CHILDREN: Final = """
WITH RECURSIVE child(root, oid) AS (
    SELECT oid, oid FROM pg_class WHERE oid = ANY (%s::oid[]) AND relkind = 'r'
    UNION
    SELECT child.root, i.inhrelid FROM child JOIN pg_inherits i ON i.inhparent = child.oid
)
SELECT pn.nspname || '.' || p.relname, n.nspname || '.' || c.relname
FROM child JOIN pg_class c ON c.oid = child.oid JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_class p ON p.oid = child.root JOIN pg_namespace pn ON pn.oid = p.relnamespace
WHERE child.oid <> child.root ORDER BY 1, 2
"""


@dataclass(frozen=True, slots=True)
class Identity:
    """Is what one relation that has rows does with its old rows."""

    schema: str
    name: str
    partition: bool
    kind: str
    persistence: str
    identity: str
    columns: tuple[str, ...]
    """The columns of the index that is its replica identity; none where there is no such index."""
    stored: tuple[str, ...]
    """Its generated columns that are stored."""
    virtual: tuple[str, ...]
    version: int
    """The server's."""

    @property
    def sql(self) -> str:
        return identifier(self.schema, self.name)

    @property
    def shown(self) -> str:
        return f"{'its partition ' if self.partition else ''}{self.schema}.{self.name}"

    def breaks(self, *, generated: bool) -> tuple[str, str] | None:
        """Say why updates and deletes fail once this is published, and what helps; None where they do not fail.

        `generated`: the publication carries generated columns that are stored.
        """
        if self.identity != "f" and not self.columns:
            return f"{self.shown} has no replica identity", f"ALTER TABLE {self.sql} REPLICA IDENTITY FULL"
        if self.version < _CHECKED:
            return None
        of_it = set(self.columns) if self.identity != "f" else {*self.stored, *self.virtual}
        missing = [name for name in (*self.stored, *self.virtual) if name in of_it]
        if generated:
            missing = [name for name in missing if name in self.virtual]
        if not missing:
            return None
        what = f"the replica identity of {self.shown} has {', '.join(missing)}, which is generated and not published"
        if self.identity == "f":
            return what, (
                f"ALTER TABLE {self.sql} REPLICA IDENTITY DEFAULT, where it has a primary key that is not DEFERRABLE; "
                "or REPLICA IDENTITY USING INDEX, with a unique index of columns that are NOT NULL"
            )
        return what, (
            "give it a key without generated columns; or make a publication of your own: WITH "
            "(publish_via_partition_root = true, publish_generated_columns = stored)"
        )


def identities(rows: Rows, oids: Sequence[int]) -> Mapping[int, Sequence[Identity]]:
    """Look up, by table, the relations that have its rows."""
    found: dict[int, list[Identity]] = {oid: [] for oid in oids}
    for root, schema, name, partition, kind, persistence, identity, columns, stored, virtual, version in rows(
        "reading the catalog", _RELATIONS, (list(oids),)
    ):
        found[root].append(
            Identity(
                schema,
                name,
                partition,
                kind,
                persistence,
                identity,
                tuple(columns or ()),
                tuple(stored or ()),
                tuple(virtual or ()),
                version,
            )
        )
    return found


def refusals_by_triggers(table: Table, relations: Sequence[Identity]) -> Iterator[OperatorError]:
    """Give what triggers would not tell of a table's partitions."""
    for one in relations:
        if one.kind == "f":
            yield OperatorError(
                f"table {table.qualified}: {one.shown} is a foreign table: what is done to it elsewhere calls no "
                "trigger here",
                hint=_APART.format(one.sql),
            )
        elif one.persistence == "u" and one.partition:
            yield OperatorError(
                f"table {table.qualified}: {one.shown} is unlogged: a crash of the server empties it, and no trigger "
                "tells",
                hint=f"ALTER TABLE {one.sql} SET LOGGED",
            )


def refusals(table: Table, relations: Sequence[Identity], *, generated: bool) -> Iterator[OperatorError]:
    """Give why a table cannot be published, or what its log would not have."""
    key = ", ".join(table.key)
    for one in relations:
        broken = one.breaks(generated=generated)
        full = f"ALTER TABLE {one.sql} REPLICA IDENTITY FULL"
        if one.kind == "f":
            yield foreign(table.qualified, one.shown, one.sql)
        elif one.persistence == "u" and one.partition:
            yield not_logged(f"table {table.qualified}: {one.shown}", table.qualified, one.sql)
        elif broken is not None:
            what, hint = broken
            yield OperatorError(
                f"table {table.qualified}: once published, its updates and deletes would fail: {what}", hint=hint
            )
        elif one.partition and one.identity != "f" and (table.deferred_key or set(one.columns) != set(table.key)):
            yield OperatorError(
                f"table {table.qualified}: the log does not carry its key ({key}) of old rows in {one.shown}", hint=full
            )


def foreign(table: str, shown: str, relation: str) -> LeftOutError:
    """Return the error of a table that has a foreign table for a partition."""
    return LeftOutError(
        f"table {table}: {shown} is a foreign table: the log has no rows of it", hint=_APART.format(relation)
    )


@dataclass(frozen=True, slots=True)
class Accident:
    """Is a relation that is published and not captured, which fails its application."""

    name: str
    why: str
    hint: str


def accidents(rows: Rows, publication: str, captured: Collection[str]) -> Iterator[Accident]:
    """Give what the publication carries, is not captured, and cannot be updated therefore: children, for example."""
    ((version,),) = rows("reading the version", "SELECT current_setting('server_version_num')::int", ())
    published = {
        oid: (schema, name, alone, generated)
        for oid, schema, name, alone, fails, generated, _ in rows(
            "reading the publication", queries.published(version), (publication,)
        )
        if fails and f"{schema}.{name}" not in captured
    }
    for oid, relations in identities(rows, list(published)).items() if published else ():
        schema, name, alone, generated = published[oid]
        for one in relations:
            broken = one.breaks(generated=generated)
            if broken is not None and one.kind != "f" and one.persistence == "p":  # of others nothing is published
                why, hint = broken
                drop = f"ALTER PUBLICATION {identifier(publication)} DROP TABLE ONLY {identifier(schema, name)}"
                yield Accident(f"{schema}.{name}", why, drop if alone else hint)


def children(rows: Rows, oids: Sequence[int], captured: Collection[str]) -> Mapping[str, Sequence[str]]:
    """Return, by table, those that inherit from it (INHERITS) and are not captured themselves."""
    found: dict[str, list[str]] = {}
    for parent, child in rows("reading the catalog", _CHILDREN, (list(oids),)):
        if child not in captured:
            found.setdefault(parent, []).append(child)
    return found


def tell(rows: Rows, publication: str, captured: Mapping[int, str]) -> None:
    """Log what is left out beside the captured tables, given by oid, and what the publication makes fail."""
    names = captured.values()
    for parent, left_out in children(rows, list(captured), names).items():
        log.warning("table %s: rows of %s, which inherit from it, are not captured", parent, ", ".join(left_out))
    for found in accidents(rows, publication, names):
        what = f"publication {publication} makes updates and deletes of {found.name} fail"
        log.warning("%s: %s; %s", what, found.why, found.hint)
