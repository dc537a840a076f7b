"""Statements that get no answer are cut off, and only those; no thread is started for each."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from connectors.postgres.deadline import Deadline

AWAITED_S = 60.0


class Statements:
    """A connection as far as a deadline goes, and the server's end of it."""

    def __init__(self) -> None:
        self.ours, self.theirs = socket.socketpair()
        self.theirs.settimeout(AWAITED_S)

    def fileno(self) -> int:
        return self.ours.fileno()

    def waits(self) -> bytes:
        """What a statement does; nothing comes once the connection is cut."""
        self.ours.settimeout(AWAITED_S)
        return self.ours.recv(1)

    def close(self) -> None:
        self.ours.close()
        self.theirs.close()


@pytest.fixture
def statements() -> Iterator[Statements]:
    made = Statements()
    yield made
    made.close()


def _deadline(statements: Statements, timeout_s: float) -> Deadline:
    return Deadline(cast("Any", statements), timeout_s)


def _watching() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "cdc-deadline"]


def test_what_gets_no_answer_is_cut(statements: Statements) -> None:
    """Both ends hear of it."""
    with _deadline(statements, 0.05).answered():
        assert statements.waits() == b""
    assert statements.theirs.recv(1) == b""


class Clock:
    """Time as far as a deadline's thread goes; it passes when the test says so."""

    def __init__(self) -> None:
        self._now_s, self._sleeps = 0.0, 0
        self._changed = threading.Condition()

    def monotonic(self) -> float:
        return self._now_s

    def sleep(self, seconds: float) -> None:
        with self._changed:
            end_s = self._now_s + seconds
            self._sleeps += 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._now_s >= end_s, AWAITED_S)

    def passes(self, seconds: float) -> None:
        with self._changed:
            self._now_s += seconds
            self._changed.notify_all()

    def await_sleep(self, number: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self._sleeps >= number, AWAITED_S)


def test_each_statement_has_the_whole_time(statements: Statements, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that was started for one before does not cut the next by the first one's end."""
    clock = Clock()
    monkeypatch.setattr("connectors.postgres.deadline.time", clock)
    deadline = _deadline(statements, 10.0)
    with deadline.answered():
        clock.await_sleep(1)
        clock.passes(6.0)
    with deadline.answered():
        clock.passes(6.0)
        clock.await_sleep(2)  # for what is left to the second
        statements.theirs.sendall(b"!")
        assert statements.waits() == b"!"
        clock.passes(4.0)
        assert statements.waits() == b""


def test_nothing_is_cut_while_nothing_is_asked(statements: Statements) -> None:
    """And the thread ends, and another is started when it is needed again."""
    deadline = _deadline(statements, 0.05)
    with deadline.answered():
        pass
    for thread in _watching():
        thread.join(AWAITED_S)
    statements.theirs.sendall(b"!")
    assert statements.waits() == b"!"
    with deadline.answered():
        assert statements.waits() == b""


def test_many_statements_share_a_thread(statements: Statements) -> None:
    """None of them leaves a descriptor open; what else runs in this process may open some meanwhile."""
    before, opened = len(_watching()), len(list(Path("/dev/fd").iterdir()))
    deadline = _deadline(statements, 1.0)
    for _ in range(100):
        with deadline.answered():
            pass
    assert len(_watching()) - before == 1
    assert len(list(Path("/dev/fd").iterdir())) < opened + 50


def test_an_error_inside_ends_the_watch(statements: Statements) -> None:
    """The connection is left as it is."""
    deadline = _deadline(statements, 0.05)
    with pytest.raises(KeyError), deadline.answered():
        raise KeyError
    time.sleep(0.2)
    statements.theirs.sendall(b"!")
    assert statements.waits() == b"!"
