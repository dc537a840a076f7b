"""Tries the copies that are set aside again, and catches them up, each from its own mark.

`spark_apply.job.catch_up.swaps` says why reading events again converges. It is done in steps, between which the other
tables have their turn; each step ends with the copy's mark, from which the next one, or the next start, goes on.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Final

from pyspark.sql import SparkSession

from cdc.config.apply_config import ApplySource
from cdc.model.errors import OperatorError
from spark_apply.events.kafka.offsets import committed_ends, offset_ranges
from spark_apply.events.kafka.stream import read_topic
from spark_apply.job.batch.microbatch import Applier
from spark_apply.job.copies.route import Route
from spark_apply.job.copies.set_aside import Aside, AsideCopies, Key, told
from spark_apply.job.topics.compacted_deletes import UnreadDeletes, require_deletes_read
from spark_apply.job.topics.retention import rebuild_command, require_deletes
from spark_apply.job.watermarks.publisher import WatermarkPublisher
from spark_apply.model.completeness import Ends, Mark, moved_on
from spark_apply.model.store import Offsets, RereadStore, Store, Visibility, WaitingStore, is_whole
from spark_apply.model.target_table import TargetTable
from spark_apply.spark.failures import StoreAwayError

_STEP = 200_000
"""At most so many offsets of a partition are caught up before the other tables have their turn."""
_SWEEP_S: Final = 5.0
"""No further copy has a step before the other tables have had theirs: of hundreds, each takes a second or more."""
_RESTS: Final = 9
"""So many times as long as a store's copies were tried in vain, none of these is opened again; if it was away, none."""


@contextmanager
def _without_patience(store: Store) -> Iterator[None]:
    """Have a server that is away told at once: it is known to be, or is tried again soon."""
    if not isinstance(store, WaitingStore):
        yield
        return
    had, store.patience.seconds = store.patience.seconds, 0.0
    try:
        yield
    finally:
        store.patience.seconds = had


@dataclass(slots=True)
class AsideWatch:
    """Tries the copies that are set aside again, and catches them up."""

    spark: SparkSession
    source: ApplySource
    applier: Applier
    asides: AsideCopies
    publisher: WatermarkPublisher
    newest: Callable[[str], TargetTable]
    """Returns a table, by ``schema.table``, at its newest version. Raises CdcError."""
    same: Callable[[TargetTable, str, Store], None]
    """Raises OperatorError for a copy of another topic than there is now."""
    first: Ends = field(default_factory=dict)
    """Where a replay has begun: its copies have nothing of before."""
    share_s: float = _SWEEP_S
    """So long after it has begun, a sweep takes no further step: the others are to have most of the time."""
    _rests_until: dict[tuple[str, bool], float] = field(default_factory=dict)
    """On the monotonic clock, by store: of those that were tried in vain themselves (False), and of all (True)."""

    def look(self, *, now: bool = False) -> None:
        """Take a step with copies whose time has come, in turn; with `now` until each is caught up or has failed."""
        away: dict[str, StoreAwayError] = {}
        until, in_vain_s = time.monotonic() + min(_SWEEP_S, self.share_s), defaultdict[tuple[str, bool], float](float)
        rests = {which for which, at in self._rests_until.items() if not now and time.monotonic() < at}
        for key, aside in sorted(self.asides.copies.items(), key=lambda item: item[1].tried_at):
            if aside.route is None and ((key[1], True) in rests or (aside.in_vain and (key[1], False) in rests)):
                continue  # one that is being caught up is not tried in vain
            while not aside.for_good and (now or until > time.monotonic() >= aside.due_at):
                begun_s = time.monotonic()
                try:
                    if key[1] in away:  # an answer that does not come takes time, of all tables
                        raise away[key[1]]
                    aside.tried_at = begun_s  # only then: next time it is the turn of one that was not asked
                    with nullcontext() if now else _without_patience(aside.store):
                        done = self._step(*key, aside)
                except Exception as exc:
                    if self.asides.concerns_all(exc):
                        raise
                    error = told(exc, aside.table, key[1])
                    if is_away := isinstance(error, StoreAwayError):
                        away[key[1]] = error
                    aside.in_vain = not is_away
                    self.asides.failed(*key, error)
                    in_vain_s[key[1], is_away] += time.monotonic() - begun_s
                    break
                if done or not now:
                    break
        if any(route.stores for route in self.asides.routes.values()):
            for which, took_s in in_vain_s.items():
                rested = max(self._rests_until.get(which, 0.0), time.monotonic())
                self._rests_until[which] = rested + _RESTS * took_s

    def _step(self, topic: str, name: str, aside: Aside) -> bool:
        """Open the copy again, or fold in a part of what is missing; return whether it has caught up."""
        if aside.route is None:
            table = self.newest(aside.table)
            aside.store.open(table)
            aside.owed = aside.store.due(table)
            self.same(table, name, aside.store)
            require_deletes(self.source, [(table, {name: aside.store})])
            require_deletes_read(self.spark, self.source, table, name, aside.store)
            aside.route = Route(table, {name: aside.store})
            if aside.owed is None and not is_whole(aside.store) and (mark := aside.store.mark(table)) is not None:
                aside.store.set_mark(table, mark)  # the one who goes on from it is this job
        table, store = aside.route.table, aside.store
        before = store.mark(table) or Mark({}, None)
        begin, most = (aside.owed.begin, None) if aside.owed else (self._behind(topic, before.ends), _STEP)
        if aside.begun == begin:
            msg = f"{table.qualified} in {name}: its mark does not move, although it was written"
            raise OperatorError(msg, hint=rebuild_command(table, name))
        aside.begun = begin
        there, wanted = committed_ends(self.source, topic), self.publisher.ends(topic)
        end = there if most is None else {at: min(last, begin.get(at, 0) + most) for at, last in there.items()}
        mark, last = (
            self.publisher.mark(topic, end, before.complete),
            all(end.get(at, 0) >= till for at, till in wanted.items()),
        )
        if any(till > begin.get(at, 0) for at, till in end.items()):
            aside.route = self._fold(topic, name, aside.route, begin, mark, last=last)
            if not is_whole(store):
                store.set_mark(table, mark)
        if aside.owed is not None:
            store.caught_up(table, aside.owed)
            aside.owed = None
        if last:
            self._join(topic, name, aside.route, mark)
        return last

    def _behind(self, topic: str, has: Offsets) -> Offsets:
        """Return from where on a copy that has this is caught up: of a replay's, not from before it has begun."""
        first = self.first.get(topic)
        if first is None:
            return has
        there, _ = offset_ranges(self.source, topic)  # what its log has no more is not there for anybody
        return moved_on(has, {number: max(at, there.get(number, 0)) for number, at in first.items()})

    def _fold(self, topic: str, name: str, route: Route, begin: Offsets, mark: Mark, *, last: bool) -> Route:
        rereads = isinstance(route.stores[name], RereadStore)  # which does not say what rows it has
        unread = None if rereads else UnreadDeletes(self.spark, self.source, lambda _topic: begin)
        applier = Applier({topic: route}, self.applier.evolve, self.asides.quarantine, unread=unread)
        whole: dict[Key, Visibility] = {}
        if is_whole(route.stores[name]):
            shown = self.publisher.visible(route, mark) if last or mark.complete else Visibility(mark, "")
            whole[topic, name] = shown
        applier(read_topic(self.spark, self.source, topic, begin, mark.ends), whole)
        return applier.routes[topic]

    def _join(self, topic: str, name: str, route: Route, mark: Mark) -> None:
        others = self.asides.routes.get(topic)
        together = Route(route.table, {**(others.stores if others else {}), name: route.stores[name]})
        if others and others.stores and others.table.version != route.table.version:
            together = self.applier.evolve(together)
        self.asides.goes_on(topic, name, together)
        self.publisher.joined(topic, name, mark)
        self.asides.forget_others()
        self.asides.tell(f"{route.table.qualified} in {name} goes on with the others")
