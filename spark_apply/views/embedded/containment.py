"""Finds the units of a view that cannot be computed: they alone are left out, and the others go on.

Units that could not be computed together are halved, until single ones are left. What a step has found out holds for
this step alone, which gives the units the same numbers each time, those that are in quarantine the first ones: they
are tried by themselves at once, as one that stays wrong is the rule.

An error ends a transaction of the embedded engine: there the step is taken again, from its beginning, with what is
known of the units by then. An error of Spark ends nothing, and one of PostgreSQL only what came behind a savepoint: so
the same search goes on where it is. Of a view without units the whole is one: it is left out as soon as it fails.
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

WHOLE: Final = "[]"
"""The name of the unit of a view that has none, as the quarantine has it."""

WHY: Final = (
    "a value cannot be converted, is beyond its type, or is none that a function takes (a division by zero); try_cast "
    "and try_divide give NULL then, as nullif and CASE can, and a wider type (DECIMAL, DOUBLE) holds more"
)
"""Why units cannot be computed, whichever engine says so: no value is named, and the engines divide what can be wrong
with one in different ways."""

OF_ROWS: Final = (duckdb.ConversionException, duckdb.OutOfRangeException, duckdb.InvalidInputException)
"""What the engine raises for values, which may be those of a few units."""

Range = tuple[int, int]
"""Numbers of units, the last one not included."""


@dataclass(slots=True)
class Search:
    """What attempts of one step have found out, by view."""

    failed: dict[str, set[Range | None]] = field(default_factory=dict)
    """The units that could not be computed together; None: nobody has looked at units yet."""
    tries: int = 0
    longest_s: float = field(default_factory=lambda: LONGEST_S)
    begun: float | None = None
    """When the first of it failed: how long the step had taken by then does not count."""

    def is_worth_it(self, view: str, units: Range | None) -> bool:
        """Note what could not be computed; return whether to go on looking."""
        self.failed.setdefault(view, set()).add(units)
        self.tries += 1
        now = time.monotonic()
        self.begun = now if self.begun is None else self.begun
        return self.tries <= MOST_TRIES and now - self.begun < self.longest_s

    def divided(self, view: str, count: int, held: int = 0) -> tuple[list[Range], list[int]]:
        """Divide so many units, of which the first are in quarantine, into ranges to compute and single bad ones."""
        failed, good, bad = self.failed[view], list[Range](), list[int]()
        left = [units for units in ((held, count), (0, held)) if units[0] < units[1]]
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
