"""Keeps a view job's state in a schema of PostgreSQL: tables and views at one position, for others to read, too.

    meta, tables, views, outbox, late, streams, quarantine    as `spark_apply.views.embedded.state` has them
    kept                 the relations of captured tables that have a place
    sizes                how many rows tables and views have
    published            rows that a view's topic holds, while it is compared with them
    "R", "pending R"     rows at the position, and events that wait: see `spark_apply.views.database.names`

Who reads these tables in one snapshot (one statement, or a transaction of REPEATABLE READ) has all of them at the
position that `meta` says: what a step changes is one transaction.

One copy of the job writes. ``meta.owner`` names it: the one that was started last. Each transaction locks that row
before it does anything, so of two copies one waits for the other, and one that finds another name ends at once. That
holds wherever the copies run, and whatever becomes of their sessions.
"""

from __future__ import annotations

import io
import itertools
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NoReturn

import psycopg2
import psycopg2.errors
import pyarrow as pa

from cdc.model.errors import BugError, FencedError, OperatorError, RetryableError
from spark_apply.stores.postgres.session.server import Cursor, Server
from spark_apply.views.database import layout
from spark_apply.views.database.names import (
    ERROR_FUNCTION,
    OURS,
    base,
    is_of_relation,
    is_ours,
    schema_of,
    short,
    waiting,
)
from spark_apply.views.database.values import declared, kept, shown_type
from spark_apply.views.embedded.state import KEY, OP, POSITION, SOURCE_MS, ViewState
from spark_apply.views.model.values import Columns, quoted, text

SHAPE: Final = "postgres-1"
"""The version of the tables: those of another one are dropped, and made again from the topics."""
LEAST_VERSION: Final = 140000
"""The first server whose ``extract`` counts microseconds without rounding."""

_TEXT: Final = 'text COLLATE "C"'
_TABLES: Final = f"""
CREATE TABLE meta (name {_TEXT} PRIMARY KEY, value {_TEXT} NOT NULL);
CREATE TABLE tables (name {_TEXT} PRIMARY KEY, mark {_TEXT}, reload boolean NOT NULL, position {_TEXT});
CREATE TABLE views (name {_TEXT} PRIMARY KEY, fingerprint {_TEXT} NOT NULL);
CREATE TABLE kept (relation {_TEXT} PRIMARY KEY);
CREATE TABLE outbox (
    seq bigint NOT NULL, view {_TEXT} NOT NULL, op {_TEXT} NOT NULL, key {_TEXT} NOT NULL,
    before {_TEXT}, after {_TEXT}
);
CREATE TABLE streams (
    name {_TEXT} PRIMARY KEY, topic {_TEXT} NOT NULL, definition {_TEXT} NOT NULL, offsets {_TEXT} NOT NULL,
    unreadable bigint NOT NULL
);
CREATE TABLE late (relation {_TEXT} PRIMARY KEY, events bigint NOT NULL);
CREATE TABLE quarantine (
    view {_TEXT} NOT NULL, unit {_TEXT} NOT NULL, reason {_TEXT} NOT NULL, position {_TEXT} NOT NULL
);
CREATE TABLE sizes (relation {_TEXT} PRIMARY KEY, rows bigint NOT NULL);
CREATE TABLE published (view {_TEXT} NOT NULL, key {_TEXT} NOT NULL, row {_TEXT} NOT NULL)
"""
_NOT_IDENTIFIED: Final = """
SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relkind = 'r' AND c.relreplident = 'd'
      AND NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary)
      AND EXISTS (
          SELECT FROM pg_publication_tables p JOIN pg_publication b USING (pubname)
          WHERE p.schemaname = n.nspname AND p.tablename = c.relname AND (b.pubupdate OR b.pubdelete)
      )
"""
"""Published tables without a primary key: the server refuses to delete rows from them."""
_AT_ONCE: Final = 50_000
_NO_TEXTS: Final = "no_indexes_of_texts"
_LONG: Final = ("text", "bytea")
_SETTINGS: Final = {
    "jit": "off",
    "TimeZone": "UTC",
    "DateStyle": "ISO",
    "extra_float_digits": "1",
    "transform_null_equals": "off",  # on, what is `= NULL` in a view's SQL would be IS NULL
    "statement_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
}
_BEGIN: Final = ", ".join(
    ["SELECT set_config('search_path', %s, true)", *(f"set_config('{n}', '{v}', true)" for n, v in _SETTINGS.items())]
)
"""What values and their texts rest on, and how long a step may take, is said in each transaction: a pooler may give
each another session."""
_SINCE_17: Final = 170000
"""The version whose `transaction_timeout` says how long a transaction may take."""


class DatabaseState(ViewState):
    """The schema. Not thread-safe. Raises OperatorError for a database that cannot be used."""

    def __init__(self, url: str, *, job: str, prefix: str, goes_on_as: str | None = None) -> None:
        self.set_aside = None
        self.schema = schema_of(job)
        self.made_again = ""
        """Why the tables were made again, and are empty now."""
        self.has_indexes_of_texts = True
        """Whether a text may be too long for an index: else what is beyond a limit of the server is a row."""
        self._server = Server(url, "store", by_transaction=True)
        self._cursor: Cursor | None = None
        self._alters = False
        """Whether the transaction that is open alters tables."""
        self.owner = goes_on_as or uuid.uuid4().hex
        """What the row names that each transaction locks; a process that opens the state once more has it still."""
        try:
            with self._server.transaction("opening the state of views") as cursor:
                self._take_over(cursor, f"{prefix} {job}", again=goes_on_as is not None)
        except BaseException:
            self.close()
            raise

    def _take_over(self, cursor: Cursor, job: str, *, again: bool) -> None:
        """Make what is missing, and become the owner: another copy of the job finds that out before it writes.

        One that was it goes on `again`. Raises FencedError where another copy has become it since.
        """
        cursor.execute("SELECT current_setting('server_version_num')::int, current_setting('server_encoding')")
        ((version, encoding),) = cursor.fetchall()
        if version < LEAST_VERSION:
            raise OperatorError(
                f"store: the server is PostgreSQL {version // 10000}, and views take 14 or later",
                hint="name another server, or say engine: duckdb",
            )
        if encoding != "UTF8":
            msg = f"store: the database has the encoding {encoding}, in which not every text has a place"
            raise OperatorError(msg, hint="create one for the views: CREATE DATABASE views ENCODING 'UTF8'")
        cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (f"cdc views {self.schema}",))
        cursor.execute("SELECT count(*) FROM pg_namespace WHERE nspname = %s", (self.schema,))
        if cursor.fetchall() == [(0,)]:
            cursor.execute(f"CREATE SCHEMA {quoted(self.schema)}")
        cursor.execute(_BEGIN, (quoted(self.schema),))
        there = self._names(cursor)
        if "meta" not in there:
            if there:
                msg = f"store: the schema {self.schema} has tables that are none of a view job: {min(there)}"
                raise OperatorError(msg, hint="give the view job another name, or move these tables elsewhere")
            self._make(cursor, job)
        cursor.execute("SELECT 1 FROM meta WHERE name = 'owner' FOR UPDATE")  # who has it may be altering tables
        cursor.execute("SELECT name, value FROM meta")
        known: dict[str, str] = dict(cursor.fetchall())
        if known["job"] != job:
            prefix, _, name = known["job"].partition(" ")
            msg = f"store: the schema {self.schema} is of the view job {name} over the topics of {prefix}"
            raise OperatorError(msg, hint="give this view job another name, or another database")
        if again and known.get("owner") != self.owner:
            raise _taken_over()
        touched = layout.touched(cursor, self.schema)
        if known["shape"] != SHAPE or touched:
            self.made_again = f"not as this job has left them ({touched})" if touched else "of another version"
            for name in self._names(cursor):  # others than before, by who had it
                if is_ours(name):
                    cursor.execute(f"DROP TABLE {quoted(name)}")
            self._make(cursor, job)
        self.has_indexes_of_texts = _NO_TEXTS not in known
        cursor.execute("DELETE FROM meta WHERE name = 'owner'")
        cursor.execute("INSERT INTO meta VALUES ('owner', %s)", (self.owner,))
        layout.keep(cursor, self.schema)
        self._identify(cursor)  # behind the owner: it waits for who writes to the tables, and that is over now

    def _identify(self, cursor: Cursor) -> None:
        cursor.execute(_NOT_IDENTIFIED, (self.schema,))
        for (name,) in cursor.fetchall():
            if is_ours(name):
                cursor.execute(f"ALTER TABLE {quoted(self.schema)}.{quoted(name)} REPLICA IDENTITY FULL")

    def require_as_left(self) -> None:
        """Raise RetryableError where another hand has altered tables: they are made again when the state is opened."""
        with self._open() as cursor:
            touched = layout.touched(cursor, self.schema)
        if touched:
            msg = f"store: the tables of the schema {self.schema} are not as this job has left them ({touched})"
            raise RetryableError(
                msg, hint="start again: they are made again from the topics; let nobody else alter them"
            )

    def _altering(self) -> None:
        """Tell of what another hand has altered before that is kept as the layout of this job."""
        if not self._alters:
            self.require_as_left()
            self._alters = True

    def _make(self, cursor: Cursor, job: str) -> None:
        for statement in (*_TABLES.strip().split(";\n"), ERROR_FUNCTION):
            cursor.execute(statement)
        first = {"shape": SHAPE, "job": job, "identity": str(uuid.uuid4()), "seq": "0"}
        for pair in first.items():
            cursor.execute("INSERT INTO meta VALUES (%s, %s)", pair)

    def _names(self, cursor: Cursor) -> set[str]:
        cursor.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s", (self.schema,))
        return {name for (name,) in cursor.fetchall()}

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit what the block does, or roll it back. Raises FencedError where another copy has taken over."""
        if self._cursor is not None:
            raise BugError("a transaction of the views' state in another one")
        with self._server.transaction("keeping the state of views") as cursor:
            cursor.execute(_BEGIN, (quoted(self.schema),))
            if cursor.connection.server_version >= _SINCE_17:
                cursor.execute("SET LOCAL transaction_timeout = 0")
            cursor.execute("SELECT value FROM meta WHERE name = 'owner' FOR UPDATE")
            if cursor.fetchall() != [(self.owner,)]:
                raise _taken_over()
            self._cursor, self._alters = cursor, False
            try:
                yield
                if self._alters:
                    layout.keep(cursor, self.schema)
            finally:
                self._cursor = None

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Undo what the block does where it fails for a value or a row's size; the transaction goes on."""
        self.execute("SAVEPOINT attempt")
        try:
            yield
        except (psycopg2.DataError, psycopg2.errors.ProgramLimitExceeded):
            self.execute("ROLLBACK TO SAVEPOINT attempt; RELEASE SAVEPOINT attempt")
            raise
        self.execute("RELEASE SAVEPOINT attempt")

    @contextmanager
    def _open(self) -> Iterator[Cursor]:  # type: ignore[override]
        """Give the cursor of the transaction that is open, or of one of its own."""
        if self._cursor is not None:
            yield self._cursor
            return
        with self.transaction():
            yield self._current()

    def _current(self) -> Cursor:
        if self._cursor is None:
            raise BugError("no transaction of the views' state is open")
        return self._cursor

    def execute(self, statement: str, parameters: object = None) -> Any:  # noqa: ANN401 - another driver's cursor
        """Run a statement; with `parameters`, of which each is a ``?``, it may name nothing that a user has named."""
        with self._open() as cursor:
            _run(cursor, statement, parameters)
        return cursor

    def make(self, at: str, made: str) -> None:
        """Make a table of these columns, or of this query."""
        self._altering()
        self.execute(f"CREATE TABLE {at} {made}")
        self.identify()

    def identify(self) -> None:
        """Give the job's tables that a publication has an identity: without one, nothing can be deleted from them.

        No other table has one, as it writes each old row to the server's log.
        """
        with self._open() as cursor:
            self._identify(cursor)

    def rows(self, statement: str, parameters: object = None) -> list[Any]:
        """Return all rows of a query."""
        with self._open() as cursor:
            _run(cursor, statement, parameters)
            return list(cursor.fetchall())

    def batches(self, statement: str, rows: int = 10_000) -> Iterator[list[Any]]:
        """Yield the rows of a query, so many at a time."""
        with self._open() as cursor, cursor.connection.cursor(name="cdc_views") as many:
            many.execute(statement)
            while found := many.fetchmany(rows):
                yield list(found)

    def insert(self, at: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Insert many rows of texts and numbers."""
        lines = "".join("\t".join(_cell(value) for value in row) + "\n" for row in rows)
        listed = ", ".join(quoted(name) for name in columns)
        self.copy(f"{at} ({listed})", io.BytesIO(lines.encode()))

    def copy(self, into: str, lines: io.BytesIO) -> None:
        """Insert rows that are written as COPY has them."""
        with self._open() as cursor:
            cursor.copy_expert(f"COPY {into} FROM STDIN", lines)

    def registered(self, name: str, table: object) -> NoReturn:
        """Not taken: there are no tables beside those of the server."""
        raise BugError(f"the views' state in PostgreSQL reads no {name} of {type(table).__name__}")

    def reader(self, statement: str, rows: int = 10_000) -> pa.RecordBatchReader:
        """Not taken: what is not computed by SQL is refused before."""
        raise BugError(f"nothing is computed beside PostgreSQL: {rows} rows of {len(statement)} characters")

    def _forget_all(self) -> None:
        self._alters = True
        for name in filter(is_of_relation, self._names(self._current())):
            self.execute(f"DROP TABLE {quoted(name)}")
        for table in OURS:
            self.execute(f"DELETE FROM {table}")

    def kept_tables(self) -> list[str]:
        """Return the relations of captured tables that have a place."""
        return [name for (name,) in self.rows("SELECT relation FROM kept")]

    def has(self, relation: str) -> bool:
        """Whether there is a place for a captured table's events."""
        return bool(self.rows("SELECT 1 FROM kept WHERE relation = ?", [relation]))

    def columns(self, relation: str) -> dict[str, str]:
        """Return the columns of a relation's rows with their types, in order; nothing where it has no place."""
        return self._columns(base(relation))

    def of_step(self, at: str) -> dict[str, str]:
        """Return the columns of a table of the step."""
        return self._columns(at, "")

    def _columns(self, at: str, schema: str | None = None) -> dict[str, str]:
        found = self.rows(
            "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute "
            "WHERE attrelid = to_regclass(?) AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
            [f"{quoted(self.schema)}.{at}" if schema is None else at],
        )
        return dict(found)

    def prepare_table(self, relation: str, columns: Columns, hidden: Columns, key: Sequence[str]) -> None:
        """Make a captured table's place, or add the columns that it does not have.

        Where a column has become text or DOUBLE, all topics are read again: events write values in another way.
        """
        del hidden
        own = [f"{quoted(name)} {_TEXT}" for name in (KEY, POSITION, OP)]
        listed = kept(columns)
        self._make_or_widen(waiting(relation), listed, [*own, f"{quoted(SOURCE_MS)} bigint"])
        self._make_or_widen(base(relation), listed, [f"{quoted(POSITION)} {_TEXT} NOT NULL"])
        self.index(relation, key)
        self.execute("INSERT INTO kept VALUES (?) ON CONFLICT DO NOTHING", [relation])

    def index(self, relation: str, columns: Sequence[str]) -> None:
        """Have an index by these columns, as far as there can be one: a long text has no place in an index."""
        types = self.columns(relation)
        if self.get(_NO_TEXTS) is not None:
            columns = [name for name in columns if types[name] not in _LONG]
        if columns:
            name = quoted(short(f"by {' '.join(columns)} of {relation}"))
            self.execute(f"CREATE INDEX IF NOT EXISTS {name} ON {base(relation)} ({', '.join(map(quoted, columns))})")

    def without_indexes_of_texts(self) -> None:
        """Drop the indexes by texts, for good: there is one that is too long for them."""
        with self.transaction():
            for (name,) in self.rows(
                "SELECT DISTINCT c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid "
                "JOIN pg_attribute a ON a.attrelid = c.oid JOIN pg_namespace n ON n.oid = c.relnamespace "
                "WHERE n.nspname = ? AND c.relname LIKE 'by %' AND format_type(a.atttypid, NULL) IN ('text', 'bytea')",
                [self.schema],
            ):
                self.execute(f"DROP INDEX {quoted(name)}")
            self.put(**{_NO_TEXTS: 1})
        self.has_indexes_of_texts = False

    def _make_or_widen(  # type: ignore[override]
        self, at: str, columns: Columns, ours: Sequence[str]
    ) -> None:
        found = self._columns(at)
        if not found:
            parts = [*ours, *(declared(name, kind) for name, kind in columns)]
            self.make(at, f"({', '.join(parts)})")
            return
        for name, kind in columns:
            wanted, there = shown_type(kind), found.get(name)
            if there != wanted:
                self._altering()
            if there is None:
                self.execute(f"ALTER TABLE {at} ADD COLUMN {declared(name, kind)}")
            elif there != wanted:
                made = declared(name, kind).removeprefix(f"{quoted(name)} ")
                using = f"CAST({quoted(name)} AS {wanted})"
                self.execute(f"ALTER TABLE {at} ALTER COLUMN {quoted(name)} TYPE {made} USING {using}")
                if wanted in ("text", "double precision"):  # the engine writes values in another way than events do
                    self.read_again()

    def forget(self, relations: Iterable[str]) -> None:
        """Drop the rows of relations."""
        self._altering()
        for relation in relations:
            self.execute(f"DROP TABLE IF EXISTS {base(relation)}; DELETE FROM sizes WHERE relation = {text(relation)}")

    def forget_table(self, relation: str) -> None:
        self.forget([relation])
        self.execute(f"DROP TABLE IF EXISTS {waiting(relation)}")
        self.execute("DELETE FROM kept WHERE relation = ?", [relation])

    def clear_waiting(self, relation: str) -> None:
        self.execute(f"DELETE FROM {waiting(relation)}")

    def count(self, relation: str) -> int:
        found = self.rows("SELECT rows FROM sizes WHERE relation = ?", [relation])
        return int(found[0][0]) if found else 0

    def grow(self, relation: str, rows: str, fewer: str) -> None:
        """Note that a relation has the rows of one table more, and those of another fewer: to count takes long."""
        self.execute(
            f"INSERT INTO sizes SELECT {text(relation)}, "
            f"(SELECT count(*) FROM {rows}) - (SELECT count(*) FROM {fewer}) "
            "ON CONFLICT (relation) DO UPDATE SET rows = sizes.rows + excluded.rows"
        )

    def keep_published(self, view: str, records: Iterable[tuple[str, str | None]]) -> None:
        numbered, read = enumerate(records), "pg_temp.records"
        with self.transaction():
            self.execute("DELETE FROM published WHERE view = ?", [view])
            self.execute(f"CREATE TEMP TABLE records (key {_TEXT}, row {_TEXT}, number bigint) ON COMMIT DROP")
            while some := list(itertools.islice(numbered, _AT_ONCE)):
                self.insert(read, ("key", "row", "number"), [(key, row, number) for number, (key, row) in some])
            newest = f"SELECT DISTINCT ON (key) key, row FROM {read} ORDER BY key, number DESC"
            self.execute(f"INSERT INTO published SELECT ?, key, row FROM ({newest}) n WHERE row IS NOT NULL", [view])

    def close(self) -> None:
        """Close the connection; safe to call twice."""
        self._server.close()


def _run(cursor: Cursor, statement: str, parameters: object) -> None:
    if parameters is None:
        cursor.execute(statement)
    else:
        assert isinstance(parameters, list)  # noqa: S101 - for the type checker
        cursor.execute(statement.replace("%", "%%").replace("?", "%s"), parameters)


def _cell(value: object) -> str:
    """Write a value as COPY's text format has it."""
    if value is None:
        return "\\N"
    return str(value).replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")


def _taken_over() -> FencedError:
    msg = "another copy of this view job was started, and goes on in place of this one"
    return FencedError(msg, hint="let one copy run; nothing is lost")
