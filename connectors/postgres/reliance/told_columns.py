"""Tells whether rows of the log were told by the columns that the catalog has by now.

A column that is renamed and gets its name back between two looks at the catalog is as it was at both; so is one whose
type is changed and changed back without a rewrite. The rows that came meanwhile were told under the other name, or
printed in the other way. The log says which names and types they had, in the order of attnums, and no attnum.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

Told = tuple[str, str | None]
"""A column's name, and how its values are printed; None: its type was dropped, and nobody knows any more."""


def are_of(told: Sequence[Told], gone: Mapping[int, str | None], now: Mapping[int, tuple[str, str]]) -> bool:
    """Tell whether columns of the log may be those that are there `now`, by attnum.

    What the log tells may be older than any look at the catalog: the last ones may not have been there yet. `gone` has
    the attnums that may have been there and are not now, each with the name that it had at a look; None: it was there
    at none. So may all be behind the last.
    """
    ends = {0}
    """How many of `told` may be explained by the columns so far."""
    for number in range(1, max((*now, *gone), default=0) + 1):
        left = {end for end in ends if end < len(told)}
        if number in now:
            name, printed = now[number]
            found = {end + 1 for end in left if told[end][0] == name and told[end][1] in (None, printed)}
            ends = found | (ends - left)
        elif number in gone:
            ends |= {end + 1 for end in left if gone[number] in (None, told[end][0])}
    return bool(ends)


def keep_hidden(
    told: Sequence[str], gone: Mapping[int, str | None], now: Mapping[int, str], hidden: Collection[str]
) -> bool:
    """Tell whether what has a name of `hidden` now may have had one in the log, too; the others, any name.

    Where it may not, a column that must not be published has stood under the name of another.
    """
    ends = {0}
    for number in range(1, max((*now, *gone), default=0) + 1):
        left = {end for end in ends if end < len(told)}
        if number in now:
            found = {end + 1 for end in left if now[number] not in hidden or told[end] in hidden}
            ends = found | (ends - left)
        elif number in gone:
            ends |= {end + 1 for end in left if gone[number] in (None, told[end])}
    return bool(ends)
