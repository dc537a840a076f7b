"""Maps the kinds of docs/events.md to Spark types, and text to values of them. Columns only, no I/O.

    kind                                stored as       note
    int16, int32                        INT
    int64                               BIGINT
    uint64                              DECIMAL(20,0)
    float32, float64                    FLOAT, DOUBLE   NaN and the infinities are values
    decimal, precision <= 38 declared   DECIMAL(p,s)    NaN and the infinities do not fit
    decimal, any other                  STRING          the server's digits
    boolean                             BOOLEAN
    bytes                               BINARY
    date                                DATE            infinity: 9999-12-31, -infinity: 0001-01-01
    time_micros                         STRING          [-]HH:MM:SS.ffffff; Spark has no time of day
    timestamp_millis, timestamp_micros  TIMESTAMP_NTZ   infinity: 9999-12-31 23:59:59.999999, -infinity: 0001-01-01
    timestamptz                         TIMESTAMP       the same
    geometry                            STRUCT<wkb BINARY, srid INT>
    vector                              ARRAY<FLOAT>
    array                               ARRAY<element>  one dimension
    string, json, bits, timetz,         STRING
    interval, any other

A value that does not fit becomes null here, and its text is not null: that is how `spark_apply.events.typed` finds it.
In a key, the infinities of dates and times do not fit: their stand-ins could meet the same value meant as itself.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses
from pyspark.sql import types as T  # noqa: N812 - the same

from cdc.model.change import Kind
from spark_apply.spark.json_reader import read_json

TEXT = Kind("string")
"""The kind of a column that ``types: {column: string}`` keeps as text."""

MAX_DECIMAL_PRECISION = 38
_UINT64_PRECISION = 20
_MAX_MILLIS = (2**63 - 1) // 1000

ONE_TEXT = ("uint64", "bytes")
"""Kinds of which each value has one text, although they are stored as types of which that is not so."""

_PLAIN: dict[str, T.DataType] = {
    "boolean": T.BooleanType(),
    "int16": T.IntegerType(),
    "int32": T.IntegerType(),
    "int64": T.LongType(),
    "uint64": T.DecimalType(_UINT64_PRECISION, 0),
    "float32": T.FloatType(),
    "float64": T.DoubleType(),
    "bytes": T.BinaryType(),
    "date": T.DateType(),
    "timestamp_millis": T.TimestampNTZType(),
    "timestamp_micros": T.TimestampNTZType(),
    "timestamptz": T.TimestampType(),
    "geometry": T.StructType([T.StructField("wkb", T.BinaryType()), T.StructField("srid", T.IntegerType())]),
    "vector": T.ArrayType(T.FloatType()),
}


def spark_type(kind: Kind) -> T.DataType:
    """Return the Spark type that holds values of `kind`."""
    if kind.name == "decimal":
        return _decimal(kind) or T.StringType()
    if kind.name == "array" and kind.element is not None:
        return T.ArrayType(spark_type(kind.element))
    return _PLAIN.get(kind.name, T.StringType())


def kind_of(found: T.DataType) -> Kind | None:
    """Return the kind whose values are stored as `found`, or as a wider type; None if there is none."""
    if isinstance(found, T.DecimalType):
        return Kind("decimal", found.precision, found.scale)
    if isinstance(found, T.ArrayType):
        element = kind_of(found.elementType)
        return None if element is None or element.name == "array" else Kind("array", element=element)
    return next((Kind(name) for types, name in _KIND_NAMES if isinstance(found, types)), None)


_KIND_NAMES: tuple[tuple[tuple[type[T.DataType], ...], str], ...] = (
    ((T.BooleanType,), "boolean"),
    ((T.ByteType, T.ShortType, T.IntegerType), "int32"),
    ((T.LongType,), "int64"),
    ((T.FloatType,), "float32"),
    ((T.DoubleType,), "float64"),
    ((T.StringType,), "string"),
    ((T.BinaryType,), "bytes"),
    ((T.DateType,), "date"),
    ((T.TimestampNTZType,), "timestamp_micros"),
    ((T.TimestampType,), "timestamptz"),
)


def _decimal(kind: Kind) -> T.DecimalType | None:
    if kind.precision is None:
        return None
    scale = kind.scale or 0
    precision = max(kind.precision - min(scale, 0), scale)  # PostgreSQL has scales below 0 and above the precision
    return T.DecimalType(precision, max(scale, 0)) if precision <= MAX_DECIMAL_PRECISION else None


def common_kind(one: Kind, other: Kind) -> Kind | None:
    """Return the kind that holds all values of both and to which a table can be altered in place, or None."""
    first, second = spark_type(one), spark_type(other)
    if first == second:
        return one
    if isinstance(first, T.DecimalType) and isinstance(second, T.DecimalType):
        if first.scale != second.scale:
            return None
        return one if first.precision >= second.precision else other
    for narrow, wide in ((T.IntegerType, T.LongType), (T.FloatType, T.DoubleType)):
        if {type(first), type(second)} == {narrow, wide}:
            return one if isinstance(first, wide) else other
    return None


def joint_kind(one: Kind, other: Kind) -> Kind:
    """Return a kind that holds all values of both: that of `common_kind`, or else a decimal, or else text.

    What is no common kind is for what is made again: no table may be altered to it.
    """
    common, first, second = common_kind(one, other), _digits(one), _digits(other)
    if common is not None:
        return common
    if first is None or second is None:
        return TEXT
    scale = max(first[1], second[1])
    precision = max(first[0] - first[1], second[0] - second[1]) + scale
    return Kind("decimal", precision, scale) if precision <= MAX_DECIMAL_PRECISION else TEXT


def _digits(kind: Kind) -> tuple[int, int] | None:
    """Return how many digits a value has at most, and how many of them behind the point; None: it is not exact."""
    of = spark_type(kind)
    if isinstance(of, T.DecimalType):
        return of.precision, of.scale
    return (19, 0) if isinstance(of, T.IntegerType | T.LongType) else None


def value(kind: Kind, text: Column, *, stored_as: T.DataType, key: bool = False) -> Column:
    """Convert `text` (JSON of a value, strings without quotes) to `stored_as`; null for null and for a misfit."""
    parse = _PARSERS.get(kind.name)
    if isinstance(stored_as, T.StringType):
        return _time_of_day(text) if kind.name == "time_micros" else text
    if kind.name == "decimal":
        return _decimal_value(text, stored_as)
    if kind.name == "array" and isinstance(stored_as, T.ArrayType) and kind.element is not None:
        return _array(kind.element, text, stored_as.elementType)
    if parse is None:
        return text
    parsed = parse(text).try_cast(stored_as) if kind.name.startswith(("int", "uint", "float")) else parse(text)
    if kind.name not in _INFINITE or key:
        return parsed
    first, last = _INFINITE[kind.name]
    return (
        F.when(text == "infinity", F.lit(last).cast(stored_as))
        .when(text == "-infinity", F.lit(first).cast(stored_as))
        .otherwise(parsed)
    )


def may_misfit(kind: Kind) -> bool:
    """Whether some text of `kind` can fail to become a value."""
    return not isinstance(spark_type(kind), T.StringType) or kind.name == "time_micros"


def _decimal_value(text: Column, stored_as: T.DataType) -> Column:
    scale = stored_as.scale if isinstance(stored_as, T.DecimalType) else 0
    digits = F.length(F.substring_index(text, ".", -1))
    rounds = F.contains(text, F.lit(".")) & (digits > scale)  # a cast would round without a word
    return F.when(~rounds, text.try_cast(stored_as))


def _array(element: Kind, text: Column, stored_as: T.DataType) -> Column:
    raw = read_json(text, T.ArrayType(T.StringType()))
    misfit = F.lit(False)  # noqa: FBT003 - a literal column
    if element.name not in ("array", "vector"):
        misfit = text.rlike(r"^\s*\[\s*\[")  # more dimensions than one: elements would be taken for text
    if may_misfit(element):
        misfit |= F.exists(raw, lambda item: item.isNotNull() & value(element, item, stored_as=stored_as).isNull())
        return F.when(~misfit, F.transform(raw, lambda item: value(element, item, stored_as=stored_as)))
    return F.when(~misfit, raw)


def _vector(text: Column) -> Column:
    raw = read_json(text, T.ArrayType(T.StringType()))
    misfit = F.exists(raw, lambda item: item.try_cast("float").isNull())
    return F.when(~misfit, F.transform(raw, lambda item: item.try_cast("float")))


def _geometry(text: Column) -> Column:
    raw = read_json(text, "wkb string, srid string")
    wkb = F.try_to_binary(raw["wkb"], F.lit("base64"))
    srid = raw["srid"].try_cast("int")
    misfit = wkb.isNull() | (raw["srid"].isNotNull() & srid.isNull())
    return F.when(~misfit, F.struct(wkb.alias("wkb"), srid.alias("srid")))


def _time_of_day(text: Column) -> Column:
    micros = text.try_cast("bigint")
    size = F.abs(micros)
    seconds = _div(size, 1_000_000)
    return F.when(
        micros.isNotNull(),
        F.format_string(
            "%s%02d:%02d:%02d.%06d",
            F.when(micros < 0, "-").otherwise(""),
            _div(seconds, 3600),
            _div(seconds, 60) % 60,
            seconds % 60,
            size % 1_000_000,
        ),
    )


def _div(dividend: Column, divisor: int) -> Column:
    return F.call_function("div", dividend, F.lit(divisor))


def _millis(text: Column) -> Column:
    millis = text.try_cast("bigint")
    return F.when(F.abs(millis) <= _MAX_MILLIS, F.timestamp_millis(millis)).cast("timestamp_ntz")


_PARSERS: dict[str, Callable[[Column], Column]] = {
    "boolean": lambda text: text.try_cast("boolean"),
    "int16": lambda text: text,
    "int32": lambda text: text,
    "int64": lambda text: text,
    "uint64": lambda text: text,
    "float32": lambda text: text,
    "float64": lambda text: text,
    "bytes": lambda text: F.try_to_binary(text, F.lit("base64")),
    "date": lambda text: F.date_from_unix_date(text.try_cast("int")),
    "timestamp_millis": _millis,
    "timestamp_micros": lambda text: F.timestamp_micros(text.try_cast("bigint")).cast("timestamp_ntz"),
    "timestamptz": lambda text: text.try_cast("timestamp"),
    "geometry": _geometry,
    "vector": _vector,
}

_LAST, _FIRST = "9999-12-31", "0001-01-01"
_INFINITE: dict[str, tuple[str, str]] = {
    "date": (_FIRST, _LAST),
    "timestamp_millis": (f"{_FIRST} 00:00:00", f"{_LAST} 23:59:59.999999"),
    "timestamp_micros": (f"{_FIRST} 00:00:00", f"{_LAST} 23:59:59.999999"),
    "timestamptz": (f"{_FIRST} 00:00:00Z", f"{_LAST} 23:59:59.999999Z"),
}
"""The values that -infinity and infinity are stored as."""
