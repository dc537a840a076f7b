"""What a step on executors works with: the session, the tables, the file, and what is held until the step is over."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from spark_apply.spark.plans import plan_for
from spark_apply.views.cluster.lake import Lake
from spark_apply.views.cluster.state import ClusterState

_SMALL: Final = 20_000


@dataclass(slots=True)
class Running:
    """One step's. `limit` is the position that it goes to."""

    spark: SparkSession
    lake: Lake
    state: ClusterState
    limit: str
    _held: list[DataFrame] = field(default_factory=list)
    _size: tuple[bool, bool] | None = None

    def sized(self, rows: int, *, whole: bool) -> None:
        """Let Spark plan for so many rows.

        And for few results, unless a node is computed whole: plans that are made again stage by stage cost more.
        """
        size = rows <= _SMALL, whole
        if self._size != size:
            self._size = size
            plan_for(self.spark, few=size[0])
            self.spark.conf.set("spark.sql.adaptive.enabled", str(whole and not size[0]).lower())

    def hold(self, rows: DataFrame) -> DataFrame:
        """Keep rows with the executors until the step is over."""
        self._held.append(rows.persist())
        return rows

    def end(self) -> None:
        """Let go of what is held."""
        for rows in self._held:
            rows.unpersist()
        self._held.clear()
