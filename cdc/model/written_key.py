"""A key as a person writes it, compared with one as a record has it. Pure.

Numbers keep the digits that they are written with: a decimal's key is a text in events, and ``1.10`` is another row
than ``1.1``. What is searched for and not found must not pass for gone because it was read as another number.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

_AS_NUMBERS: Final = range(-(1 << 63), 1 << 64)
"""The whole numbers that JSON of events has as numbers."""


def read_written(text: str) -> Any:  # noqa: ANN401 - JSON
    """Read JSON; return None for what is none. A number of a fraction, or of more than 64 bits, is its digits."""
    try:
        return json.loads(text, parse_int=_whole, parse_float=str, parse_constant=str)
    except ValueError:
        return None


def _whole(digits: str) -> int | str:
    return number if (number := int(digits)) in _AS_NUMBERS else digits


def is_same(known: Mapping[str, Any], written: Mapping[str, Any]) -> bool:
    """Tell whether a record's key is the one that was written."""
    return known.keys() == written.keys() and all(is_value(value, written[name]) for name, value in known.items())


def is_value(known: Any, written: Any) -> bool:  # noqa: ANN401 - JSON
    """Tell whether a value of a record's key is the one that was written; a number of either may be its digits."""
    if isinstance(known, float) and isinstance(written, str):
        try:
            return float(written) == known
        except ValueError:
            return False
    if isinstance(known, list) and isinstance(written, list):
        return len(known) == len(written) and all(map(is_value, known, written))
    if known is None or written is None or isinstance(known, bool) or isinstance(written, bool):
        return known is written
    return known == written or str(known) == str(written)
