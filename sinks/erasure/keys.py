"""Finds the records of one key: by meaning, so that neither spaces nor the order of members matter. Pure."""

from __future__ import annotations

import binascii
import datetime as dt
import json
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final, NamedTuple, TypeAlias

import orjson

from cdc.model.errors import ConfigError
from cdc.model.written_key import is_same, is_value, read_written

Columns: TypeAlias = Mapping[str, Mapping[str, Any]]
"""The columns of a table's key by name, in order, as the schema topic has them."""


class WantedKey:
    """A key as a person writes it: JSON of all columns, or the value of the only one."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._given = _read(text)
        if self._given in (None, "", {}, []) or isinstance(self._given, list):
            raise ConfigError("--key: no key", hint="""--key '{"id": 5}', or of a single column just --key 5""")

    def must_be_of(self, table: str, known: Sequence[Columns], shown_by: str) -> None:
        """Refuse a key that no record could ever be of: one of other columns, or of values in another form.

        `known` are the table's keys, newest last; `shown_by` is a command that shows how the topic has them. A search
        that cannot find must not end with the word that nothing is there.
        """
        names = set(self._given) if isinstance(self._given, dict) else None
        fitting = [key for key in known if (names == set(key) if names is not None else len(key) == 1)]
        if known and not fitting:
            example = json.dumps(dict.fromkeys(known[-1], "…"), ensure_ascii=False)
            raise ConfigError(f"--key: table {table} has the key {', '.join(known[-1])}", hint=f"--key '{example}'")
        misfits = [self._misfit(key) for key in fitting]
        if fitting and all(misfits):
            name, form = next(of for of in reversed(misfits) if of is not None)
            raise ConfigError(
                f"--key: column {name} of table {table} is {form} in events, and no record could be of this key",
                hint=f"as {shown_by} shows it",
            )

    def _misfit(self, key: Columns) -> tuple[str, str] | None:
        """Name a column whose value has another form than events have it in, and that form."""
        for name, column in key.items():
            form = form_of(column)
            if form is not None and not any(map(form.fits, self._spelled(name))):
                return name, form.said
        return None

    def _spelled(self, name: str) -> list[str]:
        """Return the texts that a column's value is given by: that of an only column may be JSON, in quotes."""
        values = [self._given[name]] if isinstance(self._given, dict) else [self._given, self._text]
        return [json.dumps(value) if isinstance(value, bool) else str(value).strip() for value in values]

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


class Form(NamedTuple):
    """Is how events have the values of a kind."""

    said: str
    fits: Callable[[str], object]


def form_of(column: Mapping[str, Any]) -> Form | None:
    """Return how events have the values of a column; None: texts of any form."""
    if column.get("type") == "uuid":
        return Form("a uuid of 36 characters", _matching("[0-9a-f-]{36}"))
    if column["kind"] == "bytes":
        fixed = re.fullmatch(r"binary\((\d+)\)", str(column.get("type")))
        size = None if fixed is None else int(fixed[1])
        return Form("base64" if size is None else f"base64 of {size} bytes", lambda text: _is_base64(text, size))
    return _FORMS.get(column["kind"])


def _matching(pattern: str) -> Callable[[str], object]:
    return re.compile(pattern, re.IGNORECASE | re.ASCII).fullmatch


def _is_base64(text: str, size: int | None) -> bool:
    try:
        found = binascii.a2b_base64(text, strict_mode=True)
    except ValueError:
        return False
    return size is None or len(found) == size


_A_NUMBER: Final = _matching(r"[+-]?\d+(\.\d*)?(e[+-]?\d+)?")
_ENDLESS: Final = _matching(r"[+-]?\d+|-?infinity")
_ANY_NUMBER: Final = Form("a number", _matching(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?|nan|-?infinity"))


def _moment(said: str) -> Form:
    return Form(f"a number of {said} since 1970-01-01", lambda text: _ENDLESS(text) or _is_unreal(text))


def _is_unreal(text: str) -> bool:
    """Whether it is a day that no calendar has, which MySQL may hold, and events have as a text."""
    try:
        dt.date.fromisoformat(text[:10])
    except ValueError:
        return bool(re.match(r"\d{4}-\d\d-\d\d", text))
    return False


_FORMS: Final[Mapping[str, Form]] = {
    "boolean": Form("true or false", _matching("true|false")),
    **dict.fromkeys(("int16", "int32", "int64", "uint64"), Form("a whole number", _A_NUMBER)),
    **dict.fromkeys(("float32", "float64", "decimal"), _ANY_NUMBER),
    "date": _moment("days"),
    "timestamp_millis": _moment("milliseconds"),
    "timestamp_micros": _moment("microseconds"),
    "time_micros": Form("a number of microseconds", _A_NUMBER),
    "timestamptz": Form(
        "a time in UTC, as 2026-01-31T12:00:00Z",
        lambda text: _matching(r"[+-]?\d+-\d\d-\d\dT[\d:.]+Z|-?infinity")(text) or _is_unreal(text),
    ),
    "timetz": Form("a time in UTC, as 12:00:00Z", _matching(r"[\d:.]+Z")),
    "interval": Form("a duration, as P1DT2H", _matching(r"-?P[-\dYMWDTHS.]+|-?infinity")),
    "bits": Form("a text of 0 and 1", _matching("[01]*")),
}
"""By kind; those of any other are texts, or nobody's key."""


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
