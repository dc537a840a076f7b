"""What a pattern gives, found by trying every way: the plain reading of docs/views.md, for tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from cdc.config.view_pattern import Element, PatternConfig

Row = Mapping[str, Any]
Satisfies = Callable[[str, Row], bool]


def matches(
    pattern: PatternConfig, rows: Sequence[Row], order: Sequence[str], satisfies: Satisfies, clock: datetime
) -> set[tuple[Any, ...]]:
    """Return the view's rows. `order` is the time column and the key's; a condition that is NULL is not satisfied."""
    found: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    units: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        if row[order[0]] is not None:
            units.setdefault(tuple(row[name] for name in pattern.by), []).append(row)
    for unit, of in units.items():
        of.sort(key=lambda row: tuple(row[name] for name in order))
        for times in _in_unit(pattern, of, order[0], satisfies, clock):
            key = (*unit, times[0])
            found[key] = min(times, found.get(key, times))
    return {(*key, *times[1:]) for key, times in found.items()}


def _in_unit(
    pattern: PatternConfig, rows: Sequence[Row], time: str, satisfies: Satisfies, clock: datetime
) -> Iterator[tuple[Any, ...]]:
    """Yield the times of the first way of each first row."""
    elements = pattern.elements
    wanted = [(element, copy) for element in elements for copy in range(element.count)]

    def follows(at: int, chosen: list[int]) -> bool:
        """Whether a row can be the next one."""
        element, copy = wanted[len(chosen)]
        if not satisfies(element.name, rows[at]):
            return False
        if not chosen or copy:
            return True
        before, previous = chosen[-1], wanted[len(chosen) - 1][0]
        if element.within_us is not None and rows[at][time] - rows[before][time] > _us(element.within_us):
            return False
        return not any(
            satisfies(none.name, rows[between])
            for none in previous.absences
            if none.for_us is None
            for between in range(before + 1, at)
        )

    def absent(element: Element, at: int) -> bool:
        """Whether what must not come within a time after a row has not, and cannot any more."""
        for none in element.absences:
            if none.for_us is None:
                continue
            until = rows[at][time] + _us(none.for_us)
            if clock <= until or any(row[time] <= until and satisfies(none.name, row) for row in rows[at + 1 :]):
                return False
        return True

    def ways(chosen: list[int]) -> Iterator[list[int]]:
        if len(chosen) == len(wanted):
            if pattern.within_us is None or rows[chosen[-1]][time] - rows[chosen[0]][time] <= _us(pattern.within_us):
                yield chosen
            return
        element, copy = wanted[len(chosen)]
        for at in range(chosen[-1] + 1, len(rows)):
            if follows(at, chosen) and (copy < element.count - 1 or absent(element, at)):
                yield from ways([*chosen, at])

    for first in range(len(rows)):
        element = wanted[0][0]
        if follows(first, []) and (element.count > 1 or absent(element, first)):
            way = next(ways([first]), None)
            if way is not None:
                shown = [at for at, (of, copy) in zip(way, wanted, strict=True) if copy in (0, of.count - 1)]
                yield tuple(rows[at][time] for at in shown)


def _us(us: int) -> timedelta:
    return timedelta(microseconds=us)
