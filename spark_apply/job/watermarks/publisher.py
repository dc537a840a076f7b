"""Writes the stores' marks (watermarks), and refuses a store that is older than the checkpoint."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Final

from cdc.config.views import VIEW_SCHEMA
from cdc.model.errors import OperatorError
from spark_apply.job.batch.microbatch import Applier
from spark_apply.job.checkpoint.files import AGAIN
from spark_apply.job.copies.route import Route
from spark_apply.job.copies.set_aside import Key
from spark_apply.job.watermarks.barriers import PositionWatcher
from spark_apply.model.completeness import Barrier, Complete, Ends, Mark, TakenIn, moved_on
from spark_apply.model.store import EVERYTHING, Store, Visibility, can_expire, is_whole

_FINE: Final = (False, "")
"""A table that is not read again, and not gone."""


def restored(store: Store) -> str:
    """Return the hint for a copy that has less than its checkpoint says."""
    expired = ", or did another engine expire its snapshots" if can_expire(store) else ""
    return f"was it restored from a backup{expired}? {AGAIN}"


class WatermarkPublisher:
    """Writes marks. Not thread-safe, and not to be called while a batch is applied."""

    def __init__(self, applier: Applier, watcher: PositionWatcher, topics: Mapping[str, str] | None = None) -> None:
        """`topics` has the identities that marks are given, by topic."""
        self._applier = applier
        self._routes = applier.routes
        self._watcher = watcher
        self._topics = topics or {}
        self._ends: Ends = {}
        self._marks: dict[Key, Mark] = {}
        self._passed: Mapping[str, Barrier] = {}
        """By connector, the newest barrier that is true of what the copies hold."""
        self._claimed = set[Key]()
        """The copies whose marks were written since the job began (`spark_apply.model.ownership`)."""
        self._told: dict[Key, tuple[bool, str]] = {}
        """Of copies that are brought together with others, whether each table is read again, and why it is gone."""

    def begin(self, applied: Ends | None, *, checkpoint: str) -> None:
        """Compare the stores with the checkpoint.

        Without a checkpoint the topics are read from their beginning, and deleted rows may show meanwhile: an existing
        copy is no longer complete. Raises OperatorError for a copy that misses events which the checkpoint counts as
        applied: it was restored from a backup, and those events would never come again.
        """
        self._ends = applied or {}
        for (topic, name), route in self._followers():
            if name in self._routes[topic].stores:  # else set aside meanwhile, with all other copies of its store
                with self._applier.contained(topic, name):
                    self._begin(topic, name, route, applied, checkpoint)

    def _begin(self, topic: str, name: str, route: Route, applied: Ends | None, checkpoint: str) -> None:
        table, store = route.table, route.stores[name]
        mark = store.mark(table)
        if applied is None or (topic not in applied and mark is None):  # a table that has just come
            if is_whole(store) or (mark is not None and mark.ends):
                store.set_mark(table, self.mark(topic, {}, None))
        elif mark is not None and mark.holds(applied.get(topic, {})):
            self._marks[topic, name] = mark
        elif not self._applier.is_behind(topic, name):
            msg = f"store {name}: its copy of {table.qualified} is older than the checkpoint {checkpoint}"
            raise OperatorError(msg, hint=restored(store))

    def ends(self, topic: str) -> Mapping[int, int]:
        """Return up to where the copies that go on have a topic."""
        return self._ends.get(topic, {})

    def every_end(self) -> Ends:
        """Return up to where the copies that go on have all topics."""
        return {topic: {**of} for topic, of in self._ends.items()}

    def known(self, topic: str, store: str) -> Mark | None:
        """Return the mark that a copy which goes on was given last."""
        return self._marks.get((topic, store))

    def behind_since_ms(self, connector: str) -> int | None:
        """Return from when on the copies that go on may not have what a connector committed; None: they have it all.

        What they have not read was committed at the source behind the last barrier that they passed, and not when they
        passed it: a job that always lags passes old ones. They read together: a table that is read again, whose own
        mark stays where it is, is no sign of that.
        """
        if not self._watcher.barriers.ahead(connector):
            return None
        known = [mark.complete for mark in self._marks.values() if mark.complete is not None]
        times = (min(of.published_ms, of.source_ms or of.published_ms) for of in known if of.connector == connector)
        return max(times, default=None)

    def source_ms(self) -> int | None:
        """Return the time of the source up to which all copies that go on are complete; None: not known."""
        marks = [self._marks.get(follower) for follower, _ in self._followers()]
        times = [mark.complete.source_ms if mark and mark.complete else None for mark in marks]
        known = [at for at in times if at is not None]
        return min(known) if known and len(known) == len(times) else None

    def joined(self, topic: str, store: str, mark: Mark) -> None:
        """Note that a copy that was set aside goes on with this mark, which it has already."""
        self._watcher.follow(self._routes[topic].table)
        self._marks[topic, store] = mark
        self._watcher.barriers.news.set()

    def visibility(self, ends: Ends) -> dict[Key, Visibility]:
        """Return what each `WholeStore` may show once the batch that ends at `ends` is folded in."""
        marks = self._due(ends)
        return {
            (topic, name): self.visible(route, marks[topic, name])
            for (topic, name), route in self._followers()
            if is_whole(route.stores[name])
        }

    def has_read(self, ends: Ends) -> bool:
        """Whether all stores hold everything below `ends`."""
        read = self._ends
        return all(
            read.get(topic, {}).get(number, 0) >= end for topic, of in ends.items() for number, end in of.items()
        )

    def unread(self, ends: Ends) -> int:
        """Return the number of offsets between what was applied and `ends`; there are at most as many events."""
        before = self._ends
        return sum(
            end - before.get(topic, {}).get(number, 0) for topic, of in ends.items() for number, end in of.items()
        )

    def taken_in(self) -> dict[Key, TakenIn]:
        """Return for the other stores what they have of their topics; histories take late events, too.

        Also of one that was swapped in, or caught up, ahead of the others: it would bring back what it has deleted, and
        were it set aside then, it would go on behind the delete.
        """
        return {
            (topic, name): TakenIn(mark.complete.late_before if mark.complete else "", self._read_again(topic, mark))
            for (topic, name), mark in self._marks.items()
            if name in self._routes[topic].stores
            and not is_whole(self._routes[topic].stores[name])
            and not self._routes[topic].table.history
        }

    def _read_again(self, topic: str, mark: Mark) -> Mapping[int, int]:
        """Return the ends of a copy in partitions of which the next batch may read again what it has."""
        read = self._ends.get(topic, {})
        return {number: end for number, end in mark.ends.items() if end > read.get(number, 0)}

    def claim(self, ends: Ends) -> None:
        """Write the marks of copies that get their first rows of this run: then they say by whose progress they are."""
        for (topic, name), route in self._followers():
            key, known = (topic, name), self._marks.get((topic, name))
            if name not in self._routes[topic].stores:  # set aside meanwhile, with all other copies of its store
                continue
            if key in self._claimed or is_whole(route.stores[name]):
                continue
            if known is not None and ends.get(topic) != self._ends.get(topic):
                with self._applier.contained(topic, name):
                    route.stores[name].set_mark(route.table, known)
                    self._claimed.add(key)

    def applied(self, ends: Ends, visibility: Mapping[Key, Visibility]) -> None:
        """Note that all stores hold everything below `ends`; `visibility` has the marks that are already written."""
        self._ends = ends
        self._marks.update({follower: visible.mark for follower, visible in visibility.items()})
        self._told.update({follower: (visible.reading, visible.gone) for follower, visible in visibility.items()})
        self._publish()

    def replaced(self, topic: str, store: str, ends: Mapping[int, int]) -> None:
        """Note that another copy was swapped in, and holds all records below `ends`."""
        route = self._routes[topic]
        mark = self._marks[topic, store] = self.mark(topic, ends, None)
        route.stores[store].set_mark(route.table, mark)
        self._watcher.barriers.news.set()

    def publish_pending(self, fed: Collection[str] = ()) -> None:
        """Write marks that advance without a batch: the position of an idle source.

        Stores that are `fed` otherwise are folded where they are. Raises the error that ended the watcher.
        """
        if self._watcher.failure is not None:
            raise self._watcher.failure
        if fed or self._watcher.barriers.news.is_set():
            self._publish(fed)

    def _publish(self, fed: Collection[str] = ()) -> None:
        """Write the changed marks, and fold stores that are `fed`."""
        self._watcher.barriers.news.clear()
        together: dict[str, dict[Key, Visibility]] = {}
        for (topic, name), mark in self._due(self._ends).items():
            route = self._routes[topic]
            if name not in route.stores:  # set aside meanwhile, with all other copies of its store
                continue
            same = mark == self._marks.get((topic, name))
            if is_whole(route.stores[name]):
                visible = self.visible(route, mark)
                about = visible.reading, visible.gone
                if same and about == self._told.get((topic, name), _FINE) and name not in fed:
                    continue
                together.setdefault(name, {})[topic, name] = visible
                self._told[topic, name] = about
            elif same:
                continue
            else:
                with self._applier.contained(topic, name):
                    route.stores[name].set_mark(route.table, mark)
                    self._claimed.add((topic, name))
                if name not in self._routes[topic].stores:
                    continue
            self._marks[topic, name] = mark
        for name, visibility in together.items():
            self._applier.fold(name, [], visibility)

    def _due(self, ends: Ends) -> dict[Key, Mark]:
        """Return the marks that are true once all copies hold everything below `ends`."""
        passed = {
            connector: barrier
            for connector, barrier in self._watcher.barriers.passed(ends).items()
            if barrier.passed(ends)  # `passed` may remember a later batch, which failed
        }
        self._passed = passed
        now_ms = time.time_ns() // 1_000_000
        found = {}
        for (topic, name), route in self._followers():
            known = self._marks.get((topic, name))
            before = known.complete if known else None
            complete = _newer(before, passed.get(route.table.connector), route.table.qualified, now_ms)
            has = moved_on(known.ends if known else {}, ends.get(topic, {}))  # a replay takes nothing from a copy
            found[topic, name] = self.mark(topic, has, complete)
        return found

    def mark(self, topic: str, ends: Mapping[int, int], complete: Complete | None) -> Mark:
        """Return a mark of a copy of the topic as it is now."""
        return Mark(ends, complete, self._topics.get(topic, ""), self._routes[topic].table.version)

    def visible(self, route: Route, mark: Mark) -> Visibility:
        """Return what a copy may show with this mark.

        Nothing is shown before the connector publishes a position; one that never does is not waited for.
        """
        gone, barrier = self._why_gone(route), self._passed.get(route.table.connector)
        reading = not gone and (barrier is None or route.table.qualified not in barrier.tables)  # not known: perhaps
        if mark.complete is not None:
            return Visibility(mark, mark.complete.position, gone=gone, reading=reading)
        limit = "" if route.table.connector in self._watcher.seen else EVERYTHING
        return Visibility(mark, limit, gone=gone, reading=reading)

    def _why_gone(self, route: Route) -> str:
        barrier = self._passed.get(route.table.connector)
        if barrier is None or route.table.qualified not in barrier.gone:
            return ""
        if route.table.schema == VIEW_SCHEMA:
            return (
                f"view job {barrier.connector} has stopped it, or does not have it any more: cdc view status with that "
                "job's file says why"
            )
        return (
            f"connector {barrier.connector} captures it no more: it was dropped, renamed, or is not in source.tables; "
            "take the view out of the file, or capture the table again"
        )

    def _followers(self) -> list[tuple[Key, Route]]:
        return [((topic, name), route) for topic, route in sorted(self._routes.items()) for name in route.stores]


def _newer(before: Complete | None, barrier: Barrier | None, table: str, now_ms: int) -> Complete | None:
    """Return the newer of what was complete and what the barrier completes."""
    if barrier is None or table not in barrier.tables:
        return before
    if before is not None and before.connector == barrier.connector:
        if barrier.position < before.position:
            return before
        if (barrier.position, barrier.source_ms) == (before.position, before.source_ms):
            return before
    return Complete(barrier.connector, barrier.position, barrier.source_ms, now_ms)
