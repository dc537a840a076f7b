"""Every built-in type with its extremes, on real servers.

COPY and the log give the same text, and what we make of it is what the server itself says of the value.
"""

from __future__ import annotations

import io
import json
import re
import secrets
import struct
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import psycopg2
import pytest
from psycopg2 import sql
from psycopg2.extensions import make_dsn

from connectors.postgres import session
from connectors.postgres.catalog.queries import TYPES
from connectors.postgres.values.mapping import TypeInfo, column

if TYPE_CHECKING:
    from collections.abc import Iterator

    from psycopg2.extensions import cursor as Cursor  # noqa: N812 - a class

    from cdc.model.change import Column

pytestmark = pytest.mark.every_server

SCHEMA: Final = """
CREATE SCHEMA shop;
CREATE SCHEMA "Odd ""one"" too";
CREATE TYPE shop.mood AS ENUM ('ok', 'very "happy"', 'a,b', 'NULL', '{}', '');
CREATE TYPE shop.pair AS (n integer, note text);
CREATE TYPE shop.nested AS (p shop.pair, ps shop.pair[]);
CREATE TYPE shop.floatrange AS RANGE (subtype = float8);
CREATE DOMAIN shop.price AS numeric(10,2);
CREATE DOMAIN "Odd ""one"" too".low AS shop.price CHECK (VALUE < 10);
CREATE DOMAIN shop.flag AS bit(1);
CREATE DOMAIN shop.instant AS timestamp(3);
CREATE DOMAIN shop.counts AS integer[];
CREATE DOMAIN shop.words AS text[];
CREATE DOMAIN shop.raw AS bytea;
CREATE EXTENSION vector SCHEMA shop;
CREATE TYPE shop.hstore;
CREATE FUNCTION shop.hstore_in(cstring) RETURNS shop.hstore LANGUAGE internal IMMUTABLE STRICT AS 'textin';
CREATE FUNCTION shop.hstore_out(shop.hstore) RETURNS cstring LANGUAGE internal IMMUTABLE STRICT AS 'textout';
CREATE TYPE shop.hstore (INPUT = shop.hstore_in, OUTPUT = shop.hstore_out, STORAGE = extended);
CREATE CAST (shop.hstore AS xml) WITHOUT FUNCTION;
"""
"""These builds have neither hstore nor libxml: a type of that name takes its text as it is, and gives it to xml."""

ALL_TEXT: Final = "".join(map(chr, range(1, 0x250))) + "\u2028\ufeff\U0001f600\U0010ffff"
DATES: Final = ("1970-01-01", "1969-12-31", "2024-02-29", "1900-03-01", "0001-01-01", "0001-12-31 BC", "0005-02-29 BC")
ZONED: Final = ("2024-03-31 02:30:00+02", "1883-11-18 12:03:57.25-04:56:02", "0044-03-15 23:59:59.5+00 BC")
STAMPS: Final = ("2024-02-29 12:34:56", "2024-02-29 12:34:56.789012", "2024-02-29 12:34:56.1", "1970-01-01 00:00:00")
ENDS: Final = ("4714-11-24 00:00:00 BC", "294276-12-31 23:59:59.999999", "infinity", "-infinity")
CLOCK: Final = ("00:00:00", "24:00:00", "23:59:59.999999", "12:34:56.7", "00:00:00.000001")

LITERALS: Final[dict[str, tuple[str, ...]]] = {
    "smallint": ("-32768", "32767", "0"),
    "integer": ("-2147483648", "2147483647"),
    "bigint": ("-9223372036854775808", "9223372036854775807"),
    "oid": ("0", "4294967295"),
    "numeric": ("NaN", "Infinity", "-Infinity", "0", "22.2200", "-0.00", "1e-100", "9" * 300, "1e131071"),
    "numeric(10,2)": ("99999999.99", "-1", "NaN"),
    "numeric(3,-2)": ("12345",),
    "money": ("0", "-92233720368547758.08", "92233720368547758.07", "1234.5", "-0.01"),
    "real": ("NaN", "Infinity", "-Infinity", "-0", "3.3", "1e-45", "3.4028235e38", "16777216", "1e20"),
    "double precision": (
        "NaN",
        "Infinity",
        "-Infinity",
        "-0",
        "0.1",
        "5e-324",
        "1.7976931348623157e308",
        "1e15",
        "1e16",
    ),
    "boolean": ("true", "false"),
    "text": ("", "NULL", "null", ALL_TEXT, "\\N", "\\x41", "a\tb\\tc\r\n", '"', "{}", " ", "x" * 9000),
    "character varying": ("", ALL_TEXT),
    "character varying(20)": ("Ünïcode",),
    "character(5)": ("ab", "", "  x"),
    "bpchar": ("ab  ",),
    '"char"': ("", "a", "\\001", "\\377", '"'),
    "name": ("", 'a "name"'),
    "uuid": ("00000000-0000-0000-0000-000000000000", "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11"),
    "bytea": ("", "\\x00", "\\x" + bytes(range(256)).hex(), "\\x" + "ab" * 5000),
    "json": ('{"a" : 1,  "a": 1.00}', "null", '"\\u0000\\ud83d"', " [1, 2]\n", "1e400", '{"\\\\": "\\""}'),
    "jsonb": ('{"b": [1, 2, {"c": null}], "a": "\\"\\\\"}', "null", "1.10", '"é\\n"'),
    "jsonpath": ('$."a"[*] ? (@ > 1)',),
    "date": (*DATES, "4714-11-24 BC", "5874897-12-31", "infinity", "-infinity"),
    "time": CLOCK,
    "time(3)": ("12:34:56.789",),
    "time with time zone": (
        *(f"{c}+00" for c in CLOCK),
        "00:30:00+01",
        "23:30-05:30",
        "12:00+15:59:59",
        "24:00-15:59:59",
    ),
    "timestamp": (*STAMPS, "0001-02-29 12:00:00.25 BC", "1969-12-31 23:59:59.999999", "10000-01-01 00:00:00", *ENDS),
    **{
        f"timestamp({p})": (*STAMPS, "1969-12-31 23:59:58.9994", "0001-02-03 04:05:06.7 BC", "infinity")
        for p in range(7)
    },
    "timestamp with time zone": (*(f"{s}+00" for s in STAMPS), *ZONED, "10000-01-01 00:00:00.12345+00", *ENDS),
    "timestamp(0) with time zone": ("2024-02-29 23:59:59.5+00",),
    "interval": ("1 year 2 months -3 days 4:05:06.789", "0", "-1 month", "178000000 years", "-00:00:00.000001"),
    "interval year to month": ("1-2",),
    "interval day to second(3)": ("1 12:59:10.1234",),
    "interval(0)": ("1.6 s",),
    "bit(1)": ("0", "1"),
    "bit(9)": ("010101010",),
    "bit varying": ("", "0", "1010"),
    "bit varying(5)": ("101",),
    "inet": ("::1", "10.0.0.1/8", "192.168.0.1", "2001:db8::/32"),
    "cidr": ("10.0.0.0/8", "::/0"),
    "macaddr": ("08:00:2b:01:02:03",),
    "macaddr8": ("08:00:2b:01:02:03:04:05",),
    "point": ("(1.5,-2)", "(NaN,Infinity)"),
    "line": ("{1,2,3}",),
    "lseg": ("[(1,2),(3,4)]",),
    "box": ("(3,4),(1,2)",),
    "path": ("[(1,2),(3,4)]", "((1,2),(3,4))"),
    "polygon": ("((1,2),(3,4),(5,6))",),
    "circle": ("<(1,2),3>",),
    "tsvector": ("'a b':1A,2 'c''d' '\\\\'",),
    "tsquery": ("'a' & !'b c':*A",),
    "pg_lsn": ("16/B374D848", "0/0"),
    "pg_snapshot": ("10:20:10,14",),
    "txid_snapshot": ("10:20:10,14",),
    "xid": ("4294967295",),
    "xid8": ("18446744073709551615",),
    "cid": ("1",),
    "tid": ("(0,1)",),
    "int2vector": ("1 2", ""),
    "oidvector": ("1 4294967295",),
    "aclitem": ("postgres=arwdDxt/postgres",),
    "refcursor": ('a "b"',),
    "regclass": ("pg_class", "shop.captured"),
    "regcollation": ('"C"',),
    "regconfig": ("simple",),
    "regdictionary": ("simple",),
    "regnamespace": ("shop", '"Odd ""one"" too"'),
    "regoper": ("||/",),
    "regoperator": ("+(integer,integer)",),
    "regproc": ("pg_sleep",),
    "regprocedure": ("abs(integer)",),
    "regrole": ("postgres",),
    "regtype": ("integer[]", "shop.mood"),
    "int4range": ("[1,5)", "empty", "(,)"),
    "int8range": ("[1,)",),
    "numrange": ("(1.50,NaN]",),
    "tsrange": ('["0044-01-01 00:00:00 BC",infinity]',),
    "tstzrange": ('["2024-01-01 00:00:00+02",)',),
    "daterange": ("[2024-01-01,2024-01-31]",),
    "int4multirange": ("{[1,5),[7,9)}", "{}"),
    "int8multirange": ("{[1,5)}",),
    "nummultirange": ("{[1.5,2]}",),
    "tsmultirange": ('{["2024-01-01 00:00:00",)}',),
    "tstzmultirange": ('{["2024-01-01 00:00:00+02",)}',),
    "datemultirange": ("{[2024-01-01,2024-01-31]}",),
    "shop.mood": ("ok", 'very "happy"', "a,b", "NULL", "{}", ""),
    "shop.pair": ('(1,"a ""b"" \\\\ c")', "(,)", '(2,"")'),
    "shop.nested": ('("(1,x)","{""(2,\\\\""y z\\\\"")"",NULL}")',),
    "shop.floatrange": ("[0.1,Infinity]",),
    "shop.price": ("1.5", "NaN"),
    '"Odd ""one"" too".low': ("9.994", "-1"),
    "shop.flag": ("1", "0"),
    "shop.instant": ("2024-02-29 12:34:56.789", "infinity"),
    "shop.counts": ("{1,NULL,3}", "{}", "[0:1]={1,2}", "{{1,2},{3,4}}"),
    "shop.words": ('{NULL,"NULL","a b"}', "{}"),
    "shop.raw": ("\\xff",),
    "shop.hstore": ('"a"=>"b", "c"=>NULL', "", '"q\\"\\\\"=>"", "NULL"=>"NULL", "ü"=>"{}"'),
    "xml": ("<a b='c'>ü &amp; \"d\"</a>", "", "text"),
    "shop.vector": ("[1,-2.5,3e-5]",),
    "shop.vector(2)": ("[1e20,0]",),
    "shop.halfvec": ("[1,0.5]",),
    "shop.sparsevec": ("{1:1,3:2}/5",),
    # arrays beside those made of each type below
    "integer[]": ("{}", "{NULL}", "{{1,2},{NULL,4}}", "{{{1},{2}}}", "[0:1]={1,2}", "[1:1][-2:-1]={{1,2}}"),
    "text[]": ("{}", "{NULL}", '{"NULL"}', '{{"a,b","{"},{"}",NULL}}', '[2:3]={"\\"","\\\\"}', '{"",null," "}'),
    "double precision[]": ("{{1.5,2},{NULL,4}}", "{{NaN,1},{-Infinity,2}}", "[0:0]={NaN}"),
    "boolean[]": ("{{t,f},{NULL,t}}",),
    "timestamp(3)[]": ('{{"2024-01-01 00:00:00.5",infinity}}',),
    "bit[]": ("{{1,0},{0,NULL}}",),
    "box[]": ("{{(1,1),(0,0);(2,2),(1,1)};{(3,3),(0,0);NULL}}",),
    "bytea[]": ('{{"\\\\x00","\\\\x"},{NULL,"\\\\xff"}}',),
    "shop.mood[]": ('{{ok,"a,b"},{"NULL",NULL}}',),
}

NO_INPUT: Final = {"gtsvector", "pg_brin_bloom_summary", "pg_brin_minmax_multi_summary", "pg_dependencies"} | {
    *("pg_mcv_list", "pg_ndistinct", "pg_node_tree"),
}
"""Types no row of a user's table can hold."""


class Captured(NamedTuple):
    """One table with a column for each type: as COPY gave it, as the log gave it, and its columns."""

    cursor: Cursor
    copied: list[list[bytes | None]]
    streamed: list[list[bytes | None]]
    columns: list[Column]
    declared: list[tuple[int, int]]


@pytest.fixture
def captured(postgres: str) -> Iterator[Captured]:
    """A database of its own, filled through SQL, read by both ways under the settings of every session of ours."""
    name = f"values_{secrets.token_hex(4)}"
    with closing(psycopg2.connect(postgres)) as admin:
        admin.autocommit = True
        with admin.cursor() as cursor:
            cursor.execute(sql.SQL("CREATE DATABASE {} TEMPLATE template0").format(sql.Identifier(name)))
            try:
                dsn = make_dsn(**session.parameters(postgres, "test") | {"dbname": name})
                with closing(psycopg2.connect(dsn)) as connection:
                    connection.autocommit = True
                    with connection.cursor() as own:
                        yield _capture(own, name)
            finally:
                cursor.execute(
                    "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s", (name,)
                )
                cursor.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def _capture(cursor: Cursor, slot: str) -> Captured:
    cursor.execute(SCHEMA)
    columns: list[tuple[str, tuple[str, ...]]] = []
    for type_name, literals in LITERALS.items():
        columns.append((type_name, literals))
        if not type_name.endswith("[]") and type_name not in ("shop.counts", "shop.words"):
            columns.append((f"{type_name}[]", ()))
    declarations = ", ".join(f"c{number} {type_name}" for number, (type_name, _) in enumerate(columns))
    cursor.execute(f"CREATE TABLE shop.captured (id integer PRIMARY KEY, {declarations})")
    cursor.execute("CREATE PUBLICATION p FOR TABLE shop.captured")
    cursor.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))
    for row in range(max(map(len, LITERALS.values()))):
        cells = sql.SQL(", ").join([_cell(type_name, literals, row) for type_name, literals in columns])
        cursor.execute(sql.SQL("INSERT INTO shop.captured VALUES ({}, {})").format(sql.Literal(row), cells))
    copied = _copy(cursor, "SELECT * FROM shop.captured ORDER BY id")
    options = ("proto_version", "1", "publication_names", "p")
    cursor.execute(
        "SELECT data FROM pg_logical_slot_get_binary_changes(%s, NULL, NULL, VARIADIC %s)", (slot, [*options])
    )
    messages = [bytes(data) for (data,) in cursor.fetchall()]
    declared = next(_relation(m) for m in messages if m[:1] == b"R")
    streamed = [_inserted(m) for m in messages if m[:1] == b"I"]
    cursor.execute(TYPES, ([oid for oid, _ in declared],))
    types = {row[0]: TypeInfo(*row) for row in cursor.fetchall()}
    made = [column(f"c{n}", oid, typmod, types) for n, (oid, typmod) in enumerate(declared)]
    return Captured(cursor, copied, streamed, made, declared)


def _cell(type_name: str, literals: tuple[str, ...], row: int) -> sql.Composable:
    """The row's literal; in the array column made beside each type, an array of all of them in the first row."""
    via = {"xml": "shop.hstore::xml"}
    if row < len(literals):
        return sql.SQL("{}::" + via.get(type_name, type_name)).format(sql.Literal(literals[row]))
    if literals or row:
        return sql.SQL("NULL")
    element = type_name.removesuffix("[]")
    items = [sql.SQL("{}::" + via.get(element, element)).format(sql.Literal(text)) for text in LITERALS[element]]
    return sql.SQL("ARRAY[{}, NULL]::" + type_name).format(sql.SQL(",").join(items))


_COPY_ESCAPES: Final = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}


def _copy(cursor: Cursor, query: str) -> list[list[bytes | None]]:
    """Rows as COPY's text format has them. https://www.postgresql.org/docs/current/sql-copy.html#id-1.9.3.55.9.2"""
    out = io.BytesIO()
    cursor.copy_expert(f"COPY ({query}) TO STDOUT", out)
    rows = out.getvalue().removesuffix(b"\n").split(b"\n") if out.getvalue() else []
    return [[None if field == b"\\N" else _unescape(field) for field in row.split(b"\t")] for row in rows]


def _unescape(field: bytes) -> bytes:
    return re.sub(rb"\\(.)", lambda m: _COPY_ESCAPES.get(m[1], m[1]), field, flags=re.DOTALL)


def _relation(message: bytes) -> list[tuple[int, int]]:
    """Type and modifier of each column.

    https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html
    """
    at = message.index(b"\0", message.index(b"\0", 5) + 1) + 2
    (count,) = struct.unpack_from(">H", message, at)
    at += 2
    found = []
    for _ in range(count):
        at = message.index(b"\0", at) + 1
        found.append(struct.unpack_from(">Ii", message, at))
        at += 9
    return found


def _inserted(message: bytes) -> list[bytes | None]:
    (count,) = struct.unpack_from(">H", message, 6)
    at, row = 8, list[bytes | None]()
    for _ in range(count):
        flag, at = message[at : at + 1], at + 1
        if flag == b"t":
            (size,) = struct.unpack_from(">I", message, at)
            row.append(message[at + 4 : at + 4 + size])
            at += 4 + size
        else:
            assert flag == b"n"
            row.append(None)
    return row


def _cells(captured: Captured) -> Iterator[tuple[int, int, Column, bytes, Any]]:
    """Row, column number, column, server text, our JSON read back by a JSON reader."""
    for row, cells in enumerate(captured.copied):
        for number, (made, text) in enumerate(zip(captured.columns, cells, strict=True)):
            if number and text is not None:
                yield row, number - 1, made, text, json.loads(made.encode(text), parse_float=str, parse_int=int)


def test_copy_and_the_log_give_the_same_text(captured: Captured) -> None:
    """Snapshot and stream share the server's output functions, so one encoder gives byte-identical values."""
    assert len(captured.copied) == max(map(len, LITERALS.values()))
    assert captured.streamed == captured.copied


def test_every_built_in_type_is_tried(captured: Captured) -> None:
    """A type a later server brings fails here until its mapping has been thought about."""
    captured.cursor.execute(
        "SELECT t.typname FROM pg_type t WHERE t.typnamespace = 'pg_catalog'::regnamespace"
        " AND t.typtype IN ('b', 'r', 'm') AND NOT EXISTS (SELECT FROM pg_type e WHERE e.typarray = t.oid)"
    )
    every = {name for (name,) in captured.cursor.fetchall()}
    captured.cursor.execute(
        "SELECT typname FROM pg_type WHERE oid = ANY (%s)", ([oid for oid, _ in captured.declared],)
    )
    assert every - NO_INPUT <= {name for (name,) in captured.cursor.fetchall()}


def test_types_are_printed_as_the_server_does(captured: Captured) -> None:
    for made, (oid, typmod) in zip(captured.columns, captured.declared, strict=True):
        captured.cursor.execute("SELECT format_type(%s, %s)", (oid, typmod))
        assert (made.type,) == captured.cursor.fetchone()


_MICROS_OF_TIMESTAMP = (
    "(({0}::date - date '1970-01-01')::numeric * 86400000000 + extract(epoch FROM {0}::time) * 1000000)::int8"
)
_UTC = "({0} AT TIME ZONE 'UTC')"
ASK_THE_SERVER: Final = {
    "date": "{0} - date '1970-01-01'",
    "time_micros": "(extract(epoch FROM {0}) * 1000000)::int8",
    "timestamp_micros": _MICROS_OF_TIMESTAMP.replace("::int8", ""),
    "timestamp_millis": _MICROS_OF_TIMESTAMP.replace("::int8", " / 1000"),
    "timestamptz": "ARRAY["
    + ", ".join(f"extract({part} FROM {_UTC})" for part in ("year", "month", "day"))
    + "]::text[]"
    f" || ({_UTC}::time)::text",
    "timetz": f"(extract(epoch FROM ({_UTC})::time) * 1000000)::int8",
    "bytes": "translate(encode({0}, 'base64'), E'\\n', '')",
    "boolean": "{0}::text IN ('1', 'true')",
}


HSTORES: Final = {
    '"a"=>"b", "c"=>NULL': '{"a":"b","c":null}',
    "": "{}",
    '"q\\"\\\\"=>"", "NULL"=>"NULL", "ü"=>"{}"': '{"q\\"\\\\":"","NULL":"NULL","ü":"{}"}',
}


def _comparable(kind: str, ours: Any, theirs: Any) -> tuple[Any, Any]:
    if kind == "timestamptz":
        year, month, day, clock = theirs
        astronomical = int(year) + (int(year) < 0)  # the server has no year 0
        shown = f"{astronomical:04d}" if 0 <= astronomical <= 9999 else f"{astronomical:+05d}"
        whole, _, fraction = clock.partition(".")
        fraction = f".{fraction:0<6}" if fraction else ""
        return ours, f"{shown}-{int(month):02d}-{int(day):02d}T{whole}{fraction}Z"
    if kind == "timetz":
        hours, minutes, seconds = ours.removesuffix("Z").split(":")
        micros = (int(hours) * 60 + int(minutes)) * 60_000_000 + round(float(seconds) * 1_000_000)
        return micros % 86_400_000_000, theirs
    return ours, theirs


def test_values_are_what_the_server_says(captured: Captured) -> None:
    """Temporal and binary values by the server's own arithmetic; the others, read back by the server, are the value."""
    asked = 0
    for row, number, made, text, ours in _cells(captured):
        cell = f'(SELECT "c{number}" FROM shop.captured WHERE id = {row})'
        kind = made.kind.name
        if kind in ("array", "geometry") or text in (b"infinity", b"-infinity"):
            assert kind == "array" or ours == text.decode()
            continue
        if made.type in ("shop.hstore", "xml"):
            assert ours == (text.decode() if made.type == "xml" else HSTORES[text.decode()])
        elif kind in ASK_THE_SERVER:
            captured.cursor.execute("SELECT " + ASK_THE_SERVER[kind].format(cell).replace("%", "%%"))
            (theirs,) = captured.cursor.fetchone() or (None,)
            assert len(set(_comparable(kind, ours, theirs))) == 1, f"{made.type}, row {row}"
        else:
            shown = json.dumps(ours) if kind == "vector" else str(ours)
            shown = shown.replace('"', "") if kind == "vector" else shown
            captured.cursor.execute(f"SELECT {cell}::text, %s::{made.type}::text", (shown,))
            assert len(set(captured.cursor.fetchone() or ())) == 1, f"{made.type}, row {row}"
        asked += 1
    assert asked > sum(map(len, LITERALS.values())) / 2


def _flat(value: Any) -> list[Any]:
    return [leaf for item in value for leaf in _flat(item)] if isinstance(value, list) else [value]


def _shape(value: Any) -> list[int]:
    return [len(value), *_shape(value[0])] if isinstance(value, list) and value else []


def test_arrays_hold_their_elements_mapping(captured: Captured) -> None:
    """Leaf by leaf, what COPY gives for the unnested element, encoded as such; the shape is the server's."""
    for row, number, made, text, ours in _cells(captured):
        if made.kind.name != "array" or made.kind.element is None or made.kind.element.name == "vector":
            continue
        query = f'SELECT unnest("c{number}") FROM shop.captured WHERE id = {row}'
        oid, typmod = captured.declared[number + 1]
        captured.cursor.execute(TYPES, ([oid],))
        types = {found[0]: TypeInfo(*found) for found in captured.cursor.fetchall()}
        while types[oid].category == "d":
            oid, typmod = types[oid].base, types[oid].base_typmod
        element = column("x", types[oid].element, typmod, types)
        if text.startswith(b"["):
            assert ours == text.decode()
            continue
        captured.cursor.execute(f'SELECT array_dims("c{number}") FROM shop.captured WHERE id = {row}')
        (dims,) = captured.cursor.fetchone() or (None,)
        assert _shape(ours) == [int(upper) for upper in re.findall(r":(\d+)\]", dims or "")]
        leaves = [item for (item,) in _copy(captured.cursor, query)]
        theirs = [None if item is None else json.loads(element.encode(item), parse_float=str) for item in leaves]
        assert _flat(ours) == theirs, made.type
