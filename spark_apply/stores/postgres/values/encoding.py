"""Asks a database which letters it has a place for. On a given cursor, in an open transaction; nothing commits.

Its server alone knows: of the encodings of East Asia no two programs have the same table, and to Python some are none.
A letter is asked about once in a store's life, and letters of a text together; those without a place are found by
halves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import psycopg2.errors

from spark_apply.stores.postgres.session.server import Cursor

_ASCII: Final = bytes(range(128))


@dataclass(slots=True)
class Letters:
    """What is known of the letters that a database has."""

    _had: set[str] = field(default_factory=set)
    _missing: set[str] = field(default_factory=set)

    def missing(self, cur: Cursor, text: bytes) -> set[str]:
        """Return the letters of a text, which is UTF-8, that the database does not have."""
        if text.isascii() or cur.connection.get_parameter_status("server_encoding") in ("UTF8", "SQL_ASCII"):
            return set()
        letters = set(text.translate(None, _ASCII).decode())
        self._find(cur, sorted(letters - self._had - self._missing))
        return letters & self._missing

    def _find(self, cur: Cursor, letters: Sequence[str]) -> None:
        """Ask about letters."""
        middle = len(letters) // 2
        if not letters or _takes(cur, "".join(letters).encode()):
            self._had.update(letters)
        elif middle:
            self._find(cur, letters[:middle])
            self._find(cur, letters[middle:])
        else:
            self._missing.update(letters)


def _takes(cur: Cursor, text: bytes) -> bool:
    cur.execute("SAVEPOINT cdc_letters")
    try:
        cur.execute(
            "SELECT pg_catalog.length(pg_catalog.convert(%s, 'UTF8', pg_catalog.getdatabaseencoding()))", (text,)
        )
    except psycopg2.errors.UntranslatableCharacter:
        cur.execute("ROLLBACK TO SAVEPOINT cdc_letters; RELEASE SAVEPOINT cdc_letters")
        return False
    cur.execute("RELEASE SAVEPOINT cdc_letters")
    return True
