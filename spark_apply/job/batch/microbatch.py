"""Folds one micro-batch into the stores, inside ``foreachBatch``: newest events, typed, checked, applied."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from dataclasses import dataclass, field, replace

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses

from cdc.model.errors import BugError, OperatorError
from spark_apply.events.envelope import parse
from spark_apply.events.latest import latest, not_again
from spark_apply.events.projected import project
from spark_apply.events.quarantine import Quarantine
from spark_apply.events.typed import POSITION
from spark_apply.events.validation import (
    PoisonRecord,
    RowObservation,
    misfit,
    misfits,
    newest,
    non_events,
    surveyed,
    without_misfits,
)
from spark_apply.job.batch.counts import TableCount, total
from spark_apply.job.batch.refusals import Refusals
from spark_apply.job.batch.survey import ALSO, EVENTS, VALID, VERSION, aggregates, cached, read_alone, survey
from spark_apply.job.copies.route import Route
from spark_apply.job.copies.set_aside import AsideCopies, Key
from spark_apply.job.topics.compacted_deletes import UnreadDeletes
from spark_apply.model.completeness import NOTHING, TakenIn
from spark_apply.model.store import (
    Applied,
    Batch,
    CopyError,
    FilledStore,
    Store,
    Visibility,
    every_event_of,
    is_whole,
)
from spark_apply.spark.failures import spark_failure

SurveyedBatch = tuple[Row, Batch]
"""What `aggregates` counts of a batch, and the batch."""


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
    unread: UnreadDeletes | None = None
    """Finds out whether deletes are gone, where batches are read into copies that have rows."""
    _refusals: Refusals = field(init=False)

    def __post_init__(self) -> None:
        self._refusals = Refusals(self.quarantine, self.counts)

    def __call__(
        self, records: DataFrame, visibility: Mapping[Key, Visibility], had: Mapping[Key, TakenIn] | None = None
    ) -> None:
        """Fold one batch in; when this returns, every store has it.

        `visibility` is for each `WholeStore` what it may show with this batch, for all its tables or for one topic.
        `had` says by copy what it has: an event of that is not applied again, since it could bring back a deleted row.
        """
        self._refusals.begin()
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
                            whole.setdefault(name, []).append((self._refusals.refusable(name, batch), about["events"]))
                        else:
                            again = topic in limits and not batch.table.history
                            rows = newest(batch.rows, None) if again else batch.rows
                            given = self._refusals.refusable(name, replace(batch, rows=rows))
                            has = (had or {}).get((topic, name), NOTHING)
                            known = bool(has.ends) or about["first"] < has.before
                            applied = _apply_new(store, given, has) if known else _apply(store, given)
                            self._count(name, given, about["events"], applied, has if known else NOTHING)
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
        rows = read_alone(records, route.table)
        wrong = ~F.col(VALID) | misfit() | (F.col(VERSION) > route.table.version)
        seen = RowObservation(
            F.count_if(wrong).alias("wrong"),
            F.count(F.lit(1)).alias("keys"),
            F.sum(EVENTS).alias("events"),
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

    def look_at_kept(self) -> None:
        """Set copies aside that may have lagged behind for longer than their topics keep deletes."""
        if self.unread is not None:
            self.unread.look([(route.table, route.stores) for route in self.routes.values()], self.contained)

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
            waiting = {topic: self._refusals.refuser(name, route.table, None) for topic, route in routes.items()}
            refuse = {**waiting, **{batch.table.topic: batch.refuse for batch, _ in given}}
            at = {r.table.qualified: replace(visibility[t, name], refuse=refuse[t]) for t, r in routes.items()}
            if not is_whole(store):
                return
            try:
                had = {batch.table.topic: self._refusals.had(name, store, batch.table) for batch, _ in given}
                applied = store.fold([batch for batch, _ in given], at)
            except CopyError as exc:
                self._set_aside(
                    name, {t: route for t, route in routes.items() if route.table.qualified in exc.errors}, exc
                )
            except Exception as exc:  # the whole store is away, or refuses us
                if self.asides is None or not self.asides.contains(exc):
                    raise
                for topic in routes:
                    self.asides.put(topic, name, exc)
                return
            else:
                for batch, events in given:
                    table = batch.table
                    known = NOTHING if at[table.qualified].again else had[table.topic]
                    self._count(name, batch, events, applied[table.qualified], known)
                return

    def _set_aside(self, name: str, failed: Mapping[str, Route], exc: CopyError) -> None:
        """Set aside the copies that a store has found to fail by themselves, and wait for no other try of the batch.

        Raises the error of one that cannot be set aside, or that was swapped meanwhile: then another try may help.
        """
        for topic, route in failed.items():
            error = exc.errors[route.table.qualified]
            if self.asides is None or self.asides.over:
                raise error from exc
            if not self.asides.containing and route.stores[name].due(route.table) is not None:
                raise error from exc
            self.asides.put(topic, name, error)

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
            seen = self._tombstones()
            rows = cached(own, read_alone(_observed(records, seen), route.table, apart))
            try:
                about = surveyed(rows, route.table, *aggregates(VALID, EVENTS, VERSION, POSITION))
            except OperatorError:  # the plain path finds out whether it is permanent
                return None
            if about["bad"] or about["non_events"] or (about["version"] or 0) > route.table.version:
                return None
            self._require_deletes(seen, records)
            stack.push(own.pop_all())
        batch = Batch(route.table, rows.drop(*ALSO), about["keys"], about["position"])
        return [(about, batch)] if about["keys"] else []

    def _by_topic(
        self, stack: ExitStack, records: DataFrame, limits: Mapping[str, str], apart: Mapping[str, str]
    ) -> Generator[SurveyedBatch]:
        """Yield a batch of each topic, valid until the next one; those with a limit are valid until `stack` ends."""
        events, seen = parse(records), self._tombstones()
        found = cached(stack, latest(parse(_observed(records, seen)), apart))
        surveyed_topics = sorted(survey(found), key=lambda row: str(row["topic"]))
        self._require_deletes(seen, records)
        for about in surveyed_topics:
            topic = about["topic"]
            stores = self.routes[topic].stores if topic in self.routes else {}
            if not stores:
                continue
            with ExitStack() as own:
                batch = None
                with self.contained(topic, *stores):
                    self._quarantine(
                        topic, non_events(found, topic, self._refusals.most) if about["non_events"] else []
                    )
                    if about["keys"]:
                        kept = stack if topic in limits else own
                        batch = self._typed(kept, found, about, events, limits.get(topic))
                if batch is not None:
                    yield about, batch

    def _tombstones(self) -> RowObservation | None:
        """Return what is to see a batch's tombstones and deletes, in one pass."""
        if self.unread is None:
            return None
        apart = [topic for topic, route in self.routes.items() if route.table.history or not route.stores]
        return self.unread.observation(apart)

    def _require_deletes(self, seen: RowObservation | None, records: DataFrame) -> None:
        """Set copies aside, before they have a batch, that have rows whose deletes are gone from it."""
        if self.unread is not None and seen is not None:
            routes = [(route.table, route.stores) for route in self.routes.values()]
            self.unread.require(seen, records, routes, self.contained)

    def _typed(self, stack: ExitStack, found: DataFrame, about: Row, events: DataFrame, limit: str | None) -> Batch:
        """Return the valid rows of a topic, cached until the batch ends; put poison records into quarantine first."""
        topic = about["topic"]
        route = self._route(topic, about["version"])
        rows = cached(stack, project(found.where((F.col("topic") == topic) & F.col("valid")), route.table))
        bad, keys = misfits(rows, route.table, self._refusals.most)
        if bad:
            self._quarantine(topic, bad)
            rows = cached(stack, without_misfits(rows, events, route.table, bad, limit))
            keys = rows.count()
        return Batch(route.table, rows, keys, about["position"])

    def _quarantine(self, topic: str, bad: Sequence[PoisonRecord]) -> None:
        """Put events into quarantine for all stores, before any store has a later one."""
        for store in self.routes[topic].stores if bad else ():
            with self.contained(topic, store):
                self._refusals.put(store, self.routes[topic].table, bad)

    def _count(self, store: str, batch: Batch, events: int, applied: Applied, had: TakenIn = NOTHING) -> None:
        counted = self.counts.setdefault((batch.table.qualified, store), TableCount())
        counted.add(events, batch, applied)
        self._refusals.resolve(store, batch, had)

    def _route(self, topic: str, version: int) -> Route:
        route = self.routes[topic]
        if version > route.table.version:
            route = self.routes[topic] = self.evolve(route)
        if version > route.table.version:
            msg = f"{route.table.qualified}: an event names version {version}, which the schema topic does not hold"
            hint = (
                "was the schema topic made again, or has another producer written this event? A fresh snapshot of the "
            )
            raise OperatorError(msg, hint=f"{hint}connector writes the topic again; until then the other tables go on")
        return route


def _observed(records: DataFrame, seen: RowObservation | None) -> DataFrame:
    return records if seen is None else seen.of(records)


def _takes_every_event(route: Route) -> bool:
    """Whether the newest event of each key is not enough for a store."""
    name = route.table.qualified
    return route.table.history or any(name in every_event_of(store) for store in route.stores.values())


def _apply(store: Store, batch: Batch) -> Applied:
    return store.apply(batch) if batch.keys else Applied(0, 0, 0)


def _apply_new(store: Store, batch: Batch, had: TakenIn) -> Applied:
    """Apply the events of a batch that are new to a copy; the others count as stale."""
    rows = not_again(batch.rows, had)
    keys = rows.count()
    applied = _apply(store, replace(batch, rows=rows, keys=keys))
    return replace(applied, stale=total(applied.stale, batch.keys - keys))
