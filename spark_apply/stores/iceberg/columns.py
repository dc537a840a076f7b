"""Makes a table, and gives it the columns that it must have."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final

from spark_apply.model.completeness import NEW
from spark_apply.model.identity import stamp
from spark_apply.model.target_table import TargetTable
from spark_apply.spark.names import quoted
from spark_apply.stores.iceberg.tables import IcebergTables
from spark_apply.stores.lake.columns import column_changes, lake_row_type
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


def changes(tables: IcebergTables, table: TargetTable) -> Iterator[tuple[str, str]]:
    """Yield the needed changes, in words and as SQL. Raises OperatorError for one that is impossible in place."""
    name = tables.name(table)
    there = tables.spark.table(name).schema
    for field, before in column_changes(there, lake_row_type(table), table, f"Iceberg table {name}"):
        kind = field.dataType.simpleString()
        if before is None:
            yield f"add column {field.name} {kind}", f"ALTER TABLE {name} ADD COLUMN {quoted(field.name)} {kind}"
        else:
            told = f"widen column {field.name} from {before.simpleString()} to {kind}"
            yield told, f"ALTER TABLE {name} ALTER COLUMN {quoted(field.name)} TYPE {kind}"
