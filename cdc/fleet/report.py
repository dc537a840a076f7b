"""A child's word to its member: a line of JSON for each state and error, through a pipe that is never waited for."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import orjson

from cdc.machine.child_processes import outward
from cdc.model.errors import CdcError
from cdc.model.meter import Commit, Meter, RunState
from cdc.model.state import State

REPORT_FD: Final = "CDC_REPORT_FD"
"""The environment variable that names the pipe."""
METRICS_SOCKET: Final = "CDC_METRICS_SOCKET"
"""The one that names the socket at which a child shows its metrics to its member; none: it shows none."""


@dataclass(frozen=True, slots=True)
class Report:
    """What a child says."""

    state: str | None
    error: Mapping[str, object] | None
    """`kind`, `message`, `hint`."""

    @classmethod
    def from_line(cls, line: bytes) -> Report | None:
        """Read a line; None for one that is cut short."""
        try:
            found = orjson.loads(line)
            return cls(found["state"], found["error"])
        except (ValueError, KeyError, TypeError):
            return None


class Reporter:
    """Writes reports to the pipe that the environment names; without one it does nothing."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        given = environment.get(REPORT_FD, "")
        self._pipe = int(given) if given.isdecimal() else None
        if self._pipe is not None:
            try:
                os.set_blocking(self._pipe, False)
            except OSError:  # it was of the process that started this one's parent
                self._pipe = None

    def over(self, meter: Meter) -> Meter:
        """Return a meter that reports, too; the same one where nobody listens."""
        return meter if self._pipe is None else ReportingMeter(meter, self)

    def state(self, state: RunState) -> None:
        self._write(state.value, None)

    def error(self, error: CdcError) -> None:
        self._write(None, {"kind": type(error).__name__, "message": outward(error.message), "hint": error.hint})

    def _write(self, state: str | None, error: Mapping[str, object] | None) -> None:
        if self._pipe is not None:
            with suppress(OSError):  # a member that is frozen does not hold its children up
                os.write(self._pipe, orjson.dumps({"state": state, "error": error}) + b"\n")


class ReportingMeter:
    """Passes everything on to another meter, and reports states and errors."""

    def __init__(self, meter: Meter, reporter: Reporter) -> None:
        self._meter, self._reporter = meter, reporter
        self.wanted = meter.wanted
        self._state: RunState | None = None

    def becomes(self, state: RunState) -> None:
        if state is not self._state:
            self._state = state
            self._reporter.state(state)
        self._meter.becomes(state)

    def fails(self, error: CdcError) -> None:
        self._reporter.error(error)
        self._meter.fails(error)

    def retries(self, error: CdcError) -> None:
        self._reporter.error(error)
        self._state = RunState.RETRYING
        self._reporter.state(RunState.RETRYING)
        self._meter.retries(error)

    def moves(self) -> None:
        self._meter.moves()

    def waits(self) -> None:
        self._meter.waits()

    def opened(self, state: State, pending: Callable[[], tuple[int, int]]) -> None:
        self._meter.opened(state, pending)

    def committed(self, commit: Commit) -> None:
        self._meter.committed(commit)

    def leaves_out(self, tables: int) -> None:
        self._meter.leaves_out(tables)

    def is_fresh(self, source_ms: int, ahead_ms: int) -> None:
        self._meter.is_fresh(source_ms, ahead_ms)

    def aborted(self) -> None:
        self._meter.aborted()
