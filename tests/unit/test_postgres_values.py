"""Every PostgreSQL type and its extremes: server text in, JSON text out."""

from __future__ import annotations

import json

import pytest

from cdc.model.change import Kind
from cdc.model.errors import BugError
from connectors.postgres.values import mapping
from connectors.postgres.values.mapping import TypeInfo, column

NUMERIC_10_2 = (10 << 16 | 2) + 4
HEADER = 4

_BUILTINS = {
    "bool": 16, "bytea": 17, "char": 18, "name": 19, "int8": 20, "int2": 21, "int4": 23, "text": 25, "oid": 26,
    "xid": 28, "json": 114, "xml": 142, "box": 603, "point": 600, "float4": 700, "float8": 701, "money": 790,
    "bpchar": 1042, "varchar": 1043, "date": 1082, "time": 1083, "timestamp": 1114, "timestamptz": 1184,
    "interval": 1186, "timetz": 1266, "bit": 1560, "varbit": 1562, "numeric": 1700, "uuid": 2950, "tsvector": 3614,
    "jsonb": 3802, "inet": 869, "cidr": 650, "macaddr": 829, "macaddr8": 774, "pg_lsn": 3220, "tid": 27,
}  # fmt: skip
_USER = {"hstore": 90000, "geometry": 90001, "geography": 90002, "vector": 90003, "halfvec": 90004, "ltree": 90005}
ARRAY_OF = 100_000  # the oid of an array type here: its element's plus this


def _catalog() -> dict[int, TypeInfo]:
    found = []
    plain = {"bool", "int2", "int4", "int8", "float4", "float8", "date", "time", "timestamp", "timestamptz", "uuid"}
    for name, oid in (_BUILTINS | _USER).items():
        schema = "public" if name in _USER else "pg_catalog"
        delimiter = {"box": ";", "geometry": ":", "geography": ":"}.get(name, ",")
        found.append(TypeInfo(oid, name, schema, "b", 0, -1, 0, delimiter, toastable=name not in plain))
    found += [
        TypeInfo(91000, "mood", "public", "e", 0, -1, 0, ",", toastable=False),
        TypeInfo(91001, "pair", "public", "c", 0, -1, 0, ",", toastable=True),
        TypeInfo(91002, "int4range", "pg_catalog", "r", 0, -1, 0, ",", toastable=True),
        TypeInfo(91003, "datemultirange", "pg_catalog", "m", 0, -1, 0, ",", toastable=True),
        TypeInfo(91010, "price", "public", "d", 1700, NUMERIC_10_2, 0, ",", toastable=True),
        TypeInfo(91011, "low price", "Shop", "d", 91010, -1, 0, ",", toastable=True),
        TypeInfo(91012, "flag", "public", "d", 1560, 1, 0, ",", toastable=True),
        TypeInfo(91013, "counts", "public", "d", ARRAY_OF + 23, -1, 0, ",", toastable=True),
        TypeInfo(91014, "instant", "public", "d", 1114, 3, 0, ",", toastable=False),
        TypeInfo(22, "int2vector", "pg_catalog", "b", 0, -1, 0, ",", toastable=False),
    ]
    for info in tuple(found):
        array = TypeInfo(
            info.oid + ARRAY_OF, f"_{info.name}", info.schema, "b", 0, -1, info.oid, info.delimiter, toastable=True
        )
        found.append(array)
    return {info.oid: info for info in found}


CATALOG = _catalog()
OIDS = {info.name: info.oid for info in CATALOG.values()}


def _encode(name: str, text: str, typmod: int = -1) -> str:
    return column("c", OIDS[name], typmod, CATALOG).encode(text.encode()).decode()


VALUES = [
    ("int2", "-32768", "-32768"),
    ("int4", "2147483647", "2147483647"),
    ("int8", "-9223372036854775808", "-9223372036854775808"),
    ("oid", "4294967295", "4294967295"),
    ("numeric", "22.2200", '"22.2200"'),
    ("numeric", "-0.000000000000000000000000000000000000001", '"-0.000000000000000000000000000000000000001"'),
    ("numeric", "NaN", '"NaN"'),
    ("numeric", "-Infinity", '"-Infinity"'),
    ("money", "$0.00", '"0.00"'),
    ("money", "-$92,233,720,368,547,758.08", '"-92233720368547758.08"'),
    ("float4", "3.3", "3.3"),
    ("float4", "1e-45", "1e-45"),
    ("float8", "1.7976931348623157e+308", "1.7976931348623157e+308"),
    ("float8", "-0", "-0.0"),
    ("float8", "-0.5", "-0.5"),
    ("float8", "NaN", '"NaN"'),
    ("float8", "Infinity", '"Infinity"'),
    ("float8", "-Infinity", '"-Infinity"'),
    ("bool", "t", "true"),
    ("bool", "f", "false"),
    ("text", "", '""'),
    ("text", 'a "b" \\ c/\n\t\r\x01\x1f', r'"a \"b\" \\ c/\n\t\r\u0001\u001f"'),
    ("text", "\x7f é € \U0001f600 \u2028", '"\x7f é € \U0001f600 \u2028"'),
    ("bpchar", "ab   ", '"ab   "'),
    ("varchar", "null", '"null"'),
    ("char", "\x01", r'"\u0001"'),
    ("char", "\\377", r'"\\377"'),
    ("name", "orders", '"orders"'),
    ("xml", '<a b="c"/>', r'"<a b=\"c\"/>"'),
    ("uuid", "00000000-0000-0000-0000-000000000000", '"00000000-0000-0000-0000-000000000000"'),
    ("bytea", "\\x", '""'),
    ("bytea", "\\x00ff10", '"AP8Q"'),
    ("json", '{"a" : 1,  "a": 1.00}', r'"{\"a\" : 1,  \"a\": 1.00}"'),
    ("jsonb", "null", '"null"'),
    ("date", "1970-01-01", "0"),
    ("date", "1969-12-31", "-1"),
    ("date", "2024-02-29", "19782"),
    ("date", "0001-01-01", "-719162"),
    ("date", "0001-12-31 BC", "-719163"),
    ("date", "4714-11-24 BC", "-2440588"),
    ("date", "5874897-12-31", "2145042905"),
    ("date", "infinity", '"infinity"'),
    ("date", "-infinity", '"-infinity"'),
    ("time", "00:00:00", "0"),
    ("time", "00:00:00.000001", "1"),
    ("time", "00:00:01", "1000000"),
    ("time", "23:59:59.5", "86399500000"),
    ("time", "24:00:00", "86400000000"),
    ("timetz", "12:34:56.5+00", '"12:34:56.500000Z"'),
    ("timetz", "00:30:00+01", '"23:30:00Z"'),
    ("timetz", "23:30:00-05:30", '"05:00:00Z"'),
    ("timetz", "12:00:00+00:19:32", '"11:40:28Z"'),
    ("timetz", "00:00:00+15:59:59", '"08:00:01Z"'),
    ("timetz", "24:00:00+00", '"24:00:00Z"'),
    ("timetz", "24:00:00-01", '"01:00:00Z"'),
    ("timetz", "24:00:00+01", '"23:00:00Z"'),
    ("timestamp", "1970-01-01 00:00:00", "0"),
    ("timestamp", "1970-01-01 00:00:00.000001", "1"),
    ("timestamp", "1970-01-01 00:00:01", "1000000"),
    ("timestamp", "1969-12-31 23:59:59.999999", "-1"),
    ("timestamp", "2024-02-29 12:34:56.12", "1709210096120000"),
    ("timestamp", "0001-02-29 00:00:00 BC", "-62162121600000000"),
    ("timestamp", "0044-03-15 12:00:00 BC", "-63517780800000000"),
    ("timestamp", "2025-02-29 00:00:00 BC", "-126033408000000000"),
    ("timestamp", "0044-03-15 12:00:00.123 BC", "-63517780799877000"),
    ("timestamp", "4714-11-24 00:00:00 BC", "-210866803200000000"),
    ("timestamp", "294276-12-31 23:59:59.999999", "9224318015999999999"),
    ("timestamp", "infinity", '"infinity"'),
    ("timestamp", "-infinity", '"-infinity"'),
    ("timestamptz", "2024-02-29 12:34:56+00", '"2024-02-29T12:34:56Z"'),
    ("timestamptz", "2024-02-29 12:34:56.123456+00", '"2024-02-29T12:34:56.123456Z"'),
    ("timestamptz", "2024-02-29 12:34:56.1+00", '"2024-02-29T12:34:56.100000Z"'),
    ("timestamptz", "2024-02-29 23:34:56.12345-01:30", '"2024-03-01T01:04:56.123450Z"'),
    ("timestamptz", "10000-01-01 00:00:00.12345+00", '"+10000-01-01T00:00:00.123450Z"'),
    ("timestamptz", "10000-01-01 00:00:00+01", '"9999-12-31T23:00:00Z"'),
    ("timestamptz", "294276-12-31 23:59:59.999999+00", '"+294276-12-31T23:59:59.999999Z"'),
    ("timestamptz", "0001-01-01 00:00:00+00", '"0001-01-01T00:00:00Z"'),
    ("timestamptz", "0001-12-31 00:00:00+00 BC", '"0000-12-31T00:00:00Z"'),
    ("timestamptz", "0044-03-15 00:00:00.5+00 BC", '"-0043-03-15T00:00:00.500000Z"'),
    ("timestamptz", "4714-11-24 00:00:00+00 BC", '"-4713-11-24T00:00:00Z"'),
    ("timestamptz", "-infinity", '"-infinity"'),
    ("interval", "P1Y2M-3DT4H5M6.789S", '"P1Y2M-3DT4H5M6.789S"'),
    ("interval", "PT0S", '"PT0S"'),
    ("bit", "1", '"1"'),
    ("varbit", "", '""'),
    ("varbit", "0101", '"0101"'),
    ("inet", "::1/64", '"::1/64"'),
    ("cidr", "10.0.0.0/8", '"10.0.0.0/8"'),
    ("macaddr", "08:00:2b:01:02:03", '"08:00:2b:01:02:03"'),
    ("pg_lsn", "16/B374D848", '"16/B374D848"'),
    ("tid", "(0,1)", '"(0,1)"'),
    ("xid", "4294967295", '"4294967295"'),
    ("int2vector", "1 2", '"1 2"'),
    ("tsvector", "'a':1A 'b''c':2", "\"'a':1A 'b''c':2\""),
    ("point", "(1,2)", '"(1,2)"'),
    ("box", "(1,1),(0,0)", '"(1,1),(0,0)"'),
    ("mood", 'very "happy"', r'"very \"happy\""'),
    ("pair", '(1,"a ""b""")', r'"(1,\"a \"\"b\"\"\")"'),
    ("int4range", "[1,5)", '"[1,5)"'),
    ("datemultirange", "{}", '"{}"'),
    ("price", "1.50", '"1.50"'),
    ("low price", "1.50", '"1.50"'),
    ("flag", "1", "true"),
    ("counts", "{1,NULL}", "[1,null]"),
    ("instant", "1970-01-01 00:00:01.5", "1500"),
    ("hstore", "", r'"{}"'),
    ("hstore", '"a"=>"1", "b"=>NULL', r'"{\"a\":\"1\",\"b\":null}"'),
    ("hstore", r'"q\"\\"=>"NULL, \"x\"=>"', r'"{\"q\\\"\\\\\":\"NULL, \\\"x\\\"=>\"}"'),
    ("geometry", "0101000000000000000000F03F0000000000000040", '{"wkb":"AQEAAAAAAAAAAADwPwAAAAAAAABA","srid":0}'),
    (
        "geography",
        "0101000020E6100000000000000000F03F0000000000000040",
        '{"wkb":"AQEAACDmEAAAAAAAAAAA8D8AAAAAAAAAQA==","srid":4326}',
    ),
    (
        "geometry",
        "0020000001000010E63FF00000000000004000000000000000",
        '{"wkb":"ACAAAAEAABDmP/AAAAAAAABAAAAAAAAAAA==","srid":4326}',
    ),
    ("vector", "[1,-2.5,3e-05]", "[1,-2.5,3e-05]"),
    ("halfvec", "[1]", "[1]"),
    ("ltree", "a.b", '"a.b"'),
]

ARRAYS = [
    ("int4", "{}", "[]"),
    ("int4", "{1,NULL,-3}", "[1,null,-3]"),
    ("int8", "{{1,2},{NULL,4}}", "[[1,2],[null,4]]"),
    ("int4", "[0:1]={1,2}", '"[0:1]={1,2}"'),
    ("int4", "[1:1][-2:-1]={{1,2}}", '"[1:1][-2:-1]={{1,2}}"'),
    ("text", "{}", "[]"),
    ("text", "{NULL}", "[null]"),
    ("text", '{"NULL"}', '["NULL"]'),
    ("text", '{"null",nulls,""}', '["null","nulls",""]'),
    ("text", r'{"a\"b","c\\d","e,f","{g}"," h"}', r'["a\"b","c\\d","e,f","{g}"," h"]'),
    ("text", "{a,é}", '["a","é"]'),
    ("text", '{"a\nb",é}', r'["a\nb","é"]'),
    ("text", '{{a,b},{NULL,"d e"}}', '[["a","b"],[null,"d e"]]'),
    ("text", '{{{"}"}},{{"{"}}}', '[[["}"]],[["{"]]]'),
    ("text", '[2:2]={"a b"}', r'"[2:2]={\"a b\"}"'),
    ("bool", "{t,f,NULL}", "[true,false,null]"),
    ("float8", "{1.5,NaN,-Infinity,NULL,1e+20}", '[1.5,"NaN","-Infinity",null,1e+20]'),
    ("float8", "{{1.5,2},{3,4}}", "[[1.5,2],[3,4]]"),
    ("float8", "{1,-0,-0.5,0}", "[1,-0.0,-0.5,0]"),
    ("float4", "[0:0]={1.5}", '"[0:0]={1.5}"'),
    ("numeric", "{1.10,NaN}", '["1.10","NaN"]'),
    ("money", '{"-$1,000.00",$2.00}', '["-1000.00","2.00"]'),
    ("bytea", r'{"\\x00ff","\\x"}', '["AP8=",""]'),
    ("json", r'{"{\"a\": [1, 2]}",1}', r'["{\"a\": [1, 2]}","1"]'),
    ("date", "{2024-02-29,infinity}", '[19782,"infinity"]'),
    ("timestamp", '{"1970-01-01 00:00:01",infinity}', '[1000000,"infinity"]'),
    ("timestamptz", '{"0044-03-15 00:00:00+00 BC"}', '["-0043-03-15T00:00:00Z"]'),
    ("time", "{24:00:00}", "[86400000000]"),
    ("box", "{(1,1),(0,0);(2,2),(0,0)}", '["(1,1),(0,0)","(2,2),(0,0)"]'),
    ("point", '{"(1,2)","(3,4)"}', '["(1,2)","(3,4)"]'),
    (
        "geometry",
        "{0101000000000000000000F03F0000000000000040:NULL}",
        '[{"wkb":"AQEAAAAAAAAAAADwPwAAAAAAAABA","srid":0},null]',
    ),
    ("vector", '{"[1,2]","[3]"}', "[[1,2],[3]]"),
    ("hstore", r'{"\"a\"=>NULL"}', r'["{\"a\":null}"]'),
    ("mood", '{ok,"very happy"}', '["ok","very happy"]'),
    ("pair", r'{"(1,\"a b\")","(,)"}', r'["(1,\"a b\")","(,)"]'),
    ("low price", "{1.50}", '["1.50"]'),
    ("flag", "{1,0,NULL}", "[true,false,null]"),
    ("counts", '{"{1,2}","{}"}', "[[1,2],[]]"),
    ("int4range", '{"[1,5)",empty}', '["[1,5)","empty"]'),
]


@pytest.mark.parametrize(("name", "text", "expected"), VALUES)
def test_value(name: str, text: str, expected: str) -> None:
    """The mapping, type by type; what comes out is always JSON."""
    assert _encode(name, text) == expected
    json.loads(expected)


@pytest.mark.parametrize(("name", "text", "expected"), ARRAYS)
def test_array(name: str, text: str, expected: str) -> None:
    """An array is the array of its elements' mapping."""
    assert _encode(f"_{name}", text) == expected
    json.loads(expected)


@pytest.mark.parametrize(
    ("name", "typmod", "text", "expected"),
    [
        ("bit", 1, "1", "true"),
        ("bit", 1, "0", "false"),
        ("bit", 2, "01", '"01"'),
        ("varbit", 1, "1", '"1"'),
        ("_bit", 1, "{1,0}", "[true,false]"),
        ("_bit", 2, "{10,01}", '["10","01"]'),
        ("timestamp", 0, "1970-01-01 00:00:01", "1000"),
        ("timestamp", 3, "2024-02-29 12:34:56.1", "1709210096100"),
        ("timestamp", 3, "1969-12-31 23:59:59.999", "-1"),
        ("timestamp", 3, "1970-01-01 00:00:00", "0"),
        ("timestamp", 3, "infinity", '"infinity"'),
        ("timestamp", 3, "0044-03-15 12:00:00.12 BC", "-63517780799880"),
        ("timestamp", 4, "1970-01-01 00:00:01", "1000000"),
        ("_timestamp", 3, '{"1970-01-01 00:00:01"}', "[1000]"),
    ],
)
def test_modifiers_choose_the_mapping(name: str, typmod: int, text: str, expected: str) -> None:
    assert _encode(name, text, typmod) == expected


@pytest.mark.parametrize(
    ("name", "typmod", "kind"),
    [
        ("numeric", -1, Kind("decimal")),
        ("numeric", NUMERIC_10_2, Kind("decimal", 10, 2)),
        ("numeric", (3 << 16 | (-2 & 0x7FF)) + HEADER, Kind("decimal", 3, -2)),
        ("low price", -1, Kind("decimal", 10, 2)),
        ("_low price", -1, Kind("array", element=Kind("decimal", 10, 2))),
        ("money", -1, Kind("decimal")),
        ("bit", 1, Kind("boolean")),
        ("bit", 8, Kind("bits")),
        ("flag", -1, Kind("boolean")),
        ("timestamp", -1, Kind("timestamp_micros")),
        ("timestamp", 3, Kind("timestamp_millis")),
        ("instant", -1, Kind("timestamp_millis")),
        ("counts", -1, Kind("array", element=Kind("int32"))),
        ("_counts", -1, Kind("array", element=Kind("array", element=Kind("int32")))),
        ("hstore", -1, Kind("json")),
        ("geography", -1, Kind("geometry")),
        ("halfvec", -1, Kind("vector")),
        ("mood", -1, Kind("string")),
        ("int2vector", -1, Kind("string")),
    ],
)
def test_kind(name: str, typmod: int, kind: Kind) -> None:
    assert column("c", OIDS[name], typmod, CATALOG).kind == kind


@pytest.mark.parametrize(
    ("name", "typmod", "printed"),
    [
        ("int8", -1, "bigint"),
        ("float8", -1, "double precision"),
        ("numeric", NUMERIC_10_2, "numeric(10,2)"),
        ("numeric", (3 << 16 | (-2 & 0x7FF)) + HEADER, "numeric(3,-2)"),
        ("varchar", 24, "character varying(20)"),
        ("bpchar", 5, "character(1)"),
        ("bpchar", -1, "bpchar"),
        ("char", -1, '"char"'),
        ("bit", 1, "bit(1)"),
        ("bit", -1, '"bit"'),
        ("varbit", 5, "bit varying(5)"),
        ("timestamp", 3, "timestamp(3) without time zone"),
        ("timestamptz", -1, "timestamp with time zone"),
        ("timetz", 0, "time(0) with time zone"),
        ("interval", -1, "interval"),
        ("interval", 0x1C08 << 16 | 3, "interval day to second(3)"),
        ("interval", 0x7FFF << 16 | 0, "interval(0)"),
        ("interval", 4 << 16 | 0xFFFF, "interval year"),
        ("_text", -1, "text[]"),
        ("_varchar", 24, "character varying(20)[]"),
        ("_timestamptz", 3, "timestamp(3) with time zone[]"),
        ("vector", 3, "public.vector(3)"),
        ("low price", -1, '"Shop"."low price"'),
        ("_low price", -1, '"Shop"."low price"[]'),
    ],
)
def test_type_is_printed_as_the_server_does(name: str, typmod: int, printed: str) -> None:
    assert column("c", OIDS[name], typmod, CATALOG).type == printed


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("text", b"caf\xe9"),
        ("_text", b"{caf\xe9}"),
        ("_text", b'[0:0]={"caf\xe9"}'),
        ("hstore", b'"caf\xe9"=>NULL'),
        ("bool", b"true"),
        ("flag", b"2"),
        ("money", b"1.000,00 EUR"),
        ("bytea", b"abc"),
        ("bytea", b"\\x0g"),
        ("date", b"05/03/2024"),
        ("date", b"2023-02-29"),
        ("time", b"12.34"),
        ("timetz", b"12:34:56"),
        ("timestamp", b"05.03.2024 12:34:56"),
        ("timestamp", b"2024-03-05 12:34:5x"),
        ("timestamptz", b"Tue Mar 5 12:34:56 2024 UTC"),
        ("instant", b"1970-01-01 00:00:00.1234"),
        ("hstore", b'"a"=>1'),
        ("geometry", b"0101"),
        ("geometry", b"POINT(1 2)"),
        ("_text", b""),
        ("_text", b"1,2"),
        ("_text", b"{1,2"),
        ("_text", b'{"a""b"}'),
        ("_text", b'{"a"}}'),
        ("_text", b'{{"a"}{"b"}}'),
        ("_text", b'{"a"}{"b"}'),
        ("_text", b'{"a",}'),
        ("_text", b'{"a"},'),
        ("_text", b'{"a'),
    ],
)
def test_text_that_is_not_of_the_type_is_refused_without_being_shown(name: str, text: bytes) -> None:
    """ValueError says what was expected; neither it nor its causes repeat the row's value."""
    with pytest.raises(ValueError, match=r"\w+") as caught:
        column("c", OIDS[name], -1, CATALOG).encode(text)
    error: BaseException | None = caught.value
    while error is not None:
        assert not text or text.decode("latin-1") not in str(error)
        assert not isinstance(error, UnicodeDecodeError)
        error = error.__cause__ or error.__context__


def test_generated_code_knows_what_it_may_leave_out() -> None:
    assert all(column("c", OIDS[name], -1, CATALOG).encode is mapping.as_is for name in ("int2", "int4", "int8", "oid"))
    assert all(column("c", OIDS[name], -1, CATALOG).encode is mapping.quoted for name in ("numeric", "uuid", "varbit"))


def test_toastable_types_are_wide() -> None:
    """Also numeric and domains: whatever the server may keep out of line may be left out of an update."""
    wide = {name for name, oid in OIDS.items() if column("c", oid, -1, CATALOG).toastable}
    assert {"text", "numeric", "price", "_int4", "bytea"} <= wide
    assert not {"int4", "date", "mood"} & wide


def test_unknown_types() -> None:
    """A user's type that was dropped is text; one of the server's own was forgotten by us."""
    dropped = column("c", 123456, -1, CATALOG)
    assert (dropped.kind, dropped.encode, dropped.type) == (Kind("string"), mapping.text, "unknown.dropped_123456")
    with pytest.raises(BugError, match="type 3908"):
        column("c", 3908, -1, CATALOG)
