"""The tables of the file: made as the source describes them, and changed when it describes them otherwise.

A column that a newer description has not stays until nothing that was read before is still to come (`settle`): rows of
a snapshot may have been read under a description that the log reaches later, and then the column is there again.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson
import pyarrow as pa

from cdc.encode.schema_record import kind_of
from cdc.library.arrow import OWN_INFINITIES, ArrowRows
from cdc.model.change import Kind, Table
from cdc.model.errors import OperatorError, VerdictError
from cdc.model.table_schema import Description, carried
from sinks.duckdb.file import OURS, STAGE, DuckdbFile, named, quoted, schema_of
from sinks.duckdb.types import TEXT, duckdb_type, texts

_RESERVED: Final = (OURS, "pg_catalog", "information_schema")
_NEW: Final = "cdc new "
log = logging.getLogger("cdc")


@dataclass(slots=True)
class Shape:
    """A table as it is in the file."""

    record: Mapping[str, Any]
    """What describes it, as the schema topic would have it."""
    columns: dict[str, str]
    """Name and type, in the file's order; among them some that `record` has not any more."""
    kinds: Mapping[str, Kind] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.kinds = {column["name"]: kind_of(column) for column in self.record["columns"]}

    @property
    def key(self) -> tuple[str, ...]:
        return tuple(self.record["key"])

    @property
    def name(self) -> str:
        """As it is told."""
        return f"{self.record['schema']}.{self.record['table']}"

    @property
    def sql(self) -> str:
        return named(self.record["schema"], self.record["table"])

    @property
    def text(self) -> frozenset[str]:
        """The columns that hold the text of JSON in place of a type of their own."""
        return frozenset(
            name
            for name, kind in self.kinds.items()
            if self.columns[name] == TEXT and duckdb_type(kind, key=False) != TEXT
        )

    def description(self) -> Description:
        """Describe it for `cdc.model.table_schema`."""
        return _description(self.record)

    def to_json(self) -> dict[str, Any]:
        """Write what `Tables` reads at the next start."""
        return {"version": self.record["version"], "columns": list(self.columns.items())}


class Tables:
    """Knows the tables that the connector has made in a file, and changes them in the open transaction."""

    def __init__(self, file: DuckdbFile, schemas: Mapping[bytes, bytes], left: Mapping[str, Any]) -> None:
        """`schemas` describe them, `left` is how they were left. Raises OperatorError if they are otherwise now."""
        self._file = file
        self._records: dict[tuple[str, int], Mapping[str, Any]] = {}
        for record in map(orjson.loads, schemas.values()):
            self._records[record["topic"], record["version"]] = record
        self._shapes = {
            topic: Shape(self._records[topic, of["version"]], dict(of["columns"])) for topic, of in left.items()
        }
        self._rows: dict[tuple[str, int], ArrowRows] = {}
        self._text: dict[tuple[str, int], set[str]] = {}
        """Columns of older versions that are read as text, for the table has them not, or otherwise."""
        found = file.columns()
        for shape in self._shapes.values():
            there = found.get((shape.record["schema"], shape.record["table"]))
            if there is None or dict(there) != shape.columns:
                what = "it is gone" if there is None else "its columns are others"
                raise VerdictError(
                    f"file {file.path} is not as this connector has left it: table {shape.name}: {what}",
                    hint="another sink.path and another name begin with a new snapshot; this file stays as it is",
                )

    def __contains__(self, topic: str) -> bool:
        return topic in self._shapes

    def __getitem__(self, topic: str) -> Shape:
        return self._shapes[topic]

    def to_json(self) -> dict[str, Any]:
        return {topic: shape.to_json() for topic, shape in self._shapes.items()}

    def rows(self, topic: str, version: int) -> ArrowRows:
        """Return what makes columns of a version's rows."""
        found = self._rows.get((topic, version))
        if found is None:
            record = self._records[topic, version]
            text = self._shapes[topic].text & {column["name"] for column in record["columns"]}
            text |= self._text.get((topic, version), set())
            found = self._rows[topic, version] = ArrowRows(record, text, infinite=OWN_INFINITIES)
        return found

    def empty(self, topic: str) -> None:
        """Delete all rows of a table, if there is one."""
        if topic in self._shapes:
            self._file.execute(f"DELETE FROM {self._shapes[topic].sql}")

    def describe(self, record: Mapping[str, Any]) -> None:
        """Make a table, or change it, so that it has the columns of a new description."""
        topic = record["topic"]
        self._records[topic, record["version"]] = record
        self._forget(topic)
        was = self._shapes.get(topic)
        if was is None:
            self._make(record)
            return
        self._become(topic, was, *_changed(was, record))

    def _forget(self, topic: str) -> None:
        for at in [at for at in self._rows if at[0] == topic]:
            del self._rows[at]

    def _make(self, record: Mapping[str, Any]) -> None:
        columns = {c["name"]: duckdb_type(kind_of(c), key=c["name"] in record["key"]) for c in record["columns"]}
        shape = Shape(record, columns)
        if (record["schema"], record["table"]) in self._file.columns():
            raise VerdictError(
                f"file {self._file.path} has a table {shape.name} that is not this connector's",
                hint="another sink.path; or rename the table there: ALTER TABLE … RENAME TO …",
            )
        self._file.execute(f"CREATE SCHEMA IF NOT EXISTS {schema_of(record['schema'])}")
        self._create(shape.sql, shape)
        self._shapes[record["topic"]] = shape

    def _create(self, sql: str, shape: Shape) -> None:
        columns = ", ".join(f"{quoted(name)} {type_}" for name, type_ in shape.columns.items())
        key = ", ".join(map(quoted, shape.key))
        self._file.execute(f"CREATE TABLE {sql} ({columns}, PRIMARY KEY ({key}))")

    def _become(self, topic: str, was: Shape, shape: Shape, sources: Mapping[str, str]) -> None:
        """Change a table; `sources` gives SQL of the old one's columns for columns of the new one.

        Without them its rows go: they come again under another key.
        """
        before, now = list(was.columns.items()), list(shape.columns.items())
        stays = now[: len(before)] == before and all(sources.get(name) == quoted(name) for name in was.columns)
        if stays and was.key == shape.key:
            for name, type_ in now[len(before) :]:
                self._file.execute(f"ALTER TABLE {shape.sql} ADD COLUMN {quoted(name)} {type_}")
        else:
            self._rebuild(shape, sources)
        self._shapes[topic] = shape
        self._forget(topic)

    def _rebuild(self, shape: Shape, sources: Mapping[str, str], extra: str = "") -> None:
        """Replace the table by one with the same rows; without sources it is empty."""
        schema, table = shape.record["schema"], shape.record["table"]
        new = named(schema, f"{_NEW}{table}")
        self._create(new, shape)
        if sources:
            into = ", ".join(map(quoted, sources))
            key = ", ".join(sources[name] for name in shape.key)
            there = " AND ".join(f"{sources[name]} IS NOT NULL" for name in shape.key)
            self._file.execute(
                f"INSERT INTO {new} ({into}) SELECT DISTINCT ON ({key}) {', '.join(sources.values())} "
                f"FROM {shape.sql} AS old {extra} WHERE {there}"
            )
        self._file.execute(f"DROP TABLE {shape.sql}")
        self._file.execute(f"ALTER TABLE {new} RENAME TO {quoted(table)}")

    def widen(self, topic: str, version: int, misfits: Collection[str]) -> None:
        """Let columns hold the text of their JSON, of the rows that are there too."""
        was = self._shapes[topic]
        kinds = {column["name"]: kind_of(column) for column in self._records[topic, version]["columns"]}
        names = [name for name in misfits if was.kinds.get(name) == kinds[name]]
        self._text.setdefault((topic, version), set()).update(set(misfits) - set(names))
        self._forget(topic)
        if names:
            self._widen(topic, was, names)

    def _widen(self, topic: str, was: Shape, names: Sequence[str]) -> None:
        shape = Shape(was.record, {n: TEXT if n in names else type_ for n, type_ in was.columns.items()})
        wanted = list(dict.fromkeys((*was.key, *names)))
        found = self._file.arrow(f"SELECT {', '.join(map(quoted, wanted))} FROM {was.sql}").combine_chunks()
        stage: dict[str, pa.Array] = {f"k{n}": _whole(found[name]) for n, name in enumerate(was.key)}
        for n, name in enumerate(names):
            stage[f"t{n}"] = pa.array(texts(_whole(found[name]), was.kinds[name]), pa.string())
        sources = {name: f"old.{quoted(name)}" for name in was.columns}
        sources |= {name: f"{STAGE}.t{n}" for n, name in enumerate(names)}
        join = " AND ".join(f"old.{quoted(name)} = {STAGE}.k{n}" for n, name in enumerate(was.key))
        with self._file.staged(pa.table(stage)):
            self._rebuild(shape, sources, f"JOIN {STAGE} ON {join}")
        self._shapes[topic] = shape
        self._forget(topic)
        log.warning(
            "table %s: a value does not fit into the type of column %s, which is VARCHAR from now on: the text of its "
            "JSON", shape.name, ", ".join(names),
        )  # fmt: skip

    def settle(self, unsettled: Collection[str]) -> None:
        """Drop the columns that the newest description of a table has not, and put the others into its order."""
        for topic, was in list(self._shapes.items()):
            if list(was.kinds) != list(was.columns) and was.name not in unsettled:
                shape = Shape(was.record, {name: was.columns[name] for name in was.kinds})
                self._become(topic, was, shape, {name: quoted(name) for name in was.kinds})


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _description(record: Mapping[str, Any]) -> Description:
    columns = tuple((column["name"], column["type"]) for column in record["columns"])
    return Description(columns, tuple(record["key"]), tuple(record.get("marks", ())))


def _changed(was: Shape, record: Mapping[str, Any]) -> tuple[Shape, dict[str, str]]:
    """Return a table by its new description, and what each of its columns is of the old table, in SQL."""
    old_names = {now: then for then, now in carried(was.description(), _description(record)).items()}
    columns, sources = dict[str, str](), dict[str, str]()
    for column in record["columns"]:
        name, kind = column["name"], kind_of(column)
        type_ = duckdb_type(kind, key=name in record["key"])
        then = old_names.get(name, name)
        if then in was.columns:
            held = was.columns[then]
            if then in was.text and was.kinds[then] == kind:
                type_ = TEXT
            sources[name] = quoted(then) if held == type_ else f"TRY_CAST({quoted(then)} AS {type_})"
        columns[name] = type_
    taken = {*old_names.values()}
    for name, type_ in was.columns.items():
        if name not in columns and name not in taken and not _is_taken(name, columns):
            columns[name], sources[name] = type_, quoted(name)
    in_order = [name for name in was.columns if name in columns]
    in_order += [name for name in columns if name not in was.columns]
    shape = Shape(record, {name: columns[name] for name in in_order})
    is_same_key = {old_names.get(name, name) for name in shape.key} == set(was.key)
    return shape, sources if is_same_key else {}


def _is_taken(name: str, columns: Collection[str]) -> bool:
    """Whether DuckDB takes a name for one of `columns`."""
    return folded(name) in map(folded, columns)


def folded(name: str) -> bytes:
    """Write a name so that two which DuckDB takes for one are the same."""
    return name.encode().lower()


def refuse(tables: Sequence[Table]) -> None:
    """Raise OperatorError for tables that no DuckDB file can hold."""
    names: dict[bytes, Table] = {}
    for table in tables:
        if table.schema.lower() in _RESERVED:
            raise OperatorError(
                f"table {table.qualified}: a DuckDB file has no room for a schema {table.schema}",
                hint=f'leave it out: source.tables: ["!{table.qualified}"]',
            )
        other = names.setdefault(folded(table.qualified), table)
        if (other.schema, other.name) != (table.schema, table.name):
            raise OperatorError(
                f"tables {other.qualified} and {table.qualified} are one name to DuckDB, which does not tell upper "
                "from lower case",
                hint=f'leave one of them out: source.tables: ["!{table.qualified}"]; or give it a connector and a file '
                "of its own",
            )
        columns: dict[bytes, str] = {}
        for column in table.columns:
            known = columns.setdefault(folded(column.name), column.name)
            if known != column.name:
                raise OperatorError(
                    f"table {table.qualified}: columns {known} and {column.name} are one name to DuckDB, which does "
                    "not tell upper from lower case",
                    hint=f"leave one of them out: source.columns: {{{table.qualified}: {{exclude: [{column.name}]}}}}",
                )
