"""A DuckDB file in the place of topics: what its tables come to, row by row, as events would have it."""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import duckdb
import orjson

from cdc.capture.control.signals import Command
from cdc.capture.pipeline import Pipeline, Settings
from cdc.config import registry
from cdc.config.file_connector import load_any
from cdc.encode.schema_record import kind_of
from cdc.files.position_file import Contents
from cdc.files.topicless_sink import UNSENT
from cdc.model.change import Kind
from cdc.model.errors import CdcError
from cdc.rules.capture_rules import CaptureRules
from sinks.duckdb.sink import DuckdbSink
from sinks.duckdb.types import json_of
from tests.cases.following import Told, _heard
from tests.integration.nudges import nudged
from tests.integration.running import eventually

_LOG: Final = logging.getLogger("cdc")
_STRINGS = ("string", "json", "bits", "timetz", "interval", "decimal", "bytes", "timestamptz")


class _Beside:
    """A second connection of the process that has the file, for one thread at a time."""

    def __init__(self) -> None:
        self._lock, self._connection = threading.RLock(), None

    def set(self, connection: Any) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
            self._connection = connection

    def __enter__(self) -> Any:
        self._lock.acquire()
        return self._connection

    def __exit__(self, *of: object) -> None:
        self._lock.release()


class _Read(DuckdbSink):
    """Its tables can be read while it has the file, and it can be asked to read the source's again."""

    def __init__(self, path: Path, connector: str) -> None:
        self.beside = _Beside()
        self.asked: dict[bytes, bytes] = {}
        super().__init__(path, connector)

    def commands(self) -> list[tuple[bytes, bytes]]:
        return [*super().commands(), *list(self.asked.items())]

    def answered(self, key: bytes) -> None:
        self.asked.pop(key, None)
        super().answered(key)

    def _open(self) -> None:
        super()._open()
        assert self._file is not None
        beside = self._file._connection.cursor()
        beside.execute("USE cdc.main")
        self.beside.set(beside)

    def close(self) -> None:
        self.beside.set(None)
        super().close()


class Copying:
    """A connector of this process that keeps a DuckDB file."""

    def __init__(
        self,
        folder: Path,
        name: str,
        url: str,
        tables: list[str],
        *,
        chunk_rows: int = 50_000,
        rows_per_second: int | None = None,
    ) -> None:
        self.path, self._url = folder / f"{name}.duckdb", url
        kind = "mysql" if url.startswith("mysql:") else "postgres"
        source = {"type": kind, "url": url, "tables": tables}
        file = folder / f"{name}.yaml"
        file.write_text(
            json.dumps(
                {
                    "name": name,
                    "source": source,
                    "sink": {"type": "duckdb", "path": str(self.path)},
                    "snapshot": {"chunk_rows": chunk_rows, "max_rows_per_second": rows_per_second}
                    if rows_per_second
                    else {"chunk_rows": chunk_rows},
                }
            )
        )
        self._config = load_any(file)
        assert self._config.into is not None
        self._sink = _Read(self.path, name)
        self._follows = False

    def _pipeline(self) -> Pipeline:
        config = self._config
        return Pipeline(
            Settings(
                connector=config.name,
                prefix=config.name,
                chunk_rows=config.snapshot.chunk_rows,
                rows_per_second=config.snapshot.max_rows_per_second,
                config=config.binding,
                by_pattern=lambda table: not config.names(table),
                rules=CaptureRules.of_source(config.source),
                unsent=orjson.dumps(UNSENT),
            ),
            open_source=registry.source(config),
            open_snapshotter=registry.snapshotter(config),
            sink=self._sink,
        )

    def catch_up(self) -> str:
        with _heard() as said, nudged(self._url):
            self._pipeline().run(until_caught_up=True)
        return said()

    def ask_to_read(self, tables: Sequence[str]) -> None:
        """Ask for it, as `cdc snapshot start` does of a connector with topics."""
        self._sink.asked[uuid4().hex.encode()] = Command(tables=tuple(tables)).to_bytes("asked")

    @contextlib.contextmanager
    def following(self, *, settles: bool = True) -> Iterator[Callable[[], str]]:
        """`settles`: it is not stopped while tables are being read."""
        pipeline, failed = self._pipeline(), list[CdcError]()

        def follow() -> None:
            try:
                pipeline.run()
            except CdcError as exc:
                failed.append(exc)
                _LOG.warning("it has ended: %s", exc.message)
            finally:
                self._follows = False

        with _heard() as said:
            thread = threading.Thread(target=follow)
            thread.start()
            self._follows = True
            try:
                with nudged(self._url):
                    yield said
                    if settles:
                        eventually(lambda: failed or self._has_read(), "all that is read again is there")
            finally:
                self._follows = False
                pipeline.stop()
                thread.join()
        assert failed == []

    def _has_read(self) -> bool:
        state = self._sink.peek()
        return state is not None and not state.reading

    def rows(self, table: str) -> list[dict[str, Any]]:
        """The rows of a table, as JSON; none where it is not there."""
        while self._follows:  # the file is its own, and each session opens it again
            with self._sink.beside as found:
                if found is not None:
                    return self._rows(found, table)
            time.sleep(0.02)
        with duckdb.connect(self.path, read_only=True) as found:
            return self._rows(found, table)

    def _rows(self, found: duckdb.DuckDBPyConnection, table: str) -> list[dict[str, Any]]:
        contents, tables = (text.encode() for text in found.sql("SELECT * FROM _cdc.position").fetchall()[0])
        left = orjson.loads(tables).get(table)
        if left is None:
            return []
        records = map(orjson.loads, Contents.from_bytes(contents, where="here").schemas.values())
        record = next(r for r in records if (r["topic"], r["version"]) == (table, left["version"]))
        schema, name = (part.replace('"', '""') for part in (record["schema"], record["table"]))
        arrow = found.sql(f'SELECT * FROM "{schema}"."{name}"').to_arrow_table().combine_chunks()
        kinds = {column["name"]: kind_of(column) for column in record["columns"]}
        self.key = record["key"]
        columns = {n: _values(arrow[n], kinds[n]) for n in arrow.column_names if n in kinds}
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def descriptions(self) -> list[dict[str, Any]]:
        return [orjson.loads(record) for record in self._sink.schemas()]

    def records(self, table: str) -> list[Told]:
        """Each row as one that was read."""
        found = []
        for number, row in enumerate(self.rows(table)):
            source = {"position": f"{number:08}"}
            event = {"before": None, "after": row, "source": source, "transaction": None, "op": "r"}
            found.append(Told(orjson.dumps({name: row[name] for name in self.key}), orjson.dumps(event)))
        return found


def _values(column: Any, kind: Kind) -> list[Any]:
    values = json_of(column.chunk(0), kind) if column.num_chunks else []
    if str(column.type) != "string" or kind.name in _STRINGS:
        return values
    return [_parsed(value) for value in values]


def _parsed(text: Any) -> Any:
    """The JSON whose text a column has."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text
