"""What `cdc fleet status` shows: entries, the group's members, and what each member has said of its connectors. Pure.

A status record is ``status/NAME`` in the fleet's topic: it outlives the member that wrote it, so a state is shown as it
was said only while the place is that member's; else the connector waits for the one that has the place now.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from cdc.fleet.entry import Entries
from cdc.fleet.seams import GroupMember

REFUSED: Final = "failed"
WAITING: Final = "waiting"
"""No member has the connector's place, or the one that has it has not begun."""
NO_MEMBER: Final = {
    "kind": "NoMember",
    "message": "no member of the fleet runs it",
    "hint": "start a member: cdc fleet run, with the same --fleet and --bootstrap-servers",
}
NOT_YET: Final = {
    "kind": "NoMember",
    "message": "no member of the fleet has it yet",
    "hint": "none is missing: the group gives its places to those that are there, which takes some seconds",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """What a member has said last of a connector."""

    member: str
    state: str
    since_ms: int
    error: Mapping[str, object] | None = None
    """`at_ms`, `kind`, `message`, `hint` of the last error, until the log is followed without one."""
    again_ms: int | None = None
    """When it is started again; None: it runs, or is not started again by itself."""

    def to_bytes(self) -> bytes:
        return orjson.dumps(
            {
                "member": self.member,
                "state": self.state,
                "since_ms": self.since_ms,
                "error": self.error,
                "again_ms": self.again_ms,
            }
        )

    @classmethod
    def from_bytes(cls, value: bytes) -> Status | None:
        """Read a record; None for anything else."""
        try:
            found = orjson.loads(value)
            return cls(
                member=str(found["member"]),
                state=str(found["state"]),
                since_ms=int(found["since_ms"]),
                error=found["error"],
                again_ms=found["again_ms"],
            )
        except (ValueError, KeyError, TypeError):
            return None


def standing(
    entries: Entries, statuses: Mapping[str, Status], members: Sequence[GroupMember]
) -> dict[str, dict[str, Any]]:
    """Say of each connector its `state`, `member`, `since_ms`, `last_error`, `again_ms` and `place`."""
    owner = {place: member.name for member in members for place in member.places}
    found: dict[str, dict[str, Any]] = {}
    for name, refused in entries.refused.items():
        error = {"kind": "ConfigError", "message": refused.message, "hint": refused.hint}
        found[name] = {**_NOTHING, "state": REFUSED, "place": refused.place, "last_error": error}
    for name, entry in entries.good.items():
        said, member = statuses.get(name), owner.get(entry.place)
        error_before = said.error if said else None
        row = {**_NOTHING, "state": WAITING, "member": member, "place": entry.place, "last_error": error_before}
        if member is None:
            row["last_error"] = error_before or (NOT_YET if members else NO_MEMBER)
        elif said is not None and said.member == member:
            row |= {"state": said.state, "since_ms": said.since_ms, "again_ms": said.again_ms}
        found[name] = row
    return dict(sorted(found.items()))


_NOTHING: Final[Mapping[str, Any]] = {"member": None, "since_ms": None, "again_ms": None}
