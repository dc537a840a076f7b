"""How far the incremental snapshot of a table is: a part of the position record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cdc.model.state import EMPTIED, Key, key_from_json, key_to_json, of_newer_release


@dataclass(frozen=True, slots=True)
class IncrementalProgress:
    """Says how far one table has been read."""

    since: str
    """A position: records of the table's topic before it are stale unless this incremental snapshot confirms them."""
    after: Key | None = None
    """The last key read."""
    key: str = ""
    """Which key that is one of: `Table.key_order`."""
    rows: int = 0
    estimate: int | None = None
    read: bool = False
    """All rows are read; what the source no longer has is still to be deleted."""
    required: bool = True
    """The topic is not whole before: not to be stopped."""
    again: bool = False
    """Rows have changed without events since it began: it is read once more behind its end."""
    gap: bool = False
    """What the topic said before `since` may have been untrue by then: the log had a gap."""
    emptied: bool = False
    """The log has told that all rows of before `since` are gone: also where the table is gone since."""
    started_at_ms: int = 0
    """When its first window was begun: it may have waited for other tables. 0: not yet."""

    @property
    def begun(self) -> bool:
        """Whether it does not wait for its turn any more."""
        return bool(self.started_at_ms or self.read) or self.after is not None

    def to_json(self) -> dict[str, object]:
        return {
            "since": self.since,
            "after": None if self.after is None else key_to_json(self.after),
            "key": self.key,
            "rows": self.rows,
            "estimate": self.estimate,
            "read": self.read,
            "required": self.required,
            "again": self.again,
            "gap": self.gap,
            **({EMPTIED: True} if self.emptied else {}),
            "started_at_ms": self.started_at_ms,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> IncrementalProgress:
        if unknown := value.keys() - cls.__slots__:
            raise of_newer_release("a table that is read again", f"with {', '.join(sorted(unknown))}")
        after = value["after"]
        return cls(**{**value, "after": None if after is None else key_from_json(after)})
