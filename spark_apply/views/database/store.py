"""Keeps a view job's captured tables in PostgreSQL: what differs from `spark_apply.views.running.store`."""

from __future__ import annotations

import io
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import ClassVar, Final, cast

from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses

from cdc.model.errors import OperatorError, RetryableError
from spark_apply.events.typed import KEY, OP, POSITION, SOURCE_MS
from spark_apply.model.store import Applied, Batch, CopyError, Visibility
from spark_apply.spark.names import quoted as spark_quoted
from spark_apply.stores.postgres.types import copy_line, copy_text, escaped
from spark_apply.views.database.names import waiting
from spark_apply.views.database.state import DatabaseState
from spark_apply.views.database.step import DatabaseStep, LongTextError
from spark_apply.views.database.values import kept
from spark_apply.views.model.values import quoted
from spark_apply.views.running.step import StepOfViews
from spark_apply.views.running.store import ViewStore

_SLICE: Final = 250_000
"""The number of rows in memory at a time."""
_LINE: Final = "_cdc_line"


@dataclass(slots=True)
class DatabaseStore(ViewStore):
    """A `spark_apply.views.running.store.ViewStore` whose rows and views are in one database."""

    engine: ClassVar[str] = "postgres"

    def _take_in(self, batch: Batch) -> None:
        name = batch.table.qualified
        rows = self._not_again(batch)
        names = [column for column, _ in kept([(column.name, column.kind) for column in batch.table.columns])]
        cells = [copy_text(column) for column in batch.table.columns if column.name in names]
        first = [escaped(F.col(KEY)), F.col(POSITION), F.col(OP), F.col(SOURCE_MS).cast("string")]
        ours = (KEY, POSITION, OP, SOURCE_MS)
        lines = rows.select(spark_quoted(KEY), copy_line([*first, *cells]).alias(_LINE))
        slices = -(-batch.keys // _SLICE)
        for number in range(slices):
            some = lines if slices == 1 else lines.where(F.pmod(F.xxhash64(KEY), F.lit(slices)) == number)
            text = "".join(some.select(_LINE).toArrow().column(_LINE).to_pylist())
            if "\0" in text:
                why = OperatorError(
                    f"{name}: a text holds the character U+0000, which PostgreSQL cannot keep",
                    hint="correct the row at its source, or compute the views by engine: duckdb",
                )
                raise CopyError(name, why)
            for use in self._running.uses_of(name):
                listed = ", ".join(map(quoted, (*ours, *names)))
                cast("DatabaseState", self.state).copy(f"{waiting(use.relation)} ({listed})", io.BytesIO(text.encode()))
        self._marks.take_in(batch.table, batch.position)

    def fold(self, batches: Collection[Batch], visibility: Mapping[str, Visibility]) -> dict[str, Applied]:
        try:
            return super(DatabaseStore, self).fold(batches, visibility)
        except RetryableError as exc:  # if it was committed, its position says so, and nothing is done twice
            self.output.tell(f"warning: the store was lost, trying once more: {exc.message}")
            return super(DatabaseStore, self).fold(batches, visibility)

    def _step(self, limit: str, before_ms: int | None, clock_ms: int | None) -> None:
        try:
            super(DatabaseStore, self)._step(limit, before_ms, clock_ms)
        except LongTextError:
            cast("DatabaseState", self.state).without_indexes_of_texts()
            super(DatabaseStore, self)._step(limit, before_ms, clock_ms)

    def _new_step(self, limit: str, before_ms: int | None, clock_ms: int | None, stale: set[str]) -> StepOfViews:
        state = cast("DatabaseState", self.state)
        return DatabaseStep(state, limit, before_ms, clock_ms, stale, search=self._search)
