"""Turns values of PostgreSQL from the server's text into JSON text, type by type, as docs/values.md says. Pure.

The text is the same from COPY (unescaped) and from pgoutput when both sessions have `settings.SETTINGS` and UTF-8. NULL
never comes here.

Encoders trust the server for what the type itself rules out (an integer's text is digits) and raise ValueError, without
the value, for what settings and encodings can make of it.
"""

from __future__ import annotations

import re
import struct
from binascii import b2a_base64, unhexlify
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

from cdc.encode.json_text import FORMS, PACKED, as_is, quoted, text
from cdc.model.change import Column, Kind
from cdc.model.errors import BugError
from connectors.json_values import bit
from connectors.postgres.values import arrays, format_type, temporal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Encode: TypeAlias = Callable[[bytes], bytes]


@dataclass(frozen=True, slots=True)
class TypeInfo:
    """Is one row of pg_type, resolved."""

    oid: int
    name: str
    schema: str
    category: str
    """pg_type.typtype: b base, c composite, d domain, e enum, r range, m multirange, p pseudo."""
    base: int
    """What a domain is a domain of, 0 otherwise."""
    base_typmod: int
    """The modifier a domain gives its base, -1 where none."""
    element: int
    """What a true array is an array of, 0 otherwise (int2vector and point are no arrays)."""
    delimiter: str
    """What stands between the elements of an array: typdelim of the element's type."""
    toastable: bool
    labels: Sequence[str] = field(default=(), compare=False)
    """Those of an enum."""


def column(name: str, type_oid: int, typmod: int, types: Mapping[int, TypeInfo]) -> Column:
    """Return the column, its kind and encoder. `types` holds all the oid leads to: bases of domains, array elements."""
    info = _lookup(type_oid, types)
    kind, encode = _codec(info, typmod, types)
    printed, equality = _printed(info, typmod, types), _equality(info, types)
    gone = type_oid not in types
    return Column(
        name, printed, kind, encode, toastable=info.toastable, equality=equality, unknown=gone,
        labels=tuple(_below(info, types).labels),
    )  # fmt: skip


def _below(info: TypeInfo, types: Mapping[int, TypeInfo]) -> TypeInfo:
    """Return what a domain is a domain of; another type is itself."""
    while info.category == "d":
        info = _lookup(info.base, types)
    return info


def _equality(info: TypeInfo, types: Mapping[int, TypeInfo]) -> str:
    """Return `Column.equality` of a type, under a collation that is deterministic."""
    info = _below(info, types)
    if info.category == "e" or (info.schema == "pg_catalog" and info.name in ("text", "varchar")):
        return "exact"
    return "padded" if info.schema == "pg_catalog" and info.name == "bpchar" else ""


def printed_as(type_oid: int, typmod: int, types: Mapping[int, TypeInfo]) -> str:
    """Return a word that is the same for two types if a value that is of both is the same JSON, without a rewrite."""
    info = _lookup(type_oid, types)
    while info.category == "d":
        info, typmod = _lookup(info.base, types), info.base_typmod
    if info.element:
        return printed_as(info.element, typmod, types) + "[]"
    if info.schema != "pg_catalog":
        return "string text" if info.name == "citext" else str(info.oid)
    return f"{_codec(info, typmod, types)[0].name} {_ALSO_PRINTED_AS.get(info.name, info.name)}"


def boolean(value: bytes) -> bytes:
    """Encode ``t`` and ``f``."""
    if value == b"t":
        return b"true"
    if value == b"f":
        return b"false"
    raise ValueError("boolean is neither t nor f")


def floating(value: bytes) -> bytes:
    """The server's shortest digits; NaN, Infinity and -Infinity, which JSON has not, as strings.

    Minus zero gets a fraction, because readers take ``-0`` for an integer, which has no sign there.
    """
    if not value:
        raise ValueError("a number without digits")
    if value[-1] <= _DIGIT_9:
        return value if value != b"-0" else b"-0.0"
    return b'"%b"' % value


def money(value: bytes) -> bytes:
    """Encode digits, point and minus of ``-$1,234.56``, as lc_monetary=C prints it."""
    amount = value.translate(None, b"$,")
    if _AMOUNT(amount) is None:
        raise ValueError("money is not as lc_monetary=C prints it")
    return b'"%b"' % amount


def binary(value: bytes) -> bytes:
    r"""Encode ``\x`` and hex digits as base64."""
    if value[:2] != b"\\x":
        raise ValueError("bytea is not as bytea_output=hex prints it")
    return b'"%b"' % b2a_base64(unhexlify(value[2:]), newline=False)


def hstore(value: bytes) -> bytes:
    """Encode a JSON object in a string, keys in the server's order."""
    members: list[bytes] = []
    size = 0
    for pair, key, null, item in _PAIRS(value):
        members.append(text(arrays.unescape(key)) + b":" + (null.lower() or text(arrays.unescape(item))))
        size += len(pair)
    if size != len(value):
        raise ValueError("hstore is not as hstore_out prints it")
    return text(b"{%b}" % b",".join(members))


def geometry(value: bytes) -> bytes:
    """Encode PostGIS's EWKB and the SRID in it, 0 where it has none.

    The bytes stay EWKB, as in Debezium. https://postgis.net/docs/using_postgis_dbmanagement.html#EWKB_EWKT
    """
    wkb = unhexlify(value)
    if len(wkb) < _EWKB_HEAD or wkb[0] > 1:
        raise ValueError("geometry is not EWKB")
    order = "<" if wkb[0] else ">"
    (shape,) = struct.unpack_from(f"{order}I", wkb, 1)
    srid = struct.unpack_from(f"{order}i", wkb, 5)[0] if shape & _EWKB_SRID else 0
    return b'{"wkb":"%b","srid":%d}' % (b2a_base64(wkb, newline=False), srid)


_DIGIT_9: Final = ord("9")
_AMOUNT: Final = re.compile(rb"-?\d+(?:\.\d+)?").fullmatch
_EWKB_HEAD: Final = 9
_EWKB_SRID: Final = 0x20000000
_INSIDE: Final = rb'([^"\\]*+(?:\\.[^"\\]*+)*+)'
_PAIRS: Final = re.compile(rb'("%b"=>(?:(NULL)|"%b")(?:, |\Z))' % (_INSIDE, _INSIDE), re.DOTALL).findall

PACKED[binary] = "hex"
FORMS.update({
    boolean: "t_or_f", bit: "one_or_zero", floating: "floating", temporal.date: "days", temporal.time: "clock",
    temporal.timestamp_micros: "micros", temporal.timestamp_millis: "millis", temporal.timestamptz: "with_zone",
})  # fmt: skip

_ALSO_PRINTED_AS: Final = {"varchar": "text", "xml": "text"}
_FIRST_USER_OID: Final = 16_384
_MILLIS_DIGITS: Final = 3


def _numeric(typmod: int) -> tuple[Kind, Encode]:
    precision, scale = format_type.precision_scale(typmod) or (None, None)
    return Kind("decimal", precision, scale), quoted


def _timestamp(typmod: int) -> tuple[Kind, Encode]:
    if 0 <= typmod <= _MILLIS_DIGITS:
        return Kind("timestamp_millis"), temporal.timestamp_millis
    return Kind("timestamp_micros"), temporal.timestamp_micros


def _bits(typmod: int) -> tuple[Kind, Encode]:
    return (Kind("boolean"), bit) if typmod == 1 else (Kind("bits"), quoted)


_TEXT: Final[tuple[Kind, Encode]] = (Kind("string"), text)
_BY_MODIFIER: Final = {"numeric": _numeric, "timestamp": _timestamp, "bit": _bits}

_BUILTIN: Final[dict[str, tuple[Kind, Encode]]] = {
    "int2": (Kind("int16"), as_is),
    "int4": (Kind("int32"), as_is),
    "int8": (Kind("int64"), as_is),
    "oid": (Kind("int64"), as_is),
    "float4": (Kind("float32"), floating),
    "float8": (Kind("float64"), floating),
    "money": (Kind("decimal"), money),
    "bool": (Kind("boolean"), boolean),
    "varbit": (Kind("bits"), quoted),
    "bytea": (Kind("bytes"), binary),
    "json": (Kind("json"), text),
    "jsonb": (Kind("json"), text),
    "uuid": (Kind("string"), quoted),
    "date": (Kind("date"), temporal.date),
    "time": (Kind("time_micros"), temporal.time),
    "timetz": (Kind("timetz"), temporal.timetz),
    "timestamptz": (Kind("timestamptz"), temporal.timestamptz),
    "interval": (Kind("interval"), quoted),
    "inet": (Kind("string"), quoted),
    "cidr": (Kind("string"), quoted),
    "macaddr": (Kind("string"), quoted),
    "macaddr8": (Kind("string"), quoted),
    "pg_lsn": (Kind("string"), quoted),
}

_EXTENSION: Final[dict[str, tuple[Kind, Encode]]] = {
    "hstore": (Kind("json"), hstore),
    "geometry": (Kind("geometry"), geometry),
    "geography": (Kind("geometry"), geometry),
    "vector": (Kind("vector"), as_is),
    "halfvec": (Kind("vector"), as_is),
}
"""By name alone: an extension may live in any schema. Others (citext, ltree, sparsevec) are their text."""


def _codec(info: TypeInfo, typmod: int, types: Mapping[int, TypeInfo]) -> tuple[Kind, Encode]:
    while info.category == "d":
        info, typmod = _lookup(info.base, types), info.base_typmod
    if info.element:
        kind, encode = _codec(_lookup(info.element, types), typmod, types)
        return Kind("array", element=kind), _array_encoder(kind, encode, info.delimiter.encode())
    if info.category != "b":
        return _TEXT
    if info.schema != "pg_catalog":
        return _EXTENSION.get(info.name, _TEXT)
    by_modifier = _BY_MODIFIER.get(info.name)
    return by_modifier(typmod) if by_modifier else _BUILTIN.get(info.name, _TEXT)


def _array_encoder(element: Kind, encode: Encode, delimiter: bytes) -> Encode:
    if element.name in ("int16", "int32", "int64"):
        return arrays.of_integers
    if element.name in ("float32", "float64"):
        return arrays.of_floats(encode)
    return (arrays.of_texts if encode is text else arrays.of)(encode, delimiter)


def _printed(info: TypeInfo, typmod: int, types: Mapping[int, TypeInfo]) -> str:
    if info.element:
        return _printed(_lookup(info.element, types), typmod, types) + "[]"
    return format_type.printed(info.schema, info.name, typmod)


def _lookup(oid: int, types: Mapping[int, TypeInfo]) -> TypeInfo:
    """Return the type; one of a user's that was dropped since the change was logged is text."""
    info = types.get(oid)
    if info is None:
        if oid < _FIRST_USER_OID:
            raise BugError(f"type {oid} of pg_catalog was not read from the catalog")
        return TypeInfo(oid, f"dropped_{oid}", "unknown", "b", 0, -1, 0, ",", toastable=True)
    return info
