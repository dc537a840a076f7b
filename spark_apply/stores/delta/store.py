"""Keeps a Delta Lake table for each source table, in a folder of any Hadoop file system.

    stores:
      lake: {type: delta, path: ./lake}

A table is the folder ``<path>/<schema>/<table>``, with deletion vectors, the source's columns and ``_cdc_position
STRING``: the position of the event that wrote the row, which guards every MERGE. Of column names that differ in case
alone, which Delta does not tell apart, the later ones end in a number.

    applied position   ``userMetadata`` of the commit that holds the batch; with each mark also a table property, since
                       the log forgets its oldest commits
    mark, due          table properties: each state of the table has its own, so that they are removed and restored
                       with it (backup, ``RESTORE``). Setting one is a commit of one small file

The applied position is the first one found from the newest commit backwards, not the greatest of all: after a rollback
the copy has less than the one it replaces.

A copy beside the live one is a Delta table in the folder ``cdc-copy-…`` within its folder. A swap is one commit that
takes over the files of the new copy without copying them; ``_cdc_previous-….json`` then names the replaced files. A
MERGE that spans the swap fails, because Delta finds that the table's properties have changed. Running readers go on
with the state that they have opened.
"""

from __future__ import annotations

import datetime as dt
import json
import re
import time
import uuid
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses

from cdc.config.apply_config import StoreConfig
from cdc.model.errors import BugError, ConfigError, OperatorError
from spark_apply.events.history import DERIVED, SAID
from spark_apply.events.typed import OP, POSITION, SOURCE_MS
from spark_apply.model.completeness import Mark
from spark_apply.model.identity import identity_of, stamp
from spark_apply.model.store import Applied, Batch, Due, StoredRow, only_options
from spark_apply.model.target_table import TargetTable, other_target
from spark_apply.model.upkeep import CLEAN_EVERY_S, NEVER, Upkeep, upkeep_of
from spark_apply.spark.names import folder_name, quoted
from spark_apply.spark.session import open_session
from spark_apply.stores.delta.log import LOG, DeltaLog, Properties, properties_in_folder
from spark_apply.stores.delta.maintenance import clean, compact_if_worn, retention
from spark_apply.stores.lake import (
    APPLIED,
    CAUGHT_UP,
    DUE,
    IDENTITY,
    MARK,
    PREVIOUS_IDENTITY,
    REPLACED_AT,
    due_in,
    lake_row_type,
    location,
    mark_in,
    merge,
    not_widened,
    put_back,
    stored_rows,
    widens,
)
from spark_apply.stores.lake_history import Head, HistoryTable, add_versions
from spark_apply.stores.lake_keys import one_of_each_key, several_texts

_SUMMARY = "spark.databricks.delta.commitInfo.userMetadata"
_PREVIOUS = "cdc.previous"
_BESIDE, _KEPT = "cdc-copy-", "_cdc_previous-"
_VECTORS, _MAPPING, _WIDENING = "delta.enableDeletionVectors", "delta.columnMapping.mode", "delta.enableTypeWidening"
_NEEDS_MAPPING = re.compile(r"[ ,;{}()\n\t=]")
_RESTORED = "RESTORE"
_PUT_BACK = (
    "Manual Update",
    _RESTORED,
)  # operations in the history after which the table property alone has the position
_TAKEN = ("TABLE_OR_VIEW_ALREADY_EXISTS", "DELTA_CREATE_TABLE_WITH_NON_EMPTY_LOCATION")

_PROPERTIES = {
    _VECTORS: "true",
    "delta.checkpointInterval": "20",  # a batch is two commits
    "delta.feature.timestampNtz": "supported",  # a column may come that needs it
}


def open_store(config: StoreConfig, *, name: str, prefix: str, spark: SparkSession | None) -> DeltaStore:
    """Open the folder of `config`; create nothing. Marks in a local folder are read without Spark."""
    del prefix  # a lake is one connector's by its path
    only_options(config, name, ("upkeep",))
    folder = location(config)
    if folder is None:
        raise ConfigError(f"stores.{name}: path is missing", hint="path: ./lake")
    if spark is None and "://" in folder:
        spark = open_session(f"marks of {name}")
    return DeltaStore(folder, spark, upkeep=upkeep_of(config, name))


class DeltaStore:
    """A `spark_apply.model.store.Store`."""

    def __init__(
        self, folder: str, spark: SparkSession | None, *, copy: str | None = None, upkeep: Upkeep | None = None
    ) -> None:
        """Without `spark`, only `mark` works. `copy` names the folder of a copy that is not the live one."""
        self._folder = folder
        self._session = spark
        self._copy = copy
        self.upkeep = upkeep
        self._cleaned_at: dict[str, float] = {}
        self._positions: dict[str, str | None] = {}
        self._beside: dict[str, str] = {}
        self._seen: dict[str, tuple[int, str | None]] = {}
        """By table, the version and the mark that it had when this job looked last."""

    def open(self, table: TargetTable) -> str:
        log = self._log(table)
        if not log.exists():
            self._create(table)
        identity = _identity(log, table)
        self._evolve(table)
        if self.upkeep is not None:
            self._need(table, retention(self.upkeep))
        self._cleaned_at.setdefault(table.qualified, time.monotonic())
        self._positions[table.qualified] = self.position(table)
        self._seen[table.qualified] = (int(log.snapshot().version()), log.properties().get(MARK))
        return identity

    def _require_line(self, table: TargetTable, log: DeltaLog, now: int, mark: str | None) -> None:
        """Raise RetryableError where the table was put back since this job looked last: its mark is an older one."""
        seen, known = self._seen.get(table.qualified, (-1, mark))
        if mark == known and now >= seen:
            return
        since = [log.commit_info(version) or {} for version in range(seen + 1, now + 1)]
        if now < seen or any(info.get("operation") == _RESTORED for info in since):
            raise put_back(f"Delta table {log.path}")

    def apply(self, batch: Batch) -> Applied:
        stored, spark = _stored(batch.table), batch.rows.sparkSession
        if self._copy is None:
            log = self._log(batch.table)
            _identity(log, batch.table)  # a rebuild may have swapped in another shape
            self._require_line(batch.table, log, int(log.snapshot().version()), log.properties().get(MARK))
        before = self._positions[batch.table.qualified]
        position = max(before or "", batch.position)
        columns = _columns(batch.table)
        spark.conf.set(_SUMMARY, f"{APPLIED} {position}")
        try:
            if stored.history:
                add_versions(batch.rows.select(OP, SOURCE_MS, *columns, POSITION), self._history(batch.table))
            else:  # also into an empty table: an append never conflicts, and another job may write, too
                rows = batch.rows.select(OP, *columns, POSITION)
                merge(stored, self.table_name(batch.table), rows, batch.keys)
        finally:
            spark.conf.unset(_SUMMARY)
        self._positions[batch.table.qualified] = position
        return Applied()

    def fill(self, table: TargetTable, rows: DataFrame) -> None:
        if several_texts(table):
            rows = one_of_each_key(rows, table)
        rows = rows.where(F.col(OP) != "d").select(*_columns(table), POSITION)
        rows.write.format("delta").mode("append").save(self.path(table))

    def filled(self, table: TargetTable, position: str) -> None:
        def change(_snapshot: Any, properties: Properties) -> tuple[Any, ...]:  # noqa: ANN401 - Java's Snapshot
            _set_position(properties, position)
            return ()

        self._log(table).commit(change)
        self._positions[table.qualified] = position

    def _history(self, table: TargetTable) -> HistoryTable:
        def read(spark: SparkSession) -> DataFrame:
            return spark.read.format("delta").load(self.path(table))

        def head() -> Head:
            version = int(self._log(table).snapshot().version())
            return version, version - 1

        return HistoryTable(_stored(table), self.table_name(table), read, head)

    def position(self, table: TargetTable) -> str | None:
        log = self._log(table)
        return _position(log, log.snapshot())

    def mark(self, table: TargetTable) -> Mark | None:
        if self._session is None:
            properties = properties_in_folder(Path(self.path(table)) / LOG) or {}
        else:
            properties = self._log(table).properties()
        text = mark_in(properties)
        return None if text is None else Mark.from_json(text)

    def set_mark(self, table: TargetTable, mark: Mark) -> None:
        log = self._log(table)

        def change(snapshot: Any, properties: Properties) -> tuple[Any, ...]:  # noqa: ANN401 - Java's Snapshot
            if self._copy is None:
                self._require_line(table, log, int(snapshot.version()), properties.get(MARK))
            self._seen[table.qualified] = (int(snapshot.version()), mark.to_json())
            position = _position(log, snapshot)
            if due_in(properties) is None:  # otherwise another copy may be live than was opened
                position = max(position or "", self._positions.get(table.qualified) or "") or None
            _set_position(properties, position)
            properties[MARK] = mark.to_json()
            return ()

        log.commit(change)

    def rows(self, table: TargetTable, ids: Collection[str] | None = None) -> Iterator[StoredRow]:
        return stored_rows(self.read(table), table, ids)

    def id_of(self, event_key: str, document_key: str) -> str:
        del event_key
        return document_key

    def read(self, table: TargetTable) -> DataFrame:
        """Read the whole table as it is now: the source's columns and ``_cdc_position STRING``, or a history's."""
        try:
            rows = self._spark.read.format("delta").load(self.path(table))
        except AnalysisException as exc:
            msg = f"Delta table {self.path(table)} cannot be read"
            raise OperatorError(msg, hint="has the apply job made it? cdc apply") from exc
        there = set(rows.columns)
        names = zip(table.columns, _stored(table).columns, strict=True)
        columns = [F.col(quoted(kept.name)).alias(column.name) for column, kept in names if kept.name in there]
        return rows.select(*columns, *((*SAID, *DERIVED) if table.history else (POSITION,)))

    def beside(self, table: TargetTable) -> DeltaStore:
        self._evolve(table)
        log = self._log(table)
        self._remove_leftovers(log)
        copy = self._beside[table.qualified] = f"{_BESIDE}{uuid.uuid4().hex}"
        made = DeltaStore(self._folder, self._spark, copy=copy)
        without = (APPLIED, MARK, DUE, CAUGHT_UP, REPLACED_AT, _PREVIOUS)
        made._log(table).create_like(
            log, {_VECTORS: "false"}, without
        )  # the names of vectors are relative to their table
        made._positions[table.qualified] = None
        return made

    def swap(self, table: TargetTable, due: Due) -> None:
        copy, log = self._beside.pop(table.qualified), self._log(table)
        beside = DeltaLog(self._spark, f"{log.path}/{copy}")
        kept = f"{_KEPT}{uuid.uuid4().hex}.json"
        replaced: list[str | None] = []

        def change(snapshot: Any, properties: Properties) -> list[Any]:  # noqa: ANN401 - Java's Snapshot, actions
            new = beside.snapshot()
            if new.version() < 0:
                msg = f"Delta table {log.path}: another rebuild has taken the place of this one"
                raise OperatorError(msg, hint="the live table is as it was; let one rebuild run at a time")
            old = log.files(snapshot)
            log.write(kept, [json.dumps(_position(log, snapshot)), *(action.json() for action in old)])
            replaced[:] = [properties.get(_PREVIOUS)]
            _set_position(properties, _position(beside, new))
            properties.pop(MARK, None)
            now = dt.datetime.now(dt.UTC).isoformat()
            had = properties[IDENTITY]
            properties |= {DUE: due.to_json(), REPLACED_AT: now, _PREVIOUS: kept}
            properties |= {IDENTITY: stamp(table, had), PREVIOUS_IDENTITY: had}
            return [*map(_removed, old), *(_added(log, action.json(), f"{copy}/") for action in beside.files(new))]

        log.commit(change)
        for name in (f"{copy}/{LOG}", *filter(None, replaced)):
            log.remove(name)

    def previous(self, table: TargetTable) -> dt.datetime | None:
        properties = self._log(table).properties()
        return dt.datetime.fromisoformat(properties[REPLACED_AT]) if _PREVIOUS in properties else None

    def roll_back(self, table: TargetTable, due: Due) -> None:
        log = self._log(table)
        put_back: list[str] = []

        def change(snapshot: Any, properties: Properties) -> list[Any]:  # noqa: ANN401 - Java's Snapshot, actions
            kept = properties.pop(_PREVIOUS)
            position, *files = log.read(kept)
            actions = [_added(log, line) for line in files]
            if not all(map(log.is_there, actions)):
                msg = f"Delta table {log.path}: files of the copy before are gone"
                raise OperatorError(msg, hint="did another hand VACUUM the table? cdc rebuild makes a new copy")
            put_back[:] = [kept]
            _set_position(properties, json.loads(position))
            properties.pop(MARK, None)
            properties |= {DUE: due.to_json(), IDENTITY: properties.get(PREVIOUS_IDENTITY) or properties[IDENTITY]}
            return [*map(_removed, log.files(snapshot)), *actions]

        log.commit(change)
        for name in put_back:
            log.remove(name)

    def due(self, table: TargetTable) -> Due | None:
        log = self._log(table)
        return due_in(log.properties()) if log.exists() else None

    def caught_up(self, table: TargetTable, due: Due) -> None:
        def change(_snapshot: Any, properties: Properties) -> tuple[Any, ...]:  # noqa: ANN401 - Java's Snapshot
            properties[CAUGHT_UP] = due.id
            return ()

        self._log(table).commit(change)

    def maintain(self, table: TargetTable) -> None:
        if self.upkeep is None:
            return
        log = self._log(table)
        worn = compact_if_worn(log, self.upkeep.files)
        if worn or time.monotonic() - self._cleaned_at.get(table.qualified, NEVER) > CLEAN_EVERY_S:
            kept = [path for action in self._kept(log) for path in log.paths(action)]
            making = [name for name in log.folders() if DeltaLog(self._spark, f"{log.path}/{name}").exists()]
            clean(log, kept, making)
            self._cleaned_at[table.qualified] = time.monotonic()

    def close(self) -> None:
        self._positions.clear()
        self._beside.clear()

    def path(self, table: TargetTable) -> str:
        """Return the table's folder."""
        parts = (self._folder.rstrip("/"), folder_name(table.schema), folder_name(table.copy_name), self._copy)
        return "/".join(filter(None, parts))

    def table_name(self, table: TargetTable) -> str:
        """Return the table's name, quoted for Spark's SQL."""
        return f"delta.{quoted(self.path(table))}"

    @property
    def _spark(self) -> SparkSession:
        if self._session is None:
            raise BugError("this store was opened for its marks alone")
        return self._session

    def _log(self, table: TargetTable) -> DeltaLog:
        return DeltaLog(self._spark, self.path(table))

    def _remove_leftovers(self, log: DeltaLog) -> None:
        """Remove the copies of unfinished rebuilds; VACUUM removes files that were swapped in and replaced."""
        used = {action.path().split("/", 1)[0] for action in (*log.files(log.snapshot()), *self._kept(log))}
        for name in log.folders():
            if name.startswith(_BESIDE) and name not in used and DeltaLog(self._spark, f"{log.path}/{name}").exists():
                log.remove(name)

    def _kept(self, log: DeltaLog) -> list[Any]:
        """Return the files of the previous copy."""
        name = log.properties().get(_PREVIOUS)
        return [] if name is None else [_added(log, line) for line in log.read(name)[1:]]

    def _create(self, table: TargetTable) -> None:
        wanted = lake_row_type(_stored(table))
        columns = ", ".join(f"{quoted(field.name)} {field.dataType.simpleString()}" for field in wanted)
        properties = {**_PROPERTIES, IDENTITY: stamp(table)}
        if any(_NEEDS_MAPPING.search(field.name) for field in wanted):
            properties[_MAPPING] = "name"
        try:
            self._spark.sql(f"CREATE TABLE {self.table_name(table)} ({columns}) USING delta {_clause(properties)}")
        except AnalysisException as exc:
            if exc.getCondition() not in _TAKEN:
                raise
            msg = f"the folder {self.path(table)} is there already and holds no Delta table"
            raise OperatorError(msg, hint=f"give the store another path; or {other_target(table)}") from exc

    def _evolve(self, table: TargetTable) -> None:
        name, wanted = self.table_name(table), lake_row_type(_stored(table))
        there = {field.name: field.dataType for field in self._spark.read.format("delta").load(self.path(table)).schema}
        for field in wanted:
            kind = field.dataType.simpleString()
            if field.name not in there:
                if _NEEDS_MAPPING.search(field.name):
                    self._need(table, {_MAPPING: "name"})
                self._spark.sql(f"ALTER TABLE {name} ADD COLUMNS ({quoted(field.name)} {kind})")
            elif there[field.name] != field.dataType:
                if not widens(there[field.name], field.dataType):
                    raise not_widened(f"Delta table {self.path(table)}", table, field, there[field.name])
                self._need(table, {_WIDENING: "true"})
                self._spark.sql(f"ALTER TABLE {name} ALTER COLUMN {quoted(field.name)} TYPE {kind}")

    def _need(self, table: TargetTable, wanted: Properties) -> None:
        """Set properties that are missing: a feature that readers must support is enabled only when needed."""
        if not wanted.items() <= self._log(table).properties().items():
            self._spark.sql(f"ALTER TABLE {self.table_name(table)} SET {_clause(wanted)}")


def _identity(log: DeltaLog, table: TargetTable) -> str:
    stamped = log.properties().get(IDENTITY)
    if stamped is None:
        msg = f"Delta table {log.path} is there already and was not made by this toolkit"
        raise OperatorError(msg, hint=f"give the store another path; or {other_target(table)}")
    return identity_of(stamped, table, f"Delta table {log.path}")


def _clause(properties: Properties) -> str:
    """Write properties in SQL; keys and values are ours, and hold no quotes."""
    entries = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
    return f"TBLPROPERTIES ({entries})"


def _stored(table: TargetTable) -> TargetTable:
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


def _columns(table: TargetTable) -> list[Column]:
    """Return the table's columns under their names in Delta."""
    names = zip(table.columns, _stored(table).columns, strict=True)
    return [F.col(quoted(column.name)).alias(kept.name) for column, kept in names]


def _position(log: DeltaLog, snapshot: Any) -> str | None:  # noqa: ANN401 - Java's Snapshot
    """Return the applied position of a state, from the newest commit that has one."""
    for version in range(snapshot.version(), -1, -1):
        info = log.commit_info(version)
        if info is None or info.get("operation") in _PUT_BACK:
            break
        said = str(info.get("userMetadata") or "")
        if said.startswith(f"{APPLIED} "):
            return said.removeprefix(f"{APPLIED} ")
        if APPLIED in json.loads(info.get("operationParameters", {}).get("properties", "{}")):
            break
    found = json.loads(snapshot.metadata().json())["metaData"].get("configuration", {}).get(APPLIED)
    return None if found is None else str(found)


def _set_position(properties: Properties, position: str | None) -> None:
    if position is None:
        properties.pop(APPLIED, None)
    else:
        properties[APPLIED] = position


def _added(log: DeltaLog, text: str, below: str = "") -> Any:  # noqa: ANN401 - Java's AddFile
    about = json.loads(text)
    about["add"] |= {"path": below + about["add"]["path"], "dataChange": True}
    return log.action(about)


def _removed(action: Any) -> Any:  # noqa: ANN401 - Java's AddFile, RemoveFile
    return action.remove()
