"""One micro-batch: newest events, typed, checked, handed to the stores. What happens inside ``foreachBatch``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses
from pyspark.storagelevel import StorageLevel

from cdc.errors import BugError, OperatorError
from spark_apply.failures import spark_failure
from spark_apply.latest import latest
from spark_apply.shaped import shaped
from spark_apply.source import parse
from spark_apply.store import Applied, Batch, Store
from spark_apply.tables import TargetTable
from spark_apply.typed import KEY, MISFITS, OFFSET, OP, PARTITION, POSITION


@dataclass(frozen=True, slots=True)
class Route:
    """A table and the stores that follow it."""

    table: TargetTable
    stores: Mapping[str, Store]


@dataclass(slots=True)
class TableCount:
    """What was done for one table in one store since the job began; None where the store does not count."""

    events: int = 0
    keys: int = 0
    """Rows handed to the store: the newest event of each key, summed over batches."""
    written: int | None = 0
    deleted: int | None = 0
    stale: int | None = 0
    position: str | None = None

    def add(self, events: int, batch: Batch, applied: Applied) -> None:
        self.events += events
        self.keys += batch.keys
        self.written = _sum(self.written, applied.written)
        self.deleted = _sum(self.deleted, applied.deleted)
        self.stale = _sum(self.stale, applied.stale)
        self.position = max(self.position or "", batch.position)


def _sum(so_far: int | None, more: int | None) -> int | None:
    return None if so_far is None or more is None else so_far + more


@dataclass(slots=True)
class Applier:
    """Folds micro-batches into stores; keeps the routes up to date and counts."""

    routes: dict[str, Route]
    """By topic."""
    evolve: Callable[[Route], Route]
    """A route's table and stores brought to the newest version in the schema topic."""
    counts: dict[tuple[str, str], TableCount] = field(default_factory=dict)
    """By table and store."""
    batches: int = 0

    def __call__(self, records: DataFrame) -> None:
        """Fold one batch in; when this returns, every store has it."""
        newest = latest(parse(records)).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            for found in sorted(_survey(newest), key=lambda row: str(row["topic"])):
                self._apply(newest, found)
        finally:
            newest.unpersist()
        self.batches += 1

    def _apply(self, newest: DataFrame, found: Row) -> None:
        topic = found["topic"]
        if found["foreign"] is not None:
            at = found["foreign"]
            msg = f"topic {topic}, partition {at['partition']}, offset {at['offset']}: this record is not an event"
            raise OperatorError(msg, hint="what else writes to this topic? docs/events.md says what may be in it")
        route = self._route(topic, found["version"])
        rows = shaped(newest.where(F.col("topic") == topic), route.table).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            _check_fit(rows, route.table)
            batch = Batch(route.table, rows, found["keys"], found["position"])
            for name, store in route.stores.items():
                applied = store.apply(batch)
                counted = self.counts.setdefault((route.table.qualified, name), TableCount())
                counted.add(found["events"], batch, applied)
        finally:
            rows.unpersist()

    def _route(self, topic: str, version: int) -> Route:
        route = self.routes[topic]
        if version > route.table.version:
            route = self.routes[topic] = self.evolve(route)
        if version > route.table.version:
            msg = f"{route.table.qualified}: an event names version {version}, which the schema topic does not hold"
            raise BugError(msg, hint="was the schema topic made anew? A fresh snapshot writes it again")
        return route


def _survey(newest: DataFrame) -> list[Row]:
    """By topic: ``topic, events, keys, version, position, foreign STRUCT<partition, offset>`` (null: none)."""
    return (
        newest.groupBy("topic")
        .agg(
            F.sum("events").alias("events"),
            F.count(F.lit(1)).alias("keys"),
            F.max("schema_version").alias("version"),
            F.max("position").alias("position"),
            F.min(F.when(~F.col("valid"), F.struct("partition", "offset"))).alias("foreign"),
        )
        .collect()
    )


def _check_fit(rows: DataFrame, table: TargetTable) -> None:
    """Fill the cache of `rows` and stop at the first value that does not fit its column; no value is shown."""
    misfit = F.when(F.size(MISFITS) > 0, F.struct(F.col(PARTITION), F.col(OFFSET), F.col(MISFITS)))
    try:
        counted = rows.agg(F.min(misfit).alias("first"), F.count(KEY), F.count(OP), F.count(POSITION)).collect()
    except Exception as exc:
        said = spark_failure(exc)
        if said is None or table.shaping is None:
            raise
        msg = f"{table.qualified}: where or computed fails for a row. {said}"
        hint = "let it give null instead (try_divide, try_cast, nullif, …), then: cdc rebuild APPLY.yaml"
        raise OperatorError(msg, hint=hint) from exc
    found = counted[0]["first"]
    if found is None:
        return
    columns = ", ".join(found[MISFITS])
    msg = (
        f"{table.qualified}, column {columns}: a value does not fit its type in the derived table "
        f"(topic {table.topic}, partition {found[PARTITION]}, offset {found[OFFSET]}; "
        f"key column {', '.join(table.key)})"
    )
    hint = (
        f"set types: {{{found[MISFITS][0]}: string}} under tables.{table.qualified} to keep it as text, and give the "
        "stores a new path or index: they are filled again from the topics"
    )
    raise OperatorError(msg, hint=hint)
