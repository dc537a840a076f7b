"""Tells whether rows of the log were told by the columns that the catalog has by now.

A column that is renamed and gets its name back between two looks at the catalog is as it was at both; so is one whose
type is changed and changed back without a rewrite. The rows that came meanwhile were told under the other name, or
printed in the other way. The log says which names and types they had, in the order of attnums, and no attnum.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

Told = tuple[str, str | None]
"""A column's name, and how its values are printed; None: its type was dropped, and nobody knows any more."""


def are_of(told: Sequence[Told], gone: Mapping[int, str | None], now: Mapping[int, tuple[str, str]]) -> bool:
    """Tell whether columns of the log may be those that are there `now`, by attnum.

    What the log tells may be older than any look at the catalog: the last ones may not have been there yet. `gone` has
    the attnums that may have been there and are not now, each with the name that it had at a look; None: it was there
    at none. So may all be behind the last.
    """

    def fits(at: int, number: int) -> bool:
        (was, how), (name, printed) = told[at], now[number]
        return was == name and how in (None, printed)

    return _are_explained([name for name, _ in told], gone, now, fits)


def keep_hidden(
    told: Sequence[str], gone: Mapping[int, str | None], now: Mapping[int, str], hidden: Collection[str]
) -> bool:
    """Tell whether what has a name of `hidden` now may have had one in the log, too; the others, any name.

    Where it may not, a column that must not be published has stood under the name of another.
    """

    def fits(at: int, number: int) -> bool:
        return now[number] not in hidden or told[at] in hidden

    return _are_explained(told, gone, now, fits)


def _are_explained(
    told: Sequence[str], gone: Mapping[int, str | None], now: Collection[int], fits: Callable[[int, int], bool]
) -> bool:
    """Tell whether each column that was told may have had an attnum; `fits` is asked for one told and one there now."""
    ends = {0}
    """How many of `told` may be explained by the columns so far."""
    for number in range(1, max((*now, *gone), default=0) + 1):
        left = {end for end in ends if end < len(told)}
        if number in now:
            ends = {end + 1 for end in left if fits(end, number)} | (ends - left)
        elif number in gone:
            ends |= {end + 1 for end in left if gone[number] in (None, told[end])}
    return bool(ends)
