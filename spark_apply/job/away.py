"""Waits for brokers that are away."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from cdc.model.errors import CdcError
from cdc.model.meter import JobMeter

_TOLD_EVERY_S = 300.0
"""So often a job that waits for Kafka says so again."""


@dataclass(slots=True)
class Away:
    """Says that a job waits, and that it does not any more."""

    tell: Callable[[str], None]
    meter: JobMeter
    said: str = ""
    """Why the job waits for Kafka, as it has been told; empty: it does not."""
    _said_at: float = 0.0
    """When, on the monotonic clock."""

    def wait(self, error: CdcError, stop: threading.Event) -> bool:
        """Wait a moment before brokers are asked again; return whether the job is to stop."""
        now = time.monotonic()
        if error.message != self.said or now > self._said_at + _TOLD_EVERY_S:
            hint = f"; {error.hint}" if error.hint else ""
            self.tell(f"warning: {error.message}. The job waits, and asks again: nothing is applied meanwhile{hint}")
            self._said_at = now
        self.said = error.message
        self.meter.moves()
        self.meter.retries(error)
        return stop.wait(1)
