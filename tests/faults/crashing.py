"""`cdc run` that kills itself (SIGKILL) when it passes a named point for the n-th time.

    python -m tests.faults.crashing POINT N [FLAGS OF cdc run] CONNECTOR.yaml

The parts of the connector are wrapped where the registry makes them; production code knows nothing of it. Points are
named as in cdc.testing.faults. `sink.commit` kills when all is written and nothing committed, `sink.flushed` when the
broker has all of it, `sink.commit.delayed` while the commit is under way, `sink.commit.answer` once it is done and
nothing acknowledged.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

from cdc.cli.main import main
from cdc.config import registry
from cdc.model.change import Transaction, TransactionBatch

POINTS: Final = (
    "source.connect",
    "source.connected",
    "source.hold",
    "source.held",
    "source.frame",
    "source.change",
    "source.acknowledge",
    "source.acknowledged",
    "snapshot.view",
    "snapshot.chunk",
    "snapshot.window",
    "snapshot.row",
    "snapshot.handover",
    "sink.check",
    "sink.create",
    "sink.fence",
    "sink.fenced",
    "sink.schema",
    "sink.write",
    "sink.commit",
    "sink.flushed",
    "sink.commit.delayed",
    "sink.commit.answer",
)

_DELAYED_S: Final = 0.003

At = Callable[[str], None]


class Crash:
    """Ends the process at the n-th passing of its point."""

    def __init__(self, point: str, times: int) -> None:
        if point not in POINTS:
            raise ValueError(f"no such point: {point}; there are {', '.join(POINTS)}")
        self._point, self._left = point, times

    def __call__(self, point: str) -> None:
        if point != self._point:
            return
        self._left -= 1
        if self._left > 0:
            return
        if point == "sink.commit.delayed":
            threading.Timer(_DELAYED_S, kill).start()
            return
        kill()


def kill() -> None:
    """As the kernel would: no handler, no flush."""
    os.kill(os.getpid(), signal.SIGKILL)


class Wrapped:
    """A part, with points around some of its methods; everything else is the part's own."""

    def __init__(self, part: Any, at: At) -> None:
        self._part, self._at = part, at

    def __getattr__(self, name: str) -> Any:
        return getattr(self._part, name)

    def _between(self, before: str | None, after: str | None, name: str, *arguments: Any) -> Any:
        if before is not None:
            self._at(before)
        result = getattr(self._part, name)(*arguments)
        if after is not None:
            self._at(after)
        return result


class CrashingSource(Wrapped):
    def connect(self) -> Any:
        return self._between("source.connect", "source.connected", "connect")

    def hold(self, *arguments: Any) -> Any:
        return self._between("source.hold", "source.held", "hold", *arguments)

    def acknowledge(self, *arguments: Any) -> None:
        self._between("source.acknowledge", "source.acknowledged", "acknowledge", *arguments)

    def stream(self, *arguments: Any) -> Iterator[Any]:
        for frame in self._part.stream(*arguments):
            if isinstance(frame, TransactionBatch):
                for transaction in frame.transactions:
                    self._at("source.frame")
                    for _ in transaction.changes:
                        self._at("source.change")
                yield frame
            elif isinstance(frame, Transaction):
                self._at("source.frame")
                yield frame._replace(changes=self._passing(frame.changes))
            else:
                yield frame

    def _passing(self, changes: Iterator[Any]) -> Iterator[Any]:
        for change in changes:
            yield change
            self._at("source.change")


class CrashingSnapshotter(Wrapped):
    def chunks(self, *arguments: Any) -> Iterator[Any]:
        self._at("snapshot.view")
        for chunk in self._part.chunks(*arguments):
            self._at("snapshot.chunk")
            yield chunk

    def handover(self, *arguments: Any) -> Any:
        return self._between("snapshot.handover", None, "handover", *arguments)

    def window(self, *arguments: Any, **more: Any) -> Any:
        self._at("snapshot.window")
        return self._part.window(*arguments, **more)

    def rows(self, *arguments: Any, **more: Any) -> Any:
        self._at("snapshot.window")
        return self._part.rows(*arguments, **more)

    def row(self, *arguments: Any) -> Any:
        return self._between("snapshot.row", None, "row", *arguments)


class CrashingSink(Wrapped):
    def check(self, *arguments: Any) -> Any:
        return self._between("sink.check", None, "check", *arguments)

    def create(self, *arguments: Any) -> None:
        self._between("sink.create", None, "create", *arguments)

    def fence(self) -> Any:
        return self._between("sink.fence", "sink.fenced", "fence")

    def schema(self, *arguments: Any) -> None:
        self._between("sink.schema", None, "schema", *arguments)

    def write(self, *arguments: Any) -> None:
        self._between("sink.write", None, "write", *arguments)

    def commit(self, *arguments: Any) -> None:
        self._at("sink.commit")
        self._part._send()
        self._part._open_producer().flush()
        self._at("sink.flushed")
        self._between("sink.commit.delayed", "sink.commit.answer", "commit", *arguments)


def wrap(source: Callable[[Any], Any], snapshotter: Callable[[Any], Any], sink: Callable[[Any], Any]) -> None:
    """From now on the registry gives wrapped parts: `cdc run` is otherwise as it is."""
    open_source, open_snapshotter, open_sink = registry.source, registry.snapshotter, registry.sink

    def sources(config: Any) -> Callable[[], Any]:
        opener = open_source(config)
        return lambda: source(opener())

    def snapshotters(config: Any) -> Callable[[], Any]:
        opener = open_snapshotter(config)
        return lambda: snapshotter(opener())

    registry.source = sources
    registry.snapshotter = snapshotters
    registry.sink = lambda config, connector, **more: sink(open_sink(config, connector, **more))


def crash_at(point: str, times: int) -> None:
    """Arm this process."""
    at = Crash(point, times)
    wrap(lambda p: CrashingSource(p, at), lambda p: CrashingSnapshotter(p, at), lambda p: CrashingSink(p, at))


if __name__ == "__main__":
    crash_at(sys.argv[1], int(sys.argv[2]))
    main(["run", *sys.argv[3:]])
