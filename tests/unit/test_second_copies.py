"""A copy stands by while another one is at work, takes over when it is gone, and fences it only if told to."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial

import pytest

import cdc.capture.pipeline
import cdc.capture.starting.stand_by
from cdc.capture.pipeline import Parts, Pipeline, Report, Settings
from cdc.model.change import Table
from cdc.model.errors import CdcError, FencedError, LoginError, OperatorError, RetryableError, VerdictError
from cdc.model.interfaces import Follower
from cdc.model.state import Phase
from cdc.testing.faults import At, nothing
from cdc.testing.kafka import MemoryKafka, MemorySink
from cdc.testing.log import MemoryLog, insert
from cdc.testing.source import MemorySnapshotter, MemorySource
from tests.unit.test_pipeline import A, B, Clock

OTHER = Follower("process 7", certain=True)
TOOL = Follower("slot cdc_c is active for process 7", certain=False)


class SharedSource(MemorySource):
    """One whose log others are seen at."""

    def __init__(self, log: MemoryLog, seen: Callable[[], Follower | None], at: At) -> None:
        super().__init__(log, [A], at=at)
        self._seen = seen

    def follower(self) -> Follower | None:
        return self._seen()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cdc.capture.pipeline, "RETRY_FIRST_S", 0.0)
    for name in ("STAND_BY_FIRST_S", "STAND_BY_LONGEST_S", "STAND_BY_SETTLED_S", "GONE_S"):
        monkeypatch.setattr(cdc.capture.starting.stand_by, name, 0.0)


class Copy:
    """A connector, and what it has reported."""

    def __init__(
        self,
        log: MemoryLog,
        kafka: MemoryKafka,
        seen: Callable[[], Follower | None],
        *,
        take_over: bool = False,
        within_s: float = float("inf"),
        at: At = nothing,
        reread: Callable[[], Parts | None] = lambda: None,
        open_source: Callable[[], SharedSource] | None = None,
    ) -> None:
        self.errors: list[CdcError] = []
        self.pipeline = Pipeline(
            Settings(connector="c", prefix="p", chunk_rows=1, take_over=take_over, take_over_within_s=within_s),
            open_source=open_source or (lambda: SharedSource(log, seen, at)),
            open_snapshotter=lambda: MemorySnapshotter(log, rows_each=1),
            sink=MemorySink(kafka, "c", "p"),
            failed=self.errors.append,
            reread=reread,
        )

    def run(self) -> None:
        self.pipeline.run(until_caught_up=True)


def _after(times: int, who: Follower = OTHER) -> Callable[[], Follower | None]:
    """Seen so many times, then gone."""
    left = iter(range(times))
    return lambda: who if next(left, None) is not None else None


def _log() -> MemoryLog:
    log = MemoryLog()
    log.commit(insert(A, (b"1", b"n")))
    return log


def test_it_stands_by_until_the_other_is_gone(caplog: pytest.LogCaptureFixture) -> None:
    """It says so once, not each time it looks; meanwhile it fences nobody."""
    caplog.set_level(logging.INFO)
    kafka, epochs = MemoryKafka(), []
    watched = _after(20)

    def seen() -> Follower | None:
        epochs.append(kafka.epochs.get("p.c", 0))
        return watched()

    Copy(_log(), kafka, seen).run()
    assert set(epochs) == {0}
    assert sum("stands by: another copy is at work (process 7)" in line for line in caplog.messages) == 1
    assert "connector c: no other copy is at work any more: going on" in caplog.messages
    assert len(kafka.committed("p.s.a")) == 1


def test_it_does_not_wait_for_ever_where_it_is_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """`--until-caught-up` beside a copy that follows: it says who is at work, and fences nobody."""
    monkeypatch.setattr(cdc.capture.starting.stand_by, "TO_END_S", 0.05)
    kafka = MemoryKafka()
    copy = Copy(_log(), kafka, lambda: OTHER)
    with pytest.raises(OperatorError, match=r"connector c: a copy is at work already \(process 7\)"):
        copy.run()
    assert (kafka.epochs, copy.errors) == ({}, [])


def test_the_file_is_read_again_behind_each_other_copy() -> None:
    """A third copy came first when the one at work ended, and took up a file that hides a column, say."""
    log, kafka, read = _log(), MemoryKafka(), list[int]()
    at_work = iter([OTHER, None, OTHER, None])

    def reread() -> Parts:
        read.append(kafka.epochs.get("p.c", 0))
        return Parts(
            Settings(connector="c", prefix="p", chunk_rows=1),
            lambda: SharedSource(log, lambda: next(at_work, None), nothing),
            lambda: MemorySnapshotter(log, rows_each=1),
        )

    Copy(log, kafka, lambda: next(at_work, None), reread=reread).run()
    assert read == [0, 0]
    assert len(kafka.committed("p.s.a")) == 1


def test_a_copy_that_stands_by_takes_a_login_that_is_rotated_whenever_its_file_has_it() -> None:
    """Its connection may be lost, too; at the source a login that is refused is not told from nobody at work."""
    log, kafka, read = _log(), MemoryKafka(), list[int]()
    at_work, good = iter([OTHER, OTHER]), [0]

    class Rotated(SharedSource):
        def __init__(self, login: int) -> None:
            super().__init__(log, self._see, nothing)
            self._login = login

        def _see(self) -> Follower | None:
            who = next(at_work, None) if self._login == good[0] else None
            good[0] += who is not None
            return who

        def connect(self) -> Mapping[str, str]:
            if self._login != good[0]:
                raise LoginError("the server refuses the password")
            return super().connect()

    def reread() -> Parts | None:
        read.append(good[0])
        if len(read) % 2:
            return None  # it has the old one still
        settings = Settings(connector="c", prefix="p", chunk_rows=1)
        return Parts(settings, partial(Rotated, good[0]), lambda: MemorySnapshotter(log, rows_each=1))

    copy = Copy(log, kafka, lambda: None, reread=reread, open_source=lambda: Rotated(0))
    copy.run()
    assert read == [1, 1, 2, 2]
    assert len(kafka.committed("p.s.a")) == 1


def test_it_takes_over_at_once_if_told_to() -> None:
    def never() -> Follower | None:
        raise AssertionError("nobody was to be looked for")

    kafka = MemoryKafka()
    Copy(_log(), kafka, never, take_over=True).run()
    assert len(kafka.committed("p.s.a")) == 1


def test_what_it_takes_over_is_freed_once_and_after_the_fence() -> None:
    """Not at the first start, where there is nothing; not by a copy that nobody told to, nor in a later session."""
    log, kafka = _log(), MemoryKafka()
    freed: list[int] = []

    class Freed(SharedSource):
        def free(self) -> None:
            freed.append(kafka.epochs["p.c"])

    def run(*, take_over: bool, at: At = nothing) -> None:
        Pipeline(
            Settings(connector="c", prefix="p", chunk_rows=1, take_over=take_over),
            open_source=lambda: Freed(log, lambda: None, at),
            open_snapshotter=lambda: MemorySnapshotter(log, rows_each=1),
            sink=MemorySink(kafka, "c", "p"),
        ).run(until_caught_up=True)

    cut: list[int] = []

    def failing(point: str) -> None:
        if point == "source.idle" and not cut:
            cut.append(1)
            raise RetryableError("the connection was cut")

    run(take_over=True)
    run(take_over=False)
    assert freed == []
    before = kafka.epochs["p.c"]
    log.commit(insert(A, (b"2", b"n")))
    run(take_over=True, at=failing)
    assert freed == [before + 1]
    assert kafka.epochs["p.c"] > before + 1 or not cut


def test_one_that_is_held_up_as_it_starts_looks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frozen between its start and the fence, it may have been replaced: then it stands by, and fences nobody."""
    log, kafka, clock = _log(), MemoryKafka(), [100.0]
    Copy(log, kafka, lambda: None).run()
    monkeypatch.setattr(cdc.capture.starting.stand_by.time, "monotonic", lambda: clock[0])
    fenced, seen = [], []

    def frozen(point: str) -> None:
        if point == "source.connect":
            clock[0] += 30.0
            fenced.append(kafka.epochs["p.c"])

    def follower() -> Follower | None:
        clock[0] += 1.0
        seen.append(kafka.epochs["p.c"])
        return OTHER if len(seen) < 4 else None

    copy = Copy(log, kafka, follower, take_over=True, within_s=20.0, at=frozen)
    copy.run()
    assert len(fenced) == 2
    assert len(seen) >= 4
    assert set(fenced + seen) == {fenced[0]}
    assert kafka.epochs["p.c"] == fenced[0] + 1


def test_another_tool_at_the_slot_is_no_copy() -> None:
    """A connector without a position has no slot: a verdict is given, nothing is waited for."""
    log = _log()
    log.held_from = 0
    with pytest.raises(OperatorError, match="held already"):
        Copy(log, MemoryKafka(), lambda: TOOL).run()


def test_at_a_slot_of_ours_it_is_one() -> None:
    log, kafka = _log(), MemoryKafka()
    Copy(log, kafka, lambda: None).run()
    log.commit(insert(A, (b"2", b"n")))
    Copy(log, kafka, _after(3, TOOL)).run()
    assert len(kafka.committed("p.s.a")) == 2


def test_while_it_stands_by_no_error_is_final_and_none_is_left() -> None:
    """The database may restart meanwhile; what `cdc status` shows is the other copy's."""

    steps = iter([OTHER, *["cut"] * 5, None, None])

    def look() -> Follower | None:
        step = next(steps)
        if isinstance(step, str):
            raise RetryableError("the connection was cut")
        return step

    copy = Copy(_log(), MemoryKafka(), look)
    copy.run()
    assert copy.errors == []


def test_an_error_of_before_it_stood_by_is_another_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy that takes over an hour after its server was restarted has five minutes for what comes then."""
    monkeypatch.setattr(cdc.capture.starting.stand_by, "TO_END_S", float("inf"))
    clock, fails, steps = Clock(monkeypatch), iter(("once",)), iter([OTHER, "away", OTHER, None, None, None])

    def seen() -> Follower | None:
        clock.now_s += 1_000
        step = next(steps)
        if isinstance(step, str):
            raise RetryableError(step)
        return step

    def at(point: str) -> None:
        if point == "source.change" and next(fails, None):
            raise RetryableError("cut")

    log, kafka = _log(), MemoryKafka()
    Copy(log, kafka, lambda: None).run()
    log.commit(insert(A, (b"2", b"n")))
    copy = Copy(log, kafka, seen, at=at)
    copy.run()
    assert [error.message for error in copy.errors] == ["cut"]
    assert len(kafka.committed("p.s.a")) == 2


@pytest.mark.parametrize("cut", [False, True])
def test_the_file_is_read_as_often_as_the_other_seems_gone(*, cut: bool) -> None:
    """A login that is rotated cuts this copy's session, and it sees nobody until it has the new one.

    Read at the first time alone, the file would be an old one where the other is gone in truth: its tables would be
    taken out again, or its login be refused.
    """
    log, kafka, now, read = _log(), MemoryKafka(), [0], list[int]()
    Copy(log, kafka, lambda: None).run()
    log.commit(insert(A, (b"2", b"n")))
    followed = list[int]()
    rotated = iter([False, True, False, True, False, False, True] + [False] * 9)
    others = iter([OTHER] * 4)
    fails = [RetryableError("slot c is active")] if cut else []

    def parts(login: int) -> Parts:
        class Login(MemorySource):
            def connect(self) -> dict[str, str]:
                followed[:] = [login]
                if login != now[0]:
                    raise LoginError("the server refuses the password")
                if fails:
                    raise fails.pop()
                return dict(super().connect())

            def follower(self) -> Follower | None:
                now[0] += next(rotated)
                return next(others, None) if login == now[0] else None

        return Parts(settings, lambda: Login(log, [A]), lambda: MemorySnapshotter(log))

    def reread() -> Parts | None:
        if now == followed:
            return None
        read.append(now[0])
        return parts(now[0])

    settings = Settings(connector="c", prefix="p")
    first = parts(0)
    Pipeline(
        first.settings, open_source=first.open_source, open_snapshotter=first.open_snapshotter,
        sink=MemorySink(kafka, "c", "p"), reread=reread,
    ).run(until_caught_up=True)  # fmt: skip
    assert read == ([1, 2, 3, 3] if cut else [1, 2, 3])
    assert len(kafka.committed("p.s.a")) == 2


def test_a_stop_is_heard_while_it_stands_by() -> None:
    copy: list[Copy] = []

    def seen() -> Follower | None:
        copy[0].pipeline.stop()
        return OTHER

    kafka = MemoryKafka()
    copy.append(Copy(_log(), kafka, seen))
    copy[0].run()
    assert "p.c" not in kafka.epochs


def test_one_that_was_fenced_while_cut_off_does_not_wait_for_its_turn() -> None:
    """It ends with the exit code of fencing."""
    log, kafka = _log(), MemoryKafka()
    cut: list[int] = []

    def seen() -> Follower | None:
        if len(cut) == 1:  # its session has ended; another copy goes on, and is still at work
            for n in range(2, 5):
                log.commit(insert(A, (b"%d" % n, b"n")))
                Copy(log, kafka, lambda: None).run()
            return OTHER
        return None

    def failing(point: str) -> None:
        if point == "source.idle" and not cut:
            cut.append(1)
            raise RetryableError("the connection was cut")

    first = Copy(log, kafka, seen, at=failing)
    with pytest.raises(FencedError) as ended:
        first.pipeline.run()
    assert ended.value.exit_code == 3


@pytest.mark.parametrize(("wait_s", "tries"), [(None, 1), (float("inf"), 4)])
def test_a_server_that_is_not_up_yet_is_waited_for_if_asked_to(wait_s: float | None, tries: int) -> None:
    """Without `--wait` the first start ends with the error; with it the start is tried again, within its time."""
    log, made = _log(), []

    class Late(MemorySource):
        def connect(self) -> dict[str, str]:
            made.append(1)
            if len(made) < 4:
                raise RetryableError("nobody answers")
            return dict(super().connect())

    pipeline = Pipeline(
        Settings(connector="c", prefix="p", wait_s=wait_s),
        open_source=lambda: Late(log, [A]),
        open_snapshotter=lambda: MemorySnapshotter(log),
        sink=MemorySink(MemoryKafka(), "c", "p"),
    )
    if tries == 4:
        pipeline.run(until_caught_up=True)
    else:
        with pytest.raises(RetryableError):
            pipeline.run(until_caught_up=True)
    assert len(made) == tries


class Elsewhere(MemorySource):
    """Leads to another database, as a file that was copied for one and not given a name of its own."""

    def connect(self) -> dict[str, str]:
        return {**super().connect(), "database": "another"}


@pytest.mark.parametrize(
    ("source", "config", "what"),
    [(Elsewhere, {}, "another source"), (MemorySource, {"source.slot": "other"}, "config changed")],
)
def test_one_that_has_no_part_in_the_position_fences_nobody(
    source: type[MemorySource], config: dict[str, str], what: str
) -> None:
    """Nor does it make a topic: it is not seen at the source of the copy that is at work, which would end for it."""
    log, kafka = MemoryLog(), MemoryKafka()
    log.commit(insert(A, (b"1", b"n")))

    def pipeline(source: type[MemorySource], config: dict[str, str], *tables: Table) -> Pipeline:
        return Pipeline(
            Settings(connector="c", prefix="p", config=config, idle_position_s=0.0),
            open_source=lambda: source(log, tables),
            open_snapshotter=lambda: MemorySnapshotter(log),
            sink=MemorySink(kafka, "c", "p"),
            observe=observe,
        )

    refused, seen = list[CdcError](), 0

    def observe(report: Report) -> None:
        nonlocal seen
        seen += 1
        if report.phase is Phase.STREAM and not refused:
            topics = set(kafka.topics)
            with pytest.raises(VerdictError, match=what) as found:
                pipeline(source, config, A, B).run()
            refused.append(found.value)
            assert set(kafka.topics) == topics
            log.commit(insert(A, (b"2", b"n")))
        elif refused and len(kafka.committed("p.s.a")) == 2:
            running.stop()

    running = pipeline(MemorySource, {"source.slot": "ours"}, A)
    running.run()
    assert seen > 1
