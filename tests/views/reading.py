"""What streams and histories of views are, by plain rules, event by event: the oracle of tests."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cdc.model.change import Kind
from spark_apply.views.model.uses import TableUse, Way

COLUMNS = [("id", Kind("int64")), ("at", Kind("timestamp_micros")), ("v", Kind("int64")), ("there", Kind("int64"))]
START = dt.datetime(2026, 1, 1)  # noqa: DTZ001 - in UTC, as the state has it
EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - the same
KEEP = 10
STREAM = TableUse("public.s", Way.STREAM, "at", KEEP * 60_000, arrival=True)
HISTORY = TableUse("public.s", Way.HISTORY, at="event")


@dataclass(frozen=True)
class Event:
    """A change; minutes since the start for times."""

    op: str
    key: int
    time: int | None
    value: int
    committed: int


def committed(events: Sequence[Event]) -> list[int]:
    found, now = [], 0
    for number, event in enumerate(events):
        now += 8 * event.committed
        found.append(now - (5 if number % 3 == 2 else 0))  # clocks of servers are not that good
    return found


def position(number: int) -> str:
    return f"{number:08d}"


def positions(events: Sequence[Event]) -> list[str]:
    """The positions of events: what one chunk of a snapshot has read, and found deleted, has one, as in topics."""
    found: list[str] = []
    chunk: set[int] = set()
    for number, event in enumerate(events):
        one = event.op in "rd" and bool(chunk) and event.key not in chunk
        found.append(found[-1] if one else position(number))
        chunk = {*(chunk if one else ()), event.key} if event.op in "rd" else set()
    return found


def instant(minutes: int) -> dt.datetime:
    return START + dt.timedelta(minutes=minutes)


def streamed(events: Sequence[Event]) -> set[Any]:
    """The rows of a stream, by the plain rule, event by event."""
    rows: dict[int, tuple[Event, str]] = {}
    for event, at, place in zip(events, committed(events), positions(events), strict=True):
        begin = at - KEEP
        was = rows.get(event.key)
        over = was is not None and was[0].time is not None and was[0].time <= begin
        late = event.op != "r" and (over or (event.op != "d" and event.time is not None and event.time <= begin))
        if late:
            continue
        if event.op == "d":
            rows.pop(event.key, None)
        else:
            rows[event.key] = (event, place)
    return {
        (key, None if event.time is None else instant(event.time), event.value, 0, at)
        for key, (event, at) in rows.items()
    }


def versions(events: Sequence[Event]) -> set[Any]:
    """The versions of a history, by the plain rule, event by event."""
    found: set[Any] = set()
    for key in {event.key for event in events}:
        open_since: tuple[str, dt.datetime | None, tuple[Any, ...]] | None = None
        seen, least = False, None
        for event, at, place in zip(events, committed(events), positions(events), strict=True):
            if event.key != key:
                continue
            row = (key, None if event.time is None else instant(event.time), event.value, 0)
            if (event.op == "d") if open_since is None else (event.op != "d" and open_since[2] == row):
                continue
            always = not seen and event.op == "r"
            seen = True
            if not always:
                least = max(instant(at), least) if least is not None else instant(at)
            if open_since is not None:
                found.add((*open_since[2], open_since[0], place, open_since[1], least))
            since = ("", None) if always else (place, least)
            open_since = None if event.op == "d" else (*since, row)
        if open_since is not None:
            found.add((*open_since[2], open_since[0], None, open_since[1], None))
    return found
