"""What a member needs of Kafka, as Protocols; `sinks.topics` has them for real, tests in memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from cdc.model.audit import Act
from cdc.model.errors import CdcError


@dataclass(frozen=True, slots=True)
class Assigned:
    """The group has given these places, beside those that were there; maybe none."""

    places: tuple[int, ...]
    heard_s: float


@dataclass(frozen=True, slots=True)
class Revoked:
    """The group wants these places back, and waits until `free` is set, or for ten seconds."""

    places: tuple[int, ...]
    free: threading.Event


@dataclass(frozen=True, slots=True)
class Lost:
    """The group could not be heard, or has taken this member for gone; the topic may be gone, too."""


@dataclass(frozen=True, slots=True)
class Away:
    """Nothing can be heard for now: nothing changes by that."""

    why: CdcError


News: TypeAlias = Assigned | Revoked | Lost | Away


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member as the group's coordinator knows it."""

    name: str
    identity: str
    """What the coordinator calls it; another one at each start."""
    host: str
    places: tuple[int, ...]


class Membership(Protocol):
    """A member's place in the group, on a thread of its own."""

    def news(self, within_s: float) -> News | None:
        """Give what was heard next; None: nothing within that time."""

    def identity(self) -> str:
        """Return what the coordinator calls this member; empty before it does."""

    def close(self) -> None:
        """Leave the group at once, rather than being missed."""


class Records(Protocol):
    """The fleet's topic, as it is now and as it changes."""

    def changed(self) -> Mapping[str, bytes] | None:
        """Return all records by their keys if one has come since the last call. Never waits. Raises RetryableError."""

    def close(self) -> None:
        """Read no more."""


class Fleet(Protocol):
    """A fleet's topic and group."""

    def topic(self) -> str:
        """Return the topic's name."""

    def fleets(self) -> Sequence[str]:
        """Return the names of all fleets of these brokers."""

    def read(self, fleet: str | None = None) -> Mapping[str, bytes] | None:
        """Return all records of the fleet, or of another one, by their keys; None: there is no such fleet."""

    def missing(self) -> CdcError:
        """Return the error that says that there is no such fleet, and which there are."""

    def make(self, places: int) -> None:
        """Make the topic, or more places in it."""

    def write(self, key: str, value: bytes | None) -> None:
        """Write a record, or take it away. Raises OperatorError where there is no such fleet."""

    def note(self, prefix: str, connector: str, act: Act) -> bool:
        """Note what was done in the connector's audit; return False where it has none: it has never run there."""

    def members(self) -> Sequence[GroupMember]:
        """Return the group's members."""

    def follow(self) -> Records:
        """Follow the topic's records, from the first."""

    def join(self, member: str) -> Membership:
        """Join the group."""


def clock_s() -> float:
    """Return a time that goes on while this process, or the whole machine, is held."""
    return time.clock_gettime(_CLOCK)


_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
