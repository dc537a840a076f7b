"""`cdc apply` on a thread of this process, which then needs no Spark of its own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cdc.config.config import load_apply
from spark_apply.job.job import run_apply

_ENDS_WITHIN_S = 300.0


@contextmanager
def applying(file: Path) -> Iterator[None]:
    """Follow the topics until the block ends; raises what the job ended with."""
    stop, failed = threading.Event(), list[BaseException]()

    def run() -> None:
        try:
            run_apply(load_apply(file), once=False, stop=stop)
        except BaseException as exc:  # noqa: BLE001 - raised below
            failed.append(exc)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(_ENDS_WITHIN_S)
        for exc in failed:
            raise exc
        assert not thread.is_alive()
