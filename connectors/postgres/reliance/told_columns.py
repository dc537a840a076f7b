"""Tells whether rows of the log were told by the columns that the catalog has by now.

A column that is renamed and gets its name back between two looks at the catalog is as it was at both; so is one whose
type is changed and changed back without a rewrite. The rows that came meanwhile were told under the other name, or
printed in the other way. The log says which names and types they had, in the order of attnums, and no attnum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet


def are_of(told: Sequence[tuple[str, str]], then: AbstractSet[int], now: Mapping[int, tuple[str, str]]) -> bool:
    """Tell whether columns of the log, by name and how they are printed, may be those that are there `now`, by attnum.

    `then` has the attnums that there were at the last look before. Columns of both were there all the time; one that
    was added since may not have been there yet; one that is gone since may have been, under any name.
    """
    ends = {0}
    """How many of `told` may be explained by the columns so far."""
    last = max(then, default=0)
    for number in range(1, max((*now, last), default=0) + 1):
        if number in now:
            after = {end + 1 for end in ends if end < len(told) and told[end] == now[number]}
            ends = after | ({len(told)} & ends if number not in then else set())
        elif number in then or number > last:
            ends |= {end + 1 for end in ends if end < len(told)}
    return bool(ends)
