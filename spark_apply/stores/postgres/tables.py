"""Defines the tables of one copy in PostgreSQL, and folds a batch into them. On a given cursor; nothing commits."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

import psycopg2.extensions
from psycopg2 import sql

from cdc.model.errors import ConfigError, OperatorError
from spark_apply.events.history import AT, DERIVED
from spark_apply.events.typed import OFFSET, OP, PARTITION, POSITION
from spark_apply.model.store import EVERYTHING, Applied, Batch, Offsets
from spark_apply.model.target_table import TargetTable, other_target
from spark_apply.stores.postgres.copy_text import CopyText
from spark_apply.stores.postgres.history import TYPES, fold_statement
from spark_apply.stores.postgres.keeping import store_like
from spark_apply.stores.postgres.keys import Stage, column_type, newest_events, same_text
from spark_apply.stores.postgres.types import holds, widens

OURS = "cdc_apply"
"""The schema of the tables that are not for readers."""
MAX_NAME_BYTES = 63
COPY_BYTES = 1 << 20
_FILLFACTOR = 85
"""Leaves room in each page for newer versions of its rows, which then need no new index entries (HOT)."""

_PLACE = sql.SQL("{} integer, {} bigint").format(sql.Identifier(PARTITION), sql.Identifier(OFFSET))
"""The columns that say where the record of an event lies."""

Cursor = psycopg2.extensions.cursor


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables of the copy `number` of `table`; `place` is schema and name of the copy."""

    table: TargetTable
    number: int
    place: tuple[str, str]

    @property
    def rows(self) -> sql.Identifier:
        return sql.Identifier(*self.place)

    def ours(self, kind: str) -> sql.Identifier:
        """Return ``waiting``, ``copy`` or ``gone``; a history has no ``gone``, because its deletes are rows."""
        return sql.Identifier(OURS, f"{kind}_{self.number}")

    @property
    def stage(self) -> sql.Identifier:
        return sql.Identifier("pg_temp", f"cdc_stage_{self.number}")

    @property
    def key(self) -> sql.Composed:
        return _listed(self.table.key)

    @property
    def columns(self) -> sql.Composed:
        return _listed([*(column.name for column in self.table.columns), POSITION])

    @property
    def said(self) -> tuple[str, ...]:
        """Return the further columns of an event until it is folded in."""
        return (OP, AT) if self.table.history else (OP,)

    @property
    def event(self) -> sql.Composed:
        """Return all columns of an event, and the place of its record in the topic."""
        return sql.SQL("{}, {}").format(self.columns, _listed((*self.said, PARTITION, OFFSET)))

    def same_key(self, one: str, other: str) -> sql.Composed:
        pairs = [
            sql.SQL("{} = {}").format(sql.Identifier(one, name), sql.Identifier(other, name)) for name in self.table.key
        ]
        return sql.SQL(" AND ").join(pairs)


def create(cur: Cursor, tables: Tables, like: sql.Identifier | None) -> None:
    """Create an empty copy at ``cdc_apply.copy_<number>``, with the indexes and constraints of `like`, if given."""
    table = tables.table
    check_names(table)
    rows, events = tables.ours("copy"), sql.SQL(", ").join([*_fields(table), *_ours(tables.said), _PLACE])
    key = sql.SQL("{}, {}").format(tables.key, sql.Identifier(POSITION)) if table.history else tables.key
    if like is None:
        fields = [*_fields(table), *(_ours((*tables.said, *DERIVED)) if table.history else ())]
        shape = sql.SQL("{}, PRIMARY KEY ({})").format(sql.SQL(", ").join(fields), key)
    else:
        shape = sql.SQL("LIKE {} INCLUDING ALL").format(like)
    cur.execute(sql.SQL("CREATE TABLE {} ({}) WITH (fillfactor = {})").format(rows, shape, sql.Literal(_FILLFACTOR)))
    if like is not None:
        store_like(cur, rows, like)
        _give_key(cur, rows, (*table.key, POSITION) if table.history else table.key)
    cur.execute(sql.SQL("CREATE TABLE {} ({})").format(tables.ours("waiting"), events))
    if table.history:
        cur.execute(sql.SQL("CREATE UNIQUE INDEX ON {} ({})").format(tables.ours("waiting"), key))
        return
    cur.execute(
        sql.SQL("CREATE TABLE {} AS SELECT {}, {} FROM {} WITH NO DATA").format(
            tables.ours("gone"), tables.key, sql.Identifier(POSITION), tables.ours("waiting")
        )
    )
    cur.execute(sql.SQL("CREATE UNIQUE INDEX ON {} ({})").format(tables.ours("gone"), tables.key))


def _give_key(cur: Cursor, rows: sql.Identifier, wanted: tuple[str, ...]) -> None:
    """Give a copy the primary key that it needs: the table that it is like has another, or none any more."""
    cur.execute(
        "SELECT conname, condeferrable,"
        " ARRAY(SELECT attname::text FROM unnest(conkey) WITH ORDINALITY AS k (number, at)"
        " JOIN pg_attribute ON attrelid = conrelid AND attnum = k.number ORDER BY at)"
        " FROM pg_constraint WHERE conrelid = to_regclass(%s) AND contype = 'p'",
        (rows.as_string(cur),),
    )
    for name, deferrable, columns in cur.fetchall():
        if tuple(columns) == wanted and not deferrable:
            return
        steps = [sql.SQL("DROP CONSTRAINT {}").format(sql.Identifier(name))]
        steps += [
            sql.SQL("ALTER COLUMN {} DROP NOT NULL").format(sql.Identifier(column))
            for column in columns
            if column not in wanted
        ]
        cur.execute(sql.SQL("ALTER TABLE {} {}").format(rows, sql.SQL(", ").join(steps)))
    cur.execute(sql.SQL("ALTER TABLE {} ADD PRIMARY KEY ({})").format(rows, _listed(wanted)))


def has_key(cur: Cursor, tables: Tables) -> bool:
    """Whether an index makes the copy's key unique, as ``ON CONFLICT`` needs it."""
    wanted = (*tables.table.key, POSITION) if tables.table.history else tables.table.key
    cur.execute(
        "SELECT EXISTS (SELECT FROM pg_index WHERE indrelid = to_regclass(%s) AND indisunique AND indimmediate"
        " AND indisvalid AND indpred IS NULL AND indexprs IS NULL AND %s::text[] ="
        " ARRAY(SELECT attname::text FROM unnest(indkey::int2[]) WITH ORDINALITY AS k (number, at) JOIN pg_attribute"
        ' ON attrelid = indrelid AND attnum = k.number WHERE at <= indnkeyatts ORDER BY attname::text COLLATE "C"))',
        (tables.rows.as_string(cur), sorted(wanted, key=str.encode)),
    )
    ((found,),) = cur.fetchall()
    return bool(found)


def check_names(table: TargetTable) -> None:
    """Raise ConfigError for names that PostgreSQL would cut off."""
    for name in (table.schema, table.copy_name, *(column.name for column in table.columns)):
        if len(name.encode()) > MAX_NAME_BYTES:
            msg = f"{table.qualified}: the name “{name}” is longer than PostgreSQL's {MAX_NAME_BYTES} bytes"
            raise ConfigError(msg, hint="leave this table out of the store")


def drop(cur: Cursor, tables: Tables) -> None:
    """Drop all tables of a copy that is not live."""
    for kind in ("copy", "waiting", "gone"):
        cur.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(tables.ours(kind)))


def evolve(cur: Cursor, tables: Tables) -> None:
    """Add columns and widen types in ``copy`` and ``waiting``. Raises OperatorError for an impossible change."""
    for _, change in changes(cur, tables):
        for name in (tables.rows, tables.ours("waiting")):
            cur.execute(sql.SQL("ALTER TABLE {} {}").format(name, change))
    if PARTITION not in columns_of(cur, tables.ours("waiting")):  # made by an earlier release
        places = sql.SQL("ADD COLUMN {} integer, ADD COLUMN {} bigint")
        named = places.format(sql.Identifier(PARTITION), sql.Identifier(OFFSET))
        cur.execute(sql.SQL("ALTER TABLE {} {}").format(tables.ours("waiting"), named))


def changes(cur: Cursor, tables: Tables) -> list[tuple[str, sql.Composed]]:
    """Return the changes that `evolve` makes, in words and as a clause of ALTER TABLE; raises what it raises."""
    check_names(tables.table)
    there, found = columns_of(cur, tables.rows), []
    for column in tables.table.columns:
        wanted, has = column_type(tables.table, column), there.get(column.name)
        named, kind = sql.Identifier(column.name), sql.SQL(wanted)
        if has is None:
            found.append(
                (f"add column {column.name} {wanted}", sql.SQL("ADD COLUMN IF NOT EXISTS {} {}").format(named, kind))
            )
        elif has != wanted and widens(has, wanted):
            retype = sql.SQL("ALTER COLUMN {0} TYPE {1} USING {0}::{1}").format(named, kind)
            found.append((f"widen column {column.name} from {has} to {wanted}", retype))
        elif has != wanted and not holds(has, wanted):
            msg = f"PostgreSQL table {'.'.join(tables.place)}, column {column.name}: it is {has} and would be {wanted}"
            raise OperatorError(msg, hint=other_target(tables.table))
    return found


def columns_of(cur: Cursor, name: sql.Identifier) -> dict[str, str]:
    """Return the columns of a table and their types, as of ``format_type``; empty if it does not exist."""
    cur.execute(
        "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute"
        " WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped",
        (name.as_string(cur),),
    )
    return dict(cur.fetchall())


def make_stage(cur: Cursor, tables: Tables) -> None:
    """Create the session's staging table, replacing an older one."""
    cur.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(tables.stage))
    fields = [*_fields(tables.table), *_ours(tables.said), _PLACE]
    cur.execute(
        sql.SQL("CREATE TEMPORARY TABLE {} ({}) ON COMMIT DELETE ROWS").format(
            sql.Identifier(f"cdc_stage_{tables.number}"), sql.SQL(", ").join(fields)
        )
    )


def forget_topic(cur: Cursor, tables: Tables) -> None:
    """Delete the state about a topic that will be read from its beginning again.

    A history keeps it: its log may no longer have the waiting events.
    """
    if not tables.table.history:
        for kind in ("waiting", "gone"):
            cur.execute(sql.SQL("TRUNCATE {}").format(tables.ours(kind)))


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
    shown = take(cur, tables, limit, came=batch is not None, distinct=bool(moved), replacing=had.reload)
    duplicate, stale = known
    return Applied(shown.written, shown.deleted, None if shown.stale is None else stale + shown.stale, duplicate)


def take(
    cur: Cursor, tables: Tables, limit: str, *, came: bool, distinct: bool, replacing: bool, moving: bool = False
) -> Applied:
    """Fold in what the stage holds: show what lies before `limit`, and keep the rest waiting.

    `came`: there may be events behind the limit; `distinct`: there may be several events of a key before it;
    `replacing`: they take the place of all rows; `moving`: see `write`.
    """
    if came and limit != EVERYTHING:
        _hold_back(cur, tables, limit)
    if limit == "":
        return Applied(0, 0, 0)
    if tables.table.history:
        cur.execute(fold_statement(tables.table, tables.rows, tables.stage, limit))
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
    if replacing:
        cur.execute(sql.SQL("DELETE FROM {}").format(tables.rows))
        deleted = cur.rowcount
        cur.execute(sql.SQL("TRUNCATE {}").format(gone))
    elif deletes:
        cur.execute(
            sql.SQL(
                "DELETE FROM {} t USING ({}) n WHERE n.{op} = 'd' AND {} AND {} AND (t.{p} IS NULL OR t.{p} < n.{p})"
            ).format(tables.rows, newest, tables.same_key("t", "n"), same_text(table, "t", "n"), op=op, p=position)
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
    written = write(cur, tables, newest, limit, moving=moving)
    if written + deletes < events or (deletes and not replacing and deleted < deletes):
        _require_all(cur, tables, newest, _still(tables, limit))
    return written, max(deleted - written, 0) if replacing else deleted, events - deletes - written


def write(cur: Cursor, tables: Tables, newest: sql.Composed, limit: str, *, moving: bool) -> int:
    """Write the rows of `newest` that the copy has not in a newer version; return their number.

    With `moving`, the rows of their keys are taken out first, by the same statement, so that these may exchange values
    that are unique. A row whose value is another's even so is left out, and not told.
    """
    names = [*(column.name for column in tables.table.columns), POSITION]
    taken_out = (
        "WITH moved AS (DELETE FROM {rows} t USING ({newest}) n WHERE n.{op} <> 'd' AND {same}"
        " AND (t.{p} IS NULL OR t.{p} < n.{p}) RETURNING 1) "
    )
    shown = "INSERT INTO {rows} AS t ({c}) SELECT {c} FROM ({newest}) n WHERE {op} <> 'd' AND {still}"
    first = " AND (SELECT count(*) FROM moved) >= 0 ON CONFLICT DO NOTHING"
    over = " ON CONFLICT ({key}) DO UPDATE SET {update} WHERE t.{p} IS NULL OR t.{p} < excluded.{p}"
    cur.execute(
        sql.SQL(taken_out + shown + first if moving else shown + over).format(
            rows=tables.rows,
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
            t=tables.rows,
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


def _fields(table: TargetTable) -> list[sql.Composed]:
    named = [sql.SQL("{} {}").format(sql.Identifier(c.name), sql.SQL(column_type(table, c))) for c in table.columns]
    return [*named, *_ours((POSITION,))]


def _ours(names: Collection[str]) -> list[sql.Composed]:
    return [sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(TYPES[name])) for name in names]


def _listed(names: Collection[str]) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, names))
