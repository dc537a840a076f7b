"""Apache Iceberg tables, one for each source table, in a folder or in any catalog Spark can use.

    stores:
      warehouse: {type: iceberg, path: ./warehouse}
      lake:      {type: iceberg, options: {catalog: {type: rest, uri: "http://…"}}}

A table is ``<store>.<schema>.<table>``, format 2, merge-on-read, with the source's columns and ``_cdc_position
STRING``: the position of the event that wrote the row, which guards every MERGE. The applied position is in the
summary of the snapshot that holds the batch (``cdc.position``), so both are committed by one swap of the table's
metadata.
"""

from __future__ import annotations

import contextlib
import re
import uuid
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import cast

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses
from pyspark.sql import types as T  # noqa: N812 - the same

from cdc.config import StoreConfig
from cdc.errors import ConfigError, OperatorError
from spark_apply.document import DOCUMENT, document, with_document
from spark_apply.names import folder_name, quoted
from spark_apply.store import Applied, Batch, StoredRow, only_options
from spark_apply.tables import TargetTable
from spark_apply.typed import OP, POSITION, row_type

_IDENTITY = "cdc.identity"
_POSITION_PROPERTY = "cdc.position"
_SUMMARY = f"spark.sql.iceberg.snapshot-property.{_POSITION_PROPERTY}"
_VIEW = "_cdc_batch"
_ID = "_cdc_id"

_PROPERTIES = {
    "format-version": "2",
    "write.delete.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.merge.mode": "merge-on-read",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "50",
}


def open_store(config: StoreConfig, *, name: str, prefix: str, spark: SparkSession) -> IcebergStore:
    """Point the session's catalog `name` at the folder or catalog of `config`; makes nothing."""
    del prefix  # a warehouse is one connector's by its path
    only_options(config, name, ("catalog",))
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name):
        raise ConfigError(f"stores.{name}: this name cannot be a Spark catalog's", hint="letters, digits and _")
    catalog = config.options.get("catalog")
    settings: dict[str, str] = {}
    if config.path is not None:
        location = config.path if "://" in config.path else str(Path(config.path).absolute())
        settings |= {"type": "hadoop", "warehouse": location}
    if catalog is not None:
        if not isinstance(catalog, Mapping):
            raise ConfigError(
                f"stores.{name}.options.catalog: keys and values are needed", hint="catalog: {type: rest, …}"
            )
        settings |= {str(key): str(value) for key, value in cast("Mapping[object, object]", catalog).items()}
    if not settings:
        raise ConfigError(f"stores.{name}: neither path nor options.catalog is given", hint="path: ./warehouse")
    spark.conf.set(f"spark.sql.catalog.{name}", "org.apache.iceberg.spark.SparkCatalog")
    for key, value in settings.items():
        spark.conf.set(f"spark.sql.catalog.{name}.{key}", value)
    return IcebergStore(name, spark)


class IcebergStore:
    """A `spark_apply.store.Store`."""

    def __init__(self, catalog: str, spark: SparkSession) -> None:
        self._catalog = catalog
        self._spark = spark
        self._positions: dict[str, str | None] = {}

    def open(self, table: TargetTable) -> str:
        name = self.table_name(table)
        wanted = T.StructType([*row_type(table), T.StructField(POSITION, T.StringType())])
        if not self._spark.catalog.tableExists(name):
            self._create(table, name, wanted)
        properties = {row["key"]: row["value"] for row in self._spark.sql(f"SHOW TBLPROPERTIES {name}").collect()}
        identity = properties.get(_IDENTITY)
        if identity is None:
            msg = f"Iceberg table {name} is there already and was not made by this toolkit"
            raise OperatorError(msg, hint="give the store another path, or drop the table")
        self._evolve(table, name, wanted)
        self._positions[table.qualified] = self._read_position(name)
        return str(identity)

    def apply(self, batch: Batch) -> Applied:
        name, spark = self.table_name(batch.table), batch.rows.sparkSession
        before = self._positions[batch.table.qualified]
        spark.conf.set(_SUMMARY, max(before or "", batch.position))
        try:
            if before is None:  # nothing to merge with: no join, no delete files
                rows = batch.rows.where(F.col(OP) != "d")
                rows.select(*(quoted(c.name) for c in batch.table.columns), POSITION).writeTo(name).append()
            else:
                batch.rows.createOrReplaceTempView(_VIEW)
                spark.sql(_merge(batch.table, name))
                spark.catalog.dropTempView(_VIEW)
        finally:
            spark.conf.unset(_SUMMARY)
        self._positions[batch.table.qualified] = max(before or "", batch.position)
        return Applied()

    def position(self, table: TargetTable) -> str | None:
        return self._read_position(self.table_name(table))

    def rows(self, table: TargetTable, ids: Collection[str] | None = None) -> Iterator[StoredRow]:
        rows = self.read(table)
        for column in row_type(table):
            if column.name not in rows.columns:  # of a version that the job has not come to yet
                rows = rows.withColumn(column.name, F.lit(None).cast(column.dataType))
        if ids is not None:
            key = T.StructType([field for field in row_type(table) if field.name in table.key])
            asked = self._spark.createDataFrame([(id_,) for id_ in ids], "id string")
            asked = asked.select(F.from_json("id", key).alias("key")).select("key.*")
            rows = rows.join(F.broadcast(asked), [*table.key], "left_semi")
        found = with_document(rows, table).withColumn(_ID, document(rows, table, only=table.key))
        return (StoredRow(row[_ID], row[DOCUMENT]) for row in found.select(_ID, DOCUMENT).toLocalIterator())

    def id_of(self, event_key: str, document_key: str) -> str:
        del event_key
        return document_key

    def read(self, table: TargetTable) -> DataFrame:
        """The whole table as it is now: the source's columns and ``_cdc_position STRING``."""
        name = self.table_name(table)
        try:
            self._spark.catalog.refreshTable(name)
            return self._spark.table(name)
        except AnalysisException as exc:
            msg = f"Iceberg table {name} cannot be read"
            raise OperatorError(msg, hint="has the apply job made it? cdc apply") from exc

    def close(self) -> None:
        self._positions.clear()

    def table_name(self, table: TargetTable) -> str:
        """The table's name, quoted for Spark's SQL."""
        return ".".join(map(quoted, (self._catalog, folder_name(table.schema), folder_name(table.name))))

    def _create(self, table: TargetTable, name: str, wanted: T.StructType) -> None:
        namespace = ".".join(map(quoted, (self._catalog, folder_name(table.schema))))
        self._spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {namespace}")
        writer = self._spark.createDataFrame([], wanted).writeTo(name).using("iceberg")
        for key, value in {**_PROPERTIES, _IDENTITY: str(uuid.uuid4())}.items():
            writer = writer.tableProperty(key, value)
        writer.create()

    def _evolve(self, table: TargetTable, name: str, wanted: T.StructType) -> None:
        there = {field.name: field.dataType for field in self._spark.table(name).schema}
        for field in wanted:
            kind = field.dataType.simpleString()
            if field.name not in there:
                self._spark.sql(f"ALTER TABLE {name} ADD COLUMN {quoted(field.name)} {kind}")
            elif there[field.name] != field.dataType:
                if not _widens(there[field.name], field.dataType):
                    found = there[field.name].simpleString()
                    msg = f"Iceberg table {name}, column {field.name}: it is {found} and would have to be {kind}"
                    way_out = (
                        f"types: {{{field.name}: string}} under tables.{table.qualified}, and a new path for the store"
                    )
                    raise OperatorError(msg, hint=f"{way_out}: it is filled again from the topics")
                self._spark.sql(f"ALTER TABLE {name} ALTER COLUMN {quoted(field.name)} TYPE {kind}")

    def _read_position(self, name: str) -> str | None:
        with contextlib.suppress(AnalysisException):
            self._spark.catalog.refreshTable(name)
        snapshots = self._spark.table(f"{name}.snapshots").select(
            F.max(F.col("summary").getItem(_POSITION_PROPERTY)).alias("position")
        )
        found = snapshots.collect()[0]["position"]
        return None if found is None else str(found)


def _merge(table: TargetTable, name: str) -> str:
    columns = [quoted(column.name) for column in table.columns]
    same_key = " AND ".join(f"t.{quoted(key)} = s.{quoted(key)}" for key in table.key)
    newer = f"NOT coalesce(t.{POSITION} >= s.{POSITION}, false)"  # a row that another hand wrote may have none
    values = ", ".join(f"{column} = s.{column}" for column in (*columns, POSITION))
    return (  # every name in it is quoted; no value is
        f"MERGE INTO {name} t USING {_VIEW} s ON {same_key} "  # noqa: S608
        f"WHEN MATCHED AND {newer} AND s.{OP} = 'd' THEN DELETE "
        f"WHEN MATCHED AND {newer} THEN UPDATE SET {values} "
        f"WHEN NOT MATCHED AND s.{OP} <> 'd' THEN INSERT ({', '.join((*columns, POSITION))}) "
        f"VALUES ({', '.join(f's.{column}' for column in (*columns, POSITION))})"
    )


def _widens(there: T.DataType, wanted: T.DataType) -> bool:
    """Whether Iceberg can alter the column in place; equal on the narrower side counts as well."""
    if isinstance(there, T.DecimalType) and isinstance(wanted, T.DecimalType):
        return there.scale == wanted.scale and there.precision <= wanted.precision
    pairs = ((T.IntegerType, T.LongType), (T.FloatType, T.DoubleType))
    return any(isinstance(there, narrow) and isinstance(wanted, wide) for narrow, wide in pairs)
