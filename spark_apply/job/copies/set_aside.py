"""Sets aside the copies that cannot go on, lets the others go on, and brings those back that can go on again.

A copy is one table in one store. What fails for one of them (its server refuses the table, its target was dropped or
has other columns, its quarantine is full, its store is away) is noted in the topic of the quarantine, before the batch
is done without it. Its mark stays where it is, while the checkpoint goes on. So it is caught up from its own mark
(`spark_apply.job.catch_up.asides`), and joins in again once it has what the others have. A start does the same with a
copy whose mark lies behind the checkpoint, if it was set aside.

What concerns all ends the job: Spark's own end, a full heap, a quarantine that cannot be written, and that no copy is
left, nor one that is being caught up. If every copy waits for a server that is away, the job waits too, unless it runs
once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from cdc.model.errors import BugError, CdcError, ConfigError, OperatorError, RetryableError
from cdc.model.hints import rebuild
from spark_apply.events.kafka.client import NoAnswerError
from spark_apply.events.kafka.topics import why_unread
from spark_apply.events.quarantine import Quarantine
from spark_apply.events.set_aside import SetAside, aside_id
from spark_apply.job.copies.route import Route
from spark_apply.model.store import Due, JoiningStore, Offsets, Store
from spark_apply.spark.failures import StoreAwayError, concerns_spark, spark_failure, waited_for_kafka
from spark_apply.spark.remedies import damaged, is_damaged, remedied, remedy

Key = tuple[str, str]
"""Topic and store."""

_CAUSES = 5
"""So many causes are told where no copy can go on."""
_NEXT_LINE = "\n" + " " * len("hint:  ")
_FIRST_WAIT_S, _LONGEST_WAIT_S = 5.0, 60.0
_SOON_S = 600.0
"""A copy that fails again so soon after it went on with the others waits longer than the last time: each time that one
fails, all copies of its store are folded in again without it."""


_BEHIND = RetryableError("it was set aside, and is being caught up")


@dataclass(slots=True)
class Aside:
    """A copy that is set aside."""

    table: str
    store: Store
    error: CdcError
    wait_s: float = _FIRST_WAIT_S
    due_at: float = 0.0
    """When it is tried again, on the monotonic clock."""
    tried_at: float = 0.0
    """When a step was taken last."""
    in_vain: bool = False
    """Whether it has failed when it was tried again, and not because its store was away."""
    route: Route | None = None
    """The copy alone, once it was opened again."""
    owed: Due | None = None
    begun: Offsets | None = None
    """Where the last step began."""
    for_good: bool = False
    """Only a new start tries it again."""


@dataclass(slots=True)
class AsideCopies:
    """The copies that are set aside. Not to be called while a batch is applied, but by the applier."""

    routes: dict[str, Route]
    """The applier's own mapping, by topic: it has the copies that go on."""
    quarantine: Quarantine
    tell: Callable[[str], None]
    once: bool
    containing: bool = False
    """Whether a failure of one copy sets it aside; otherwise it is raised, so that the batch is tried again first."""
    copies: dict[Key, Aside] = field(default_factory=dict)
    known: dict[bytes, SetAside] = field(default_factory=dict)
    """What is noted, of earlier runs too."""
    joined: dict[Key, tuple[float, float]] = field(default_factory=dict)
    """When copies went on with the others again, on the monotonic clock, and how long they had waited."""
    over: bool = False
    """Whether the job ends, as when no copy is left: an error passes through blocks that contain others."""

    @contextmanager
    def contained(self, topic: str, *stores: str) -> Iterator[None]:
        """Set copies of a topic aside if the block fails for a reason that concerns no other."""
        try:
            yield
        except Exception as exc:
            if not self.contains(exc):
                raise
            for name in stores:
                self.put(topic, name, exc)

    def contains(self, exc: Exception) -> bool:
        """Whether a failure of a copy sets it aside now."""
        return self.containing and not self.over and not self.concerns_all(exc)

    def concerns_all(self, exc: Exception) -> bool:
        """Whether a failure is not of one copy.

        Where Spark has waited for Kafka, brokers are asked whether they are there: one partition is of one topic.
        """
        if not waited_for_kafka(exc):
            return concerns_spark(exc)
        source = self.quarantine.config.source
        return why_unread(source, [source.topic_prefix]) is not None

    def put(self, topic: str, name: str, exc: Exception, *, for_good: bool = False) -> None:
        """Set a copy aside. Raises its error if no copy is left that goes on.

        If nobody answers for its store, all copies there are set aside: asking for each takes time, of all tables.
        """
        if name not in self.routes[topic].stores:
            return
        away = isinstance(told(exc, "", name), StoreAwayError)
        there = [of for of, route in self.routes.items() if name in route.stores and (away or of == topic)]
        for each in there:
            self._put(each, name, exc, for_good=for_good)
        self.require_some()
        for each in there:
            self.note(each, name)

    def _put(self, topic: str, name: str, exc: Exception, *, for_good: bool) -> None:
        route = self.routes[topic]
        aside = Aside(
            route.table.qualified, route.stores[name], told(exc, route.table.qualified, name), for_good=for_good
        )
        joined_at, waited_s = self.joined.pop((topic, name), (0.0, 0.0))
        lasting = not isinstance(aside.error, RetryableError)
        if waited_s and lasting and time.monotonic() < joined_at + _SOON_S:
            aside.wait_s = min(2 * waited_s, _LONGEST_WAIT_S)
        aside.due_at = time.monotonic() + aside.wait_s
        self.copies[topic, name] = aside
        _leave_out(aside)
        kept = {store: of for store, of in route.stores.items() if store != name}
        self.routes[topic] = replace(route, stores=kept)

    def goes_on(self, topic: str, name: str, route: Route) -> None:
        """Let a copy go on with the others, which then have this route."""
        aside = self.copies.pop((topic, name))
        self.joined[topic, name] = time.monotonic(), aside.wait_s
        self.routes[topic] = route

    def failed(self, topic: str, name: str, exc: Exception) -> None:
        """Note that trying a copy again has failed, and wait longer. Raises as `put` does.

        Where nobody answers for its store, the wait stays short: a store that is back is found by one of its copies.
        """
        aside = self.copies[topic, name]
        aside.error, aside.route, aside.owed, aside.begun = told(exc, aside.table, name), None, None, None
        away = isinstance(aside.error, StoreAwayError)
        aside.due_at = time.monotonic() + (_FIRST_WAIT_S if away else aside.wait_s)
        aside.wait_s = aside.wait_s if away else min(2 * aside.wait_s, _LONGEST_WAIT_S)
        self.require_some()
        self.note(topic, name)

    def refused(
        self, topic: str, name: str, table: str, store: Store, error: CdcError, *, for_good: bool = False
    ) -> None:
        """Set a copy aside that was never among those that go on; `require_some` and `note` come later."""
        due_at = time.monotonic() + _FIRST_WAIT_S
        self.copies[topic, name] = aside = Aside(table, store, error, due_at=due_at, for_good=for_good)
        _leave_out(aside)

    def require_some(self) -> None:
        """Raise the errors if no copy is left or being caught up, and they do not wait for a server alone."""
        caught_up = any(aside.route is not None or aside.error is _BEHIND for aside in self.copies.values())
        if self.copies and not caught_up and not any(route.stores for route in self.routes.values()):
            errors = {f"{aside.table} in {name}": aside.error for (_, name), aside in self.copies.items()}
            lasting = {copy: error for copy, error in errors.items() if not isinstance(error, RetryableError)}
            if lasting or self.once:
                self.over = True
                raise of_all(lasting or errors)

    def is_behind(self, topic: str, name: str) -> bool:
        """Set a copy aside that an earlier run has set aside, to be caught up at once; return whether it has."""
        if aside_id(topic, name) not in self.known:
            return False
        route = self.routes[topic]
        self.copies[topic, name] = aside = Aside(route.table.qualified, route.stores[name], _BEHIND)
        _leave_out(aside)
        self.routes[topic] = replace(route, stores={n: of for n, of in route.stores.items() if n != name})
        return True

    def __iter__(self) -> Iterator[Key]:
        return iter(self.copies)

    def forget_others(self) -> None:
        """Remove the notes of all copies but those that are set aside."""
        kept = {aside_id(*key) for key in self.copies}
        gone = [key for key in self.known if key not in kept]
        self.quarantine.write(dict.fromkeys(gone))
        self.known = {key: noted for key, noted in self.known.items() if key in kept}

    def note(self, topic: str, name: str) -> None:
        """Write durably that a copy is set aside, and why, and say so, unless that is known already."""
        aside, before = self.copies[topic, name], self.known.get(aside_id(topic, name))
        error, at_ms = aside.error, before.at_ms if before else time.time_ns() // 1_000_000
        noted = SetAside(name, aside.table, topic, error.message, error.hint, at_ms)
        if before != noted:
            self.quarantine.write({noted.id: noted.to_bytes()})
            self.known[noted.id] = noted
        if before is None or before.reason != noted.reason:
            self.tell(f"warning: {aside.table} in {name} is set aside, the others go on: {error.message}")


def _leave_out(aside: Aside) -> None:
    if isinstance(aside.store, JoiningStore):
        aside.store.leave_out(aside.table, aside.error.message)


def of_all(errors: Mapping[str, CdcError]) -> CdcError:
    """Return the error of copies none of which can go on: what is wrong with the first is seldom all."""
    first, copies = next(iter(errors.values())), dict[tuple[str, str | None], list[str]]()
    for copy, error in errors.items():
        copies.setdefault((error.message, error.hint), []).append(copy)
    if len(copies) == 1 or all(isinstance(error, NoAnswerError) for error in errors.values()):
        return first
    causes = [
        f"{of[0]}{f' and {len(of) - 1} more' if len(of) > 1 else ''}: {message}" for (message, _), of in copies.items()
    ]
    left = f"; and {len(causes) - _CAUSES} other causes" if len(causes) > _CAUSES else ""
    hints = dict.fromkeys(hint for _, hint in [*copies][:_CAUSES] if hint)
    kind = next(of for of in (ConfigError, OperatorError, RetryableError, BugError) if isinstance(first, of))
    said = f"no copy can go on. {'; '.join(causes[:_CAUSES])}{left}"
    return kind(said, hint=_NEXT_LINE.join(hints) or None)  # what stands behind a # in one is a comment


def told(exc: Exception, table: str, store: str) -> CdcError:
    """Return an error of a copy as one of ours, without the values that Spark's messages hold."""
    if isinstance(exc, CdcError):
        return exc
    said, known = spark_failure(exc) or f"applying failed: {type(exc).__name__}", remedy(exc)
    if known is None and is_damaged(exc):
        return damaged(f"{table} in {store}", said, f"{rebuild(table)} --store {store}")
    if known is not None:
        return remedied(f"{table} in {store}", said, known)
    return OperatorError(said, hint="the other tables go on; it is tried again, and goes on where it was")
