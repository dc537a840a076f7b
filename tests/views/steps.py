"""Steps of views in an engine alone: tables are written to, the clock goes on, events come out."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from spark_apply.views.cluster.containment import LONGEST_S
from spark_apply.views.cluster.kept_rows import Kept
from spark_apply.views.cluster.lake import Lake
from spark_apply.views.cluster.state import ClusterState
from spark_apply.views.cluster.step import ClusterStep
from spark_apply.views.cluster.step_parts import Running
from spark_apply.views.embedded.containment import Search
from spark_apply.views.embedded.fold import SourceTable
from spark_apply.views.embedded.state import ViewState, place
from spark_apply.views.embedded.step import Step, UnitsError
from spark_apply.views.model.uses import TableUse
from spark_apply.views.model.values import engine_type, quoted
from spark_apply.views.planning.view import View
from spark_apply.views.running.step import StepOfViews
from spark_apply.views.sql.view_plan import Relation


class Steps:
    """A state with tables and views that read nothing else."""

    def __init__(self, folder: Path, relations: Sequence[Relation], views: Sequence[View]) -> None:
        self.state = self._new_state(folder)
        self.views = list(views)
        self.tables = [SourceTable(TableUse(of.name), list(of.columns.items()), of.change_columns) for of in relations]
        with self.state.transaction():
            for of in self.tables:
                self.state.prepare_table(of.relation, of.columns, (), of.key)
        for view in views:
            self.state.keep_published(view.name, ())
        self.commit = 1
        self.tries = 0
        """How often a step had to be taken again."""
        self.clock_ms: int | None = None
        self.step(stale=True)

    def _new_state(self, folder: Path) -> ViewState:
        return ViewState(folder, memory="200MB")

    def _new_search(self) -> Search:
        return Search()

    def write(self, table: str, rows: Mapping[tuple[Any, ...], Sequence[Any] | None]) -> None:
        """Let events wait: by key, the row's other values, or None where it is deleted."""
        of = next(each for each in self.tables if each.relation == table)
        names = [*of.key, *(name for name, _ in of.columns if name not in of.key)]
        kinds = dict(of.columns)
        listed = ", ".join(map(quoted, names))
        values = ", ".join(f"CAST(? AS {engine_type(kinds[name])})" for name in names)
        for key, row in rows.items():
            rest = list(row) if row is not None else [None] * (len(names) - len(key))
            self.state.execute(
                f"INSERT INTO {place('pending', table)} (_cdc_key, _cdc_position, _cdc_op, {listed}) "
                f"VALUES (?, ?, ?, {values})",
                [json.dumps(key), position(self.commit), "d" if row is None else "u", *key, *rest],
            )

    def step(self, clock_ms: int | None = None, *, stale: bool = False) -> list[tuple[str, str, Any, Any]]:
        """Go on to what waits and to a clock; return the events: view, op, key and row."""
        before, self.clock_ms = self.clock_ms, clock_ms if clock_ms is not None else self.clock_ms
        self.commit += 1
        self.search = search = self._new_search()
        while True:
            try:
                return self._taken(before, search, stale=stale)
            except UnitsError:
                self.tries += 1

    def _taken(self, before: int | None, search: Search, *, stale: bool) -> list[tuple[str, str, Any, Any]]:
        names = [view.name for view in self.views] if stale else []
        with self.state.transaction():
            step = self._new_step(before, names, search)
            for table in self.tables:
                step.fold(table, reload=False)
            for view in self.views:
                step.compute(view)
            step.apply(self.tables, self.views)
            found = self.state.rows("SELECT view, op, key, after FROM outbox ORDER BY seq")
            self.state.execute("DELETE FROM outbox")
        self._taken_over(step)
        return [
            (view, op, tuple(json.loads(key).values()), None if row is None else json.loads(row))
            for view, op, key, row in found
        ]

    def _new_step(self, before: int | None, stale: Sequence[str], search: Search) -> StepOfViews:
        return Step(self.state, position(self.commit), before, self.clock_ms, stale, search=search)

    def _taken_over(self, step: StepOfViews) -> None:
        """Keep what a step leaves to the next one."""

    def quarantined(self, view: str) -> list[tuple[str, str]]:
        return sorted(self.state.rows("SELECT unit, reason FROM quarantine WHERE view = ?", [view]))

    def close(self) -> None:
        self.state.close()


def position(commit: int) -> str:
    return f"00000001.{commit:016x}.00000000"


class ClusterSteps(Steps):
    """The same with Spark's executors."""

    def __init__(
        self, folder: Path, relations: Sequence[Relation], views: Sequence[View], *, spark: SparkSession
    ) -> None:
        self.spark = spark
        self.lake = Lake(spark, str(folder / "tables"))
        self.kept: dict[str, Kept] = {}
        super().__init__(folder, relations, views)

    def _new_state(self, folder: Path) -> ViewState:
        return ClusterState(folder, memory="200MB")

    def _new_search(self) -> Search:
        return Search(longest_s=LONGEST_S)

    def _new_step(self, before: int | None, stale: Sequence[str], search: Search) -> StepOfViews:
        assert isinstance(self.state, ClusterState)
        on = Running(self.spark, self.lake, self.state, position(self.commit))
        return ClusterStep(on, before, self.clock_ms, stale, self.kept, search=search)

    def _taken_over(self, step: StepOfViews) -> None:
        assert isinstance(step, ClusterStep)
        step.end()
        self.kept |= step.relations
