"""Makes a table, and gives it the columns and properties that it must have."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from pyspark.errors import AnalysisException
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses
from pyspark.sql import types as T  # noqa: N812 - the same

from cdc.model.errors import OperatorError
from spark_apply.model.completeness import NEW
from spark_apply.model.identity import stamp
from spark_apply.model.target_table import TargetTable, other_target
from spark_apply.spark.names import quoted
from spark_apply.stores.delta.log import DeltaLog, Properties
from spark_apply.stores.lake.columns import Change, column_changes, lake_row_type, made_again, without
from spark_apply.stores.lake.properties import IDENTITY, MARK

VECTORS = "delta.enableDeletionVectors"
_MAPPING, _WIDENING = "delta.columnMapping.mode", "delta.enableTypeWidening"
_IN_FILES, _CHANGED = "delta.columnMapping.physicalName", "delta.typeChanges"
_NEEDS_MAPPING = re.compile(r"[ ,;{}()\n\t=]")
TAKEN: Final = ("__delta_internal_is_row_deleted", "_file_name_", "_metadata", "_row_id_", "_tmp_metadata_row_index")
"""Names of columns that Delta has for its own in a MERGE."""
_OF_VECTORS: Final = frozenset({"deletionVectorId", "filePath", "path", "rowIndexCol"})
"""Names that Delta's MERGE gives columns of its own where it notes which rows of a file are deleted; beside one of the
table's it fails. See https://github.com/delta-io/delta/issues/5296."""
_THERE = ("TABLE_OR_VIEW_ALREADY_EXISTS", "DELTA_CREATE_TABLE_WITH_NON_EMPTY_LOCATION")

_PROPERTIES = {
    VECTORS: "true",
    "delta.checkpointInterval": "20",  # a batch is two commits
    "delta.feature.timestampNtz": "supported",  # a column may come that needs it
}


def create(log: DeltaLog, table: TargetTable) -> None:
    """Make an empty table. Raises OperatorError where its folder is something else."""
    wanted = lake_row_type(stored(table))
    columns = ", ".join(f"{quoted(field.name)} {field.dataType.simpleString()}" for field in wanted)
    properties = {**_PROPERTIES, **_vectors(wanted), IDENTITY: stamp(table), MARK: NEW.to_json()}
    if any(_NEEDS_MAPPING.search(field.name) for field in wanted):
        properties[_MAPPING] = "name"
    try:
        log.spark.sql(f"CREATE TABLE {log.name} ({columns}) USING delta {_clause(properties)}")
    except AnalysisException as exc:
        if exc.getCondition() not in _THERE:
            raise
        msg = f"the folder {log.path} is there already and holds no Delta table"
        raise OperatorError(msg, hint=f"give the store another path; or {other_target(table)}") from exc


def evolve(log: DeltaLog, table: TargetTable, *, but: Iterable[T.StructField] = ()) -> None:
    """Add and widen columns, `but` these. Raises OperatorError for one that cannot be altered in place."""
    for field, before in changes(log, table, but=but):
        kind = field.dataType.simpleString()
        if before is None:
            if _NEEDS_MAPPING.search(field.name):
                need(log, {_MAPPING: "name"})
            log.spark.sql(f"ALTER TABLE {log.name} ADD COLUMNS ({quoted(field.name)} {kind})")
        else:
            need(log, {_WIDENING: "true"})
            log.spark.sql(f"ALTER TABLE {log.name} ALTER COLUMN {quoted(field.name)} TYPE {kind}")
    if vectors := _vectors(_there(log)):
        need(log, vectors)


def _vectors(columns: T.StructType) -> Properties:
    """Return the property of a table of which files are written again where rows of them change.

    `columns` are all that it has: one that somebody has added is in the way of a MERGE, too.
    """
    return {} if _OF_VECTORS.isdisjoint(columns.fieldNames()) else {VECTORS: "false"}


def changes(log: DeltaLog, table: TargetTable, *, but: Iterable[T.StructField] = ()) -> Iterator[Change]:
    """Yield the columns that are missing or too narrow, and raise, as `column_changes` does."""
    wanted = without(lake_row_type(stored(table)), but)
    return column_changes(_there(log), wanted, table, f"Delta table {log.path}")


def others(log: DeltaLog, table: TargetTable) -> list[T.StructField]:
    """Return the columns that a copy beside the live one must have otherwise."""
    return made_again(_there(log), lake_row_type(stored(table)))


def _there(log: DeltaLog) -> T.StructType:
    return log.spark.read.format("delta").load(log.path).schema


def with_types(schema: str, types: Mapping[str, Any]) -> str:
    """Return a schema, in JSON, in which columns have these types, and no note of how they came to others."""
    found = json.loads(schema)
    for field in found["fields"]:
        if field["name"] in types:
            field["type"] = types[field["name"]]
            field["metadata"].pop(_CHANGED, None)
    return json.dumps(found)


def with_columns(schema: str, other: str) -> str:
    """Return a schema, in JSON, in which columns of other types than in `other` are as they are there."""
    found, wanted = json.loads(schema), {field["name"]: field for field in json.loads(other)["fields"]}
    fields = [(field, wanted.get(field["name"], field)) for field in found["fields"]]
    found["fields"] = [had if had["type"] == there["type"] else there for had, there in fields]
    return json.dumps(found)


def need(log: DeltaLog, wanted: Properties) -> None:
    """Set properties that are missing: a feature that readers must support is enabled only when needed."""
    if not wanted.items() <= log.properties().items():
        log.spark.sql(f"ALTER TABLE {log.name} SET {_clause(wanted)}")


def _clause(properties: Properties) -> str:
    """Write properties in SQL; keys and values are ours, and hold no quotes."""
    entries = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
    return f"TBLPROPERTIES ({entries})"


def stored(table: TargetTable) -> TargetTable:
    """Return the table with its column names in Delta, which does not distinguish ``Id`` and ``id``."""
    names: dict[str, str] = {}
    taken: set[str] = set()
    for column in table.columns:
        name, number = column.name, 1
        while name.casefold() in taken:
            number += 1
            name = f"{column.name}_{number}"
        taken.add(name.casefold())
        names[column.name] = name
    columns = tuple(replace(column, name=names[column.name]) for column in table.columns)
    key, untracked = (tuple(names[name] for name in of) for of in (table.key, table.untracked))
    return replace(table, columns=columns, key=key, untracked=untracked)


def names_in_files(schema: str) -> dict[str, int | str | None]:
    """Return what each column of a schema, in JSON, is called in files; without a mapping that is its name."""
    return {of["name"]: of["metadata"].get(_IN_FILES, of["name"]) for of in json.loads(schema)["fields"]}


def columns(table: TargetTable) -> list[Column]:
    """Return the table's columns under their names in Delta."""
    names = zip(table.columns, stored(table).columns, strict=True)
    return [F.col(quoted(column.name)).alias(kept.name) for column, kept in names]
