"""Keeps a view job's state in a DuckDB file: rows of tables and nodes, events that wait, what is to be published.

    meta                 name, value: identity, position, clock, seq, …
    tables               of each captured table: its mark, and whether its topic is read from its beginning again
    views                of each view: the fingerprint of what it was computed by
    pending."R"          events of R that are not folded in yet: they lie at or behind the position
    before."R"           rows of R at the position
    changed."R", coming."R", units."N"   of the step that is being computed: see `spark_apply.views.sql.view_plan`
    outbox               events of the last step, until they are in Kafka
    streams              of each stream of others: its topic, the offsets behind what was read, how much was no event
    late                 by relation, how many events came too late to count: see `spark_apply.views.model.uses`
    quarantine           units whose rows cannot be published: a key that is null or not unique

One process writes the file. What a step changes is one transaction, so the file is always at one position.
"""

from __future__ import annotations

import itertools
import re
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa

from cdc.config.views import STREAM_SCHEMA
from cdc.model.errors import OperatorError
from spark_apply.views.embedded.sketches import register
from spark_apply.views.model.values import Columns, engine_type, quoted, text

SHAPE: Final = "2"
"""The version of the file's shape: a file of another one is set aside, and made again from the topics."""

_AT_ONCE: Final = 50_000
KEY, POSITION, OP, SOURCE_MS = "_cdc_key", "_cdc_position", "_cdc_op", "_cdc_source_ms"

_SCHEMAS: Final = ("pending", "before", "after", "both", "changed", "coming", "units", "work")
_TABLES: Final = """
CREATE TABLE meta (name VARCHAR PRIMARY KEY, value VARCHAR NOT NULL);
CREATE TABLE tables (name VARCHAR PRIMARY KEY, mark VARCHAR, reload BOOLEAN NOT NULL, position VARCHAR);
CREATE TABLE views (name VARCHAR PRIMARY KEY, fingerprint VARCHAR NOT NULL);
CREATE TABLE outbox (
    seq BIGINT NOT NULL, view VARCHAR NOT NULL, op VARCHAR NOT NULL, key VARCHAR NOT NULL,
    before VARCHAR, after VARCHAR
);
CREATE TABLE streams (
    name VARCHAR PRIMARY KEY, topic VARCHAR NOT NULL, definition VARCHAR NOT NULL, offsets VARCHAR NOT NULL,
    unreadable BIGINT NOT NULL
);
CREATE TABLE late (relation VARCHAR PRIMARY KEY, events BIGINT NOT NULL);
CREATE TABLE quarantine (
    view VARCHAR NOT NULL, unit VARCHAR NOT NULL, reason VARCHAR NOT NULL, position VARCHAR NOT NULL
)
"""


_BY_KEY: Final = "by key"
_LOCKED: Final = re.compile("could not set lock on file", re.IGNORECASE)
_DAMAGED: Final = re.compile(
    "not a valid DuckDB database file|enough bytes from file|version number|orrupt"
    "|WAL does not match|checkpoint iteration does not match"  # one of the two files was put back, or is of another
)
_NOT_WRITTEN: Final = re.compile("Failed to commit: Could not|invalidated because of a previous fatal error")


_WRONG_OPTIMIZERS: Final = frozenset({"common_subplan"})
"""Parts of the engine's optimizer that are known for wrong rows, without an error.

It takes two joins for one where they read the same tables and filters, whatever columns each gives (DuckDB's issues
25819, 24624 and 25170; 2.0.1 has another one of the kind). The statements that look for units are a UNION ALL of just
such joins, one for each side of a self join.
"""


def without_wrong_optimizers(connection: duckdb.DuckDBPyConnection) -> None:
    """Leave out what gives wrong rows, as far as this release of the engine has it."""
    there = {name for (name,) in connection.execute("SELECT name FROM duckdb_optimizers()").fetchall()}
    connection.execute(f"SET disabled_optimizers = {text(','.join(sorted(_WRONG_OPTIMIZERS & there)))}")


def place(schema: str, relation: str) -> str:
    """Return the quoted name of a relation's table or view."""
    return f"{quoted(schema)}.{quoted(relation)}"


def out_of_reach(folder: Path, why: str) -> OperatorError:
    """Return what it means that files of a state's folder cannot be read or written."""
    msg = f"state {folder}: it cannot be read or written: {why}"
    hint = "is its disk full, or gone, or not this user's? Nothing is lost: start again then, it goes on where it was"
    return OperatorError(msg, hint=hint)


class StateInUseError(OperatorError):
    """Another process has the state open: a view job, most likely."""


class ViewState:
    """The file. Not thread-safe. Raises OperatorError for a file that cannot be used."""

    def __init__(self, folder: Path, *, memory: str, shape: str = SHAPE) -> None:
        self._shape = shape
        self._file = folder / "state.duckdb"
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as exc:
            raise out_of_reach(folder, exc.strerror or type(exc).__name__) from exc
        self.set_aside: Path | None = None
        """Where a file that could not be used was moved to; a new one was made."""
        try:
            self._connection = self._open(memory)
        except duckdb.Error as exc:
            if _LOCKED.search(str(exc)):
                msg = f"state {folder}: another process uses it"
                raise StateInUseError(
                    msg, hint="stop the other copy of this view job; a job of another name needs a state: of its own"
                ) from exc
            if isinstance(exc, duckdb.IOException) and not _DAMAGED.search(str(exc)):
                raise self._out_of_reach(exc) from exc  # the file may be as good as it was: it stays
            self._connection = self._made_again(memory)
        except KeyError:  # a file of another shape
            self._connection = self._made_again(memory)

    def _open(self, memory: str) -> duckdb.DuckDBPyConnection:
        scratch = self._file.parent / "scratch"
        connection = duckdb.connect(
            str(self._file),
            config={
                "enable_external_access": "false",
                "memory_limit": memory,
                "temp_directory": str(scratch),
                "threads": "2",
                "preserve_insertion_order": "false",
            },
        )
        try:
            connection.execute("SET TimeZone = 'UTC'")
            without_wrong_optimizers(connection)
            connection.execute("SET lock_configuration = true")
            register(connection)
            self._prepare(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _prepare(self, connection: duckdb.DuckDBPyConnection) -> None:
        (there,) = connection.execute(
            "SELECT count(*) FROM duckdb_tables() WHERE schema_name = 'main' AND table_name = 'meta'"
        ).fetchall()[0]
        if there:
            found = dict(connection.execute("SELECT name, value FROM meta").fetchall())
            if found["shape"] != self._shape:
                raise KeyError(found["shape"])
            return
        connection.begin()
        for statement in (*(f"CREATE SCHEMA {quoted(name)}" for name in _SCHEMAS), *_TABLES.strip().split(";\n")):
            connection.execute(statement)
        first = {"shape": self._shape, "identity": str(uuid.uuid4()), "seq": "0", "events": _BY_KEY}
        connection.executemany("INSERT INTO meta VALUES (?, ?)", [[*pair] for pair in first.items()])
        connection.commit()

    def _out_of_reach(self, exc: duckdb.Error) -> OperatorError:
        return out_of_reach(self._file.parent, str(exc).rpartition(": ")[2])

    @contextmanager
    def _reached(self) -> Iterator[None]:
        """Tell of a file that cannot be read or written; what is wrong with a statement is raised as it is."""
        try:
            yield
        except duckdb.Error as exc:
            if "orrupt" in str(exc):
                msg = f"state {self._file.parent}: its file {self._file.name} is damaged"
                hint = (
                    f"move {self._file.name} out of the folder, keep it, and start again: the state is made again from "
                    "the topics, and only what differs is published"
                )
                raise OperatorError(msg, hint=hint) from exc
            if isinstance(exc, duckdb.IOException | duckdb.FatalException) or _NOT_WRITTEN.search(str(exc)):
                raise self._out_of_reach(exc) from exc
            raise

    def _made_again(self, memory: str) -> duckdb.DuckDBPyConnection:
        """Move the file out of the way, keep it, and begin a new one."""
        log = self._file.with_name("state.duckdb.wal")
        taken = {path.name.removesuffix(".wal") for path in self._file.parent.glob("state.duckdb.unusable-*")}
        name = next(name for number in itertools.count(1) if (name := f"state.duckdb.unusable-{number}") not in taken)
        self.set_aside = self._file.with_name(name)
        try:
            if log.exists():
                log.rename(self.set_aside.with_name(name + ".wal"))
            self._file.rename(self.set_aside)
        except OSError as exc:
            raise out_of_reach(self._file.parent, exc.strerror or type(exc).__name__) from exc
        return self._open(memory)

    def execute(self, statement: str, parameters: object = None) -> duckdb.DuckDBPyConnection:
        """Run a statement; `fetchall` of what it returns gives its rows."""
        with self._reached():
            return self._connection.execute(statement, parameters or None)

    def rows(self, statement: str, parameters: object = None) -> list[Any]:
        """Return all rows of a query."""
        with self._reached():
            return self.execute(statement, parameters).fetchall()

    def reader(self, statement: str, rows: int = 10_000) -> pa.RecordBatchReader:
        """Run a query and return its rows as they are read, so many at a time; nothing else may run meanwhile."""
        with self._reached():
            return self._connection.sql(statement).to_arrow_reader(rows)

    def insert(self, at: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Insert many rows."""
        table = pa.table([[row[number] for row in rows] for number in range(len(columns))], names=list(columns))
        with self.registered("inserted", table):
            self.execute(f"INSERT INTO {at} SELECT * FROM inserted")

    def batches(self, statement: str, rows: int = 10_000) -> Iterator[list[Any]]:
        """Yield the rows of a query, so many at a time, on a cursor of its own."""
        cursor = self._connection.cursor()
        try:
            with self._reached():
                cursor.execute(statement)
            while found := self._fetched(cursor, rows):
                yield found
        finally:
            cursor.close()

    def _fetched(self, cursor: duckdb.DuckDBPyConnection, rows: int) -> list[Any]:
        with self._reached():
            return cursor.fetchmany(rows)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit what the block does, or roll it back."""
        self._connection.begin()
        try:
            yield
        except BaseException:
            with suppress(duckdb.Error):  # a file that cannot be written any more: what was raised says so
                self._connection.rollback()
            raise
        with self._reached():
            self._connection.commit()

    @contextmanager
    def registered(self, name: str, table: object) -> Iterator[None]:
        """Let statements read an Arrow table under `name`."""
        self._connection.register(name, table)
        try:
            yield
        finally:
            self._connection.unregister(name)

    def get(self, name: str) -> str | None:
        """Return a value of meta."""
        found = self.rows("SELECT value FROM meta WHERE name = ?", [name])
        return str(found[0][0]) if found else None

    def put(self, **values: object) -> None:
        """Set values of meta; None removes one."""
        for name, value in values.items():
            self.execute("DELETE FROM meta WHERE name = ?", [name])
            if value is not None:
                self.execute("INSERT INTO meta VALUES (?, ?)", [name, str(value)])

    def begin_again(self, *, seq: int, step: int, token: str = "", clock_ms: int | None = None) -> None:
        """Forget everything: a new identity makes the job read the topics from their beginning.

        What is known of the last step in Kafka stays known, with its clock: no deadline that has passed is to come,
        unless the source's clock has been wrong (`spark_apply.views.running.clock`).
        """
        with self.transaction():
            self._forget_all()
            self.put(identity=uuid.uuid4(), seq=seq, step=step, token=token, clock_ms=clock_ms)
            self.put(position=None, outbox=None, events=_BY_KEY)

    @property
    def tells_events_by_key(self) -> bool:
        """Whether events of one position were always told apart by their keys: earlier releases have not done so."""
        return self.get("events") == _BY_KEY

    def _forget_all(self) -> None:
        for schema in _SCHEMAS:
            self.execute(f"DROP SCHEMA {quoted(schema)} CASCADE")
            self.execute(f"CREATE SCHEMA {quoted(schema)}")
        for table in ("tables", "views", "outbox", "streams", "late", "quarantine"):
            self.execute(f"DELETE FROM {table}")

    def kept_tables(self) -> list[str]:
        """Return the relations of captured tables that have a place."""
        found = self.rows("SELECT table_name FROM duckdb_tables() WHERE schema_name = 'pending'")
        return [name for (name,) in found if not name.startswith(f"{STREAM_SCHEMA}.")]

    def has(self, relation: str) -> bool:
        """Whether there is a place for a captured table's events."""
        found = "SELECT 1 FROM duckdb_tables() WHERE schema_name = 'pending' AND table_name = ?"
        return bool(self.rows(found, [relation]))

    def read_again(self) -> None:
        """Have all topics read from their beginning at the next start: by an identity that no checkpoint knows."""
        identity = uuid.uuid4()
        self.put(identity=identity, again=identity)

    @property
    def is_to_be_read_again(self) -> bool:
        """Whether rows are not to be relied on before that: until the reading has begun."""
        return self.get("again") is not None and self.get("again") == self.get("identity")

    def prepare_table(self, relation: str, columns: Columns, hidden: Columns, key: Sequence[str]) -> None:
        """Make a captured table's place, or add the columns that it does not have; its events have no `hidden` ones.

        Where a column has become text or DOUBLE, all topics are read again: events write values in another way.
        """
        own = f"{quoted(KEY)} VARCHAR, {quoted(POSITION)} VARCHAR, {quoted(OP)} VARCHAR, {quoted(SOURCE_MS)} BIGINT"
        self._make_or_widen(place("pending", relation), "pending", relation, columns, own)
        every = [*columns, *hidden]
        for schema in ("before", "coming"):
            self._make_or_widen(place(schema, relation), schema, relation, every, f"{quoted(POSITION)} VARCHAR")
        keyed = [(name, kind) for name, kind in every if name in key]
        self._make_or_widen(place("changed", relation), "changed", relation, keyed, "")
        self.make_states(relation, [name for name, _ in every], key)

    def _make_or_widen(self, at: str, schema: str, relation: str, columns: Columns, ours: str) -> None:
        found = dict(
            self.rows(
                "SELECT column_name, data_type FROM duckdb_columns() WHERE schema_name = ? AND table_name = ?",
                [schema, relation],
            )
        )
        if not found:
            parts = [*([ours] if ours else []), *(f"{quoted(name)} {engine_type(kind)}" for name, kind in columns)]
            self.execute(f"CREATE TABLE {at} ({', '.join(parts)})")
            return
        for name, kind in columns:
            wanted = engine_type(kind)
            if name not in found:
                alike = [other for other in found if other.casefold() == name.casefold()]
                for other in alike:  # it was renamed, and is read again under its new name: the engine has room for one
                    self.execute(f"ALTER TABLE {at} DROP COLUMN {quoted(other)}")
                self.execute(f"ALTER TABLE {at} ADD COLUMN {quoted(name)} {wanted}")
            elif found[name].replace(" ", "") != wanted.replace(" ", ""):
                self.execute(f"ALTER TABLE {at} ALTER COLUMN {quoted(name)} TYPE {wanted}")
                if wanted in ("VARCHAR", "DOUBLE"):  # the engine writes values in another way than events do
                    self.read_again()

    def make_states(self, relation: str, columns: Sequence[str], changed_by: Sequence[str]) -> None:
        """Define the rows after a step, and those before or after it, by those before it and what it changes.

        Without `changed_by` everything has changed, if anything has.
        """
        listed = ", ".join(quoted(name) for name in columns)
        same = " AND ".join(f"c.{quoted(name)} IS NOT DISTINCT FROM b.{quoted(name)}" for name in changed_by) or "true"
        before, coming = place("before", relation), place("coming", relation)
        gone = f"SELECT 1 FROM {place('changed', relation)} c WHERE {same}"
        kept = f"SELECT {listed} FROM {before} b WHERE NOT EXISTS ({gone})"
        self.execute(
            f"CREATE OR REPLACE VIEW {place('after', relation)} AS {kept} UNION ALL SELECT {listed} FROM {coming}"
        )
        self.execute(
            f"CREATE OR REPLACE VIEW {place('both', relation)} AS "
            f"SELECT {listed} FROM {before} UNION ALL SELECT {listed} FROM {coming}"
        )

    def forget(self, relations: Iterable[str]) -> None:
        """Drop the rows of nodes that are to be computed again."""
        for relation in relations:
            for schema in ("after", "both"):
                self.execute(f"DROP VIEW IF EXISTS {place(schema, relation)}")
            for schema in ("before", "changed", "coming", "units", "work"):
                self.execute(f"DROP TABLE IF EXISTS {place(schema, relation)}")

    def forget_table(self, relation: str) -> None:
        """Drop the rows of a captured table, and its events that wait."""
        self.forget([relation])
        self.execute(f"DROP TABLE IF EXISTS {place('pending', relation)}")

    def clear_waiting(self, relation: str) -> None:
        """Remove the events of a captured table that wait: they come again."""
        self.execute(f"DELETE FROM {place('pending', relation)}")

    def count(self, relation: str) -> int:
        """Return how many rows a relation has."""
        ((rows,),) = self.rows(f"SELECT count(*) FROM {place('before', relation)}")
        return int(rows)

    def keep_published(self, view: str, records: Iterable[tuple[str, str | None]]) -> None:
        """Keep the rows that a view's topic holds, as JSON by key: of several with one key the last one counts."""
        at, read = place("work", "published"), place("work", "records")
        numbered = enumerate(records)
        with self.transaction():
            self.execute(f"CREATE TABLE IF NOT EXISTS {at} (view VARCHAR, key VARCHAR, row VARCHAR)")
            self.execute(f"CREATE OR REPLACE TABLE {read} (key VARCHAR, row VARCHAR, number BIGINT)")
            self.execute(f"DELETE FROM {at} WHERE view = ?", [view])
            while some := list(itertools.islice(numbered, _AT_ONCE)):
                self.insert(read, ("key", "row", "number"), [[key, row, number] for number, (key, row) in some])
            newest = f"SELECT key, arg_max_null(row, number) AS row FROM {read} GROUP BY key"
            self.execute(f"INSERT INTO {at} SELECT ?, key, row FROM ({newest}) WHERE row IS NOT NULL", [view])
            self.execute(f"DROP TABLE {read}")

    def close(self) -> None:
        """Close the file; safe to call twice."""
        self._connection.close()
