"""Tells whether rows of the log were told by the columns that the catalog has by now.

A column that is renamed and gets its name back between two looks at the catalog is as it was at both; so is one whose
type is changed and changed back without a rewrite. The rows that came meanwhile were told under the other name, or
printed in the other way. The log says which names and types they had, in the order of attnums, and no attnum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet


def are_of(told: Sequence[tuple[str, str]], gone: AbstractSet[int], now: Mapping[int, tuple[str, str]]) -> bool:
    """Tell whether columns of the log, by name and how they are printed, may be those that are there `now`, by attnum.

    What the log tells may be older than any look at the catalog: the last ones may not have been there yet. `gone` has
    the attnums that may have been there, under any name, and are not now; so may all behind the last.
    """
    ends = {0}
    """How many of `told` may be explained by the columns so far."""
    for number in range(1, max((*now, *gone), default=0) + 1):
        if number in now:
            matched = {end + 1 for end in ends if end < len(told) and told[end] == now[number]}
            ends = matched | ({len(told)} & ends)
        elif number in gone:
            ends |= {end + 1 for end in ends if end < len(told)}
    return bool(ends)
