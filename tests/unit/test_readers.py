"""Sessions read key ranges in parallel, and one thread takes them: whole, in order, bounded, and ended when asked."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from cdc.model.errors import OperatorError, RetryableError
from snapshot import parallel_readers
from snapshot.handover import Progress
from snapshot.key_ranges import KeyRange
from snapshot.parallel_readers import ParallelReaders, RowBuffer
from snapshot.postgres.copying import Relation
from tests.text_tables import text_table

TABLE = text_table("t", ["id"])


class Session:
    """A connection as far as `ParallelReaders` looks at it."""

    def __init__(self) -> None:
        self.cancelled = threading.Event()

    def cancel(self) -> None:
        self.cancelled.set()


def _key_ranges(count: int) -> list[KeyRange[Relation]]:
    return [KeyRange(TABLE, Relation(1), (b"%d" % n,), None) for n in range(count)]


def _readers(
    sessions: int, key_ranges: list[KeyRange[Relation]], read: Callable[[Any, KeyRange[Relation], RowBuffer], None]
) -> tuple[ParallelReaders[Any], list[Any]]:
    made: list[Any] = [Session() for _ in range(sessions)]
    return ParallelReaders(made, key_ranges, read, lambda session: session.cancel()), made


@pytest.mark.parametrize(("sessions", "count"), [(1, 1), (1, 3), (2, 3), (4, 2)])
def test_every_key_range_comes_whole_and_in_order(sessions: int, count: int) -> None:
    """Whichever session reads it; the last chunk of each is marked, once."""

    def read(_: Any, key_range: KeyRange[Relation], rows: RowBuffer) -> None:
        for n in range(5_500):
            rows.write(b"%s-%d\n" % ((key_range.after or (b"",))[0], n))

    key_ranges = _key_ranges(count)
    readers, _ = _readers(sessions, key_ranges, read)
    found: dict[int, list[bytes]] = {id(key_range): [] for key_range in key_ranges}
    ended = []
    for key_range, lines, last, session in readers:
        assert session < sessions
        assert id(key_range) not in ended
        found[id(key_range)] += lines
        ended += [id(key_range)] if last else []
    assert sorted(ended) == sorted(found)
    assert [found[id(r)] for r in key_ranges] == [[b"%d-%d\n" % (n, i) for i in range(5_500)] for n in range(count)]
    assert readers.stop() == []


@pytest.mark.parametrize(("size", "most"), [(10, 2_000 * 10), (300_000, 4 * 300_000)])
def test_what_is_read_ahead_is_bounded(size: int, most: int) -> None:
    """By rows and by bytes: a reader that nobody listens to stands still."""
    written = threading.Semaphore(0)
    counted = 0

    def read(_: Any, __: KeyRange[Relation], rows: RowBuffer) -> None:
        nonlocal counted
        while True:
            rows.write(b"x" * size)
            counted += 1
            written.release()

    readers, _ = _readers(1, _key_ranges(1), read)
    chunks = iter(readers)
    first = next(chunks)
    assert sum(map(len, first.lines)) <= most
    while written.acquire(timeout=1.0):
        pass  # until it stands still
    assert counted * size <= 6 * most
    assert readers.stop() == []


def test_the_first_error_comes_out_and_the_others_are_ended() -> None:
    """An error of one session ends the reading; a session in a long wait is cancelled."""

    def read(session: Any, key_range: KeyRange[Relation], rows: RowBuffer) -> None:
        if key_range.after == (b"1",):
            raise RetryableError("cut off")
        session.cancelled.wait(30)
        raise OperatorError("cancelled")

    readers, sessions = _readers(2, _key_ranges(2), read)
    with pytest.raises(RetryableError, match="cut off"):
        list(readers)
    assert readers.stop() == []
    assert any(session.cancelled.is_set() for session in sessions)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("cdc-snapshot")]


def test_no_key_range_is_begun_after_the_end() -> None:
    """Told to stop while one is read, a session takes no other."""
    begun: list[KeyRange] = []

    def read(session: Any, key_range: KeyRange[Relation], rows: RowBuffer) -> None:
        begun.append(key_range)
        for _ in range(2_000):
            rows.write(b"1\n")
        session.cancelled.wait(30)

    readers, _ = _readers(1, _key_ranges(3), read)
    assert not next(iter(readers)).last
    assert readers.stop() == []
    assert len(begun) == 1


def test_while_nothing_comes_there_are_chunks_without_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sort or a lock may take minutes: who waits keeps the connector's lock, and hears of a stop, meanwhile."""
    monkeypatch.setattr(parallel_readers, "_QUIET_S", 0.01)
    goes_on = threading.Event()

    def read(_: Any, __: KeyRange[Relation], rows: RowBuffer) -> None:
        assert goes_on.wait(60)
        rows.write(b"1\n")

    readers, _ = _readers(1, [KeyRange(TABLE, Relation(1), None, None)], read)
    begun = Progress.from_json({})
    found = parallel_readers.chunks(readers, begun, views=[3], parse=lambda _, lines: [(line[:-1],) for line in lines])
    for _ in range(3):
        quiet = next(found)
        assert (quiet.table, quiet.rows, quiet.progress, quiet.view) == (TABLE, (), begun.to_json(), 3)
    goes_on.set()
    (read_at_last,) = [chunk for chunk in found if chunk.rows]
    assert list(read_at_last.rows) == [(b"1",)]
    assert Progress.from_json(read_at_last.progress).of(TABLE).done
    assert readers.stop() == []
