"""Folds one micro-batch into the stores, inside ``foreachBatch``: newest events, typed, checked, applied."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from dataclasses import dataclass, field, replace

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses
from pyspark.storagelevel import StorageLevel

from cdc.model.errors import BugError, OperatorError
from spark_apply.events.kafka_source import parse
from spark_apply.events.latest import latest, latest_alone
from spark_apply.events.projected import columns_read, project
from spark_apply.events.quarantine import Entry, Quarantine
from spark_apply.events.typed import KEY, OFFSET, PARTITION, POSITION
from spark_apply.events.validation import (
    PoisonRecord,
    RecordRef,
    RowObservation,
    misfit,
    misfits,
    newest,
    non_events,
    record_ref,
    refusal,
    resolved_entries,
    superseded,
    surveyed,
    without_misfits,
)
from spark_apply.job.route import Route
from spark_apply.job.set_aside import AsideCopies
from spark_apply.model.store import (
    Applied,
    Batch,
    CopyError,
    FilledStore,
    Refused,
    Store,
    Visibility,
    every_event_of,
    is_whole,
)
from spark_apply.model.target_table import TargetTable
from spark_apply.spark.failures import spark_failure

Key = tuple[str, str]
"""Topic and store."""

SurveyedBatch = tuple[Row, Batch]
"""What `_about` counts of a batch, and the batch."""

_ALSO = _VALID, _EVENTS, _VERSION = "_cdc_valid", "_cdc_events", "_cdc_version"
"""Columns about the events, while a batch is checked."""


@dataclass(slots=True)
class TableCount:
    """What was done for one table in one store since the job started; None if the store does not count."""

    events: int = 0
    keys: int = 0
    """Rows given to the store: the newest event of each key, summed over batches."""
    written: int | None = 0
    deleted: int | None = 0
    stale: int | None = 0
    duplicate: int | None = 0
    quarantined: int = 0
    """Events added to the quarantine; those already in it are not counted again."""
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
    """Folds micro-batches into stores, keeps the routes up to date, and counts."""

    routes: dict[str, Route]
    """By topic."""
    evolve: Callable[[Route], Route]
    """Returns a route with table and stores at the newest version of the schema topic."""
    quarantine: Quarantine
    counts: dict[tuple[str, str], TableCount] = field(default_factory=dict)
    """By table and store."""
    batches: int = 0
    asides: AsideCopies | None = None
    """The copies that are set aside, if a copy that fails may be: otherwise its failure is raised."""
    _refused: dict[Key, list[PoisonRecord]] = field(default_factory=dict)
    """The records of the running batch that stores refused."""

    def __call__(
        self, records: DataFrame, visibility: Mapping[Key, Visibility], since: Mapping[Key, str] | None = None
    ) -> None:
        """Fold one batch in; when this returns, every store has it.

        `visibility` is for each `WholeStore` what it may show with this batch, for all its tables or for one topic.
        `since` gives positions by copy: an event that sorts before is late and not applied, since it could bring back
        a deleted row.
        """
        self._refused.clear()
        if not any(route.stores for route in self.routes.values()):
            return
        limits = {topic: visible.limit for (topic, _), visible in visibility.items()}
        every = {topic: "" for topic, route in self.routes.items() if _takes_every_event(route)}
        with ExitStack() as stack:
            apart = {**limits, **every}
            alone = self._in_one_pass(stack, records, apart) if self._is_alone else None
            batches = closing(self._by_topic(stack, records, limits, apart)) if alone is None else nullcontext(alone)
            whole: dict[str, list[tuple[Batch, int]]] = {}
            for about, batch in stack.enter_context(batches):
                topic = batch.table.topic
                for name, store in self.routes[topic].stores.items():
                    with self.contained(topic, name):
                        if is_whole(store):
                            whole.setdefault(name, []).append((self._refusable(name, batch), about["events"]))
                        else:
                            again = topic in limits and not batch.table.history
                            rows = newest(batch.rows, None) if again else batch.rows
                            given = self._refusable(name, replace(batch, rows=rows))
                            first = (since or {}).get((topic, name), "")
                            late = about["first"] < first
                            applied = _apply_since(store, given, first) if late else _apply(store, given)
                            self._count(name, given, about["events"], applied)
            for name in sorted({name for _, name in visibility}):
                self.fold(name, whole.get(name, []), visibility)
        self.batches += 1

    def fill(self, records: DataFrame) -> bool:
        """Backfill the one topic into the one store in one pass; its copy is empty, and no reader sees it.

        Returns False, with a copy to discard, if the records must be checked first: there is a poison record, or an
        event of a newer version.
        """
        (route,) = self.routes.values()
        ((name, store),) = route.stores.items()
        if not isinstance(store, FilledStore):
            raise BugError(f"{name} takes no rows that nobody has looked through")
        rows = _read_alone(records, route.table)
        wrong = ~F.col(_VALID) | misfit() | (F.col(_VERSION) > route.table.version)
        seen = RowObservation(
            F.count_if(wrong).alias("wrong"),
            F.count(F.lit(1)).alias("keys"),
            F.sum(_EVENTS).alias("events"),
            F.max(POSITION).alias("position"),
        )
        try:
            store.fill(route.table, seen.of(rows))
        except Exception as exc:
            if spark_failure(exc) is None:
                raise
            return False  # the checked fold finds out why
        about = seen.found()
        if about is None or about["wrong"]:
            return False
        if about["keys"]:
            store.filled(route.table, about["position"])
            self._count(name, Batch(route.table, rows, about["keys"], about["position"]), about["events"], Applied())
        self.batches += 1
        return True

    def can_fill(self) -> bool:
        """Whether there is one store, which is a `FilledStore`, and no entry in quarantine that may now be resolved."""
        (route,) = self.routes.values()
        alone = len(route.stores) == 1 and all(isinstance(store, FilledStore) for store in route.stores.values())
        waiting = any(self.quarantine.of(name, route.table.topic) for name in route.stores)
        return alone and not waiting and not route.table.history

    @property
    def _most(self) -> int:
        """Return the number of poison records to read: one more than the quarantine may hold shows that it is full."""
        return self.quarantine.limit + 1

    def contained(self, topic: str, *stores: str) -> AbstractContextManager[None]:
        """Set copies of a topic aside if the block fails, where that may be."""
        return nullcontext() if self.asides is None else self.asides.contained(topic, *stores)

    def is_behind(self, topic: str, store: str) -> bool:
        """Set a copy aside that an earlier run has set aside, so that it is caught up; return whether it has."""
        return self.asides is not None and self.asides.is_behind(topic, store)

    @property
    def _is_alone(self) -> bool:
        """Whether the records are of one topic, and nothing is to be contained."""
        if self.asides is not None and (self.asides.containing or any(t not in self.routes for t, _ in self.asides)):
            return False
        return len(self.routes) == 1

    def fold(self, name: str, batches: list[tuple[Batch, int]], visibility: Mapping[Key, Visibility]) -> None:
        """Give a `WholeStore` everything that a batch has for it, and what each of its tables may show."""
        while routes := self._followed(name, visibility):
            store = next(route.stores[name] for route in routes.values())
            given = [(batch, events) for batch, events in batches if batch.table.topic in routes]
            waiting = {topic: self._refuser(name, route.table, None) for topic, route in routes.items()}
            refuse = {**waiting, **{batch.table.topic: batch.refuse for batch, _ in given}}
            at = {r.table.qualified: replace(visibility[t, name], refuse=refuse[t]) for t, r in routes.items()}
            if not is_whole(store):
                return
            try:
                applied = store.fold([batch for batch, _ in given], at)
            except CopyError as exc:
                (topic,) = (topic for topic, route in routes.items() if route.table.qualified == exc.table)
                with self.contained(topic, name):
                    raise
            except Exception as exc:  # the whole store is away, or refuses us
                if self.asides is None or not self.asides.contains(exc):
                    raise
                for topic in routes:
                    self.asides.put(topic, name, exc)
                return
            else:
                for batch, events in given:
                    self._count(name, batch, events, applied[batch.table.qualified])
                return

    def _followed(self, name: str, visibility: Mapping[Key, Visibility]) -> dict[str, Route]:
        """Return by topic the routes to a store, of those that `visibility` speaks of."""
        found = {topic: self.routes[topic] for topic, store in visibility if store == name}
        return {topic: route for topic, route in found.items() if name in route.stores}

    def _in_one_pass(
        self, stack: ExitStack, records: DataFrame, apart: Mapping[str, str]
    ) -> list[SurveyedBatch] | None:
        """Return the batch of the only topic (fast path); None if it has a poison record or a newer version."""
        (route,) = self.routes.values()
        with ExitStack() as own:
            rows = _kept(own, _read_alone(records, route.table, apart))
            try:
                about = surveyed(rows, route.table, *_about(_VALID, _EVENTS, _VERSION, POSITION))
            except OperatorError:  # the plain path finds out whether it is permanent
                return None
            if about["bad"] or about["non_events"] or (about["version"] or 0) > route.table.version:
                return None
            stack.push(own.pop_all())
        batch = Batch(route.table, rows.drop(*_ALSO), about["keys"], about["position"])
        return [(about, batch)] if about["keys"] else []

    def _by_topic(
        self, stack: ExitStack, records: DataFrame, limits: Mapping[str, str], apart: Mapping[str, str]
    ) -> Generator[SurveyedBatch]:
        """Yield a batch of each topic, valid until the next one; those with a limit are valid until `stack` ends."""
        events = parse(records)
        found = _kept(stack, latest(events, apart))
        for about in sorted(_survey(found), key=lambda row: str(row["topic"])):
            topic = about["topic"]
            stores = self.routes[topic].stores if topic in self.routes else {}
            if not stores:
                continue
            with ExitStack() as own:
                batch = None
                with self.contained(topic, *stores):
                    self._quarantine(topic, non_events(found, topic, self._most) if about["non_events"] else [])
                    if about["keys"]:
                        kept = stack if topic in limits else own
                        batch = self._typed(kept, found, about, events, limits.get(topic))
                if batch is not None:
                    yield about, batch

    def _typed(self, stack: ExitStack, found: DataFrame, about: Row, events: DataFrame, limit: str | None) -> Batch:
        """Return the valid rows of a topic, cached until the batch ends; put poison records into quarantine first."""
        topic = about["topic"]
        route = self._route(topic, about["version"])
        rows = _kept(stack, project(found.where((F.col("topic") == topic) & F.col("valid")), route.table))
        bad, keys = misfits(rows, route.table, self._most)
        if bad:
            self._quarantine(topic, bad)
            rows = _kept(stack, without_misfits(rows, events, route.table, bad, limit))
            keys = rows.count()
        return Batch(route.table, rows, keys, about["position"])

    def _quarantine(self, topic: str, bad: Sequence[PoisonRecord]) -> None:
        """Put events into quarantine for all stores, before any store has a later one."""
        for store in self.routes[topic].stores if bad else ():
            with self.contained(topic, store):
                self._put(store, self.routes[topic].table, bad)

    def _put(self, store: str, table: TargetTable, bad: Sequence[PoisonRecord]) -> None:
        now_ms = time.time_ns() // 1_000_000
        entries = [Entry(store, table.qualified, table.topic, *one.at, reason=one.why, at_ms=now_ms) for one in bad]
        new = self.quarantine.put(entries, beyond=refusal(table, bad[0], store))
        self.counts.setdefault((table.qualified, store), TableCount()).quarantined += new
        if not table.history:
            self.quarantine.resolve(superseded(self.quarantine.of(store, table.topic), bad))

    def _refusable(self, store: str, batch: Batch) -> Batch:
        """Return a batch of which the store may refuse rows."""
        return replace(batch, refuse=self._refuser(store, batch.table, batch.rows))

    def _refuser(self, store: str, table: TargetTable, rows: DataFrame | None) -> Callable[[Collection[Refused]], None]:
        """Return what puts refused events into quarantine: those of `rows`, and those that waited in the store."""

        def refuse(refused: Collection[Refused]) -> None:
            said = {(one.partition, one.offset): one.reason for one in list(refused)[: self._most]}
            there: list[RecordRef] = []
            if rows is not None:
                found = rows.where(F.col(OFFSET).isin([offset for _, offset in said]))
                there = [RecordRef(*row) for row in found.select(PARTITION, OFFSET, KEY, POSITION).collect()]
            waited = said.keys() - {at[:2] for at in there}
            there += (record_ref(self.quarantine.config.source, table.topic, *at) for at in sorted(waited))
            bad = [PoisonRecord(at, reason=said[at[:2]]) for at in there if at[:2] in said]
            self._refused.setdefault((table.topic, store), []).extend(bad)
            self._put(store, table, bad)

        return refuse

    def _resolve(self, store: str, batch: Batch) -> None:
        """Resolve the entries whose event, or a newer one, the store has with this batch."""
        topic = batch.table.topic
        refused = {one.at[:2] for one in self._refused.get((topic, store), ())}
        waiting = [e for e in self.quarantine.of(store, topic) if (e.partition, e.offset) not in refused]
        self.quarantine.resolve(resolved_entries(waiting, batch.rows, history=batch.table.history))

    def _count(self, store: str, batch: Batch, events: int, applied: Applied) -> None:
        counted = self.counts.setdefault((batch.table.qualified, store), TableCount())
        counted.add(events, batch, applied)
        self._resolve(store, batch)

    def _route(self, topic: str, version: int) -> Route:
        route = self.routes[topic]
        if version > route.table.version:
            route = self.routes[topic] = self.evolve(route)
        if version > route.table.version:
            msg = f"{route.table.qualified}: an event names version {version}, which the schema topic does not hold"
            raise BugError(msg, hint="was the schema topic recreated? A fresh snapshot writes it again")
        return route


def _read_alone(records: DataFrame, table: TargetTable, apart: Mapping[str, str] | None = None) -> DataFrame:
    """Return the rows of the only topic, with `_ALSO`; not yet checked."""
    events = parse(records, columns_read(table))
    found = latest(events, apart) if apart else latest_alone(events)
    return project(found.select(*_marked()), table, *_ALSO, parsed=True)


def _takes_every_event(route: Route) -> bool:
    """Whether the newest event of each key is not enough for a store."""
    name = route.table.qualified
    return route.table.history or any(name in every_event_of(store) for store in route.stores.values())


def _kept(stack: ExitStack, rows: DataFrame) -> DataFrame:
    """Cache `rows` until `stack` ends."""
    rows = rows.persist(StorageLevel.MEMORY_AND_DISK)
    stack.callback(rows.unpersist)
    return rows


def _apply(store: Store, batch: Batch) -> Applied:
    return store.apply(batch) if batch.keys else Applied(0, 0, 0)


def _apply_since(store: Store, batch: Batch, since: str) -> Applied:
    """Apply the events of a batch that are not late; late ones count as stale."""
    rows = batch.rows.where(F.col(POSITION) >= since)
    keys = rows.count()
    applied = _apply(store, replace(batch, rows=rows, keys=keys))
    return replace(applied, stale=_sum(applied.stale, batch.keys - keys))


@functools.cache
def _marked() -> list[Column]:
    """Return the columns of newest events, and those of `_ALSO`."""
    return [
        *(F.col(name) for name in ("key", "partition", "offset", "position", "schema_version", "source_ms", "after")),
        F.when(F.col("valid"), F.col("op")).otherwise("d").alias("op"),  # expressions see no row of a delete
        F.col("valid").alias(_VALID),
        F.col("events").alias(_EVENTS),
        F.col("schema_version").alias(_VERSION),
    ]


def _survey(found: DataFrame) -> list[Row]:
    """Return by topic ``topic`` and what `_about` counts."""
    return found.groupBy("topic").agg(*_about("valid", "events", "schema_version", "position")).collect()


@functools.cache
def _about(valid: str, events: str, version: str, position: str) -> list[Column]:
    """Return aggregates over columns with these names: ``events, keys, version, first, position, non_events``.

    All but the last count events alone; ``first`` and ``position`` are the least and the greatest position.
    """
    is_event = F.col(valid)
    return [
        F.sum(F.when(is_event, F.col(events))).alias("events"),
        F.count_if(is_event).alias("keys"),
        F.max(F.when(is_event, F.col(version))).alias("version"),
        F.min(F.when(is_event, F.col(position))).alias("first"),
        F.max(F.when(is_event, F.col(position))).alias("position"),
        F.count_if(~is_event).alias("non_events"),
    ]
