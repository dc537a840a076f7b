"""Says which clock a step of views goes to: the source's, which only goes on, unless it has been wrong.

The time of the source comes from its server's clock, and is looked at again and again: a server's clock that was hours
or years ahead for a moment, or a session that claims such a time for its commits, is found out by a later position with
an earlier time. To stand still until the source has come there again would be to answer wrong for hours or years, as
each new row would be over its deadlines at once. So the clock goes back then, and all that depends on it is computed
again. A clock that was set back by less, as where another server has taken over, is waited for: what deadlines have
changed stays.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

MOST_AHEAD_MS: Final = 3_600_000
"""So far may the clock be ahead of the source's, and is waited for."""

_TOLD_MS: Final = 60_000
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


@dataclass(slots=True)
class ViewClock:
    """The clock of a view job."""

    tell: Callable[[str], None]
    _is_waiting: bool = False
    """Whether it was told that the clock stands still."""

    def next(self, source_ms: int | None, kept_ms: int | None, *, moved: bool) -> int | None:
        """Return the clock of a step, by the source's time at its position and the clock that is kept.

        `moved`: the position is a later one than any that was published, so its time was looked at later, too.
        """
        if source_ms is None or kept_ms is None or kept_ms - source_ms < _TOLD_MS:
            self._is_waiting = False
            return source_ms if kept_ms is None else max(kept_ms, source_ms or kept_ms)
        was, now = (_shown(at_ms) for at_ms in (kept_ms, source_ms))
        if moved and kept_ms - source_ms > MOST_AHEAD_MS:
            self.tell(
                f"warning: the source's clock is at {now} after it was at {was}: clock() goes back with it, and what "
                "deadlines had changed by then is computed again"
            )
            return source_ms
        if not self._is_waiting:
            self.tell(
                f"warning: the source's clock was set back from {was} to {now}: clock() stands still until it is there "
                "again, so no deadline passes"
            )
        self._is_waiting = True
        return kept_ms


def _shown(at_ms: int) -> str:
    try:
        return (_EPOCH + dt.timedelta(milliseconds=at_ms)).isoformat(timespec="seconds")
    except OverflowError:
        return f"{at_ms} ms"
