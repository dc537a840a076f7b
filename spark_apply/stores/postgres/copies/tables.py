"""Defines the tables of one copy in PostgreSQL. On a given cursor; nothing commits."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import psycopg2
from psycopg2 import sql

from cdc.model.errors import OperatorError
from spark_apply.events.history import AT, CURRENT, DERIVED, FROM_POSITION, TO_POSITION, VALID_FROM, VALID_TO
from spark_apply.events.typed import OFFSET, OP, PARTITION, POSITION
from spark_apply.model.target_table import TargetTable, other_target, rebuilt
from spark_apply.stores.postgres.session.server import Cursor
from spark_apply.stores.postgres.values.keys import column_type
from spark_apply.stores.postgres.values.types import holds, widens

OURS = "cdc_apply"
"""The schema of the tables that are not for readers."""
MAX_NAME_BYTES = 63
_SYSTEM: Final = frozenset({"cmax", "cmin", "ctid", "tableoid", "xmax", "xmin"})
"""Columns that each table has. See https://www.postgresql.org/docs/current/ddl-system-columns.html."""
COPY_BYTES = 1 << 20
_FILLFACTOR = 85
"""Leaves room in each page for newer versions of its rows, which then need no new index entries (HOT)."""

_TIME: Final = "timestamp with time zone"
OWN_TYPES: Final[Mapping[str, str]] = {
    POSITION: 'text COLLATE "C"',
    OP: "text",
    AT: _TIME,
    FROM_POSITION: 'text COLLATE "C"',
    TO_POSITION: 'text COLLATE "C"',
    VALID_FROM: _TIME,
    VALID_TO: _TIME,
    CURRENT: "boolean",
}
"""The types of our own columns."""

_PLACE = sql.SQL("{} integer, {} bigint").format(sql.Identifier(PARTITION), sql.Identifier(OFFSET))
"""The columns that say where the record of an event lies."""

_KEEPS_TYPE: Final = (psycopg2.ProgrammingError, psycopg2.NotSupportedError, psycopg2.DataError)
"""What a default, a constraint or an index raises that is of another type; a generated column; an identity."""
_KEPT: Final = """
WITH t AS (SELECT * FROM pg_class WHERE oid = to_regclass(%s)), options AS (SELECT unnest(reloptions) AS one FROM t
    UNION ALL SELECT 'toast.' || unnest(o.reloptions) FROM t JOIN pg_class o ON o.oid = t.reltoastrelid),
    a AS (SELECT a.* FROM t JOIN pg_attribute a ON attrelid = t.oid WHERE attnum > 0 AND NOT attisdropped)
SELECT format('SET TABLESPACE %%I', spcname) FROM t JOIN pg_tablespace s ON s.oid = reltablespace
UNION ALL SELECT format('SET (%%s = %%L)', split_part(one, '=', 1), substr(one, strpos(one, '=') + 1)) FROM options
UNION ALL SELECT format('ALTER %%I SET STATISTICS %%s', attname, attstattarget) FROM a WHERE attstattarget >= 0
UNION ALL SELECT format('ALTER %%I SET (%%s)', attname, array_to_string(attoptions, ', ')) FROM a
    WHERE attoptions IS NOT NULL
"""
"""Where a table is kept, with which options, and with which statistics."""

_NOT_IDENTIFIED: Final = """
SELECT c.relname::text, c.relowner::regrole::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = ANY (%s::text[]) AND c.relreplident <> 'f'
    AND EXISTS (SELECT FROM pg_publication_tables p WHERE p.schemaname = n.nspname AND p.tablename = c.relname)
ORDER BY 1 DESC
"""
"""Tables that a publication has, and of which PostgreSQL deletes no row: no key tells subscribers which one."""


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables of the copy `number` of `table`; `place` is schema and name of the copy."""

    table: TargetTable
    number: int
    place: tuple[str, str]
    partitioned: bool = False

    @property
    def rows(self) -> sql.Identifier:
        return sql.Identifier(*self.place)

    @property
    def own_rows(self) -> sql.Composable:
        """Return what to read and to delete: not the rows of tables that others have made below it (``INHERITS``)."""
        return self.rows if self.partitioned else sql.SQL("ONLY {}").format(self.rows)

    def ours(self, kind: str) -> sql.Identifier:
        """Return ``waiting``, ``copy`` or ``gone``; a history has no ``gone``, because its deletes are rows."""
        return sql.Identifier(OURS, f"{kind}_{self.number}")

    @property
    def stage(self) -> sql.Identifier:
        return sql.Identifier("pg_temp", f"cdc_stage_{self.number}")

    @property
    def key(self) -> sql.Composed:
        return listed(self.table.key)

    @property
    def columns(self) -> sql.Composed:
        return listed([*(column.name for column in self.table.columns), POSITION])

    @property
    def said(self) -> tuple[str, ...]:
        """Return the further columns of an event until it is folded in."""
        return (OP, AT) if self.table.history else (OP,)

    @property
    def event(self) -> sql.Composed:
        """Return all columns of an event, and the place of its record in the topic."""
        return sql.SQL("{}, {}").format(self.columns, listed((*self.said, PARTITION, OFFSET)))

    def same_key(self, one: str, other: str) -> sql.Composed:
        pairs = [
            sql.SQL("{} = {}").format(sql.Identifier(one, name), sql.Identifier(other, name)) for name in self.table.key
        ]
        return sql.SQL(" AND ").join(pairs)


def create(cur: Cursor, tables: Tables, like: sql.Identifier | None) -> None:
    """Create an empty copy at ``cdc_apply.copy_<number>``, with the indexes and constraints of `like`, if given."""
    table, rows = tables.table, tables.ours("copy")
    if like is None:
        key = sql.SQL("{}, {}").format(tables.key, sql.Identifier(POSITION)) if table.history else tables.key
        fields = [*_fields(table), *(_ours((*tables.said, *DERIVED)) if table.history else ())]
        shape = sql.SQL("{}, PRIMARY KEY ({})").format(sql.SQL(", ").join(fields), key)
    else:
        shape = sql.SQL("LIKE {} INCLUDING ALL").format(like)
    cur.execute(sql.SQL("CREATE TABLE {} ({}) WITH (fillfactor = {})").format(rows, shape, sql.Literal(_FILLFACTOR)))
    if like is not None:
        _give_types(cur, tables, rows)
        _give_ours(cur, tables, rows)
        _store_like(cur, rows, like)
        _give_key(cur, rows, (*table.key, POSITION) if table.history else table.key)
    make_ours(cur, tables)


def make_ours(cur: Cursor, tables: Tables) -> bool:
    """Create those of our own tables of a copy that are not there; return whether any was missing."""
    table, missing = tables.table, list[str]()
    for kind in ("waiting",) if table.history else ("waiting", "gone"):
        cur.execute("SELECT to_regclass(%s) IS NULL", (tables.ours(kind).as_string(cur),))
        missing += [kind for (is_missing,) in cur.fetchall() if is_missing]
    if "waiting" in missing:
        events = sql.SQL(", ").join([*_fields(table), *_ours(tables.said), _PLACE])
        cur.execute(sql.SQL("CREATE TABLE {} ({})").format(tables.ours("waiting"), events))
        if table.history:
            key = sql.SQL("{}, {}").format(tables.key, sql.Identifier(POSITION))
            cur.execute(sql.SQL("CREATE UNIQUE INDEX ON {} ({})").format(tables.ours("waiting"), key))
    if "gone" in missing:
        cur.execute(
            sql.SQL("CREATE TABLE {} AS SELECT {}, {} FROM {} WITH NO DATA").format(
                tables.ours("gone"), tables.key, sql.Identifier(POSITION), tables.ours("waiting")
            )
        )
        cur.execute(sql.SQL("CREATE UNIQUE INDEX ON {} ({})").format(tables.ours("gone"), tables.key))
    return bool(missing)


def _give_types(cur: Cursor, tables: Tables, rows: sql.Identifier) -> None:
    """Give a copy without rows the types that it needs: the table that it is like has others."""
    for name, kind in others(cur, tables, rows).items():
        change = sql.SQL("ALTER TABLE {0} ALTER COLUMN {1} TYPE {2} USING NULL::{2}")
        try:
            cur.execute(change.format(rows, sql.Identifier(name), sql.SQL(kind)))
        except _KEEPS_TYPE as exc:
            said = exc.diag.message_primary
            msg = f"{tables.table.qualified}: column {name} of its copy would have to be {kind}, and others keep it"
            raise OperatorError(
                f"{msg}: {said}", hint=f"take that off the column; or {other_target(tables.table)}"
            ) from exc


def _give_ours(cur: Cursor, tables: Tables, rows: sql.Identifier) -> None:
    """Give a copy our own columns that the table which it is like has no more: a rebuild is what brings them back."""
    there = columns_of(cur, rows)
    wanted = (POSITION, *((*tables.said, *DERIVED) if tables.table.history else ()))
    for field in _ours([name for name in wanted if name not in there]):
        cur.execute(sql.SQL("ALTER TABLE {} ADD COLUMN {}").format(rows, field))


def _store_like(cur: Cursor, table: sql.Identifier, other: sql.Identifier) -> None:
    """Give a table without rows what the server notes about keeping another, which ``LIKE`` does not copy."""
    cur.execute(_KEPT, (other.as_string(cur),))
    for (action,) in cur.fetchall():  # the server has quoted each name in it
        cur.execute(sql.SQL("ALTER TABLE {} {}").format(table, sql.SQL(action)))


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
    cur.execute(sql.SQL("ALTER TABLE {} ADD PRIMARY KEY ({})").format(rows, listed(wanted)))


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
    """Raise OperatorError for names that PostgreSQL would cut off, and take for others, or keeps for itself."""
    for name in (table.schema, table.copy_name, *(column.name for column in table.columns)):
        if len(name.encode()) > MAX_NAME_BYTES:
            msg = f"{table.qualified}: the name “{name}” is longer than PostgreSQL's {MAX_NAME_BYTES} bytes"
            raise OperatorError(msg, hint=_shorter(table, name))
    for name in (column.name for column in table.columns if column.name in _SYSTEM):
        msg = f"{table.qualified}: each table of PostgreSQL has a column “{name}” of its own"
        raise OperatorError(msg, hint=_shorter(table, name))
    if table.schema.startswith("pg_"):
        msg = f"{table.qualified}: PostgreSQL keeps names of schemas that begin with pg_ for itself"
        raise OperatorError(msg, hint=_shorter(table, table.schema))


def _shorter(table: TargetTable, name: str) -> str:
    """Return the hint for a name that is too long."""
    at = f"under tables.{table.qualified}"
    if name == table.schema:
        return "leave this table out of the store"
    column = next((of for of in table.columns if of.name == name), None)
    if column is None:
        return f"target: … {at}, a shorter name"
    if table.history:
        return "leave it out in connector.yaml (source.columns)"
    if column.computed:
        return f"another name {at}.computed"
    return f"rename: {{{column.source}: …}} {at}, or columns: […] without it"


def drop(cur: Cursor, tables: Tables) -> None:
    """Drop all tables of a copy that is not live."""
    for kind in ("copy", "waiting", "gone"):
        cur.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(tables.ours(kind)))


def evolve(cur: Cursor, tables: Tables, *, but: Collection[str] = ()) -> None:
    """Add columns and widen types in ``copy`` and ``waiting``, `but` those of some columns.

    Raises OperatorError for an impossible change.
    """
    names = {column.name for column in tables.table.columns}.difference(but)
    for name in (tables.rows, tables.ours("waiting")):  # of which another hand may have altered the one
        for _, change in _changes(tables, columns_of(cur, name), only=names):
            cur.execute(sql.SQL("ALTER TABLE {} {}").format(name, change))
    kept = {} if tables.table.history else columns_of(cur, tables.ours("gone"))
    for _, change in _changes(tables, kept, only=names.intersection(kept)):
        cur.execute(sql.SQL("ALTER TABLE {} {}").format(tables.ours("gone"), change))
    if PARTITION not in columns_of(cur, tables.ours("waiting")):  # made by an earlier release
        places = sql.SQL("ADD COLUMN {} integer, ADD COLUMN {} bigint")
        named = places.format(sql.Identifier(PARTITION), sql.Identifier(OFFSET))
        cur.execute(sql.SQL("ALTER TABLE {} {}").format(tables.ours("waiting"), named))
    _identify(cur, tables)


def _identify(cur: Cursor, tables: Tables) -> None:
    """Let rows be deleted of our own tables, which have no key, where a publication has them.

    Others stay as they are: old rows would be written to the log for nobody, and only a table's owner may alter it.
    Raises OperatorError for a table of another role.
    """
    cur.execute(_NOT_IDENTIFIED, (OURS, [f"{kind}_{tables.number}" for kind in ("waiting", "gone")]))
    wanted = [(sql.Identifier(OURS, name), owner) for name, owner in cur.fetchall()]
    steps = [sql.SQL("ALTER TABLE {} REPLICA IDENTITY FULL").format(name) for name, _ in wanted]
    try:
        for step in steps:
            cur.execute(step)
    except psycopg2.errors.InsufficientPrivilege as exc:
        owners = ", ".join(sorted({owner for _, owner in wanted}))
        raise OperatorError(
            f"{tables.table.qualified}: a publication has tables of the store’s own, of which nothing can be deleted "
            f"without a replica identity: {exc.diag.message_primary}",
            hint=f"as {owners}: {sql.SQL('; ').join(steps).as_string(cur)}; or a publication that lists its tables",
        ) from exc


def changes(cur: Cursor, tables: Tables) -> list[tuple[str, sql.Composed]]:
    """Return the changes of the copy that `evolve` makes, in words and as a clause; raises what it raises."""
    return _changes(tables, columns_of(cur, tables.rows))


def _changes(
    tables: Tables, there: dict[str, str], only: Collection[str] | None = None
) -> list[tuple[str, sql.Composed]]:
    found = []
    for column in (of for of in tables.table.columns if only is None or of.name in only):
        wanted, has = column_type(tables.table, column), there.get(column.name)
        named, kind = sql.Identifier(column.name), sql.SQL(wanted)
        if has is None:
            found.append(
                (f"add column {column.name} {wanted}", sql.SQL("ADD COLUMN IF NOT EXISTS {} {}").format(named, kind))
            )
        elif has != wanted and widens(has, wanted):
            retype = sql.SQL("ALTER COLUMN {0} TYPE {1} USING {0}::{1}").format(named, kind)
            found.append((f"widen column {column.name} from {has} to {wanted}", retype))
        elif _is_other(has, wanted):
            copy = f"PostgreSQL table {'.'.join(tables.place)}, column {column.name}"
            raise OperatorError(f"{copy}: it is {has} and would have to be {wanted}", hint=rebuilt(tables.table))
    return found


def others(cur: Cursor, tables: Tables, name: sql.Identifier) -> dict[str, str]:
    """Return the columns of which a copy like this table must have other types, which are none to alter it to."""
    wanted, there = {of.name: column_type(tables.table, of) for of in tables.table.columns}, columns_of(cur, name)
    return {of: kind for of, kind in wanted.items() if (has := there.get(of)) is not None and _is_other(has, kind)}


def _is_other(has: str, wanted: str) -> bool:
    return has != wanted and not widens(has, wanted) and not holds(has, wanted)


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
            empty(cur, tables.ours(kind))


def empty(cur: Cursor, name: sql.Identifier) -> None:
    """Delete all rows of a table of ours: at once, unless somebody reads it, as a dump does for hours."""
    cur.execute("SAVEPOINT cdc_empty")
    try:
        cur.execute(sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE NOWAIT").format(name))
        cur.execute(sql.SQL("TRUNCATE {}").format(name))
    except psycopg2.errors.LockNotAvailable:
        cur.execute("ROLLBACK TO SAVEPOINT cdc_empty")
        cur.execute(sql.SQL("DELETE FROM {}").format(name))
    cur.execute("RELEASE SAVEPOINT cdc_empty")


def _fields(table: TargetTable) -> list[sql.Composed]:
    named = [sql.SQL("{} {}").format(sql.Identifier(c.name), sql.SQL(column_type(table, c))) for c in table.columns]
    return [*named, *_ours((POSITION,))]


def _ours(names: Collection[str]) -> list[sql.Composed]:
    return [sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(OWN_TYPES[name])) for name in names]


def listed(names: Iterable[str]) -> sql.Composed:
    """Return names as SQL lists them."""
    return sql.SQL(", ").join(map(sql.Identifier, names))
