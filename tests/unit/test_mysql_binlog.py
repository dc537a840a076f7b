"""Each event of the binlog: whole, cut at every byte, damaged, with bytes too many; and foreign ones."""

from __future__ import annotations

import io
import struct
import zlib

import pytest
import zstandard

from cdc.model.change import Op
from cdc.model.errors import ProtocolError
from connectors.mysql.binlog import charsets, table_map
from connectors.mysql.binlog.events import (
    AnnotateRows,
    AnonymousGtid,
    BinlogCheckpoint,
    Event,
    FormatDescription,
    Gtid,
    GtidIntervals,
    Heartbeat,
    Ignorable,
    MariadbGtid,
    MariadbGtidList,
    PartialUpdateRows,
    PreviousGtids,
    Query,
    Rotate,
    Rows,
    RowsQuery,
    Section,
    StartEncryption,
    Stop,
    TableColumn,
    TableMap,
    TransactionPayload,
    Unknown,
    ViewChange,
    XaPrepare,
    Xid,
)
from connectors.mysql.binlog.parser import parse
from connectors.mysql.binlog.transaction_payload import events, parse_long
from tests.encoders.mysql import body, encode, framed, header, packed_int, varlen

UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
MYSQL = FormatDescription(header(15), 4, "9.7.4", 0, b"\0\x0d\0\x08" * 10, checksum=True)
PLAIN = MYSQL._replace(checksum=False)
MARIADB = MYSQL._replace(server_version="10.11.18-MariaDB-log")
COLUMNS = (
    TableColumn("id", table_map.LONGLONG, 0, nullable=False, unsigned=True, visible=False),
    TableColumn("été", table_map.VARCHAR, 80, nullable=True, charset="utf8mb4", visible=True),
    TableColumn("c", table_map.STRING, 1020, nullable=True, charset="utf8mb4", visible=True),
    TableColumn("b", table_map.STRING, 16, nullable=True, charset="binary", visible=True),
    TableColumn("d", table_map.NEWDECIMAL, 65 << 8 | 30, nullable=True, unsigned=False, visible=True),
    TableColumn("e", table_map.ENUM, 1, nullable=True, charset="utf8mb4", labels=("x", "é"), visible=True),
    TableColumn("s", table_map.SET, 8, nullable=True, charset="utf8mb4", labels=("a", "b,c"), visible=True),
    TableColumn("bits", table_map.BIT, 13, nullable=True, visible=True),
    TableColumn("t", table_map.TIME2, 6, nullable=False, visible=True),
    TableColumn("g", table_map.GEOMETRY, 4, nullable=True, geometry=3, visible=True),
    TableColumn("v", table_map.VECTOR, 4, nullable=True, dimension=300, visible=True),
    TableColumn("j", table_map.JSON, 4, nullable=True, visible=True),
)
TABLE = TableMap(header(19), 116, 1, "shop", "orders", COLUMNS, ((0, 0),))
ROWS = Rows(header(30), Op.CREATE, 116, 1, 12, b"", b"\xff\x0f", b"images")
EVENTS: list[Event] = [
    Rotate(header(4), 4, "binlog.000002"),
    Query(header(2), 12, 0, "shop", "BEGIN", "utf8mb4", None),
    Query(header(2), 12, 1062, "", "CREATE TABLE é (a int)", "utf8mb4", 77, 1 << 40 | 4),
    Query(header(2), 12, 0, "", "CREATE TABLE é (a int)", "latin1", None),
    Query(header(2), 12, 0, "", "CREATE TABLE 表 (a int)", "gbk", None),
    Query(header(165), 12, 0, "shop", "CREATE TABLE é (a int)" + " " * 300, "utf8mb4", None),
    Xid(header(16), 2**63),
    XaPrepare(header(38), True, 7, b"gtrid", b"bqual"),
    XaPrepare(header(38), False, 1, b"g" * 64, b""),
    Gtid(header(33), UUID, "", 5, 4, 5, 1_795_296_774_895_288, 1_795_296_774_895_288, 205),
    Gtid(header(33), UUID, "", 2**62, 4, 5, 1, 1_795_296_774_895_288, 70_000),
    Gtid(header(33), UUID, "", 5, 4, 5, 1, 1, None),
    Gtid(header(33), UUID, "", 5, 4, 5, None, None, None),
    Gtid(header(42), UUID, "a_tag", 200_000, 4, 5, 1_795_296_774_895_288, 1_795_296_774_895_288, 314),
    Gtid(header(42), UUID, "t" * 32, 2**62, 2**40, 2**41, 1_795_296_774_895_288, 1, 2**63),
    AnonymousGtid(header(34), 4, 5, 7, 7, 9),
    PreviousGtids(header(35), ()),
    PreviousGtids(header(35), (GtidIntervals(UUID, "", ((1, 5), (7, 7), (9, 2**62))),)),
    PreviousGtids(header(35), (GtidIntervals(UUID, "", ((1, 5),)), GtidIntervals(UUID, "tag", ((1, 1), (3, 4))))),
    TABLE,
    TABLE._replace(primary_key=((2, 10), (0, 0))),
    TABLE._replace(columns=COLUMNS[:1], primary_key=None),
    TableMap(header(19), 2**48 - 1, 0, "é", "t", (TableColumn(None, table_map.DATE, 0, nullable=False),), None),
    ROWS,
    Rows(header(23), Op.CREATE, 7, 0, 9, b"", b"\xff\1", b"x"),
    Rows(header(31), Op.UPDATE, 7, 1, 3, b"\7", b"\5", b"both images"),
    Rows(header(32), Op.DELETE, 7, 1, 3, b"\7", b"", b""),
    Rows(header(24), Op.UPDATE, 7, 1, 300, b"\xff" * 38, b"\1" * 38, b"both images"),
    Rows(header(25), Op.DELETE, 7, 1, 3, b"\7", b"", b"images"),
    Rows(header(166), Op.CREATE, 7, 1, 3, b"", b"\7", b"images" * 100),
    Rows(header(167), Op.UPDATE, 7, 1, 3, b"\7", b"\7", b"i"),
    Rows(header(171), Op.DELETE, 7, 1, 3, b"\7", b"", b"images" * 20_000),
    PartialUpdateRows(header(39), 116, 1, 3, b"\7", b"\5", b"both images"),
    TransactionPayload(header(40), 0, 10_368, b"zstd"),
    TransactionPayload(header(40), 255, 3, b"abc"),
    Heartbeat(header(27), "binlog.000001", 1234),
    Heartbeat(header(41), "binlog.000001", 2**40),
    MariadbGtid(header(162), 0, 42, 5, 41, None, None),
    MariadbGtid(header(162), 1, 42, 2**63, 14, 99, None),
    MariadbGtid(header(162), 1, 42, 5, 76, None, (7, b"a", b"b")),
    MariadbGtid(header(162), 1, 42, 5, 78, 3, (7, b"a" * 64, b"b" * 64)),
    MariadbGtidList(header(163), ((0, 1, 5), (1, 2, 2**63)), 0),
    MariadbGtidList(header(163), (), 1),
    AnnotateRows(header(160), "INSERT INTO é"),
    RowsQuery(header(29), "INSERT INTO é" * 30),
    BinlogCheckpoint(header(161), "binlog.000001"),
    StartEncryption(header(164), 1, 3),
    Stop(header(3)),
    ViewChange(header(37)),
    Ignorable(header(28, flags=0x80)),
    Ignorable(header(200, flags=0x80)),
    Unknown(header(200)),
    Unknown(header(20)),
]
NO_LENGTH = (
    Rotate,
    Query,
    Rows,
    Heartbeat,
    AnnotateRows,
    RowsQuery,
    PartialUpdateRows,
    Unknown,
    Ignorable,
    Stop,
    ViewChange,
)
"""Events whose last part goes to the end, or of which only the beginning is read."""


def _sized(event: Event) -> Event:
    """With the size that it comes to."""
    return event._replace(header=event.header._replace(size=len(encode(event))))


@pytest.mark.parametrize("event", EVENTS, ids=repr)
def test_an_event_parses_to_what_was_encoded(event: Event) -> None:
    """parse∘encode is the identity, with a checksum and without."""
    assert parse(encode(event), MYSQL) == _sized(event)
    without = encode(event, checksum=False)
    assert parse(without, PLAIN) == event._replace(header=event.header._replace(size=len(without)))


@pytest.mark.parametrize("event", EVENTS, ids=repr)
def test_a_cut_event_is_a_protocol_error(event: Event) -> None:
    """However few bytes come; the offset lies in the event."""
    whole = encode(event)
    for end in range(len(whole)):
        with pytest.raises(ProtocolError) as caught:
            parse(whole[:end], MYSQL)
        assert 0 <= caught.value.offset <= len(whole)


@pytest.mark.parametrize("event", EVENTS, ids=repr)
def test_an_event_whose_body_ends_early_is_a_protocol_error_or_another_event(event: Event) -> None:
    """Also where size and checksum are right: no other error comes out."""
    content = body(event)
    for end in range(len(content)):
        try:
            parsed = parse(framed(event.header, content[:end], checksum=True), MYSQL)
        except ProtocolError as exc:
            assert 0 <= exc.offset <= 19 + len(content)  # noqa: PT017
        else:
            assert parsed[1:] != event[1:] or isinstance(
                event, (*NO_LENGTH, MariadbGtid, Gtid, AnonymousGtid, StartEncryption)
            )


@pytest.mark.parametrize("event", EVENTS, ids=repr)
def test_a_changed_bit_does_not_pass_the_checksum(event: Event) -> None:
    """Every byte is covered."""
    whole = encode(event)
    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 0x10
        with pytest.raises(ProtocolError):
            parse(bytes(damaged), MYSQL)


@pytest.mark.parametrize("event", [MYSQL, PLAIN, MARIADB], ids=repr)
def test_the_format_description_tells_of_itself(event: FormatDescription) -> None:
    """It needs no other before it, and says whether checksums follow."""
    whole = encode(event)
    parsed = parse(whole)
    assert parsed == _sized(event)
    assert parse(whole, MYSQL) == parsed
    for end in range(len(whole)):
        with pytest.raises(ProtocolError):
            parse(whole[:end])


def test_the_server_is_known_by_its_version() -> None:
    assert MARIADB.mariadb
    assert not MYSQL.mariadb


@pytest.mark.parametrize("checksum", [True, False])
def test_a_rotate_and_heartbeats_may_come_first(checksum: bool) -> None:
    """A dump begins with an artificial ROTATE, before anything told of checksums."""
    for event in (Rotate(header(4, flags=0x20), 4, "binlog.000002"), Heartbeat(header(27), "binlog.000002", 1234)):
        parsed = parse(encode(event, checksum=checksum))
        assert parsed[1:] == event[1:]
        assert parsed.header.artificial == event.header.artificial


def test_nothing_else_may_come_first() -> None:
    with pytest.raises(ProtocolError, match="QUERY_EVENT before a FORMAT_DESCRIPTION_EVENT"):
        parse(encode(EVENTS[1]))


def test_a_header_is_not_believed() -> None:
    with pytest.raises(ProtocolError, match="an event of 4294967295 bytes in 40"):
        parse(struct.pack("<IBIIIH", 0, 16, 1, 2**32 - 1, 0, 0) + bytes(21), MYSQL)


FOREIGN = [
    (4, b"\4\0\0\0\0\0\0\0\xff", "a name that is not UTF-8", 27),
    (2, struct.pack("<IIBHH", 1, 0, 1, 0, 0) + b"xyz", "a name without its end", 33),
    (2, struct.pack("<IIBHH", 1, 0, 0, 0, 900) + b"x\0", "ends early", 34),
    (2, struct.pack("<IIBHH", 1, 0, 0, 0, 2) + b"\x05\x09" + b"x\0", "ends early", 34),
    (2, struct.pack("<IIBHH", 1, 0, 0, 0, 4) + b"\x0c\x02ab" + b"x\0", "ends early", 36),
    (16, bytes(9), "bytes after", 27),
    (38, struct.pack("<BIII", 0, 1, 65, 0) + bytes(65), "more than 64", 32),
    (35, b"\1\0\0\0\0\0\0\2", "GTID set in form 2", 27),
    (35, struct.pack("<Q", 2**40), "ends early", 27),
    (35, struct.pack("<Q", 1) + bytes(16) + struct.pack("<Q", 2**40), "ends early", 51),
    (42, b"\x04\x02\x02", "tagged GTID of version 2", 19),
    (42, b"\0\x10\x02", "tagged GTID of another size", 19),
    (42, b"\0\x06\x40", "field 31, which must be known", 19),
    (42, b"\0\x06\x02", "without its name", 22),
    (162, bytes(10), "ends early", 29),
    (163, struct.pack("<I", 2**20), "ends early", 23),
    (19, bytes(8) + b"\0\0\0\0\1\x63\0\0", "a column of unknown type 99", 34),
    (19, bytes(8) + b"\0\0\0\0\x01\xfe\x02\x07\x05\0", "a string column of unknown type 55", 36),
    (19, bytes(8) + b"\0\1", "without its end", 28),
    (19, bytes(8) + b"\xfb", "a length that begins with 0xfb", 27),
    (19, bytes(8) + b"\0\0\0\0\x01\x03\0\0\x63\0", "metadata of unknown kind 99", 35),
    (19, bytes(8) + b"\0\0\0\0\x01\x03\0\0\x08\x01\x01", "a key column that the table has not", 38),
    (19, bytes(8) + b"\0\0\0\0\x01\x0f\x02\x50\0\0\x02\x03\xff\x05\x08", "a length that begins with 0xff", 39),
    (30, bytes(8) + b"\1\0", "extra data of 1 bytes", 27),
    (166, bytes(8) + b"\1\1" + b"\x91\1x", "not zlib", 19),
    (166, bytes(8) + b"\1\1" + b"\x81\1\0\0\0", "zlib cannot read", 19),
    (166, bytes(8) + b"\1\1" + b"\x81\2" + zlib.compress(b"x"), "another size", 19),
    (166, bytes(8) + b"\1\1" + b"\x81\1" + zlib.compress(b"xy"), "another size", 19),
    (166, bytes(8) + b"\1\1" + b"\x84\xff\xff\xff\xff" + zlib.compress(b"x"), "event of 4294967295 bytes", 19),
    (40, b"\2\1\7\0x", "compression 7", 23),
    (40, b"\2\1\0\1\1\5\0x", "1 bytes, not 5", 27),
    (41, b"\1\1x\0", "heartbeat without", 23),
]


@pytest.mark.parametrize(("kind", "content", "what", "offset"), FOREIGN, ids=lambda value: repr(value)[:40])
def test_foreign_bytes_are_named_with_their_place(kind: int, content: bytes, what: str, offset: int) -> None:
    with pytest.raises(ProtocolError, match=what) as caught:
        parse(framed(header(kind), content, checksum=True), MYSQL)
    assert caught.value.offset == offset


def _payload(inner: list[Event], *, compression: int = 0) -> TransactionPayload:
    plain = b"".join(encode(event, checksum=False) for event in inner)
    payload = plain if compression else zstandard.ZstdCompressor().compress(plain)
    event = parse(encode(TransactionPayload(header(40), compression, len(plain), payload)), MYSQL)
    assert isinstance(event, TransactionPayload)
    return event


INNER = [EVENTS[1], TABLE, ROWS._replace(body=b"x" * 300_000), ROWS, Xid(header(16), 5)]


@pytest.mark.parametrize("compression", [0, 255])
def test_a_payload_gives_its_events(compression: int) -> None:
    """They have no checksum, whatever the file's events have."""
    found = list(events(_payload(INNER, compression=compression), MYSQL))
    assert [event[1:] for event, _ in found] == [event[1:] for event in INNER]
    assert [raw for _, raw in found] == [encode(event, checksum=False) for event in INNER]


@pytest.mark.parametrize("checksum", [True, False])
@pytest.mark.parametrize("compression", [0, 255])
def test_a_payload_in_a_file_is_that_of_memory(compression: int, checksum: bool) -> None:
    """What is too long for memory is read from where it lies, and checked as everything is."""
    plain = b"".join(encode(event, checksum=False) for event in INNER)
    payload = plain if compression else zstandard.ZstdCompressor().compress(plain)
    raw = encode(TransactionPayload(header(40), compression, len(plain), payload), checksum=checksum)
    described = MYSQL._replace(checksum=checksum)
    found = parse_long(io.BytesIO(raw), described)
    assert isinstance(found.payload, Section)
    assert list(events(found, described)) == list(events(parse(raw, described), described))  # type: ignore[arg-type]
    for broken in (raw[:-1], raw + b"x", raw[:10], raw[:4] + b"\x1e" + raw[5:]):
        with pytest.raises(ProtocolError):
            parse_long(io.BytesIO(broken), described)
    if checksum:
        with pytest.raises(ProtocolError, match="checksum"):
            parse_long(io.BytesIO(raw[:-9] + bytes([raw[-9] ^ 1]) + raw[-8:]), described)
    with pytest.raises(ProtocolError, match="before a FORMAT"):
        parse_long(io.BytesIO(raw), None)


def test_a_payload_of_several_frames_is_read_to_its_end() -> None:
    plain = [encode(event, checksum=False) for event in INNER]
    payload = b"".join(zstandard.ZstdCompressor().compress(part) for part in plain)
    found = list(events(TransactionPayload(header(40), 0, len(b"".join(plain)), payload), MYSQL))
    assert [event[1:] for event, _ in found] == [event[1:] for event in INNER]


def test_a_payload_of_any_other_size_is_a_protocol_error() -> None:
    payload = _payload(INNER)
    for broken in (
        payload._replace(size=payload.size - 1),
        payload._replace(size=payload.size + 1),
        payload._replace(payload=payload.payload[:-10]),
        payload._replace(payload=b"no zstd"),
        payload._replace(compression=255, payload=b"x" * 18),
        payload._replace(compression=255, payload=bytes(40)),
    ):
        with pytest.raises(ProtocolError):
            list(events(broken, MYSQL))


def test_a_set_of_gtids_is_printed_as_the_server_does() -> None:
    other = "ffffffff-71ca-11e1-9e33-c80aa9429562"
    sets = (
        GtidIntervals(UUID, "", ((1, 5), (7, 7))),
        GtidIntervals(UUID, "tag", ((1, 1),)),
        GtidIntervals(other, "", ((2, 3),)),
    )
    assert PreviousGtids(header(35), sets).text == f"{UUID}:1-5:7:tag:1,{other}:2-3"


def test_names_of_gtids() -> None:
    assert Gtid(header(33), UUID, "", 5, 0, 0, None, None, None).gtid == f"{UUID}:5"
    assert Gtid(header(42), UUID, "tag", 5, 0, 0, None, None, None).gtid == f"{UUID}:tag:5"
    gtid = MariadbGtid(header(162), 1, 42, 5, 0x4 | 0x40, None, None)
    assert gtid.gtid == "1-42-5"
    assert not gtid.standalone


def test_a_later_field_of_a_tagged_gtid_is_left_out() -> None:
    """A field that nobody must know, behind those that are known."""
    event = Gtid(header(42), UUID, "tag", 5, 4, 5, 1, 1, 9)
    assert len(body(event)) < 60  # a size of one byte
    rest = body(event)[2:] + varlen(22) + varlen(1)
    content = varlen(0) + varlen(len(rest) + 2) + rest
    assert parse(framed(event.header, content, checksum=True), MYSQL)[1:] == event[1:]


def test_a_row_event_knows_whether_it_has_all_columns() -> None:
    assert ROWS.whole
    assert not ROWS._replace(after=b"\xff\x07").whole
    assert Rows(
        header(31), Op.UPDATE, 7, 1, 3, b"\xff", b"\xff", b""
    ).whole  # what is behind the columns is not looked at
    assert not Rows(header(31), Op.UPDATE, 7, 1, 3, b"\x01", b"\xff", b"").whole


def test_mariadb_counts_geometry_among_text() -> None:
    """Its collations are numbered over one more type than MySQL's."""
    types = b"\xff\x0f"  # GEOMETRY, VARCHAR
    content = bytes(8) + b"\0\0\0\0\2" + types + b"\3\4\x50\0\3" + b"\3\2\x3f\x08"
    parsed = parse(framed(header(19), content, checksum=True), MARIADB)
    assert isinstance(parsed, TableMap)
    assert [column.charset for column in parsed.columns] == ["binary", "latin1"]
    with pytest.raises(ProtocolError):
        parse(framed(header(19), content, checksum=True), MYSQL)


def test_labels_are_in_their_columns_character_set() -> None:
    column = TableColumn("e", table_map.ENUM, 1, nullable=True, charset="latin1", labels=("é",), visible=True)
    content = body(TableMap(header(19), 1, 1, "s", "t", (column,), None))
    content = content.replace(packed_int(2) + "é".encode(), packed_int(1) + b"\xe9").replace(b"\6\4", b"\6\3")
    parsed = parse(framed(header(19), content, checksum=True), MYSQL)
    assert isinstance(parsed, TableMap)
    assert parsed.columns[0].labels == ("é",)


def test_collations_have_their_character_sets() -> None:
    """Numbers of both servers, also those that MariaDB builds."""
    known = {33: "utf8mb3", 255: "utf8mb4", 323: "utf8mb4", 63: "binary", 8: "latin1", 1032: "latin1", 2304: "utf8mb4"}
    known |= {2048: "utf8mb3", 2560: "ucs2", 2816: "utf16", 3072: "utf32", 608: "utf8mb4", 1049: "greek"}
    assert {number: charsets.of_collation(number) for number in known} == known
    assert charsets.of_collation(9_999) == "collation 9999"


def test_an_error_holds_no_row_value() -> None:
    with pytest.raises(ProtocolError) as caught:
        parse(framed(header(166), bytes(8) + b"\1\1\x81\1a secret", checksum=True), MYSQL)
    assert "secret" not in str(caught.value)


def test_statements_are_text_whatever_is_in_them() -> None:
    """Bytes of a literal that are not valid in the session's character set."""
    event = Query(header(2), 1, 0, "", "INSERT INTO t VALUES ('?')", "utf8mb4", None)
    content = body(event).replace(b"?", b"\xff")
    parsed = parse(framed(event.header, content, checksum=True), MYSQL)
    assert isinstance(parsed, Query)
    assert parsed.statement == r"INSERT INTO t VALUES ('\xff')"


def test_a_table_map_that_is_known_is_told_again_under_its_own_header() -> None:
    """The bytes decide, and which kind of server wrote them: damaged ones are refused as ever."""
    first = parse(encode(TABLE), MYSQL)
    again = parse(encode(TABLE._replace(header=TABLE.header._replace(log_pos=777, timestamp_s=5))), MYSQL)
    assert isinstance(again, TableMap)
    assert (again.header.log_pos, again.header.timestamp_s) == (777, 5)
    assert again[1:] == first[1:]
    other = TABLE._replace(table_id=117, table="others")
    assert parse(encode(other), MYSQL)[1:] == other[1:]
    damaged = bytearray(encode(TABLE))
    damaged[-6] ^= 1
    with pytest.raises(ProtocolError, match="checksum"):
        parse(bytes(damaged), MYSQL)
