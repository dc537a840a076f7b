"""What PostgreSQL's catalog is asked: statements alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

Rows: TypeAlias = Callable[[str, str, Sequence[object]], list[tuple[Any, ...]]]
"""Asks them, as `Catalog.rows` does."""

TYPES: Final = """
WITH RECURSIVE wanted(oid) AS (
    SELECT unnest(%s::oid[])
    UNION
    SELECT needed.oid
    FROM wanted
    JOIN pg_type t ON t.oid = wanted.oid
    LEFT JOIN pg_type e ON e.oid = t.typelem AND e.typarray = t.oid
    CROSS JOIN LATERAL (VALUES (t.typbasetype), (e.oid)) AS needed(oid)
    WHERE needed.oid <> 0
)
SELECT t.oid::int8, t.typname, n.nspname, t.typtype, t.typbasetype::int8, t.typtypmod,
       coalesce(e.oid, 0)::int8, coalesce(e.typdelim, t.typdelim), t.typstorage <> 'p',
       ARRAY(SELECT enumlabel::text FROM pg_enum WHERE enumtypid = t.oid ORDER BY enumsortorder)
FROM wanted
JOIN pg_type t ON t.oid = wanted.oid
JOIN pg_namespace n ON n.oid = t.typnamespace
LEFT JOIN pg_type e ON e.oid = t.typelem AND e.typarray = t.oid
"""

RELATIONS: Final = """
SELECT c.oid::int8, n.nspname, c.relname, c.relkind, c.relreplident, c.relpersistence,
       has_table_privilege(c.oid, 'SELECT') AND has_schema_privilege(n.oid, 'USAGE'),
       EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary AND NOT i.indimmediate),
       row_security_active(c.oid), current_user::text,
       CASE WHEN NOT has_table_privilege(c.oid, 'SELECT') AND has_any_column_privilege(c.oid, 'SELECT') THEN (
           SELECT coalesce(array_agg(a.attname::text ORDER BY a.attnum), '{}') FROM pg_attribute a
           WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
             AND NOT has_column_privilege(c.oid, a.attnum, 'SELECT')) END
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND NOT c.relispartition
  AND n.nspname NOT IN ('pg_catalog', 'information_schema') AND n.nspname !~ '^pg_(toast|temp)'
  AND NOT starts_with(coalesce(obj_description(n.oid, 'pg_namespace'), ''), 'cdc: changes of connector ')
ORDER BY n.nspname COLLATE "C", c.relname COLLATE "C"
"""
"""Leaves out the schemas that connectors keep what triggers write in: they are marked by a comment."""

NAMED: Final = """
SELECT c.relkind::text, rn.nspname || '.' || r.relname
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN (pg_class r JOIN pg_namespace rn ON rn.oid = r.relnamespace)
       ON c.relispartition AND r.oid = pg_partition_root(c.oid)
WHERE n.nspname || '.' || c.relname = %s
"""
"""Asks what has a name that `RELATIONS` does not give, and the table of which it is a partition."""

PLACES: Final = """
SELECT c.oid::int8, n.nspname, c.relname, rn.nspname, r.relname
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN (pg_class r JOIN pg_namespace rn ON rn.oid = r.relnamespace)
       ON c.relispartition AND r.oid = pg_partition_root(c.oid)
WHERE c.oid = ANY (%s::oid[])
"""

UNIQUE_BY: Final = """
WITH named(rel, columns) AS (
    SELECT of.rel, array_agg(a.attnum ORDER BY a.attnum) FROM unnest(%s::oid[], %s::text[]) AS of(rel, name)
    JOIN pg_attribute a ON a.attrelid = of.rel AND a.attname = of.name GROUP BY of.rel
), key(rel, columns, is_primary) AS (
    SELECT rel, columns, true FROM named
    UNION ALL
    SELECT k.indrelid, (k.indkey::int2[])[0:k.indnkeyatts - 1], k.indisprimary FROM pg_index k
    WHERE (k.indisprimary OR k.indisreplident) AND NOT EXISTS (SELECT FROM named WHERE named.rel = k.indrelid)
)
SELECT i.indrelid::int8, i.indexrelid::int8, coalesce(c.oid, i.indexrelid)::int8, (
    SELECT string_agg(k.columns::text, '' ORDER BY k.is_primary) FROM key k WHERE k.rel = i.indrelid)
FROM pg_index i
LEFT JOIN pg_constraint c ON c.conindid = i.indexrelid AND c.conrelid = i.indrelid AND c.contype IN ('p', 'u')
WHERE i.indrelid = ANY (%s::oid[]) AND i.indisunique AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL
AND EXISTS (
    SELECT FROM key k WHERE k.rel = i.indrelid AND (i.indkey::int2[])[0:i.indnkeyatts - 1] <@ k.columns
)
"""
"""A key that the file names goes before those of the table.

REINDEX CONCURRENTLY makes another index of the same constraint, USING INDEX another constraint of the same index.
"""

TODAY: Final = """
WITH RECURSIVE part(root, oid) AS (
    SELECT oid, oid FROM pg_class WHERE oid = ANY (%s::oid[])
    UNION ALL
    SELECT part.root, i.inhrelid
    FROM part JOIN pg_class above ON above.oid = part.oid AND above.relkind = 'p'
    JOIN pg_inherits i ON i.inhparent = part.oid
), files(root, file) AS (
    SELECT part.root, md5(string_agg(f.oid::text || ':' || f.relfilenode::text, ',' ORDER BY f.oid))
    FROM part JOIN pg_class f ON f.oid = part.oid GROUP BY part.root
)
SELECT root.oid::int8, root.relreplident,
       (SELECT array_agg(a.attname::text ORDER BY k.n)
        FROM pg_index i
        CROSS JOIN LATERAL unnest(i.indkey) WITH ORDINALITY AS k(attnum, n)
        JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
        WHERE i.indisprimary AND i.indisvalid AND i.indrelid = root.oid AND k.n <= i.indnkeyatts),
       (SELECT array_agg(a.attname::text ORDER BY k.n)
        FROM pg_index i
        CROSS JOIN LATERAL unnest(i.indkey) WITH ORDINALITY AS k(attnum, n)
        JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
        WHERE i.indrelid = root.oid AND k.n <= i.indnkeyatts
          AND CASE root.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE false END),
       (SELECT jsonb_agg(told.apart)
        FROM pg_index i
        CROSS JOIN LATERAL (
            SELECT array_agg(a.attname::text) AS apart FROM pg_attribute a
            WHERE a.attrelid = i.indrelid AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])
        ) told
        WHERE i.indrelid = root.oid AND i.indisunique AND i.indisvalid AND i.indimmediate
          AND i.indpred IS NULL AND i.indexprs IS NULL),
       files.file, own.*
FROM files
JOIN pg_class root ON root.oid = files.root
CROSS JOIN LATERAL (
    SELECT string_agg(a.xmin::text, ',' ORDER BY a.attnum), array_agg(a.attname::text ORDER BY a.attnum),
           array_agg(a.atttypid::int8 ORDER BY a.attnum), array_agg(a.atttypmod ORDER BY a.attnum),
           array_agg(coalesce(a.attnum = ANY ((ri.indkey::int2[])[0:ri.indnkeyatts - 1]), false) ORDER BY a.attnum),
           array_agg(a.atthasmissing OR (root.relkind = 'p' AND EXISTS (
                         SELECT FROM part JOIN pg_attribute l ON l.attrelid = part.oid AND l.attname = a.attname
                         WHERE part.root = root.oid AND l.atthasmissing)) ORDER BY a.attnum),
           array_agg(a.attnotnull AND NOT EXISTS (
               SELECT FROM pg_constraint n
               WHERE n.conrelid = a.attrelid AND n.contype = 'n' AND a.attnum = ANY (n.conkey) AND NOT n.convalidated
           ) ORDER BY a.attnum),
           array_agg(EXISTS (
               SELECT FROM pg_collation o WHERE o.oid = a.attcollation AND NOT o.collisdeterministic
           ) ORDER BY a.attnum),
           array_agg(CASE WHEN a.attcollation <> t.typcollation THEN a.attcollation::text ELSE '' END ORDER BY a.attnum)
    FROM pg_attribute a
    JOIN pg_type t ON t.oid = a.atttypid
    LEFT JOIN pg_index ri ON ri.indrelid = root.oid
         AND CASE root.relreplident WHEN 'd' THEN ri.indisprimary WHEN 'i' THEN ri.indisreplident ELSE false END
    WHERE a.attrelid = root.oid AND a.attnum > 0 AND NOT a.attisdropped
      AND (a.attgenerated = '' OR a.attgenerated = 's' AND %s)
) own
"""
"""Asks of each relation its identity and primary key, what its replica identity's index names, the sets of columns that
no two rows share at any time, the files of all its partitions in one word, and the columns that its events have.

A partitioned table holds no row: the value that older rows have in an added column is with each partition.
"""

GENERATED_COLUMNS: Final = """
SELECT EXISTS (SELECT FROM pg_publication p WHERE p.pubname = %s AND to_jsonb(p)->>'pubgencols' = 's')
"""
"""Asks whether a publication carries generated columns that are stored, which PostgreSQL 18 and newer can."""

LEAVES: Final = """
WITH RECURSIVE part(oid) AS (
    SELECT %s::oid
    UNION ALL
    SELECT i.inhrelid FROM part JOIN pg_inherits i ON i.inhparent = part.oid
)
SELECT n.nspname, c.relname FROM part JOIN pg_class c ON c.oid = part.oid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind = 'r' AND c.relreplident <> 'f' ORDER BY 1, 2
"""

UNIQUE: Final = """
SELECT EXISTS (
    SELECT FROM pg_index i
    WHERE i.indrelid = %s::oid AND i.indisunique AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL
      AND (SELECT array_agg(a.attname::text) FROM pg_attribute a
           WHERE a.attrelid = i.indrelid AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])) <@ %s::text[]
)
"""

SCHEMAS: Final = 150000
"""The first version with schemas, row filters and lists of columns in publications."""

_PUBLISHED: Final = """
SELECT c.oid::int8, n.nspname, c.relname, r.oid IS NOT NULL, b.pubupdate OR b.pubdelete,
       coalesce(to_jsonb(b) ->> 'pubgencols' = 's', false),
       CASE WHEN b.puballtables OR {in_schema} THEN '' WHEN to_jsonb(r) ->> 'prqual' IS NOT NULL THEN 'rows'
            WHEN to_jsonb(r) ->> 'prattrs' IS NOT NULL THEN 'columns' ELSE '' END
FROM pg_publication b
JOIN pg_class c ON c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND c.oid >= 16384
JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_publication_rel r ON r.prpubid = b.oid AND r.prrelid = c.oid
WHERE b.pubname = %s AND (r.oid IS NOT NULL OR (NOT c.relispartition AND (b.puballtables OR {in_schema})))
ORDER BY 2, 3
"""
_IN_SCHEMA: Final = (
    "EXISTS (SELECT FROM pg_publication_namespace s WHERE s.pnpubid = b.oid AND s.pnnspid = c.relnamespace)"
)


def published(version: int) -> str:
    """Ask for what a publication carries: how each table got into it, what it publishes, and what it leaves out.

    The view pg_publication_tables waits for every table that somebody has locked; what asks here must not.
    """
    return _PUBLISHED.format(in_schema=_IN_SCHEMA if version >= SCHEMAS else "false")
