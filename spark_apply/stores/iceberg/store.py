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
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, DataFrameWriterV2, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses
from pyspark.sql import types as T  # noqa: N812 - the same

from cdc.config.apply_config import StoreConfig
from cdc.model.errors import BugError, ConfigError, OperatorError
from spark_apply.events.typed import OP, POSITION
from spark_apply.model.completeness import Mark
from spark_apply.model.foresight import Foreseen
from spark_apply.model.identity import identity_of, stamp
from spark_apply.model.store import Applied, Batch, Due, StoredRow, only_options
from spark_apply.model.target_table import TargetTable, other_target
from spark_apply.model.upkeep import CLEAN_EVERY_S, HOUR_MS, NEVER, Upkeep, upkeep_of
from spark_apply.spark.names import folder_name, quoted
from spark_apply.spark.paths import local
from spark_apply.spark.session import open_session
from spark_apply.stores.iceberg.maintenance import ancestry, compact, expire, unneeded, worn
from spark_apply.stores.iceberg.partitions import noted, noted_of, partition
from spark_apply.stores.lake import (
    APPLIED,
    CAUGHT_UP,
    DUE,
    IDENTITY,
    MARK,
    PREVIOUS_IDENTITY,
    REPLACED_AT,
    due_in,
    is_catalog_name,
    lake_row_type,
    location,
    mark_in,
    merge,
    no_rows,
    not_widened,
    put_back,
    stored_rows,
    widens,
)
from spark_apply.stores.lake_history import Head, HistoryTable, add_versions
from spark_apply.stores.lake_keys import one_of_each_key, several_texts

_SUMMARY = f"spark.sql.iceberg.snapshot-property.{APPLIED}"
_CONFLICT = "CommitFailedException"
_TRIES, _WAIT_S = 20, 0.02
_MAIN, _PREVIOUS, _BESIDE = "main", "cdc_previous", "cdc_beside_"

_PROPERTIES = {
    "format-version": "2",
    "write.delete.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.merge.mode": "merge-on-read",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "50",
}


def open_store(config: StoreConfig, *, name: str, prefix: str, spark: SparkSession | None) -> IcebergStore:
    """Point the session's catalog `name` at the folder or catalog of `config`; makes nothing.

    Without `spark`, the marks of tables in a folder are read from there; for any other catalog Spark is started.
    """
    del prefix  # a warehouse is one connector's by its path
    only_options(config, name, ("catalog", "upkeep"))
    upkeep = upkeep_of(config, name)
    if not is_catalog_name(name):
        raise ConfigError(f"stores.{name}: this name cannot be a Spark catalog's", hint="letters, digits and _")
    catalog = config.options.get("catalog")
    settings: dict[str, str] = {}
    folder = location(config)
    if folder is not None:
        settings |= {"type": "hadoop", "warehouse": folder}
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


class IcebergStore:
    """A `spark_apply.model.store.Store`."""

    def __init__(
        self,
        catalog: str,
        spark: SparkSession | None,
        folder: Path | None = None,
        *,
        branch: str = _MAIN,
        upkeep: Upkeep | None = None,
    ) -> None:
        """Without `spark`, only `mark` works, for tables below `folder`."""
        self._catalog = catalog
        self._session = spark
        self._folder = folder
        self._branch = branch
        self.upkeep = upkeep
        self._cleaned_at: dict[str, float] = {}
        self._catalog_known = False
        self._positions: dict[str, str | None] = {}
        self._beside: dict[str, str] = {}
        self._seen: dict[str, tuple[int | None, str | None]] = {}
        """By table, the head and what was due when this job looked last."""

    def foresee(self, table: TargetTable) -> Foreseen:
        name = self.table_name(table)
        if not self._spark.catalog.tableExists(name):
            return Foreseen(None)
        changes = [told for told, _ in self._changes(table, name, lake_row_type(table))]
        if noted(table) != noted_of(self._loaded(table)):
            changes.append(f"partition by {noted(table)} from now on")
        return Foreseen(self._identity(table, name), tuple(changes))

    def open(self, table: TargetTable) -> str:
        name, wanted = self.table_name(table), lake_row_type(table)
        if not self._spark.catalog.tableExists(name):
            self._create(table, name, wanted)
        own = self._identity(table, name)
        self._evolve(table, name, wanted)
        partition(self._loaded(table), self._java.expressions.Expressions, table)
        self._cleaned_at.setdefault(table.qualified, time.monotonic())
        self._positions[table.qualified] = self.position(table)
        self._seen[table.qualified] = _standing(self._loaded(table))
        return own

    def _identity(self, table: TargetTable, name: str) -> str:
        properties = {row["key"]: row["value"] for row in self._spark.sql(f"SHOW TBLPROPERTIES {name}").collect()}
        return self._own(table, name, properties.get(IDENTITY))

    @staticmethod
    def _own(table: TargetTable, name: str, identity: str | None) -> str:
        if identity is None:
            msg = f"Iceberg table {name} is there already and was not made by this toolkit"
            raise OperatorError(msg, hint=f"give the store another path; or {other_target(table)}")
        return identity_of(str(identity), table, f"Iceberg table {name}")

    def _require_line(self, table: TargetTable, loaded: Any) -> None:  # noqa: ANN401 - Java's org.apache.iceberg.Table
        """Raise RetryableError where the head does not come from the one that was seen last: it was rolled back.

        A swap is told by what it leaves due, and is followed elsewhere. A head that has expired says nothing.
        """
        (head, due), (now, due_now) = self._seen.get(table.qualified, (None, None)), _standing(loaded)
        if head is None or due != due_now or loaded.snapshot(head) is None:
            return
        if now is None or not self._java.util.SnapshotUtil.isAncestorOf(loaded, now, head):
            raise put_back(f"Iceberg table {self.table_name(table)}")

    def apply(self, batch: Batch) -> Applied:
        name, spark = self._copy_name(batch.table), batch.rows.sparkSession
        spark.catalog.refreshTable(self.table_name(batch.table))  # each session caches what it last saw
        if self._branch == _MAIN:
            loaded = self._loaded(batch.table)
            self._own(
                batch.table, name, loaded.properties().get(IDENTITY)
            )  # a rebuild may have swapped in another shape
            self._require_line(batch.table, loaded)
        before, head = self._before(batch.table)
        spark.conf.set(_SUMMARY, max(before or "", batch.position))
        try:
            if batch.table.history:
                add_versions(batch.rows, self._history(batch.table))
            elif before is None:  # nothing to merge with: no join, no delete files
                self._add(batch.table, batch.rows, head)
            else:
                others = [field.name for field in self._others(spark, batch.table)]
                merge(batch.table, name, batch.rows, batch.keys, others)
        finally:
            spark.conf.unset(_SUMMARY)
        self._positions[batch.table.qualified] = max(before or "", batch.position)
        return Applied()

    def fill(self, table: TargetTable, rows: DataFrame) -> None:
        rows.sparkSession.catalog.refreshTable(self.table_name(table))
        self._add(table, rows, self._head(table))

    def filled(self, table: TargetTable, position: str) -> None:
        self._commit(table, lambda of: of.newAppend().set(APPLIED, position).toBranch(self._branch).commit())
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

    def _history(self, table: TargetTable) -> HistoryTable:
        name = self._copy_name(table)

        def read(spark: SparkSession) -> DataFrame:
            spark.catalog.refreshTable(self.table_name(table))
            return spark.table(name)

        def head() -> Head | None:
            found = self._head(table)
            return None if found is None else (found.snapshotId(), found.parentId())

        return HistoryTable(table, name, read, head)

    def _before(self, table: TargetTable) -> tuple[str | None, Any]:
        """Return the applied position; if there is none, also the snapshot, because another job may have started."""
        head = None
        if self._positions[table.qualified] is None:
            head = self._head(table)
            self._positions[table.qualified] = self._position_at(table, head)
        return self._positions[table.qualified], head

    def _head(self, table: TargetTable) -> Any:  # noqa: ANN401 - Java's org.apache.iceberg.Snapshot
        loaded = self._loaded(table)
        head = loaded.refs().get(self._branch)
        return None if head is None else loaded.snapshot(head.snapshotId())

    def position(self, table: TargetTable) -> str | None:
        if not self._spark.catalog.tableExists(self.table_name(table)):
            return None
        return self._position_at(table, self._head(table))

    def _position_at(self, table: TargetTable, snapshot: Any) -> str | None:  # noqa: ANN401 - Java's Snapshot
        loaded = self._loaded(table)
        while snapshot is not None:
            position = snapshot.summary().get(APPLIED)
            if position is not None:
                return str(position) or None
            parent = snapshot.parentId()
            snapshot = None if parent is None else loaded.snapshot(parent)
        return None

    def mark(self, table: TargetTable) -> Mark | None:
        if self._folder is not None:
            place = self._folder / folder_name(table.schema) / folder_name(table.copy_name)
            found = mark_in_folder(place / "metadata")
            return None if found is None else Mark.from_json(found)
        if not self._spark.catalog.tableExists(self.table_name(table)):
            return None
        loaded = self._loaded(table)
        text, current = mark_in(loaded.properties()), loaded.currentSnapshot()
        spoken_of = None if text is None else json.loads(text)["snapshot"]
        ancestor = self._java.util.SnapshotUtil.isAncestorOf
        if spoken_of is not None and (current is None or not ancestor(loaded, current.snapshotId(), spoken_of)):
            return None
        return None if text is None else Mark.from_json(text)

    def set_mark(self, table: TargetTable, mark: Mark) -> None:
        loaded = self._loaded(table)
        if self._branch == _MAIN:
            self._require_line(table, loaded)
        snapshot, due = _standing(loaded)
        text = json.dumps({**json.loads(mark.to_json()), "snapshot": snapshot})
        loaded.updateProperties().set(MARK, text).commit()
        self._seen[table.qualified] = (snapshot, due)

    @property
    def _spark(self) -> SparkSession:
        if self._session is None:
            raise BugError(f"store {self._catalog} was opened for its marks alone")
        return self._session

    def rows(self, table: TargetTable, ids: Collection[str] | None = None) -> Iterator[StoredRow]:
        return stored_rows(self.read(table), table, ids)

    def id_of(self, event_key: str, document_key: str) -> str:
        del event_key
        return document_key

    def read(self, table: TargetTable) -> DataFrame:
        """Read the whole table as it is now: the source's columns and ``_cdc_position STRING``, or a history's."""
        name = self.table_name(table)
        try:
            self._spark.catalog.refreshTable(name)
            return self._spark.table(self._copy_name(table))
        except AnalysisException as exc:
            msg = f"Iceberg table {name} cannot be read"
            raise OperatorError(msg, hint="has the apply job made it? cdc apply") from exc

    def beside(self, table: TargetTable) -> IcebergStore:
        self._evolve(table, self.table_name(table), lake_row_type(table))
        branch = self._beside[table.qualified] = f"{_BESIDE}{uuid.uuid4().hex}"
        everything = self._java.expressions.Expressions.alwaysTrue()

        def make(loaded: Any) -> None:  # noqa: ANN401 - Java's org.apache.iceberg.Table
            transaction = loaded.newTransaction()
            names = transaction.manageSnapshots().createBranch(branch, loaded.currentSnapshot().snapshotId())
            for name in loaded.refs():
                if name.startswith(_BESIDE):
                    names = names.removeBranch(name)
            names.commit()
            delete = transaction.newDelete().deleteFromRowFilter(everything).set(APPLIED, "")
            delete.toBranch(branch).commit()
            transaction.commitTransaction()

        self._commit(table, make)
        copy = IcebergStore(self._catalog, self._spark, branch=branch)
        copy._positions[table.qualified] = None
        return copy

    def swap(self, table: TargetTable, due: Due) -> None:
        branch = self._beside.pop(table.qualified)

        def change(loaded: Any) -> None:  # noqa: ANN401 - Java's org.apache.iceberg.Table
            beside = loaded.refs().get(branch)
            if beside is None:
                msg = f"Iceberg table {self.table_name(table)}: another rebuild has taken the place of this one"
                raise OperatorError(msg, hint="the live table is as it was; let one rebuild run at a time")
            transaction = loaded.newTransaction()
            now = dt.datetime.now(dt.UTC).isoformat()
            had = loaded.properties()[IDENTITY]
            properties = transaction.updateProperties().set(DUE, due.to_json()).set(REPLACED_AT, now)
            properties.set(IDENTITY, stamp(table, had)).set(PREVIOUS_IDENTITY, had).commit()
            names, live = transaction.manageSnapshots(), loaded.currentSnapshot().snapshotId()
            kept = loaded.refs().get(_PREVIOUS)
            names = names.createTag(_PREVIOUS, live) if kept is None else names.replaceTag(_PREVIOUS, live)
            names.replaceBranch(_MAIN, beside.snapshotId()).removeBranch(branch).commit()
            transaction.commitTransaction()

        self._commit(table, change)

    def previous(self, table: TargetTable) -> dt.datetime | None:
        if not self._spark.catalog.tableExists(self.table_name(table)):
            return None
        loaded = self._loaded(table)
        if loaded.refs().get(_PREVIOUS) is None:
            return None
        return dt.datetime.fromisoformat(loaded.properties()[REPLACED_AT])

    def roll_back(self, table: TargetTable, due: Due) -> None:
        def change(loaded: Any) -> None:  # noqa: ANN401 - Java's org.apache.iceberg.Table
            transaction = loaded.newTransaction()
            properties = transaction.updateProperties().set(DUE, due.to_json())
            had = loaded.properties()
            properties.set(IDENTITY, had.get(PREVIOUS_IDENTITY) or had[IDENTITY]).commit()
            names = transaction.manageSnapshots().replaceBranch(_MAIN, loaded.refs()[_PREVIOUS].snapshotId())
            names.removeTag(_PREVIOUS).commit()
            transaction.commitTransaction()

        self._commit(table, change)

    def due(self, table: TargetTable) -> Due | None:
        there = self._spark.catalog.tableExists(self.table_name(table))
        return due_in(self._loaded(table).properties()) if there else None

    def caught_up(self, table: TargetTable, due: Due) -> None:
        self._loaded(table).updateProperties().set(CAUGHT_UP, due.id).commit()

    def maintain(self, table: TargetTable) -> None:
        if self.upkeep is None:
            return
        loaded = self._loaded(table)
        session: Any = self._spark
        actions = self._java.spark.actions.SparkActions.get(session._jsparkSession)  # noqa: SLF001
        worn = self._is_worn(table, loaded, self.upkeep.files)
        if worn:
            compact(actions, loaded, self.position(table))
        if worn or time.monotonic() - self._cleaned_at.get(table.qualified, NEVER) > CLEAN_EVERY_S:
            loaded.refresh()
            metadata = json.loads(self._java.TableMetadataParser.toJson(loaded.operations().current()))
            text, now_ms = metadata["properties"].get(MARK), time.time_ns() // 1_000_000
            spoken_of = None if text is None else json.loads(text)["snapshot"]
            expire(loaded, unneeded(metadata, spoken_of, now_ms - self.upkeep.keep_hours * HOUR_MS))
            actions.deleteOrphanFiles(loaded).olderThan(now_ms - self.upkeep.orphan_hours * HOUR_MS).execute()
            self._cleaned_at[table.qualified] = time.monotonic()

    def close(self) -> None:
        self._positions.clear()
        self._beside.clear()

    def table_name(self, table: TargetTable) -> str:
        """Return the table's name, quoted for Spark's SQL."""
        return ".".join(map(quoted, (self._catalog, folder_name(table.schema), folder_name(table.copy_name))))

    def _copy_name(self, table: TargetTable) -> str:
        name = self.table_name(table)
        return name if self._branch == _MAIN else f"{name}.{quoted(f'branch_{self._branch}')}"

    def _loaded(self, table: TargetTable) -> Any:  # noqa: ANN401 - Java's org.apache.iceberg.Table
        """Load the table as it is now, by Iceberg's Java API."""
        session: Any = self._spark
        if not self._catalog_known:  # Iceberg looks for it in the settings of whatever session the thread used last
            session.catalog.tableExists(self.table_name(table))
            self._catalog_known = True
        loaded = self._java.spark.Spark3Util.loadIcebergTable(session._jsparkSession, self.table_name(table))  # noqa: SLF001
        loaded.refresh()
        return loaded

    def _commit(self, table: TargetTable, change: Callable[[Any], None]) -> None:
        """Change the table's branches and tags; after a conflict with another commit (the job's), try again."""
        for number in range(1, _TRIES + 1):
            try:
                change(self._loaded(table))
            except Py4JJavaError as exc:
                if number == _TRIES or _CONFLICT not in str(exc.java_exception.getClass().getName()):
                    raise
                time.sleep(_WAIT_S * number)
            else:
                return

    def _is_worn(self, table: TargetTable, loaded: Any, files: int) -> bool:  # noqa: ANN401 - org.apache.iceberg.Table
        current = loaded.currentSnapshot()
        counts = {} if current is None else current.summary()
        if sum(int(counts.get(f"total-{kind}-files") or 0) for kind in ("data", "delete")) < files:
            return False
        name = self.table_name(table)
        self._spark.catalog.refreshTable(name)
        return worn(self._spark.table(f"{name}.files")) >= files

    @property
    def _java(self) -> Any:  # noqa: ANN401 - the package org.apache.iceberg
        context: Any = self._spark.sparkContext
        return context._jvm.org.apache.iceberg  # noqa: SLF001

    def _create(self, table: TargetTable, name: str, wanted: T.StructType) -> None:
        namespace = ".".join(map(quoted, (self._catalog, folder_name(table.schema))))
        self._spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {namespace}")
        writer = no_rows(self._spark, wanted).writeTo(name).using("iceberg")
        for key, value in {**_PROPERTIES, IDENTITY: stamp(table)}.items():
            writer = writer.tableProperty(key, value)
        writer.create()

    def _evolve(self, table: TargetTable, name: str, wanted: T.StructType) -> None:
        for _, statement in list(self._changes(table, name, wanted)):  # all of them, or none
            self._spark.sql(statement)

    def _changes(self, table: TargetTable, name: str, wanted: T.StructType) -> Iterator[tuple[str, str]]:
        """Yield the needed changes, in words and as SQL. Raises OperatorError for one that is impossible in place."""
        there = {field.name: field.dataType for field in self._spark.table(name).schema}
        for field in wanted:
            kind = field.dataType.simpleString()
            if field.name not in there:
                yield f"add column {field.name} {kind}", f"ALTER TABLE {name} ADD COLUMN {quoted(field.name)} {kind}"
            elif there[field.name] != field.dataType:
                if not widens(there[field.name], field.dataType):
                    raise not_widened(f"Iceberg table {name}", table, field, there[field.name])
                told = f"widen column {field.name} from {there[field.name].simpleString()} to {kind}"
                yield told, f"ALTER TABLE {name} ALTER COLUMN {quoted(field.name)} TYPE {kind}"


def _standing(loaded: Any) -> tuple[int | None, str | None]:  # noqa: ANN401 - Java's org.apache.iceberg.Table
    """Return the snapshot that is live, and the catch-up that was left due last."""
    current = loaded.currentSnapshot()
    return None if current is None else int(current.snapshotId()), loaded.properties().get(DUE)


def _if_nothing_came(writer: DataFrameWriterV2, head: Any) -> DataFrameWriterV2:  # noqa: ANN401 - Java's Snapshot
    """Return a writer whose overwrite fails if rows came after `head`: appended to those, rows would be double.

    See https://iceberg.apache.org/docs/latest/spark-configuration/#write-options.
    """
    writer = writer.option("isolation-level", "serializable")
    return writer if head is None else writer.option("validate-from-snapshot-id", str(head.snapshotId()))


def mark_in_folder(metadata: Path) -> str | None:
    """Read the mark of a table of a folder catalog from its newest metadata file; None if there is none.

    See https://iceberg.apache.org/spec/#file-system-tables.
    """
    found: dict[str, Any] | None = None
    while found is None:
        try:
            version = int((metadata / "version-hint.text").read_text())
        except (FileNotFoundError, ValueError):
            return None
        while (metadata / f"v{version + 1}.metadata.json").exists():
            version += 1
        with contextlib.suppress(FileNotFoundError):  # it became old and was deleted: read again
            found = json.loads((metadata / f"v{version}.metadata.json").read_bytes())
    text = mark_in(found["properties"])
    if text is None:
        return None
    spoken_of = json.loads(text)["snapshot"]
    line = ancestry(found, found.get("current-snapshot-id"))
    return text if spoken_of is None or any(each["snapshot-id"] == spoken_of for each in line) else None
