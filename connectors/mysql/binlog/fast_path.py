"""The fast path reads the events of most transactions: MySQL's GTID, BEGIN, rows, XID. Pure.

    33  u8 · 16 uuid · u64 gno · u8 2 · u64 · u64 · u56 commit time · packed length
     2  u32 thread · u32 seconds · what is the same for every BEGIN of one kind of session
    23-25 30-32  u48 table · u16 flags · [u16 size, extra data] · u8 columns · bits · row images
    16  u64 xid

A reader gives None for what is laid out otherwise; the readers of `parser` take that, and are its oracle.

Where there is `connectors.mysql.binlog.compiled`, small transactions that have come whole are read at once, without
`parser` and `rows.transactions`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from struct import Struct
from typing import Final, NamedTuple, Protocol, Self, TypeAlias, cast
from uuid import UUID

from orjson import dumps

from cdc.encode.built import built
from cdc.model.change import Op, Row, Table, Transaction
from connectors.mysql.binlog.events import Gtid, Header, Query, Rows, TableMap, Xid
from connectors.mysql.binlog.positions import file_number

Reader: TypeAlias = Callable[[Header, bytes, int], Gtid | Query | Rows | Xid | None]
"""Reads an event, given its header, its bytes, and where its checksum begins."""

Read: TypeAlias = Callable[[bytes, int], tuple[Row, int]]
"""Reads a row image, as in `rows.row_images`."""

_HEADER_SIZE: Final = 19
_NUMBER: Final = Struct("<Q")
_GTID: Final = Struct("<16sQBQQIHB")
_ROWS_1: Final = Struct("<IHH")
_ROWS_2: Final = Struct("<IHHH")
_LEAST_EXTRA: Final = 2
"""The size of extra data counts its own bytes."""
_THREAD: Final = Struct("<I")
_NOT_THE_SAME: Final = 8
"""Bytes at the beginning of a statement: thread and seconds."""
_LOGICAL_CLOCK: Final = 2
_HAS_ORIGINAL: Final = 1 << 7
_PACKED: Final = 0xFB
"""The least byte that is no packed integer by itself."""
_MOST: Final = 1000


class _Uuids(dict[bytes, str]):
    """Keeps the text of a server's UUID."""

    def __missing__(self, raw: bytes) -> str:
        if len(self) >= _MOST:
            self.clear()
        self[raw] = text = str(UUID(bytes=raw))
        return text


_UUIDS: Final = _Uuids()
_BEGINS: Final[dict[bytes, Query]] = {}


def gtid(header: Header, data: bytes, end: int) -> Gtid | None:
    """Read type 33, as servers since 8.0 write it, of a transaction that was first committed on this one."""
    at = _HEADER_SIZE + 1 + _GTID.size
    if end <= at:
        return None
    uuid, gno, clock, last, sequence, low, middle, high = _GTID.unpack_from(data, _HEADER_SIZE + 1)
    if clock != _LOGICAL_CLOCK or high & _HAS_ORIGINAL:
        return None
    size = data[at]
    if size >= _PACKED:
        width = size - _PACKED + 1  # 0xFC: two bytes, 0xFD: three
        if width not in (2, 3) or at + width >= end:
            return None
        size = int.from_bytes(data[at + 1 : at + 1 + width], "little")
    commit_us = low | middle << 32 | high << 48
    return tuple.__new__(Gtid, (header, _UUIDS[uuid], "", gno, last, sequence, commit_us, commit_us, size))


def query(header: Header, data: bytes, end: int) -> Query | None:
    """Read type 2, a BEGIN like one that came before."""
    begin = _BEGINS.get(data[_HEADER_SIZE + _NOT_THE_SAME : end])
    if begin is None:
        return None
    (thread_id,) = _THREAD.unpack_from(data, _HEADER_SIZE)
    return tuple.__new__(Query, (header, thread_id, *begin[2:]))


def learn(begin: Query, data: bytes, end: int) -> None:
    """Remember what the plain reader has made of a statement."""
    if begin.statement == "BEGIN":
        if len(_BEGINS) >= _MOST:
            _BEGINS.clear()
        _BEGINS[data[_HEADER_SIZE + _NOT_THE_SAME : end]] = begin


def xid(header: Header, data: bytes, end: int) -> Xid | None:
    """Read type 16."""
    if end != _HEADER_SIZE + _NUMBER.size:
        return None
    return tuple.__new__(Xid, (header, _NUMBER.unpack_from(data, _HEADER_SIZE)[0]))


def _rows(op: Op, head: Struct) -> Reader:
    """Read rows of the first version, or of the second, which has extra data."""

    def read(header: Header, data: bytes, end: int) -> Rows | None:
        at = _HEADER_SIZE + head.size
        if end <= at:
            return None
        low, high, flags, *extra = head.unpack_from(data, _HEADER_SIZE)
        if extra:
            at += extra[0] - _LEAST_EXTRA
            if extra[0] < _LEAST_EXTRA or end <= at:
                return None
        columns = data[at]
        at += 1
        bits = (columns + 7) // 8
        body = at + 2 * bits if op is Op.UPDATE else at + bits
        if columns >= _PACKED or body > end:
            return None
        before = data[at : at + bits] if op is not Op.CREATE else b""
        after = data[body - bits : body] if op is not Op.DELETE else b""
        return tuple.__new__(Rows, (header, op, low | high << 32, flags, columns, before, after, data[body:end]))

    return read


_OPS: Final = (Op.CREATE, Op.UPDATE, Op.DELETE)

READERS: Final[dict[int, Reader]] = {
    2: query,
    16: xid,
    **{23 + i: _rows(op, _ROWS_1) for i, op in enumerate(_OPS)},
    **{30 + i: _rows(op, _ROWS_2) for i, op in enumerate(_OPS)},
    33: gtid,
}
"""The readers by type of event."""


class SmallTransactions(NamedTuple):
    """Holds transactions that were read at once."""

    transactions: list[Transaction]
    """Those that have changed something of what is captured."""
    numbers: list[tuple[str, int, int]]
    """The GTIDs of all of them: a server's UUID, the first and the last of a row of numbers."""
    begin: int
    end: int
    """The offsets of the first one's beginning, and behind them."""
    last: tuple[int, str | None, int]
    """Of the last one: where it begins, its GTID, and when it was committed, in µs since 1970."""


class File(NamedTuple):
    """Names a file of the binlog."""

    name: str
    quoted: bytes
    """Its name as JSON, for use in a format."""
    number: int

    @classmethod
    def named(cls, name: str) -> Self:
        """Look at a file's name. Raises OperatorError for one that is no binlog's."""
        return cls(name, dumps(name).replace(b"%", b"%%"), file_number(name))


class ReadSmall(Protocol):
    """Reads what lies in packets, from an offset in the buffer on."""

    def __call__(
        self, buffer: bytearray, at: int, file: File, done: int, most: int, /
    ) -> tuple[int, list[Transaction], list[tuple[str, int, int]], int, int, tuple[int, str | None, int]] | None:
        """Return where in the buffer reading has ended, and what was read; None: nothing was.

        Transactions committed before the position `done` are read without changes. It may read a few more
        changes than `most`.
        """


def small(
    maps: Mapping[tuple[bytes, bool], TableMap],
    known: Callable[[TableMap, str, int], tuple[Table, Read | None] | None],
    *,
    checksum: bool,
    by_gtid: bool,
) -> ReadSmall | None:
    """Return what reads small transactions of MySQL; None if there is nothing compiled.

    `maps` are the table maps that came before, by their bytes. `known` is given a map, its file and its offset; it
    returns the table and what reads an image of all columns (None: the plain reader must), or None where the table is
    not captured. `by_gtid`: snapshots see transactions by their GTIDs, else by where they end.
    It stops before the first transaction that is not small, not whole, or unusual in any respect.
    """
    compiled = built("connectors.mysql.binlog.compiled")
    if compiled is None:
        return None
    return cast("ReadSmall", compiled.Small(_BEGINS, maps, _UUIDS, known, checksum=checksum, by_gtid=by_gtid))
