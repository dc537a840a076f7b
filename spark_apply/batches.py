"""One micro-batch: newest events, typed, checked, handed to the stores. What happens inside ``foreachBatch``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses
from pyspark.storagelevel import StorageLevel

from cdc.errors import BugError, OperatorError
from spark_apply.failures import spark_failure
from spark_apply.latest import latest
from spark_apply.names import quoted
from spark_apply.shaped import shaped
from spark_apply.source import parse
from spark_apply.store import Applied, Batch, Moment, Store, is_whole
from spark_apply.tables import TargetTable
from spark_apply.typed import KEY, MISFITS, OFFSET, OP, PARTITION, POSITION

Key = tuple[str, str]
"""Topic and store."""


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
    duplicate: int | None = 0
    position: str | None = None

    def add(self, events: int, batch: Batch, applied: Applied) -> None:
        self.events += events
        self.keys += batch.keys
        self.written = _sum(self.written, applied.written)
        self.deleted = _sum(self.deleted, applied.deleted)
        self.stale = _sum(self.stale, applied.stale)
        self.duplicate = _sum(self.duplicate, applied.duplicate)
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

    def __call__(self, records: DataFrame, moments: Mapping[Key, Moment]) -> None:
        """Fold one batch in; when this returns, every store has it.

        `moments` are those of whole stores, with this batch in them: of each, all its tables' or those of one topic.
        """
        limits = {topic: moment.limit for (topic, _), moment in moments.items()}
        every = {topic: "" for topic, route in self.routes.items() if route.table.history}
        with ExitStack() as stack:
            newest = _kept(stack, latest(parse(records), {**limits, **every}))
            whole: dict[str, list[tuple[Batch, int]]] = {}
            for found in sorted(_survey(newest), key=lambda row: str(row["topic"])):
                topic, events = found["topic"], found["events"]
                with ExitStack() as own:
                    batch = self._typed(stack if topic in limits else own, newest, found)
                    for name, store in self.routes[topic].stores.items():
                        if is_whole(store):
                            whole.setdefault(name, []).append((batch, events))
                        else:
                            several = topic in limits and not batch.table.history
                            applied = store.apply(_newest(batch) if several else batch)
                            self._count(name, batch, events, applied)
            for name in sorted({name for _, name in moments}):
                self._fold(name, whole.get(name, []), moments)
        self.batches += 1

    def _fold(self, name: str, batches: list[tuple[Batch, int]], moments: Mapping[Key, Moment]) -> None:
        """Hand a whole store all that a batch has for it."""
        routes = {topic: self.routes[topic] for topic, store in moments if store == name}
        store = next(route.stores[name] for route in routes.values())
        if is_whole(store):
            at = {route.table.qualified: moments[topic, name] for topic, route in routes.items()}
            applied = store.fold([batch for batch, _ in batches], at)
            for batch, events in batches:
                self._count(name, batch, events, applied[batch.table.qualified])

    def _typed(self, stack: ExitStack, newest: DataFrame, found: Row) -> Batch:
        """The rows of a topic, once they are known to fit; kept until the batch ends."""
        topic = found["topic"]
        if found["foreign"] is not None:
            at = found["foreign"]
            msg = f"topic {topic}, partition {at['partition']}, offset {at['offset']}: this record is not an event"
            raise OperatorError(msg, hint="what else writes to this topic? docs/events.md says what may be in it")
        route = self._route(topic, found["version"])
        rows = _kept(stack, shaped(newest.where(F.col("topic") == topic), route.table))
        _check_fit(rows, route.table)
        return Batch(route.table, rows, found["keys"], found["position"])

    def _count(self, store: str, batch: Batch, events: int, applied: Applied) -> None:
        counted = self.counts.setdefault((batch.table.qualified, store), TableCount())
        counted.add(events, batch, applied)

    def _route(self, topic: str, version: int) -> Route:
        route = self.routes[topic]
        if version > route.table.version:
            route = self.routes[topic] = self.evolve(route)
        if version > route.table.version:
            msg = f"{route.table.qualified}: an event names version {version}, which the schema topic does not hold"
            raise BugError(msg, hint="was the schema topic made anew? A fresh snapshot writes it again")
        return route


def _kept(stack: ExitStack, rows: DataFrame) -> DataFrame:
    """`rows`, computed once, until the block ends."""
    rows = rows.persist(StorageLevel.MEMORY_AND_DISK)
    stack.callback(rows.unpersist)
    return rows


def _newest(batch: Batch) -> Batch:
    """A batch that has several events of a key, with the newest of each alone."""
    newest = batch.rows.groupBy(KEY).agg(F.max_by(F.struct(*map(quoted, batch.rows.columns)), POSITION).alias("newest"))
    return replace(batch, rows=newest.select("newest.*"))


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
