"""Twins of a fleet's topic and group: brokers in memory that several fleets and members share."""

from __future__ import annotations

import queue
from collections.abc import Mapping, Sequence

from cdc.fleet.seams import GroupMember, News
from cdc.model.audit import Act
from cdc.model.errors import CdcError, OperatorError


class MemoryBrokers:
    """Holds the records and places of fleets, and what members have joined."""

    def __init__(self) -> None:
        self.records: dict[str, dict[str, bytes]] = {}
        self.places: dict[str, int] = {}
        self.groups: dict[str, list[GroupMember]] = {}
        self.changes = 0
        self.noted: list[tuple[str, str, Act]] = []
        """By prefix and connector, what audits were told."""
        self.away: CdcError | None = None
        """What every call raises, if anything."""


class MemoryFleet:
    """A `Fleet` on `MemoryBrokers`."""

    def __init__(self, brokers: MemoryBrokers, fleet: str) -> None:
        self._brokers, self._fleet = brokers, fleet

    def topic(self) -> str:
        return f"cdc-fleet-{self._fleet}"

    def _asked(self) -> MemoryBrokers:
        if self._brokers.away is not None:
            raise self._brokers.away
        return self._brokers

    def fleets(self) -> Sequence[str]:
        return sorted(self._asked().records)

    def read(self, fleet: str | None = None) -> Mapping[str, bytes] | None:
        found = self._asked().records.get(fleet or self._fleet)
        return None if found is None else dict(found)

    def missing(self) -> CdcError:
        return OperatorError(f"no fleet {self._fleet}", hint=f"fleets there: {', '.join(self.fleets())}")

    def make(self, places: int) -> None:
        brokers = self._asked()
        brokers.records.setdefault(self._fleet, {})
        brokers.places[self._fleet] = max(places, brokers.places.get(self._fleet, 0))

    def write(self, key: str, value: bytes | None) -> None:
        brokers = self._asked()
        if self._fleet not in brokers.records:
            raise self.missing()
        if value is None:
            brokers.records[self._fleet].pop(key, None)
        else:
            brokers.records[self._fleet][key] = value
        brokers.changes += 1

    def note(self, prefix: str, connector: str, act: Act) -> bool:
        self._asked().noted.append((prefix, connector, act))
        return True

    def members(self) -> Sequence[GroupMember]:
        return self._asked().groups.get(self._fleet, [])

    def follow(self) -> MemoryRecords:
        return MemoryRecords(self._brokers, self._fleet)

    def join(self, member: str) -> MemoryMembership:
        return MemoryMembership(member)


class MemoryRecords:
    """The records of a fleet, as they change."""

    def __init__(self, brokers: MemoryBrokers, fleet: str) -> None:
        self._brokers, self._fleet = brokers, fleet
        self._seen = -1

    def changed(self) -> Mapping[str, bytes] | None:
        if self._brokers.away is not None:
            raise self._brokers.away
        if self._seen == self._brokers.changes:
            return None
        self._seen = self._brokers.changes
        return dict(self._brokers.records[self._fleet])

    def close(self) -> None: ...


class MemoryMembership:
    """A place in a group that a test speaks for: it puts the news into `told`."""

    def __init__(self, member: str) -> None:
        self.member = member
        self.told: queue.SimpleQueue[News] = queue.SimpleQueue()
        self.closed = False

    def news(self, within_s: float) -> News | None:
        try:
            return self.told.get(timeout=within_s) if within_s else self.told.get_nowait()
        except queue.Empty:
            return None

    def identity(self) -> str:
        return f"{self.member}-1"

    def close(self) -> None:
        self.closed = True
