"""Binlogs as MySQL 8.0, 8.4 and 9, Percona Server and MariaDB 11 write them, of servers that tests cannot start here.

The bytes are written by hand, field by field, from the servers' documentation (the addresses stand in
`connectors.mysql.binlog`): they are no recording. `docs/contributing.md` says where recordings were looked for.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pytest
import zstandard

from cdc.model.errors import ProtocolError
from connectors.mysql.binlog.events import (
    AnonymousGtid,
    Event,
    FormatDescription,
    Gtid,
    MariadbGtid,
    PartialUpdateRows,
    PreviousGtids,
    Query,
    Rows,
    TableMap,
    TransactionPayload,
    Xid,
)
from connectors.mysql.binlog.parser import parse
from connectors.mysql.binlog.transaction_payload import events
from connectors.mysql.rows.partial_images import images as partial_images
from connectors.mysql.rows.row_images import Reader
from connectors.mysql.statements.judgement import judge
from tests.encoders.mysql import framed, header

UUID: Final = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
_GTID, _ANONYMOUS, _PREVIOUS, _PAYLOAD, _TAGGED = 33, 34, 35, 40, 42
_QUERY, _XID, _MAP, _WRITE, _UPDATE, _PARTIAL = 2, 16, 19, 30, 31, 39
_WRITE_V1, _OF_MARIADB, _WRITE_COMPRESSED = 23, 162, 166


@dataclass(frozen=True)
class Format:
    """One log: events as (type, body), and what is to be read of them; or by which words it is refused."""

    name: str
    server: str
    log: tuple[tuple[int, str], ...]
    """Bodies in hexadecimal; spaces part fields."""
    read: tuple[str, ...] = ()
    refused: str = ""


_T: Final = "5a0000000000 0100 04 74657374 00 01 74 00"  # table 90, test.t
_ROW: Final = "5a0000000000 0100 0200"  # table 90, end of statement, no extra data
_V1: Final = "5a0000000000 0100"
_BODY_80: Final = f"00 {UUID.replace('-', '')} 0500000000000000 02 0400000000000000 0500000000000000"

FORMATS: Final = (
    Format(
        "a transaction's name as MySQL 8.0 has it, with its times, its length and the server's version",
        "8.0.36",
        ((_GTID, f"{_BODY_80} 77d53fa870d105 fc4f01 a4380100"),),
        ("gtid 3e11fa47-71ca-11e1-9e33-c80aa9429562:5 of 335 bytes, at 1637656672851319, there the same",),
    ),
    Format(
        "the same from another server, whose commit time and version stand beside its own",
        "8.0.36",
        ((_GTID, f"{_BODY_80} 77d53fa870d185 01d53fa870d105 fc4f01 a4380180 9a380100"),),
        ("gtid 3e11fa47-71ca-11e1-9e33-c80aa9429562:5 of 335 bytes, at 1637656672851319, there 1637656672851201",),
    ),
    Format(
        "with the ticket of a group commit, which 8.0.33 and later add in group replication",
        "8.4.3",
        ((_GTID, f"{_BODY_80} 77d53fa870d105 fc4f01 03480100 0900000000000000"),),
        ("gtid 3e11fa47-71ca-11e1-9e33-c80aa9429562:5 of 335 bytes, at 1637656672851319, there the same",),
    ),
    Format(
        "a tagged name, as 8.3 and later have it: a message of fields with their numbers",
        "8.4.3",
        # version 1, 58 bytes, no field must be known; flags 0; 16 bytes; gno 3; tag; committed 0; sequence 1;
        # immediate commit in 8 bytes; length 296; version 80403
        (
            (
                _TAGGED,
                (
                    "02 74 00 00 00 02 7c 22 e903 8e e2 2903 22 8503 7902 66 2103 14 a502 84 5502 c4"
                    " 04 0c 06 0a6d79746167 08 00 0a 04 0c 7f77d53fa870d105 10 a104 12 9bd009"
                ),
            ),
        ),
        (f"gtid {UUID}:mytag:3 of 296 bytes, at 1637656672851319, there the same",),
    ),
    Format(
        "with a field that a later version says must be known",
        "9.9.0",
        ((_TAGGED, "02 0c 1e 00 00 1c 00"),),
        refused="a tagged GTID of another size|must be known",
    ),
    Format(
        "what was there before the file, with a tag",
        "8.4.3",
        (
            (
                _PREVIOUS,
                (
                    f"0102000000000001 {UUID.replace('-', '')} 00 0100000000000000 0100000000000000 0e00000000000000"
                    f" {UUID.replace('-', '')} 0a6d79746167 0200000000000000"
                    " 0100000000000000 0300000000000000 0700000000000000 0800000000000000"
                ),
            ),
        ),
        (f"before: {UUID}:1-13, {UUID}:mytag:1-2:7-7",),
    ),
    Format(
        "columns as binlog_row_metadata = MINIMAL tells of them: no names, signs and collations alone",
        "8.0.36",
        (
            # BIGINT, INT, VARCHAR(20), BLOB; all but the first may be null; signs: unsigned, signed; collation 255, 63
            (_MAP, f"{_T} 04 08030ffc 03 5000 02 0e 01 01 80 03 04 fcff00 3f"),
            (_WRITE, f"{_ROW} 04 ff 00 ffffffffffffffff feffffff 02 c3a9 0200 00ff"),
        ),
        ("map test.t(?, ?, ?, ?)", "c (18446744073709551615, -2, é, 2 bytes)"),
    ),
    Format(
        "all of the optional metadata: names, labels with collations of their own, an invisible column, a key",
        "8.4.3",
        (
            # my_row_id BIGINT UNSIGNED INVISIBLE, e ENUM('x','é'), s SET('a','b') latin1
            (
                _MAP,
                (
                    f"{_T} 03 08fefe 04 f701 f801 06 01 01 80 04 0e 096d795f726f775f6964 0165 0173"
                    " 05 05 02 0161 0162 06 06 02 0178 02c3a9 08 01 00 0b 04 fcff00 08 0c 01 60"
                ),
            ),
            (_WRITE, f"{_ROW} 03 ff 00 0700000000000000 02 03"),
        ),
        ("map test.t(my_row_id, e, s) invisible my_row_id key my_row_id", "c (7, é, a,b)"),
    ),
    Format(
        "vectors, of which MySQL 9 has a collation each among those of texts",
        "9.0.1",
        # INT, VECTOR(2), TEXT utf8mb4, VECTOR(1): most are binary (63), but for the second, utf8mb4_0900_ai_ci (255)
        (
            (
                _MAP,
                (
                    f"{_T} 04 03f2fcf2 03 040204 0e 01 01 00 02 05 3f 01 fcff00 04 09 026964 0176 0174 0177 08 01 00"
                    " 0d 02 0201 0c 01 f0"
                ),
            ),
            (_WRITE, f"{_ROW} 04 ff 00 01000000 08000000 0000803f 00000040 0200 c3a9 04000000 0000803f"),
        ),
        ("map test.t(id, v, t, w) key id", "c (1, 8 bytes, é, 4 bytes)"),
    ),
    Format(
        "a kind of metadata that no version has yet",
        "9.9.0",
        ((_MAP, f"{_T} 01 03 00 00 01 01 00 0e 01 00"),),
        refused="table metadata of unknown kind 14",
    ),
    Format(
        "a change of a part of a JSON value, as binlog_row_value_options = PARTIAL_JSON has it",
        "8.0.36",
        (
            (_MAP, f"{_T} 02 03f5 01 04 02 01 01 00 04 05 026964 016a 08 01 00"),
            # before: id 1 and {"a": 1}; after: the option, a bit for the one JSON column, id 1, replace $.a by 2
            (
                _PARTIAL,
                (
                    f"{_ROW} 02 ff ff 00 01000000 0d000000 00 0100 0c00 0b00 0100 05 0100 61"
                    " 01 01 00 01000000 09000000 00 03 242e61 03 05 0200"
                ),
            ),
        ),
        ("map test.t(id, j) key id", "u (1, 13 bytes) -> (1, 9 bytes)"),  # of which the key is taken, to read the row
    ),
    Format(
        "Percona Server's compressed columns: its log has them as they were written, and types of every server",
        "8.0.36-28",
        (
            (
                _QUERY,
                "01000000 00000000 04 0000 0700 04 ff00 ff00 ff00 74657374 00"
                + b"CREATE COMPRESSION_DICTIONARY words ('one' 'two')".hex(),
            ),
            (
                _QUERY,
                "01000000 00000000 04 0000 0700 04 ff00 ff00 ff00 74657374 00"
                + b"CREATE TABLE t (id INT PRIMARY KEY, b TEXT COLUMN_FORMAT COMPRESSED "
                b"/*!50633 WITH COMPRESSION_DICTIONARY words */)".hex(),
            ),
            (_MAP, f"{_T} 02 03fc 01 02 02 01 01 00 02 03 fcff00 04 05 026964 0162 08 01 00"),
            (_WRITE, f"{_ROW} 02 ff 00 01000000 0300 6f6e65"),
        ),
        ("statement: None", "statement: Altered test.t", "map test.t(id, b) key id", "c (1, one)"),
    ),
    Format(
        "MariaDB's names: of a group commit; of an ALTER in two phases, with the thread, as 10.8 and 12 have them",
        "12.0.2-MariaDB",
        (
            (_OF_MARIADB, "0700000000000000 00000000 02 0900000000000000"),
            (_OF_MARIADB, "0800000000000000 00000000 29 02 0000000000"),
            (_OF_MARIADB, "0900000000000000 00000000 29 14 0800000000000000 0b000000"),
        ),
        ("gtid 0-42-7 flags 2", "gtid 0-42-8 flags 41", "gtid 0-42-9 flags 41"),
    ),
    Format(
        "MariaDB's compressed columns: a byte of how, the size, then deflate or the value itself",
        "11.8.3-MariaDB",
        (
            # INT, VARCHAR(20) COMPRESSED, BLOB COMPRESSED: 141 and 140, whose fields have a byte more
            (_MAP, f"{_T} 03 038d8c 03 5100 02 06 01 01 00 02 03 2d 01 3f 04 07 026964 0176 0162 08 01 00"),
            (_WRITE_V1, f"{_V1} 03 ff 00 01000000 03 00 c3a9 0300 00 ff01"),
        ),
        ("map test.t(id, v, b) key id", "c (1, é, 2 bytes)"),
    ),
)


def _log(made: Format) -> Iterator[Event]:
    described = FormatDescription(header(15), 4, made.server, 0, b"", checksum=False)
    for kind, body in made.log:
        yield parse(framed(header(kind), bytes.fromhex(body), checksum=False), described)


def _said(event: Event, maps: dict[int, TableMap]) -> Iterator[str]:
    match event:
        case Gtid() | AnonymousGtid():
            name = "anonymous"
            if isinstance(event, Gtid):
                name = ":".join([event.uuid, *([event.tag] if event.tag else []), str(event.gno)])
            there = event.original_commit_us
            where = "the same" if there == event.immediate_commit_us else there
            yield f"gtid {name} of {event.transaction_length} bytes, at {event.immediate_commit_us}, there {where}"
        case MariadbGtid():
            yield f"gtid {event.domain}-{event.server_id}-{event.sequence} flags {event.flags}"
        case PreviousGtids(_, sets):
            of = (
                f"{one.uuid}{':' if one.tag else ''}{one.tag}:{':'.join(f'{a}-{b}' for a, b in one.intervals)}"
                for one in sets
            )
            yield f"before: {', '.join(of)}"
        case Query():
            said = judge(event.statement, event.schema, "", 0)
            table = f" {'.'.join(getattr(said, 'table', ()))}" if said is not None else ""
            yield f"statement: {type(said).__name__ if said is not None else None}{table}"
        case TableMap(_, number, _, schema, table, columns, key):
            maps[number] = event
            hidden = " ".join(f" invisible {c.name}" for c in columns if c.visible is False)
            of = f" key {', '.join(str(columns[at].name) for at, _ in key)}" if key else ""
            yield f"map {schema}.{table}({', '.join(c.name or '?' for c in columns)}){hidden}{of}"
        case PartialUpdateRows():
            for before, after in partial_images(event, maps[event.table_id].columns):
                yield f"u {_row(before)} -> {_row(after)}"
        case Rows():
            for before, after in Reader(maps[event.table_id])(event):
                yield f"{event.op.value} {' -> '.join(_row(image) for image in (before, after) if image is not None)}"
        case Xid():
            yield "committed"


def _row(image: object) -> str:
    shown = []
    for value in image if isinstance(image, tuple) else ():
        try:
            text = value.decode() if isinstance(value, bytes) else str(value)
        except UnicodeDecodeError:
            text = f"{len(value)} bytes"
        shown.append(text if text.isprintable() else f"{len(value)} bytes")
    return f"({', '.join(shown)})"


@pytest.mark.parametrize("made", FORMATS, ids=[made.name for made in FORMATS])
def test_a_format_is_read_or_refused(made: Format) -> None:
    maps: dict[int, TableMap] = {}
    if made.refused:
        with pytest.raises(ProtocolError, match=made.refused):
            list(_log(made))
        return
    assert tuple(said for event in _log(made) for said in _said(event, maps)) == made.read


@pytest.mark.parametrize("compressed", [True, False])
def test_a_transaction_in_one_event(*, compressed: bool) -> None:
    """As binlog_transaction_compression makes it, and as it is where compressing would not pay: type 255."""
    vectors = next(made for made in FORMATS if made.name.startswith("vectors"))
    ended = Format("", "8.0.36", (*vectors.log, (_XID, "0700000000000000")))
    inside = b"".join(framed(header(kind), bytes.fromhex(of), checksum=False) for kind, of in ended.log)
    payload = zstandard.ZstdCompressor().compress(inside) if compressed else inside
    fields = bytes.fromhex("02 01 00" if compressed else "02 03 fcff00")  # how, the size of what it was, and of this
    fields += (
        b"\x03\x03\xfc" + struct.pack("<H", len(inside)) + b"\x01\x03\xfc" + struct.pack("<H", len(payload)) + b"\0"
    )
    described = FormatDescription(header(15), 4, "8.0.36", 0, b"", checksum=False)
    found = parse(framed(header(_PAYLOAD), fields + payload, checksum=False), described)
    assert isinstance(found, TransactionPayload)
    maps: dict[int, TableMap] = {}
    read = [said for event, *_ in events(found, described) for said in _said(event, maps)]
    assert read == [*vectors.read, "committed"]
