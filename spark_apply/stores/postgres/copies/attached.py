"""Carries over to another copy what others have attached to the live one. On a given cursor; nothing commits.

PostgreSQL keeps grants, policies, triggers and places in publications with a table, not with its name. A copy that took
over the name alone would show tenants each other's rows, and what is audited or replicated behind it would stop in
silence. So the copy that takes the name gets all of these as the live one has them by then, and keeps none of its own.

Each query finds pairs of statements, one that takes something away and one that makes it, with the name that the table
has now. Those of the live copy are read before the names change and run behind that: a policy or a trigger that speaks
of the table by its name means the new one.
"""

from __future__ import annotations

from typing import Final

from psycopg2 import sql

from spark_apply.stores.postgres.session.server import Cursor

Pairs = list[tuple[str, str]]
"""What takes something away, and what makes it."""

_PARTS_SINCE: Final = 150_000
"""The version of the server since which a publication can have a part of a table's columns or rows."""

_OWNER: Final = """
SELECT format('ALTER TABLE %s OWNER TO CURRENT_USER', name), format('ALTER TABLE %s OWNER TO %s', name,
    relowner::regrole) FROM t WHERE relowner <> current_user::regrole
"""
_GRANTS: Final = """
SELECT format('REVOKE %s%s ON %s FROM %s CASCADE', privilege_type, part, name, role),
    format('GRANT %s%s ON %s TO %s%s', privilege_type, part, name, role, option)
FROM (SELECT name, relowner, '' AS part, relacl AS acl FROM t UNION ALL SELECT name, relowner, format(' (%I)', attname),
    attacl FROM t JOIN pg_attribute ON attrelid = t.oid AND attnum > 0 AND NOT attisdropped) g, aclexplode(acl),
    LATERAL (SELECT CASE grantee WHEN 0 THEN 'PUBLIC' ELSE grantee::regrole::text END AS role,
    CASE WHEN is_grantable THEN ' WITH GRANT OPTION' END AS option) r WHERE grantee <> relowner
"""
_POLICIES: Final = """
SELECT format('DROP POLICY %I ON %s', polname, name), concat(format('CREATE POLICY %I ON %s AS %s FOR %s TO %s',
    polname, name, CASE WHEN polpermissive THEN 'PERMISSIVE' ELSE 'RESTRICTIVE' END,
    CASE polcmd WHEN 'r' THEN 'SELECT' WHEN 'a' THEN 'INSERT' WHEN 'w' THEN 'UPDATE' WHEN 'd' THEN 'DELETE' ELSE 'ALL'
    END, (SELECT string_agg(CASE r WHEN 0 THEN 'PUBLIC' ELSE r::regrole::text END, ', ') FROM unnest(polroles) r)),
    ' USING (' || pg_get_expr(polqual, polrelid) || ')', ' WITH CHECK (' || pg_get_expr(polwithcheck, polrelid) || ')')
FROM t JOIN pg_policy ON polrelid = t.oid
UNION ALL SELECT format('ALTER TABLE %s DISABLE ROW LEVEL SECURITY', name),
    format('ALTER TABLE %s ENABLE ROW LEVEL SECURITY', name) FROM t WHERE relrowsecurity
UNION ALL SELECT format('ALTER TABLE %s NO FORCE ROW LEVEL SECURITY', name),
    format('ALTER TABLE %s FORCE ROW LEVEL SECURITY', name) FROM t WHERE relforcerowsecurity
"""
_TRIGGERS: Final = """
SELECT format('DROP TRIGGER %I ON %s', tgname, name), concat(pg_get_triggerdef(g.oid),
    format('; ALTER TABLE %s ' || CASE tgenabled WHEN 'D' THEN 'DISABLE' WHEN 'R' THEN 'ENABLE REPLICA'
    WHEN 'A' THEN 'ENABLE ALWAYS' END || ' TRIGGER %I', name, tgname))
FROM t JOIN pg_trigger g ON tgrelid = t.oid WHERE NOT tgisinternal
UNION ALL SELECT format('DROP RULE %I ON %s', rulename, name), concat(pg_get_ruledef(w.oid),
    format(' ALTER TABLE %s ' || CASE ev_enabled WHEN 'D' THEN 'DISABLE' WHEN 'R' THEN 'ENABLE REPLICA'
    WHEN 'A' THEN 'ENABLE ALWAYS' END || ' RULE %I', name, rulename))
FROM t JOIN pg_rewrite w ON ev_class = t.oid
"""
_FOREIGN_KEYS: Final = """
SELECT format('ALTER TABLE %s DROP CONSTRAINT %I', name, conname), format('ALTER TABLE %s ADD CONSTRAINT %I %s%s', name,
    conname, definition, CASE WHEN definition !~ ' NOT (VALID|ENFORCED)' THEN ' NOT VALID' END)
FROM t JOIN pg_constraint c ON conrelid = t.oid, pg_get_constraintdef(c.oid) definition WHERE contype = 'f'
    AND conparentid = 0
"""
_WORDS: Final = """
SELECT format('COMMENT ON TABLE %s IS NULL', name), format('COMMENT ON TABLE %s IS %L', name, said)
FROM t, obj_description(t.oid, 'pg_class') said WHERE said IS NOT NULL
UNION ALL SELECT format('ALTER TABLE %s REPLICA IDENTITY DEFAULT', name), format('ALTER TABLE %s REPLICA IDENTITY %s',
    name, CASE relreplident WHEN 'f' THEN 'FULL' ELSE 'NOTHING' END) FROM t WHERE relreplident IN ('f', 'n')
"""
_BY_INDEX: Final = """
SELECT format('ALTER TABLE %s %s', name, without), format($do$DO $cdc$BEGIN EXECUTE coalesce((SELECT
    format('ALTER TABLE %%s %s %%I', %L, relname) FROM pg_index JOIN pg_class c ON c.oid = indexrelid
    WHERE indrelid = %L::regclass AND indisunique = %L
    AND %L = regexp_replace(pg_get_indexdef(c.oid), '^.*? USING ', '') LIMIT 1), %L); END$cdc$$do$, made, name,
    name, indisunique, regexp_replace(pg_get_indexdef(indexrelid), '^.*? USING ', ''),
    format('ALTER TABLE %s %s', name, otherwise))
FROM t JOIN pg_index ON indrelid = t.oid, (VALUES
    (false, 'REPLICA IDENTITY DEFAULT', 'REPLICA IDENTITY USING INDEX', 'REPLICA IDENTITY FULL'),
    (true, 'SET WITHOUT CLUSTER', 'CLUSTER ON', 'SET WITHOUT CLUSTER')) w (clusters, without, made, otherwise)
WHERE CASE WHEN clusters THEN indisclustered ELSE indisreplident AND relreplident = 'i' END
"""
"""Roles of an index, which the other copy has under another name; without that index, what publishes as much."""
_LABELS: Final = """
SELECT format('SECURITY LABEL FOR %I ON %s IS NULL', provider, what), format('SECURITY LABEL FOR %I ON %s IS %L',
    provider, what, label) FROM t JOIN pg_seclabel ON objoid = t.oid AND classoid = 'pg_class'::regclass
    LEFT JOIN pg_attribute ON attrelid = t.oid AND attnum = objsubid AND attnum > 0,
    concat(CASE WHEN attnum IS NULL THEN 'TABLE ' ELSE 'COLUMN ' END, name, '.' || quote_ident(attname)) what
"""
_PUBLICATIONS: Final = """
SELECT format('ALTER PUBLICATION %%I DROP TABLE %%s', pubname, name),
    concat(format('ALTER PUBLICATION %%I ADD TABLE %%s', pubname, name)%s)
FROM t JOIN pg_publication_rel ON prrelid = t.oid JOIN pg_publication b ON b.oid = prpubid
"""
_PART: Final = """, (SELECT format(' (%s)', string_agg(format('%I', attname), ', ' ORDER BY attnum)) FROM pg_attribute
    WHERE attrelid = prrelid AND attnum = ANY (prattrs::int2[]) HAVING count(*) > 0),
    ' WHERE (' || pg_get_expr(prqual, prrelid) || ')'"""


def attached(cur: Cursor, table: sql.Identifier) -> Pairs:
    """Return what others have attached to a table."""
    part = _PART if cur.connection.server_version >= _PARTS_SINCE else ""
    parts = (_OWNER, _GRANTS, _POLICIES, _TRIGGERS, _FOREIGN_KEYS, _WORDS, _BY_INDEX, _LABELS, _PUBLICATIONS % part)
    named = sql.SQL("WITH t AS (SELECT *, oid::regclass::text AS name FROM pg_class WHERE oid = to_regclass({})) ")
    cur.execute(named.format(sql.Literal(table.as_string(cur))) + sql.SQL("UNION ALL".join(parts)))
    return cur.fetchall()


def take_off(cur: Cursor, table: sql.Identifier) -> None:
    """Take what is attached to a table away: it was set aside, and has what is of another time."""
    _run(cur, [away for away, _ in reversed(attached(cur, table))])


def put_on(cur: Cursor, pairs: Pairs) -> None:
    """Attach what the copy had that has just been replaced, to the one that has its name now."""
    _run(cur, [made for _, made in pairs])


def _run(cur: Cursor, statements: list[str]) -> None:
    for statement in statements:
        cur.execute(sql.SQL(statement))  # the server has quoted each name in it
