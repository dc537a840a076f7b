"""Holds what the stores of lakes have in common: what they know of their tables, and how rows are read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator

from pyspark.sql import DataFrame

from spark_apply.model.store import StoredRow
from spark_apply.model.target_table import TargetTable
from spark_apply.model.upkeep import CleanTimes, Upkeep
from spark_apply.stores.lake.rows import stored_rows


class LakeStore(ABC):
    """A store whose copies are tables of a lake, which Spark reads."""

    def __init__(self, upkeep: Upkeep | None) -> None:
        self.upkeep = upkeep
        self._cleaned = CleanTimes()
        self._positions: dict[str, str | None] = {}
        """By table, the position that is applied; None without one."""
        self._beside: dict[str, str] = {}
        """By table, the copy beside the live one that is being made."""

    @abstractmethod
    def read(self, table: TargetTable) -> DataFrame:
        """Read the whole table as it is now: the source's columns and ``_cdc_position STRING``, or a history's."""

    def rows(self, table: TargetTable, ids: Collection[str] | None = None) -> Iterator[StoredRow]:
        return stored_rows(self.read(table), table, ids)

    def id_of(self, event_key: str, document_key: str) -> str:
        del event_key
        return document_key

    def close(self) -> None:
        self._positions.clear()
        self._beside.clear()
