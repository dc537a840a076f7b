"""Defines the events of a binlog as values. `connectors.mysql.binlog.parser` makes them; nothing is read here.

Names and numbers: https://dev.mysql.com/doc/dev/mysql-server/latest/page_protocol_replication_binlog_event.html and
https://mariadb.com/kb/en/replication-protocol/. Times ending in `_us` are microseconds since 1970, in `_s` seconds.
"""

from __future__ import annotations

from functools import lru_cache
from typing import IO, Final, NamedTuple, TypeAlias

from cdc.model.change import Op
from connectors.mysql.binlog.event_types import TYPE_NAMES

HEADER_SIZE: Final = 19

ARTIFICIAL: Final = 0x20
"""Header flag: made for the reader, in no file."""

IGNORABLE: Final = 0x80
"""Header flag: the server says that a reader that does not know the event may go on."""


class Header(NamedTuple):
    """Begins every event.

    `log_pos` is where the event ends in its file, the lower 32 bits of it; 0 in artificial events, in the
    FORMAT_DESCRIPTION that a dump begins with in the middle of a file, and in the events of a compressed transaction.
    """

    timestamp_s: int
    type: int
    server_id: int
    size: int
    log_pos: int
    flags: int

    @property
    def name(self) -> str:
        """Return the type's name; its number where it has none."""
        return TYPE_NAMES.get(self.type, f"event type {self.type}")

    @property
    def artificial(self) -> bool:
        return bool(self.flags & ARTIFICIAL)


class FormatDescription(NamedTuple):
    """Begins a file: it says who wrote it, and whether events end in a CRC32."""

    header: Header
    binlog_version: int
    server_version: str
    created_at_s: int
    """When the server started, in the first file after a start; else 0."""
    post_header_lengths: bytes
    checksum: bool

    @property
    def mariadb(self) -> bool:
        return "mariadb" in self.server_version.lower()


class Rotate(NamedTuple):
    """The log goes on in `file` at `position`; artificial at the beginning of a dump."""

    header: Header
    position: int
    file: str


class Query(NamedTuple):
    """Holds a statement: DDL, BEGIN, COMMIT, XA …; changes of rows are statements only if the format is not ROW."""

    header: Header
    thread_id: int
    error_code: int
    schema: str
    """The default database of the session."""
    statement: str
    """What is not valid in `charset` (bytes of a literal) is written as backslash escapes."""
    charset: str
    """character_set_client of the session that gave the statement."""
    ddl_xid: int | None
    """MySQL 8.0: the transaction of an atomic DDL statement."""
    sql_mode: int = 0
    """The session's, as bits: what is a quote in the statement."""


class Xid(NamedTuple):
    """Commits a transaction in a transactional engine."""

    header: Header
    xid: int


class XaPrepare(NamedTuple):
    """Ends a group of row events: XA PREPARE, or XA COMMIT … ONE PHASE if `one_phase`."""

    header: Header
    one_phase: bool
    format_id: int
    gtrid: bytes
    bqual: bytes


class Gtid(NamedTuple):
    """A transaction of MySQL begins, with or without a tag."""

    header: Header
    uuid: str
    tag: str
    gno: int
    last_committed: int
    sequence_number: int
    immediate_commit_us: int | None
    original_commit_us: int | None
    transaction_length: int | None
    """Bytes of the whole transaction in the log, this event included."""

    @property
    def gtid(self) -> str:
        """Return it as GTID sets print it: ``uuid:gno``, ``uuid:tag:gno``."""
        return f"{self.uuid}:{self.tag}:{self.gno}" if self.tag else f"{self.uuid}:{self.gno}"


class AnonymousGtid(NamedTuple):
    """A transaction of MySQL begins while gtid_mode is off."""

    header: Header
    last_committed: int
    sequence_number: int
    immediate_commit_us: int | None
    original_commit_us: int | None
    transaction_length: int | None


class GtidIntervals(NamedTuple):
    """Holds one source's part of a GTID set; ends are inclusive."""

    uuid: str
    tag: str
    intervals: tuple[tuple[int, int], ...]


class PreviousGtids(NamedTuple):
    """Holds all that was executed before this file began."""

    header: Header
    sets: tuple[GtidIntervals, ...]

    @property
    def text(self) -> str:
        """Return the set as the server prints it, but without line breaks."""
        parts: list[str] = []
        last = None
        for uuid, tag, intervals in self.sets:
            spans = ":".join(str(first) if first == end else f"{first}-{end}" for first, end in intervals)
            tagged = f"{tag}:{spans}" if tag else spans
            if uuid == last:
                parts[-1] += f":{tagged}"
            else:
                parts.append(f"{uuid}:{tagged}")
            last = uuid
        return ",".join(parts)


class TableColumn(NamedTuple):
    """Describes a column as a TABLE_MAP or the catalog does (`values.mapping.from_catalog`). None: not told.

    `binlog_row_metadata=FULL` tells all; MINIMAL neither names nor labels; MySQL 5.7 and MariaDB 10.4 only the types.
    """

    name: str | None
    type: int
    """A number of enum_field_types, named in `table_map`; of ENUM, SET and STRING the true one, not the wrapper."""
    meta: int
    """By type: bytes of a string's longest value, bytes of a length, precision << 8 | scale, bits, fraction digits."""
    nullable: bool
    unsigned: bool | None = None
    """Is told of numbers only."""
    charset: str | None = None
    """Is told of text, ENUM and SET: ``utf8mb4``; ``binary`` for BINARY, VARBINARY and BLOB."""
    labels: tuple[str, ...] | None = None
    geometry: int | None = None
    """0 any geometry, 1 point, 2 linestring, 3 polygon, 4–6 their multiples, 7 a collection."""
    dimension: int | None = None
    """Is told of vectors only."""
    visible: bool | None = None
    declared: str = ""
    """COLUMN_TYPE, where the catalog told it: some types of MariaDB are in the log as BINARY only."""


class TableMap(NamedTuple):
    """Describes the table of the rows that follow under `table_id`."""

    header: Header
    table_id: int
    flags: int
    schema: str
    table: str
    columns: tuple[TableColumn, ...]
    primary_key: tuple[tuple[int, int], ...] | None
    """Column numbers and prefix lengths (0: the whole column), in key order; None: not told, or there is none."""

    @property
    def has_metadata(self) -> bool:
        """Tell whether the log has names, and so everything else (`binlog_row_metadata=FULL`)."""
        return bool(self.columns) and all(column.name is not None for column in self.columns)


@lru_cache
def _whole(columns: int, *images: bytes) -> bool:
    """Tell whether each image that there is has all columns; they are the same in nearly all events of a table."""
    every = (1 << columns) - 1
    return all(int.from_bytes(bits, "little") & every == every for bits in images if bits)


class Rows(NamedTuple):
    """Holds row images of one table as bytes, which `rows.row_images.Reader` decodes."""

    header: Header
    op: Op
    """CREATE, UPDATE or DELETE."""
    table_id: int
    flags: int
    column_count: int
    before: bytes
    """Which columns the old rows have, a bit each, lowest first; empty where there are no old rows."""
    after: bytes
    body: bytes

    @property
    def whole(self) -> bool:
        """Tell whether the images have all columns: binlog_row_image=FULL in the session that wrote them."""
        return _whole(self.column_count, self.before, self.after)


class PartialUpdateRows(NamedTuple):
    """Holds parts of JSON documents, not whole rows (`binlog_row_value_options=PARTIAL_JSON`)."""

    header: Header
    table_id: int
    flags: int
    column_count: int
    before: bytes
    """Which columns the old rows have, as in `Rows`."""
    after: bytes
    body: bytes
    """The old row, and what `rows.partial_images` reads of the new one, for each row."""


class Section(NamedTuple):
    """Is a part of a file, from `begin` up to `end`."""

    file: IO[bytes]
    begin: int
    end: int


class TransactionPayload(NamedTuple):
    """Holds a compressed transaction (`binlog_transaction_compression`), which `transaction_payload.events` unpacks."""

    header: Header
    compression: int
    """0 zstd, 255 none."""
    size: int
    """How many bytes the events inside have."""
    payload: bytes | Section
    """Is in a file where it is long."""


class Heartbeat(NamedTuple):
    """Says that there is nothing new at `position` of `file`; it is in no file."""

    header: Header
    file: str
    position: int
    """The first kind (27) has only its lower 32 bits."""


class MariadbGtid(NamedTuple):
    """A group of events of MariaDB begins; it takes the place of BEGIN. `server_id` is the header's."""

    header: Header
    domain: int
    server_id: int
    sequence: int
    flags: int
    commit_id: int | None
    """The same for all that were committed together."""
    xid: tuple[int, bytes, bytes] | None
    """Names an XA group: format id, gtrid, bqual."""

    @property
    def gtid(self) -> str:
        return f"{self.domain}-{self.server_id}-{self.sequence}"

    @property
    def standalone(self) -> bool:
        """Tell whether one event follows and no COMMIT: DDL."""
        return bool(self.flags & 1)


class MariadbGtidList(NamedTuple):
    """Holds the last GTID of each domain and server before this file began: domain, server, sequence."""

    header: Header
    gtids: tuple[tuple[int, int, int], ...]
    flags: int


class AnnotateRows(NamedTuple):
    """Holds the statement that made the rows that follow (MariaDB)."""

    header: Header
    statement: str


class RowsQuery(NamedTuple):
    """Holds the statement that made the rows that follow (MySQL)."""

    header: Header
    statement: str


class BinlogCheckpoint(NamedTuple):
    """Says in which `file` recovery would begin (MariaDB)."""

    header: Header
    file: str


class StartEncryption(NamedTuple):
    """Says that the file is encrypted on disk, which what the server sends is not (MariaDB)."""

    header: Header
    scheme: int
    key_version: int


class Stop(NamedTuple):
    """The server shut down; the log goes on in the next file."""

    header: Header


class ViewChange(NamedTuple):
    """Says that a member of MySQL's group replication came or went, in a transaction of its own without rows."""

    header: Header


class Ignorable(NamedTuple):
    """Is of no consequence: the server has marked it so, or it is a parameter of the statement that follows it."""

    header: Header


class Unknown(NamedTuple):
    """Is not known here: a reader that goes on may lose data."""

    header: Header


Event: TypeAlias = (
    FormatDescription
    | Rotate
    | Query
    | Xid
    | XaPrepare
    | Gtid
    | AnonymousGtid
    | PreviousGtids
    | TableMap
    | Rows
    | PartialUpdateRows
    | TransactionPayload
    | Heartbeat
    | MariadbGtid
    | MariadbGtidList
    | AnnotateRows
    | RowsQuery
    | BinlogCheckpoint
    | StartEncryption
    | Stop
    | ViewChange
    | Ignorable
    | Unknown
)
