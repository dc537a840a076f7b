"""The model of a source's changes before they become events. Values only; no driver, no I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Final, NamedTuple, TypeAlias


class Op(StrEnum):
    """Debezium's operation codes."""

    READ = "r"
    CREATE = "c"
    UPDATE = "u"
    DELETE = "d"
    TRUNCATE = "t"
    MESSAGE = "m"


class Unsent(Enum):
    """The type of `UNCHANGED`, so that type checkers can narrow it away."""

    UNCHANGED = "unchanged"


UNCHANGED: Final = Unsent.UNCHANGED
"""A column the source did not send: an unchanged TOASTed value, or a non-key column of a key image. Never NULL."""

Value: TypeAlias = bytes | Unsent | None
"""One column as the server's own text, NULL, or not sent."""

Row: TypeAlias = tuple[Value, ...]
"""One value for each column of the table, in the table's order."""


Xid: TypeAlias = int | str
"""A transaction's identity for visibility: PostgreSQL's transaction id; MySQL's GTID, or else its commit position."""

Coordinates: TypeAlias = int | tuple[int, int]
"""Where a row stands in the log (PostgreSQL: an LSN; MySQL: offset and row). It fills in a transaction's `where`."""


@dataclass(frozen=True, slots=True)
class Kind:
    """The kind of a column's JSON, for readers of events: `name` is one of docs/events.md's kinds."""

    name: str
    precision: int | None = None
    scale: int | None = None
    element: Kind | None = None


@dataclass(frozen=True, slots=True)
class Column:
    """A column as the source had it at one time."""

    name: str
    type: str
    """The type as the server prints it, with its modifiers: ``numeric(10,2)``."""
    kind: Kind
    encode: Callable[[bytes], bytes] = field(compare=False, repr=False)
    """The server's text to JSON text; pure. Raises ValueError on text that is not of the type."""
    toastable: bool = field(default=False, compare=False)
    """The source may leave this column out of an update that did not change it (TOAST)."""
    filled: bool = field(default=False, compare=False)
    """Rows older than the column have a value in it (its default) that no event ever had."""
    equality: str = field(default="", compare=False)
    """When the server takes two texts of the column for equal: ``exact``, if all characters are the same; ``padded``,
    the same without spaces at the end; empty: in other cases too, or it is not known."""
    collation: str = field(default="", compare=False)
    """What orders its texts, in the source's terms; empty where it is not told, or is the source's default."""
    unknown: bool = field(default=False, compare=False)
    """Its type was dropped before its values were read from the log: they are the server's text, whatever it was."""
    labels: tuple[str, ...] = field(default=(), compare=False, repr=False)
    """The only texts that a column of a PostgreSQL enum can have; empty where that is not so, or they are not known."""
    changed: bool = field(default=False, compare=False)
    """A rule masks, hashes or truncates its values: what is published of them need not be of its type."""

    def reads_as(self, other: Column) -> bool:
        """Whether a text of this column is read as a text of `other` is, so that one may replace the other."""
        return self.type == other.type or self.encode is other.encode


@dataclass(frozen=True, slots=True)
class Table:
    """A table as the source had it at one time; two equal tables have the same events."""

    schema: str
    name: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    """Names of the key columns in key order; never empty."""
    marks: tuple[str, ...] = ()
    """What the rows are stored in, in the source's terms: see `cdc.model.table_schema.rewritten`."""
    deferred_key: bool = False
    """Two rows may share the key within a transaction, if not at its end: see `cdc.encode.deferred_keys`."""

    @property
    def qualified(self) -> str:
        return f"{self.schema}.{self.name}"

    @property
    def key_as_text(self) -> str:
        """Names and types of the key columns: keys of tables with the same text can be compared."""
        return ", ".join(f"{column.name} {column.type}" for column in (self.columns[i] for i in self.key_indexes))

    @property
    def key_order(self) -> str:
        """The same with their collations: tables with the same text have the same order of keys."""
        collations = " ".join(self.columns[i].collation for i in self.key_indexes).rstrip()
        return f"{self.key_as_text}; {collations}" if collations else self.key_as_text

    @property
    def key_indexes(self) -> tuple[int, ...]:
        """Where the key columns stand in a row, in key order."""
        at = {column.name: index for index, column in enumerate(self.columns)}
        return tuple(at[name] for name in self.key)


class Change(NamedTuple):
    """A change of one row. It is a tuple because one is made for every row on the hot path.

    TRUNCATE has no row. READ, in the log, says that rows have changed without events: the one whose key `after` has,
    with the rest UNCHANGED, or without it any of the table's.
    """

    op: Op
    table: Table
    before: Row | None
    """The old row as the source gave it: whole, or the key columns with the rest UNCHANGED, or None."""
    after: Row | None
    lsn: Coordinates
    """Where the row stands in the log. Not an order: rows share it and transactions interleave."""


class Described(NamedTuple):
    """A table's description has changed, in the log between its rows: it is published with the next version."""

    table: Table


class Message(NamedTuple):
    """A message that an application wrote into the log (PostgreSQL: pg_logical_emit_message)."""

    prefix: str
    content: bytes
    lsn: int
    """Where it ends in the log; the commit position too, if it belongs to no transaction."""


WINDOWS: Final = 1 << 30
"""No transaction has so many events."""


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """A place in the order of a connector's events: epoch, commit position of the transaction, number within it.

    `text` sorts as the position does. `commit` is the source's 64-bit commit position (PostgreSQL: the commit record's
    LSN; MySQL: file number and offset packed). Rows of a snapshot stand just before the point where the log goes on,
    numbered by the view they were read under; events of the stream are numbered from 1; a message that belongs to no
    transaction is number 0, for the next transaction may begin where it ends. Where the log is followed, the last
    transaction may stand just before that point, too: rows that are read there have the numbers of `window`.
    """

    epoch: int
    commit: int
    number: int

    @property
    def text(self) -> str:
        return f"{self.epoch:08x}.{self.commit:016x}.{self.number:08x}"

    @staticmethod
    def window(last: int) -> int:
        """Return the number of what is read after number `last`, behind all events of a transaction."""
        return max(last, WINDOWS) + 1

    @classmethod
    def parse(cls, text: str) -> Position:
        epoch, commit, number = text.split(".")
        return cls(int(epoch, 16), int(commit, 16), int(number, 16))


Offset: TypeAlias = dict[str, str | int]
"""Where a source resumes, in its own terms, and by what it knows that log again; kept in the position topic.

PostgreSQL: ``{"lsn": "0/16B3748", "last": "0/16B3718 2e370e40"}``, the place and a hash of the last transaction.
"""


class Transaction(NamedTuple):
    """A source transaction: a frame around its changes, usually an iterator, so that it may be larger than memory.

    `changes` must be read to its end before the next frame is asked for; it ends when the source's commit was seen.
    """

    id: str
    xid: Xid
    commit: int
    committed_at_ms: int
    changes: Iterable[Change | Described | Message]
    where: bytes
    """JSON members of its events' `source`, with `%d` for each number of a change's coordinates."""


class TransactionBatch(NamedTuple):
    """A batch of small transactions that have come whole, in order; their changes are lists."""

    transactions: list[Transaction]


@dataclass(frozen=True, slots=True)
class Idle:
    """Says that there is nothing to read now: the source has been followed up to its current end."""
