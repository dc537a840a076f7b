"""Which column of DuckDB holds a column of a table: the library's Arrow type of its kind, in DuckDB's words. Pure.

    Arrow (`cdc.library.arrow`)   DuckDB
    int16, int32, int64, uint64   SMALLINT, INTEGER, BIGINT, UBIGINT
    bool, float, double           BOOLEAN, FLOAT, DOUBLE
    decimal128(p, s)              DECIMAL(p, s)
    string, binary                VARCHAR, BLOB
    date32                        DATE
    duration[us]                  INTERVAL: 24:00:00, negative and long times of day are values
    timestamp[ms]                 TIMESTAMP_MS
    timestamp[us], with UTC       TIMESTAMP, TIMESTAMP WITH TIME ZONE
    struct, list                  STRUCT, …[]

The infinities of days and times are DuckDB's own. A column with a value that its type cannot hold becomes VARCHAR, with
the text of the JSON that events have (`json_of` gives it of the values that are there already); so does a column of the
key whose type DuckDB cannot have in a primary key.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import orjson
import pyarrow as pa

from cdc.library.arrow import OWN_INFINITIES, arrow_type
from cdc.model.change import Kind

TEXT: Final = "VARCHAR"
_NAMES: Final = {
    pa.bool_(): "BOOLEAN",
    pa.int16(): "SMALLINT",
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.uint64(): "UBIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.string(): TEXT,
    pa.binary(): "BLOB",
    pa.date32(): "DATE",
    pa.duration("us"): "INTERVAL",
    pa.timestamp("ms"): "TIMESTAMP_MS",
    pa.timestamp("us"): "TIMESTAMP",
    pa.timestamp("us", tz="UTC"): "TIMESTAMP WITH TIME ZONE",
}
_NO_KEY: Final = ("INTERVAL", "STRUCT")
"""Types that cannot be in a primary key; nor can a list."""
_DAY: Final = 86_400
_SECOND: Final = 1_000_000
_ERA: Final = 146_097
"""Days in 400 years."""
_MARCH: Final = 719_468
"""Days from the first of March of year 0 to 1970."""


def duckdb_type(kind: Kind, *, key: bool) -> str:
    """Name the type of a column; `key`: it is one of the primary key."""
    found = _named(arrow_type(kind))
    return TEXT if key and (found.startswith(_NO_KEY) or found.endswith("[]")) else found


def _named(type_: pa.DataType) -> str:
    if pa.types.is_decimal(type_):
        return f"DECIMAL({type_.precision},{type_.scale})"
    if pa.types.is_list(type_):
        return f"{_named(type_.value_type)}[]"
    if pa.types.is_struct(type_):
        return f"STRUCT({', '.join(f'{field.name} {_named(field.type)}' for field in type_)})"
    return _NAMES[type_]


def texts(column: pa.Array, kind: Kind) -> list[str | None]:
    """Give each value of a column as the text of its JSON."""
    return [None if value is None else _text(value) for value in json_of(column, kind)]


def _text(value: Any) -> str:  # noqa: ANN401 - JSON
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def json_of(column: pa.Array, kind: Kind) -> list[Any]:
    """Give each value as an event's JSON has it: what `cdc.library.arrow` has made the column of."""
    if kind.name == "array" and kind.element is not None and pa.types.is_list(column.type):
        flat = json_of(column.values, kind.element)
        offsets = column.offsets.to_pylist()
        return [
            flat[offsets[index] : offsets[index + 1]] if valid else None
            for index, valid in enumerate(column.is_valid().to_pylist())
        ]
    if pa.types.is_string(column.type):
        return list(column.to_pylist())
    if kind.name in OWN_INFINITIES:
        integers = column.cast(pa.int32() if kind.name == "date" else pa.int64()).to_pylist()
        return _or_infinite(kind.name, integers)
    if kind.name == "float32":  # its own digits, not those of the double that is nearest
        column = pa.array([None if value is None else float(value) for value in column.cast(pa.string()).to_pylist()])
    made = _OF.get(kind.name)
    return [value if value is None or made is None else made(value) for value in column.to_pylist()]


def _or_infinite(name: str, values: Sequence[int | None]) -> list[Any]:
    ends = OWN_INFINITIES[name]
    named: Mapping[int | None, str | None] = {ends.before: "-infinity", ends.after: "infinity", None: None}
    shown: Callable[[int], Any] = _instant if name == "timestamptz" else int
    return [named[value] if value in named or value is None else shown(value) for value in values]


def _instant(micros: int) -> str:
    """Write microseconds since 1970 as events do, in any year."""
    seconds, fraction = divmod(micros, _SECOND)
    days, of_day = divmod(seconds, _DAY)
    year, month, day = _date(days)
    sign = "-" if year < 0 else "+" if year > 9999 else ""  # noqa: PLR2004 - four digits
    of_second = f".{fraction:06}" if fraction else ""
    hour, minute, second = of_day // 3600, of_day // 60 % 60, of_day % 60
    return f"{sign}{abs(year):04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}{of_second}Z"


def _date(days: int) -> tuple[int, int, int]:
    """Return the proleptic Gregorian date of a day since 1970, with March as the first month of a year."""
    era, of_era = divmod(days + _MARCH, _ERA)
    year = (of_era - of_era // 1460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * year + year // 4 - year // 100)
    month = (5 * of_year + 2) // 153
    day = of_year - (153 * month + 2) // 5 + 1
    month = month + 3 if month < 10 else month - 9  # noqa: PLR2004 - January and February end a year
    return year + era * 400 + (month <= 2), month, day  # noqa: PLR2004 - the same


def _float(value: float) -> Any:  # noqa: ANN401 - JSON
    return value if value - value == 0 else {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)]


_OF: Final[Mapping[str, Callable[[Any], Any]]] = {
    "decimal": lambda value: format(value, "f"),
    "float32": _float,
    "float64": _float,
    "bytes": lambda value: binascii.b2a_base64(value, newline=False).decode(),
    "geometry": lambda value: {
        "wkb": binascii.b2a_base64(value["wkb"], newline=False).decode(),
        "srid": value["srid"],
    },
    "time_micros": lambda value: value.nanoseconds // 1000,
}
