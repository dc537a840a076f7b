"""The seams: the pipeline knows a source, a snapshotter and a sink by these promises alone.

`cdc.testing` has a twin of each.

All methods raise errors of `cdc.errors` only: OperatorError where someone must act, RetryableError where starting over
from the last position may help.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from cdc.change import Change, Idle, Offset, Row, Table, Transaction
from cdc.state import State


@dataclass(frozen=True, slots=True)
class Start:
    """A log held from `offset` on, and the view of the data at exactly that point.

    `commit` is the offset as a position's commit part. `view` is the source's name for the view, valid while the source
    that gave it is open.
    """

    offset: Offset
    commit: int
    view: str


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows of one table as one view has them, and the progress that holds once they are committed."""

    table: Table
    rows: Sequence[Row]
    progress: Mapping[str, object]
    """In the snapshotter's own terms, except ``tables``: name -> ``{"rows": int, "done": bool, …}``, which is shown."""
    view: int
    """Which of the snapshot's views the rows were read under: 0 the Start's, then counting."""
    read_at_ms: int


class Source(Protocol):
    """A database's log."""

    name: str
    """Debezium's connector name: postgresql, mysql."""
    database: str

    def connect(self) -> Mapping[str, str]:
        """Connect, look and touch nothing; return the identity that a position belongs to.

        Raises OperatorError when a precondition is not met, with the statement that mends it.
        """

    def tables(self) -> tuple[Table, ...]:
        """The captured tables as they are now, sorted by name; each has a key."""

    def unused(self) -> None:
        """Raise OperatorError if the log is held under this connector's name though no position knows of it."""

    def verify(self, state: State) -> None:
        """Raise OperatorError unless the log can be followed from `state.offset` without a gap."""

    def hold(self, tables: Sequence[Table]) -> Start:
        """Make the log keep everything from now on and name the view of now. Replaces a hold nobody has used."""

    def extend(self, tables: Sequence[Table]) -> None:
        """Let the log carry `tables` too; on return, each later view sees what the log does not carry."""

    def current(self) -> int:
        """A commit position: everything committed before the call lies below it."""

    def stream(self, offset: Offset) -> Iterator[Transaction | Idle]:
        """Follow the log from `offset`: each transaction once, whole, in commit order; Idle whenever it has no more.

        After an Idle it waits a moment for more. Nothing is acknowledged but by `acknowledge`.
        """

    def position(self) -> tuple[Offset, int]:
        """Where to resume once everything yielded so far is safe, and the same as a commit position."""

    def acknowledge(self, offset: Offset) -> None:
        """`offset` is in a committed sink transaction: the log may forget what is before it."""

    def lag_bytes(self) -> int | None:
        """How far the log's end is ahead of `position`; None where unknown."""

    def close(self) -> None:
        """Let go of connections; what the log holds stays held. Safe to call twice."""


class Handover(Protocol):
    """Which events of the log a snapshot's rows already contain."""

    def hides(self, change: Change, xid: int) -> bool:
        """True if a chunk was read under a view that saw transaction `xid`, and has this change's key.

        A key change must be taken apart first: its two keys may lie in chunks of different views.
        """

    def saw(self, table: Table, view: int, xid: int) -> bool:
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

    def row(self, table: Table, key: Sequence[bytes]) -> Row | None:
        """The row with this key, in the table's key order, as the source has it now; None where it is gone."""

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

    def occupied(self, tables: Sequence[Table]) -> list[str]:
        """Those of the tables' topics that hold committed records."""

    def fence(self) -> State | None:
        """Shut out any other copy of this connector; only then read its position. None: it never committed one."""

    def topic(self, table: Table) -> str:
        """The table's topic."""

    def write(self, topic: str, key: bytes, value: bytes | None) -> None:
        """Add a record to the open transaction, opening one if needed. Order is kept for each topic and key."""

    def schema(self, key: bytes, value: bytes) -> None:
        """Add a record to the schema topic, in the same transaction."""

    def commit(self, state: State) -> None:
        """Add the position and commit. An error leaves the outcome open: close, and fence anew."""

    def pending(self) -> tuple[int, int]:
        """Records and bytes in the open transaction."""

    def schemas(self) -> Iterator[bytes]:
        """All committed records of the schema topic, in order."""

    def records(self, table: Table) -> Iterator[tuple[bytes, bytes | None]]:
        """All records of the table's topic up to now, in order for each key.

        Also those of the open transaction, and those of transactions that were aborted.
        """

    def close(self) -> None:
        """Let go without committing; safe to call twice."""
