"""MySQL's text to JSON, type by type; the same column from the log and from the catalog."""

from __future__ import annotations

import json
import struct

import pytest

from cdc.model.change import Kind
from cdc.model.errors import OperatorError
from connectors.mysql.binlog import table_map
from connectors.mysql.binlog.events import TableColumn
from connectors.mysql.values import mapping

CATALOG = [
    # COLUMN_TYPE, CHARACTER_SET_NAME, type, meta, printed, kind
    ("tinyint(1)", None, table_map.TINY, 0, "tinyint", Kind("int16")),
    ("tinyint unsigned", None, table_map.TINY, 0, "tinyint unsigned", Kind("int16")),
    ("smallint(5) unsigned", None, table_map.SHORT, 0, "smallint unsigned", Kind("int32")),
    ("mediumint(9)", None, table_map.INT24, 0, "mediumint", Kind("int32")),
    ("int(10) unsigned zerofill", None, table_map.LONG, 0, "int unsigned", Kind("int64")),
    ("int", None, table_map.LONG, 0, "int", Kind("int32")),
    ("bigint(20)", None, table_map.LONGLONG, 0, "bigint", Kind("int64")),
    ("bigint unsigned", None, table_map.LONGLONG, 0, "bigint unsigned", Kind("uint64")),
    ("decimal(65,30)", None, table_map.NEWDECIMAL, 65 << 8 | 30, "decimal(65,30)", Kind("decimal", 65, 30)),
    ("float", None, table_map.FLOAT, 4, "float", Kind("float32")),
    ("float(7,4) unsigned", None, table_map.FLOAT, 4, "float unsigned", Kind("float32")),
    ("double", None, table_map.DOUBLE, 8, "double", Kind("float64")),
    ("bit(1)", None, table_map.BIT, 1, "bit(1)", Kind("boolean")),
    ("bit(63)", None, table_map.BIT, 63, "bit(63)", Kind("int64")),
    ("bit(64)", None, table_map.BIT, 64, "bit(64)", Kind("uint64")),
    ("year(4)", None, table_map.YEAR, 0, "year", Kind("int16")),
    ("date", None, table_map.DATE, 0, "date", Kind("date")),
    ("time", None, table_map.TIME2, 0, "time", Kind("time_micros")),
    ("time(6)", None, table_map.TIME2, 6, "time(6)", Kind("time_micros")),
    ("datetime", None, table_map.DATETIME2, 0, "datetime", Kind("timestamp_millis")),
    ("datetime(3)", None, table_map.DATETIME2, 3, "datetime(3)", Kind("timestamp_millis")),
    ("datetime(4)", None, table_map.DATETIME2, 4, "datetime(4)", Kind("timestamp_micros")),
    ("timestamp(6)", None, table_map.TIMESTAMP2, 6, "timestamp(6)", Kind("timestamptz")),
    ("datetime(4) /* mariadb-5.3 */", None, table_map.DATETIME, 4, "datetime(4)", Kind("timestamp_micros")),
    ("time /* mariadb-5.3 */", None, table_map.TIME, 0, "time", Kind("time_micros")),
    ("char(20)", "utf8mb4", table_map.STRING, 80, "char(20)", Kind("string")),
    ("varchar(20)", "utf8mb3", table_map.VARCHAR, 60, "varchar(20)", Kind("string")),
    ("varchar(20) /*M!100301 COMPRESSED*/", "gbk", table_map.VARCHAR_COMPRESSED, 41, "varchar(20)", Kind("string")),
    ("binary(20)", None, table_map.STRING, 20, "binary(20)", Kind("bytes")),
    ("varbinary(300)", None, table_map.VARCHAR, 300, "varbinary(300)", Kind("bytes")),
    ("tinytext", "latin1", table_map.BLOB, 1, "tinytext", Kind("string")),
    ("text", "latin1", table_map.BLOB, 2, "text", Kind("string")),
    ("mediumblob", None, table_map.BLOB, 3, "mediumblob", Kind("bytes")),
    ("longtext", "utf8mb4", table_map.BLOB, 4, "longtext", Kind("string")),
    ("json", None, table_map.JSON, 4, "json", Kind("json")),
    ("point", None, table_map.GEOMETRY, 4, "point", Kind("geometry")),
    ("geomcollection", None, table_map.GEOMETRY, 4, "geometrycollection", Kind("geometry")),
    ("vector(3)", None, table_map.VECTOR, 4, "vector(3)", Kind("vector")),
    ("uuid", None, table_map.STRING, 16, "uuid", Kind("string")),
    ("enum('a','b''c','d,e)')", "utf8mb4", table_map.ENUM, 1, "enum('a','b''c','d,e)')", Kind("string")),
    ("set('a','b')", "utf8mb4", table_map.SET, 1, "set('a','b')", Kind("string")),
]


@pytest.mark.parametrize(("declared", "charset", "kind", "meta", "printed", "expected"), CATALOG)
def test_a_column_of_the_catalog_is_as_the_log_tells_it(  # noqa: PLR0917
    declared: str, charset: str | None, kind: int, meta: int, printed: str, expected: Kind
) -> None:
    told = mapping.from_catalog("v", declared, charset, nullable=True)
    assert (told.name, told.type, told.meta, told.nullable, told.visible) == ("v", kind, meta, True, True)
    column = mapping.column(told)
    assert (column.name, column.type, column.kind) == ("v", printed, expected)


def test_a_column_without_a_name_is_refused_with_the_option_to_set() -> None:
    with pytest.raises(OperatorError) as caught:
        mapping.column(TableColumn(None, table_map.DATE, 0, nullable=True))
    assert caught.value.hint == "SET GLOBAL binlog_row_metadata = FULL"


def test_a_type_that_is_not_known_is_named() -> None:
    with pytest.raises(OperatorError, match="column v: the type quux is not known"):
        mapping.from_catalog("v", "quux", None, nullable=True)


@pytest.mark.parametrize(
    ("declared", "expression"),
    [
        ("int(11)", None),
        ("int(5) unsigned zerofill", "(`a``b` + 0)"),
        ("decimal(5,2) unsigned zerofill", "(`a``b` + 0)"),
        ("float", "(`a``b` * 1e0)"),
        ("double", None),
        ("double unsigned", None),
        ("double(10,2)", "(`a``b` * 1e0)"),
        ("bit(8)", "(`a``b` + 0)"),
        ("year(4)", None),
        ("year(2)", "IF(YEAR(`a``b`) = 1900, '0000', YEAR(`a``b`))"),
        ("timestamp", None),
        ("point", None),
        ("json", None),
        ("enum('zerofill','float(7,2)')", None),
        ("set('int unsigned zerofill','year(2)')", None),
    ],
)
def test_what_a_snapshot_selects(declared: str, expression: str | None) -> None:
    assert mapping.select_expression(mapping.from_catalog("a`b", declared, None, nullable=True)) == expression


JSON = [
    ("bigint unsigned", "18446744073709551615", "18446744073709551615"),
    ("decimal(10,2)", "-0.50", '"-0.50"'),
    ("float", "3.299999952316284", "3.3"),
    ("float", "16777216", "16777216"),
    ("float", "3.4028234663852886e38", "3.4028235e+38"),
    ("float", "1.401298464324817e-45", "1e-45"),
    ("float", "-0", "-0.0"),
    ("double", "1e20", "1e20"),
    ("double", "-0", "-0.0"),
    ("bit(1)", "1", "true"),
    ("bit(1)", "0", "false"),
    ("bit(8)", "255", "255"),
    ("year", "2155", "2155"),
    ("year", "0000", "0"),
    ("date", "1970-01-02", "1"),
    ("date", "0001-01-01", "-719162"),
    ("date", "9999-12-31", "2932896"),
    ("date", "0018-01-01", "-712953"),
    ("time", "-838:59:59", "-3020399000000"),
    ("time(6)", "838:59:58.999999", "3020398999999"),
    ("time(6)", "-00:00:00.000001", "-1"),
    ("time(3)", "12:34:56.789", "45296789000"),
    ("time", "12:34:56", "45296000000"),
    ("datetime", "2024-02-29 12:34:56", "1709210096000"),
    ("datetime(2)", "2024-02-29 12:34:56.12", "1709210096120"),
    ("datetime", "1969-12-31 23:59:59", "-1000"),
    ("datetime(6)", "1969-12-31 23:59:59.999999", "-1"),
    ("datetime(6)", "2024-02-29 12:34:56.789123", "1709210096789123"),
    ("datetime(4)", "1000-01-01 00:00:00.0001", "-30610223999999900"),
    ("timestamp", "2024-02-29 12:34:56", '"2024-02-29T12:34:56Z"'),
    ("timestamp(3)", "2024-02-29 12:34:56.000", '"2024-02-29T12:34:56Z"'),
    ("timestamp(3)", "2024-02-29 12:34:56.100", '"2024-02-29T12:34:56.100000Z"'),
    ("timestamp(6)", "2024-02-29 12:34:56.000001", '"2024-02-29T12:34:56.000001Z"'),
    ("varchar(20)", 'say "é"\n', '"say \\"é\\"\\n"'),
    ("json", '{"a": 1, "b": [1, 2]}', '"{\\"a\\": 1, \\"b\\": [1, 2]}"'),
    ("set('a','b')", "a,b", '"a,b"'),
    ("set('a','b')", "", '""'),
    ("uuid", "123e4567-e89b-12d3-a456-426655440000", '"123e4567-e89b-12d3-a456-426655440000"'),
]


@pytest.mark.parametrize(("declared", "text", "expected"), JSON)
@pytest.mark.parametrize("nullable", [True, False])
def test_a_text_becomes_json(declared: str, text: str, expected: str, nullable: bool) -> None:
    charset = "utf8mb4" if declared.startswith(("varchar", "set")) else None
    column = mapping.column(mapping.from_catalog("v", declared, charset, nullable=nullable))
    encoded = column.encode(text.encode())
    assert encoded.decode() == expected
    json.loads(encoded)


ZEROS = [
    ("date", "0000-00-00"),
    ("date", "2024-00-00"),
    ("date", "2024-02-30"),
    ("datetime", "0000-00-00 00:00:00"),
    ("datetime(3)", "2024-01-00 12:34:56.789"),
    ("datetime(6)", "2023-02-29 12:34:56.789123"),
    ("timestamp", "0000-00-00 00:00:00"),
    ("timestamp(6)", "0000-00-00 00:00:00.000000"),
]


@pytest.mark.parametrize(("declared", "text"), ZEROS)
def test_a_day_that_is_not_is_null_where_the_column_allows_it_else_its_text(declared: str, text: str) -> None:
    nullable, required = (
        mapping.column(mapping.from_catalog("v", declared, None, nullable=allows)).encode for allows in (True, False)
    )
    assert nullable(text.encode()) == b"null"
    assert json.loads(required(text.encode()))[:10] == text[:10]


def test_bytes_geometry_and_vectors() -> None:
    def encode(declared: str, raw: bytes) -> object:
        return json.loads(mapping.column(mapping.from_catalog("v", declared, None, nullable=True)).encode(raw))

    assert encode("varbinary(9)", b"\x00\xff\x10") == "AP8Q"
    assert encode("blob", b"") == ""
    point = struct.pack("<IBIdd", 4326, 1, 1, 1.0, 2.0)
    assert encode("point", point) == {"wkb": "AQEAAAAAAAAAAADwPwAAAAAAAABA", "srid": 4326}
    assert encode("vector(3)", struct.pack("<3f", 1, -2.5, 3.3)) == [1, -2.5, 3.3]
    assert encode("vector(3)", b"") == []


@pytest.mark.parametrize(
    ("declared", "raw"),
    [
        ("varchar(9)", b"\xff secret"),
        ("bit(1)", b"secret"),
        ("date", b"secret"),
        ("date", b"2024-1-1"),
        ("time", b"secret"),
        ("datetime", b"2024-01-01Tsecret"),
        ("datetime", b"2024-01-01 12:34"),
        ("datetime(3)", b"2024-01-01 12:34:56.7891"),
        ("datetime(6)", b"2024-01-01 12:34:56."),
        ("timestamp", b"secret"),
        ("timestamp", b"2024-01-01 12:34:56+secret"),
        ("timestamp(6)", b"2024-01-01 12:34:56.1234567"),
        ("point", b"secret"),
        ("vector(3)", b"secret"),
    ],
)
def test_what_is_not_of_the_type_is_a_value_error_without_it(declared: str, raw: bytes) -> None:
    charset = "utf8mb4" if declared.startswith("varchar") else None
    encode = mapping.column(mapping.from_catalog("v", declared, charset, nullable=True)).encode
    with pytest.raises(ValueError) as caught:
        encode(raw)
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None
