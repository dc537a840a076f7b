"""Converts rows of a source and of a store to one canonical form, a list of document values, to compare them. Pure.

It has the columns that both the source and the copy have: a column that the source dropped stays in the store as it
was. Numbers are compared with the precision that the copy stores. A column that the copy keeps as text, be it for
``types: {column: string}`` or for the types that it had, is parsed as JSON, unless events have it as a string.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import orjson
from pyspark.sql import types as T  # noqa: N812 - the name everyone uses

from cdc.model.change import Kind
from spark_apply.model.target_table import TargetTable
from spark_apply.model.types import TEXT, spark_type
from spark_apply.verify.contents import document_value

_JSON = frozenset(
    (
        *("boolean", "int16", "int32", "int64", "uint64", "float32", "float64", "date", "time_micros"),
        *("timestamp_millis", "timestamp_micros", "geometry", "vector", "array"),
    )
)
"""Kinds whose values are not JSON strings in events."""

Values = list[Any]
Convert = Callable[[Any], Any]


class CanonicalForm:
    """Converts rows of one table to the canonical form; columns have the names of the copy."""

    def __init__(self, table: TargetTable, source: Mapping[str, Kind], *, texts: Sequence[str] = ()) -> None:
        """`source` gives the present kinds of the source's columns, `texts` the columns that `types` keeps as text."""
        columns = [column for column in table.columns if column.computed or column.source in source]
        kept = {*texts, *(c.source for c in columns if c.source and _became_text(source[c.source], c.kind))}
        self.columns = tuple(column.name for column in columns)
        self.key = table.key
        self.names = {column.source: column.name for column in columns if column.source}
        """The copy's column names by the source's."""
        self._sources = tuple(column.source or "" for column in columns)
        self._of_event = [
            None if column.source is None or column.source in kept else _of_event(source[column.source], column.kind)
            for column in columns
        ]
        self._of_document = [
            (_parsed if source[column.source].name in _JSON else None)
            if column.source is not None and column.source in kept
            else _lenient(_of_copy(source.get(column.source or "", column.kind), column.kind))
            for column in columns
        ]

    def of_event(self, after: bytes) -> Values:
        """Convert the JSON of an event's new row; computed columns are null."""
        return _converted(self._sources, self._of_event, orjson.loads(after))

    def of_document(self, document: str) -> Values:
        """Convert a store's document."""
        return _converted(self.columns, self._of_document, orjson.loads(document))

    def key_of(self, values: Values) -> str:
        """Return the JSON of the key columns."""
        row = dict(zip(self.columns, values, strict=True))
        return orjson.dumps({name: row[name] for name in self.key}).decode()

    def digest(self, values: Values) -> bytes:
        """Return a hash that is equal for equal rows alone."""
        packed = orjson.dumps(values, option=orjson.OPT_SORT_KEYS)
        return hashlib.blake2b(packed, digest_size=16).digest()

    def differing(self, one: Values, other: Values) -> tuple[str, ...]:
        """Return the names of the columns in which two rows differ."""
        pairs = zip(self.columns, one, other, strict=True)
        return tuple(name for name, here, there in pairs if self.digest([here]) != self.digest([there]))


def _converted(columns: Sequence[str], converts: Sequence[Convert | None], row: Mapping[str, Any]) -> Values:
    values = []
    for name, convert in zip(columns, converts, strict=True):
        value = row.get(name)
        values.append(value if convert is None or value is None else convert(value))
    return values


def _lenient(convert: Convert | None) -> Convert | None:
    """Keep a value that is not of its type as it is: something else has written it into the store."""
    if convert is None:
        return None

    def converted(value: Any) -> Any:  # noqa: ANN401 - JSON
        try:
            return convert(value)
        except (TypeError, ValueError, ArithmeticError, struct.error):
            return value

    return converted


def _became_text(kind: Kind, kept: Kind) -> bool:
    """Whether a column has texts of all the types that it had; a time of day is a text of its own."""
    return spark_type(kept) == spark_type(TEXT) and kind.name not in (kept.name, "time_micros")


def _has_other_digits(kind: Kind, kept: Kind) -> bool:
    return isinstance(spark_type(kept), T.DecimalType) and (kind.name, kind.scale) != (kept.name, kept.scale)


def _of_copy(kind: Kind, kept: Kind) -> Convert | None:
    return _exact if _has_other_digits(kind, kept) else _number(kept, spark_type(kept))


def _of_event(kind: Kind, kept: Kind) -> Convert | None:
    stored = spark_type(kept)
    if _has_other_digits(kind, kept):
        return _exact
    number = _number(kind, stored)
    if number is not None and kind.name != "array":
        return number
    if kind.name in ("boolean", "int16", "int32", "int64", "uint64", "string", "decimal", "bytes"):
        return None  # as they are in documents
    as_text = stored == spark_type(TEXT)

    def convert(value: Any) -> Any:  # noqa: ANN401 - JSON
        found = document_value(kind, value, kept_as_text=as_text)
        return number(found) if number else found

    return convert


def _number(kind: Kind, stored: T.DataType) -> Convert | None:
    """Return what gives equal numbers equal JSON; None if they have it already."""
    if isinstance(stored, T.ArrayType):
        item = _number(kind, stored.elementType)
        if item is None:
            return None
        return lambda values: (
            [value if value is None else item(value) for value in values] if isinstance(values, list) else values
        )
    if kind.name == "decimal" and isinstance(stored, T.StringType):
        return _digits
    if isinstance(stored, T.FloatType):
        return _single
    return _double if isinstance(stored, T.DoubleType) else None


def _single(value: Any) -> Any:  # noqa: ANN401 - JSON
    if isinstance(value, str):
        return value  # NaN and the infinities
    return struct.unpack("<f", struct.pack("<f", value))[0] + 0.0  # -0.0 becomes 0.0


def _double(value: Any) -> Any:  # noqa: ANN401 - JSON
    return value if isinstance(value, str) else float(value) + 0.0


def _exact(number: Any) -> Any:  # noqa: ANN401 - JSON
    digits = f"{Decimal(number):f}"
    return digits.rstrip("0").rstrip(".") if "." in digits else digits


def _digits(text: Any) -> Any:  # noqa: ANN401 - JSON
    return f"{Decimal(text):f}" if "e" in text else text  # SQLite's exponents, which PostgreSQL writes out


def _parsed(text: str) -> Any:  # noqa: ANN401 - JSON
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text  # NaN and the infinities
