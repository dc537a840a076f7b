"""Finds the records of one key: by meaning, so that neither spaces nor the order of members matter. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from decimal import Decimal
from typing import Any, Final

import orjson

from cdc.model.errors import ConfigError
from cdc.model.written_key import is_same, is_value, read_written


class WantedKey:
    """A key as a person writes it: JSON of all columns, or the value of the only one."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._given = _read(text)
        if self._given in (None, "", {}, []) or isinstance(self._given, list):
            raise ConfigError("--key: no key", hint="""--key '{"id": 5}', or of a single column just --key 5""")

    def must_be_of(self, table: str, known: Collection[Sequence[str]]) -> None:
        """Refuse a key of other columns than the table has or had in its key: no record could ever be of it.

        `known` are the table's keys, newest last. A search that cannot find must not end with the word that nothing
        is there.
        """
        names = set(self._given) if isinstance(self._given, dict) else None
        if not known or any(names == set(key) if names is not None else len(key) == 1 for key in known):
            return
        newest = list(known)[-1]
        example = json.dumps(dict.fromkeys(newest, "…"), ensure_ascii=False)
        raise ConfigError(f"--key: table {table} has the key {', '.join(newest)}", hint=f"--key '{example}'")

    def is_key(self, recorded: bytes | None) -> bool:
        """Tell whether a record's key is this one; a key that is no JSON object is not."""
        try:
            known = orjson.loads(recorded or b"")
        except orjson.JSONDecodeError:
            return False
        return isinstance(known, dict) and self.is_object(known)

    def is_object(self, known: dict[str, Any]) -> bool:
        """Tell whether an object of key columns is this key."""
        if isinstance(self._given, dict):
            return is_same(known, self._given)
        return len(known) == 1 and any(is_value(value, self._given) or value == self._text for value in known.values())

    def is_like(self, recorded: bytes) -> bool:
        """Tell whether a record's key may be meant: 1.50 by 1.5, or what differs in case or in spaces around it."""
        try:
            known = orjson.loads(recorded)
        except orjson.JSONDecodeError:
            return False
        if not isinstance(known, dict):
            return False
        given = self._given if isinstance(self._given, dict) else dict.fromkeys(known, self._text)
        return known.keys() == given.keys() and all(_alike(known[name], given[name]) for name in known)

    def is_texts(self, parts: list[Any]) -> bool:
        """Tell whether a key's parts, as a source prints them, are this key."""
        given = list(self._given.values()) if isinstance(self._given, dict) else [self._text]
        return parts in (given, [str(value) for value in given])


def _alike(known: Any, given: Any) -> bool:  # noqa: ANN401 - JSON
    """Tell whether one is a spelling of the other; of a number 007 and +7 are, too."""
    text = str(given).strip()
    if isinstance(known, int | float) and not isinstance(known, bool) and _DIGITS(text):
        return Decimal(str(known)) == Decimal(text)
    return _loose(known) == _loose(given)


def _loose(value: Any) -> Decimal | str:  # noqa: ANN401 - JSON
    """Return what spellings of one value have in common."""
    text = str(value).strip().casefold()
    return Decimal(text) if _NUMBER(text) else text  # 007 is no number


_NUMBER: Final = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?(e[+-]?[0-9]{1,3})?").fullmatch

_DIGITS: Final = re.compile(r"[+-]?[0-9]{1,400}(\.[0-9]*)?(e[+-]?[0-9]{1,3})?", re.IGNORECASE | re.ASCII).fullmatch


def _read(text: str) -> Any:  # noqa: ANN401 - JSON
    """Read JSON, or else a text."""
    found = read_written(text)
    return text if found is None and text != "null" else found


def values_of(text: str, table: str, columns: Sequence[str]) -> list[Any]:
    """Read who is meant by `--subject`: JSON of the columns that say so, or the value of the only one as it is.

    Raises ConfigError for one of other columns.
    """
    given = _read(text)
    if isinstance(given, dict) and set(given) == set(columns) and None not in given.values():
        return [given[name] for name in columns]
    if text and len(columns) == 1 and not isinstance(given, dict | list):
        return [given if isinstance(given, str) else text.strip()]
    example = json.dumps(dict.fromkeys(columns, "…"), ensure_ascii=False)
    raise ConfigError(
        f"--subject: who a row of {table} is about is said by {', '.join(columns)}", hint=f"--subject '{example}'"
    )
