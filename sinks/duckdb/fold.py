"""Folds events into rows, and writes them: some thousand at a time, by table, each key once.

What the log has left out of a row (`UNSENT`) is what the row has: of an event before it, or in the file.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import duckdb
import orjson
import pyarrow as pa

from cdc.files.topicless_sink import UNSENT
from cdc.model.errors import OperatorError
from sinks.duckdb.file import STAGE, DuckdbFile, quoted
from sinks.duckdb.tables import Shape, Tables

ROW, EMPTIED, DESCRIBED = range(3)
Item = tuple[int, str, bytes, bytes]
"""What it is, topic, key and value; of a description the value is its record."""
_MOST: Final = 50_000
_MOST_BYTES: Final = 32 * 1024 * 1024
_HOLE: Final = orjson.dumps(UNSENT)
_OP: Final = b'"op":"'
_VERSION: Final = b'"schema_version":'


@dataclass(slots=True)
class _Run:
    """Events of one table and version that are not written yet."""

    version: int = 0
    emptied: bool = False
    last: dict[bytes, bytes | dict[str, Any]] = field(default_factory=dict)
    """By key the last event: whole, or the row of one with holes."""


class Fold:
    """Takes the events of a commit in their order, and writes the rows they come to."""

    def __init__(self, file: DuckdbFile, tables: Tables, coming: Collection[str]) -> None:
        """`coming` are the tables of which rows are read again: rows that they have not yet will come whole."""
        self._file, self._tables, self._coming = file, tables, coming
        self._runs: dict[str, _Run] = {}
        self._count = self._bytes = 0

    def take(self, items: Iterable[Item]) -> None:
        """Write them all. Raises OperatorError for what cannot be written, with its table."""
        for what, topic, key, value in items:
            run = self._runs.get(topic)
            if run is None:
                run = self._runs[topic] = _Run()
            if what == ROW:
                self._row(topic, run, key, value)
            elif what == EMPTIED:
                run.last.clear()
                run.emptied = True
            else:
                self._write(topic, run)
                with self._told(topic):
                    self._tables.describe(orjson.loads(value))
        self._write_all()

    def _row(self, topic: str, run: _Run, key: bytes, value: bytes) -> None:
        begin = value.rindex(_VERSION) + len(_VERSION)
        version = int(value[begin : _end(value, begin)])
        if version != run.version:
            self._write(topic, run)
            run.version = version
        if _HOLE in value:
            after: dict[str, Any] = orjson.loads(value)["after"]
            run.last[key] = _filled(after, run.last.get(key))
        else:
            run.last[key] = value
        self._count += 1
        self._bytes += len(value)
        if self._count >= _MOST or self._bytes >= _MOST_BYTES:
            self._write_all()

    def _write_all(self) -> None:
        for topic, run in self._runs.items():
            self._write(topic, run)
        self._count = self._bytes = 0

    def _write(self, topic: str, run: _Run) -> None:
        """Write what waits of one table."""
        if not (run.emptied or run.last):
            return
        with self._told(topic):
            if run.emptied:
                self._tables.empty(topic)
            if run.last:
                self._write_rows(topic, run)
        run.emptied = False
        run.last.clear()

    def _told(self, topic: str) -> _Told:
        return _Told(self._file, topic)

    def _write_rows(self, topic: str, run: _Run) -> None:
        keys, values, gone = list[bytes](), list[bytes](), list[bytes]()
        holes: dict[frozenset[str], list[dict[str, Any]]] = {}
        whole: list[dict[str, Any]] = []
        for key, last in run.last.items():
            if isinstance(last, dict):
                left_out = frozenset(name for name, value in last.items() if value == UNSENT)
                (holes.setdefault(left_out, []) if left_out else whole).append(last)
            elif _is_delete(last):
                gone.append(key)
            else:
                keys.append(key)
                values.append(last)
        if values:
            self._replace(topic, run.version, self._columns(topic, run.version, keys, values))
        if whole:
            self._replace(topic, run.version, self._plainly(topic, run.version, whole))
        if gone:
            self._delete(topic, run.version, [orjson.loads(key) for key in gone])
        for left_out, rows in holes.items():
            self._update(topic, run.version, left_out, rows)

    def _columns(self, topic: str, version: int, keys: list[bytes], values: list[bytes]) -> dict[str, pa.Array]:
        rows = self._tables.rows(topic, version)
        read = rows.read(values)
        columns = rows.quickly(read, keys) if read is not None else None
        if columns is None:
            return self._plainly(topic, version, [orjson.loads(value)["after"] for value in values])
        return dict(zip(rows.type.names, columns, strict=True))

    def _plainly(self, topic: str, version: int, rows: list[dict[str, Any]]) -> dict[str, pa.Array]:
        """Make columns value by value; one that a value does not fit into becomes text."""
        made = self._tables.rows(topic, version)
        misfits = made.misfits(rows)
        if misfits:
            self._tables.widen(topic, version, misfits)
            made = self._tables.rows(topic, version)
        return dict(zip(made.type.names, made.plainly(rows), strict=True))

    def _replace(self, topic: str, version: int, columns: Mapping[str, pa.Array]) -> None:
        shape = self._tables[topic]
        names = [name for name in columns if name in shape.columns]
        with self._file.staged(_stage(columns)):
            self._file.changed(f"DELETE FROM {shape.sql} AS t USING {STAGE} WHERE {_same_key(shape)}")
            self._file.changed(
                f"INSERT INTO {shape.sql} ({', '.join(map(quoted, names))}) "
                f"SELECT {', '.join(_sources(shape, version, names))} FROM {STAGE}"
            )

    def _delete(self, topic: str, version: int, keys: list[dict[str, Any]]) -> None:
        columns = self._plainly(topic, version, keys)
        shape = self._tables[topic]
        with self._file.staged(_stage({name: columns[name] for name in shape.key})):
            self._file.changed(f"DELETE FROM {shape.sql} AS t USING {STAGE} WHERE {_same_key(shape)}")

    def _update(self, topic: str, version: int, left_out: frozenset[str], rows: list[dict[str, Any]]) -> None:
        known = [{name: value for name, value in row.items() if name not in left_out} for row in rows]
        columns = self._plainly(topic, version, known)
        shape = self._tables[topic]
        names = [name for name in columns if name in shape.columns and name not in left_out and name not in shape.key]
        names = names or list(shape.key[:1])
        with self._file.staged(_stage(columns)):
            sources = _sources(shape, version, names)
            sets = ", ".join(f"{quoted(name)} = {source}" for name, source in zip(names, sources, strict=True))
            found = self._file.changed(f"UPDATE {shape.sql} AS t SET {sets} FROM {STAGE} WHERE {_same_key(shape)}")
        if found < len(rows) and shape.name not in self._coming:
            raise OperatorError(
                f"table {shape.name}: a change leaves out the value of column {', '.join(sorted(left_out))}, which "
                f"the row has, and file {self._file.path} has no such row: was it deleted by hand?",
                hint="another sink.path and another name begin with a new snapshot; ALTER TABLE … REPLICA IDENTITY "
                "FULL makes PostgreSQL leave out nothing",
            )


class _Told:
    """Turns DuckDB's errors into ours, which say what table it was."""

    def __init__(self, file: DuckdbFile, table: str) -> None:
        self._file, self._table = file, table

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, exc: BaseException | None, at: object) -> None:
        if isinstance(exc, duckdb.Error):
            raise self._file.failed(exc, self._table) from None  # its words may have values in them


def _stage(columns: Mapping[str, pa.Array]) -> pa.Table:
    return pa.table(dict(columns))


def _same_key(shape: Shape) -> str:
    return " AND ".join(f"t.{quoted(name)} = {STAGE}.{quoted(name)}" for name in shape.key)


def _sources(shape: Shape, version: int, names: Sequence[str]) -> list[str]:
    """Give the SQL of what is staged of a version, which may be older than the table is described by now."""
    found = [f"{STAGE}.{quoted(name)}" for name in names]
    if version == shape.record["version"]:
        return found
    return [f"TRY_CAST({source} AS {shape.columns[name]})" for name, source in zip(names, found, strict=True)]


def _end(value: bytes, begin: int) -> int:
    """Return where a number ends."""
    end = begin
    while value[end : end + 1].isdigit():
        end += 1
    return end


def _is_delete(value: bytes) -> bool:
    at = value.rindex(_OP) + len(_OP)
    return value[at : at + 1] == b"d"


def _filled(after: dict[str, Any], last: bytes | dict[str, Any] | None) -> dict[str, Any]:
    """Fill in what the event of the same key before it has."""
    if last is None or (isinstance(last, bytes) and _is_delete(last)):
        return after
    was = orjson.loads(last)["after"] if isinstance(last, bytes) else last
    return {name: was.get(name, value) if value == UNSENT else value for name, value in after.items()}
