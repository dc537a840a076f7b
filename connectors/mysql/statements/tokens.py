"""Reads the words of a statement as the server that ran it did: comments, quotes, names. Pure.

What closes a quote is up to the session's sql_mode, which the log tells with each statement:

| sql_mode | |
|---|---|
| ANSI_QUOTES | ``"…"`` is a name, in which a backslash is a character like others |
| NO_BACKSLASH_ESCAPES | a backslash is a character like others in every string |
| MSSQL (MariaDB) | ``[…]`` is a name too |

``/*! … */`` is for the server to read, and ``/*M! … */`` for MariaDB alone; with a number, for servers that are so new.

https://dev.mysql.com/doc/refman/8.4/en/lexical-structure.html
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeAlias

Name: TypeAlias = tuple[str, str]
"""Database and table."""

ANSI_QUOTES: Final = 1 << 2
MSSQL: Final = 1 << 10
"""MariaDB's; MySQL 8.0 and newer have nothing by this bit."""
NO_BACKSLASH_ESCAPES: Final = 1 << 20

MOST_TOKENS: Final = 10_000
"""No more of a statement is read, if it is about rows: DDL may name as many tables as it likes."""
_READ_WHOLE: Final = ("ALTER", "CREATE", "DROP", "RENAME", "SET")
_WITH_ESCAPES: Final = r"""(?:[^{0}\\]|{0}{0}|\\.)*+)(?:{0}|\\?\Z)"""
_WITHOUT: Final = r"""(?:[^{0}]|{0}{0})*+)(?:{0}|\Z)"""
_TOKENS: Final = r"""
    (?P<space>[ \t\n\r\f\v\ufeff]+|\#[^\n]*|--(?=[\s]|\Z)[^\n]*|/\*(?![!M])(?:[^*]|\*(?!/))*+(?:\*/|\Z))
  | (?P<open>/\*M?!(?:\d{5,6})?)  # what follows is for the servers to read that are so new
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
def _pattern(sql_mode: int) -> re.Pattern[str]:
    single = _WITHOUT if sql_mode & NO_BACKSLASH_ESCAPES else _WITH_ESCAPES
    double = _WITHOUT if sql_mode & ANSI_QUOTES else single
    text = _TOKENS.replace("DOUBLE", double.format('"')).replace("SINGLE", single.format("'"))
    return re.compile(text.replace("BRACKETS", _BRACKETS if sql_mode & MSSQL else ""), re.VERBOSE | re.DOTALL)


def tokens(statement: str, server: str = "", sql_mode: int = 0) -> list[Token]:
    """Read a statement as a server of this version does, or any if it is not told; of rows `MOST_TOKENS`."""
    found: list[Token] = []
    end = 0
    for match in _pattern(sql_mode & (ANSI_QUOTES | MSSQL | NO_BACKSLASH_ESCAPES)).finditer(statement):
        kind = match.lastgroup
        if match.start() < end:
            continue  # in a comment for other servers
        if kind in ("space", "open", "close"):
            if kind == "open" and server and not _is_read(match["open"], server):
                closes = statement.find("*/", match.end())
                end = len(statement) if closes < 0 else closes + 2
            continue
        text = match[kind] if kind else ""
        if kind in _DOUBLED:
            found.append(Token(text.replace(_DOUBLED[kind] * 2, _DOUBLED[kind]), quoted=True))
        elif kind == "string":
            found.append(Token("'"))
        else:
            found.append(Token(text))
        if len(found) >= MOST_TOKENS and not found[0].says(*_READ_WHOLE):
            break
    return found


_DOUBLED: Final[dict[str | None, str]] = {"quoted": "`", "double": '"', "bracketed": "]"}
"""What ends a name, and stands in it twice."""


def _is_read(comment: str, server: str) -> bool:
    """Tell whether a server reads what such a comment holds: MySQL none of MariaDB's, MariaDB not all of MySQL's."""
    digits = comment.lstrip("/*M!")
    mariadb = "mariadb" in server.lower()
    if comment.startswith("/*M") and not mariadb:
        return False
    if not digits:
        return True
    version = [int(part) for part in re.findall(r"\d+", server.replace("5.5.5-", "", 1))[:3]]
    number = sum(part * scale for part, scale in zip(version, (10_000, 100, 1), strict=False))
    of_mysql = mariadb and comment.startswith("/*!") and int(digits) in _NEWER_MYSQL
    return int(digits) <= number and not of_mysql


_NEWER_MYSQL: Final = range(50_700, 100_000)
"""Versions of MySQL that MariaDB does not claim to be."""


def name(words: Sequence[Token], at: int, database: str) -> tuple[Name, int]:
    """Read ``[database.]table`` beginning at `at`; return also where the next token is."""
    if at >= len(words):
        return (database, ""), at
    first = words[at].text
    if words[at] == Token(".") and at + 1 < len(words):  # MariaDB: of the session's database
        return (database, words[at + 1].text), at + 2
    if at + 2 < len(words) and words[at + 1] == Token("."):
        return (first, words[at + 2].text), at + 3
    return (database, first), at + 1


def after(words: Sequence[Token], at: int, *said: str) -> int:
    """Skip the words `said`, if they stand at `at`."""
    there = [token.text.upper() for token in words[at : at + len(said)] if not token.quoted]
    return at + len(said) if there == list(said) else at
