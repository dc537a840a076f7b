"""Waits for something outside that is asked on another thread, while the loop tends its source."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYetError
from typing import Final, TypeVar

T = TypeVar("T")
_TENDED_EVERY_S: Final = 0.2
_TOLD_S: Final = 5.0

log = logging.getLogger("cdc")


def await_tended(job: Future[T], tend: Callable[[], None], told: str) -> T:
    """Return what `job` gives, and tend the source meanwhile. Raises what `tend` or the job raises.

    After a while `told` is logged, once.
    """
    begun_s, is_told = time.monotonic(), False
    while True:
        try:
            return job.result(_TENDED_EVERY_S)
        except NotYetError:
            if job.done():  # a time-out of its own
                raise
            tend()
            if not is_told and time.monotonic() - begun_s >= _TOLD_S:
                log.info("%s; the log waits", told)
                is_told = True
