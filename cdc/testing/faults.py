"""The points where the twins can be made to fail, and plans of failures."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Final, TypeAlias, TypeVar

from cdc.model.errors import RetryableError

T = TypeVar("T")

At: TypeAlias = Callable[[str], None]

POINTS: Final = (
    "source.connect",
    "source.hold",
    "source.held",
    "source.extend",
    "source.frame",
    "source.change",
    "source.idle",
    "source.acknowledge",
    "snapshot.view",
    "snapshot.chunk",
    "snapshot.window",
    "snapshot.row",
    "sink.check",
    "sink.create",
    "sink.fence",
    "sink.fenced",
    "sink.schema",
    "sink.write",
    "sink.records",
    "sink.commit",
    "sink.commit.delayed",
    "sink.commit.answer",
)
"""Raising at ``sink.commit``: it did not happen; at ``sink.commit.delayed``: it happens when the next producer fences
this one; at ``sink.commit.answer``: it happened. The caller cannot tell which."""


class Inline(Executor):
    """Runs each job at once, on the caller's thread, so that every run is the same."""

    def submit(self, fn: Callable[..., T], /, *args: object, **kwargs: object) -> Future[T]:
        done: Future[T] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except Exception as exc:  # noqa: BLE001 - the future's to raise
            done.set_exception(exc)
        return done


class Killed(BaseException):
    """Says that the process ended here: nothing of the pipeline may catch it."""


class Faults:
    """Raises at named points: each item of `plan` is a point and at which passing to raise; items fire in order.

    `error` makes what is raised; RetryableError by default, so that the pipeline tries again.
    """

    def __init__(self, *plan: tuple[str, int], error: Callable[[str], BaseException] | None = None) -> None:
        unknown = sorted({point for point, _ in plan} - set(POINTS))
        if unknown:
            raise ValueError(f"no such point: {', '.join(unknown)}")
        self._plan = deque(plan)
        self._error = error or (lambda point: RetryableError(f"injected at {point}"))
        self._passed = 0
        self.fired: list[str] = []

    def __call__(self, point: str) -> None:
        if not self._plan or self._plan[0][0] != point:
            return
        self._passed += 1
        if self._passed >= self._plan[0][1]:
            self._plan.popleft()
            self._passed = 0
            self.fired.append(point)
            raise self._error(point)


def nothing(point: str) -> None:
    """Raise nothing at any point."""
