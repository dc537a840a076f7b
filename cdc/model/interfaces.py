"""The seams: the pipeline knows a source, a snapshotter and a sink by these promises alone.

`cdc.testing` has a twin of each.

All methods raise errors of `cdc.model.errors` only: OperatorError where someone must act, RetryableError where starting
over from the last position may help.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol, TypeAlias

from cdc.model.change import Change, Coordinates, Idle, Message, Offset, Row, Table, Transaction, TransactionBatch, Xid
from cdc.model.state import Key, State
from cdc.model.table_schema import Description

Log: TypeAlias = Literal["message", "transaction", "dead-letter"]
"""Topics of a connector that are logs, not tables: nothing in them replaces anything."""

LINEAGE: Final = "timeline"
"""The part of a source's identity that a fail-over changes: `Source.verify` judges it, the others must be the same."""

UNSURE: Final = "unsure"
"""The kind of a column in a description of which nobody can tell whether it was published."""


@dataclass(frozen=True, slots=True)
class Start:
    """A log held from `offset` on, and the view of the data at exactly that point.

    `commit` is the offset as a position's commit part. `view` is the source's name for the view, valid while the source
    that gave it is open; None: it has none, a view must be taken that has seen all before that point.
    """

    offset: Offset
    commit: int
    view: str | None


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows of one table as one view has them, and the progress that holds once they are committed."""

    table: Table
    rows: Sequence[Row]
    progress: Mapping[str, object]
    """In the snapshotter's own terms, except for what is shown, all of which may be missing.

    ``tables``: name -> ``{"rows": int, "done": bool, "estimate": int, …}``; ``run``: ``{"started_at_ms": int,
    "rows_before": int}``, when the run at hand began to read and what earlier ones had read by then.
    """
    view: int
    """Which of the snapshot's views the rows were read under: 0 the Start's, then counting."""
    read_at_ms: int


@dataclass(frozen=True, slots=True)
class Window:
    """Rows of one table in key order, as one view has them, read while the log is followed."""

    table: Table
    """As it was when the rows were read."""
    rows: Sequence[Row]
    after: Key | None
    """The last key read; None: the table's end."""
    sees: Callable[[Xid], bool]
    """Whether the view had surely seen the transaction with this xid."""
    end: int
    """A commit position: whatever the view had seen lies before it, whatever is committed from now on behind it."""
    estimate: int | None
    """How many rows the table has, about."""
    read_at_ms: int


class Source(Protocol):
    """A database's log."""

    name: str
    """Debezium's connector name: postgresql, mysql."""
    database: str
    """Its name in events; empty where a table's schema is what is called its database."""

    def connect(self) -> Mapping[str, str]:
        """Connect, look and touch nothing; return the identity that a position belongs to.

        Raises OperatorError when a precondition is not met, with the statement that mends it.
        """

    def tables(self) -> tuple[Table, ...]:
        """The captured tables as they are now, sorted by name; each has a key."""

    def unused(self) -> None:
        """Raise OperatorError if the log is held under this connector's name though no position knows of it.

        Or if it could not be held: `hold` would fail after topics were made.
        """

    def verify(self, state: State) -> tuple[Offset, int] | None:
        """Raise OperatorError unless the log can be followed from `state.offset` without a gap.

        After a fail-over another server continues the log, and a new epoch must begin: the same place in its log then,
        as an offset, and as a commit position that nothing still to come lies before.
        """

    def hold(self, tables: Sequence[Table]) -> Start:
        """Make the log keep everything from now on and name the view of now. Replaces a hold nobody has used."""

    def extend(self, tables: Sequence[Table]) -> None:
        """Let the log carry `tables` too; transactions that have begun before may still be missing in it."""

    def carried(self) -> Mapping[str, str]:
        """By `schema.table`, since when the log carries it, in the source's own terms; kept with the position."""

    def recall(self, described: Mapping[tuple[str, str], Sequence[Description]]) -> None:
        """Hear what the topics say of each table, by schema and name, oldest first. Called before `stream`.

        The log may be older than the catalog: rows in it then have columns and keys that are there no more.
        """

    def tend(self) -> None:
        """Look after the hold while the log is not followed: called now and then; `stream` does the same by itself."""

    def current(self) -> int:
        """A commit position: everything committed before the call lies below it."""

    def stream(self, offset: Offset) -> Iterator[Transaction | TransactionBatch | Message | Idle]:
        """Follow the log from `offset`: each transaction once, whole, in commit order; Idle whenever it has no more.

        Several take no more memory together than the pipeline may hold of one: some thousand rows, some megabytes.
        A Message stands here by itself if it belongs to no transaction; those of a transaction are in it.

        After an Idle it waits a moment for more. Nothing is acknowledged but by `acknowledge`.
        """

    def position(self) -> tuple[Offset, int]:
        """Where to resume once everything yielded so far is safe, and the same as a commit position."""

    def acknowledge(self, offset: Offset) -> None:
        """`offset` is in a committed sink transaction: the log may forget what is before it."""

    def coordinates(self, commit: int) -> tuple[bytes, Coordinates]:
        """What the `source` of events says that stand at a commit position and belong to no transaction.

        A template as a Transaction has it, and what fills it in.
        """

    def lag_bytes(self) -> int | None:
        """How far the log's end is ahead of `position`; None where unknown."""

    def close(self) -> None:
        """Let go of connections; what the log holds stays held. Safe to call twice."""


class Handover(Protocol):
    """Which events of the log a snapshot's rows already contain."""

    def hides(self, change: Change, xid: Xid) -> bool:
        """True if a chunk was read under a view that saw transaction `xid`, and has this change's key.

        A key change must be taken apart first: its two keys may lie in chunks of different views.
        """

    def saw(self, table: Table, view: int, xid: Xid) -> bool:
        """Whether rows of `table` that this snapshot read under `view` were seen together with transaction `xid`.

        Views are numbered anew for each snapshot: of a table that this one did not read, the answer is no.
        """

    def spent(self, commit: int) -> bool:
        """True once no transaction after `commit` can be hidden."""


class Snapshotter(Protocol):
    """Reads tables under one view, or resumes under another."""

    def chunks(self, tables: Sequence[Table], progress: Mapping[str, object], view: str | None) -> Iterator[Chunk]:
        """What `progress` has not done yet. `view` is a Start's, or None to take a new one and note it.

        A new one sees whatever committed before the log's hold began, which the log has no more: a commit that is in
        the log and not visible yet is waited for.
        """

    def handover(self, tables: Sequence[Table], progress: Mapping[str, object]) -> Handover | None:
        """What must be hidden from the log after `progress`; None where nothing."""

    def window(self, table: Table, after: Key | None, rows: int, *, key: str, first: bool) -> Window | None:
        """About `rows` rows behind the key `after`, under a new view; None if the table is gone.

        From the beginning, if the table's `key_as_text` is not `key` any more. Called on another thread than the rest.
        `first`: the view has seen every transaction that had begun before the call, which is waited for: the log may
        not have it, or have told of it before anyone listened.
        """

    def rows(self, table: Table, keys: Sequence[Key], *, first: bool) -> Window | None:
        """The rows with these keys, one or more, under a new view; None if the table is gone or its key another.

        Rows of keys that the server takes for the same as one of `keys` may be among them; `after` is None. Called
        where `window` is; `first` means the same.
        """

    def row(self, table: Table, key: Sequence[bytes]) -> Row | None:
        """The row with this key, in the table's key order, as the source has it now; None where it is gone.

        UNCHANGED for a column that is there no more, or of another type by now; None if that is true of the key.
        """

    def close(self) -> None:
        """Let go of connections; safe to call twice."""


class Sink(Protocol):
    """Kafka: keyed records in transactions, the position last."""

    def check(self, tables: Sequence[Table]) -> bool:
        """Whether this connector may have run before: it has a place for its position. Makes nothing.

        Raises OperatorError unless the topics are right or can be made.
        """

    def create(self, tables: Sequence[Table]) -> None:
        """Make the topics that are missing."""

    def neighbours(self) -> list[tuple[str, State]]:
        """Topic prefix and position of the other connectors of this prefix, and of this name's under other prefixes."""

    def occupied(self, tables: Sequence[Table]) -> list[str]:
        """Those of the tables' topics that hold committed records."""

    def fence(self) -> State | None:
        """Shut out any other copy of this connector; only then read its position. None: it never committed one."""

    def peek(self) -> State | None:
        """The position as it is committed now; shuts out nobody."""

    def topic(self, table: Table) -> str:
        """The table's topic."""

    def log_topic(self, name: Log) -> str:
        """The topic of one of the connector's logs."""

    def write(self, topic: str, key: bytes, value: bytes | None) -> None:
        """Add a record to the open transaction, opening one if needed. Order is kept for each topic and key.

        One of a table that has a log is added to that as well, unless it is a tombstone.
        Raises TooLargeError, here or up to `commit`, with the record that the broker does not take.
        """

    def schema(self, key: bytes, value: bytes) -> None:
        """Add a record to the schema topic, in the same transaction."""

    def log(self, name: Log, key: bytes, value: bytes) -> None:
        """Add a record to one of the connector's logs, in the same transaction."""

    def dead_letters(self) -> Iterator[tuple[bytes, bytes]]:
        """All committed records of the dead-letter log, in order; none where it was never made."""

    def commit(self, state: State) -> None:
        """Add the position and commit. An error leaves the outcome open: close, and fence anew."""

    def pending(self) -> tuple[int, int]:
        """Records and bytes in the open transaction."""

    def schemas(self) -> Iterator[bytes]:
        """All committed records of the schema topic, in order; waits for no neighbour.

        What this connector wrote behind a neighbour's open transaction may be committed or not: such a record's columns
        are all of the kind UNSURE, so that its number is not used again and the table is described anew.
        """

    def records(self, table: Table, *, committed: bool = False) -> Iterator[tuple[bytes, bytes | None]]:
        """All records of the table's topic up to now, in order for each key.

        Also those of the open transaction, and those of transactions that were aborted; or the `committed` ones, which
        may be read on another thread.
        """

    def commands(self) -> list[tuple[bytes, bytes]]:
        """What `cdc snapshot` has asked for and nobody has `answered`, oldest first: key and value."""

    def answered(self, key: bytes) -> None:
        """A command has been carried out by what the open transaction holds."""

    def close(self) -> None:
        """Let go without committing; safe to call twice."""
