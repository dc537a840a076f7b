"""Judges a connector by what its server, Kafka and its own process say: state, level, problems. Pure."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from cdc.capture.snapshots.snapshot_progress import duration
from cdc.model.hints import CONNECTOR

Level = Literal["ok", "warn", "bad"]
LEVELS: Final[tuple[Level, ...]] = ("ok", "warn", "bad")

_OF_STATES: Final[Mapping[str, Level]] = {
    "streaming": "ok",
    "snapshot": "ok",
    "starting": "warn",
    "creating": "warn",
    "paused": "warn",
    "standby": "warn",
    "new": "warn",
    "retrying": "bad",
    "failed": "bad",
    "stopped": "bad",
    "unreachable": "bad",
    "unknown": "bad",
}
"""Every state that is shown, with its level."""

STATES: Final = tuple(_OF_STATES)
_ALERT_S: Final = 4 * 3600
"""A slot that will be lost earlier is a problem."""
_WINDOW_S: Final = 60.0
_LEAST_S: Final = 4.0
_MB: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Problem:
    """Something to do about, and the command that helps."""

    level: Level
    says: str
    hint: str | None = None

    def as_json(self) -> dict[str, Any]:
        return {"level": self.level, "says": self.says, "hint": self.hint}


@dataclass(slots=True)
class Rate:
    """Tells how fast a number grows, over the last minute."""

    _seen: deque[tuple[float, float]] = field(default_factory=deque)

    def saw(self, value: float, at_s: float | None = None) -> None:
        at_s = time.monotonic() if at_s is None else at_s
        if self._seen and value < self._seen[-1][1]:  # a process began again, a log too
            self._seen.clear()
        self._seen.append((at_s, value))
        while self._seen and at_s - self._seen[0][0] > _WINDOW_S:
            self._seen.popleft()

    def a_second(self) -> float | None:
        """Return the growth a second; None: it was not watched for long enough."""
        if not self._seen:
            return None
        (begin_s, first), (end_s, last) = self._seen[0], self._seen[-1]
        return (last - first) / (end_s - begin_s) if end_s - begin_s >= _LEAST_S else None


def state_of(status: Mapping[str, Any] | None, process: str | None, *, server: bool, at_work: bool | None) -> str:
    """Return what a connector does now.

    `status` is what `cdc status` says, None where Kafka has never answered; `process` the state that its own metrics
    tell, None without them; `server` whether the source's server answers; `at_work` whether somebody follows its log,
    None where the server does not tell.
    """
    if process is not None and process != "standby":
        return process
    if status is None:
        return "unknown"
    if status["phase"] == "new":
        return "new"
    if not server:
        return "unreachable"
    if at_work is False:
        return "failed" if status["last_error"] else "stopped"
    if at_work is None:
        return "unknown"
    if status["paused_at"]:
        return "paused"
    return "streaming" if status["phase"] == "stream" else str(status["phase"])


def level_of(state: str, problems: list[Problem]) -> Level:
    """Return the worst of a state and its problems."""
    levels = [_OF_STATES.get(state, "bad"), *(problem.level for problem in problems)]
    return max(levels, key=LEVELS.index)


def log_left(slot: Mapping[str, Any] | None, binlog: Mapping[str, Any] | None, *, growth: float | None,
             lag_s: float | None) -> tuple[float | None, str]:  # fmt: skip
    """Return for how many seconds the server keeps the log that a connector needs, and the same in words."""
    if slot is not None:
        if slot.get("wal_status") == "lost":
            return 0.0, "the slot is lost"
        safe = slot.get("safe_wal_size_bytes")
        if safe is None:
            return None, "max_slot_wal_keep_size sets no limit: the log is kept until the disk is full"
        room = f"{max(0, safe) // _MB:,} MB are left"
        if growth is None:
            return None, f"{room}; how fast the log grows is being watched"
        if growth <= 0:
            return None, f"{room}; the log does not grow at present"
        return max(0, safe) / growth, f"{duration(max(0, safe) / growth)} at the present rate, {room}"
    if binlog is not None:
        kept = binlog.get("kept_for_seconds")
        if kept is None:
            return None, "the binlog is kept for ever by its settings"
        left = max(0.0, float(kept) - (lag_s or 0.0))
        return left, f"{duration(left)}, by binlog_expire_logs_seconds"
    return None, "not known"


def problems_of(
    status: Mapping[str, Any], *, state: str, left_s: float | None, kept_s: float | None = None
) -> list[Problem]:
    """Return what is to be done about a connector, the worst first.

    `kept_s` is how long its server keeps log in any case, where it says so: half of that is enough where that is short.
    """
    least_s = _ALERT_S if kept_s is None else min(_ALERT_S, kept_s / 2)
    found: list[Problem] = []
    slot, error = status["slot"], status["last_error"]
    if slot is not None and slot.get("wal_status") == "lost":
        found.append(Problem("bad", f"slot {slot['name']} is lost: log after the position is gone",
                             f"cdc snapshot start {CONNECTOR} --after-gap"))  # fmt: skip
    elif slot is not None and slot.get("warning"):
        found.append(Problem("bad", str(slot["warning"]), slot.get("hint")))
    elif left_s is not None and left_s < least_s:
        found.append(Problem("bad", f"the log is kept for {duration(left_s)} more", _cure(state)))
    if state in ("stopped", "failed"):
        kept = int((slot or {}).get("retained_wal_bytes") or 0) // _MB
        room = f": the server keeps {kept:,} MB of log for it" if kept else ""
        found.append(Problem("warn", f"nobody follows its log{room}", f"cdc run {CONNECTOR}"))
    if error:
        found.append(Problem("bad" if state in ("failed", "retrying", "stopped") else "warn",
                             str(error["message"]), error.get("hint")))  # fmt: skip
    if status["dead_letters"]:
        found.append(Problem("warn", f"{status['dead_letters']:,} events are dead letters", f"cdc status {CONNECTOR}"))
    return sorted(found, key=lambda problem: -LEVELS.index(problem.level))


def _cure(state: str) -> str:
    does = "resume" if state == "paused" else "run" if state in ("stopped", "failed") else "status"
    return f"cdc {does} {CONNECTOR}"
