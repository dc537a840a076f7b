"""What users have asked of a connector or a job, as records of its audit topic. Pure, but for who asks.

A record is in the Kafka transaction in which what was asked for takes effect: it is there exactly if that happened.
What is done beside a connector (`sinks.topics.records.audit_log`) is noted by a record of its own, with no position.
A record names tables, counts and positions; it never has a row's value, a key or a secret.
"""

from __future__ import annotations

import getpass
import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

_LONGEST: Final = 200
_LAST_MS: Final = 253_402_300_799_999
"""The end of the year 9999."""
DONE: Final = "done"
READ_AGAIN: Final = "the file is read again: the connector's log says whether it was taken up"
"""Of `reload`: what the file is, is found out when the connector stands still."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """Something that was asked for, and has taken effect or was refused."""

    action: str
    """``pause``, ``resume``, ``reload``, ``snapshot start``, ``snapshot stop``, ``read rows``, ``take-over``,
    ``offsets import``, ``view rebuild``, ``erase``, ``fleet add``, ``fleet remove``, ``fleet restart``."""
    by: str | None = None
    """Who has asked, as the command says it: user and host; None: it does not say."""
    asked_ms: int | None = None
    """When, by the clock of who has asked."""
    id: str | None = None
    """The command's key in the signal topic."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """Tables, counts, positions."""
    outcome: str = DONE

    def to_bytes(self, *, connector: str, position: str) -> bytes:
        """Write the record; `position` is where the connector stood when it took effect."""
        return orjson.dumps(
            {
                "at_ms": time.time_ns() // 1_000_000,
                "connector": connector,
                "action": self.action,
                "by": self.by,
                "asked_ms": self.asked_ms,
                "id": self.id,
                "about": dict(self.about),
                "outcome": self.outcome,
                "position": position,
            }
        )


def asked_by() -> str:
    """Return who runs this process: user and host."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's number without a name
        user = str(os.getuid())
    named = f"{user}@{socket.gethostname()}"[:_LONGEST]
    return "".join(letter if letter.isprintable() else "?" for letter in named)  # LOGNAME may be any bytes


def name_of(value: object) -> str | None:
    """Take who has asked from a record that anybody may have written; None: it does not say."""
    return value[:_LONGEST] if isinstance(value, str) and value and value.isprintable() else None


def time_of(value: object) -> int | None:
    """Take a time in ms from such a record; None: it has none that a calendar has."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LAST_MS:
        return value
    return None
