"""Suggests the name that somebody may have meant, for the hint of an error. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str], otherwise: str) -> str:
    """Return a hint with the known name that is nearest to an unknown one, or else `otherwise`."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean {near[0]}?" if near and near[0] != name else otherwise
