"""Folds what a staging table holds into a copy in PostgreSQL. On a given cursor; nothing commits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from psycopg2 import sql

from spark_apply.events.typed import OFFSET, OP, PARTITION, POSITION
from spark_apply.model.store import EVERYTHING, Applied, Batch, Offsets
from spark_apply.stores.postgres.copy_text import CopyText
from spark_apply.stores.postgres.history import fold_statement
from spark_apply.stores.postgres.keys import Stage, newest_events, same_text
from spark_apply.stores.postgres.tables import COPY_BYTES, Cursor, Tables


@dataclass(frozen=True, slots=True)
class CopyState:
    """What a copy has taken in already."""

    ends: Offsets
    late: str
    """Events before this position are late."""
    reload: bool
    """Whether its rows are replaced by what is folded in next."""


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
    removed = remove_others(cur, tables, limit) if had.reload else 0
    shown = take(cur, tables, limit, came=batch is not None, distinct=bool(moved), replacing=had.reload)
    duplicate, stale = known
    deleted = None if shown.deleted is None else shown.deleted + removed
    return Applied(shown.written, deleted, None if shown.stale is None else stale + shown.stale, duplicate)


def remove_others(cur: Cursor, tables: Tables, limit: str) -> int:
    """Delete the rows that the stage, which holds the whole topic up to `limit`, does not have; return their number.

    The others stay in their places and are written over, since more may hang on them than we know: columns of others,
    and rows of other tables that refer to them, which ``ON DELETE CASCADE`` would take along.
    """
    if limit == "" or tables.table.history:
        return 0
    cur.execute(
        sql.SQL("DELETE FROM {} t WHERE NOT EXISTS (SELECT FROM ({}) n WHERE n.{} <> 'd' AND {})").format(
            tables.own_rows,
            newest_of(tables, limit, distinct=True),
            sql.Identifier(OP),
            tables.same_key("t", "n"),
        )
    )
    removed = cur.rowcount
    cur.execute(sql.SQL("TRUNCATE {}").format(tables.ours("gone")))
    return removed


def take(
    cur: Cursor, tables: Tables, limit: str, *, came: bool, distinct: bool, replacing: bool, moving: bool = False
) -> Applied:
    """Fold in what the stage holds: show what lies before `limit`, and keep the rest waiting.

    `came`: there may be events behind the limit; `distinct`: there may be several events of a key before it;
    `replacing`, `moving`: see `write`.
    """
    if came and limit != EVERYTHING:
        _hold_back(cur, tables, limit)
    if limit == "":
        return Applied(0, 0, 0)
    if tables.table.history:
        cur.execute(fold_statement(tables.table, tables.rows, tables.own_rows, tables.stage, limit))
        return Applied(cur.rowcount, 0)
    newest = newest_of(tables, limit, distinct=distinct)
    return Applied(*_show(cur, tables, newest, replacing=replacing, limit=limit, moving=moving))


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
            cur.execute(sql.SQL("TRUNCATE {}").format(waiting))
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


def _show(
    cur: Cursor, tables: Tables, newest: sql.Composed, *, replacing: bool, limit: str, moving: bool
) -> tuple[int, int, int]:
    """Fold `newest` in, which ends at `limit`; return rows written, rows deleted, and events that the copy had."""
    table, position, op, gone = tables.table, sql.Identifier(POSITION), sql.Identifier(OP), tables.ours("gone")
    cur.execute(
        sql.SQL("SELECT count(*), count(*) FILTER (WHERE {} = 'd') FROM ({}) n").format(op, newest),
    )
    ((events, deletes),) = cur.fetchall()
    deleted = 0
    if deletes:
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
    written = write(cur, tables, newest, limit, replacing=replacing, moving=moving)
    if written + deletes < events or (deletes and not replacing and deleted < deletes):
        _require_all(cur, tables, newest, _still(tables, limit))
    return written, deleted, events - deletes - written


def write(cur: Cursor, tables: Tables, newest: sql.Composed, limit: str, *, replacing: bool, moving: bool) -> int:
    """Write the rows of `newest` that the copy has not in a newer version; with `replacing` all. Return their number.

    With `moving`, the rows of their keys are taken out first, by the same statement, so that these may exchange values
    that are unique. A row whose value is another's even so is left out, and not told.
    """
    names = [*(column.name for column in tables.table.columns), POSITION]
    taken_out = (
        "WITH moved AS (DELETE FROM {own} t USING ({newest}) n WHERE n.{op} <> 'd' AND {same}"
        " AND ({all} OR t.{p} IS NULL OR t.{p} < n.{p}) RETURNING 1) "
    )
    shown = "INSERT INTO {rows} AS t ({c}) SELECT {c} FROM ({newest}) n WHERE {op} <> 'd' AND {still}"
    first = " AND (SELECT count(*) FROM moved) >= 0 ON CONFLICT DO NOTHING"
    over = " ON CONFLICT ({key}) DO UPDATE SET {update} WHERE {all} OR t.{p} IS NULL OR t.{p} < excluded.{p}"
    cur.execute(
        sql.SQL(taken_out + shown + first if moving else shown + over).format(
            rows=tables.rows,
            own=tables.own_rows,
            all=sql.Literal(replacing),
            newest=newest,
            c=tables.columns,
            op=sql.Identifier(OP),
            p=sql.Identifier(POSITION),
            still=_still(tables, limit),
            same=tables.same_key("t", "n"),
            key=tables.key,
            update=sql.SQL(", ").join(sql.SQL("{c} = excluded.{c}").format(c=sql.Identifier(name)) for name in names),
        )
    )
    return cur.rowcount


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


def _require_all(cur: Cursor, tables: Tables, newest: sql.Composed, still: sql.Composable) -> None:
    """Have the server raise an error of the row's if one is not as its newest event says, which no statement told.

    A trigger that returns NULL, a rule or a policy of somebody else's leaves rows out in silence. Rows that were not
    written because the copy has something newer are as they must be.
    """
    position, op = sql.Identifier(POSITION), sql.Identifier(OP)
    cur.execute(
        sql.SQL(
            "SELECT EXISTS (SELECT FROM ({n}) n WHERE {op} <> 'd' AND {still} AND NOT EXISTS"
            " (SELECT FROM {t} t WHERE {key} AND t.{p} >= n.{p})) OR EXISTS"
            " (SELECT FROM ({n}) n JOIN {t} t ON {key} AND {text}"
            " WHERE n.{op} = 'd' AND (t.{p} IS NULL OR t.{p} < n.{p}))"
        ).format(
            n=newest,
            t=tables.own_rows,
            op=op,
            p=position,
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
"""It is an error of the row, for which the batch is searched: see `spark_apply.stores.postgres.careful`."""
