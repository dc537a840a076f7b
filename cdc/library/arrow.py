"""Rows of JSON as columns of Arrow, by the kinds of the schema topic. Pure.

    kind                                Arrow
    boolean                             bool
    int16, int32, int64, uint64         int16, int32, int64, uint64
    float32, float64                    float, double           NaN and the infinities are values
    decimal, precision <= 38 declared   decimal128(p, s)        NaN and the infinities do not fit
    decimal, any other                  string                  the server's digits
    bytes                               binary
    date                                date32                  infinity: 9999-12-31, -infinity: 0001-01-01
    time_micros                         duration[us]
    timestamp_millis                    timestamp[ms]           the infinities as the last and first of those days
    timestamp_micros                    timestamp[us]           the same
    timestamptz                         timestamp[us, tz=UTC]   the same
    geometry                            struct<wkb: binary, srid: int32>
    vector                              list<float>
    array                               list<element>           one dimension
    string, json, bits, timetz,         string
    interval, any other

A block of rows is read by Arrow's own JSON reader and converted column by column. What that cannot do is done value by
value: an infinity, a year before 1, a string where most rows have a number. A value that does not fit is an error.
"""

from __future__ import annotations

import binascii
import io
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final, NamedTuple

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from cdc.encode.schema_record import kind_of
from cdc.model.change import Kind
from cdc.model.errors import OperatorError

_PRECISION: Final = 38
_TEXT: Final = "text of its JSON"
"""The kind of a column that is wanted as text."""
_PLAIN: Final[Mapping[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "uint64": pa.uint64(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "bytes": pa.binary(),
    "date": pa.date32(),
    "time_micros": pa.duration("us"),
    "timestamp_millis": pa.timestamp("ms"),
    "timestamp_micros": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", tz="UTC"),
    "geometry": pa.struct([("wkb", pa.binary()), ("srid", pa.int32())]),
    "vector": pa.list_(pa.float32()),
}
_AS_JSON: Final[Mapping[str, pa.DataType]] = {
    **{name: _PLAIN[name] for name in ("boolean", "int16", "int32", "int64", "uint64", "float32", "float64", "vector")},
    "date": pa.int32(),
    **dict.fromkeys(("time_micros", "timestamp_millis", "timestamp_micros"), pa.int64()),
    "geometry": pa.struct([("wkb", pa.string()), ("srid", pa.int32())]),
}
"""What a kind is in JSON, where it is no string."""
_INFINITE: Final[Mapping[str, tuple[int, int]]] = {
    "date": (-719162, 2932896),
    "timestamp_millis": (-62135596800000, 253402300799999),
    "timestamp_micros": (-62135596800000000, 253402300799999999),
    "timestamptz": (-62135596800000000, 253402300799999999),
}
"""What stands for -infinity and infinity: the first day of year 1 and the last of year 9999, as in derived tables."""
_INT32, _INT64 = 2**31 - 1, 2**63 - 1


class Ends(NamedTuple):
    """What stands for the infinities of a kind, and which values may be meant as themselves."""

    before: int
    """-infinity"""
    after: int
    """infinity"""
    first: int = -_INT64 - 1
    last: int = _INT64


STAND_INS: Final = {name: Ends(*ends) for name, ends in _INFINITE.items()}
"""Those of derived tables."""
OWN_INFINITIES: Final = {
    "date": Ends(-_INT32, _INT32, -_INT32 + 1, _INT32 - 1),
    "timestamp_millis": Ends(-_INT64, _INT64, -(_INT64 // 1000), _INT64 // 1000 - 1),
    "timestamp_micros": Ends(-_INT64, _INT64, -_INT64 + 1, _INT64 - 1),
    "timestamptz": Ends(-_INT64, _INT64, -_INT64 + 1, _INT64 - 1),
}
"""Those of an engine that has infinite days and times itself, as the greatest numbers (DuckDB)."""
_BLOCK: Final = 4 << 20
_INSTANT: Final = re.compile(r"([+-]?\d+)-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(?:\.(\d{6}))?Z").fullmatch


def _decimal(kind: Kind) -> tuple[int, int] | None:
    """Return precision and scale of Arrow's type; None: there is none."""
    if kind.precision is None:
        return None
    scale = kind.scale or 0
    precision = max(kind.precision - min(scale, 0), scale)
    return (precision, max(scale, 0)) if precision <= _PRECISION else None


def arrow_type(kind: Kind) -> pa.DataType:
    """Return the type that holds values of a kind."""
    if kind.name == "decimal":
        of = _decimal(kind)
        return pa.string() if of is None else pa.decimal128(*of)
    if kind.name == "array" and kind.element is not None:
        return pa.list_(arrow_type(kind.element))
    return _PLAIN.get(kind.name, pa.string())


def _json_type(kind: Kind) -> pa.DataType:
    if kind.name == "array" and kind.element is not None:
        return pa.list_(_json_type(kind.element))
    return _AS_JSON.get(kind.name, pa.string())


_SOURCE: Final = pa.struct([("position", pa.string()), ("schema_version", pa.int32()), ("ts_ms", pa.int64())])


class Read(NamedTuple):
    """Events as Arrow's reader has read them."""

    op: pa.Array
    position: pa.Array
    version: pa.Array
    at_ms: pa.Array
    after: pa.Array
    """Rows, in JSON's types."""

    def is_plain(self) -> bool:
        """Whether all look like events of a connector."""
        whole = not (self.op.null_count or self.position.null_count or self.version.null_count)
        return whole and not pc.any(pc.and_(self.after.is_null(), pc.not_equal(self.op, "d"))).as_py()


class ArrowRows:
    """Makes Arrow columns of rows of one version of one table."""

    def __init__(
        self, record: Mapping[str, Any], text: Collection[str] = (), *, infinite: Mapping[str, Ends] = STAND_INS
    ) -> None:
        """`record` is of the schema topic. Columns of it that `text` names are given as the text of their JSON."""
        self._infinite = infinite
        self.table = f"{record['schema']}.{record['table']}"
        self.version = int(record["version"])
        self.key = tuple(record["key"])
        self._kinds = {
            column["name"]: Kind(_TEXT) if column["name"] in text else kind_of(column) for column in record["columns"]
        }
        self.type = pa.struct([(name, arrow_type(kind)) for name, kind in self._kinds.items()])
        after = pa.struct([(name, _json_type(kind)) for name, kind in self._kinds.items()])
        fields = [pa.field("op", pa.string()), pa.field("after", after), pa.field("source", _SOURCE)]
        self._parse = pj.ParseOptions(explicit_schema=pa.schema(fields), unexpected_field_behavior="ignore")
        self._is_text = any(kind.name == _TEXT for kind in self._kinds.values())

    def read(self, events: Sequence[bytes]) -> Read | None:
        """Read events at once; None where Arrow's reader cannot."""
        if self._is_text:
            return None
        block = max(_BLOCK, 2 * max(map(len, events)))
        try:
            table = pj.read_json(
                io.BytesIO(b"\n".join(events)),
                read_options=pj.ReadOptions(block_size=block),
                parse_options=self._parse,
            )
            if table.num_rows != len(events):
                return None
            source = _whole(table["source"])
            op, position, version, at_ms = _whole(table["op"]), *(source.field(i) for i in range(len(_SOURCE)))
            return Read(op, position, version, at_ms, _whole(table["after"]))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return None

    def quickly(self, read: Read, keys: Sequence[bytes]) -> list[pa.Array] | None:
        """Make columns of events that are all of this version; None where a value must be looked at by itself."""
        try:
            columns = [
                _converted(column, kind)
                for column, kind in zip(read.after.flatten(), self._kinds.values(), strict=True)
            ]
            if self._infinite is not STAND_INS and not all(map(self._is_finite, columns, self._kinds.values())):
                return None
            return self._with_keys(columns, pc.equal(read.op, "d"), keys)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError):
            return None

    def _is_finite(self, column: pa.Array, kind: Kind) -> bool:
        """Whether no value is taken for another one where its number stands for an infinity."""
        if kind.name == "array" and kind.element is not None:
            return self._is_finite(column.flatten(), kind.element)
        ends = self._infinite.get(kind.name)
        if ends is None or kind.name == "date":  # no server has so late a day
            return True
        found = pc.min_max(column.cast(pa.int64())).as_py()
        return found["min"] is None or ends.first <= found["min"] <= found["max"] <= ends.last

    def misfits(self, rows: Sequence[Mapping[str, Any]]) -> list[str]:
        """Name the columns that have a value which does not fit."""
        found = []
        for name, kind in self._kinds.items():
            try:
                self._column(name, kind, [row.get(name) for row in rows])
            except OperatorError:
                found.append(name)
        return found

    def _with_keys(self, columns: list[pa.Array], deleted: pa.Array, keys: Sequence[bytes]) -> list[pa.Array]:
        """Fill in the keys of deletes."""
        at = pc.indices_nonzero(deleted).to_pylist()
        if not at:
            return columns
        found = self.plainly([orjson.loads(keys[index]) for index in at])
        for index, name in enumerate(self._kinds):
            if name in self.key:
                columns[index] = pc.replace_with_mask(columns[index], deleted, found[index])
        return columns

    def plainly(self, rows: Sequence[Mapping[str, Any]]) -> list[pa.Array]:
        """Make columns of rows, value by value. Raises OperatorError for one that does not fit."""
        return [self._column(name, kind, [row.get(name) for row in rows]) for name, kind in self._kinds.items()]

    def fitted(self, column: pa.Array, field: pa.Field) -> pa.Array:
        """Give a column of an older version its type of now. Raises OperatorError for a value that cannot have it."""
        try:
            return column.cast(field.type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as exc:
            raise self._misfit(field.name, field.type) from exc

    def _misfit(self, name: str, type_: pa.DataType) -> OperatorError:
        return OperatorError(
            f"table {self.table}: a value of column {name} does not fit into Arrow's {type_}",
            hint=f'take it as the text of its JSON: text={{"{self.table}": ["{name}"]}}; of cdc.table: text=["{name}"]',
        )

    def _column(self, name: str, kind: Kind, values: Sequence[Any]) -> pa.Array:
        convert, type_ = _plain(kind, self._infinite), arrow_type(kind)
        try:
            stored = [None if value is None else convert(value) for value in values]
            integers = _AS_JSON.get(kind.name) if kind.name in _INFINITE else None
            if kind.name in _INFINITE:
                return pa.array(stored, integers or pa.int64()).cast(type_)
            return pa.array(stored, type_)
        except (pa.ArrowException, ValueError, TypeError, ArithmeticError, OverflowError) as exc:
            raise self._misfit(name, type_) from exc


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _converted(values: pa.Array, kind: Kind) -> pa.Array:
    """Convert a column of JSON's types to Arrow's. Raises ArrowInvalid, or ValueError, for what it cannot do."""
    type_ = arrow_type(kind)
    if values.type.equals(type_):
        return values
    if kind.name == "bytes":
        return pa.array([None if v is None else binascii.a2b_base64(v) for v in values.to_pylist()], type_)
    if kind.name == "geometry":
        wkb = _converted(values.field("wkb"), Kind("bytes"))
        return pa.StructArray.from_arrays([wkb, values.field("srid")], fields=list(type_), mask=values.is_null())
    if kind.name == "array" and kind.element is not None:
        return pa.ListArray.from_arrays(values.offsets, _converted(values.values, kind.element), mask=values.is_null())
    return pc.cast(values, type_)


def _plain(kind: Kind, infinite: Mapping[str, Ends]) -> Callable[[Any], Any]:
    """Return what converts one value of a kind, as JSON has it."""
    if kind.name == _TEXT:
        return lambda value: value if isinstance(value, str) else orjson.dumps(value).decode()
    if kind.name == "array" and kind.element is not None:
        element, is_number = _plain(kind.element, infinite), kind.element.name in _INFINITE
        type_ = arrow_type(kind.element)

        def array(value: Any) -> Any:  # noqa: ANN401 - JSON
            if not isinstance(value, list):
                raise ValueError("a lower bound other than 1")  # noqa: TRY004 - the value's, not ours
            found = [None if item is None else element(item) for item in value]
            if is_number:
                integers = pa.int32() if kind.element is not None and kind.element.name == "date" else pa.int64()
                return pa.array(found, integers).cast(type_)
            return found

        return array
    if kind.name == "decimal":
        return _number if _decimal(kind) is not None else _same
    read = _PLAINLY.get(kind.name, _same)
    return _or_infinite(infinite[kind.name], read) if kind.name in infinite else read


def _same(value: Any) -> Any:  # noqa: ANN401 - JSON
    return value


def _number(value: str) -> Decimal:
    found = Decimal(value)
    if not found.is_finite():
        raise ValueError("no number")
    return found


def _or_infinite(ends: Ends, read: Callable[[Any], int]) -> Callable[[Any], int]:
    def convert(value: Any) -> int:  # noqa: ANN401 - JSON
        if value == "infinity":
            return ends.after
        if value == "-infinity":
            return ends.before
        found = read(value)
        if not ends.first <= found <= ends.last:
            raise ValueError("no day or time of the engine's")
        return found

    return convert


def _micros(text: str) -> int:
    """Return microseconds since 1970 of an instant as events have it, in any year."""
    found = _INSTANT(text)
    if found is None:
        raise ValueError("no instant")
    year, month, day, hour, minute, second = (int(part) for part in found.groups()[:6])
    days = _days(year, month, day)
    return (((days * 24 + hour) * 60 + minute) * 60 + second) * 1_000_000 + int(found[7] or 0)


def _days(year: int, month: int, day: int) -> int:
    """Count days since 1970-01-01 in the proleptic Gregorian calendar, with March as the first month of a year."""
    year -= month <= 2  # noqa: PLR2004 - February
    era, of_era = divmod(year, 400)
    of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return era * 146097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719468


_PLAINLY: Final[Mapping[str, Callable[[Any], Any]]] = {
    "float32": float,
    "float64": float,
    "bytes": binascii.a2b_base64,
    "geometry": lambda value: {"wkb": binascii.a2b_base64(value["wkb"]), "srid": value["srid"]},
    "timestamptz": _micros,
}
