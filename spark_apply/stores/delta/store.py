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
from pathlib import Path
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses

from cdc.config.apply_config import StoreConfig
from cdc.model.errors import BugError, ConfigError, OperatorError
from spark_apply.events.history import DERIVED, SAID
from spark_apply.events.typed import OP, POSITION, SOURCE_MS
from spark_apply.model.altered import put_back, retyped
from spark_apply.model.clock import CLOCK
from spark_apply.model.completeness import Mark
from spark_apply.model.store import Applied, Batch, Due, only_options
from spark_apply.model.target_table import TargetTable
from spark_apply.model.upkeep import HOUR_MS, Upkeep, upkeep_of
from spark_apply.spark.names import folder_name, quoted
from spark_apply.spark.paths import located
from spark_apply.spark.session import open_session
from spark_apply.stores.delta.columns import (
    TAKEN,
    changes,
    columns,
    create,
    evolve,
    names_in_files,
    need,
    others,
    stored,
)
from spark_apply.stores.delta.copies import (
    begin_beside,
    being_made,
    previous_files,
    put_previous_back,
    replaced_at,
    swap_in,
)
from spark_apply.stores.delta.log import LOG, DeltaLog, Properties, delta_name, properties_in_folder
from spark_apply.stores.delta.maintenance import clean, compact_if_worn, retention
from spark_apply.stores.delta.positions import RESTORED, position_at, set_position
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
    gone,
    kept_in,
    mark_in,
    own_identity,
    required_stamp,
)
from spark_apply.stores.lake.store import LakeStore

_SUMMARY = "spark.databricks.delta.commitInfo.userMetadata"


def open_store(config: StoreConfig, *, name: str, prefix: str, spark: SparkSession | None) -> DeltaStore:
    """Open the folder of `config`; create nothing. Marks in a local folder are read without Spark."""
    del prefix  # a lake is one connector's by its path
    only_options(config, name, ("upkeep",))
    if config.path is None:
        raise ConfigError(f"stores.{name}: path is missing", hint="path: ./lake")
    folder = located(config.path)
    if spark is None and "://" in folder:
        spark = open_session(f"marks of {name}")
    return DeltaStore(folder, spark, upkeep=upkeep_of(config, name))


class DeltaStore(LakeStore):
    """A `spark_apply.model.store.Store`."""

    def __init__(
        self, folder: str, spark: SparkSession | None, *, copy: str | None = None, upkeep: Upkeep | None = None
    ) -> None:
        """Without `spark`, only `mark` works. `copy` names the folder of a copy that is not the live one."""
        super().__init__(upkeep)
        self._folder = folder
        self._session = spark
        self._copy = copy
        self._seen: dict[str, int] = {}
        """By table, the version that it had when this job looked last."""
        self._schemas: dict[str, str] = {}
        """By table, a schema whose columns fit it."""

    def open(self, table: TargetTable) -> str:
        refuse_taken(table, TAKEN, f"Delta table {self.path(table)}")
        log = self._log(table)
        if not log.exists():
            create(log, table)
        identity = _identity(log, log.properties(), table)
        self._refuse_lost(table, stored(table), _columns(log), f"Delta table {log.path}")
        self._refuse_others(self._spark, table, stored(table), _columns(log), f"Delta table {log.path}")
        evolve(log, table)
        if self.upkeep is not None:
            need(log, retention(self.upkeep))
        self._cleaned.begin(table)
        self._positions[table.qualified] = self.position(table)
        now = log.state()
        self._seen[table.qualified] = now.version
        self._schemas[table.qualified] = now.schema
        self._fits(table, names_in_files(now.schema))
        self._marks.opened(table.qualified, kept_in(now.properties, f"Delta table {log.path}"))
        return identity

    def _require_line(self, table: TargetTable, log: DeltaLog, now: int) -> None:
        """Raise RetryableError where the table was put back since this job looked last."""
        seen = self._seen.get(table.qualified, now)
        since = (log.commit_info(version) or {} for version in range(seen + 1, now + 1))
        if now < seen or any(info.get("operation") == RESTORED for info in since):
            self._marks.altered(table.qualified)
            raise put_back(f"Delta table {log.path}")
        self._seen[table.qualified] = now

    def _require_types(self, table: TargetTable, log: DeltaLog, now: str) -> None:
        """Raise CdcError where another hand has given columns other types: Spark would round or cut off values."""
        if now == self._schemas.get(table.qualified):
            return
        there = names_in_files(now)
        self._refuse_lost(table, stored(table), there, f"Delta table {log.path}")
        if list(changes(log, table)):
            raise retyped(f"Delta table {log.path}")
        self._schemas[table.qualified] = now
        self._fits(table, there)

    def apply(self, batch: Batch) -> Applied:
        kept, spark = stored(batch.table), batch.rows.sparkSession
        if self._copy is None:
            log = self._log(batch.table)
            now = log.state()
            if now.properties.get(IDENTITY) is None:
                raise gone(f"Delta table {log.path}")
            _identity(log, now.properties, batch.table)  # a rebuild may have swapped in another shape
            self._require_line(batch.table, log, now.version)
            self._require_types(batch.table, log, now.schema)
            copy = f"Delta table {log.path}"
            self._marks.writes(batch.table.qualified, kept_in(now.properties, copy), copy)
        before = self._positions[batch.table.qualified]
        position = max(before or "", batch.position)
        selected = columns(batch.table)
        spark.conf.set(_SUMMARY, f"{APPLIED} {position}")
        try:
            if kept.history:
                add_versions(batch.rows.select(OP, SOURCE_MS, *selected, POSITION), self._history(batch.table))
            else:  # also into an empty table: an append never conflicts, and another job may write, too
                rows = batch.rows.select(OP, *selected, POSITION)
                merge(kept, self.table_name(batch.table), rows, batch.keys)
        finally:
            spark.conf.unset(_SUMMARY)
        self._positions[batch.table.qualified] = position
        return Applied()

    def fill(self, table: TargetTable, rows: DataFrame) -> None:
        if several_texts(table):
            rows = one_of_each_key(rows, table)
        rows = rows.where(F.col(OP) != "d").select(*columns(table), POSITION)
        rows.write.format("delta").mode("append").save(self.path(table))

    def filled(self, table: TargetTable, position: str) -> None:
        def change(_snapshot: Any, properties: Properties) -> tuple[Any, ...]:  # noqa: ANN401 - Java's Snapshot
            set_position(properties, position)
            return ()

        self._log(table).commit(change)
        self._positions[table.qualified] = position

    def _history(self, table: TargetTable) -> HistoryTable:
        def read(spark: SparkSession) -> DataFrame:
            return spark.read.format("delta").load(self.path(table))

        def head() -> Head:
            version = int(self._log(table).snapshot().version())
            return version, version - 1

        return HistoryTable(stored(table), self.table_name(table), read, head)

    def position(self, table: TargetTable) -> str | None:
        log = self._log(table)
        return position_at(log, log.snapshot())

    def mark(self, table: TargetTable) -> Mark | None:
        if self._session is None:
            properties = properties_in_folder(Path(self.path(table)) / LOG) or {}
        else:
            properties = self._log(table).properties()
        text = mark_in(properties, f"Delta table {self.path(table)}")
        return None if text is None else Mark.from_json(text)

    def set_mark(self, table: TargetTable, mark: Mark) -> None:
        log, mark, copy = self._log(table), self._marked(table, mark), f"Delta table {self.path(table)}"
        there = made = None

        def change(snapshot: Any, properties: Properties) -> tuple[Any, ...]:  # noqa: ANN401 - Java's Snapshot
            nonlocal there, made
            if self._copy is None:
                self._require_line(table, log, int(snapshot.version()))
            position = position_at(log, snapshot)
            if due_in(properties) is None:  # otherwise another copy may be live than was opened
                position = max(position or "", self._positions.get(table.qualified) or "") or None
            set_position(properties, position)
            there = kept_in(properties, copy)
            made = self._marks.wanted(table.qualified, there, mark)
            if made is not None:
                properties[MARK] = made.to_json()
            return ()

        log.commit(change)
        self._marks.wrote(table.qualified, there, made, copy)

    def read(self, table: TargetTable) -> DataFrame:
        try:
            rows = self._spark.read.format("delta").load(self.path(table))
        except AnalysisException as exc:
            msg = f"Delta table {self.path(table)} cannot be read"
            raise OperatorError(msg, hint="has the apply job made it? cdc apply APPLY.yaml") from exc
        there = set(rows.columns)
        names = zip(table.columns, stored(table).columns, strict=True)
        source_columns = [F.col(quoted(kept.name)).alias(column.name) for column, kept in names if kept.name in there]
        return rows.select(*source_columns, *((*SAID, *DERIVED) if table.history else (POSITION,)))

    def beside(self, table: TargetTable) -> DeltaStore:
        log = self._log(table)
        required_stamp(log.properties().get(IDENTITY), table, f"Delta table {log.path}")
        self._note_lost(table, stored(table), _columns(log))
        remade = others(log, table)
        evolve(log, table, but=remade)
        copy = self._beside[table.qualified] = begin_beside(log, remade)
        made = DeltaStore(self._folder, self._spark, copy=copy)
        made._positions[table.qualified] = None
        return made

    def swap(self, table: TargetTable, due: Due) -> None:
        swap_in(self._log(table), self._beside.pop(table.qualified), table, due)

    def previous(self, table: TargetTable) -> dt.datetime | None:
        return replaced_at(self._log(table))

    def roll_back(self, table: TargetTable, due: Due) -> None:
        put_previous_back(self._log(table), due)

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
        being_made(log)  # before: compacted files would lie outside the folder of a swap that was not ended
        worn = compact_if_worn(log, self.upkeep.files)
        if (worn or self._cleaned.is_due(table)) and CLOCK.ahead_ms() < HOUR_MS:  # Delta goes by the clock as it is
            kept = [path for action in previous_files(log) for path in log.paths(action)]
            clean(log, kept, being_made(log))
            self._cleaned.done(table)

    def path(self, table: TargetTable) -> str:
        """Return the table's folder."""
        parts = (self._folder.rstrip("/"), folder_name(table.schema), folder_name(table.copy_name), self._copy)
        return "/".join(filter(None, parts))

    def table_name(self, table: TargetTable) -> str:
        """Return the table's name, quoted for Spark's SQL."""
        return delta_name(self.path(table))

    @property
    def _spark(self) -> SparkSession:
        if self._session is None:
            raise BugError("this store was opened for its marks alone")
        return self._session

    def _log(self, table: TargetTable) -> DeltaLog:
        return DeltaLog(self._spark, self.path(table))


def _columns(log: DeltaLog) -> dict[str, int | str | None]:
    return names_in_files(log.state().schema)


def _identity(log: DeltaLog, properties: Properties, table: TargetTable) -> str:
    return own_identity(properties.get(IDENTITY), table, f"Delta table {log.path}")
