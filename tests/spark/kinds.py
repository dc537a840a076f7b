"""A table with every kind of docs/events.md, and rows with their extremes."""

from __future__ import annotations

from typing import Any

EVERY_KIND: dict[str, dict[str, Any]] = {
    "id": {"kind": "int32"},
    "c_boolean": {"kind": "boolean"},
    "c_int16": {"kind": "int16"},
    "c_int64": {"kind": "int64"},
    "c_uint64": {"kind": "uint64"},
    "c_float32": {"kind": "float32"},
    "c_float64": {"kind": "float64"},
    "c_decimal": {"kind": "decimal", "precision": 20, "scale": 4},
    "c_decimal_tiny": {"kind": "decimal", "precision": 2, "scale": 5},
    "c_decimal_round": {"kind": "decimal", "precision": 3, "scale": -2},
    "c_decimal_any": {"kind": "decimal"},
    "c_decimal_wide": {"kind": "decimal", "precision": 60, "scale": 20},
    "c_string": {"kind": "string"},
    "c_bytes": {"kind": "bytes"},
    "c_json": {"kind": "json"},
    "c_date": {"kind": "date"},
    "c_time": {"kind": "time_micros"},
    "c_millis": {"kind": "timestamp_millis"},
    "c_micros": {"kind": "timestamp_micros"},
    "c_zoned": {"kind": "timestamptz"},
    "c_timetz": {"kind": "timetz"},
    "c_interval": {"kind": "interval"},
    "c_bits": {"kind": "bits"},
    "c_geometry": {"kind": "geometry"},
    "c_vector": {"kind": "vector"},
    "c_texts": {"kind": "array", "element": {"kind": "string"}},
    "c_ints": {"kind": "array", "element": {"kind": "int64"}},
    "c_decimals": {"kind": "array", "element": {"kind": "decimal", "precision": 10, "scale": 2}},
    "c_dates": {"kind": "array", "element": {"kind": "date"}},
    "c_times": {"kind": "array", "element": {"kind": "timestamptz"}},
    "c_binaries": {"kind": "array", "element": {"kind": "bytes"}},
}

SPARK_TYPES = {
    "id": "int",
    "c_boolean": "boolean",
    "c_int16": "int",
    "c_int64": "bigint",
    "c_uint64": "decimal(20,0)",
    "c_float32": "float",
    "c_float64": "double",
    "c_decimal": "decimal(20,4)",
    "c_decimal_tiny": "decimal(5,5)",
    "c_decimal_round": "decimal(5,0)",
    "c_decimal_any": "string",
    "c_decimal_wide": "string",
    "c_string": "string",
    "c_bytes": "binary",
    "c_json": "string",
    "c_date": "date",
    "c_time": "string",
    "c_millis": "timestamp_ntz",
    "c_micros": "timestamp_ntz",
    "c_zoned": "timestamp",
    "c_timetz": "string",
    "c_interval": "string",
    "c_bits": "string",
    "c_geometry": "struct<wkb:binary,srid:int>",
    "c_vector": "array<float>",
    "c_texts": "array<string>",
    "c_ints": "array<bigint>",
    "c_decimals": "array<decimal(10,2)>",
    "c_dates": "array<date>",
    "c_times": "array<timestamp>",
    "c_binaries": "array<binary>",
}


def every_kind_rows() -> list[dict[str, Any]]:
    """Plain values, greatest, least, strange ones, nulls, empty ones."""
    names = [name for name in EVERY_KIND if name != "id"]
    plain = (
        *(True, 1, 2, 3, 3.3, 0.1, "1234.5600", "0.00012", "12300", "1.10", "12.5", "a red umbrella", "AAEC/w=="),
        *('{"b": 1.00, "b": 2}', 19782, 45296123456, 1709208000123, 1709208000123456, "2024-02-29T12:00:00.120000Z"),
        *("12:00:00Z", "P1Y2M3DT4H", "0101", {"wkb": "AQEAAAA=", "srid": 4326}, [0.5, -1.25, 3]),
        *(["a", "NULL", None, '["x"]', "1.0"], [1, None, 2], ["1.10", "2.00"], [0, "infinity"]),
        *(["2024-02-29T12:00:00Z", "infinity"], ["AAE=", ""]),
    )
    greatest = (
        *(False, 32767, 2**63 - 1, 2**64 - 1, 3.4028235e38, 1.7976931348623157e308, "9999999999999999.9999", "0.00099"),
        *("99900", "9" * 50, "9" * 40 + "." + "9" * 20, "\U0001f9e5 \\ \" ' \n\t\x01", "", "[]", 2932896, 86400000000),
        *(253402300799999, 9223372036854775807 // 10 * 10, "+12345-01-01T00:00:00Z", "23:59:59.999999Z", "PT0S", ""),
        *(
            {"wkb": "", "srid": None},
            [],
            [],
            [2**63 - 1],
            ["99999999.99"],
            [2932896],
            ["9999-12-31T23:59:59.999999Z"],
            [],
        ),
    )
    least = (
        *(None, -32768, -(2**63), 0, -1.4e-45, 5e-324, "-9999999999999999.9999", "-0.00099", "-99900", "-0.0", "NaN"),
        *("null", "/w==", "null", -719893, -3020399000000, -62198755200000, -62198755200000000),
        *(
            "-0043-03-15T00:00:00.123456Z",
            "00:00:00+00",
            "P-1Y",
            "1",
            None,
            None,
            ["null", "[1]"],
            [-(2**63)],
            ["-0.01"],
        ),
        *([-719893], ["-0043-03-15T00:00:00Z"], None),
    )
    strange = {
        "c_float32": "NaN",
        "c_float64": "-Infinity",
        "c_decimal_any": "Infinity",
        "c_date": "infinity",
        "c_millis": "-infinity",
        "c_micros": "infinity",
        "c_zoned": "-infinity",
    }
    rows = [dict(zip(names, values, strict=True)) for values in (plain, greatest, least)]
    rows += [{**dict.fromkeys(names), **strange}, dict.fromkeys(names)]
    return [{"id": number, **row} for number, row in enumerate(rows)]


KEY_KINDS = {
    name: EVERY_KIND[name]
    for name in (
        *("id", "c_boolean", "c_int64", "c_uint64", "c_float64", "c_decimal", "c_decimal_any", "c_string", "c_bytes"),
        *("c_date", "c_millis", "c_micros", "c_interval"),
    )
}


def key_rows() -> list[dict[str, Any]]:
    """Rows whose values of `KEY_KINDS` are a key: each differs from the first in one of them alone."""
    plain, greatest, *_ = every_kind_rows()
    first = {name: plain[name] for name in KEY_KINDS}
    return [first, *({**first, name: greatest[name]} for name in KEY_KINDS)]
