"""The DuckDB file: opened by one process, with the position in it, and written by one transaction at a time."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from shlex import quote
from typing import Any, Final

import duckdb
import orjson
import pyarrow as pa

from cdc.files.position_file import Contents
from cdc.model.errors import CdcError, OperatorError, RetryableError, VerdictError

OURS: Final = "_cdc"
"""The schema of what is ours in the file."""
_FILE: Final = "cdc"
"""What the file is called on our connection."""
_POSITION: Final = f"{_FILE}.{OURS}.position"
_HOLDER: Final = re.compile(r"Conflicting lock is held in (.+? \(PID \d+\))").search
_LOCKED: Final = ("Could not set lock on file", "already attached")
STAGE: Final = "cdc_stage"
"""What `DuckdbFile.staged` lets SQL read."""
_SETTINGS: Final = {"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"}
"""Nothing is fetched from anywhere."""


_FILE_ERRORS: Final = (
    errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOENT,
    errno.ENOTDIR, errno.EISDIR, errno.EMFILE, errno.ENFILE, errno.ENAMETOOLONG, errno.ELOOP,
)  # fmt: skip


def quoted(name: str) -> str:
    """Write a name as SQL has it."""
    return '"' + name.replace('"', '""') + '"'


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


class DuckdbFile:
    """Owns the file while it is open; another process cannot open it then, not even to read."""

    def __init__(self, path: Path) -> None:
        """Open it, made where it is not there.

        Raises RetryableError if another process has it, OperatorError if it cannot be used.
        """
        self.path, self._quoted_folder = path, quote(str(path.parent))
        settings: dict[str, str | bool | int | float | list[str]] = {**_SETTINGS, "temp_directory": f"{path}.tmp"}
        self._connection = duckdb.connect(":memory:", config=settings)
        try:
            self._connection.execute(f"ATTACH {_literal(str(path))} AS {_FILE}")
        except duckdb.Error as exc:
            self._connection.close()
            raise self._unusable(exc) from exc
        self._opened = path.stat()

    def _unusable(self, exc: duckdb.Error) -> CdcError:
        if any(words in str(exc) for words in _LOCKED):
            holder = _HOLDER(str(exc))
            who = holder[1] if holder is not None else "another reader or connector"
            return RetryableError(
                f"file {self.path} is in use by {who}: DuckDB lets one process have it at a time",
                hint="close it there first, or stop that connector; cdc run CONNECTOR.yaml --wait waits for it",
            )
        if self.path.is_dir():
            what = "it is a folder"
        elif "not a valid DuckDB" in str(exc):
            what = "it is no file of DuckDB's"
        else:
            what = _of_the_system(exc) or type(exc).__name__
        return OperatorError(
            f"file {self.path} cannot be opened: {what}",
            hint=f"another sink.path; this user must be able to write there: ls -ld {self._quoted_folder}; "
            f"df -h {self._quoted_folder}",
        )

    def failed(self, exc: duckdb.Error, table: str | None = None) -> OperatorError:
        """Return what it means that something could not be written; DuckDB's own words may have values in them."""
        said = _of_the_system(exc)
        if said is not None or isinstance(exc, duckdb.IOException | duckdb.FatalException):
            return OperatorError(
                f"file {self.path} cannot be written: {said or type(exc).__name__}",
                hint=f"nothing of this commit is in it; is there room? df -h {self._quoted_folder}; "
                f"ls -ld {self._quoted_folder}",
            )
        if isinstance(exc, duckdb.OutOfMemoryException):
            return OperatorError(
                f"file {self.path}: DuckDB has not the memory for a commit",
                hint=f"free memory; it also needs room beside the file: df -h {self._quoted_folder}",
            )
        of = f"table {table}: its rows" if table is not None else "a commit"
        return OperatorError(
            f"{of} cannot be written into {self.path}: DuckDB gives {type(exc).__name__}",
            hint="was the file changed by hand? Another sink.path and another name begin with a new snapshot",
        )

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        return self._connection.execute(sql, parameters).fetchall()

    def arrow(self, sql: str) -> pa.Table:
        """Read rows. Arrow's table."""
        return self._connection.sql(sql).to_arrow_table()

    @contextmanager
    def staged(self, rows: pa.Table) -> Iterator[None]:
        """Let SQL read `rows` as the table `STAGE`."""
        self._connection.register(STAGE, rows)
        yield
        self._connection.unregister(STAGE)  # after an error nothing can be done but to close the file

    def changed(self, sql: str) -> int:
        """Change rows; return how many."""
        found = self._connection.execute(sql).fetchone()
        return int(found[0]) if found is not None else 0

    def read(self) -> tuple[Contents, Mapping[str, Any]]:
        """Return the position, and the tables as they were left. Raises OperatorError for a damaged one."""
        if not self.execute(
            "SELECT 1 FROM duckdb_tables() WHERE database_name = ? AND schema_name = ? AND table_name = 'position'",
            (_FILE, OURS),
        ):
            return Contents(), {}
        rows = self.execute(f"SELECT contents, tables FROM {_POSITION}")
        if len(rows) != 1:
            raise VerdictError(
                f"file {self.path}: its position is gone from {OURS}.position; going on from anywhere else would lose "
                "or double changes",
                hint="put back the file as it was; or another sink.path and another name, which begin with a snapshot",
            )
        ((contents, tables),) = rows
        return Contents.from_bytes(contents.encode(), where=f"the position in file {self.path}"), orjson.loads(tables)

    def begin(self) -> None:
        """Begin a transaction. Raises OperatorError if the file was moved away: nobody would find what is written."""
        there = self.path.exists()
        if not there or not os.path.samestat(self.path.stat(), self._opened):
            what = "it was moved away, and another is in its place" if there else "it is not there any more"
            raise VerdictError(
                f"file {self.path} is not as this connector has left it: {what}",
                hint="put it back as it was; or another sink.path and another name, which begin with a new snapshot",
            )
        self._connection.execute("BEGIN")

    def commit(self, contents: Contents, tables: Mapping[str, Any]) -> None:
        """Write the position and end the transaction. When this returns, all of it is on the disk."""
        self._connection.execute(f"CREATE SCHEMA IF NOT EXISTS {_FILE}.{OURS}")
        self._connection.execute(f"CREATE TABLE IF NOT EXISTS {_POSITION} (contents VARCHAR, tables VARCHAR)")
        self._connection.execute(f"DELETE FROM {_POSITION}")
        row = (contents.to_bytes().decode(), orjson.dumps(tables).decode())
        self._connection.execute(f"INSERT INTO {_POSITION} VALUES (?, ?)", row)
        self._connection.execute("COMMIT")

    def columns(self) -> Mapping[tuple[str, str], list[tuple[str, str]]]:
        """Return name and type of the columns of all tables, by schema and name."""
        found: dict[tuple[str, str], list[tuple[str, str]]] = {}
        for schema, table, name, type_ in self.execute(
            "SELECT schema_name, table_name, column_name, data_type FROM duckdb_columns() WHERE database_name = ? "
            "ORDER BY ALL",
            (_FILE,),
        ):
            found.setdefault((schema, table), []).append((name, type_))
        return found

    def close(self) -> None:
        """Let go of it; what is not committed is gone. Safe to call twice."""
        with suppress(duckdb.Error):  # what a full disk does not take now, DuckDB's log has for the next start
            self._connection.close()


def named(schema: str, table: str) -> str:
    """Name a table of the file in SQL."""
    return f"{_FILE}.{quoted(schema)}.{quoted(table)}"


def schema_of(schema: str) -> str:
    """Name a schema of the file in SQL."""
    return f"{_FILE}.{quoted(schema)}"


def _of_the_system(exc: duckdb.Error) -> str | None:
    """Return what the system has said of a file, of an error whose other words may be of a row."""
    text = str(exc)
    return next((said for said in map(os.strerror, _FILE_ERRORS) if said in text), None)
