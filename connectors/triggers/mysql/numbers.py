"""Holds many numbers that are mostly neighbours: as ranges. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from heapq import nlargest
from typing import Final

_LEAST: Final = 0
MOST: Final = (1 << 64) - 1


class Numbers:
    """A set of numbers below 2**64. It is never changed."""

    __slots__ = ("_firsts", "_lasts", "count")

    def __init__(self, numbers: Iterable[int] = ()) -> None:
        """`numbers` rise."""
        firsts, lasts, count = list[int](), list[int](), 0
        for number in numbers:
            count += 1
            if lasts and number == lasts[-1] + 1:
                lasts[-1] = number
            else:
                firsts.append(number)
                lasts.append(number)
        self._firsts, self._lasts, self.count = firsts, lasts, count

    @classmethod
    def _of(cls, ranges: Iterable[tuple[int, int]]) -> Numbers:
        found = cls()
        for first, last in ranges:
            found.count += last - first + 1
            if found._lasts and first == found._lasts[-1] + 1:
                found._lasts[-1] = last
            else:
                found._firsts.append(first)
                found._lasts.append(last)
        return found

    @classmethod
    def union(cls, many: Iterable[Numbers]) -> Numbers:
        """Return all numbers of sets that have none in common."""
        return cls._of(sorted(pair for one in many for pair in one.ranges()))

    @classmethod
    def parse(cls, text: str) -> Numbers:
        """Read what `text` wrote."""
        ranges, behind = [], 0
        for part in text.split(",") if text else ():
            gap, _, more = part.partition("+")
            first = behind + int(gap)
            behind = first + int(more or 0)
            ranges.append((first, behind))
        return cls._of(ranges)

    @property
    def text(self) -> str:
        """Write each range as its distance from the one before, and how many numbers follow its first."""
        parts, behind = [], 0
        for first, last in self.ranges():
            parts.append(f"{first - behind}+{last - first}" if last > first else str(first - behind))
            behind = last
        return ",".join(parts)

    def ranges(self) -> Iterator[tuple[int, int]]:
        return zip(self._firsts, self._lasts, strict=True)

    def __len__(self) -> int:
        """Return the number of ranges."""
        return len(self._firsts)

    def __contains__(self, number: int) -> bool:
        at = bisect_right(self._firsts, number) - 1
        return at >= 0 and number <= self._lasts[at]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Numbers) and list(self.ranges()) == list(other.ranges())

    __hash__ = None  # type: ignore[assignment] # nobody keeps them in sets

    def ranges_from(self, number: int) -> Iterator[tuple[int, int]]:
        """Give the ranges that end at a number or behind it."""
        at = bisect_left(self._lasts, number)
        return zip(self._firsts[at:], self._lasts[at:], strict=True)

    def above(self, number: int) -> Numbers:
        """Return those that are greater than a number."""
        return self._of((max(first, number + 1), last) for first, last in self.ranges_from(number + 1))

    @property
    def last(self) -> int:
        """Return the greatest; 0 where there is none."""
        return self._lasts[-1] if self._lasts else 0

    def gaps(self, most: int) -> list[tuple[int, int]]:
        """Return the ranges between, below and above; of more than `most`, they hold the shortest ranges, too."""
        left_out = list(self.ranges())
        if len(left_out) >= most:
            left_out = sorted(nlargest(most - 1, left_out, key=lambda of: of[1] - of[0]))
        firsts = [_LEAST, *(last + 1 for _, last in left_out)]
        return list(zip(firsts, [*(first - 1 for first, _ in left_out), MOST], strict=True))
