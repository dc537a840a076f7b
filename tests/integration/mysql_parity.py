"""Every type with its extremes, by SELECT and by binlog: the two texts of each value, side by side."""

from __future__ import annotations

import functools
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pymysql

from cdc.model.change import Value
from connectors.mysql.binlog import parser, transaction_payload
from connectors.mysql.binlog.events import (
    Event,
    FormatDescription,
    Rows,
    TableColumn,
    TableMap,
    TransactionPayload,
)
from connectors.mysql.rows import row_images
from connectors.mysql.session_settings import SETTINGS, assigned
from connectors.mysql.values import mapping
from tests.integration.mysql_raw import Server


@dataclass(frozen=True)
class Case:
    """A column's type and literals for it; `only`: the server that has the type."""

    type: str
    literals: tuple[str, ...]
    only: str | None = None


@dataclass
class Parity:
    """What was compared, and what differed: type, literal, the text of SELECT, the text of the binlog."""

    compared: int = 0
    refused: list[tuple[str, str, str]] = field(default_factory=list)
    different: list[tuple[str, str, Value, Value]] = field(default_factory=list)
    shapes: list[tuple[str, str, str]] = field(default_factory=list)
    """Types that the catalog and the log print differently, or that `completed` does not join."""


def _integers(name: str, bits: int) -> Iterator[Case]:
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1
    yield Case(name, tuple(str(n) for n in (low, low + 1, -1, 0, 1, high)))
    yield Case(f"{name} unsigned", tuple(str(n) for n in (0, 1, high, high + 1, (1 << bits) - 1)))
    yield Case(f"{name}(6) zerofill", ("0", "42", str((1 << bits) - 1)))


def _decimals() -> Iterator[Case]:
    for precision, scale in ((65, 30), (65, 0), (30, 30), (10, 2), (9, 9), (18, 9), (1, 0), (1, 1), (19, 10), (38, 19)):
        whole = "9" * (precision - scale) or "0"
        most = f"{whole}.{'9' * scale}" if scale else whole
        small = f"0.{'0' * (scale - 1)}1" if scale else "1"
        middle = f"{'1' * min(5, precision - scale) or '0'}.{'05'[: min(2, scale)]}" if scale else "7"
        literals = (most, f"-{most}", "0", "-0.0", small, f"-{small}", middle, f"-{middle}")
        yield Case(f"decimal({precision},{scale})", literals)
    yield Case("decimal(8,3) zerofill", ("1.5", "0"))
    yield Case("decimal(8,3) unsigned", ("1.5", "99999.999"))


DOUBLES = (
    *("0", "-0e0", "1", "-1", "0.1", "3.3", "123456.789", "1e14", "1e15", "1e16", "1e20", "1.5e300", "-2.5e-300"),
    *(
        "999999999999999",
        "1234567890123456",
        "12345678901234567",
        "123456789012345.6",
        "0.0001",
        "1046017926401765.9",
        "-3863191960764649.5",
        "0.00001",
        "1e-14",
    ),
    *("1e-15", "1e-16", "1.5e-15", "1.23456789e-10", "1.7976931348623157e308", "-1.7976931348623157e308"),
    *(
        "2.2250738585072014e-308",
        "5e-324",
        "0.30000000000000004",
        "100",
        "1e10",
        "123e13",
        "123e14",
        "33.33333333333333",
    ),
    *("9007199254740993", "4.35", "1e22", "1e23", "-1.2345678901234567e-100"),
)
FLOATS = (
    "0",
    "-0e0",
    "3.3",
    "0.1",
    "16777216",
    "16777217",
    "1e10",
    "1e20",
    "3.4028234e38",
    "-3.4028234e38",
    "1.17549435e-38",
)
FLOATS += ("1.4e-45", "123456.789", "1e-5", "0.333333333", "999999.5", "1234567.9", "8388607.5", "1e15", "1e14")
TIMES = (
    "'-838:59:59'",
    "'838:59:59'",
    "'00:00:00'",
    "'-00:00:01'",
    "'-00:00:00.5'",
    "'23:59:59.999999'",
    "'-01:02:03.4'",
)
TIMES += ("'100:00:00'", "'-838:59:58.999999'", "'00:00:00.000001'", "'-00:00:00.000001'", "'12:34:56.789'")
DATES = ("'0000-00-00'", "'1000-01-01'", "'9999-12-31'", "'2024-02-29'", "'2024-00-00'", "'2024-02-00'", "'2024-02-30'")
DATES += ("'1970-01-01'", "'0001-01-01'", "'1969-12-31'", "'0000-01-01'")
DATETIMES = (
    *(f"{day[:-1]} 12:34:56.789123'" for day in DATES),
    "'0000-00-00 00:00:00'",
    "'9999-12-31 23:59:59'",
)
STAMPS = (
    "'1970-01-01 00:00:01'",
    "'2038-01-19 03:14:07'",
    "'2024-03-31 01:30:00.123456'",
    "0",
    "'2000-01-01 00:00:00.5'",
)

WORDS = {
    "latin1": "Ünï €\u0081",
    "latin2": "Łódź",
    "latin5": "İstanbul ş",
    "latin7": "Žemė",
    "ascii": "plain",
    "cp1250": "Příliš",
    "cp1251": "Привет №",
    "cp1256": "مرحبا",
    "cp1257": "Žemė",
    "cp850": "ñandú ░",
    "cp852": "Łódź",
    "cp866": "Привет",
    "koi8r": "Привет",
    "koi8u": "Привіт ґ",
    "greek": "Καλημέρα",
    "hebrew": "שלום",
    "tis620": "สวัสดี",
    "armscii8": "Բարև",
    "geostd8": "გამარჯობა",
    "dec8": "Ünïœ",
    "hp8": "Ünï",
    "keybcs2": "Příliš",
    "macce": "Příliš",
    "macroman": "Ünï",
    "swe7": "ÅÄÖåäö",
    "big5": "繁體中文 功能",
    "gb2312": "简体中文",
    "gbk": "简体中文 镕",
    "gb18030": "简体中文 😀 镕",
    "sjis": "日本語 ｶﾅ 表示",
    "cp932": "日本語 ①㈱ 表",
    "ujis": "日本語 ｶﾅ 丂",
    "eucjpms": "日本語 ①㈱～ 黑",
    "euckr": "한국어 똠",
    "ucs2": "Ünï 日本 ß",
    "utf16": "Ünï 😀",
    "utf16le": "Ünï 😀",
    "utf32": "Ünï 😀",
    "utf8mb3": "Ünï 日本",
    "utf8mb4": "Ünï 😀\u0000\u001f\"\\'",
}


def _quoted(text: str) -> str:
    return f"CONVERT(x'{text.encode().hex()}' USING utf8mb4)"


def _texts() -> Iterator[Case]:
    for charset, word in WORDS.items():
        only = "mysql" if charset == "gb18030" else None
        literals = (_quoted(word), "''", _quoted("a  "), _quoted("  a"), _quoted("a\tb"), _quoted(word * 30))
        for kind in ("char(60)", "varchar(200)", "varchar(2000)", "text"):
            yield Case(f"{kind} character set {charset}", literals, only)
            first, second = ("one", "two") if charset in ("ascii", "swe7") else (f"{word[:2]}1", word[:3])
        yield Case(
            f"enum('{first}','{second}','x''y') character set {charset}", ("1", "2", "3", "0" if only else "NULL"), only
        )
        yield Case(f"set('{first}','{second}','z') character set {charset}", ("0", "1", "2", "3", "7", "5"), only)
    signs = ("a\\nb", "\\r\\t\\Z", "it''s", "\\\\", "\\\\n", '"', "x,y", "%s", "", "\\\\''")
    for kind in ("enum", "set"):
        labels = ",".join(f"'{label}'" for label in signs if kind == "enum" or "," not in label)
        yield Case(f"{kind}({labels})", tuple(map(str, range(1, 10))))


def _binaries() -> Iterator[Case]:
    zeros = ("x'00'", "x'6100'", "x'610000'", "x''", "x'ff00ff'", "x'0000000000'", "x'20'", "x'6120'")
    yield Case("binary(5)", zeros)
    yield Case("binary(1)", ("x'00'", "x'ff'", "x''"))
    yield Case("binary(255)", zeros)
    yield Case("varbinary(5)", zeros)
    yield Case("varbinary(300)", (*zeros, "repeat(x'00ff', 150)"))
    for size in ("tiny", "", "medium", "long"):
        yield Case(f"{size}blob", (*zeros, "repeat(x'00ff', 100)"))
        yield Case(f"{size}text", ("''", "'é'", "repeat('é', 100)"))
    yield Case("longtext", ("repeat('x', 70000)", "repeat('é', 300000)"))
    yield Case("char(255) character set utf8mb4", ("repeat('😀', 255)", "'a'", "''"))
    yield Case("char(200) character set utf8mb3", ("repeat('日', 200)", "'a'"))
    yield Case("varchar(63) character set utf8mb4", ("repeat('😀', 63)",))
    yield Case("varchar(64) character set utf8mb4", ("repeat('😀', 64)", "repeat('a', 64)"))


DOCUMENTS = (
    '{"a": 1, "b": [1, 2]}',
    "{}",
    "[]",
    "null",
    "true",
    "false",
    "0",
    "-1",
    "32767",
    "32768",
    "-32769",
    "65535",
    "65536",
    "2147483648",
    "-2147483649",
    "4294967296",
    "9223372036854775807",
    "-9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "1.0",
    "-0.0",
    "0.1",
    "1e20",
    "1e15",
    "1e14",
    "123456789012345678901234567890",
    "1e-7",
    "1.5e-300",
    "1.7976931348623157e308",
    "-1.2345678901234567e-100",
    "3.0e5",
    '""',
    '"é😀"',
    r'"\"\\\/\b\f\n\r\t\u0000\u001f\u007f"',
    '{"bb": 1, "a": 2, "ccc": 3, "": 4, "é": 5, "b": {"z": null}}',
    '{"a": 1, "a": 2}',
    '[1, -1, 1.5, "x", null, true, false, {}, [], [[[]]], {"k": [1, {"l": 2}]}]',
    '{"' + "k" * 300 + '": "' + "v" * 300 + '"}',
    "[" + ",".join(str(n) for n in range(300)) + "]",
    "[" + ",".join(f'"{n:0300d}"' for n in range(300)) + "]",
    '{"big": "' + "é" * 40000 + '", "n": [70000, -70000, 1, 40000]}',
    "{" + ",".join(f'"k{n}": {n * 1000}' for n in range(5000)) + "}",
    "[" * 99 + "]" * 99,
)
DOCUMENT_EXPRESSIONS = (
    "json_array(cast('2024-02-29' as date), cast('12:34:56.5' as time(6)), cast('-838:59:59' as time), now(6))",
    "json_array(cast('2024-02-29 12:34:56.789' as datetime(3)), cast('2024-02-29 12:34:56' as datetime))",
    "json_array(timestamp'2024-02-29 12:34:56.123456', cast(12.340 as decimal(10,3)), -0.5, 1e0, 1.10)",
    "json_array(cast(-7 as decimal(65,30)))",
    "json_array(x'00ff', b'101', cast('abc' as binary), cast('' as binary), point(1,2), cast(2024 as year))",
    "json_object('b', repeat(x'00ff41', 100), 'd', cast(99999999999999999999999999999.123456789 as decimal(65,9)))",
    "json_array(repeat(x'ff', 57), repeat(x'ff', 58), repeat(x'ff', 200))",
    "cast(cast('2024-02-29' as date) as json)",
    "cast(cast(1.5 as decimal(5,2)) as json)",
    "cast(cast(1.5 as double) as json)",
    "cast(x'00' as json)",
    "json_array(cast('0000-00-00' as date), cast('-00:00:00.000001' as time(6)))",
    "json_array(1e0, 1e15, 1e16, -1e14, 1e-5, 123456789e0, 0e0, -0e0, 1046017926401765.9e0)",
    "json_array(cast(18446744073709551615 as unsigned), cast(-9223372036854775808 as signed))",
)

SHAPES = ("POINT(1 2)", "POINT(-1.5 2e300)")
GEOMETRIES = {
    "point": SHAPES,
    "linestring": ("LINESTRING(0 0,1 1,2 2)",),
    "polygon": ("POLYGON((0 0,10 0,10 10,0 10,0 0),(5 5,7 5,7 7,5 7, 5 5))",),
    "multipoint": ("MULTIPOINT(0 0,1 1)",),
    "multilinestring": ("MULTILINESTRING((0 0,1 1),(2 2,3 3))",),
    "multipolygon": ("MULTIPOLYGON(((0 0,10 0,10 10,0 10,0 0)))",),
    "geometrycollection": ("GEOMETRYCOLLECTION(POINT(1 2),LINESTRING(0 0,1 1))",),
    "geometry": ("POINT(1 2)", "LINESTRING(0 0,1 1)"),
}


def cases() -> Iterator[Case]:
    """All of them."""
    for name, bits in (("tinyint", 8), ("smallint", 16), ("mediumint", 24), ("int", 32), ("bigint", 64)):
        yield from _integers(name, bits)
    yield Case("tinyint(1)", ("0", "1", "127"))
    yield Case("boolean", ("true", "false"))
    yield from _decimals()
    yield Case("double", DOUBLES)
    yield Case("double unsigned", ("1.5",))
    yield Case("double(10,2)", ("1.5", "100", "-99999999.99"))
    yield Case("double zerofill", ("1.5", "1e20"))
    yield Case("float", FLOATS)
    yield Case("float(7,4)", ("3.3", "999.9999", "-1"))
    yield Case("float unsigned", ("3.3",))
    yield Case("float zerofill", ("3.3",))
    for bits in (1, 2, 7, 8, 9, 33, 63, 64):
        yield Case(f"bit({bits})", ("b'0'", "b'1'", f"b'{'1' * bits}'", f"b'{'1' + '0' * (bits - 1)}'"))
    yield Case("year", ("0", "1901", "2155", "2024", "'0000'", "1970"))
    yield Case("date", DATES)
    for digits in range(7):
        suffix = f"({digits})" if digits else ""
        yield Case(f"time{suffix}", TIMES)
        yield Case(f"datetime{suffix}", DATETIMES)
        yield Case(f"timestamp{suffix} null", STAMPS)
    yield from _texts()
    yield from _binaries()
    yield Case("enum(" + ",".join(f"'label {n}'" for n in range(300)) + ")", ("1", "300", "255", "256"))
    for count in (1, 8, 9, 17, 25, 33, 64):
        labels = ",".join(f"'s{n}'" for n in range(count))
        yield Case(f"set({labels})", ("0", "1", str((1 << count) - 1), str(1 << (count - 1))))
    for kind, shapes in GEOMETRIES.items():
        yield Case(kind, tuple(f"ST_GeomFromText('{shape}')" for shape in shapes))
    yield Case("point", ("ST_GeomFromText('POINT(1 2)', 4326)",))
    yield Case("json", tuple(_quoted(document) for document in DOCUMENTS))
    yield Case("json", DOCUMENT_EXPRESSIONS, "mysql")
    yield Case("vector(3)", ("STRING_TO_VECTOR('[1,-2.5,3.3]')", "STRING_TO_VECTOR('[1e20,1e-5,0]')"), "mysql")
    yield Case("varchar(200) compressed", (*(_quoted(w) for w in ("", "é", "é" * 90, "ab" * 90)),), "mariadb")
    yield Case("varchar(5000) compressed", (_quoted("abc" * 1000), "''", "'x'"), "mariadb")
    yield Case("text compressed", (_quoted("é" * 5000), "''", "'x'"), "mariadb")
    yield Case("blob compressed", ("repeat(x'00ff', 5000)", "''", "x'00'"), "mariadb")
    yield Case("inet6", ("'::1'", "'::'", "'2001:db8::ff00:42:8329'", "'::ffff:1.2.3.4'", "'fe80::1:0:0:1'"), "mariadb")
    yield Case("inet4", ("'1.2.3.4'", "'0.0.0.0'", "'255.255.255.255'", "'1.2.3.0'"), "mariadb")
    yield Case(
        "uuid",
        (
            "'123e4567-e89b-12d3-a456-426655440000'",
            "'00000000-0000-0000-0000-000000000000'",
            "'ffffffff-ffff-ffff-ffff-ffffffffffff'",
            "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'",
            "'01890a5d-ac96-774b-bcce-b302099a8057'",
            "'12345678-9abc-6def-8123-456789abcdef'",
            "'12345678-9abc-8def-8123-456789abcdef'",
            "'12345678-9abc-4def-0123-456789abcdef'",
            "'12345678-9abc-0def-8123-456789abcdef'",
            "'12345678-9abc-7def-c123-456789abcdef'",
            "'12345678-9abc-9def-a123-456789abcdef'",
            "'12345678-9abc-7def-7123-456789abcdef'",
        ),
        "mariadb",
    )


def events(server: Server, start: tuple[str, int]) -> Iterator[Event]:
    """The events since `start`, those of compressed transactions one by one."""
    described: FormatDescription | None = None
    for raw in server.events(*start):
        event = parser.parse(raw, described)
        if isinstance(event, FormatDescription):
            described = event
        if isinstance(event, TransactionPayload):
            assert described is not None
            yield from (inner for inner, _ in transaction_payload.events(event, described))
        else:
            yield event


def compare(server: Server, flavour: str) -> Parity:
    """Insert, read both ways, compare; in a database of its own."""
    parity = Parity()
    mine = [case for case in cases() if case.only in (None, flavour)]
    database = f"parity_{uuid.uuid4().hex[:10]}"
    with server.connect() as connection, connection.cursor() as cursor:
        ours = (assigned(name, SETTINGS[name]) for name in ("time_zone", "collation_connection"))
        cursor.execute(f"SET NAMES utf8mb4, {', '.join(ours)}")
        cursor.execute("SET sql_mode = 'ALLOW_INVALID_DATES,NO_AUTO_VALUE_ON_ZERO'")
        cursor.execute(f"CREATE DATABASE {database} CHARACTER SET utf8mb4")
        cursor.execute(f"USE {database}")
        start = server.end()
        literals: dict[tuple[str, int], str] = {}
        for number, case in enumerate(mine):
            _fill(cursor, f"t{number}", case, literals, parity)
        catalog = functools.cache(functools.partial(columns, cursor))
        log = _logged(server, start, catalog, database)
        for number, case in enumerate(mine):
            _compare(cursor, f"t{number}", catalog, case, log, literals, parity)
        cursor.execute(f"DROP DATABASE {database}")
    return parity


def _fill(cursor: Any, table: str, case: Case, literals: dict[tuple[str, int], str], parity: Parity) -> None:
    try:
        cursor.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, v {case.type})")
    except pymysql.err.Error as exc:
        parity.refused.append((case.type, "", str(exc.args[1])))
        return
    rows = dict(enumerate(case.literals))
    if case.only != "mysql" or "json" not in case.type:
        rows[-1] = "NULL"
    try:
        _insert(cursor, table, rows)
    except pymysql.err.Error:  # which of them it was
        for number, literal in rows.items():
            try:
                _insert(cursor, table, {number: literal})
            except pymysql.err.Error as exc:
                parity.refused.append((case.type, literal, str(exc.args[1])))
                continue
            literals[table, number] = literal
    else:
        literals |= {(table, number): literal for number, literal in rows.items()}


def _insert(cursor: Any, table: str, rows: dict[int, str]) -> None:
    values = ", ".join(f"({number}, {literal})" for number, literal in rows.items())
    cursor.execute(f"INSERT INTO {table} VALUES {values}")


def columns(cursor: Any, table: str) -> list[mapping.TableColumn]:
    cursor.execute(
        "SELECT column_name, column_type, character_set_name, is_nullable, extra FROM information_schema.columns"
        f" WHERE table_schema = DATABASE() AND table_name = '{table}' ORDER BY ordinal_position"
    )
    return [
        mapping.from_catalog(
            name.decode(),
            kind.decode(),
            charset.decode() if charset else None,
            nullable=null == b"YES",
            visible=b"INVISIBLE" not in extra,
        )
        for name, kind, charset, null, extra in cursor.fetchall()
    ]


def completed(told: TableMap, catalog: Sequence[TableColumn]) -> TableMap | None:
    """Fill what the log does not say of a type from what the catalog says; None if that is of another table's shape."""
    if len(told.columns) != len(catalog):
        return None
    columns = []
    for logged, known in zip(told.columns, catalog, strict=True):
        if not _same_shape(logged, known):
            return None
        columns.append(
            logged._replace(
                name=known.name if logged.name is None else logged.name,
                unsigned=known.unsigned if logged.unsigned is None else logged.unsigned,
                charset=known.charset if logged.charset is None else logged.charset,
                labels=known.labels if logged.labels is None else logged.labels,
                geometry=known.geometry if logged.geometry is None else logged.geometry,
                dimension=known.dimension if logged.dimension is None else logged.dimension,
                visible=known.visible if logged.visible is None else logged.visible,
                declared=known.declared,
            )
        )
    return told._replace(columns=tuple(columns))


def _same_shape(logged: TableColumn, known: TableColumn) -> bool:
    """Tell whether the two may be one column: type, sizes, and what both say."""
    return (
        logged.type == known.type
        and logged.meta == known.meta
        and logged.nullable == known.nullable
        and all(
            mine is None or theirs is None or mine == theirs
            for mine, theirs in (
                (logged.name, known.name),
                (logged.unsigned, known.unsigned),
                (logged.charset, known.charset),
                (logged.labels, known.labels),
            )
        )
    )


def _logged(
    server: Server, start: tuple[str, int], catalog: Callable[[str], list[mapping.TableColumn]], database: str
) -> tuple[dict[tuple[str, int], Value], dict[str, TableMap]]:
    logged: dict[tuple[str, int], Value] = {}
    maps: dict[str, TableMap] = {}
    by_id: dict[int, tuple[TableMap, row_images.Reader]] = {}
    for event in events(server, start):
        if isinstance(event, TableMap) and event.schema == database:
            maps[event.table] = event
            whole = completed(event, catalog(event.table)) or event
            by_id[event.table_id] = whole, row_images.Reader(whole)
        elif isinstance(event, Rows) and event.table_id in by_id:
            told, read = by_id[event.table_id]
            for _, after in read(event):
                assert after is not None
                assert isinstance(after[0], bytes)
                logged[told.table, int(after[0])] = after[1]
    return logged, maps


def _compare(  # noqa: PLR0917
    cursor: Any,
    table: str,
    catalog: Callable[[str], list[mapping.TableColumn]],
    case: Case,
    log: tuple[dict[tuple[str, int], Value], dict[str, TableMap]],
    literals: dict[tuple[str, int], str],
    parity: Parity,
) -> None:
    logged, maps = log
    if table not in maps:
        return
    _, known = catalog(table)
    joined = completed(maps[table], catalog(table))
    told = maps[table].columns[1]
    if joined is None:
        parity.shapes.append((case.type, repr(told), repr(known)))
    elif mapping.printed(joined.columns[1]) != mapping.printed(known) or (
        mapping.printed(told) != mapping.printed(known) and known.declared not in ("uuid", "inet4", "inet6")
    ):
        parity.shapes.append((case.type, mapping.printed(told), mapping.printed(known)))
    chosen = mapping.select_expression(known) or mapping.quoted_name("v")
    cursor.execute(f"SELECT id, {chosen} FROM {table}")
    encode = mapping.column(known).encode
    for number, selected in cursor.fetchall():
        text = _as_sent(number)
        raw = None if selected is None else _as_sent(selected)
        mine = logged.get((table, int(text)), b"<no such row>")
        parity.compared += 1
        if raw != mine:
            parity.different.append((case.type, literals[table, int(text)], raw, mine))
        elif isinstance(mine, bytes):
            encode(mine)


def _as_sent(value: object) -> bytes:
    assert isinstance(value, bytes), type(value)
    return value
