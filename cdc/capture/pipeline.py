"""The one loop snapshots, streams, writes, commits and acknowledges; nothing else orders, commits or retries.

    fence -> position -> [hold the log -> snapshot] -> stream: { transaction* -> commit -> acknowledge }*

A Kafka transaction holds whole source transactions and, last, the position after them. After any failure the next
session begins with a new producer and goes on from the position in Kafka: docs/guarantees.md lists what is replayed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import closing
from functools import partial
from typing import Final

from cdc.capture.across_sessions import AcrossSessions, Report, Stopped
from cdc.capture.control import signals
from cdc.capture.control.commands import RestartSession
from cdc.capture.session import Session
from cdc.capture.settings import Settings
from cdc.capture.starting.left_out import refuse_needed, tell_left_out
from cdc.capture.starting.stand_by import StandBy
from cdc.capture.starting.startup import Startup
from cdc.capture.starting.without import LeavingOut, Parts, Without
from cdc.encode.dead_letters import refusal
from cdc.encode.topic_contents.published_values import PublishedValues
from cdc.machine.flag import Flag
from cdc.model.audit import Act, asked_by
from cdc.model.change import Table
from cdc.model.errors import (
    BugError,
    CdcError,
    ChangedError,
    ConfigError,
    FencedError,
    GapError,
    HinderedError,
    LeftOutError,
    LoginError,
    NewTablesError,
    OperatorError,
    RetryableError,
    TooLargeError,
    UnloggedError,
    UnreadableError,
    raise_first,
    raise_of_topics,
)
from cdc.model.interfaces import Freeing, Sink, Snapshotter, Source
from cdc.model.meter import NO_METER, Meter, RunState
from cdc.model.state import Phase, State
from cdc.rules import outbox

RETRY_FIRST_S: Final = 0.5
RETRY_LONGEST_S: Final = 10.0
_LOOKS: Final = 10
"""So often in a row something may have changed just then, and all is looked at again at once."""
GIVE_UP_S: Final = 300.0
_REFUSALS: Final = 2
"""A record is tried twice: as it is, and without the old row's values."""

log = logging.getLogger("cdc")

__all__ = ["Parts", "Pipeline", "Report", "RestartSession", "Settings", "Stopped"]


class Pipeline:
    """Runs one connector. `open_source` and `open_snapshotter` make a new part for every session."""

    def __init__(
        self,
        settings: Settings,
        *,
        open_source: Callable[[], Source],
        open_snapshotter: Callable[[], Snapshotter],
        sink: Sink,
        observe: Callable[[Report], None] = lambda _: None,
        failed: Callable[[CdcError], None] = lambda _: None,
        left_out: Callable[[Mapping[str, CdcError]], None] = lambda _: None,
        executor: Callable[[], Executor] | None = None,
        meter: Meter = NO_METER,
        reread: Callable[[], Parts | None] = lambda: None,
        leaving_out: LeavingOut | None = None,
    ) -> None:
        """`observe` is called with every commit, `failed` with every error that ends a session.

        `left_out` is called with the tables that it does without, and why, where that may be any, as a session begins.
        `leaving_out` is as in `Parts`. `reread` reads the file again, when that is asked for: its parts, or None, after
        it has said why not.
        `executor` makes what a session reads rows on while it follows the log; a thread by default.
        """
        self._reread = reread
        self._before: Parts | None = None
        """What was followed before the file was read again, until a session has committed with what it says now."""
        self._now = Parts(settings, open_source, open_snapshotter, leaving_out)
        self._without = Without(self._now, sink, meter, left_out)
        self._tables: Sequence[Table] = ()
        """Those that the session has found."""
        self._settings = settings
        self._startup = Startup(settings, sink)
        self._sink = sink
        self._observe = observe
        self._failed = failed
        self._meter = meter
        self._stop = Flag()
        self._across = AcrossSessions(
            stop=self._stop,
            reload=Flag(),
            committed=self._committed,
            good=self._good,
            asks_again=self._without.asks_again,
            meter=meter,
            executor=executor or partial(ThreadPoolExecutor, 1, "cdc-resnapshot"),
            published=PublishedValues(executor or partial(ThreadPoolExecutor, 1, "cdc-published")),
            held=PublishedValues(executor or partial(ThreadPoolExecutor, 1, "cdc-held")),
        )
        self.caught_up = False
        """Whether everything that the source had committed at the call of `run` is in Kafka."""
        self._events = 0
        self._failing_since_s: float | None = None
        """When the first error came, since all that was read was in Kafka."""
        self._pause_s = RETRY_FIRST_S
        self._looks = 0
        """How often something had changed, since all that was read was in Kafka."""
        self._ran = False
        self._is_login_new = False  # the file was read again for a login, since all that was read was in Kafka
        self._took_over = False
        """Whether it is noted that another copy was to be fenced."""
        self._stand_by = StandBy(settings, sink, self._stop, self._refuse_second_copy, meter)
        self._sequence: int | None = None  # of the newest position that this process knows
        self._gap: GapError | None = None
        """The gap in the log that ended the last session, if the user wants to go on behind it."""

    def stop(self) -> None:
        """Ask to end after the current source transaction; callable from a signal handler."""
        self._stop.set()

    def reload(self) -> None:
        """Ask to read the file again, after the current source transaction; callable from a signal handler."""
        self._across.reload.set()

    @property
    def has_only_stood_by(self) -> bool:
        """Whether other copies have been at work since the start: they may go by a file that this one does not know."""
        return self._stand_by.stood_by and not self._ran

    def run(self, *, until_caught_up: bool = False) -> None:
        """Run until stopped, or until everything the source had committed at the call is in Kafka.

        Raises OperatorError, BugError, or RetryableError when trying again did not help for five minutes.
        """
        with closing(self._across.published), closing(self._across.held):
            self._run(until_caught_up=until_caught_up)

    def _run(self, *, until_caught_up: bool) -> None:
        while True:
            try:
                self._attempt(until_caught_up=until_caught_up)
            except Stopped:
                return
            except RestartSession:
                self._take_up()
                continue
            except ChangedError as exc:
                self._looks += 1
                if self._looks > _LOOKS and self._stopped_before_next(exc):
                    return
                log.info("%s", exc.message)
                self._without.has_new(exc.tables if isinstance(exc, NewTablesError) else ())
                continue
            except TooLargeError as exc:
                self._meter.fails(exc)
                self._refuse(exc)
            except (OperatorError, ConfigError, BugError) as exc:
                if self._goes_back(exc) or self._without.does(exc, self._tables) or self._has_new_login(exc):
                    continue
                if isinstance(exc, HinderedError):
                    if self._stopped_before_next(RetryableError(exc.message, hint=exc.hint)):
                        return
                    continue
                self._ends(said := self._in_truth(exc))
                if said is exc:
                    raise
                raise said from exc
            except RetryableError as exc:
                if self._goes_back(exc):
                    continue
                if self._stopped_before_next(exc):
                    return
            else:
                self.caught_up = True
                return

    def _stopped_before_next(self, exc: RetryableError) -> bool:
        """Wait before trying again; return whether it was stopped meanwhile. Raises what has lasted for too long."""
        now = time.monotonic()
        if self._failing_since_s is None:
            self._failing_since_s, self._pause_s = now, RETRY_FIRST_S
        found = exc.__cause__ if isinstance(exc.__cause__, LeftOutError) else exc
        if now - self._failing_since_s > self._patience_s(exc):
            self._ends(found)
            raise found from found.__cause__
        self._leave(found)
        log.warning("%s; trying again in %.1f s", exc.message, self._pause_s)
        self._meter.retries(exc)
        if self._stop.wait(self._pause_s):
            return True
        self._take_up()  # the file may say where the servers are now
        self._pause_s = min(self._pause_s * 2, RETRY_LONGEST_S)
        return False

    def _go_by_file_as_it_is(self) -> None:
        """Read the file once more: the copy that was at work may have taken up a change. Raises RestartSession.

        Else the tables that were added while this copy stood by would be taken out again.
        """
        if self._stand_by.has_seen:
            self._stand_by.has_seen = self._is_login_new = False  # the login is good: the other one was seen
            self._across.reload.set()
            raise RestartSession

    def _take_up(self) -> None:
        """Read the file again, if that is why the session has ended; the sink stays as it is."""
        if self._across.reload.is_set():
            self._across.reload.clear()
            self._read_file()

    def _read_file(self) -> bool:
        """Follow the file as it is now; return whether it says something else than before, and nothing wrong."""
        found = self._reread()
        if found is not None:
            self._before = self._before or self._now
            self._follows(found)
            log.info("connector %s: its file is read again", self._settings.connector)
        return found is not None

    def _has_new_login(self, error: CdcError) -> bool:
        """Read the file again, once, where a login is refused that was good: a secret of it may have been rotated."""
        was_good = self._ran or self._stand_by.stood_by
        if not was_good or self._is_login_new or not isinstance(error, LoginError):
            return False
        log.warning("%s: the file is read again, as it may have another login by now", error.message)
        self._is_login_new, self._before = self._read_file(), None  # what was before would be refused again
        return self._is_login_new

    def _follows(self, parts: Parts) -> None:
        self._settings, self._now = parts.settings, parts
        self._without.follow(parts)
        self._startup.follow(parts.settings)

    def _goes_back(self, error: CdcError) -> bool:
        """Whether a file that was read again has led to this before anything was committed: then it is as it was."""
        if self._before is None or self._without.was_so(error, self._tables):
            return False
        before, self._before = self._before, None
        if isinstance(error, FencedError):
            return False
        self._meter.fails(error)
        log.error("the file as it is now is refused, the connector goes on as before: %s", error.message)
        self._follows(before)
        return True

    def _in_truth(self, error: CdcError) -> CdcError:
        """Return that this copy was fenced off, where that is what is behind an error that a server gives."""
        if isinstance(error, FencedError):
            return error
        try:
            self._refuse_second_copy()
        except FencedError as fenced:
            return fenced
        except CdcError as exc:
            log.debug("whether another copy has gone on is not known: %s", exc.message)
        return error

    def _ends(self, error: CdcError) -> None:
        self._leave(error)
        self._meter.becomes(RunState.FAILED)

    def _leave(self, error: CdcError) -> None:
        """Report an error, unless another copy is at work: it is that one's errors that count."""
        self._meter.fails(error)
        if not self._stand_by.stood_by:
            self._failed(error)

    def _patience_s(self, error: RetryableError) -> float:
        """Return how long an error is tried again: at the first start only what passes by itself, or was asked for."""
        if self._stand_by.stood_by:
            return float("inf")
        if self._ran or isinstance(error, ChangedError):
            return GIVE_UP_S
        at_start_s = GIVE_UP_S if error.at_start else -1.0
        return at_start_s if self._settings.wait_s is None else max(at_start_s, self._settings.wait_s)

    def _attempt(self, *, until_caught_up: bool) -> None:
        """Run a session; what is wrong with all tables that the last one has followed may pass.

        Not where another copy is at work by now: then this one has been fenced off, whatever it finds.
        """
        followed = self._ran and not until_caught_up
        try:
            self._session(until_caught_up=until_caught_up)
        except LeftOutError as exc:
            if not followed or self._in_truth(exc) is not exc:
                raise
            raise RetryableError(exc.message, hint=exc.hint) from exc

    def _session(self, *, until_caught_up: bool) -> None:
        """Run from fencing to the first error."""
        self._meter.becomes(RunState.STARTING)
        self._tables = ()
        with (
            closing(self._sink),
            closing(self._without.open_source()) as source,
            closing(self._now.open_snapshotter()) as reader,
        ):
            takes_over = self._stand_by.takes_over(ran=self._ran)
            if self._stand_by.wait(source, ran=self._ran, to_end=until_caught_up):
                self._sequence = self._failing_since_s = None  # what others have committed since is no reason to end
                self._go_by_file_as_it_is()
            identity, tables = self._check(source)
            self._sink.create(tables)
            self._refuse_second_copy()
            if takes_over and not self._stand_by.takes_over(ran=self._ran):
                log.info("connector %s was held up as it started: it looks whether another copy is at work by now",
                         self._settings.connector)  # fmt: skip
                raise RestartSession
            state = self._sink.fence()
            if takes_over and state is not None and isinstance(source, Freeing):
                source.free()  # not before: until it is fenced, the other copy may be the one that is to go on
            target = self._startup.log_end(source, state, identity) if until_caught_up else None
            self._startup.read_keys()
            gap, self._gap = self._gap, None
            if state is None or state.phase is Phase.CREATING:
                self._meter.becomes(RunState.CREATING)
                self._meter.waits()  # for the longest transaction that is open
            before = state
            state, view = self._startup.state(source, identity, tables, before, gap=gap)
            tell_left_out(source, before.tables if before is not None else ())
            if target is not None and before is not None and state.epoch != before.epoch:
                target = source.current()  # the log behind a gap may be another one, which never gets there
            self._sequence = state.sequence
            if self._settings.take_over and not self._took_over:
                self._startup.note(Act(action="take-over", by=asked_by()), state)
            session = Session(
                self._settings,
                self._sink,
                source,
                reader,
                self._across,
                tables=tables,
                state=state,
                told=self._startup.told,
                until_caught_up=until_caught_up,
            )
            self._ran, self._stand_by.stood_by = True, False
            self._without.begun(source, tables)
            with closing(session):
                self._run_session(session, state.phase, view, target)

    def _check(self, source: Source) -> tuple[Mapping[str, str], Sequence[Table]]:
        """Compare the source with the file and with the topics, before anything is made anywhere."""
        identity = source.connect()
        tables = self._tables = source.tables()
        ran_before = self._sink.check(tables)
        if ran_before and not self._ran and (state := self._sink.peek()) is not None:
            self._startup.belonging(source, identity, state)
        beside = self._without.left_out(source)
        captured_before = ran_before and (not beside or self._without.has_captured())
        refuse_needed(source, partial(self._needs, ran_before=captured_before))
        raise_first(self._settings.rules.refusals(tables, first=not ran_before, beside=beside))
        shown = self._settings.rules.shown(tables)
        of = self._settings.formats.refusals(shown, self._sink.topic, first=not ran_before, beside=beside)
        raise_of_topics(of)
        raise_first(self._settings.routes.refusals(tables, first=not ran_before, beside=beside))
        self._startup.learn_formats(source, tables, self._without.captured)
        raise_first(outbox.refusals(self._settings.outbox, tables, beside))
        if not ran_before:
            self._startup.refuse_neighbours(identity, tables)
            source.unused()
        return identity, tables

    def _needs(self, table: str, *, ran_before: bool) -> bool:
        """Whether a start does not go on without a table. A file that is read again must not name it first."""
        is_new = self._before is not None and self._before.settings.by_pattern(table)
        return self._without.needs(table, ran_before=ran_before and not is_new)

    def _run_session(self, session: Session, phase: Phase, view: str | None, target: int | None) -> None:
        try:
            if phase is Phase.SNAPSHOT:
                session.snapshot(view)
            self._follow(session, target)
        except CdcError as exc:
            if self._sink.pending()[0]:
                self._meter.aborted()
            if isinstance(exc, UnloggedError) and self._startup.found_unlogged():
                log.warning("connector %s: %s", self._settings.connector, exc.message)
                raise RestartSession from exc  # it commits that, before it ends with it
            raise

    def _follow(self, session: Session, target: int | None) -> None:
        try:
            session.stream(target)
        except (GapError, UnreadableError) as exc:
            if not signals.after_gap(self._sink.commands()):
                raise
            self._gap = exc if isinstance(exc, GapError) else GapError(exc.message, hint=exc.hint)
            raise RestartSession from exc

    def _refuse_second_copy(self) -> None:
        """Raise OperatorError if another copy has taken over meanwhile: two would fence each other off for ever."""
        if self._sequence is None:
            return
        state = self._sink.peek()
        if state is not None and state.sequence > self._sequence + 1:  # one commit of ours may have an unknown outcome
            raise FencedError(
                f"another copy of connector {self._settings.connector} has gone on while this one was cut off",
                hint="nothing is lost, the other copy goes on; started again, this one stands by while the other "
                "follows",
            )

    def _refuse(self, error: TooLargeError) -> None:
        """Note the record, so that the next session makes a dead letter of it. Raises OperatorError if that is off."""
        found = refusal(error)
        record, stop = found or (None, error)
        if record is None or "dead-letter" not in self._settings.logs or self._across.refused[record] >= _REFUSALS:
            self._failed(stop)
            self._meter.becomes(RunState.FAILED)
            raise stop from error
        self._across.refused[record] += 1

    def _good(self) -> None:
        """Note that everything read is in Kafka: the next failure is a new fault."""
        self._looks, self._is_login_new = 0, False
        if self._failing_since_s is not None:
            took_s, self._failing_since_s = time.monotonic() - self._failing_since_s, None
            log.info("connector %s: it goes on again after %.0f s", self._settings.connector, took_s)

    def _committed(self, events: int, state: State) -> None:
        self._good()
        self._before = None
        self._without.committed()
        self._sequence, self._took_over = state.sequence, True
        self._events += events
        tables = state.snapshot.get("tables", {})
        rows = tuple((name, t["rows"], t["done"]) for name, t in tables.items()) if isinstance(tables, dict) else ()
        self._observe(Report(state.phase, self._events, rows, state))
