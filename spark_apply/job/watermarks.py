"""Tells the stores how far they are complete, and refuses to go on where one of them is older than the checkpoint."""

from __future__ import annotations

import time
from collections.abc import Mapping

from cdc.model.errors import OperatorError
from spark_apply.job.barriers import Watcher
from spark_apply.job.microbatch import Key, Route
from spark_apply.model.completeness import Barrier, Complete, Ends, Mark
from spark_apply.model.store import EVERYTHING, Moment, is_whole
from spark_apply.spark.paths import removal


class Publisher:
    """Writes marks. Not for two threads at a time, nor while a batch is being applied."""

    def __init__(self, routes: Mapping[str, Route], watcher: Watcher) -> None:
        """`routes` by topic, as the applier keeps them."""
        self._routes = routes
        self._watcher = watcher
        self._ends: Ends = {}
        self._marks: dict[Key, Mark] = {}

    def begin(self, applied: Ends | None, *, checkpoint: str) -> None:
        """Compare the stores with what the checkpoint says was applied.

        Where that is nothing, all is about to be read from the beginning, and deleted rows may show meanwhile: a copy
        that is there already is complete no more. Raises OperatorError for one that lacks what was applied: it was
        restored from a backup, and what it lacks would never come.
        """
        self._ends = applied or {}
        for (topic, name), route in self._followers():
            table, store = route.table, route.stores[name]
            mark = store.mark(table)
            if applied is None:
                if mark is not None or is_whole(store):
                    store.set_mark(table, Mark({}, None))
                continue
            if mark is None or not mark.holds(applied.get(topic, {})):
                msg = f"store {name}: its copy of {table.qualified} is older than the checkpoint {checkpoint}"
                hint = f"was it restored from a backup? {removal(checkpoint)}: the job then fills it from the topics"
                raise OperatorError(msg, hint=hint)
            self._marks[topic, name] = mark

    def moments(self, ends: Ends) -> dict[Key, Moment]:
        """For the whole stores, what is whole once the batch that goes to `ends` is folded in."""
        marks = self._due(ends)
        return {
            (topic, name): self._moment(route, marks[topic, name])
            for (topic, name), route in self._followers()
            if is_whole(route.stores[name])
        }

    def unread(self, ends: Ends) -> int:
        """How many offsets lie between what was applied and `ends`: as many events, or more."""
        before = self._ends
        return sum(
            end - before.get(topic, {}).get(number, 0) for topic, of in ends.items() for number, end in of.items()
        )

    def settled(self) -> dict[Key, str]:
        """For the others, the position that only late events sort before; a history is told those, too."""
        return {
            (topic, name): mark.complete.settled
            for (topic, name), mark in self._marks.items()
            if mark.complete is not None
            and not is_whole(self._routes[topic].stores[name])
            and not self._routes[topic].table.history
        }

    def applied(self, ends: Ends, moments: Mapping[Key, Moment]) -> None:
        """All stores hold everything below `ends`, and the whole ones say so since they have these moments."""
        self._ends = ends
        self._marks.update({follower: moment.mark for follower, moment in moments.items()})
        self._publish()

    def replaced(self, topic: str, store: str, ends: Mapping[int, int]) -> None:
        """Another copy has taken the place of a store's, and holds all records below `ends`."""
        route = self._routes[topic]
        mark = self._marks[topic, store] = Mark(ends, None)
        route.stores[store].set_mark(route.table, mark)
        self._watcher.barriers.news.set()

    def tend(self) -> None:
        """Publish what moves on without a batch: the position of a source where nobody writes.

        Raises what the watcher ended with.
        """
        if self._watcher.failure is not None:
            raise self._watcher.failure
        if self._watcher.barriers.news.is_set():
            self._publish()

    def _publish(self) -> None:
        """Write the marks that have changed."""
        self._watcher.barriers.news.clear()
        together: dict[str, dict[str, Moment]] = {}
        for (topic, name), mark in self._due(self._ends).items():
            route = self._routes[topic]
            if mark == self._marks.get((topic, name)):
                continue
            if is_whole(route.stores[name]):
                together.setdefault(name, {})[route.table.qualified] = self._moment(route, mark)
            else:
                route.stores[name].set_mark(route.table, mark)
            self._marks[topic, name] = mark
        for name, moments in together.items():
            store = next(route.stores[name] for route in self._routes.values() if name in route.stores)
            if is_whole(store):
                store.fold((), moments)

    def _due(self, ends: Ends) -> dict[Key, Mark]:
        """What all copies can say of themselves when they hold everything below `ends`."""
        passed = {
            connector: barrier
            for connector, barrier in self._watcher.barriers.passed(ends).items()
            if barrier.passed(ends)  # not for the ends of a batch that was asked about, and failed
        }
        now_ms = time.time_ns() // 1_000_000
        found = {}
        for (topic, name), route in self._followers():
            known = self._marks.get((topic, name))
            before = known.complete if known else None
            complete = _newer(before, passed.get(route.table.connector), route.table.qualified, now_ms)
            found[topic, name] = Mark(ends.get(topic, {}), complete)
        return found

    def _moment(self, route: Route, mark: Mark) -> Moment:
        """Nothing is whole before the connector says so; one that never says anything is not waited for."""
        if mark.complete is not None:
            return Moment(mark, mark.complete.position)
        return Moment(mark, "" if route.table.connector in self._watcher.seen else EVERYTHING)

    def _followers(self) -> list[tuple[Key, Route]]:
        return [((topic, name), route) for topic, route in sorted(self._routes.items()) for name in route.stores]


def _newer(before: Complete | None, barrier: Barrier | None, table: str, now_ms: int) -> Complete | None:
    """What is complete now; what was before stays so if the barrier says nothing, or nothing newer."""
    if barrier is None or table not in barrier.tables:
        return before
    if before is not None and before.connector == barrier.connector:
        if barrier.position < before.position:
            return before
        if (barrier.position, barrier.source_ms) == (before.position, before.source_ms):
            return before
    return Complete(barrier.connector, barrier.position, barrier.source_ms, now_ms)
