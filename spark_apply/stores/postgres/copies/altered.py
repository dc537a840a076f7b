"""Looks at what others have done to a copy: columns that they took away, views that they made."""

from __future__ import annotations

from typing import Final

from psycopg2 import sql

from cdc.model.errors import OperatorError
from cdc.model.hints import rebuild
from spark_apply.events.typed import POSITION
from spark_apply.model.completeness import Mark
from spark_apply.model.lost_columns import Numbers, come_columns, lost_columns, of_another_hand, refuse_lost
from spark_apply.model.target_table import TargetTable, other_target, rebuilt
from spark_apply.stores.postgres.copies import tables
from spark_apply.stores.postgres.copies.catalog import Copy
from spark_apply.stores.postgres.copies.row_security import hidden_from
from spark_apply.stores.postgres.copies.tables import Tables, columns_of
from spark_apply.stores.postgres.session.server import Cursor
from spark_apply.stores.postgres.values.keys import column_type
from spark_apply.stores.postgres.values.types import holds

_HELD: Final = """
WITH t AS (SELECT * FROM pg_class WHERE oid = to_regclass(%s)), own (class, id) AS (
    SELECT 'pg_policy'::regclass, p.oid FROM pg_policy p JOIN t ON polrelid = t.oid
    UNION ALL SELECT 'pg_trigger'::regclass, g.oid FROM pg_trigger g JOIN t ON tgrelid = t.oid
    UNION ALL SELECT 'pg_rewrite'::regclass, w.oid FROM pg_rewrite w JOIN t ON ev_class = t.oid
    UNION ALL SELECT 'pg_constraint'::regclass, c.oid FROM pg_constraint c JOIN t ON conrelid = t.oid
    UNION ALL SELECT 'pg_attrdef'::regclass, a.oid FROM pg_attrdef a JOIN t ON adrelid = t.oid
    UNION ALL SELECT 'pg_publication_rel'::regclass, r.oid FROM pg_publication_rel r JOIN t ON prrelid = t.oid)
SELECT string_agg(what, ', ' ORDER BY what) FROM (SELECT pg_describe_object(classid, objid, 0) AS what FROM t
    JOIN pg_depend ON (refclassid, refobjid) IN (('pg_class'::regclass, t.oid), ('pg_type'::regclass, reltype),
        ('pg_type'::regclass, (SELECT typarray FROM pg_type y WHERE y.oid = reltype)))
    WHERE deptype = 'n' AND (classid, objid) NOT IN (SELECT class, id FROM own)
    UNION SELECT 'its partitions' FROM t WHERE relkind = 'p'
    UNION SELECT 'its place below ' || inhparent::regclass FROM t JOIN pg_inherits ON inhrelid = t.oid) held
"""
"""What depends on a table, or on the type of its rows, and is not part of it."""
_WITHOUT_RIGHT: Final = """
WITH t AS (SELECT * FROM pg_class WHERE oid = to_regclass(%s))
SELECT string_agg(what, ', ' ORDER BY what) FROM (
    SELECT 'publication ' || pubname AS what FROM t JOIN pg_publication_rel ON prrelid = t.oid
        JOIN pg_publication p ON p.oid = prpubid WHERE NOT pg_has_role(pubowner, 'USAGE')
    UNION ALL SELECT 'trigger ' || tgname FROM t JOIN pg_trigger ON tgrelid = t.oid
        WHERE NOT tgisinternal AND NOT has_function_privilege(tgfoid, 'EXECUTE')
    UNION ALL SELECT 'foreign key ' || conname FROM t JOIN pg_constraint ON conrelid = t.oid
        WHERE contype = 'f' AND NOT has_any_column_privilege(confrelid, 'REFERENCES')
    UNION ALL SELECT 'tablespace ' || spcname FROM t JOIN pg_tablespace s ON s.oid = reltablespace
        WHERE NOT has_tablespace_privilege(s.oid, 'CREATE')
    UNION ALL SELECT 'owner ' || relowner::regrole FROM t
        WHERE relowner <> current_user::regrole AND NOT has_schema_privilege(relowner, relnamespace, 'CREATE')
        AND NOT (SELECT rolsuper FROM pg_roles WHERE rolname = current_user)) kept
"""
"""What a user without further rights cannot make for another table."""


_NARROW: Final = """
WITH d AS (SELECT * FROM pg_depend JOIN pg_attribute a ON attrelid = refobjid AND attnum = refobjsubid
    LEFT JOIN pg_attrdef e ON classid = 'pg_attrdef'::regclass AND e.oid = objid
    WHERE refclassid = 'pg_class'::regclass AND refobjid = to_regclass(%s) AND attname = ANY (%s::text[]))
SELECT string_agg(DISTINCT coalesce((SELECT nullif(ev_class, refobjid)::regclass::text FROM pg_rewrite r
    WHERE classid = 'pg_rewrite'::regclass AND r.oid = objid), pg_describe_object(classid, objid, objsubid)), ', ')
FROM d WHERE classid IN ('pg_rewrite'::regclass, 'pg_trigger'::regclass, 'pg_policy'::regclass, 'pg_proc'::regclass,
    'pg_publication_rel'::regclass) OR adnum <> attnum OR (classid = 'pg_class'::regclass AND objid = refobjid)
"""
"""What PostgreSQL alters no column for: it would not know what the others meant with another type."""
_BOUND: Final = """
SELECT EXISTS (SELECT FROM pg_constraint
        WHERE confrelid = to_regclass(%(rows)s) AND contype = 'f' AND confdeltype <> 'a')
    OR EXISTS (SELECT FROM pg_attribute WHERE attrelid = to_regclass(%(rows)s) AND attnum > 0 AND NOT attisdropped
        AND attgenerated = '' AND attname <> ALL (%(ours)s::text[]))
    OR EXISTS (SELECT FROM pg_trigger WHERE tgrelid = to_regclass(%(rows)s) AND NOT tgisinternal AND tgenabled <> 'D')
    OR EXISTS (SELECT FROM pg_rewrite WHERE ev_class = to_regclass(%(rows)s) AND ev_enabled <> 'D')
"""
_NO_TABLE: Final = """
SELECT CASE relkind WHEN 'v' THEN 'view' WHEN 'm' THEN 'materialized view' WHEN 'f' THEN 'foreign table' ELSE 'sequence'
END FROM pg_class WHERE oid = to_regclass(%s) AND relkind NOT IN ('r', 'p')
"""
_UNLOGGED: Final = """
SELECT at::regclass::text FROM unnest(%s::text[]) WITH ORDINALITY AS asked (place, number), to_regclass(place) AS at
JOIN pg_class ON oid = at WHERE relpersistence = 'u' ORDER BY number
"""


def lost(table: TargetTable, copy: Copy) -> list[str]:
    """Return the columns that a live copy had and has no more."""
    return lost_columns(table, _wanted(table), copy.numbers, copy.mark)


def refuse_altered(cur: Cursor, table: TargetTable, copy: Copy, there_as: Tables) -> None:
    """Raise OperatorError for a copy that lost its key or columns, is unlogged, has hidden rows, or is kept narrow."""
    mark = None if copy.due or copy.relation is None else copy.mark  # of one that was restored it is of another table
    there = columns_of(cur, sql.Identifier(table.schema, table.copy_name))
    _refuse_others(cur, table, copy.numbers, mark, there_as)
    tables.changes(cur, there_as)  # raises for what no ALTER TABLE can do
    refuse_lost(table, _wanted(table), copy.numbers, mark, f"PostgreSQL table {table.schema}.{table.copy_name}")
    cur.execute(_NO_TABLE, (place := there_as.rows.as_string(cur),))
    for (kind,) in cur.fetchall():
        raise OperatorError(
            f"PostgreSQL {place} is a {kind}: another hand has put it in the place of the copy",
            hint="give it another name, and the job makes the table and fills it from its topic; or "
            + other_target(table),
        )
    if not tables.has_key(cur, there_as):
        raise OperatorError(
            f"PostgreSQL table {table.schema}.{table.copy_name} has no primary key ({', '.join(table.key)}) any more: "
            "another hand has dropped it, made it deferrable, or given it other columns",
            hint=rebuilt(table),
        )
    _refuse_unlogged(cur, table, there_as)
    user = hidden_from(cur, place)
    if user is not None:
        raise OperatorError(
            f"PostgreSQL table {table.schema}.{table.copy_name}: row security can hide rows of it from the job’s user "
            f"{user}: what is deleted at the source would stay there, and nothing would say so",
            hint=f"a policy ON {place} TO {user} USING (true) WITH CHECK (true), where nobody else works as that user, "
            f"or BYPASSRLS; if rows were hidden before this was told, also {rebuild(table.qualified)}",
        )
    wanted = {of.name: column_type(table, of) for of in table.columns}
    widened = [name for name, kind in wanted.items() if not _fits(there.get(name), kind)]
    cur.execute(_NARROW, (place, widened))
    ((kept,),) = cur.fetchall()
    if kept:
        raise OperatorError(
            f"{table.qualified}: what others have made of columns of its copy keeps them from being widened: {kept}",
            hint="let the job start once without it, then make it again (pg_get_viewdef, pg_get_triggerdef and \\d "
            "print what it is); or " + other_target(table),
        )


def _refuse_unlogged(cur: Cursor, table: TargetTable, of: Tables) -> None:
    """Raise OperatorError for a table that a crash would empty, also one of what waits, or what was deleted."""
    places = [name.as_string(cur) for name in (of.rows, of.ours("waiting"), of.ours("gone"))]
    cur.execute(_UNLOGGED, (places,))
    unlogged = [name for (name,) in cur.fetchall()]
    if unlogged:
        steps = "; ".join(f"ALTER TABLE {name} SET LOGGED" for name in unlogged)
        raise OperatorError(
            f"PostgreSQL table {unlogged[0]} is unlogged: a crash of the server would empty it, and nothing would say "
            "so",
            hint=f"{steps}; if the server has crashed since it is unlogged, also {rebuild(table.qualified)}",
        )


def _refuse_others(cur: Cursor, table: TargetTable, there: Numbers, mark: Mark | None, of: Tables) -> None:
    """Raise OperatorError where another hand has made a column that the source has by now."""
    for column in come_columns(table, there, mark):
        older = sql.SQL("SELECT EXISTS (SELECT FROM {} WHERE {} IS NOT NULL AND {} < {})")
        named = sql.Identifier(column.name), sql.Identifier(POSITION)
        cur.execute(older.format(of.own_rows, *named, sql.Literal(column.since)))
        ((found,),) = cur.fetchall()
        if found:
            raise of_another_hand(table, column.name, f"PostgreSQL table {table.schema}.{table.copy_name}")


def may_move(cur: Cursor, of: Tables) -> bool:
    """Whether a row can be taken out and written again, and nothing else changes by that.

    A foreign key may take other rows with it, a column of another's has a value that no event has, and a trigger or a
    rule would be told of a delete that nobody has made.
    """
    cur.execute(_BOUND, {"rows": of.rows.as_string(cur), "ours": _wanted(of.table)})
    ((bound,),) = cur.fetchall()
    return not (bound or of.table.history)


def refuse_dependents(cur: Cursor, of: Tables) -> None:
    """Raise OperatorError for what would stay with the replaced copy, and cannot be given another from here."""
    name = of.table.qualified
    views = _views(cur, of)
    if views:
        msg = f"{name}: views stay with the table that a rebuild replaces: {', '.join(views)}"
        raise OperatorError(msg, hint=other_target(of.table))
    again = "behind the rebuild, make again what has to be taken off for it"
    held, kept = _asked(cur, _HELD, of), _asked(cur, _WITHOUT_RIGHT, of)
    if held:
        msg = f"{name}: what others have made of the table stays with the one that a rebuild replaces: {held}"
        raise OperatorError(msg, hint=f"{again}; or {other_target(of.table)}")
    if kept:
        msg = f"{name}: a rebuild replaces the table, and this user may not hand on: {kept}"
        raise OperatorError(msg, hint=f"grant this user what it needs for that, or take it off; {again}")


def refuse_to_drop(cur: Cursor, of: Tables) -> None:
    """Raise OperatorError for what keeps the previous copy, as what an earlier release left with it."""
    held = _asked(cur, _HELD, of)
    if held:
        msg = f"{of.table.qualified}: its previous copy cannot be dropped for {held}"
        raise OperatorError(
            msg, hint="make them again over the table as it is now: as they are, they show rows of an earlier time"
        )


def _asked(cur: Cursor, query: str, of: Tables) -> str | None:
    cur.execute(query, (of.rows.as_string(cur),))
    ((found,),) = cur.fetchall()
    return str(found) if found else None


def _fits(there: str | None, wanted: str) -> bool:
    return there in (None, wanted) or holds(str(there), wanted)


def _wanted(table: TargetTable) -> list[str]:
    return [*(column.name for column in table.columns), POSITION]


def _views(cur: Cursor, of: Tables) -> list[str]:
    """Return the views of a copy."""
    cur.execute(
        "SELECT DISTINCT v.oid::regclass::text FROM pg_depend d JOIN pg_rewrite r ON r.oid = d.objid"
        " JOIN pg_class v ON v.oid = r.ev_class WHERE d.refobjid = to_regclass(%s)"
        " AND d.classid = 'pg_rewrite'::regclass AND v.oid <> d.refobjid ORDER BY 1",
        (of.rows.as_string(cur),),
    )
    return [name for (name,) in cur.fetchall()]
