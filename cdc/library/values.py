"""Turns the JSON of events into Python values, by the kinds of the schema topic. Pure.

    kind                                Python                    where Python has no such value
    boolean                             bool
    int16, int32, int64, uint64         int
    float32, float64                    float                     NaN and the infinities are values
    decimal                             decimal.Decimal           NaN and the infinities are values
    string, json, bits, timetz,         str
    interval, any other
    bytes                               bytes
    date                                datetime.date             the event's: days since 1970, or "infinity"
    time_micros                         datetime.timedelta        24:00:00, negative and long times are values
    timestamp_millis, timestamp_micros  datetime.datetime         the event's: a number since 1970, or "infinity"
    timestamptz                         datetime.datetime in UTC  the event's: a string
    geometry                            {"wkb": bytes, "srid": int or None}
    vector                              list of float
    array                               list, nested as in the server; a str with a lower bound other than 1

Nothing is rounded or cut: a date before year 1 or after 9999, or an infinite one, stays what the event has.
"""

from __future__ import annotations

import binascii
import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from enum import Enum
from typing import Any, Final, TypeAlias

from cdc.encode.schema_record import kind_of
from cdc.files.topicless_sink import UNSENT
from cdc.model.change import Kind

Read: TypeAlias = Callable[[Any], Any]
"""Turns a JSON value, as `orjson` reads it, into a Python value; it is never given None."""


class Left(Enum):
    """The type of `UNCHANGED`, so that type checkers can narrow it away."""

    UNCHANGED = "unchanged"

    def __repr__(self) -> str:
        return "cdc.UNCHANGED"


UNCHANGED: Final = Left.UNCHANGED
"""A value that an update did not change, and that the source did not send: it is what it was before. Never None."""

_EPOCH: Final = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - the source's timestamps have no time zone
_FIRST_DAY: Final = dt.date(1970, 1, 1).toordinal()
_MICROS: Final = dt.timedelta(microseconds=1)
_MILLIS: Final = dt.timedelta(milliseconds=1)


def reader(kind: Kind) -> Read | None:
    """Return what reads values of a kind; None: they are what JSON has."""
    if kind.name == "array":
        element = None if kind.element is None else reader(kind.element)
        return None if element is None else _elements(element)
    return _READERS.get(kind.name)


class RowReader:
    """Reads rows and keys of one version of one table."""

    def __init__(self, columns: Sequence[Mapping[str, Any]]) -> None:
        found = {column["name"]: reader(kind_of(column)) for column in columns}
        self._readers = [(name, read) for name, read in found.items() if read is not None]

    def __call__(self, row: dict[str, Any] | None) -> dict[str, Any] | None:
        """Replace the JSON values of a row, of which columns may be missing, by Python values."""
        if row is None:
            return None
        for name, value in row.items():
            if value.__class__ is dict and value == UNSENT:
                row[name] = UNCHANGED
        for name, read in self._readers:
            value = row.get(name)
            if value is not None and value is not UNCHANGED:
                row[name] = read(value)
        return row


def _elements(read: Read) -> Read:
    def each(value: Any) -> Any:  # noqa: ANN401 - JSON
        if isinstance(value, list):
            return [None if item is None else each(item) for item in value]
        return read(value)

    def array(value: Any) -> Any:  # noqa: ANN401 - JSON
        return each(value) if isinstance(value, list) else value

    return array


def _date(value: Any) -> Any:  # noqa: ANN401 - JSON
    try:
        return dt.date.fromordinal(_FIRST_DAY + value)
    except (TypeError, ValueError, OverflowError):
        return value


def _timestamp(unit: dt.timedelta) -> Read:
    def read(value: Any) -> Any:  # noqa: ANN401 - JSON
        try:
            return _EPOCH + value * unit
        except (TypeError, OverflowError):
            return value

    return read


def _instant(value: Any) -> Any:  # noqa: ANN401 - JSON
    try:
        return dt.datetime.fromisoformat(value)
    except ValueError:
        return value


def _geometry(value: Any) -> Any:  # noqa: ANN401 - JSON
    return {"wkb": binascii.a2b_base64(value["wkb"]), "srid": value["srid"]} if isinstance(value, dict) else value


_READERS: Final[Mapping[str, Read]] = {
    "float32": float,
    "float64": float,
    "decimal": Decimal,
    "bytes": binascii.a2b_base64,
    "date": _date,
    "time_micros": lambda value: value * _MICROS,
    "timestamp_millis": _timestamp(_MILLIS),
    "timestamp_micros": _timestamp(_MICROS),
    "timestamptz": _instant,
    "geometry": _geometry,
}
