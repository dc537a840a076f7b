"""Reads whole stores into one form, to be compared with each other and with the topics.

The form is the JSON document of `spark_apply.model.document`, parsed: a dict from column to value, under the compact
JSON of the key columns. `expected` makes the same form from an event's `after` in plain Python: the oracle for what
Spark does. A column that is missing in a document, because the document is older, is null. Two things compare equal:
``infinity`` and its stand-in (9999-12-31), and numbers that are the same float.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, cast

from pyspark.sql import types as T  # noqa: N812 - the name everyone uses

from cdc.model.change import Kind
from spark_apply.model.store import Store
from spark_apply.model.target_table import TargetTable
from spark_apply.model.types import TEXT, spark_type

Contents = dict[str, dict[str, Any]]

_STAND_INS = {"infinity": "9999-12-31", "-infinity": "0001-01-01"}
_STAND_IN_TIMES = {"infinity": "9999-12-31T23:59:59.999999", "-infinity": "0001-01-01T00:00:00"}
_EPOCH = dt.date(1970, 1, 1)
_DAYS_400_YEARS = 146_097
_DAY_MICROS = 86_400_000_000


def contents(store: Store, table: TargetTable) -> Contents:
    """Return all rows of a table's copy, by key."""
    found = (json.loads(row.document) for row in store.rows(table))
    rows = ({column.name: row.get(column.name) for column in table.columns} for row in found)
    return {key_of(table, row): row for row in rows}


def key_of(table: TargetTable, row: Mapping[str, Any]) -> str:
    """Return the compact JSON of a document's key columns."""
    return json.dumps({name: row[name] for name in table.key}, separators=(",", ":"), ensure_ascii=False)


def expected(table: TargetTable, after: Mapping[str, Any], version: int) -> dict[str, Any]:
    """Return the document of an event's new row, written under `version` of the table."""
    row = {}
    for column in table.columns:
        kind = next((kind for kind, numbers in column.versions if version in numbers), TEXT)
        stored = spark_type(column.kind)
        value = document_value(kind, after.get(column.name), kept_as_text=stored == spark_type(TEXT))
        if value is not None and column.kind.name == "decimal" and isinstance(stored, T.DecimalType):
            value = f"{Decimal(value):.{stored.scale}f}"
        row[column.name] = value
    return row


def document_value(kind: Kind, value: Any, *, kept_as_text: bool = False) -> Any:  # noqa: ANN401 - JSON
    """Convert an event's value to the document's; `kept_as_text`: the column is stored as STRING."""
    if value is None:
        return None
    if kind.name == "time_micros":
        return time_text(value)
    if kept_as_text:
        return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    if kind.name == "array" and kind.element is not None:
        return [document_value(kind.element, item) for item in value]
    if kind.name == "date":
        return _STAND_INS.get(str(value)) or date_text(value)
    if kind.name in ("timestamp_millis", "timestamp_micros"):
        unit = 1000 if kind.name == "timestamp_millis" else 1
        return _STAND_IN_TIMES.get(str(value)) or timestamp_text(int(value) * unit)
    if kind.name == "timestamptz":
        return _zoned(cast("str", value))
    return value


def date_text(days: int) -> str:
    """Format a day as ISO 8601, also outside the years of Python's dates."""
    eras, rest = divmod(days + (_EPOCH - dt.date(1, 1, 1)).days, _DAYS_400_YEARS)
    moment = dt.date(1, 1, 1) + dt.timedelta(days=rest)
    year = moment.year + 400 * eras
    sign = "-" if year < 0 else "+" if year > 9999 else ""  # noqa: PLR2004 - the last year of four digits
    return f"{sign}{abs(year):04d}-{moment.month:02d}-{moment.day:02d}"


def timestamp_text(micros: int) -> str:
    """Format a time as ISO 8601, fraction without trailing zeros."""
    days, rest = divmod(micros, _DAY_MICROS)
    seconds, fraction = divmod(rest, 1_000_000)
    clock = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    return f"{date_text(days)}T{clock}" + f".{fraction:06d}".rstrip("0").rstrip(".")


def time_text(micros: int) -> str:
    """Format a time of day or a duration as [-]HH:MM:SS.ffffff."""
    seconds, fraction = divmod(abs(micros), 1_000_000)
    sign = "-" if micros < 0 else ""
    return f"{sign}{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.{fraction:06d}"


def _zoned(text: str) -> str:
    if text in _STAND_IN_TIMES:
        return _STAND_IN_TIMES[text] + "Z"
    clock = text.removesuffix("Z")
    return (clock.rstrip("0").rstrip(".") if "." in clock else clock) + "Z"
