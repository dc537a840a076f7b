"""`cdc apply --once` that kills itself (SIGKILL) when it passes a named point of a store for the n-th time.

    python -m tests.spark.crashing APPLY.yaml    and then, on stdin: WHO POINT N [PID ...]

Spark is up before stdin is read, so a test can have the next process ready while one works. The stores are wrapped
where the job opens them; production code knows nothing of it. WHO dies is `all`, which is the process group with the
JVM in it, at one moment, or `driver`: Python alone, whose JVM notices by its stdin, and ends with what it is at or
without. `worker` is the one of a cluster's workers, given by their pids, whose executor has worked most, with that
executor: the job is to go on. `nobody` is let run to its end.

On a cluster each batch is read and folded by several tasks, as only large ones are otherwise.

    <store>.before   a batch was handed over, nothing is written
    <store>.in       a part is written and nothing committed; opensearch: some of several requests were answered
    <store>.commit   the commit is under way
    <store>.after    committed, and nobody knows: no mark, no checkpoint
    mark             the batch is in all stores, and this mark is not written yet: each store has one for each table

Of several stores that follow a table, `after` of one is `before` of the next. A batch of several tables passes a point
once for each, but those of postgres, which takes them together, marks included.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from cdc.cli.main import main
from cdc.config.config import load_apply
from cdc.dev.servers.launch import family, send
from spark_apply.job.batch import size
from spark_apply.job.copies import chosen
from spark_apply.spark.session import open_session
from spark_apply.stores.opensearch import bulk as opensearch_bulk

POINTS: Final = (
    *(f"opensearch.{point}" for point in ("before", "in", "after")),
    *(f"tantivy.{point}" for point in ("before", "in", "commit", "after")),
    *(f"iceberg.{point}" for point in ("before", "in", "commit", "after")),
    *(f"delta.{point}" for point in ("before", "in", "commit", "after")),
    *(f"postgres.{point}" for point in ("before", "in", "commit", "after")),
    "mark",
)
WHO: Final = ("all", "driver")
WORKER: Final = "worker"

_REQUEST_ACTIONS: Final = 3
_LOOK_S: Final = 0.0005
_COMMIT_S: Final = 0.004
_FILES: Final = {
    "iceberg.in": ("data/*.parquet",),
    "iceberg.commit": ("metadata/*.avro",),
    "delta.in": ("*.parquet", "*.bin"),
    "delta.commit": ("_delta_log/*",),
}
"""What is new in a table's folder once the point is reached."""


class Crash:
    """Ends the process, or its group, at the n-th passing of its point."""

    def __init__(self, who: str, point: str, times: int, workers: Sequence[int] = ()) -> None:
        if point not in POINTS or who not in (*WHO, WORKER):
            raise ValueError(f"no such point: {who} {point}; there are {', '.join(POINTS)} for {' and '.join(WHO)}")
        self._who, self._point, self._left, self._workers = who, point, times, workers

    def passed(self, point: str) -> bool:
        """Whether this passing is the one."""
        if point == self._point:
            self._left -= 1
        return point == self._point and self._left == 0

    def __call__(self, point: str) -> None:
        if self.passed(point):
            self.kill()

    def soon(self, point: str) -> None:
        """While what comes next is under way."""
        if self.passed(point):
            threading.Timer(random.uniform(0, _COMMIT_S), self.kill).start()

    def once_written(self, point: str, table: Path) -> None:
        """When a file appears in the table's folder that says so."""
        if not self.passed(point):
            return
        known = _there(table, point)

        def look() -> None:
            while _there(table, point) <= known:
                time.sleep(_LOOK_S)
            self.kill()

        threading.Thread(target=look, daemon=True).start()

    def kill(self) -> None:
        """As the kernel would: no handler, no flush."""
        if self._who == WORKER:
            send(max(map(family, self._workers), key=_worked), signal.SIGKILL)
            print(f"{WORKER} killed", flush=True)
        else:
            os.kill(0 if self._who == "all" else os.getpid(), signal.SIGKILL)


def _worked(worker: Sequence[int]) -> int:
    """Ticks of CPU of a worker's executors; the worker itself comes first."""
    fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in worker[1:]]
    return sum(int(of[11]) + int(of[12]) for of in fields)


def _there(table: Path, point: str) -> set[Path]:
    return {path for pattern in _FILES[point] for path in table.glob(pattern)}


def wrap(store: Any, kind: str, crash: Crash, folder: Path | None) -> None:
    """Put points around what the job calls, and the one within a commit where the store has it."""
    fold = "fold" if kind == "postgres" else "apply"
    original, set_mark, written = getattr(store, fold), store.set_mark, list[bool]()

    def apply(batch: Any, *more: Any) -> Any:
        crash(f"{kind}.before")
        if folder is not None:
            for point in (f"{kind}.in", f"{kind}.commit"):
                crash.once_written(point, folder / batch.table.schema / batch.table.copy_name)
        done = original(batch, *more)
        written.append(True)
        crash(f"{kind}.after")
        return done

    def mark(*given: Any) -> None:
        if written:  # else it only says by which run the copy's mark is
            crash("mark")
        set_mark(*given)

    setattr(store, fold, apply)
    store.set_mark = mark
    within = {"opensearch": _within_opensearch, "tantivy": _within_tantivy, "postgres": _within_postgres}
    if kind in within:
        within[kind](store, crash)


def _within_opensearch(_store: Any, crash: Crash) -> None:
    opensearch_bulk._REQUEST_ACTIONS = _REQUEST_ACTIONS  # several requests for a small batch
    send = opensearch_bulk.Bulk.send

    def sent(*given: Any) -> Iterator[Any]:
        yield from send(*given)
        crash("opensearch.in")

    opensearch_bulk.Bulk.send = sent


class _Writer:
    """A tantivy writer with points around its commit."""

    def __init__(self, writer: Any, crash: Crash) -> None:
        self._writer, self._crash = writer, crash

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)

    def commit(self) -> Any:
        self._crash("tantivy.in")
        self._crash.soon("tantivy.commit")
        return self._writer.commit()


def _within_tantivy(store: Any, crash: Crash) -> None:
    original = store.open

    def opened(table: Any) -> Any:
        identity = original(table)
        kept = store._open[table.qualified]
        kept.writer = _Writer(kept.writer, crash)
        return identity

    store.open = opened


def _within_postgres(store: Any, crash: Crash) -> None:
    original = store._server.transaction

    @contextmanager
    def transaction(doing: str) -> Iterator[Any]:
        with original(doing) as cur:
            yield cur
            if doing == "applying a batch":
                crash("postgres.in")
                crash.soon("postgres.commit")

    store._server.transaction = transaction


def crash_at(who: str, point: str, times: int, workers: Sequence[int]) -> None:
    """Arm this process."""
    crash = Crash(who, point, times, workers)
    opener: Callable[..., Any] = chosen.open_store

    def opened(config: Any, **more: Any) -> Any:
        store = opener(config, **more)
        lake = config.type in ("iceberg", "delta")
        wrap(store, config.type, crash, Path(config.path) if lake else None)
        return store

    chosen.open_store = opened


if __name__ == "__main__":
    file = sys.argv[1]
    about = load_apply(Path(file))
    open_session(about.name, about.spark)
    if not about.spark["spark.master"].startswith("local"):
        size.EVENTS_ALONE = -1
    asked = sys.stdin.readline().split()
    if asked and asked[0] in (*WHO, WORKER):
        crash_at(asked[0], asked[1], int(asked[2]), [int(pid) for pid in asked[3:]])
    if asked:
        main(["apply", "--once", file])
