"""A place in a cluster's history, and by what that history is known again.

A cluster has no name that another could not have: its id is made of its members' addresses, so a cluster that was made
again, or restored from a backup, at the same addresses has the same one. What tells it apart is that its revision or
its Raft term is lower than what was seen, or that the key that was written last is not as it was then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from cdc.model.change import Offset
from cdc.model.errors import CdcError, GapError
from connectors.etcd.gateway import CompactedError, FutureError, Gateway
from connectors.etcd.messages import Event, Header, KeyValue
from connectors.etcd.tables import Captured

CLOSE_THE_GAP: Final = "cdc snapshot start CONNECTOR.yaml --after-gap reads all tables again and closes the gap"
_ABSENT: Final = "absent"


@dataclass(frozen=True, slots=True)
class Place:
    """All up to `revision` has been read."""

    revision: int
    term: int
    key: bytes | None = None
    """The captured key that was written last; None: none is known."""
    mark: str = _ABSENT
    """How it was left."""

    @property
    def commit(self) -> int:
        return self.revision + 1

    def offset(self) -> Offset:
        """Return the place as it is kept."""
        mark = {} if self.key is None else {"key": self.key.hex(), "mark": self.mark}
        return {"revision": self.revision, "term": self.term, **mark}

    @classmethod
    def of(cls, offset: Offset) -> Place:
        """Read what `offset` gave."""
        key = bytes.fromhex(str(offset["key"])) if "key" in offset else None
        return cls(int(offset["revision"]), int(offset["term"]), key, str(offset.get("mark", _ABSENT)))

    def at(self, revision: int, header: Header | None = None) -> Place:
        """Return a later place, without another event."""
        return replace(self, revision=revision, term=max(self.term, header.term if header is not None else 0))

    def behind(self, revision: int, event: Event) -> Place:
        """Return the place behind an event, which is the last of its revision."""
        mark = event.now.mark if event.now is not None else _ABSENT
        return replace(self, revision=revision, key=event.key, mark=mark)


def taken(gateway: Gateway, captured: Sequence[Captured]) -> Place:
    """Return the place where the cluster is now, marked by a key if there is one."""
    header = gateway.now(captured[0].prefix)
    for one in captured:
        found = gateway.page(one.prefix, revision=header.revision, limit=1).found
        if found:
            return Place(header.revision, header.term, found[0].key, found[0].mark)
    return Place(header.revision, header.term)


def refusals(gateway: Gateway, place: Place, captured: Sequence[Captured]) -> Iterator[CdcError]:
    """Give why the history cannot be followed from a place without a gap."""
    known = place.key is not None and any(place.key.startswith(one.prefix) for one in captured)
    try:
        header, found = gateway.get(place.key if known and place.key else captured[0].first, revision=place.revision)
    except CompactedError:
        yield compacted(place.revision)
        return
    except FutureError:
        header = gateway.now(captured[0].prefix)
        yield GapError(
            f"cluster behind the position: it is at revision {header.revision}, but Kafka holds what happened up to "
            f"{place.revision}: it was made again or restored from a backup, and the topics have what it does not",
            hint=CLOSE_THE_GAP,
        )
        return
    if header.term < place.term:
        yield GapError(
            f"another history: the cluster's Raft term is {header.term}, and was {place.term} when the position was "
            "taken: it was made again or restored from a backup",
            hint=CLOSE_THE_GAP,
        )
    elif known and _mark(found) != place.mark:
        yield GapError(
            f"another history: at revision {place.revision} the cluster does not have the key that was written last as "
            "it was then: it was made again or restored from a backup, and written to since",
            hint=CLOSE_THE_GAP,
        )


def compacted(revision: int) -> GapError:
    """Return the error of history that is gone."""
    return GapError(
        f"history compacted: the cluster has compacted revision {revision}, up to which Kafka holds it: what changed "
        "behind it cannot be told",
        hint=f"{CLOSE_THE_GAP}; let the cluster keep history for longer than the connector may stand: "
        "--auto-compaction-retention",
    )


def _mark(found: KeyValue | None) -> str:
    return found.mark if found is not None else _ABSENT
