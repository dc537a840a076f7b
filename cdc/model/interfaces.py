"""The seams: the pipeline knows a source, a snapshotter and a sink by these promises alone.

`cdc.testing` has a twin of each.

All methods raise errors of `cdc.model.errors` only: OperatorError where someone must act, RetryableError where going on
from the last position may help.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol, TypeAlias, runtime_checkable

from cdc.model.change import Change, Coordinates, Idle, Message, Offset, Row, Table, Transaction, TransactionBatch, Xid
from cdc.model.errors import CdcError
from cdc.model.ledger import TopicFacts
from cdc.model.state import Key, State
from cdc.model.table_schema import Description

Log: TypeAlias = Literal["message", "transaction", "dead-letter", "audit", "key"]
"""Topics of a connector that are logs, not tables: nothing in them replaces anything, but a key in that of keys."""

Headers: TypeAlias = Sequence[tuple[str, bytes]]
"""A record's headers, in order: name and value."""

LINEAGE: Final = "timeline"
"""The part of a source's identity that a fail-over changes: `Source.verify` checks it, the others must be the same."""

UNSURE: Final = "unsure"
"""The kind of the columns of a description that may or may not be published."""


@dataclass(frozen=True, slots=True)
class Start:
    """A log held from `offset` on, and the view of the data at exactly that point.

    `commit` is the offset as a position's commit part. `view` is the source's name of the view, valid while the source
    that gave it is open; None: there is none, and a view must be taken that has seen all before that point.
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
    """In the snapshotter's own terms, except for the members that are shown to users, which may be missing.

    ``tables``: name -> ``{"rows": int, "done": bool, "estimate": int, …}``; ``run``: ``{"started_at_ms": int,
    "rows_before": int}``, when the current run began to read, and the rows of earlier runs.
    """
    view: int
    """The number of the view the rows were read under: 0 is the Start's, later ones count up."""
    read_at_ms: int


@dataclass(frozen=True, slots=True)
class Window:
    """Rows of one table in key order, as one view has them, read while the log is followed."""

    table: Table
    """The table as it was when the rows were read."""
    rows: Sequence[Row]
    after: Key | None
    """The last key read; None: the table's end."""
    sees: Callable[[Xid], bool]
    """Whether the view had surely seen the transaction with this xid."""
    end: int
    """A commit position, the high watermark: all that the view had seen lies before it, all later commits behind it."""
    estimate: int | None
    """About how many rows the table has."""
    read_at_ms: int


class Source(Protocol):
    """Follows a database's log."""

    name: str
    """Debezium's name of the connector: postgresql, mysql."""
    database: str
    """The database's name in events; empty where a table's schema is its database (MySQL)."""

    def connect(self) -> Mapping[str, str]:
        """Connect and check without changing anything; return the identity that a position belongs to.

        Raises OperatorError when a precondition is not met, with the statement that corrects it.
        """

    def tables(self) -> tuple[Table, ...]:
        """Return the captured tables as they are now, sorted by name; each has a key."""

    def unused(self) -> None:
        """Raise OperatorError if the log is held under this connector's name though no position knows of it.

        It is raised too if the log could not be held: `hold` would fail after topics were made.
        """

    def verify(self, state: State) -> tuple[Offset, int] | None:
        """Raise OperatorError unless the log can be followed from `state.offset` without a gap.

        After a fail-over another server continues the log, and a new epoch must begin. Then it returns the place in
        the other log, as an offset and as a commit position; all that is still to come lies behind it.
        """

    def hold(self, tables: Sequence[Table]) -> Start:
        """Make the log keep everything from now on (a replication slot), and name the view of now.

        It replaces a hold that nobody has used.
        """

    def extend(self, tables: Sequence[Table]) -> None:
        """Let the log carry `tables` too; transactions that began before may still be missing in it."""

    def carried(self) -> Mapping[str, str]:
        """Return what the log's events of each table rely on, in the source's own terms; kept with the position.

        It is what `hold`, `extend`, `verify` and, since then, `stream` have found; nothing is asked of the server.
        """

    def recall(self, described: Mapping[tuple[str, str], Sequence[Description]]) -> None:
        """Take the published descriptions of each table, by schema and name, oldest first. Called before `stream`.

        The log may be older than the catalog: its rows may have columns and keys that no longer exist.
        """

    def tend(self) -> None:
        """Look after the hold while the log is not followed: called regularly; `stream` does the same by itself."""

    def current(self) -> int:
        """Return a commit position: everything committed before the call lies below it."""

    def stream(self, offset: Offset) -> Iterator[Transaction | TransactionBatch | Message | Idle]:
        """Follow the log from `offset`: each transaction once, whole, in commit order; Idle whenever it has no more.

        A TransactionBatch holds at most some thousand rows or some megabytes. A Message stands here by itself if it
        belongs to no transaction; those of a transaction are among its changes.

        After an Idle it waits a moment for more. Nothing is acknowledged except by `acknowledge`.
        """

    def position(self) -> tuple[Offset, int]:
        """Return where to resume once everything yielded so far is safe, and the same as a commit position."""

    def acknowledge(self, offset: Offset) -> None:
        """Allow the log to drop all before `offset`, which is in a committed sink transaction."""

    def coordinates(self, commit: int) -> tuple[bytes, Coordinates]:
        """Describe a commit position for the `source` of events that belong to no transaction.

        Returns a template as `Transaction.where` has it, and the coordinates that fill it in.
        """

    def lag_bytes(self) -> int | None:
        """Return the lag: how far the log's end is ahead of `position`; None where unknown."""

    def close(self) -> None:
        """Close all connections; the log stays held. Safe to call twice."""


@runtime_checkable
class Clock(Protocol):
    """A part of a `Source` that has a clock, by which its `Transaction.committed_at_ms` goes; else ours is taken."""

    def clock_ms(self) -> int:
        """Return the source's time in ms since 1970. Called on a connected source."""


@runtime_checkable
class Comparing(Protocol):
    """A part of a `Source` that compares what its tables rely on with what `carried` said of it in the state."""

    def stale(self) -> Mapping[str, str]:
        """Return the tables that `verify` found to rely on something else than the state has, with the reason of each.

        Their rows may have changed without events. While `stream` runs, it raises ChangedError for such a table.
        """


@runtime_checkable
class Renaming(Protocol):
    """A part of a `Source` that knows what a position's identity names even if it has another name by now."""

    def renamed(self, then: Mapping[str, str], at: Offset) -> Mapping[str, str]:
        """Return a position's identity by the names of now; `at` is its place. Called on a connected source."""


@runtime_checkable
class SettingAside(Protocol):
    """A part of a `Source` that goes on without tables that others have locked, and comes back to them."""

    def set_aside(self) -> Collection[str]:
        """Return the tables that it goes on without now: it has not caught up before it has them again."""


@runtime_checkable
class Settling(Protocol):
    """A part of a `Source` that compares every few seconds what the log does not tell with what was read."""

    def settled(self) -> bool:
        """Compare it now; False: look again. Raises, as `stream` does, where tables are to be read again.

        Called when all that was read is committed: it has not caught up before.
        """


@runtime_checkable
class Choosing(Protocol):
    """A part of a `Source` that leaves out tables that cannot be captured, and items of `tables` that match none."""

    def left_out(self) -> Mapping[str, CdcError]:
        """Return them with the reason of each. With a `LeftOutError` a start says which it goes on without."""


@dataclass(frozen=True, slots=True)
class Follower:
    """Somebody else who is at work under a connector's name."""

    who: str
    """A process or connection of the server's."""
    certain: bool
    """Whether it is surely a copy of the connector; else it may be another tool that uses its slot."""


@runtime_checkable
class Shared(Protocol):
    """A part of a `Source` that can tell whether another copy of its connector is at work."""

    def follower(self) -> Follower | None:
        """Say who else is at work under this connector's name; None: nobody.

        Called before `connect`, again and again while a copy stands by. From `connect` to `close` the source is seen
        by other copies' calls, but only as long as it is tended: a copy that does nothing for a minute or two is gone.
        """


@runtime_checkable
class Freeing(Protocol):
    """A part of a `Source` that can take its log from a copy that has been fenced off and is still connected."""

    def free(self) -> None:
        """End what a fenced copy of this connector has open at the server; called once its position has been read.

        A copy that is frozen, or whose machine is gone, else keeps its place there until the server notices. What is
        not this connector's is left alone. Returns also when nothing helped: following then waits, as it does for any
        log that is in use. Raises RetryableError.
        """


class Handover(Protocol):
    """Tells which events of the log a snapshot's rows already contain."""

    def hides(self, change: Change, xid: Xid) -> bool:
        """True if this change's key was read under a view that saw transaction `xid`.

        A key change must be split first: its two keys may have been read under different views.
        """

    def saw(self, table: Table, view: int, xid: Xid) -> bool:
        """Whether `view`, under which this snapshot read rows of `table`, saw transaction `xid`.

        Each snapshot numbers its own views: for a table that this one did not read, the answer is no.
        """

    def spent(self, commit: int) -> bool:
        """True once no transaction after `commit` can be hidden."""


class Snapshotter(Protocol):
    """Reads tables under one view, or resumes under another."""

    def chunks(self, tables: Sequence[Table], progress: Mapping[str, object], view: str | None) -> Iterator[Chunk]:
        """Read what `progress` has not done yet. `view` is a Start's, or None to take a new one and note it.

        A new view sees everything that committed before the log's hold began, because the log does not have it: a
        commit that is logged and not visible yet is waited for. A chunk without rows may come while others take long.
        """

    def handover(self, tables: Sequence[Table], progress: Mapping[str, object]) -> Handover | None:
        """Return which events of the log must be hidden after `progress`; None where none must."""

    def window(self, table: Table, after: Key | None, rows: int, *, key: str, first: bool) -> Window | None:
        """Read about `rows` rows behind the key `after`, under a new view; None if the table is gone.

        Reads from the beginning if the table's `key_order` is no longer `key`. Called on another thread than the
        rest. `first`: wait until the view sees every transaction that began before the call; the log may not have it,
        or had its events before keys were noted.
        """

    def rows(self, table: Table, keys: Sequence[Key], *, first: bool) -> Window | None:
        """Read the rows with these keys, under a new view; None if the table is gone or has another key.

        The server may add rows whose keys its collation takes for equal; `after` is None. Called on the thread of
        `window`; `first` means the same.
        """

    def row(self, table: Table, key: Sequence[bytes]) -> Row | None:
        """Read the row with this key, in the table's key order, as the source has it now; None where it is gone.

        A column that no longer exists or has another type now is UNCHANGED; None if that is true of a key column.
        """

    def close(self) -> None:
        """Close all connections; safe to call twice."""


@runtime_checkable
class LastWritten(Protocol):
    """A part of a `Snapshotter` that can tell which transaction has written a row last."""

    def row_written_last(self, table: Table, key: Sequence[bytes], xid: Xid) -> Row | None:
        """Read the row with this key as `row` does, if transaction `xid` and no later one has written it last.

        None where that cannot be told. Called on the loop's thread, which waits.
        """


class Sink(Protocol):
    """Writes keyed records to Kafka in transactions, each with the position last."""

    epochs: int
    """How many epochs its producers have begun so far, each of which fences the ones before."""

    def check(self, tables: Sequence[Table]) -> bool:
        """Whether this connector may have run before: its position topic exists. Makes nothing.

        Raises OperatorError unless the topics are right or can be made: TopicError if tables' alone are wrong.
        """

    def create(self, tables: Sequence[Table]) -> None:
        """Create the topics that are missing."""

    def neighbours(self) -> list[tuple[str, State]]:
        """Return prefix and position of other connectors under this prefix, and of this name under other prefixes."""

    def occupied(self, tables: Sequence[Table]) -> list[str]:
        """Return those of the tables' topics that hold committed records."""

    def fence(self) -> State | None:
        """Fence off any other copy of this connector, then read its position. None: it never committed one."""

    def peek(self) -> State | None:
        """Read the committed position without fencing."""

    def recorded(self) -> Mapping[str, TopicFacts]:
        """Return what is relied on of each topic, as `fence` has read it and `rely` has changed it."""

    def found(self) -> Mapping[str, TopicFacts]:
        """Return the topics that `create` has made or met, as it has left them."""

    def rely(self, topic: str, facts: TopicFacts) -> None:
        """Record in the open transaction what is relied on of a topic from now on."""

    def moved(self, *, whole: bool = False) -> bool:
        """Whether a topic is not the recorded one any more, or is gone: then a new session must compare.

        So it is, once, where one is right by now that `check` or this has refused by TopicError.
        It looks at some topics, and at most once a second, for it is called by the loop; `whole`: at all, now. Raises
        OperatorError for a topic whose settings a start would refuse.
        """

    def kept_schemas(self) -> Mapping[bytes, bytes]:
        """Return the copies of records of the schema topic, by key, as `fence` has read them beside the position."""

    def keep_schema(self, key: bytes, value: bytes) -> None:
        """Add such a copy to the open transaction; `schema` does it by itself."""

    def topic(self, table: Table) -> str:
        """Name the table's topic, which others may share: see `cdc.rules.routes`."""

    def log_topic(self, name: Log) -> str:
        """Name the topic of one of the connector's logs."""

    def routed_topic(self, prefix: str, name: str) -> str:
        """Name the topic that messages called `name` go to, and make it if it is missing: it is a log, and no table's.

        Raises ValueError if Kafka has no room for the name.
        """

    def write(self, topic: str, key: bytes, value: bytes | None, headers: Headers = ()) -> None:
        """Add a record to the open transaction, opening one if needed. Order is kept for each topic and key.

        A record of a table that has a log is added to the log too, unless it is a tombstone.
        Raises TooLargeError, here or up to `commit`, with the record that the broker does not take.
        """

    def schema(self, key: bytes, value: bytes) -> None:
        """Add a record to the schema topic, in the same transaction."""

    def log(self, name: Log, key: bytes, value: bytes | None) -> None:
        """Add a record to one of the connector's logs, in the same transaction; None: a tombstone, of a key."""

    def keys(self) -> Iterator[tuple[bytes, bytes | None]]:
        """Read all committed records of the key topic, in order; none where the connector has none."""

    def dead_letters(self) -> Iterator[tuple[bytes, bytes]]:
        """Read all committed records of the dead-letter log, in order; none where it was never made."""

    def commit(self, state: State) -> None:
        """Add the position and commit. After an error the outcome is unknown: close, and fence again."""

    def pending(self) -> tuple[int, int]:
        """Return records and bytes in the open transaction."""

    def schemas(self) -> Iterator[bytes]:
        """Read all committed records of the schema topic, in order, if it is there; waits for no other connector.

        A record of ours behind another connector's open transaction may be committed or not: its columns are all of the
        kind UNSURE, so that its number is not used again and the table is described again.
        """

    def records(self, table: Table, *, committed: bool = False) -> Iterator[tuple[bytes, bytes | None]]:
        """Read all records of the table in its topic up to now, in order for each key.

        Records of the open transaction are among them; or only the `committed` ones, which may be read on another
        thread. Those of a transaction that was aborted are not, but for a moment after that.
        """

    def extent(self, table: Table) -> int:
        """Return how many records the table's topic has at most."""

    def partition(self, table: Table, key: bytes) -> tuple[str, int]:
        """Return the id of the table's topic, which one made again does not have, and the partition of a key."""

    def records_from(self, table: Table, partition: int, offset: int) -> Iterator[tuple[int, bytes, bytes | None]]:
        """Read offset, key and value from an offset up to the partition's end as it is now, whatever their outcome.

        Of a topic that tables share, those of the table.

        They may be read on another thread.
        """

    def commands(self) -> list[tuple[bytes, bytes]]:
        """Read the commands of `cdc snapshot` that are not `answered` yet, oldest first: key and value."""

    def ask(self, key: bytes, value: bytes) -> None:
        """Add a command of the connector's own to the open transaction: it is there if that is committed."""

    def answered(self, key: bytes) -> None:
        """Note in the open transaction that it carries out a command."""

    def close(self) -> None:
        """Close without committing; safe to call twice."""
