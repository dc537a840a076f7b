"""Computes the history of one key in plain Python: the oracle of `spark_apply.events.history` in tests.

The events of a key, in the order of their positions, fall into runs: one after the other with the same tracked values.
A run is an interval. Its row is that of its **last** event, so it has the newest untracked values; it begins at the
position of the first event. The other events of a run, and deletes, are rows too, but no intervals: a late event is
compared with them.

All of this is a function of the **set** of a key's events. So it makes no difference in which order they come, how
often, or in what batches.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Event:
    """A change of one key. Two events with the same position are one event that came twice."""

    position: str
    op: str
    """``d`` deletes, others write."""
    at: int
    """When it was committed."""
    tracked: Hashable
    untracked: Hashable = None

    def continues(self, before: Event) -> bool:
        """Whether it continues the interval of `before`, the event ahead of it."""
        return "d" not in (self.op, before.op) and self.tracked == before.tracked


@dataclass(frozen=True, slots=True)
class Interval:
    """The interval columns of an event's row; None and False for a row without an interval."""

    from_position: str | None = None
    to_position: str | None = None
    """None while it is open."""
    valid_from: int | None = None
    valid_to: int | None = None
    current: bool = False


def intervals(events: Iterable[Event]) -> dict[Event, Interval]:
    """Return the interval columns of each event of one key.

    Positions order the events, and times follow them: an event's time is at most that of the next one, whatever the
    clocks said. So the intervals of a key do not overlap, in positions nor in times.
    """
    ordered = sorted({event.position: event for event in events}.values(), key=lambda event: event.position)
    times = [min(later.at for later in ordered[number:]) for number in range(len(ordered))]
    found: dict[Event, Interval] = {}
    first = 0
    for number, (event, after) in enumerate(pairwise([*ordered, None])):
        if event is None:
            continue
        if number > 0 and not event.continues(ordered[number - 1]):
            first = number
        if event.op == "d" or (after is not None and after.continues(event)):
            found[event] = Interval()
        elif after is None:
            found[event] = Interval(ordered[first].position, None, times[first], None, current=True)
        else:
            found[event] = Interval(ordered[first].position, after.position, times[first], times[number + 1])
    return found
