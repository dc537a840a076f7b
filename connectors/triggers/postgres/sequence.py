"""The sequence that numbers changes: its room in a commit position, and what is said where somebody has set it."""

from __future__ import annotations

from typing import Final

from cdc.model.errors import GapError
from connectors.triggers.change_tables import CLOSE_THE_GAP

ROOM: Final = 20
"""A commit position is a change's number with so many bits below it: see `rounds`."""
TOO_GREAT: Final = 1 << (62 - ROOM)
"""Numbers from here on have no commit position."""


def too_great(schema: str) -> GapError:
    """Return the error of a sequence that somebody has set."""
    return GapError(
        f"numbers too great: the sequence of {schema} gives numbers above {TOO_GREAT}: somebody has set it forward",
        hint=CLOSE_THE_GAP,
    )


def went_back(schema: str, number: int) -> GapError:
    """Return the error of a sequence that gives numbers again."""
    return GapError(
        f"numbers went back: change {number} of {schema} has a number that was given before: "
        "somebody has set the sequence back, and changes cannot be put in order",
        hint=CLOSE_THE_GAP,
    )
