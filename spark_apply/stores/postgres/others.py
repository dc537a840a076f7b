"""Looks at what others have done to a copy: columns that they took away, views that they made."""

from __future__ import annotations

from psycopg2 import sql

from cdc.model.errors import OperatorError
from spark_apply.events.typed import POSITION
from spark_apply.model.lost_columns import lost_columns, refuse_lost
from spark_apply.model.target_table import TargetTable, other_target
from spark_apply.stores.postgres import tables
from spark_apply.stores.postgres.copies import Copy
from spark_apply.stores.postgres.keys import column_type
from spark_apply.stores.postgres.tables import Cursor, Tables, columns_of
from spark_apply.stores.postgres.types import holds


def lost(cur: Cursor, table: TargetTable, copy: Copy) -> list[str]:
    """Return the columns that a copy had and has no more."""
    there = columns_of(cur, sql.Identifier(table.schema, table.copy_name))
    return lost_columns(table, _wanted(table), there, copy.mark)


def refuse_altered(cur: Cursor, table: TargetTable, copy: Copy, there_as: Tables) -> None:
    """Raise OperatorError for a copy that has lost its key or columns, or whose columns views keep from widening."""
    mark = None if copy.due else copy.mark
    there = columns_of(cur, sql.Identifier(table.schema, table.copy_name))
    tables.changes(cur, there_as)  # raises for what no ALTER TABLE can do
    refuse_lost(table, _wanted(table), there, mark, f"PostgreSQL table {table.schema}.{table.copy_name}")
    if not tables.has_key(cur, there_as):
        raise OperatorError(
            f"PostgreSQL table {table.schema}.{table.copy_name} has no primary key ({', '.join(table.key)}) any more: "
            "another hand has dropped it, made it deferrable, or given it other columns",
            hint=f"cdc rebuild APPLY.yaml --table {table.qualified}  # from the topics, beside it, then swapped in",
        )
    wanted = {of.name: column_type(table, of) for of in table.columns}
    widened = [name for name, kind in wanted.items() if not _fits(there.get(name), kind)]
    views = _views(cur, there_as, widened) if widened else []
    if views:
        raise OperatorError(
            f"{table.qualified}: views keep columns of its copy from being widened: {', '.join(views)}",
            hint="let the job start once without them, then make them again (pg_get_viewdef prints what they are); or "
            + other_target(table),
        )


def refuse_dependents(cur: Cursor, of: Tables) -> None:
    """Raise OperatorError for what would stay with the replaced copy, and cannot be given another from here."""
    name = of.table.qualified
    views = _views(cur, of)
    if views:
        msg = f"{name}: views stay with the table that a rebuild replaces: {', '.join(views)}"
        raise OperatorError(msg, hint=other_target(of.table))
    again = "behind the rebuild, make again what has to be taken off for it"
    cur.execute(
        "SELECT string_agg(conrelid::regclass || ' (' || conname || ')', ', ') FROM pg_constraint"
        " WHERE contype = 'f' AND confrelid = to_regclass(%s) AND conrelid <> confrelid",
        (of.rows.as_string(cur),),
    )
    ((keys,),) = cur.fetchall()
    if keys:
        msg = f"{name}: foreign keys stay with the table that a rebuild replaces: {keys}"
        raise OperatorError(
            msg, hint=f"pg_get_constraintdef prints what they are: {again}; or {other_target(of.table)}"
        )
    cur.execute(
        "SELECT string_agg(pubname, ', ') FROM pg_publication_rel JOIN pg_publication p ON p.oid = prpubid"
        " WHERE prrelid = to_regclass(%s) AND NOT pg_has_role(pubowner, 'USAGE')",
        (of.rows.as_string(cur),),
    )
    ((foreign,),) = cur.fetchall()
    if foreign:
        msg = (
            f"{name}: a rebuild replaces the table, and this user may not give its place in publications on: {foreign}"
        )
        raise OperatorError(msg, hint=f"its owner takes the table out of it; {again}")


def _fits(there: str | None, wanted: str) -> bool:
    return there in (None, wanted) or holds(str(there), wanted)


def _wanted(table: TargetTable) -> list[str]:
    return [*(column.name for column in table.columns), POSITION]


def _views(cur: Cursor, of: Tables, columns: list[str] | None = None) -> list[str]:
    """Return the views of a copy, or of columns of it."""
    cur.execute(
        "SELECT DISTINCT v.oid::regclass::text FROM pg_depend d JOIN pg_rewrite r ON r.oid = d.objid"
        " JOIN pg_class v ON v.oid = r.ev_class LEFT JOIN pg_attribute a ON a.attrelid = d.refobjid"
        " AND a.attnum = d.refobjsubid WHERE d.refobjid = to_regclass(%s) AND d.classid = 'pg_rewrite'::regclass"
        " AND v.oid <> d.refobjid AND (%s::text[] IS NULL OR a.attname = ANY (%s::text[])) ORDER BY 1",
        (of.rows.as_string(cur), columns, columns),
    )
    return [name for (name,) in cur.fetchall()]
