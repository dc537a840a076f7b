"""Groups events of the binlog to transactions: committed, rolled back, prepared. Pure, but for a temporary file.

A transaction is held until its end has come, in memory while it is small: only its last event says whether it was
committed, and rows that were prepared (XA) belong to a later one. What stands in the log as one block begins with a
GTID (MySQL: also an anonymous one), then `BEGIN`, rows, and `XID` or `COMMIT`; a statement alone is a block by itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from struct import Struct
from typing import IO, Final

from cdc.model.errors import GapError
from connectors.mysql.binlog import events, parser, transaction_payload
from connectors.mysql.binlog.last_transaction import committed_us
from connectors.mysql.binlog.positions import BinlogPosition
from connectors.mysql.binlog.spill import close_file, on_disk, open_file
from connectors.mysql.statements.ddl import (
    Began,
    Ended,
    RolledBackTo,
    XaEnded,
    XaId,
)
from connectors.mysql.statements.judgement import judge

IN_MEMORY_BYTES: Final = 8 * 1024 * 1024
_SIZE: Final = Struct("<IQ")

log = logging.getLogger("cdc")


def _impossible(what: str) -> GapError:
    return GapError(
        what,
        hint="please report this with the server's version; cdc snapshot start CONNECTOR.yaml --after-gap goes on "
        "behind it",
    )


class TransactionBuffer:
    """Holds a transaction's events in order, each with its offset; past a size in a temporary file."""

    def __init__(self, limit_bytes: int = IN_MEMORY_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._events: list[tuple[events.Event, bytes, int]] = []
        self._file: IO[bytes] | None = None
        self._bytes = 0

    def add(self, event: events.Event, raw: bytes, offset: int) -> None:
        """Add an event; `raw` are its bytes."""
        self._bytes += len(raw)
        if self._file is None:
            self._events.append((event, raw, offset))
            if self._bytes > self._limit_bytes:
                self._file = open_file()
                for _, one, at in self._events:
                    self._write(one, at)
                self._events = []
        else:
            self._write(raw, offset)

    def _write(self, raw: bytes, offset: int) -> None:
        assert self._file is not None  # noqa: S101 - by its callers
        with on_disk():
            self._file.write(_SIZE.pack(len(raw), offset))
            self._file.write(raw)

    def __bool__(self) -> bool:
        return self._bytes > 0

    def read(self, parse: Callable[[bytes], events.Event]) -> Iterator[tuple[events.Event, int]]:
        """Give all of them, in order."""
        if self._file is None:
            for event, _, offset in self._events:
                yield event, offset
            return
        with on_disk():
            self._file.seek(0)  # which writes what is left
        while found := self._read_one(self._file):
            raw, offset = found
            yield parse(raw), offset

    @staticmethod
    def _read_one(file: IO[bytes]) -> tuple[bytes, int] | None:
        with on_disk():
            head = file.read(_SIZE.size)
            if not head:
                return None
            size, offset = _SIZE.unpack(head)
            return file.read(size), offset

    def close(self) -> None:
        if self._file is not None:
            close_file(self._file)


@dataclass(slots=True)
class Block:
    """Is a transaction of the log, whole."""

    begin: BinlogPosition
    gtid: str | None
    server_id: int
    buffer: TransactionBuffer = field(default_factory=TransactionBuffer)
    at_ms: int = 0
    committed_us: int = 0
    """When it was first committed, wherever; 0: it does not say."""
    described: events.FormatDescription | None = None
    last: int = 0
    """The offset its last event begins at."""
    end: int = 0
    """The offset behind it."""
    begun: bool = False
    """Ends with XID or COMMIT; else with its first statement."""
    alone: bool = False
    """One statement by itself (MariaDB says so)."""
    uncertain: bool = False
    """A part of it was rolled back, which only the server can tell from the rest: its tables are to be read again."""

    @property
    def commit(self) -> int:
        return BinlogPosition(self.begin.file, self.last).commit

    def touched(self) -> set[tuple[str, str]]:
        """Return the tables, by schema and name, whose rows are in it."""
        found = self.buffer.read(lambda raw: parser.parse(raw, self.described))
        return {(event.schema, event.table) for event, _ in found if isinstance(event, events.TableMap)}

    def ends_behind(self, commit: int) -> bool:
        """Tell whether it is not yet whole at a commit position between two blocks."""
        return BinlogPosition(self.begin.file, self.end).commit > commit


@dataclass(frozen=True, slots=True)
class Committed:
    """Is a block to be published. What it says of prepared ones is done already."""

    block: Block
    rows: Block
    """Whose rows these are: the block's own, or those that were prepared before."""


@dataclass(frozen=True, slots=True)
class Passed:
    """Is a block of which nothing is published: rolled back, prepared, or of tables that are not captured."""

    block: Block


class Grouper:
    """Takes events in order; gives each block once its last event has come."""

    def __init__(self, wanted: Callable[[events.TableMap], bool], *, settled: int = 0) -> None:
        """Begin between blocks. `wanted`: whether rows of a table are of interest; those of others are not held.

        `settled`: a prepared transaction whose rows came before the log was followed may end before this commit
        position; after it, its rows are missing, and XA COMMIT is given in their place.
        """
        self._wanted = wanted
        self._settled = settled
        self._block: Block | None = None
        self._maps: dict[int, bool] = {}
        self._described: events.FormatDescription | None = None
        self.prepared: dict[XaId, Block] = {}
        """What XA has prepared and nobody has ended, oldest first."""

    @property
    def _server(self) -> str:
        return "" if self._described is None else self._described.server_version

    @property
    def between(self) -> bool:
        """Tell whether the log stands between two blocks."""
        return self._block is None

    def reset(self, described: events.FormatDescription) -> None:
        """Begin a file: what was not ended in the one before never will be."""
        if self._block is not None:
            log.warning(
                "the log breaks off inside a transaction at %s: the server has crashed there", self._block.begin
            )
            self._block.buffer.close()
        self._block = None
        self._described = described
        self._maps.clear()

    def feed(self, event: events.Event, raw: bytes, file: str) -> Committed | Passed | None:
        """Take one event, which is in `file`. Raises OperatorError for what cannot be followed."""
        header = event.header
        at = BinlogPosition(file, header.log_pos - header.size if header.log_pos else 0)
        if isinstance(event, events.TransactionPayload):
            return self._unpack(event, at)
        return self._take(event, raw, at, header)

    def _unpack(self, payload: events.TransactionPayload, at: BinlogPosition) -> Committed | Passed:
        """Judge what is compressed event by event, as if it were not compressed: it may be an XA PREPARE."""
        block, described, done = self._in_hand(at, payload), self._described, None
        if described is None or block.buffer:
            raise _impossible(f"the transaction at {block.begin} is compressed in part only")
        block.described = described._replace(checksum=False)
        for event, raw in transaction_payload.events(payload, described):
            if done is not None:
                raise _impossible(f"the compressed transaction at {at} goes on behind its end")
            done = self._take(event, raw, at, payload.header)
        if done is None:
            raise _impossible(f"the compressed transaction at {at} has no end")
        return done

    def _take(
        self, event: events.Event, raw: bytes, at: BinlogPosition, header: events.Header
    ) -> Committed | Passed | None:
        """Take one event at `at`. `header` is that of what stands in the file: the event, or what it is packed in."""
        match event:
            case events.TableMap():
                wanted = self._maps[event.table_id] = self._wanted(event)
                if wanted:
                    self._in_hand(at, event).buffer.add(event, raw, at.offset)
            case events.Rows() | events.PartialUpdateRows():
                if self._maps.get(event.table_id):
                    self._in_hand(at, event).buffer.add(event, raw, at.offset)
            case events.Gtid() | events.AnonymousGtid() | events.MariadbGtid():
                self._open(event, at)
            case events.Query():
                return self._statement(event, raw, at, header)
            case events.Xid():
                return self._end(self._in_hand(at, event), header, committed=True)
            case events.XaPrepare():
                return self._prepare(event, self._in_hand(at, event), header)
            case events.RowsQuery() | events.AnnotateRows() | events.Ignorable() | events.StartEncryption():
                pass
            case events.PreviousGtids() | events.MariadbGtidList() | events.BinlogCheckpoint() | events.Stop():
                pass
            case events.ViewChange():  # each member of the group writes its own, under one GTID
                self._in_hand(at, event).committed_us = 0
            case _:
                raise GapError(
                    f"an event of type {event.header.type} ({event.header.name}) in the log at {at}, which is not "
                    "known here: what it changes cannot be told",
                    hint="a newer release may know it; else: cdc snapshot start CONNECTOR.yaml --after-gap",
                )
        return None

    def _open(self, event: events.Gtid | events.AnonymousGtid | events.MariadbGtid, at: BinlogPosition) -> None:
        if self._block is not None:
            raise _impossible(f"the transaction at {self._block.begin} has no end in the log: another begins at {at}")
        gtid = None if isinstance(event, events.AnonymousGtid) else event.gtid
        block = self._block = Block(at, gtid, event.header.server_id, at_ms=event.header.timestamp_s * 1000)
        block.described = self._described
        block.committed_us = committed_us(event)
        if isinstance(event, events.MariadbGtid):
            block.alone = event.standalone
            block.begun = not event.standalone
        elif event.immediate_commit_us:
            block.at_ms = event.immediate_commit_us // 1000

    def _in_hand(self, at: BinlogPosition, event: events.Event) -> Block:
        if self._block is None:
            raise _impossible(f"{event.header.name} outside a transaction in the log at {at}")
        return self._block

    def _statement(
        self, event: events.Query, raw: bytes, at: BinlogPosition, header: events.Header
    ) -> Committed | Passed | None:
        block = self._block
        said = judge(event.statement, event.schema, self._server, event.sql_mode)
        if block is None:  # no GTID before it: it begins a block all the same
            block = self._block = Block(at, None, event.header.server_id, at_ms=event.header.timestamp_s * 1000)
            block.described = self._described
        match said:
            case Began():
                block.begun = True
                return None
            case Ended(committed):
                return self._end(block, header, committed=committed)
            case RolledBackTo():
                block.uncertain = True
                return None
            case XaEnded(xid, committed):
                block.buffer.add(event, raw, at.offset)
                return self._end_prepared(block, header, xid, committed=committed)
            case None:
                pass
            case _:
                block.buffer.add(event, raw, at.offset)
        if not block.begun:
            return self._end(block, header, committed=True)
        return None

    def _end(self, block: Block, header: events.Header, *, committed: bool) -> Committed | Passed:
        self._close(block, header)
        if not committed or not block.buffer:
            block.buffer.close()
            return Passed(block)
        return Committed(block, block)

    def _close(self, block: Block, header: events.Header) -> None:
        block.last, block.end = header.log_pos - header.size, header.log_pos
        if block.at_ms == 0:
            block.at_ms = header.timestamp_s * 1000
        self._block = None

    def _prepare(self, event: events.XaPrepare, block: Block, header: events.Header) -> Committed | Passed:
        if event.one_phase:
            return self._end(block, header, committed=True)
        self._close(block, header)
        self.prepared[event.format_id, event.gtrid, event.bqual] = block
        return Passed(block)

    def _end_prepared(self, block: Block, header: events.Header, xid: XaId, *, committed: bool) -> Committed | Passed:
        self._close(block, header)
        rows = self.prepared.pop(xid, None)
        if rows is None and committed and block.ends_behind(self._settled):
            return Committed(block, block)  # of which nothing but the statement is told: see `Holes`
        if rows is None or not committed or not rows.buffer:
            if rows is not None:
                rows.buffer.close()
            return Passed(block)
        return Committed(block, rows)
