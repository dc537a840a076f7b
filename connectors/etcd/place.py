"""A place in a cluster's history, and by what that history is known again.

A cluster has no name that another could not have: its id is made of its members' addresses, so a cluster that was made
again, or restored from a backup, at the same addresses has the same one. What tells it apart:

* its revision, or its Raft term, is lower than what was seen;
* the captured key that was written last is not as it was left, at the position's revision;
* at that revision a captured key has been written later than what was seen last, or there are more keys, or fewer.

The last two are enough, whatever the others say. Let h be the last revision that both histories share. If a captured
key was seen to change behind h, then the last such change is the mark, and another history has it only by making the
same one, at the same revision. If none was, what the other history did to captured keys behind h is not known to Kafka:
a put is a key written later than what was seen, unless it was deleted; deletes of what h had make fewer keys, unless
keys were made, which then are written later. So the keys at the position's revision are those that Kafka holds.
"""

from __future__ import annotations

from binascii import crc32
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from cdc.model.change import Offset
from cdc.model.errors import CdcError, GapError, OperatorError
from connectors.etcd.gateway import CLOSE_THE_GAP, CompactedError, FutureError, Gateway
from connectors.etcd.messages import Event, Header, KeyValue
from connectors.etcd.tables import Captured, prefix_of

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
    seen: int = 0
    """The revision of the last change of a captured key, or of the snapshot behind which there was none yet."""
    keys: int = 0
    """How many captured keys there are."""
    prefixes: str = ""
    """Of which prefixes `keys` tells."""

    @property
    def commit(self) -> int:
        return self.revision + 1

    def offset(self) -> Offset:
        """Return the place as it is kept."""
        mark = {} if self.key is None else {"key": self.key.hex(), "mark": self.mark}
        return {
            "revision": self.revision,
            "term": self.term,
            "seen": self.seen,
            "keys": self.keys,
            "prefixes": self.prefixes,
            **mark,
        }

    @classmethod
    def of(cls, offset: Offset) -> Place:
        """Read what `offset` gave."""
        key = bytes.fromhex(str(offset["key"])) if "key" in offset else None
        return cls(
            int(offset["revision"]), int(offset["term"]), key, str(offset.get("mark", _ABSENT)), int(offset["seen"]),
            int(offset["keys"]), str(offset["prefixes"]),
        )  # fmt: skip

    def at(self, revision: int, header: Header | None = None) -> Place:
        """Return a later place, without another event."""
        return replace(self, revision=revision, term=max(self.term, header.term if header is not None else 0))

    def behind(self, revision: int, event: Event, made: int) -> Place:
        """Return the place behind a transaction, by its last event and how many keys more there are by all."""
        mark = event.now.mark if event.now is not None else _ABSENT
        return replace(self, revision=revision, key=event.key, mark=mark, seen=revision, keys=self.keys + made)

    def counted(self, gateway: Gateway, captured: Sequence[Captured]) -> Place:
        """Return the place with the keys of these prefixes; those of others are not told of any more.

        What they did up to the place no event has told, and none will: their rows are read. So all of it is seen.
        """
        prefixes = _names(one.prefix for one in captured)
        if prefixes == self.prefixes:
            return self
        pages = [gateway.since(one.prefix, revision=self.revision, modified=self.revision) for one in captured]
        return replace(self, seen=self.revision, keys=sum(page.count for page in pages), prefixes=prefixes)


def made_by(event: Event) -> int:
    """Return by how much an event changes the number of keys."""
    if event.now is None:
        return -1
    return int(event.now.created == event.now.modified)


def taken(gateway: Gateway, captured: Sequence[Captured]) -> Place:
    """Return the place where the cluster is now, marked by a key if there is one."""
    header = gateway.now(captured[0].prefix)
    place = Place(header.revision, header.term, seen=header.revision)
    for one in captured:
        found = gateway.page(one.prefix, revision=header.revision, limit=1).found
        if found and place.key is None:
            place = replace(place, key=found[0].key, mark=found[0].mark)
    return place.counted(gateway, captured)


def refusals(gateway: Gateway, place: Place, captured: Sequence[Captured], then: Iterable[str]) -> Iterator[CdcError]:
    """Give why the history cannot be followed from a place without a gap.

    `then`: what the tables that were followed relied on (`Captured.stands`); the file may name others by now.
    """
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
        yield _another(place, "does not have the key that was written last as it was then")
    else:
        yield from _untold(gateway, place, [one.prefix for one in captured], [*map(prefix_of, then)])


def _untold(gateway: Gateway, place: Place, now: Sequence[bytes], then: Sequence[bytes]) -> Iterator[CdcError]:
    """Compare the keys of the prefixes that were followed."""
    followed = now if place.prefixes == _names(now) else then
    if place.prefixes != _names(followed):  # a start was ended between its two commits
        return
    try:
        pages = [gateway.since(prefix, revision=place.revision, modified=place.seen) for prefix in followed]
    except OperatorError:
        if followed is now:
            raise
        return  # those that are left out may not be read any more
    if (count := sum(page.count for page in pages)) != place.keys:
        yield _another(place, f"has {count} keys in place of {place.keys}")
    elif any(page.found for page in pages):
        yield _another(place, f"has a key that was written behind revision {place.seen}, which no event told")


def _another(place: Place, what: str) -> GapError:
    return GapError(
        f"another history: at revision {place.revision} the cluster {what}: it was made again or restored from a "
        "backup, and written to since",
        hint=CLOSE_THE_GAP,
    )


def _names(prefixes: Iterable[bytes]) -> str:
    """Return a word for a set of prefixes."""
    return f"{crc32(repr(sorted(prefixes)).encode()):08x}"


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
