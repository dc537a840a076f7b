"""Asks something again and again on a thread of its own, and keeps the last answer, or why there is none now.

Each question has its thread: a server that does not answer makes nobody wait but those who want to know of it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, TypeVar

from cdc.config.config import ApplyConfig, ConnectorConfig
from cdc.config.views import ViewsConfig
from cdc.model.errors import CdcError

T = TypeVar("T")
C = TypeVar("C", ConnectorConfig, ApplyConfig, ViewsConfig)
_AGAIN_S: Final = 3.0
"""So soon a question is asked again that was not answered."""
_ANSWERS_WITHIN_S: Final = 20.0
"""A question that takes longer is shown as not answered."""

log = logging.getLogger("cdc")


@dataclass(frozen=True, slots=True)
class Failure:
    """Why there is no answer."""

    message: str
    hint: str | None
    since_ms: int


@dataclass(frozen=True, slots=True)
class Answer(Generic[T]):
    """What was answered last."""

    value: T | None
    """None: nothing ever was."""
    at_ms: int
    """When; 0 without an answer."""
    failure: Failure | None
    """Why the last question was not answered; None: it was."""


class FileNow(Generic[C]):
    """Holds what a file says. Where nobody answers it is read again: a password, or an address, may be another one."""

    def __init__(self, file: Path, config: C, load: Callable[[Path], C]) -> None:
        self._file = file
        self._load: Callable[[Path], C] = load
        self.config: C = config

    def ask(self, question: Callable[[C], T]) -> T:
        """Ask by what the file says, and once more if it says something else by now. Raises what the question does."""
        before = self.config
        try:
            return question(before)
        except CdcError:
            if not self._says_something_else(before):
                raise
        return question(self.config)

    def _says_something_else(self, before: C) -> bool:
        try:
            now = self._load(self._file)
        except CdcError:
            return False
        if now.name != before.name or now == before:
            return False
        self.config = now
        return True


class Look(Generic[T]):
    """Asks every so many seconds. Use as a context manager."""

    def __init__(self, name: str, ask: Callable[[], T], *, every_s: float) -> None:
        self._name, self._ask, self._every_s = name, ask, every_s
        self._answer: Answer[T] = Answer(None, 0, None)
        self._asked_s: float | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"cdc-look-{name}", daemon=True)

    def answer(self) -> Answer[T]:
        """Return what was answered last, and what is wrong now."""
        answer, asked_s = self._answer, self._asked_s
        waited_s = 0.0 if asked_s is None else time.monotonic() - asked_s
        if waited_s > _ANSWERS_WITHIN_S and answer.failure is None:
            since_ms = time.time_ns() // 1_000_000 - int(waited_s * 1000)
            return Answer(answer.value, answer.at_ms, Failure("no answer yet", None, since_ms))
        return answer

    def look(self) -> None:
        """Ask once, on the caller's thread. Raises nothing."""
        before, now_ms = self._answer, time.time_ns() // 1_000_000
        since_ms = before.failure.since_ms if before.failure is not None else now_ms
        self._asked_s = time.monotonic()
        try:
            self._answer = Answer(self._ask(), time.time_ns() // 1_000_000, None)
        except CdcError as exc:
            self._answer = Answer(before.value, before.at_ms, Failure(exc.message, exc.hint, since_ms))
        except Exception as exc:  # noqa: BLE001 - what one server says must not end the page
            log.debug("look at %s: %s", self._name, type(exc).__name__)
            self._answer = Answer(before.value, before.at_ms, Failure(type(exc).__name__, None, since_ms))
        finally:
            self._asked_s = None

    def _run(self) -> None:
        while not self._over.is_set():
            self.look()
            self._over.wait(self._every_s if self._answer.failure is None else min(self._every_s, _AGAIN_S))

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()  # the thread may be waiting for a server: nobody waits for it
