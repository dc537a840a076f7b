"""The language of searches, and whether a text is found by one. Pure but for the words themselves.

    search  = all { "OR" all }
    all     = { [ "AND" ] one }             every one of them
    one     = [ "-" | "NOT" ] what          "-" stands before it without a space
    what    = word | '"' words '"' | "(" search ")"

Words between quotes are neighbours in one field, and so are those of a word such as ``e-mail``. What holds no letter
and no digit says nothing. A search must ask for something: one that only excludes would find almost everything.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from spark_apply.views.search.words import words

MOST_CHARACTERS: Final = 4_000
_DEEPEST: Final = 50
_PART: Final = re.compile(r'\s*(?:(?P<open>-?\()|(?P<close>\))|(?P<quoted>-?")|(?P<word>[^\s()"]+))')

Places = Mapping[str, Sequence[int]]


class BadSearchError(Exception):
    """A text is no search; the message says why, without the text."""


@dataclass(frozen=True, slots=True)
class Words:
    """Words that are neighbours; often one alone."""

    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Every:
    """All of these."""

    of: tuple[Search, ...]


@dataclass(frozen=True, slots=True)
class Some:
    """At least one of these."""

    of: tuple[Search, ...]


@dataclass(frozen=True, slots=True)
class Without:
    """Not this."""

    what: Search


Search = Words | Every | Some | Without


@dataclass(frozen=True, slots=True)
class Asked:
    """What a text searches for."""

    search: Search
    needs: frozenset[str]
    """Words of which a text must have one to be found."""


@lru_cache(maxsize=50_000)
def read_search(text: str) -> Asked | str | None:
    """Return what a text searches for: None where it says nothing, and a reason where it is no search."""
    try:
        if len(text) > MOST_CHARACTERS:
            raise BadSearchError(f"it has more than {MOST_CHARACTERS:,} characters")
        found = _Reader(text).read()
        if found is not None and not _asks(found):
            raise BadSearchError("it only excludes, or one of its alternatives does")
    except BadSearchError as exc:
        return str(exc)
    return Asked(found, needed(found)) if found is not None else None


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0

    def read(self) -> Search | None:
        found = self._some()
        if self._peek() is not None:
            raise BadSearchError("a parenthesis is closed that is not open")
        return found

    def _peek(self) -> re.Match[str] | None:
        return _PART.match(self._text, self._at)

    def _word(self) -> str | None:
        part = self._peek()
        return part["word"] if part is not None else None

    def _some(self) -> Search | None:
        found = [self._every()]
        while self._word() == "OR":
            self._take()
            found.append(self._every())
        return _joined(Some, found)

    def _every(self) -> Search | None:
        found, any_yet = [], False
        while (part := self._peek()) is not None and part["close"] is None and part["word"] != "OR":
            if part["word"] == "AND":
                if not any_yet:
                    raise BadSearchError("AND has nothing before it")
                self._take()
                if (after := self._peek()) is None or after["close"] is not None or after["word"] in ("OR", "AND"):
                    raise BadSearchError("AND has nothing behind it")
            found.append(self._one())
            any_yet = True
        if not any_yet and (self._at or part is not None):
            raise BadSearchError("something is missing beside OR or between parentheses")
        return _joined(Every, found)

    def _take(self) -> re.Match[str]:
        part = self._peek()
        if part is None:
            raise BadSearchError("NOT has nothing behind it")
        self._at = part.end()
        return part

    def _one(self) -> Search | None:
        part = self._take()
        if part["word"] == "NOT":
            after = self._peek()
            if after is None or after["close"] is not None or after["word"] in ("OR", "AND", "NOT"):
                raise BadSearchError("NOT has nothing behind it")
            return _without(self._one())
        if part["open"] is not None:
            found = self._between()
        elif part["quoted"] is not None:
            end = self._text.find('"', self._at)
            if end < 0:
                raise BadSearchError("a quote is not closed")
            found = _neighbours(self._text[self._at : end])
            self._at = end + 1
        else:
            found = _neighbours(part["word"])
        return _without(found) if part.group().lstrip().startswith("-") else found

    def _between(self) -> Search | None:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise BadSearchError(f"it has more than {_DEEPEST} parentheses in each other")
        found = self._some()
        part = self._peek()
        if part is None or part["close"] is None:
            raise BadSearchError("a parenthesis is not closed")
        self._at = part.end()
        self._depth -= 1
        return found


def _neighbours(text: str) -> Words | None:
    found = words(text)
    return Words(tuple(found)) if found else None


def _without(what: Search | None) -> Without | None:
    return Without(what) if what is not None else None


def _joined(kind: type[Every | Some], parts: Sequence[Search | None]) -> Search | None:
    found = tuple(part for part in parts if part is not None)
    return kind(found) if len(found) > 1 else found[0] if found else None


def _asks(search: Search) -> bool:
    """Whether only texts are found that hold a word of the search."""
    match search:
        case Words():
            return True
        case Every(of):
            return any(map(_asks, of))
        case Some(of):
            return all(map(_asks, of))
        case Without():
            return False


def needed(search: Search) -> frozenset[str]:
    """Return words of which a text must have one to be found: of those that there are, few and long ones."""
    match search:
        case Words(of):
            return frozenset({max(of, key=lambda word: (len(word), word))})
        case Some(parts):
            return frozenset[str]().union(*map(needed, parts))
        case Every(parts):
            return min(map(needed, filter(_asks, parts)), key=lambda of: (len(of), -min(map(len, of)), sorted(of)))
        case Without():
            raise BadSearchError("it only excludes")


def finds(search: Search, text: Places) -> bool:
    """Whether a text is found, by the places of its words."""
    match search:
        case Words((word,)):
            return word in text
        case Words(of):
            return _are_neighbours(of, text)
        case Every(parts):
            return all(finds(part, text) for part in parts)
        case Some(parts):
            return any(finds(part, text) for part in parts)
        case Without(what):
            return not finds(what, text)


def _are_neighbours(of: Sequence[str], text: Places) -> bool:
    if not all(word in text for word in of):
        return False
    begins = set(text[of[0]])
    for number, word in enumerate(of[1:], 1):
        begins &= {at - number for at in text[word]}
        if not begins:
            return False
    return True
