"""Finds the units of a view that cannot be computed: they alone are left out, and the others go on.

An error ends the transaction of the engine. So a step is taken again, from its beginning, with what is known of the
units by then: those that could not be computed together are halved, until single ones are left. What a step has found
out holds for this step alone, which gives the units the same numbers each time.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Final

import duckdb

MOST_TRIES: Final = 60
"""So often is a step taken again; what cannot be told apart by then stops the view."""

LONGEST_S: Final = 30.0
"""So long: the other views wait for the step."""

OF_ROWS: Final = (duckdb.ConversionException, duckdb.OutOfRangeException, duckdb.InvalidInputException)
"""What the engine raises for values, which may be those of a few units."""

Range = tuple[int, int]
"""Numbers of units, the last one not included."""


@dataclass(slots=True)
class Search:
    """What attempts of one step have found out, by view."""

    failed: dict[str, set[Range | None]] = field(default_factory=dict)
    """The units that could not be computed together; None: nobody has looked at units yet."""
    why: dict[str, str] = field(default_factory=dict)
    tries: int = 0
    begun: float = field(default_factory=time.monotonic)

    def is_worth_it(self, view: str, units: Range | None, why: str) -> bool:
        """Note what could not be computed, and why; return whether the step is to be taken again."""
        self.failed.setdefault(view, set()).add(units)
        self.why[view] = why
        self.tries += 1
        return self.tries <= MOST_TRIES and time.monotonic() - self.begun < LONGEST_S

    def divided(self, view: str, count: int) -> tuple[list[Range], list[int]]:
        """Divide so many units into ranges that may be computed, and single ones that cannot."""
        failed, good, bad = self.failed[view], list[Range](), list[int]()
        left = [(0, count)] if count else []
        while left:
            first, end = left.pop()
            if (first, end) not in failed:
                good.append((first, end))
            elif end - first == 1:
                bad.append(first)
            else:
                middle = (first + end) // 2
                left += [(middle, end), (first, middle)]
        return good, bad
