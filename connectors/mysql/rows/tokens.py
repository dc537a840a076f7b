"""Reads the words of a statement as the server that ran it did: comments, quotes, names. Pure.

What closes a quote is up to the session's sql_mode, which the log tells with each statement:

| sql_mode | |
|---|---|
| ANSI_QUOTES | ``"…"`` is a name, in which a backslash is a character like others |
| NO_BACKSLASH_ESCAPES | a backslash is a character like others in every string |
| MSSQL (MariaDB) | ``[…]`` is a name too |

``/*! … */`` is for the server to read, and ``/*M! … */`` for MariaDB alone. One that a server has not read, because it
is of a newer version, is a plain comment by the time it is logged.

https://dev.mysql.com/doc/refman/8.4/en/lexical-structure.html
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeAlias

Name: TypeAlias = tuple[str, str]
"""Database and table."""

ANSI_QUOTES: Final = 1 << 2
MSSQL: Final = 1 << 10
"""MariaDB's; MySQL 8.0 and newer have nothing by this bit."""
NO_BACKSLASH_ESCAPES: Final = 1 << 20

_MOST_TOKENS: Final = 10_000
_WITH_ESCAPES: Final = r"""(?:[^{0}\\]|{0}{0}|\\.)*+)(?:{0}|\\?\Z)"""
_WITHOUT: Final = r"""(?:[^{0}]|{0}{0})*+)(?:{0}|\Z)"""
_TOKENS: Final = r"""
    (?P<space>[ \t\n\r\f\v\ufeff]+|\#[^\n]*|--(?=[\s]|\Z)[^\n]*|/\*(?!MARIADB!)(?:[^*]|\*(?!/))*+(?:\*/|\Z))
  | (?P<open>/\*MARIADB!\d*)
  | (?P<close>\*/)
  | `(?P<quoted>(?:[^`]|``)*+)(?:`|\Z)
  | "(?P<double>DOUBLE
  | '(?P<string>SINGLE
  BRACKETS
  | (?P<word>[0-9A-Za-z_$\u0080-\U0010ffff]+)
  | (?P<other>.)
    """
"""What is not closed goes on to the end: it is looked for once, not again from each character of it. Of characters
above ASCII none is a space: a name may have them without quotes."""
_BRACKETS: Final = r"| \[(?P<bracketed>(?:[^\]]|\]\])*+)(?:\]|\Z)"


@dataclass(frozen=True, slots=True)
class Token:
    """Is a word in capitals, a name as it is, or one character."""

    text: str
    quoted: bool = False

    def says(self, *words: str) -> bool:
        return not self.quoted and self.text.isascii() and self.text.upper() in words


@lru_cache(maxsize=16)
def _pattern(sql_mode: int, *, mariadb: bool) -> re.Pattern[str]:
    single = _WITHOUT if sql_mode & NO_BACKSLASH_ESCAPES else _WITH_ESCAPES
    double = _WITHOUT if sql_mode & ANSI_QUOTES else single
    text = _TOKENS.replace("MARIADB", "M?" if mariadb else "").replace("DOUBLE", double.format('"'))
    text = text.replace("SINGLE", single.format("'")).replace("BRACKETS", _BRACKETS if sql_mode & MSSQL else "")
    return re.compile(text, re.VERBOSE | re.DOTALL)


def tokens(statement: str, sql_mode: int = 0, *, mariadb: bool = False) -> list[Token]:
    """Return the words of a statement, without spaces and comments; of a very long one, the first of them."""
    found = []
    quotes = sql_mode & (ANSI_QUOTES | MSSQL | NO_BACKSLASH_ESCAPES)
    for match in _pattern(quotes, mariadb=mariadb).finditer(statement):
        kind = match.lastgroup
        if kind in ("space", "open", "close"):
            continue
        text = match[kind] if kind else ""
        if kind == "quoted":
            found.append(Token(text.replace("``", "`"), quoted=True))
        elif kind == "double":
            found.append(Token(text.replace('""', '"'), quoted=True))
        elif kind == "bracketed":
            found.append(Token(text.replace("]]", "]"), quoted=True))
        elif kind == "string":
            found.append(Token("'"))
        else:
            found.append(Token(text))
        if len(found) >= _MOST_TOKENS:
            break
    return found


def name(words: list[Token], at: int, database: str) -> tuple[Name, int]:
    """Read ``[database.]table`` beginning at `at`; return also where the next token is."""
    if at >= len(words):
        return (database, ""), at
    first = words[at].text
    if words[at] == Token(".") and at + 1 < len(words):  # MariaDB: of the session's database
        return (database, words[at + 1].text), at + 2
    if at + 2 < len(words) and words[at + 1] == Token("."):
        return (first, words[at + 2].text), at + 3
    return (database, first), at + 1


def after(words: list[Token], at: int, *said: str) -> int:
    """Skip the words `said`, if they stand at `at`."""
    there = [token.text.upper() for token in words[at : at + len(said)] if not token.quoted]
    return at + len(said) if there == list(said) else at
