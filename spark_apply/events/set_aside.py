"""Keeps which copies a job has set aside, and why: in the topic of its quarantine, where any process can read it.

A record is keyed by store and topic, and its tombstone says that the copy has caught up.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import orjson

from cdc.config.config import ApplyConfig
from spark_apply.events.quarantine import OF_COPIES, read_notes


@dataclass(frozen=True, slots=True)
class SetAside:
    """A copy that cannot go on, while the others do."""

    store: str
    table: str
    topic: str
    reason: str
    hint: str | None
    at_ms: int
    """Since when."""

    @property
    def id(self) -> bytes:
        return aside_id(self.topic, self.store)

    def to_bytes(self) -> bytes:
        return orjson.dumps(asdict(self))

    def as_json(self) -> dict[str, Any]:
        """Return the stable JSON of ``cdc status --json``."""
        return {"reason": self.reason, "hint": self.hint, "at_ms": self.at_ms}


def aside_id(topic: str, store: str) -> bytes:
    """Return the key of a copy's record."""
    return orjson.dumps({"aside": [store, topic]})


def read_set_aside(config: ApplyConfig) -> dict[bytes, SetAside]:
    """Read which copies are set aside now, by `SetAside.id`."""
    notes = {key: orjson.loads(value) for key, value in read_notes(config).items() if key.startswith(OF_COPIES)}
    return {key: SetAside(**{name: told[name] for name in SetAside.__slots__}) for key, told in notes.items()}
