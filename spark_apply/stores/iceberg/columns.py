"""Makes a table, and gives it the columns that it must have."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from pyspark.sql import types as T  # noqa: N812 - the name everyone uses

from cdc.model.errors import OperatorError
from spark_apply.model.completeness import NEW
from spark_apply.model.identity import stamp
from spark_apply.model.target_table import TargetTable, other_target
from spark_apply.spark.names import quoted
from spark_apply.stores.iceberg.partitions import partitioned_by, sorted_by
from spark_apply.stores.iceberg.tables import IcebergTables
from spark_apply.stores.lake.columns import column_changes, lake_row_type, made_again, without
from spark_apply.stores.lake.properties import IDENTITY, MARK
from spark_apply.stores.lake.rows import no_rows

_PROPERTIES = {
    "format-version": "2",
    "write.delete.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.merge.mode": "merge-on-read",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "50",
}
TAKEN: Final = ("_file", "_partition", "_pos", "_row_id", "_spec_id")
"""Names of the format's own columns that a MERGE reads. See https://iceberg.apache.org/spec/#reserved-field-ids."""
_BESIDE: Final = "_cdc_beside_"
NOT_READ: Final = ("_deleted", "_last_updated_sequence_number")
"""Those of which a copy can be written, and is, but `SELECT *` of Spark ends with an error."""


def create(tables: IcebergTables, table: TargetTable) -> None:
    """Make an empty table."""
    tables.spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {tables.namespace(table)}")
    writer = no_rows(tables.spark, lake_row_type(table)).writeTo(tables.name(table)).using("iceberg")
    mark = json.dumps({**json.loads(NEW.to_json()), "snapshot": None})
    for key, value in {**_PROPERTIES, IDENTITY: stamp(table), MARK: mark}.items():
        writer = writer.tableProperty(key, value)
    writer.create()


def changes(
    tables: IcebergTables, table: TargetTable, *, but: Iterable[T.StructField] = ()
) -> Iterator[tuple[str, str]]:
    """Yield the needed changes, in words and as SQL, `but` those of some columns.

    Raises OperatorError for one that is impossible in place.
    """
    name, wanted = tables.name(table), without(lake_row_type(table), but)
    there = tables.spark.table(name).schema
    for field, before in column_changes(there, wanted, table, f"Iceberg table {name}"):
        kind = field.dataType.simpleString()
        if before is None:
            yield f"add column {field.name} {kind}", f"ALTER TABLE {name} ADD COLUMN {quoted(field.name)} {kind}"
        else:
            told = f"widen column {field.name} from {before.simpleString()} to {kind}"
            yield told, f"ALTER TABLE {name} ALTER COLUMN {quoted(field.name)} TYPE {kind}"


def others(tables: IcebergTables, table: TargetTable) -> list[T.StructField]:
    """Return the columns that a copy beside the live one must have otherwise.

    Raises OperatorError for one by which the table is or was partitioned or sorted: that is of the type that it has.
    """
    name = tables.name(table)
    found = made_again(tables.spark.table(name).schema, lake_row_type(table))
    refuse_used(tables, table, tables.loaded(table), [field.name for field in found])
    return found


def refuse_used(
    tables: IcebergTables,
    table: TargetTable,
    loaded: Any,  # noqa: ANN401 - Java's org.apache.iceberg.Table
    columns: Iterable[str],
) -> None:
    """Raise OperatorError for a column that cannot be replaced: the table is, or was, partitioned or sorted by it."""
    for column in columns:
        where = f"Iceberg table {tables.name(table)}, column {column}"
        if column in partitioned_by(loaded):
            raise OperatorError(f"{where}: it partitions the table, with another type", hint=other_target(table))
        if column in sorted_by(loaded):
            raise OperatorError(f"{where}: it sorts the table, with another type", hint=other_target(table))


def add_beside(tables: IcebergTables, table: TargetTable, others: Sequence[T.StructField]) -> dict[str, str]:
    """Add empty columns that take the place of `others` in a swap; return their names by those of the others."""
    drop_beside(tables, table)  # of a rebuild that was killed
    name = tables.name(table)
    new = {field.name: f"{_BESIDE}{field.name}" for field in others}
    added = ", ".join(f"{quoted(new[field.name])} {field.dataType.simpleString()}" for field in others)
    if added:
        tables.spark.sql(f"ALTER TABLE {name} ADD COLUMNS ({added})")
    return new


def drop_beside(tables: IcebergTables, table: TargetTable) -> None:
    """Drop the columns that `add_beside` has added."""
    name = tables.name(table)
    left = [quoted(of) for of in tables.spark.table(name).schema.names if of.startswith(_BESIDE)]
    if left:
        tables.spark.sql(f"ALTER TABLE {name} DROP COLUMNS ({', '.join(left)})")


def with_beside(schema: str) -> str:
    """Return a schema, in JSON, in which the columns of `add_beside` have taken the place of others."""
    found = json.loads(schema)
    taking = {of["name"]: of for of in found["fields"] if of["name"].startswith(_BESIDE)}
    kept = [of for of in found["fields"] if of["name"] not in taking]
    fields = [{**taking.get(f"{_BESIDE}{of['name']}", of), "name": of["name"]} for of in kept]
    return json.dumps({**found, "fields": fields})


def replaced(schema: str, by: str) -> str:
    """Return the columns of a schema, in JSON, that are others than those of their names in the schema `by`."""
    now = {of["name"]: of["id"] for of in json.loads(by)["fields"]}
    return json.dumps([of for of in json.loads(schema)["fields"] if now.get(of["name"], of["id"]) != of["id"]])


def names_of(columns: str) -> list[str]:
    """Return the names of the columns that `replaced` gave."""
    return [of["name"] for of in json.loads(columns)]


def with_columns(schema: str, columns: str) -> str:
    """Return a schema, in JSON, with the columns that `replaced` gave in the place of those of their names."""
    found, had = json.loads(schema), {of["name"]: of for of in json.loads(columns)}
    return json.dumps({**found, "fields": [had.get(of["name"], of) for of in found["fields"]]})
