"""The seam of figures: the loop says once a commit, a batch or a change of state what it does, never once a row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

from cdc.model.errors import CdcError
from cdc.model.state import State


class RunState(StrEnum):
    """What a connector does now."""

    STARTING = "starting"
    """A session begins: servers are connected to, the position is compared with them."""
    CREATING = "creating"
    """The log's hold (slot) is being made."""
    SNAPSHOT = "snapshot"
    """Rows are read, before the log is followed."""
    STREAMING = "streaming"
    """The log is followed."""
    PAUSED = "paused"
    """As asked: the log is held, and nothing is read."""
    STANDBY = "standby"
    """Another copy of the connector is at work."""
    RETRYING = "retrying"
    """A session has ended with an error, and the next one is about to begin."""
    FAILED = "failed"
    """The connector ends with an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """What one Kafka transaction has committed."""

    state: State
    events: Mapping[tuple[str, str], int]
    """How many of each table and op (`c`, `u`, `d`, `r`; `m` for messages, which are of no table)."""
    transactions: Sequence[int]
    """When each source transaction in it was committed, in ms since 1970 by the source's clock."""
    records: int
    """With tombstones, and all that is kept beside events."""
    size_bytes: int
    took_s: float
    epochs: int
    """How many epochs the producer has begun so far, each of which fences the ones before."""


class Meter(Protocol):
    """Is told what a connector does. No call waits for anything, and none raises."""

    wanted: bool
    """Whether anybody looks at the figures: what costs something only to be told is left out otherwise."""

    def moves(self) -> None:
        """Note that the loop moves."""

    def waits(self) -> None:
        """Note that the loop waits for a server, up to its next move, for as long as that takes."""

    def becomes(self, state: RunState) -> None:
        """Note what the connector does now."""

    def opened(self, state: State, pending: Callable[[], tuple[int, int]]) -> None:
        """Note that a session goes on from `state`; `pending` tells records and bytes that are not committed yet."""

    def committed(self, commit: Commit) -> None:
        """Note a commit."""

    def is_fresh(self, source_ms: int, ahead_ms: int) -> None:
        """Note that all that was committed at the source up to `source_ms` is in Kafka.

        `ahead_ms`: how far the source's clock is ahead of ours.
        """

    def leaves_out(self, tables: int) -> None:
        """Note how many tables a session begins without, that the file asks for."""

    def aborted(self) -> None:
        """Note that a Kafka transaction has ended with its session: as far as is known, it was not committed."""

    def fails(self, error: CdcError) -> None:
        """Note an error that ends a session."""

    def retries(self, error: CdcError) -> None:
        """Note that a session is started again because of an error."""


class NoMeter:
    """Is told, and forgets."""

    wanted = False

    def moves(self) -> None: ...
    def waits(self) -> None: ...
    def becomes(self, state: RunState) -> None: ...
    def opened(self, state: State, pending: Callable[[], tuple[int, int]]) -> None: ...
    def committed(self, commit: Commit) -> None: ...
    def is_fresh(self, source_ms: int, ahead_ms: int) -> None: ...
    def leaves_out(self, tables: int) -> None: ...
    def aborted(self) -> None: ...
    def fails(self, error: CdcError) -> None: ...
    def retries(self, error: CdcError) -> None: ...


NO_METER: Final = NoMeter()


class JobState(StrEnum):
    """What an apply job does now."""

    STARTING = "starting"
    FOLLOWING = "following"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreStanding:
    """How a store stands with its tables."""

    source_ms: int | None
    """Up to which time of the source all its copies are complete; None: one of them is complete up to none."""
    tables: int
    incomplete: int
    aside: int
    quarantined: int
    behind_since_ms: int | None = None
    """From when on a copy may not have what was committed at the source; None: all copies have all there is."""
    deletes_kept_ms: int | None = None
    """How long its topics keep deletes that are not read; of several the shortest. None: not known."""


class JobMeter(Protocol):
    """Is told what an apply job does: once a batch, and about once a second between batches."""

    wanted: bool

    def moves(self) -> None:
        """Note that the loop moves."""

    def waits(self) -> None:
        """Note that the loop does something that may take long, up to its next move."""

    def becomes(self, state: JobState) -> None:
        """Note what the job does now."""

    def retries(self, error: CdcError) -> None:
        """Note that the job is about to begin again because of an error."""

    def applied(self, *, took_s: float, position: str, rows: Mapping[tuple[str, str, str], int]) -> None:
        """Note a batch: how long it took, the newest position in it, and counts since the job began.

        The counts are by store, table and outcome, which is ``events`` or one of those of rows.
        """

    def stands(self, stores: Mapping[str, StoreStanding]) -> None:
        """Note how the stores stand, by name."""


class NoJobMeter:
    """Is told, and forgets."""

    wanted = False

    def moves(self) -> None: ...
    def waits(self) -> None: ...
    def becomes(self, state: JobState) -> None: ...
    def retries(self, error: CdcError) -> None: ...
    def applied(self, *, took_s: float, position: str, rows: Mapping[tuple[str, str, str], int]) -> None: ...
    def stands(self, stores: Mapping[str, StoreStanding]) -> None: ...


NO_JOB_METER: Final = NoJobMeter()
