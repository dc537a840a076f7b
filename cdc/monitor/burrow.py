"""Judges a consumer of a partition by its last commits, without a threshold. Pure.

The rules are Burrow's: https://github.com/linkedin/Burrow/wiki/Consumer-Lag-Evaluation-Rules. A window of commits is
looked at, each with the lag that it left:

1. Who has nothing unread is ok, whatever the window says.
2. Who has not committed for longer than the window spans has stopped, unless what is unread has come within that time.
3. Who was without lag within the window is ok: it keeps up, and is behind for a moment.
4. An offset that went back: rewound.
5. An offset that is committed again and again while there is lag: stalled.
6. An offset that goes on while the lag never gets less: slow.

Burrow judges one commit as it does ten, and so calls a consumer stopped that has just begun. Here one commit alone, or
none, tells nothing of a pace: the consumer is judged once what is unread is older than the longest window, and that
commit older than commits are apart there. Who begins to read an old topic has committed once, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Final

WINDOW: Final = 10
"""So many commits are looked at, as Burrow does by default."""
WINDOW_S: Final = 600
"""And none that is older: ten commits at an interval of a minute."""
_PACE: Final = 2
"""So many commits tell a pace."""


class Status(StrEnum):
    """How a consumer does, the worst last."""

    OK = "ok"
    UNKNOWN = "unknown"
    """There are not enough commits to tell, or they cannot be read."""
    SLOW = "slow"
    """It reads, and does not come nearer."""
    REWOUND = "rewound"
    """It went back to an earlier offset."""
    STALLED = "stalled"
    """It commits, and does not read."""
    STOPPED = "stopped"
    """It does not commit."""


_WORSE: Final = tuple(Status)


@dataclass(frozen=True, slots=True)
class Commit:
    """An offset that was committed."""

    at_ms: int
    offset: int
    lag: int
    """How many offsets with records were behind it then; 0: it had read everything."""


def judge(commits: Sequence[Commit], *, unread: int, unread_since_ms: int | None, now_ms: int) -> Status:
    """Judge a partition.

    `commits` are those within the window, oldest first. `unread` records are there, the oldest of which was written
    to Kafka at `unread_since_ms`.
    """
    if unread == 0:
        return Status.OK
    since_ms = now_ms if unread_since_ms is None else unread_since_ms
    window = commits[-WINDOW:]
    if len(window) < _PACE:
        silent_ms = now_ms - window[-1].at_ms if window else WINDOW_S * 1000
        late = now_ms - since_ms > WINDOW_S * 1000 and silent_ms > WINDOW_S * 1000 // WINDOW
        return Status.STOPPED if late else Status.UNKNOWN
    span_ms = window[-1].at_ms - window[0].at_ms
    if now_ms - window[-1].at_ms > span_ms and now_ms - since_ms > span_ms:
        return Status.STOPPED
    if any(commit.lag == 0 for commit in window):
        return Status.OK
    pairs = list(pairwise(window))
    if any(then.offset > now.offset for then, now in pairs):
        return Status.REWOUND
    if all(then.offset == now.offset for then, now in pairs):
        return Status.STALLED
    if all(then.lag <= now.lag for then, now in pairs):
        return Status.SLOW
    return Status.OK


def worst(statuses: Iterable[Status]) -> Status:
    """Return the worst of several; ok if there is none."""
    return max(statuses, key=_WORSE.index, default=Status.OK)
