"""Keeps an Apache Iceberg table for each source table, in a folder or in any catalog that Spark can use.

    stores:
      warehouse: {type: iceberg, path: ./warehouse}
      lake:      {type: iceberg, options: {catalog: {type: rest, uri: "http://…"}}}

A table is ``<store>.<schema>.<table>``, format 2, merge-on-read, with the source's columns and ``_cdc_position
STRING``: the position of the event that wrote the row, which guards every MERGE. The applied position is in the
summary of the snapshot that holds the batch (``cdc.position``), so both are committed by one swap of the table's
metadata. It is the first one found from a copy's head backwards, not the greatest of all: after a rollback the copy has
less than the one it replaces. The mark is a table property (``cdc.mark``) that names its snapshot: if that is no
ancestor of the current one, or a catch-up is due, there is no mark.

``main`` is the live copy; a copy beside it is a branch ``cdc_beside_…``, which begins with a snapshot without rows. A
swap is one commit that makes the branch ``main`` and tags the former ``main`` as ``cdc_previous``. A MERGE that spans
the swap fails, because Iceberg finds that it has not read what it writes to. Maintenance expires snapshots that no
branch or tag needs, but none by which position or mark are found.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, DataFrameWriterV2, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses
from pyspark.sql import types as T  # noqa: N812 - the same

from cdc.config.apply_config import StoreConfig
from cdc.model.errors import CdcError, ConfigError, OperatorError
from spark_apply.events.typed import OP, POSITION
from spark_apply.model.altered import put_back, retyped
from spark_apply.model.clock import CLOCK
from spark_apply.model.completeness import Mark
from spark_apply.model.foresight import Foreseen
from spark_apply.model.store import Applied, Batch, Due, only_options
from spark_apply.model.target_table import TargetTable
from spark_apply.model.upkeep import HOUR_MS, Upkeep, upkeep_of
from spark_apply.spark.names import folder_name, quoted
from spark_apply.spark.paths import local, located
from spark_apply.spark.session import open_session
from spark_apply.stores.iceberg.columns import NOT_READ, TAKEN, add_beside, changes, create, drop_beside, others
from spark_apply.stores.iceberg.copies import MAIN, begin_beside, put_previous_back, replaced_at, schema_of, swap_in
from spark_apply.stores.iceberg.maintenance import compact, expire, unneeded, worn
from spark_apply.stores.iceberg.marks import has_no_rows, mark_in_folder, mark_of, position_at, standing
from spark_apply.stores.iceberg.partitions import fields_of, lie_by_hash, noted, noted_of, partition
from spark_apply.stores.iceberg.tables import IcebergTables
from spark_apply.stores.lake.columns import refuse_taken
from spark_apply.stores.lake.history import Head, HistoryTable, add_versions
from spark_apply.stores.lake.keys import one_of_each_key, several_texts
from spark_apply.stores.lake.merge import merge
from spark_apply.stores.lake.properties import (
    APPLIED,
    CAUGHT_UP,
    IDENTITY,
    MARK,
    due_in,
    kept_in,
    own_identity,
    required_stamp,
)
from spark_apply.stores.lake.store import LakeStore

_SUMMARY = f"spark.sql.iceberg.snapshot-property.{APPLIED}"
_NO_FOLDER = "Mkdirs failed"
_ANY_SCHEMA = "write.spark.accept-any-schema"
_CATALOG = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


def open_store(config: StoreConfig, *, name: str, prefix: str, spark: SparkSession | None) -> IcebergStore:
    """Point the session's catalog `name` at the folder or catalog of `config`; makes nothing.

    Without `spark`, the marks of tables in a folder are read from there; for any other catalog Spark is started.
    """
    del prefix  # a warehouse is one connector's by its path
    only_options(config, name, ("catalog", "upkeep"))
    upkeep = upkeep_of(config, name)
    if _CATALOG.fullmatch(name) is None:
        raise ConfigError(f"stores.{name}: this name cannot be a Spark catalog's", hint="letters, digits and _")
    catalog = config.options.get("catalog")
    settings: dict[str, str] = {}
    if config.path is not None:
        settings |= {"type": "hadoop", "warehouse": located(config.path)}
    if catalog is not None:
        if not isinstance(catalog, Mapping):
            raise ConfigError(
                f"stores.{name}.options.catalog: keys and values are needed", hint="catalog: {type: rest, …}"
            )
        settings |= {str(key): str(value) for key, value in cast("Mapping[object, object]", catalog).items()}
    if not settings:
        raise ConfigError(f"stores.{name}: neither path nor options.catalog is given", hint="path: ./warehouse")
    here = local(settings["warehouse"]) if catalog is None else None
    if spark is None and here is not None:
        return IcebergStore(name, None, here)
    spark = spark or open_session(f"marks of {name}")
    spark.conf.set(f"spark.sql.catalog.{name}", "org.apache.iceberg.spark.SparkCatalog")
    for key, value in settings.items():
        spark.conf.set(f"spark.sql.catalog.{name}.{key}", value)
    return IcebergStore(name, spark, upkeep=upkeep)


class IcebergStore(LakeStore):
    """A `spark_apply.model.store.Store`."""

    expires = True

    def __init__(
        self,
        catalog: str,
        spark: SparkSession | None,
        folder: Path | None = None,
        *,
        branch: str = MAIN,
        upkeep: Upkeep | None = None,
    ) -> None:
        """Without `spark`, only `mark` works, for tables below `folder`."""
        super().__init__(upkeep)
        self._catalog = catalog
        self._folder = folder
        self._branch = branch
        self._tables = IcebergTables(catalog, spark)
        self._seen: dict[str, tuple[int | None, str | None]] = {}
        """By table, the head and what was due when this job looked last."""
        self._schemas: dict[str, int] = {}
        """By table, the number of the schema whose columns fit it."""
        self._names: dict[str, dict[str, str]] = {}
        """By table of a copy beside the live one, the columns that have another name until the swap."""
        self._unswapped: dict[str, TargetTable] = {}
        """By branch, the tables that have columns for it beside those of the live copy."""

    def foresee(self, table: TargetTable) -> Foreseen:
        self._refuse_taken(table)
        if not self._tables.is_there(table):
            return Foreseen(None)
        self._refuse_altered(table)
        told = [words for words, _ in changes(self._tables, table)]
        if noted(table) != noted_of(self._tables.loaded(table)):
            told.append(f"partition by {noted(table)} from now on")
        return Foreseen(self._identity(table), tuple(told))

    def _refuse_taken(self, table: TargetTable) -> None:
        name = f"Iceberg table {self.table_name(table)}"
        refuse_taken(table, TAKEN, name)
        if self._tables.is_there(table):
            refuse_taken(table, fields_of(self._tables.loaded(table)), name, "a field of its partitions")
        else:
            refuse_taken(table, NOT_READ, name)

    def open(self, table: TargetTable) -> str:
        self._refuse_taken(table)
        if not self._tables.is_there(table):
            create(self._tables, table)
        own = self._identity(table)
        self._refuse_altered(table)
        self._evolve(table)
        partition(self._tables.loaded(table), self._tables.java.expressions.Expressions, table)
        self._cleaned.begin(table)
        self._positions[table.qualified] = self.position(table)
        loaded = self._tables.loaded(table)
        self._seen[table.qualified] = standing(loaded)
        self._schemas[table.qualified] = int(loaded.schema().schemaId())
        self._fits(table, self._columns(loaded))
        self._marks.opened(table.qualified, kept_in(loaded.properties(), own))
        return own

    def _refuse_altered(self, table: TargetTable) -> None:
        there, copy = self._columns(self._tables.loaded(table)), f"Iceberg table {self.table_name(table)}"
        self._refuse_lost(table, table, there, copy)
        self._refuse_others(self._tables.spark, table, table, there, copy)

    def _identity(self, table: TargetTable) -> str:
        name = self.table_name(table)
        properties = {
            row["key"]: row["value"] for row in self._tables.spark.sql(f"SHOW TBLPROPERTIES {name}").collect()
        }
        return own_identity(properties.get(IDENTITY), table, f"Iceberg table {name}")

    def _evolve(self, table: TargetTable, *, but: Iterable[T.StructField] = ()) -> None:
        for _, statement in list(changes(self._tables, table, but=but)):  # all of them, or none
            self._tables.spark.sql(statement)

    def _columns(self, loaded: Any) -> dict[str, int | str | None]:  # noqa: ANN401 - Java's org.apache.iceberg.Table
        return {of["name"]: of["id"] for of in json.loads(schema_of(self._tables, loaded.schema()))["fields"]}

    def _require_line(self, table: TargetTable, loaded: Any) -> None:  # noqa: ANN401 - Java's org.apache.iceberg.Table
        """Raise RetryableError where the head does not come from the one that was seen last: it was rolled back.

        A swap is told by what it leaves due, and is followed elsewhere. A head that has expired says nothing.
        """
        (head, due), (now, due_now) = self._seen.get(table.qualified, (None, None)), standing(loaded)
        if head is None or due != due_now or loaded.snapshot(head) is None:
            return
        if now is None or not self._tables.java.util.SnapshotUtil.isAncestorOf(loaded, now, head):
            self._marks.altered(table.qualified)
            raise put_back(f"Iceberg table {self.table_name(table)}")

    def _require_types(self, table: TargetTable, loaded: Any) -> None:  # noqa: ANN401 - Java's org.apache.iceberg.Table
        """Raise CdcError where another hand has given columns other types: Spark would round or cut off values."""
        if (now := int(loaded.schema().schemaId())) == self._schemas.get(table.qualified):
            return
        self._refuse_lost(table, table, (there := self._columns(loaded)), f"Iceberg table {self.table_name(table)}")
        if list(changes(self._tables, table)):
            raise retyped(f"Iceberg table {self.table_name(table)}")
        self._schemas[table.qualified] = now
        self._fits(table, there)

    def apply(self, batch: Batch) -> Applied:
        name, spark = self._copy_name(batch.table), batch.rows.sparkSession
        self._tables.forget(batch.table, spark)
        if self._branch == MAIN:
            loaded = self._tables.loaded(batch.table)
            # a rebuild may have swapped in another shape
            own_identity(loaded.properties().get(IDENTITY), batch.table, f"Iceberg table {name}")
            self._require_line(batch.table, loaded)
            self._require_types(batch.table, loaded)
            copy = f"Iceberg table {name}"
            self._marks.writes(batch.table.qualified, kept_in(loaded.properties(), copy), copy)
        before, head = self._before(batch.table)
        kept, rows = self._stored(batch.table), self._named(batch.rows, batch.table)
        spark.conf.set(_SUMMARY, max(before or "", batch.position))
        try:
            if batch.table.history:
                add_versions(rows, self._history(kept))
            elif before is None and has_no_rows(head):  # nothing to merge with: no join, no delete files
                self._add(kept, rows, head)
            else:
                merge(kept, name, rows, batch.keys, [field.name for field in self._others(spark, kept)])
        except (PySparkException, Py4JJavaError) as exc:
            if isinstance(exc, AnalysisException):
                self._refuse_any_schema(batch.table)
            if _NO_FOLDER not in str(exc) or not lie_by_hash(self._tables.loaded(batch.table), batch.table):
                raise
            return self.apply(batch)  # once: they do now
        finally:
            spark.conf.unset(_SUMMARY)
        if self._branch == MAIN:
            self._require_line(batch.table, loaded := self._tables.loaded(batch.table))
            self._seen[batch.table.qualified] = standing(loaded)
        self._positions[batch.table.qualified] = max(before or "", batch.position)
        return Applied()

    def _refuse_any_schema(self, table: TargetTable) -> None:
        """Raise OperatorError where somebody lets writers bring any columns: Spark resolves no name of a MERGE then."""
        if str(self._tables.loaded(table).properties().get(_ANY_SCHEMA)).lower() == "true":
            name = self.table_name(table)
            msg = f"Iceberg table {name} has {_ANY_SCHEMA}, with which Spark takes no MERGE"
            raise OperatorError(msg, hint=f"ALTER TABLE {name} UNSET TBLPROPERTIES ('{_ANY_SCHEMA}')")

    def fill(self, table: TargetTable, rows: DataFrame) -> None:
        rows.sparkSession.catalog.refreshTable(self.table_name(table))
        self._add(self._stored(table), self._named(rows, table), self._head(self._tables.loaded(table)))

    def filled(self, table: TargetTable, position: str) -> None:
        self._tables.commit(table, lambda of: of.newAppend().set(APPLIED, position).toBranch(self._branch).commit())
        self._positions[table.qualified] = position

    def _add(self, table: TargetTable, rows: DataFrame, head: Any) -> None:  # noqa: ANN401 - Java's Snapshot
        """Write rows of new keys; fails if another commit came after `head`, if that is given."""
        nulls = (F.lit(None).cast(field.dataType).alias(field.name) for field in self._others(rows.sparkSession, table))
        if several_texts(table):
            rows = one_of_each_key(rows, table)
        rows = rows.where(F.col(OP) != "d").select(*(quoted(c.name) for c in table.columns), POSITION, *nulls)
        writer = _if_nothing_came(rows.writeTo(self._copy_name(table)), head)
        writer.overwrite(F.lit(False))  # noqa: FBT003 - overwrites no row

    def _others(self, spark: SparkSession, table: TargetTable) -> list[T.StructField]:
        """Return the columns of an earlier shape of the table."""
        columns = {*(column.name for column in table.columns), POSITION}
        return [field for field in spark.table(self._copy_name(table)).schema if field.name not in columns]

    def _stored(self, table: TargetTable) -> TargetTable:
        """Return the table with the names that its columns have in this copy."""
        names = self._names.get(table.qualified, {})
        columns = tuple(replace(column, name=names.get(column.name, column.name)) for column in table.columns)
        key, untracked = (tuple(names.get(name, name) for name in of) for of in (table.key, table.untracked))
        return replace(table, columns=columns, key=key, untracked=untracked) if names else table

    def _named(self, rows: DataFrame, table: TargetTable) -> DataFrame:
        names = self._names.get(table.qualified)
        return rows.withColumnsRenamed(names) if names else rows

    def _history(self, table: TargetTable) -> HistoryTable:
        name = self._copy_name(table)

        def read(spark: SparkSession) -> DataFrame:
            spark.catalog.refreshTable(self.table_name(table))
            return spark.table(name)

        def head() -> Head | None:
            found = self._head(self._tables.loaded(table))
            return None if found is None else (found.snapshotId(), found.parentId())

        return HistoryTable(table, name, read, head)

    def _before(self, table: TargetTable) -> tuple[str | None, Any]:
        """Return the applied position; if there is none, also the snapshot, because another job may have started."""
        head = None
        if self._positions[table.qualified] is None:
            loaded = self._tables.loaded(table)
            head = self._head(loaded)
            self._positions[table.qualified] = position_at(loaded, head)
        return self._positions[table.qualified], head

    def _head(self, loaded: Any) -> Any:  # noqa: ANN401 - Java's org.apache.iceberg.Table, Snapshot
        head = loaded.refs().get(self._branch)
        return None if head is None else loaded.snapshot(head.snapshotId())

    def position(self, table: TargetTable) -> str | None:
        if not self._tables.is_there(table):
            return None
        loaded = self._tables.loaded(table)
        return position_at(loaded, self._head(loaded))

    def mark(self, table: TargetTable) -> Mark | None:
        if self._folder is not None:
            place = self._folder / folder_name(table.schema) / folder_name(table.copy_name)
            found = mark_in_folder(place / "metadata")
            return None if found is None else Mark.from_json(found)
        if not self._tables.is_there(table):
            return None
        return mark_of(self._tables.loaded(table), self._tables.java)

    def set_mark(self, table: TargetTable, mark: Mark) -> None:
        mark, copy = self._marked(table, mark), f"Iceberg table {self.table_name(table)}"
        there = made = stood = None

        def change(loaded: Any) -> None:  # noqa: ANN401 - Java's org.apache.iceberg.BaseTable
            nonlocal there, made, stood
            if self._branch == MAIN:
                self._require_line(table, loaded)
            base, stood = loaded.operations().current(), standing(loaded)
            there = kept_in(base.properties(), copy)
            made = self._marks.wanted(table.qualified, there, mark)
            if made is not None:
                text = json.dumps({**json.loads(made.to_json()), "snapshot": stood[0]})
                self._tables.set_in(loaded, base, {MARK: text})

        self._tables.commit(table, change)
        self._marks.wrote(table.qualified, there, made, copy)
        self._seen[table.qualified] = stood or (None, None)

    def read(self, table: TargetTable) -> DataFrame:
        name = self.table_name(table)
        try:
            self._tables.spark.catalog.refreshTable(name)
            rows = self._tables.spark.table(self._copy_name(table))
        except AnalysisException as exc:
            msg = f"Iceberg table {name} cannot be read"
            raise OperatorError(msg, hint="has the apply job made it? cdc apply APPLY.yaml") from exc
        names = self._names.get(table.qualified)
        return rows.drop(*names).withColumnsRenamed({of: name for name, of in names.items()}) if names else rows

    def beside(self, table: TargetTable) -> IcebergStore:
        loaded = self._tables.loaded(table)
        required_stamp(loaded.properties().get(IDENTITY), table, f"Iceberg table {self.table_name(table)}")
        self._note_lost(table, table, self._columns(loaded))
        remade = others(self._tables, table)
        self._evolve(table, but=remade)
        names = add_beside(self._tables, table, remade)
        branch = self._beside[table.qualified] = begin_beside(self._tables, table)
        if names:
            self._unswapped[branch] = table
        copy = IcebergStore(self._catalog, self._tables.spark, branch=branch)
        copy._positions[table.qualified] = None
        copy._names[table.qualified] = names
        return copy

    def swap(self, table: TargetTable, due: Due) -> None:
        branch = self._beside.pop(table.qualified)
        swap_in(self._tables, table, branch, due)
        self._unswapped.pop(branch, None)

    def close(self) -> None:
        """Take the columns of copies that were not swapped in from the readers of the live ones, if that can be."""
        for branch, table in self._unswapped.items():
            with contextlib.suppress(CdcError, PySparkException, Py4JError, OSError):  # the next rebuild does it, too
                if self._tables.loaded(table).refs().get(branch) is not None:  # no other one has taken the place
                    self._tables.spark.catalog.refreshTable(self.table_name(table))
                    drop_beside(self._tables, table)
        self._unswapped.clear()
        super().close()

    def previous(self, table: TargetTable) -> dt.datetime | None:
        return replaced_at(self._tables.loaded(table)) if self._tables.is_there(table) else None

    def roll_back(self, table: TargetTable, due: Due) -> None:
        put_previous_back(self._tables, table, due)

    def due(self, table: TargetTable) -> Due | None:
        there = self._tables.is_there(table)
        return due_in(self._tables.loaded(table).properties()) if there else None

    def caught_up(self, table: TargetTable, due: Due) -> None:
        self._tables.loaded(table).updateProperties().set(CAUGHT_UP, due.id).commit()

    def maintain(self, table: TargetTable) -> None:
        if self.upkeep is None:
            return
        loaded = self._tables.loaded(table)
        actions = self._tables.actions
        compacted = self._is_worn(table, loaded, self.upkeep.files)
        if compacted:
            compact(actions, loaded, self.position(table))
        if compacted or self._cleaned.is_due(table):
            loaded.refresh()
            if loaded.properties().getOrDefault("gc.enabled", "true").lower() == "false":
                self._cleaned.done(table)  # for a day
                msg = "gc.enabled of the table is false, and so its old states and files stay until others remove them"
                raise OperatorError(msg, hint="that is for the catalog's own tool")
            metadata = json.loads(self._tables.java.TableMetadataParser.toJson(loaded.operations().current()))
            text, now_ms = metadata["properties"].get(MARK), CLOCK.earlier_ms()
            spoken_of = None if text is None else json.loads(text)["snapshot"]
            expire(loaded, unneeded(metadata, spoken_of, now_ms - self.upkeep.keep_hours * HOUR_MS))
            actions.deleteOrphanFiles(loaded).olderThan(now_ms - self.upkeep.orphan_hours * HOUR_MS).execute()
            self._cleaned.done(table)

    def table_name(self, table: TargetTable) -> str:
        """Return the table's name, quoted for Spark's SQL."""
        return self._tables.name(table)

    def _copy_name(self, table: TargetTable) -> str:
        name = self.table_name(table)
        return name if self._branch == MAIN else f"{name}.{quoted(f'branch_{self._branch}')}"

    def _is_worn(self, table: TargetTable, loaded: Any, files: int) -> bool:  # noqa: ANN401 - org.apache.iceberg.Table
        current = loaded.currentSnapshot()
        counts = {} if current is None else current.summary()
        if sum(int(counts.get(f"total-{kind}-files") or 0) for kind in ("data", "delete")) < files:
            return False
        name = self.table_name(table)
        self._tables.spark.catalog.refreshTable(name)
        return worn(self._tables.spark.table(f"{name}.files")) >= files


def _if_nothing_came(writer: DataFrameWriterV2, head: Any) -> DataFrameWriterV2:  # noqa: ANN401 - Java's Snapshot
    """Return a writer whose overwrite fails if rows came after `head`: appended to those, rows would be double.

    See https://iceberg.apache.org/docs/latest/spark-configuration/#write-options.
    """
    writer = writer.option("isolation-level", "serializable")
    return writer if head is None else writer.option("validate-from-snapshot-id", str(head.snapshotId()))
