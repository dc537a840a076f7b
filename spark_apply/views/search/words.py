"""Takes texts apart into words, as the `tantivy` store does: runs of letters and digits, in lower case."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from functools import cache
from typing import Final

import tantivy

_BETWEEN_FIELDS: Final = 2
"""Words of two fields are no neighbours."""


@cache
def analyzer() -> tantivy.TextAnalyzer:
    """Return what takes texts apart. Words of any length count, as a hash or a URL may be looked for."""
    return tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.simple()).filter(tantivy.Filter.lowercase()).build()


def normal(text: str) -> str:
    """Return a text with each letter and its accents as one character, where there is one."""
    return text if unicodedata.is_normalized("NFC", text) else unicodedata.normalize("NFC", text)


def words(text: str) -> list[str]:
    """Return the words of a text, in order."""
    found: list[str] = analyzer().analyze(normal(text))
    return found


def places(texts: Sequence[str | None]) -> dict[str, list[int]]:
    """Return by word the places where it stands in a row's texts; neighbours have places that follow each other."""
    found: dict[str, list[int]] = {}
    at = 0
    for text in texts:
        if text is None:
            continue
        for word in words(text):
            found.setdefault(word, []).append(at)
            at += 1
        at += _BETWEEN_FIELDS
    return found
