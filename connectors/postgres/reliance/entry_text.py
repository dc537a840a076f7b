"""Writes the parts of a position record's entry as text, and reads them: see `ledger`."""

from __future__ import annotations

import hashlib
from base64 import urlsafe_b64encode
from typing import Final

_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
_WIDTH: Final = 7
_NONE, _NOTHING = ".", "-"
UNKNOWN: Final = ("....", "....", "....")
"""What is known of a partition that only the log has told of."""
_WHOLE: Final = _WIDTH + sum(map(len, UNKNOWN))
PARTS_AT: Final = 6
"""Which part of an entry has the partitions."""


def number(oid: int) -> str:
    """Write an oid in as many characters as the greatest needs."""
    text = ""
    while oid:
        oid, digit = divmod(oid, 36)
        text = _DIGITS[digit] + text
    return text.rjust(_WIDTH, "0")


def hashed(text: str, characters: int) -> str:
    """Return that many characters of a hash, each of six bits, none of them a point."""
    return urlsafe_b64encode(hashlib.md5(text.encode(), usedforsecurity=False).digest())[:characters].decode()


def part(oid: int) -> str:
    """Write a partition of which no more is known."""
    return number(oid) + "".join(UNKNOWN)


def parts(text: str) -> dict[int, tuple[str, str, str]]:
    """Read partitions: by oid, hashes of when each was attached, of its file, of its TOAST table."""
    if text == _NOTHING:
        return {}
    each = (text[at : at + _WHOLE] for at in range(0, len(text), _WHOLE))
    return {int(one[:_WIDTH], 36): (one[7:11], one[11:15], one[15:19]) for one in each}


def known(entry: str) -> frozenset[int]:
    """Return the partitions of which a whole entry has more than that they are there."""
    of = entry.split(" ")
    return (
        frozenset(oid for oid, has in parts(of[PARTS_AT]).items() if has != UNKNOWN)
        if len(of) > PARTS_AT
        else frozenset()
    )


def columns(text: str) -> dict[int, tuple[str, str]]:
    """Read columns, by attnum: hashes of the name, and of how values are printed."""
    found: dict[int, tuple[str, str]] = {}
    number = at = 0
    while at < len(text) and text != _NOTHING:
        number += 1
        if text[at] == _NONE:
            at += 1
            continue
        found[number] = (text[at : at + 4], text[at + 4 : at + 7])
        at += 7
    return found
