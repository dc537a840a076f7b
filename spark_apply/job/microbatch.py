"""One micro-batch: newest events, typed, checked, handed to the stores. What happens inside ``foreachBatch``."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import ExitStack, closing, nullcontext
from dataclasses import dataclass, field, replace

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses
from pyspark.storagelevel import StorageLevel

from cdc.model.errors import BugError, OperatorError
from spark_apply.events.kafka_source import parse
from spark_apply.events.latest import latest, latest_alone
from spark_apply.events.projected import columns_read, shaped
from spark_apply.events.quarantine import Entry, Quarantine
from spark_apply.events.typed import KEY, OFFSET, PARTITION, POSITION
from spark_apply.events.validation import (
    Bad,
    Place,
    Seen,
    fitting,
    misfit,
    misfits,
    newest,
    refusal,
    settled,
    strangers,
    superseded,
    surveyed,
)
from spark_apply.model.store import Applied, Batch, FilledStore, Moment, Refused, Store, is_whole
from spark_apply.model.target_table import TargetTable
from spark_apply.spark.failures import spark_failure

Key = tuple[str, str]
"""Topic and store."""

Told = tuple[Row, Batch]
"""What `_about` says of a batch, and the batch."""

_ALSO = _VALID, _EVENTS, _VERSION = "_cdc_valid", "_cdc_events", "_cdc_version"
"""What rows know of their events while a batch is looked through."""


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
    quarantined: int = 0
    """Events that came to be in quarantine; those that were there already are not counted again."""
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
    quarantine: Quarantine
    counts: dict[tuple[str, str], TableCount] = field(default_factory=dict)
    """By table and store."""
    batches: int = 0
    _refused: dict[Key, list[Bad]] = field(default_factory=dict)
    """What stores refused of the batch under way."""

    def __call__(
        self, records: DataFrame, moments: Mapping[Key, Moment], since: Mapping[Key, str] | None = None
    ) -> None:
        """Fold one batch in; when this returns, every store has it.

        `moments` are those of whole stores, with this batch in them: of each, all its tables' or those of one topic.
        `since` gives positions by copy: to it, no event that sorts before is handed, as it could bring back a row that
        was deleted.
        """
        self._refused.clear()
        limits = {topic: moment.limit for (topic, _), moment in moments.items()}
        every = {topic: "" for topic, route in self.routes.items() if route.table.history}
        with ExitStack() as stack:
            apart = {**limits, **every}
            alone = self._in_one_pass(stack, records, apart) if len(self.routes) == 1 else None
            several = closing(self._by_topic(stack, records, limits, apart)) if alone is None else nullcontext(alone)
            whole: dict[str, list[tuple[Batch, int]]] = {}
            for about, batch in stack.enter_context(several):
                topic = batch.table.topic
                for name, store in self.routes[topic].stores.items():
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
            for name in sorted({name for _, name in moments}):
                self._fold(name, whole.get(name, []), moments)
        self.batches += 1

    def fill(self, records: DataFrame) -> bool:
        """Fold all records of the one topic into the one store there is, in one pass: its copy is empty, and unread.

        False, with the copy spoilt, where they are to be looked at first: something is bad, or newer than the route.
        """
        (route,) = self.routes.values()
        ((name, store),) = route.stores.items()
        if not isinstance(store, FilledStore):
            raise BugError(f"{name} takes no rows that nobody has looked through")
        rows = _read_alone(records, route.table)
        wrong = ~F.col(_VALID) | misfit() | (F.col(_VERSION) > route.table.version)
        seen = Seen(
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
            return False  # the other way finds out what it was
        about = seen.found()
        if about is None or about["wrong"]:
            return False
        if about["keys"]:
            store.filled(route.table, about["position"])
            self._count(name, Batch(route.table, rows, about["keys"], about["position"]), about["events"], Applied())
        self.batches += 1
        return True

    def fills(self) -> bool:
        """Whether there is one store, that can be filled so, and nothing in quarantine that may now be settled."""
        (route,) = self.routes.values()
        alone = len(route.stores) == 1 and all(isinstance(store, FilledStore) for store in route.stores.values())
        waiting = any(self.quarantine.of(name, route.table.topic) for name in route.stores)
        return alone and not waiting and not route.table.history

    @property
    def _most(self) -> int:
        """So many bad events are looked at: with one more than there is room for, it is known that there is none."""
        return self.quarantine.limit + 1

    def _fold(self, name: str, batches: list[tuple[Batch, int]], moments: Mapping[Key, Moment]) -> None:
        """Hand a whole store all that a batch has for it."""
        routes = {topic: self.routes[topic] for topic, store in moments if store == name}
        store = next(route.stores[name] for route in routes.values())
        if is_whole(store):
            at = {route.table.qualified: moments[topic, name] for topic, route in routes.items()}
            applied = store.fold([batch for batch, _ in batches], at)
            for batch, events in batches:
                self._count(name, batch, events, applied[batch.table.qualified])

    def _in_one_pass(self, stack: ExitStack, records: DataFrame, apart: Mapping[str, str]) -> list[Told] | None:
        """The batch of the only topic there is; None where it takes another look, at what is bad or newer."""
        (route,) = self.routes.values()
        with ExitStack() as own:
            rows = _kept(own, _read_alone(records, route.table, apart))
            try:
                about = surveyed(rows, route.table, *_about(_VALID, _EVENTS, _VERSION, POSITION))
            except OperatorError:  # the other way finds out whether it stands
                return None
            if about["bad"] or about["strangers"] or (about["version"] or 0) > route.table.version:
                return None
            stack.push(own.pop_all())
        batch = Batch(route.table, rows.drop(*_ALSO), about["keys"], about["position"])
        return [(about, batch)] if about["keys"] else []

    def _by_topic(
        self, stack: ExitStack, records: DataFrame, limits: Mapping[str, str], apart: Mapping[str, str]
    ) -> Generator[Told]:
        """A batch of each topic, as long as it is the one at hand; those with a limit until `stack` ends."""
        events = parse(records)
        found = _kept(stack, latest(events, apart))
        for about in sorted(_survey(found), key=lambda row: str(row["topic"])):
            topic = about["topic"]
            self._set_aside(topic, strangers(found, topic, self._most) if about["strangers"] else [])
            if about["keys"]:
                with ExitStack() as own:
                    yield about, self._typed(stack if topic in limits else own, found, about, events, limits.get(topic))

    def _typed(self, stack: ExitStack, found: DataFrame, about: Row, events: DataFrame, limit: str | None) -> Batch:
        """The rows of a topic that fit; kept until the batch ends. What does not fit is in quarantine by then."""
        topic = about["topic"]
        route = self._route(topic, about["version"])
        rows = _kept(stack, shaped(found.where((F.col("topic") == topic) & F.col("valid")), route.table))
        bad, keys = misfits(rows, route.table, self._most)
        if bad:
            self._set_aside(topic, bad)
            rows = _kept(stack, fitting(rows, events, route.table, bad, limit))
            keys = rows.count()
        return Batch(route.table, rows, keys, about["position"])

    def _set_aside(self, topic: str, bad: Sequence[Bad]) -> None:
        """Put events into quarantine for all stores, before any has a later one."""
        for store in self.routes[topic].stores if bad else ():
            self._put(store, self.routes[topic].table, bad)

    def _put(self, store: str, table: TargetTable, bad: Sequence[Bad]) -> None:
        now_ms = time.time_ns() // 1_000_000
        entries = [Entry(store, table.qualified, table.topic, *one.at, reason=one.why, at_ms=now_ms) for one in bad]
        new = self.quarantine.put(entries, beyond=refusal(table, bad[0], store))
        self.counts.setdefault((table.qualified, store), TableCount()).quarantined += new
        if not table.history:
            self.quarantine.resolve(superseded(self.quarantine.of(store, table.topic), bad))

    def _refusable(self, store: str, batch: Batch) -> Batch:
        """A batch of which the store may refuse rows."""

        def refuse(refused: Collection[Refused]) -> None:
            said = {(one.partition, one.offset): one.reason for one in list(refused)[: self._most]}
            rows = batch.rows.where(F.col(OFFSET).isin([offset for _, offset in said]))
            places = [Place(*row) for row in rows.select(PARTITION, OFFSET, KEY, POSITION).collect()]
            bad = [Bad(at, reason=said[at[:2]]) for at in places if at[:2] in said]
            self._refused.setdefault((batch.table.topic, store), []).extend(bad)
            self._put(store, batch.table, bad)

        return replace(batch, refuse=refuse)

    def _settle(self, store: str, batch: Batch) -> None:
        """Resolve what a store has, or has newer events of, now that it has the batch."""
        topic = batch.table.topic
        refused = {one.at[:2] for one in self._refused.get((topic, store), ())}
        waiting = [e for e in self.quarantine.of(store, topic) if (e.partition, e.offset) not in refused]
        self.quarantine.resolve(settled(waiting, batch.rows, history=batch.table.history))

    def _count(self, store: str, batch: Batch, events: int, applied: Applied) -> None:
        counted = self.counts.setdefault((batch.table.qualified, store), TableCount())
        counted.add(events, batch, applied)
        self._settle(store, batch)

    def _route(self, topic: str, version: int) -> Route:
        route = self.routes[topic]
        if version > route.table.version:
            route = self.routes[topic] = self.evolve(route)
        if version > route.table.version:
            msg = f"{route.table.qualified}: an event names version {version}, which the schema topic does not hold"
            raise BugError(msg, hint="was the schema topic made anew? A fresh snapshot writes it again")
        return route


def _read_alone(records: DataFrame, table: TargetTable, apart: Mapping[str, str] | None = None) -> DataFrame:
    """The rows of the only topic there is, and `_ALSO`: also those that may not be applied as they are."""
    events = parse(records, columns_read(table))
    found = latest(events, apart) if apart else latest_alone(events)
    return shaped(found.select(*_marked()), table, *_ALSO, parsed=True)


def _kept(stack: ExitStack, rows: DataFrame) -> DataFrame:
    """`rows`, computed once, until the block ends."""
    rows = rows.persist(StorageLevel.MEMORY_AND_DISK)
    stack.callback(rows.unpersist)
    return rows


def _apply(store: Store, batch: Batch) -> Applied:
    return store.apply(batch) if batch.keys else Applied(0, 0, 0)


def _apply_since(store: Store, batch: Batch, since: str) -> Applied:
    """Hand a store what of a batch is not late; what is, counts as stale."""
    rows = batch.rows.where(F.col(POSITION) >= since)
    keys = rows.count()
    applied = _apply(store, replace(batch, rows=rows, keys=keys))
    return replace(applied, stale=_sum(applied.stale, batch.keys - keys))


@functools.cache
def _marked() -> list[Column]:
    """The columns of newest events, and those of `_ALSO`."""
    return [
        *(F.col(name) for name in ("key", "partition", "offset", "position", "schema_version", "source_ms", "after")),
        F.when(F.col("valid"), F.col("op")).otherwise("d").alias("op"),  # expressions see no row of a delete
        F.col("valid").alias(_VALID),
        F.col("events").alias(_EVENTS),
        F.col("schema_version").alias(_VERSION),
    ]


def _survey(found: DataFrame) -> list[Row]:
    """By topic: ``topic`` and what `_about` gives."""
    return found.groupBy("topic").agg(*_about("valid", "events", "schema_version", "position")).collect()


@functools.cache
def _about(valid: str, events: str, version: str, position: str) -> list[Column]:
    """Of columns with these names: ``events, keys, version, first, position, strangers``; all but the last of events.

    ``first`` and ``position`` are the least and the greatest.
    """
    is_event = F.col(valid)
    return [
        F.sum(F.when(is_event, F.col(events))).alias("events"),
        F.count_if(is_event).alias("keys"),
        F.max(F.when(is_event, F.col(version))).alias("version"),
        F.min(F.when(is_event, F.col(position))).alias("first"),
        F.max(F.when(is_event, F.col(position))).alias("position"),
        F.count_if(~is_event).alias("strangers"),
    ]
