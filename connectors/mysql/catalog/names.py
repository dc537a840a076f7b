"""Compares names of databases and tables as the server does: by `lower_case_table_names`. Pure.

0: they are bytes. 1: the server keeps them in small letters. 2: it keeps them as they were given, and compares them in
small letters. What a small letter is, it knows from Unicode 3.0, letter by letter (utf8mb3_general_ci); a statement in
the log has a name as the session wrote it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final
from unicodedata import ucd_3_2_0

_LETTERS: Final = {"\u0130": "i"}
_AS_THEY_ARE: Final = frozenset(
    "\u0220\u03d8\u03f4\u048a\u04c5\u04c9\u04cd\u0500\u0502\u0504\u0506\u0508\u050a\u050c\u050e"
)
"""Capital letters newer than Unicode 3.0 whose small ones are not."""


@lru_cache(maxsize=4096)
def folded(name: str) -> str:
    """Return a name in the server's small letters."""
    return name.lower() if name.isascii() else "".join(map(_small, name))


def _small(letter: str) -> str:
    small = _LETTERS.get(letter) or letter.lower()
    known = letter not in _AS_THEY_ARE and "Cn" not in (ucd_3_2_0.category(letter), ucd_3_2_0.category(small[0]))
    return small if known and len(small) == 1 else letter


def as_compared(name: str, *, folds: bool) -> str:
    """Return what of a name the server compares. `folds`: lower_case_table_names is not 0."""
    return folded(name) if folds else name
