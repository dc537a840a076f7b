"""What is fuzzed: for each parser a function of bytes, and the errors by which it may refuse them.

Everything else that comes out is a finding, as is an answer of what is compiled that is not its oracle's. A refusal is
one of our errors, or of those that the caller of the function translates into one; each target says which.
"""

from __future__ import annotations

import json
import struct
import tempfile
import uuid
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson

from cdc.capture.control import signals
from cdc.config import config
from cdc.encode import dead_letters, json_text
from cdc.encode.built import built
from cdc.encode.envelope import row_codegen
from cdc.model.change import Column, Kind, Op, Table, Transaction, TransactionBatch
from cdc.model.errors import CdcError, ConfigError, OperatorError, ProtocolError, TooLargeError
from cdc.model.state import Phase, State, checksum_of
from connectors import json_values
from connectors.mysql.binlog import fast_path as mysql_fast
from connectors.mysql.binlog import parser, table_map, transaction_payload
from connectors.mysql.binlog.cursor import Cursor
from connectors.mysql.binlog.events import FormatDescription, Header, Rows, TableColumn, TableMap, TransactionPayload
from connectors.mysql.binlog.positions import BinlogPosition, GtidPosition, GtidSet, GtidState
from connectors.mysql.rows import compressed_values, image_codegen, row_images
from connectors.mysql.statements import ddl
from connectors.mysql.values import jsonb
from connectors.mysql.values import mapping as mysql_values
from connectors.mysql.values import temporal as mysql_temporal
from connectors.postgres.copy_text import parse_row, parse_row_plainly
from connectors.postgres.pgoutput import fast_path as postgres_fast
from connectors.postgres.pgoutput import messages
from connectors.postgres.pgoutput.row_codegen import row_reader
from connectors.postgres.values import arrays
from connectors.postgres.values import mapping as postgres_values
from connectors.postgres.values import temporal as postgres_temporal
from sinks.client import produce_request, record_batch, varints
from sinks.producer.batches import PlainBatches
from tests.encoders.mysql_dump import Dump, mysql_source


class Target(NamedTuple):
    run: Callable[[bytes], object]
    refusals: tuple[type[BaseException], ...] = ()


class DifferenceError(AssertionError):
    """What is compiled does not say what its oracle says."""


def same(found: object, expected: object, what: str) -> None:
    if found != expected:
        raise DifferenceError(f"{what}: {found!r:.500} where the oracle has {expected!r:.500}")


class Parts:
    """Takes an input apart: what decides first, then bytes of a size that stands before them."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def bytes(self, size: int) -> bytes:
        begin, self._at = self._at, min(self._at + size, len(self._data))
        return self._data[begin : self._at]

    def number(self, size: int = 1) -> int:
        return int.from_bytes(self.bytes(size), "little")

    def part(self) -> bytes:
        return self.bytes(self.number(2))

    def rest(self) -> bytes:
        return self.bytes(self.left)


def outcome(make: Callable[[], Any], *refusals: type[BaseException]) -> Any:
    """What is made, or that it was refused."""
    try:
        return make()
    except refusals:
        return None


# ---- PostgreSQL ----

RELATION: Final = 7
TABLE: Final = Table(
    "s", "t", tuple(Column(name, "text", Kind("string"), json_text.text) for name in ("id", "a", "b")), ("id",)
)


def pgoutput(data: bytes) -> None:
    """Any message; its rows by the generated reader and by the plain one."""
    told = outcome(lambda: messages.decode(data), ProtocolError)
    if data[:1] == b"I" and len(data) >= 8:
        plain = outcome(lambda: messages.plain_row(data, 6), IndexError, struct.error, ProtocolError)
        count = data[6] << 8 | data[7]
        if count <= 1664:
            read = outcome(lambda: row_reader(count)(data, 8), IndexError, struct.error, ProtocolError)
            same(_ended(read, data), _ended(plain, data), "a row")
            if isinstance(told, messages.Insert):
                same(told.new, plain[0], "an insert")


def _ended(read: Any, data: bytes) -> Any:
    return read if read is not None and read[1] <= len(data) else None


def pgoutput_stream(data: bytes) -> None:
    """Messages as the connection gives them: compiled and plain, change by change and by transactions."""
    parts = Parts(data)
    mode, after, most = parts.number(), parts.number() * 16, 1 + parts.number() % 9
    sent: list[bytes | None] = []
    while parts.left:
        size = parts.number(2)
        sent.append(None if size == 0xFFFF else parts.bytes(size))
    compiled = built("connectors.postgres.pgoutput.compiled")
    kinds = [postgres_fast.PlainFastPath, *([compiled.Straight] if compiled else [])]
    told = [_received(kind, sent, after, most, by_change=bool(mode & 1)) for kind in kinds]
    if compiled:
        _received(compiled.Straight, sent, after, most, by_change=bool(mode & 1), identity=(True, False, False))
    left_to_others = any(of != "more" and of[-2] is not None and of[-2][25:26] in (b"U", b"D") for of in told[0])
    if not left_to_others:  # of old rows the plain one makes nothing
        same(told[-1], told[0], "messages")


def _received(
    kind: Any, sent: Sequence[bytes | None], after: int, most: int, *, by_change: bool, identity: Any = None
) -> list[Any]:
    made = kind()
    made.learn(RELATION, len(TABLE.columns), TABLE, identity)
    left = list(sent)

    def get_copy_data(_async: int) -> tuple[int, memoryview]:
        message = left.pop(0) if left else None
        if not message:
            return (0 if left else -1), memoryview(b"")
        return len(message), memoryview(message)

    told: list[Any] = []
    while left:
        if by_change:
            told.append(tuple(made.changes(get_copy_data, most)))
        else:
            told.append(tuple(made.transactions(get_copy_data, lambda: told.append("more"), after, most)))
    return told


def copy_rows(data: bytes) -> None:
    columns, line = 1 + (data[0] if data else 0) % 8, data[1:]
    found, plain = (
        outcome(lambda parse=parse: parse(line, columns), ProtocolError) for parse in (parse_row, parse_row_plainly)
    )
    same(found, plain, "a line of COPY")


def pg_arrays(data: bytes) -> None:
    which, value = (data[0] if data else 0) % 4, data[1:]
    encode = (
        arrays.of_integers, arrays.of_floats(postgres_values.floating), arrays.of_texts(json_text.text, b","),
        arrays.of(json_text.text, b";"),
    )[which]  # fmt: skip
    made = encode(value)
    if which >= 2:
        json.loads(made)


POSTGRES_TEMPORAL: Final = tuple(
    getattr(postgres_temporal, name)
    for name in ("date", "time", "timetz", "timestamp_micros", "timestamp_millis", "timestamptz")
)
MYSQL_TEMPORAL: Final = tuple(
    getattr(mysql_temporal, name)
    for name in (
        "date", "date_or_null", "time", "datetime_millis", "datetime_millis_or_null", "datetime_micros",
        "datetime_micros_or_null", "timestamp", "timestamp_or_null",
    )
)  # fmt: skip
POSTGRES_VALUES: Final = (
    postgres_values.boolean, json_values.bit, postgres_values.floating, postgres_values.money,
    postgres_values.binary, postgres_values.hstore, postgres_values.geometry, json_text.text, json_text.quoted,
    json_text.as_is,
)  # fmt: skip
MYSQL_VALUES: Final = (
    json_values.bit, mysql_values.floating, mysql_values.floating32, mysql_values.year, mysql_values.binary,
    mysql_values.geometry, mysql_values.vector, json_text.text,
)  # fmt: skip


def encoded(encoders: Sequence[Callable[[bytes], bytes]]) -> Callable[[bytes], None]:
    """A value by the encoder that the first byte chooses; and by what is compiled, as value and as key."""

    def run(data: bytes) -> None:
        encode, value = encoders[(data[0] if data else 0) % len(encoders)], data[1:]
        plain = outcome(lambda: encode(value), ValueError)
        compiled = row_codegen.compiled
        if compiled is not None:
            expected = None if plain is None else b'{"a":' + plain + b"}"
            columns = [(b'{"a":', encode)]
            for write in (compiled.RowWriter(columns), compiled.KeyWriter(columns, (0,))):
                same(outcome(lambda write=write: write((value,)), ValueError), expected, encode.__name__)

    return run


def json_rows(data: bytes) -> None:
    """Rows of text to JSON: compiled, generated, and by the library."""
    parts = Parts(data)
    count = 1 + parts.number() % 9
    row = tuple(None if not (size := parts.number()) else parts.bytes(size - 1) for _ in range(count))
    befores = [b'%b"c%d":' % (b"," if n else b"{", n) for n in range(count)]
    expected = outcome(
        lambda: orjson.dumps({f"c{n}": None if v is None else v.decode() for n, v in enumerate(row)}), ValueError
    )
    if row_codegen.compiled is not None:
        write = row_codegen.compiled.RowWriter([(before, json_text.text) for before in befores])
        same(outcome(lambda: write(row), ValueError), expected, "a row")


# ---- MySQL and MariaDB ----

_HEAD: Final = struct.Struct("<IBIIIH")
DESCRIBED: Final = FormatDescription(
    Header(1_700_000_000, 15, 42, 0, 0, 0), 4, "9.7.4", 0, b"\0\x0d\0\x08" * 10, checksum=True
)
MARIADB: Final = DESCRIBED._replace(server_version="11.8.3-MariaDB-log")
KINDS: Final = (2, 3, 4, 15, 16, 19, 23, 24, 25, 27, 29, 30, 31, 32, 33, 34, 35, 37, 38, 39, 40, 41, 42,
                *range(160, 172))  # fmt: skip


def framed(kind: int, body: bytes, *, log_pos: int = 1234, checksum: bool = True) -> bytes:
    size = _HEAD.size + len(body) + 4 * checksum
    raw = _HEAD.pack(1_700_000_000, kind, 42, size, log_pos, 0) + body
    return raw + zlib.crc32(raw).to_bytes(4, "little") if checksum else raw


def binlog_events(data: bytes) -> None:
    """An event whose header and checksum are right; the first byte is its type, and whose."""
    parts = Parts(data)
    kind, described = parts.number(), MARIADB if parts.number() & 1 else DESCRIBED
    raw = framed(kind, parts.rest())
    event = parser.parse(raw, described)
    short = mysql_fast.READERS.get(kind)
    if short is not None:
        same(parser.plain(event.header, raw, len(raw) - 4), event, "an event")
    if isinstance(event, TransactionPayload):
        for _ in islice(transaction_payload.events(event, described), 1000):
            pass


def binlog_bytes(data: bytes) -> None:
    """Any bytes in the place of an event."""
    outcome(lambda: parser.parse(data), ProtocolError)
    parser.parse(data, DESCRIBED._replace(checksum=False))


def table_maps(data: bytes) -> TableMap:
    mariadb = bool(data[:1] and data[0] & 1)
    return table_map.table_map(DESCRIBED.header, Cursor(data, 1, len(data)), mariadb=mariadb)


IMAGE_ERRORS: Final = (IndexError, struct.error, OverflowError, ValueError, CdcError)


def row_rows(data: bytes) -> None:
    """Rows under a table map: compiled and generated."""
    parts = Parts(data)
    told = table_maps(b"\0" + parts.part())
    columns = tuple(_completed(column) for column in told.columns[:64])
    if not columns:
        return
    flags = parts.number()
    bits = (len(columns) + 7) // 8
    present = parts.bytes(bits).ljust(bits, b"\xff")
    shown = tuple(bool(present[n >> 3] >> (n & 7) & 1) for n in range(len(columns)))
    body = parts.rest()
    if any(shown):
        generated = image_codegen.generated(columns, shown)
        pair = {0: (None, generated), 1: (generated, generated), 2: (generated, None)}[flags % 3]
        plain = outcome(lambda: row_images.generated_images(*pair, body), *IMAGE_ERRORS)
        compiled = image_codegen.compiled
        if compiled is not None:
            made = image_codegen.in_c(columns, shown)
            both = tuple(made if read is not None else None for read in pair)
            compressed_values.ROOM.begin(body)
            same(outcome(lambda: compiled.images(*both, body), *IMAGE_ERRORS), plain, "row images")
    rows = Rows(told.header, Op.CREATE, 1, 0, len(columns), b"", present, body)
    reader = row_images.Reader(told._replace(columns=columns))
    try:
        list(reader.changes(rows, TABLE, 4))
    except ValueError as exc:
        if "that are not valid" not in str(exc) and not isinstance(exc, UnicodeError):
            raise


def _completed(column: TableColumn) -> TableColumn:
    """With what a log of MINIMAL metadata leaves out."""
    kind = column.type
    return column._replace(
        unsigned=column.unsigned or False,
        charset=(column.charset or "utf8mb4") if kind in table_map.TEXTS | table_map.LABELLED else None,
        labels=column.labels if column.labels is not None else ("a", "b", "c"),
    )


def json_documents(data: bytes) -> None:
    """The text is bounded by the document: six bytes for one at most, and what entries have around them."""
    made = jsonb.text(data)
    if len(made) > 64 * len(data) + 64:
        raise AssertionError(f"{len(made)} bytes of text of a document of {len(data)}")


def gtid_sets(data: bytes) -> None:
    """As the servers print them; what was read is read again from what is written."""
    kind = (GtidSet, GtidPosition, GtidState)[(data[0] if data else 0) % 3]
    text = data[1:].decode("latin-1")
    made = kind.parse(text)
    if isinstance(made, GtidSet):
        same(str(GtidSet.parse(str(made))), str(made), "a set of GTIDs")


def statement(data: bytes) -> None:
    ddl.meaning(data.decode("utf-8", "replace"), "shop")


NUMBERS: Final = (TableColumn("n", 3, 0, nullable=False, unsigned=False, visible=True),)
UUID: Final = "3e11fa47-71ca-11e1-9e33-c80aa9429562"


def small_transactions(data: bytes) -> None:
    """Packets of a dump, at once and event by event: types and bodies, framed as they should be."""
    parts = Parts(data)
    options = parts.number()
    checksum, by_gtid, done = bool(options & 1), bool(options & 2), 0
    described = struct.pack("<H50sIB", 4, b"9.7.4", 0, 19) + b"\0\x0d\0\x08" * 10 + bytes([checksum])
    sent, at = [], 4
    for kind, body in [(15, described), *_bodies(parts)]:
        summed = checksum or kind == 15
        at += _HEAD.size + len(body) + 4 * summed
        sent.append(framed(kind, body, log_pos=at & 0xFFFFFFFF, checksum=summed))
        if options & 4 and not done and kind == (16 if options & 8 else 15):  # a position lies between transactions
            done = 7 << 32 | at
    buffer = b"".join(struct.pack("<I", len(raw) + 1)[:3] + b"\1\0" + raw for raw in sent)
    cut = buffer[: len(buffer) - (options >> 3)]
    plain, found = (_followed(Dump(cut, at_once=how), by_gtid=by_gtid, done=done) for how in (False, True))
    same(found, plain, "transactions")


def _bodies(parts: Parts) -> Iterator[tuple[int, bytes]]:
    mapped: set[bytes] = set()
    while parts.left:
        kind, body = parts.number(), parts.part()
        if kind == 19:
            mapped.add(body[:6])
        if kind in (23, 24, 25, 30, 31, 32) and body[:6] not in mapped:
            continue  # a server describes a table before its rows
        if kind in (16, 33, 34):  # a map is of one transaction
            mapped.clear()
        yield kind, body


def _followed(dump: Dump, *, by_gtid: bool, done: int) -> Any:
    made = mysql_source(NUMBERS, f"{UUID}:1-6", by_gtid=by_gtid, done=done)
    found: list[Transaction] = []
    try:
        for frame in made._frames(dump, BinlogPosition("b.000007", 4)):  # type: ignore[arg-type]
            several = frame.transactions if isinstance(frame, TransactionBatch) else []
            for transaction in [frame] if isinstance(frame, Transaction) else several:
                changes = list(transaction.changes)
                if changes:
                    found.append(transaction._replace(changes=changes))
    except (EOFError, CdcError) as exc:
        return found, made.position(), type(exc), str(exc)
    return found, made.position(), None, ""


def result_rows(data: bytes) -> None:
    """Rows of a result, as packets: compiled, and in a few lines of Python."""
    compiled = built("connectors.mysql.binlog.compiled")
    if compiled is not None and len(data) >= 2:
        columns, number, seen = data[0] % 8, data[1], data[2:]
        same(compiled.text_rows(seen, columns, number), _text_rows(seen, columns, number), "rows of a result")


def _text_rows(seen: bytes, columns: int, number: int) -> tuple[int, int, list[tuple[bytes | None, ...]]]:
    at, rows = 0, []
    while len(seen) - at > 4:
        size = int.from_bytes(seen[at : at + 3], "little")
        body = seen[at + 4 : at + 4 + size]
        if size in (0, 0xFFFFFF) or len(body) != size or seen[at + 3] != number or body[0] >= 0xFE:
            break
        row: list[bytes | None] = []
        p = 0
        while len(row) < columns and p < size:
            first, p = body[p], p + 1
            if first == 0xFB:
                row.append(None)
                continue
            width = max(first - 0xFA, 0)
            length = int.from_bytes(body[p : p + width], "little") if width else first
            if width > 3 or p + width > size or p + width + length > size:
                break
            p += width
            row.append(body[p : p + length])
            p += length
        if len(row) < columns or p != size:
            break
        rows.append(tuple(row))
        at, number = at + 4 + size, (number + 1) % 256
    return at, number, rows


# ---- Kafka ----


def record_batches(data: bytes) -> None:
    """Records of any keys and values: compiled and plain batches, and what is read of one again."""
    parts = Parts(data)
    most, batch_bytes, partitions = 1 + parts.number(), 1 + parts.number(2), 1 + parts.number() % 7
    records = []
    while parts.left:
        topic = "ab"[parts.number() & 1]
        key = parts.bytes(parts.number())
        size = parts.number(2)
        records.append((topic, key, None if size == 0xFFFF else parts.bytes(size)))
    kinds = [PlainBatches, *([row_codegen.compiled.Batches] if row_codegen.compiled else [])]
    told = []
    for kind in kinds:
        batches = kind(
            lambda: None, lambda: None, lambda topic: (partitions, "a" if topic == "b" else None),
            most_records=most, most_bytes=batch_bytes, batch_bytes=batch_bytes,
        )  # fmt: skip
        for record in records:
            batches.add(*record)
        told.append(batches.take())
    same(told[-1], told[0], "batches")
    for batch in told[0]:
        key, value, _ = record_batch.first(bytes(batch.records))
        if (key, value) not in [(key, value) for _, key, value in records]:
            raise AssertionError("a record that nobody wrote")


def first_records(data: bytes) -> None:
    """Any bytes in the place of a batch."""
    record_batch.first(data)


def produce_answers(data: bytes) -> None:
    produce_request.codes(9 + (data[0] if data else 0) % 4, data[1:])


def produce_requests(data: bytes) -> None:
    """The frame is as long as it says, whatever is in it."""
    parts = Parts(data)
    version = 3 + parts.number() % 10
    sent = {
        f"t{n}": [(partition, parts.part(), parts.part()) for partition in range(parts.number() % 4)]
        for n in range(parts.number() % 4)
    }
    made = b"".join(
        produce_request.request(
            version, sent, correlation_id=7, client_id="c", transactional_id="t" * parts.number(), timeout_ms=9
        )
    )
    same(int.from_bytes(made[:4]), len(made) - 4, "the size of a request")


def numbers(data: bytes) -> None:
    """What is read of a varint is written again, in as few bytes or fewer."""
    number, end = varints.read_unsigned(data, 0)
    again = varints.unsigned(number)
    same(varints.read_unsigned(again, 0), (number, len(again)), "a varint")
    if len(again) > end:
        raise AssertionError("more bytes than it was read from")
    if number < 1 << 63:
        varints.zigzag(number)
        varints.zigzag(-number)


# ---- ours ----


@cache
def _folder() -> Path:
    made = Path(tempfile.gettempdir()) / f"fuzz-{uuid.uuid4()}"
    made.mkdir()
    return made


def yaml_files(data: bytes) -> None:
    """Of a connector and of an apply job."""
    file = _folder() / "config.yaml"
    file.write_bytes(data[1:])
    if data[:1] and data[0] & 1:
        config.describes_apply(file)
        config.load_apply(file)
    else:
        config.load_connector(file)


def position_records(data: bytes) -> None:
    """Any bytes; and any object under a checksum that is right."""
    outcome(lambda: State.from_bytes(data, where="t"), OperatorError)
    try:
        body = orjson.loads(data)
        body.pop("checksum", None)
        record = orjson.dumps({**body, "checksum": checksum_of(body)})
    except (ValueError, TypeError, AttributeError):
        return
    state = State.from_bytes(record, where="t")
    if isinstance(state.phase, Phase):
        replace(state)


def signal_records(data: bytes) -> None:
    """A record is a command, or asks for nothing."""
    command = signals.parse(data)
    if command.tables and not command.stop:
        signals.parse(command.to_bytes("id"))


def dead_letter_records(data: bytes) -> None:
    """Which event a record is of that the broker found too large."""
    parts = Parts(data)
    key = parts.part()
    dead_letters.refusal(TooLargeError("m", hint="h", topic="t", key=key, value=parts.rest()))


TARGETS: Final[dict[str, Target]] = {
    "pgoutput": Target(pgoutput),
    "pgoutput_stream": Target(pgoutput_stream),
    "copy_rows": Target(copy_rows),
    "pg_arrays": Target(pg_arrays, (ValueError,)),
    "pg_temporal": Target(encoded(POSTGRES_TEMPORAL)),
    "pg_values": Target(encoded(POSTGRES_VALUES)),
    "mysql_temporal": Target(encoded(MYSQL_TEMPORAL)),
    "mysql_values": Target(encoded(MYSQL_VALUES)),
    "json_rows": Target(json_rows),
    "binlog_events": Target(binlog_events, (ProtocolError,)),
    "binlog_bytes": Target(binlog_bytes, (ProtocolError,)),
    "table_maps": Target(table_maps, (ProtocolError,)),
    "row_images": Target(row_rows, (ProtocolError, OperatorError)),
    "jsonb": Target(json_documents, (ProtocolError,)),
    "gtid_sets": Target(gtid_sets, (OperatorError,)),
    "statements": Target(statement, (ProtocolError,)),
    "small_transactions": Target(small_transactions),
    "result_rows": Target(result_rows),
    "record_batches": Target(record_batches),
    "first_records": Target(first_records, (IndexError, UnicodeDecodeError)),  # it is given records of our own alone
    "produce_answers": Target(produce_answers, (IndexError, ValueError)),  # the connection is given up
    "produce_requests": Target(produce_requests),
    "varints": Target(numbers, (IndexError, ValueError)),
    "yaml": Target(yaml_files, (ConfigError,)),
    "position_records": Target(position_records, (OperatorError,)),
    "signals": Target(signal_records),
    "dead_letters": Target(dead_letter_records),
}
"""By name: also the folder of its corpus."""
