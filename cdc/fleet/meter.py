"""What a member tells of itself, to who counts it: `cdc.telemetry.fleet_meter`, or nobody."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from cdc.fleet.entry import Entries
from cdc.fleet.seams import News
from cdc.fleet.standing import Status


class FleetMeter(Protocol):
    """Is told what a member does, by its loop alone; may be asked by other threads."""

    def moves(self) -> None:
        """Note that the loop goes on."""

    def sees(self, entries: Entries, statuses: Mapping[str, Status]) -> None:
        """Note what the topic says now."""

    def hears(self, news: News) -> None:
        """Note what the group says."""

    def has(self, connectors: frozenset[str]) -> None:
        """Note the connectors that are this member's: all of those that it is to run, or still runs."""

    def starts(self, *, take_over: bool) -> None:
        """Note that a connector is started."""

    def ends(self, why: str) -> None:
        """Note that one has ended which nobody had asked to end."""


class NoFleetMeter:
    """Forgets all of it."""

    def moves(self) -> None: ...
    def sees(self, entries: Entries, statuses: Mapping[str, Status]) -> None: ...
    def hears(self, news: News) -> None: ...
    def has(self, connectors: frozenset[str]) -> None: ...
    def starts(self, *, take_over: bool) -> None: ...
    def ends(self, why: str) -> None: ...
