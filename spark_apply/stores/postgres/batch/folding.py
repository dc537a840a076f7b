"""Folds what a staging table holds into a copy in PostgreSQL. On a given cursor; nothing commits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from psycopg2 import sql

from spark_apply.events.typed import OFFSET, OP, PARTITION, POSITION
from spark_apply.model.store import EVERYTHING, Applied, Batch, Offsets
from spark_apply.stores.postgres.batch.copy_text import CopyText
from spark_apply.stores.postgres.batch.history import fold_statement
from spark_apply.stores.postgres.copies.tables import COPY_BYTES, Tables, empty
from spark_apply.stores.postgres.session.server import Cursor
from spark_apply.stores.postgres.values.keys import Stage, newest_events, same_text


@dataclass(frozen=True, slots=True)
class CopyState:
    """What a copy has taken in already."""

    ends: Offsets
    late: str
    """Events before this position are late."""
    reload: bool
    """Whether its rows are replaced by what is folded in next."""


@dataclass(frozen=True, slots=True)
class How:
    """How rows are written."""

    replacing: bool
    """Whether all are, also where the copy has a newer version."""
    removing: bool = False
    """Whether rows that the events, which are a whole topic's, do not have are deleted by the same statement: a foreign
    key to the table itself is looked at behind both."""
    moving: bool = False
    """Whether the rows of their keys are taken out first, by the same statement, so that these may exchange values that
    are unique. A row whose value is another's even so is left out, and not told."""


def fold(cur: Cursor, tables: Tables, batch: Batch | None, limit: str, had: CopyState) -> Applied:
    """Take in `batch` and show what lies before `limit`; a history also takes late events, and each event once."""
    known = (0, 0)
    if batch is not None:
        copy = sql.SQL("COPY {} ({}) FROM STDIN").format(tables.stage, tables.event)
        text = CopyText(batch)
        cur.copy_expert(copy, text, COPY_BYTES)
        if text.refused:
            batch.refuse(text.refused)
        known = drop_known(cur, tables, had)
    moved = move_waiting(cur, tables, limit)
    if batch is None and not moved and not had.reload:
        return Applied(0, 0, 0, 0)
    if had.reload:
        forget_deletes(cur, tables, limit)
    how = How(replacing=had.reload, removing=had.reload)
    shown = take(cur, tables, limit, came=batch is not None, distinct=bool(moved), how=how)
    duplicate, stale = known
    return Applied(shown.written, shown.deleted, None if shown.stale is None else stale + shown.stale, duplicate)


def forget_deletes(cur: Cursor, tables: Tables, limit: str) -> None:
    """Forget the deletes of a topic that is read again, where its events are shown."""
    if limit != "" and not tables.table.history:
        empty(cur, tables.ours("gone"))


def remove_others(cur: Cursor, tables: Tables, limit: str) -> int:
    """Delete the rows that the stage, which holds the whole topic up to `limit`, does not have; return their number.

    The others stay in their places and are written over, since more may hang on them than we know: columns of others,
    and rows of other tables that refer to them, which ``ON DELETE CASCADE`` would take along.
    """
    if limit == "" or tables.table.history:
        return 0
    others = _others(tables, newest_of(tables, limit, distinct=True))
    cur.execute(sql.SQL("DELETE FROM {}").format(others))
    removed = cur.rowcount
    if _count(cur, others):
        cur.execute(_LEFT_OUT)
    return removed


def _others(tables: Tables, newest: sql.Composed) -> sql.Composed:
    """Return the rows that `newest`, which is of a whole topic, does not have: a table and a condition."""
    return sql.SQL("{} t WHERE NOT EXISTS (SELECT FROM ({}) n WHERE n.{} <> 'd' AND {})").format(
        tables.own_rows, newest, sql.Identifier(OP), tables.same_key("t", "n")
    )


def _count(cur: Cursor, rows: sql.Composed) -> int:
    cur.execute(sql.SQL("SELECT count(*) FROM {}").format(rows))
    ((found,),) = cur.fetchall()
    return int(found)


def _has_rules(cur: Cursor, tables: Tables) -> bool:
    cur.execute("SELECT FROM pg_class WHERE oid = to_regclass(%s) AND relhasrules", (tables.rows.as_string(cur),))
    return cur.fetchone() is not None


def take(cur: Cursor, tables: Tables, limit: str, *, came: bool, distinct: bool, how: How) -> Applied:
    """Fold in what the stage holds: show what lies before `limit`, and keep the rest waiting.

    `came`: there may be events behind the limit; `distinct`: there may be several events of a key before it.
    """
    if came and limit != EVERYTHING:
        _hold_back(cur, tables, limit)
    if limit == "":
        return Applied(0, 0, 0)
    if tables.table.history:
        cur.execute(fold_statement(tables.table, tables.rows, tables.own_rows, tables.stage, limit))
        return Applied(cur.rowcount, 0)
    newest = newest_of(tables, limit, distinct=distinct)
    return Applied(*_show(cur, tables, newest, limit, how))


def drop_known(cur: Cursor, tables: Tables, had: CopyState) -> tuple[int, int]:
    """Delete duplicates and late events from the stage; return how many of each."""
    whens = [
        sql.SQL("WHEN {} THEN {} < {}").format(sql.Literal(number), sql.Identifier(OFFSET), sql.Literal(end))
        for number, end in had.ends.items()
    ]
    handed = sql.SQL("CASE {} {} ELSE false END").format(sql.Identifier(PARTITION), sql.SQL(" ").join(whens))
    handed = handed if whens else sql.SQL("false").format()
    late = sql.SQL("{} < {}").format(sql.Identifier(POSITION), sql.Literal(had.late))
    cur.execute(
        sql.SQL("SELECT count(*) FILTER (WHERE {h}), count(*) FILTER (WHERE NOT ({h}) AND {l}) FROM {s}").format(
            h=handed, l=late, s=tables.stage
        )
    )
    ((duplicates, stale),) = cur.fetchall()
    if duplicates or stale:
        cur.execute(sql.SQL("DELETE FROM {} WHERE {} OR {}").format(tables.stage, handed, late))
    return duplicates, stale


def move_waiting(cur: Cursor, tables: Tables, limit: str) -> int:
    """Move the waiting events before this limit to the stage; return their number."""
    waiting, position = tables.ours("waiting"), sql.Identifier(POSITION)
    if limit == "":
        return 0
    cur.execute(
        sql.SQL("INSERT INTO {} ({n}) SELECT {n} FROM {} WHERE {} < {}").format(
            tables.stage, waiting, position, sql.Literal(limit), n=tables.event
        )
    )
    moved = cur.rowcount
    if moved:
        cur.execute(
            sql.SQL("SELECT EXISTS (SELECT FROM {} WHERE {} >= {})").format(waiting, position, sql.Literal(limit))
        )
        ((more,),) = cur.fetchall()
        if more:
            cur.execute(sql.SQL("DELETE FROM {} WHERE {} < {}").format(waiting, position, sql.Literal(limit)))
        else:
            empty(cur, waiting)
    return moved


def _hold_back(cur: Cursor, tables: Tables, limit: str) -> None:
    """Copy events behind the limit to the waiting ones; those of a history may wait there already."""
    cur.execute(
        sql.SQL("INSERT INTO {} ({n}) SELECT {n} FROM {} WHERE {} >= {} ON CONFLICT DO NOTHING").format(
            tables.ours("waiting"), tables.stage, sql.Identifier(POSITION), sql.Literal(limit), n=tables.event
        )
    )


def newest_of(tables: Tables, limit: str, *, distinct: bool) -> sql.Composed:
    """Return the query of what the stage has of each key before `limit`."""
    return newest_events(Stage(tables.table, tables.stage, tables.columns, tables.key), limit, distinct=distinct)


def _show(cur: Cursor, tables: Tables, newest: sql.Composed, limit: str, how: How) -> tuple[int, int, int]:
    """Fold `newest` in, which ends at `limit`; return rows written, rows deleted, and events that the copy had."""
    table, position, op, gone = tables.table, sql.Identifier(POSITION), sql.Identifier(OP), tables.ours("gone")
    cur.execute(
        sql.SQL("SELECT count(*), count(*) FILTER (WHERE {} = 'd') FROM ({}) n").format(op, newest),
    )
    ((events, deletes),) = cur.fetchall()
    deleted = removed = 0
    if how.removing and _has_rules(cur, tables):  # which PostgreSQL takes in no WITH
        removed, how = remove_others(cur, tables, limit), replace(how, removing=False)
    elif how.removing:
        removed = _count(cur, _others(tables, newest))
        how = replace(how, removing=removed > 0)
    if deletes and not how.removing:
        cur.execute(
            sql.SQL(
                "DELETE FROM {} t USING ({}) n WHERE n.{op} = 'd' AND {} AND {} AND (t.{p} IS NULL OR t.{p} < n.{p})"
            ).format(tables.own_rows, newest, tables.same_key("t", "n"), same_text(table, "t", "n"), op=op, p=position)
        )
        deleted = cur.rowcount
    forget = limit != EVERYTHING
    if deletes and not forget:
        cur.execute(
            sql.SQL(
                "INSERT INTO {} AS g SELECT DISTINCT ON ({k}) {k}, {p} FROM ({}) n WHERE {op} = 'd'"
                " ORDER BY {k}, {p} DESC"
                " ON CONFLICT ({k}) DO UPDATE SET ({k}, {p}) = ROW (excluded.*) WHERE g.{p} < excluded.{p}"
            ).format(gone, newest, k=tables.key, p=position, op=op)
        )
    written = write(cur, tables, newest, limit, how)
    if how.removing and _count(cur, _others(tables, newest)):
        cur.execute(_LEFT_OUT)
    if written + deletes < events or (deletes and not how.replacing and deleted < deletes):
        _require_all(cur, tables, newest, _still(tables, limit), replacing=how.replacing)
    return written, deleted + removed, events - deletes - written


def write(cur: Cursor, tables: Tables, newest: sql.Composed, limit: str, how: How) -> int:
    """Write the rows of `newest` that the copy has not in a newer version. Return their number."""
    first = list[str]()
    shown = "INSERT INTO {rows} AS t ({c}) SELECT {c} FROM ({newest}) n WHERE {op} <> 'd' AND {still}"
    if how.removing:
        first.append("gone AS (DELETE FROM {others} RETURNING 1)")
        shown += " AND (SELECT count(*) FROM gone) >= 0"
    if how.moving:
        first.append(
            "moved AS (DELETE FROM {own} t USING ({newest}) n WHERE n.{op} <> 'd' AND {same}"
            " AND ({all} OR t.{p} IS NULL OR t.{p} < n.{p}) RETURNING 1)"
        )
        shown += " AND (SELECT count(*) FROM moved) >= 0 ON CONFLICT DO NOTHING"
    else:
        shown += " ON CONFLICT ({key}) DO UPDATE SET {update} WHERE {all} OR t.{p} IS NULL OR t.{p} < excluded.{p}"
    cur.execute(
        sql.SQL(f"WITH {', '.join(first)} {shown}" if first else shown).format(
            rows=tables.rows,
            own=tables.own_rows,
            others=_others(tables, newest),
            all=sql.Literal(how.replacing),
            newest=newest,
            c=tables.columns,
            op=sql.Identifier(OP),
            p=sql.Identifier(POSITION),
            still=_still(tables, limit),
            same=tables.same_key("t", "n"),
            key=tables.key,
            update=sql.SQL(", ").join(
                sql.SQL("{c} = excluded.{c}").format(c=sql.Identifier(name)) for name in _names(tables)
            ),
        )
    )
    return cur.rowcount


def _names(tables: Tables) -> list[str]:
    return [*(column.name for column in tables.table.columns), POSITION]


def _still(tables: Tables, limit: str) -> sql.Composable:
    """Return the condition that no newer delete of an event's key is remembered."""
    if limit != EVERYTHING:
        return sql.SQL("true")
    return sql.SQL("NOT EXISTS (SELECT FROM {} g WHERE {} AND {} AND g.{p} >= n.{p})").format(
        tables.ours("gone"),
        tables.same_key("g", "n"),
        same_text(tables.table, "g", "n"),
        p=sql.Identifier(POSITION),
    )


def _require_all(cur: Cursor, tables: Tables, newest: sql.Composed, still: sql.Composable, *, replacing: bool) -> None:
    """Have the server raise an error of the row's if one is not as its newest event says, which no statement told.

    A trigger that returns NULL, a rule or a policy of somebody else's leaves rows out in silence. Rows that were not
    written because the copy has something newer are as they must be. With `replacing` there are none, and only those
    that say the same already, which a trigger may leave as they are (``suppress_redundant_updates_trigger``).
    """
    position, op = sql.Identifier(POSITION), sql.Identifier(OP)

    def said(row: str) -> sql.Composed:
        return sql.SQL(", ").join(sql.Identifier(row, name) for name in _names(tables))

    as_new = sql.SQL("ROW ({t})::text = ROW ({n})::text" if replacing else "t.{p} >= n.{p}")
    cur.execute(
        sql.SQL(
            "SELECT EXISTS (SELECT FROM ({n}) n WHERE {op} <> 'd' AND {still} AND NOT EXISTS"
            " (SELECT FROM {t} t WHERE {key} AND {as_new})) OR EXISTS"
            " (SELECT FROM ({n}) n JOIN {t} t ON {key} AND {text}"
            " WHERE n.{op} = 'd' AND (t.{p} IS NULL OR t.{p} < n.{p}))"
        ).format(
            n=newest,
            t=tables.own_rows,
            op=op,
            p=position,
            as_new=as_new.format(p=position, t=said("t"), n=said("n")),
            still=still,
            key=tables.same_key("t", "n"),
            text=same_text(tables.table, "t", "n"),
        )
    )
    ((left_out,),) = cur.fetchall()
    if left_out:
        cur.execute(_LEFT_OUT)


_LEFT_OUT: Final = (
    "DO $$BEGIN RAISE EXCEPTION 'a trigger, a rule or a policy leaves a row out' USING ERRCODE = '27000'; END$$"
)
"""It is an error of the row, for which the batch is searched: see `spark_apply.stores.postgres.batch.row_by_row`."""
