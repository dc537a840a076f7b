"""Commands to a connector: Debezium's signals, as records of the connector's signal topic. Pure.

https://debezium.io/documentation/reference/stable/configuration/signalling.html: ``execute-snapshot`` and
``stop-snapshot``. We add two members of the data: ``after-gap``, because the log has a gap and a re-snapshot of all
tables shall close it; and ``keys``, for only the rows with these keys of the one table named. ``pause-connector``,
``resume-connector`` and ``reload-connector`` are ours.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import orjson

from cdc.model.state import Key, key_from_json, key_to_json

_PAUSE: Final = "pause-connector"
_RESUME: Final = "resume-connector"
_RELOAD: Final = "reload-connector"

log = logging.getLogger("cdc")


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """Starts or stops the incremental snapshot of tables, pauses or resumes the connector, has it read its file."""

    tables: tuple[str, ...] = ()
    """``schema.table``"""
    stop: bool = False
    after_gap: bool = False
    keys: tuple[Key, ...] = ()
    """The keys to read of the one table; none: all rows."""
    pause: bool | None = None
    """Whether the connector is to pause, or else to go on; None: it is about tables."""
    reload: bool = False
    """Whether the connector is to read its file again."""

    def to_bytes(self, identifier: str) -> bytes:
        if self.reload:
            return orjson.dumps({"id": identifier, "type": _RELOAD, "data": {}})
        if self.pause is not None:
            return orjson.dumps({"id": identifier, "type": _PAUSE if self.pause else _RESUME, "data": {}})
        data: dict[str, object] = {"type": "incremental", "data-collections": list(self.tables)}
        if self.after_gap:
            data["after-gap"] = True
        if self.keys:
            data["keys"] = [key_to_json(key) for key in self.keys]
        kind = "stop-snapshot" if self.stop else "execute-snapshot"
        return orjson.dumps({"id": identifier, "type": kind, "data": data})


def parse(value: bytes) -> Command:
    """Parse a command; a record that is no command asks for nothing, as Debezium has it."""
    try:
        record = orjson.loads(value)
        kind, data = record["type"], record["data"]
        if kind == _RELOAD:
            return Command(reload=True)
        if kind in (_PAUSE, _RESUME):
            return Command(pause=kind == _PAUSE)
        if kind not in ("execute-snapshot", "stop-snapshot"):
            raise ValueError(kind)
        tables, after_gap = tuple(map(str, data["data-collections"])), bool(data.get("after-gap"))
        keys = tuple(key_from_json(key) for key in data.get("keys", ()))
        if keys and len(tables) != 1:
            raise ValueError(tables)
    except (ValueError, KeyError, TypeError, AttributeError):
        log.warning("the signal topic holds a record that is no command of ours; it is left out")
        return Command()
    return Command(tables=tables, stop=kind == "stop-snapshot", after_gap=after_gap, keys=keys)


def after_gap(commands: Iterable[tuple[bytes, bytes]]) -> Sequence[bytes]:
    """Give the keys of the commands that ask to go on behind a gap."""
    return [key for key, value in commands if parse(value).after_gap]
