"""What is published in place of a column's values: asterisks, a keyed hash, the first characters of a text. Pure."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Final, cast

import orjson

from cdc.config.published.column_rules import ColumnRules
from cdc.model.change import Column, Kind, Table
from cdc.model.errors import OperatorError

MASK: Final = b'"********"'
STRING: Final = Kind("string")
_LABELS: Final = re.compile("'.*'", re.DOTALL)


def without_labels(type_: str) -> str:
    """Return a type without what may be said in the quotes of one: the labels of MySQL's enums and sets."""
    return _LABELS.sub(lambda found: hashlib.sha256(found[0].encode()).hexdigest()[:16], type_)


def changed_column(table: Table, column: Column, rules: ColumnRules) -> Column:
    """Return the column as it is published. Raises OperatorError for a rule that its type does not allow."""
    type_ = without_labels(column.type)
    if column.name in rules.mask:
        return replace(column, type=type_, kind=STRING, encode=_masked, changed=True)
    if rules.hash is not None and column.name in rules.hash.columns:
        hashed = _Hashed(rules.hash.salt.encode(), column.encode)
        return replace(column, type=type_, kind=STRING, encode=hashed, changed=True)
    if column.name in rules.truncate:
        if column.kind.name != "string":
            raise OperatorError(
                f"source.columns: table {table.qualified}: {column.name} is of type {column.type}, which cannot be "
                "truncated",
                hint=f"mask: [{column.name}], or exclude: [{column.name}]",
            )
        truncated = _Truncated(rules.truncate[column.name], column.encode)
        return replace(column, type=type_, encode=truncated, changed=True)
    return column


def _masked(_value: bytes) -> bytes:
    return MASK


class _Hashed:
    """Encodes HMAC-SHA256 of a value, in hex: of the characters of a text, of the JSON of anything else."""

    __slots__ = ("_encode", "_salt")

    def __init__(self, salt: bytes, encode: Callable[[bytes], bytes]) -> None:
        self._salt, self._encode = salt, encode

    def __call__(self, value: bytes) -> bytes:
        try:
            text = plain(self._encode(value))
        except ValueError:
            text = value  # no text in any encoding: equal bytes are equal values all the same
        return b'"%b"' % hmac.new(self._salt, text, hashlib.sha256).hexdigest().encode()


class _Truncated:
    """Encodes the first characters of a text."""

    __slots__ = ("_encode", "_size")

    def __init__(self, size: int, encode: Callable[[bytes], bytes]) -> None:
        self._size, self._encode = size, encode

    def __call__(self, value: bytes) -> bytes:
        return orjson.dumps(cast("str", orjson.loads(self._encode(value)))[: self._size])


def plain(json: bytes) -> bytes:
    """Return the characters of a JSON string; other JSON as it is."""
    return cast("str", orjson.loads(json)).encode() if json[:1] == b'"' else json
