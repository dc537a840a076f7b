"""The inputs that fuzzing begins with, by the golden encoders: `python -m tests.fuzz.seeds` writes them again."""

from __future__ import annotations

import hashlib
import struct
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import orjson

from cdc.capture.control.signals import Command
from cdc.model.change import UNCHANGED, Op
from cdc.model.state import Phase, State
from connectors.mysql.binlog import events, table_map
from connectors.mysql.binlog.events import TableColumn, TableMap
from connectors.postgres.pgoutput import messages
from sinks.client import varints
from tests.encoders import mysql
from tests.encoders import pgoutput as pgoutput_encoder
from tests.fuzz.targets import MYSQL_TEMPORAL, MYSQL_VALUES, POSTGRES_TEMPORAL, POSTGRES_VALUES, RELATION, UUID

CORPUS: Final = Path(__file__).parent / "corpus"
HEAD: Final = mysql.header
MOMENTS: Final = (
    b"2024-02-29", b"0044-03-15 BC", b"12:34:56", b"12:34:56.789", b"24:00:00", b"-838:59:59.000001", b"12:34:56+05:30",
    b"2024-03-05 12:34:56", b"2024-03-05 12:34:56.25", b"2024-03-05 12:34:56.250000", b"2024-03-05 12:34:56.5+00",
    b"20240-03-05 12:34:56-00:44:30 BC", b"infinity", b"0000-00-00 00:00:00", b"1969-12-31 23:59:59.9",
)  # fmt: skip
TEXTS: Final = (
    b"t", b"f", b"1", b"0", b"-0", b"NaN", b"1e-7", b"-$1,234.56", b"\\xdeadbeef", b'"a"=>"b", "c"=>NULL',
    b"0101000020E6100000000000000000F03F0000000000000040", 'é"\\\n\x01'.encode(), b"\0\0\0\0\1\1\0\0\0" + bytes(16),
    struct.pack("<3f", 0.1, -0.0, 3e38), b"0.1", b"2024",
)  # fmt: skip
RELATION_: Final = messages.Relation(
    RELATION, "s", "t", "d", tuple(messages.RelationColumn(name, 25, -1, name == "id") for name in ("id", "a", "b"))
)
ROW: Final = (b"1", "é".encode(), None)
MESSAGES: Final[tuple[messages.Message, ...]] = (
    messages.Begin(16, 946_684_800_000_000, 9), RELATION_, messages.Insert(RELATION, ROW),
    messages.Update(RELATION, None, False, (b"1", UNCHANGED, b"x" * 40)), messages.Update(RELATION, ROW, False, ROW),
    messages.Update(RELATION, (b"1", None, None), True, ROW), messages.Delete(RELATION, (b"1", None, None), True),
    messages.Truncate((RELATION, 9)), messages.LogicalMessage(True, 5, "p", b"\0c"), messages.Skipped("O"),
    messages.Skipped("Y"), messages.Skipped("A"), messages.Commit(16, 24),
)  # fmt: skip
COLUMNS: Final = (
    TableColumn("id", table_map.LONGLONG, 0, nullable=False, unsigned=True, visible=True),
    TableColumn("i", table_map.INT24, 0, nullable=True, unsigned=False, visible=True),
    TableColumn("d", table_map.NEWDECIMAL, 10 << 8 | 2, nullable=True, unsigned=False, visible=True),
    TableColumn("f", table_map.DOUBLE, 8, nullable=True, unsigned=False, visible=True),
    TableColumn("s", table_map.VARCHAR, 80, nullable=True, charset="utf8mb4", visible=True),
    TableColumn("b", table_map.BLOB, 2, nullable=True, charset="binary", visible=True),
    TableColumn("e", table_map.ENUM, 1, nullable=True, charset="utf8mb4", labels=("x", "é"), visible=True),
    TableColumn("m", table_map.SET, 1, nullable=True, charset="utf8mb4", labels=("a", "b"), visible=True),
    TableColumn("n", table_map.BIT, 13, nullable=True, visible=True),
    TableColumn("dt", table_map.DATETIME2, 3, nullable=True, visible=True),
    TableColumn("ts", table_map.TIMESTAMP2, 6, nullable=True, visible=True),
    TableColumn("t", table_map.TIME2, 0, nullable=True, visible=True),
    TableColumn("da", table_map.DATE, 0, nullable=True, visible=True),
    TableColumn("y", table_map.YEAR, 0, nullable=True, visible=True),
    TableColumn("j", table_map.JSON, 4, nullable=True, visible=True),
    TableColumn("g", table_map.GEOMETRY, 4, nullable=True, geometry=0, visible=True),
)
VALUES: Final = (
    (1).to_bytes(8, "little"), b"\xff\xff\xff", mysql.decimal(Decimal("-12.34"), 10, 2), struct.pack("<d", 0.1),
    b"\2\xc3\xa9", b"\3\0abc", b"\2", b"\3", b"\x01\x02", mysql.datetime2(2024, 2, 29, (1, 2, 3), 4000, 3),
    struct.pack(">I", 1_700_000_000) + mysql.fraction(7, 6), mysql.time2(-3_600_000_000, 0), b"\x65\xd0\x0f", b"\x7c",
    struct.pack("<I", len(mysql.jsonb({"a": [1, None]}))) + mysql.jsonb({"a": [1, None]}),
    struct.pack("<I", 25) + bytes(4) + b"\1\1\0\0\0" + bytes(16),
)  # fmt: skip
DOCUMENTS: Final[tuple[Any, ...]] = (
    None, 1, -70_000, 2**63, 0.1, "é", [], {}, [1, [2, [3, {"k": "v" * 130}]]],
    {"a": True, "bb": mysql.Opaque(252, b"x")},
    [mysql.Opaque(246, b"\x05\x02\x80\x0c\x22"), mysql.Opaque(10, struct.pack("<q", (2024 * 13 + 2) << 46))],
)  # fmt: skip
STATEMENTS: Final = (
    "BEGIN", "COMMIT", "ROLLBACK TO `a`", "TRUNCATE TABLE shop.orders", 'DROP TABLE IF EXISTS `a``b`, "c" /* x */',
    "RENAME TABLE a TO b, c WAIT 5 TO d.e", "ALTER TABLE t ADD COLUMN (a int, b int), RENAME TO u",
    "ALTER TABLE t TRUNCATE PARTITION p", "CREATE OR REPLACE TABLE t LIKE u", "CREATE TABLE t (a int) AS SELECT 1",
    "XA COMMIT X'01ff',X'',1", "XA START X'01'", "/*M!100301 INSERT */ INTO t VALUES ('it''s', 'a\\'b') -- c",
    "DROP DATABASE IF EXISTS `x`", "# c\nDELETE FROM t",
)  # fmt: skip
CONNECTOR: Final = (
    "name: shop\nsource: {type: postgres, url: 'postgresql://h/d', tables: [public.*, {table: a.b, key: [x]}]}\n"
    "sink: {bootstrap_servers: 'h:9092', topic_prefix: p}\n"
)
APPLY: Final = (
    "name: a\nsource: {bootstrap_servers: 'h:9', topic_prefix: p}\nstores: {w: {type: iceberg, path: w}}\n"
    "tables: {public.t: {stores: [w]}}\ncheckpoint: c\n"
)


def sized(data: bytes) -> bytes:
    return struct.pack("<H", len(data)) + data


def streamed(*sent: bytes | None) -> bytes:
    return b"".join(b"\xff\xff" if one is None else sized(one) for one in sent)


def _postgres() -> dict[str, list[bytes]]:
    raw = [pgoutput_encoder.encode(message) for message in MESSAGES]
    sent = [b"w" + struct.pack(">qqq", n, 1, 2) + one for n, one in enumerate(raw)]
    alive = b"k" + struct.pack(">qqB", 99, 0, 0)
    whole = [sent[0], sent[2], alive, sent[3], sent[11]]
    return {
        "pgoutput": raw,
        "pgoutput_stream": [
            b"\0\0\5" + streamed(*whole, None, *whole),
            b"\0\1\2" + streamed(*sent),
            b"\1\0\5" + streamed(*sent[2:7], None, alive, sent[2]),
        ],
        "copy_rows": [b"\2a\tb\\t\\N\t\\N\n", b"\0\\N\n", b"\1\\\\x\t\n", b"\0a\\"],
        "pg_arrays": [
            b"\0{1,NULL,{2}}", b"\1{1.5,NaN,-0,NULL}", b'\2{a,"b c",NULL,"NULL","q\\"\\\\"}', b"\2[0:1]={a,b}",
            b"\3{(1,2),(3,4);(5,6)}", b"\2{{a,b},{c,d}}",
        ],
        "pg_temporal": [bytes([n % len(POSTGRES_TEMPORAL)]) + text for n, text in enumerate(MOMENTS)],
        "pg_values": [bytes([n % len(POSTGRES_VALUES)]) + text for n, text in enumerate(TEXTS)],
    }  # fmt: skip


def _mysql() -> dict[str, list[bytes]]:
    told = TableMap(HEAD(19), 7, 1, "shop", "orders", COLUMNS, ((0, 0),))
    body = mysql.body(told)
    orders = TableMap(HEAD(19), 91, 1, "dev", "orders", COLUMNS[:1], None)
    number = TableColumn("n", 3, 0, nullable=False, unsigned=False, visible=True)
    small = orders._replace(columns=(number,))
    five = b"\0" + struct.pack("<i", 5)
    gtid = events.Gtid(HEAD(33), UUID, "", 7, 1, 2, 1_795_000_000_000_000, 1_795_000_000_000_000, 400)
    query = events.Query(HEAD(2), 9, 0, "dev", "BEGIN", "utf8mb4", None)
    rows = events.Rows(HEAD(30), Op.CREATE, 91, 1, 1, b"", b"\1", five * 2)
    update = events.Rows(HEAD(31), Op.UPDATE, 91, 1, 1, b"\1", b"\1", five * 2)
    delete = events.Rows(HEAD(25), Op.DELETE, 91, 1, 1, b"\1", b"", five)
    xid = events.Xid(HEAD(16), 3)
    packed = mysql.encode(xid, checksum=False)
    ones = [
        gtid, query, small, rows, update, delete, xid, events.Rotate(HEAD(4), 4, "b.000008"),
        gtid._replace(header=HEAD(42), tag="t"), events.AnonymousGtid(HEAD(34), 1, 2, 5, 6, 400),
        events.PreviousGtids(HEAD(35), (events.GtidIntervals(UUID, "", ((1, 5), (7, 7))),)),
        events.XaPrepare(HEAD(38), False, 1, b"g", b"b"), events.Heartbeat(HEAD(41), "b.000008", 9),
        events.RowsQuery(HEAD(29), "INSERT"), events.MariadbGtid(HEAD(162), 0, 42, 5, 2 | 64, 9, (1, b"g", b"b")),
        events.MariadbGtidList(HEAD(163), ((0, 1, 5),), 0), events.AnnotateRows(HEAD(160), "INSERT"),
        events.BinlogCheckpoint(HEAD(161), "b.000008"), events.StartEncryption(HEAD(164), 1, 2),
        query._replace(header=HEAD(165), statement="x" * 90), rows._replace(header=HEAD(166), body=five * 40),
        events.TransactionPayload(HEAD(40), 255, len(packed), packed),
    ]  # fmt: skip

    def packets(*sent: events.Event) -> bytes:
        return b"".join(bytes([one.header.type]) + sized(mysql.body(one)) for one in sent)

    image = mysql.image(VALUES, padding=True)
    nulls = mysql.image([VALUES[0], *[None] * (len(VALUES) - 1)], padding=False)
    whole = (gtid, query, small, rows, update, delete, xid)
    again = (gtid._replace(gno=8), query, small, rows, xid)
    row = b"\3a,b\xfb\xfc\2\0xy"
    packet = struct.pack("<I", len(row))[:3]
    return {
        "mysql_temporal": [bytes([n % len(MYSQL_TEMPORAL)]) + text for n, text in enumerate(MOMENTS)],
        "mysql_values": [bytes([n % len(MYSQL_VALUES)]) + text for n, text in enumerate(TEXTS)],
        "binlog_events": [bytes([one.header.type, one.header.type >= 160]) + mysql.body(one) for one in ones],
        "binlog_bytes": [mysql.encode(one, checksum=False) for one in ones[:7]],
        "table_maps": [b"\0" + body, b"\1" + mysql.body(small), b"\0" + mysql.body(orders)],
        "row_images": [
            sized(body) + b"\0\xff\xff" + image + nulls,
            sized(body) + b"\1\xff\xff" + image + nulls,
            sized(body) + b"\2\x05\x00" + b"\0" + VALUES[0] + VALUES[2],
            *(
                sized(mysql.body(told._replace(columns=(column,), primary_key=None))) + b"\0\xff\0" + value
                for column, value in zip(COLUMNS, VALUES, strict=True)
            ),
        ],
        "jsonb": [mysql.jsonb(document) for document in DOCUMENTS],
        "gtid_sets": [b"\0" + f"{UUID}:1-3:7,{UUID}:tag:1".encode(), b"\x010-1-5,1-2-7", b"\x020-1-5,0-2-7"],
        "statements": [text.encode() for text in STATEMENTS],
        "small_transactions": [
            b"\3" + packets(*whole, *again), b"\1" + packets(*whole), b"\6" + packets(*whole, *again),
            b"\2" + packets(*whole[:4], *again), b"\x1b" + packets(*whole), b"\x0e" + packets(*whole, *again),
        ],
        "result_rows": [b"\3\1" + packet + b"\1" + row + packet + b"\2" + row, b"\1\0\2\0\0\0\1a"],
    }  # fmt: skip


def _ours() -> dict[str, list[bytes]]:
    state = State(
        connector="c", identity={"server": "s"}, phase=Phase.STREAM, epoch=1, offset={"lsn": 5}, tables=("a.b",)
    )
    answer = (
        varints.unsigned(2) + varints.unsigned(2) + b"t" + varints.unsigned(2)
        + struct.pack(">ihqqqBBB", 0, 0, 1, -1, 0, 1, 0, 0) + b"\0\0" + struct.pack(">i", 0) + b"\0"
    )  # fmt: skip
    event = {"source": {"schema": "s", "table": "t", "position": "1.2.3"}}
    return {
        "json_rows": [b"\1\4abc\0", b"\0\6" + 'é"\\\n'.encode(), b"\2\2\xff\1\3\1\2"],
        "record_batches": [
            b"\5\0\2\3" + b"\0\2k1\3\0abc" + b"\1\2k2\xff\xff" + b"\1\1k\2\0xy",
            b"\0\x08\0\0" + b"\0\1k\x40\0" + b"v" * 64 + b"\0\1l\1\0w",
        ],
        "first_records": [b"\x12\0\0\0\2k\6abc\0", b"\x0c\0\0\0\2k\1\0"],
        "produce_answers": [b"\2" + answer, b"\3" + answer[:-1]],
        "produce_requests": [b"\7\1\2\3\0abc\2\0de\0\0\0\0\4", b"\0\2\0\1\1\0a\1\0b\1"],
        "varints": [varints.unsigned(number) for number in (0, 127, 128, 16_384, 1 << 21, 1 << 31)],
        "yaml": [b"\0" + CONNECTOR.encode(), b"\1" + APPLY.encode(), b"\0a: &a [*a]\n", b"\0name: ${X:-y}\n"],
        "position_records": [state.to_bytes(), b"{}", b'{"version":1,"tables":[],"unread":[],"phase":"stream"}'],
        "signals": [
            Command(tables=("a.b",), keys=((b"1", b"\xff"),)).to_bytes("i"),
            Command(tables=("a.b", "c.d"), stop=True).to_bytes("i"),
            Command(tables=("a",), after_gap=True).to_bytes("i"),
        ],
        "dead_letters": [sized(b'{"id":1}') + orjson.dumps(event), sized(b"null") + b"{}"],
    }  # fmt: skip


def seeds() -> dict[str, list[bytes]]:
    """By target."""
    return {**_postgres(), **_mysql(), **_ours()}


def main() -> None:
    for name, inputs in seeds().items():
        folder = CORPUS / name
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("seed-*"):
            old.unlink()
        for data in inputs:
            (folder / f"seed-{hashlib.sha256(data).hexdigest()[:12]}").write_bytes(data)


if __name__ == "__main__":
    main()
