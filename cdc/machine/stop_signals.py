"""Lets the signals that end a process ask work to end instead, where it can, or to go on by what its files say now."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final, NoReturn, Self

from cdc.machine.flag import Flag

_BY_SIGNAL: Final = 128
_told: Final[list[threading.Event]] = []
"""What SIGINT and SIGTERM set: that of a command, and that of the work inside it."""


@contextmanager
def stopping(stop: threading.Event) -> Iterator[None]:
    """Let SIGINT and SIGTERM set `stop`, in the main thread alone: others are asked by it directly.

    One inside another sets both: the command that is outside tells by its own which signal has ended it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _told.append(stop)
    before = {number: signal.signal(number, _tell) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _told.pop()


def _tell(number: int, _frame: FrameType | None) -> None:
    for stop in _told:
        if isinstance(stop, Flag) and stop.signal is None:
            stop.signal = number
        stop.set()


@contextmanager
def unwinding() -> Iterator[None]:
    """Let SIGTERM end the process as Ctrl-C does, by an exception: what is changed for a while is set back."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _unwind)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _unwind(number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(_BY_SIGNAL + number)


def end_by(number: int) -> NoReturn:
    """End the process as this signal does where nothing waits for it: for work that has ended by it, with less done."""
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    _unwind(number, None)


class HangUps:
    """Inside its `with` SIGHUP ends nothing, and is told to `heard_by`; where stderr is a terminal it ends the process.

    There it says that the terminal is closed. Elsewhere it comes from `systemctl reload` or logrotate, or from a
    terminal that is no longer anybody's (`nohup`). What came before there was somebody to tell is told then.
    """

    def __init__(self) -> None:
        self._act: Callable[[], object] | None = None
        self._asked = False

    def heard_by(self, act: Callable[[], object]) -> None:
        """Call `act`, which must be short, in a signal handler, at each SIGHUP from here on."""
        self._act = act
        if self._asked:
            self._asked = False
            act()

    def __enter__(self) -> Self:
        self._ours = threading.current_thread() is threading.main_thread() and not sys.stderr.isatty()
        if self._ours:
            self._before = signal.signal(signal.SIGHUP, self._hear)
        return self

    def __exit__(self, *_: object) -> None:
        if self._ours:
            signal.signal(signal.SIGHUP, self._before)

    def _hear(self, _number: int, _frame: FrameType | None) -> None:
        if self._act is None:
            self._asked = True
        else:
            self._act()


@contextmanager
def hang_ups_end_no_child() -> Iterator[None]:
    """Let a program that is started inside take no notice of SIGHUP where this process goes on at it.

    A signal with a handler would be what ends a process again in a program that is started.
    """
    ours = threading.current_thread() is threading.main_thread() and callable(signal.getsignal(signal.SIGHUP))
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN) if ours else None
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGHUP, before)
