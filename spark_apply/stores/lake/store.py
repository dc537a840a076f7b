"""Holds what the stores of lakes have in common: what they know of their tables, and how rows are read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator
from dataclasses import replace

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses

from spark_apply.events.typed import POSITION
from spark_apply.model.completeness import LOST, NEW, Mark
from spark_apply.model.lost_columns import Numbers, come_columns, known, lost_columns, of_another_hand, refuse_lost
from spark_apply.model.ownership import Ownership
from spark_apply.model.store import StoredRow
from spark_apply.model.target_table import TargetTable
from spark_apply.model.upkeep import CleanTimes, Upkeep
from spark_apply.spark.names import quoted
from spark_apply.stores.lake.columns import lake_row_type
from spark_apply.stores.lake.rows import stored_rows


class LakeStore(ABC):
    """A store whose copies are tables of a lake, which Spark reads."""

    def __init__(self, upkeep: Upkeep | None) -> None:
        self.upkeep = upkeep
        self._cleaned = CleanTimes()
        self._positions: dict[str, str | None] = {}
        """By table, the position that is applied; None without one."""
        self._numbers: dict[str, dict[str, int | str]] = {}
        """By table, the numbers of the columns that fit it."""
        self._marks = Ownership()
        self._beside: dict[str, str] = {}
        """By table, the copy beside the live one that is being made."""

    @abstractmethod
    def read(self, table: TargetTable) -> DataFrame:
        """Read the whole table as it is now: the source's columns and ``_cdc_position STRING``, or a history's."""

    @abstractmethod
    def table_name(self, table: TargetTable) -> str:
        """Return the table's name, quoted for Spark's SQL."""

    @abstractmethod
    def mark(self, table: TargetTable) -> Mark | None:
        """See `spark_apply.model.store.Store`."""

    @abstractmethod
    def set_mark(self, table: TargetTable, mark: Mark) -> None:
        """See `spark_apply.model.store.Store`."""

    def _refuse_lost(self, table: TargetTable, kept: TargetTable, there: Numbers, copy: str) -> None:
        """Raise OperatorError where the copy has lost columns that it had; `kept` has their names in the lake."""
        refuse_lost(kept, lake_row_type(kept).names, there, self.mark(table), copy)

    def _refuse_others(
        self, spark: SparkSession, table: TargetTable, kept: TargetTable, there: Numbers, copy: str
    ) -> None:
        """Raise OperatorError where another hand has made a column that the source has by now."""
        mark = self.mark(table) if any(column.since for column in kept.columns) else None
        for column in come_columns(kept, there, mark):
            older = (F.col(quoted(column.name)).isNotNull()) & (F.col(POSITION) < column.since)
            if not spark.table(self.table_name(table)).where(older).isEmpty():
                raise of_another_hand(kept, column.name, copy)

    def _marked(self, table: TargetTable, mark: Mark) -> Mark:
        """Return a mark that has the numbers of the table's columns, as they were when they were looked at."""
        numbers = self._numbers.get(table.qualified)
        if numbers is None:  # it is not this store that writes the rows
            numbers = dict((self.mark(table) or NEW).columns)
        return replace(mark, columns=numbers)

    def _fits(self, table: TargetTable, there: Numbers) -> None:
        self._numbers[table.qualified] = known(there)

    def _note_lost(self, table: TargetTable, kept: TargetTable, there: Numbers) -> None:
        """Let the live copy not go on if a rebuild, which gives it its columns back, does not end."""
        mark = self.mark(table)
        if mark is not None and lost_columns(kept, lake_row_type(kept).names, there, mark):
            self.set_mark(table, replace(mark, version=LOST))

    def rows(self, table: TargetTable, ids: Collection[str] | None = None) -> Iterator[StoredRow]:
        return stored_rows(self.read(table), table, ids)

    def id_of(self, event_key: str, document_key: str) -> str:
        del event_key
        return document_key

    def close(self) -> None:
        self._positions.clear()
        self._beside.clear()
