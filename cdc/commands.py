"""What `cdc snapshot` asks of a connector: Debezium's signals, as records of the connector's signal topic. Pure.

https://debezium.io/documentation/reference/stable/configuration/signalling.html: ``execute-snapshot`` and
``stop-snapshot``. Ours is ``after-gap`` in the data: the log has a gap, and reading everything again shall close it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import orjson

log = logging.getLogger("cdc")


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """Read tables while the log is followed, or stop doing so."""

    tables: tuple[str, ...]
    """``schema.table``"""
    stop: bool = False
    after_gap: bool = False

    def to_bytes(self, identifier: str) -> bytes:
        data: dict[str, object] = {"type": "incremental", "data-collections": list(self.tables)}
        if self.after_gap:
            data["after-gap"] = True
        kind = "stop-snapshot" if self.stop else "execute-snapshot"
        return orjson.dumps({"id": identifier, "type": kind, "data": data})


def parse(value: bytes) -> Command:
    """A command; one that asks for nothing where the record is none, as Debezium takes it."""
    try:
        record = orjson.loads(value)
        kind, data = record["type"], record["data"]
        if kind not in ("execute-snapshot", "stop-snapshot"):
            raise ValueError(kind)
        tables, after_gap = tuple(map(str, data["data-collections"])), bool(data.get("after-gap"))
    except (ValueError, KeyError, TypeError, AttributeError):
        log.warning("the signal topic holds a record that is no command of ours; it is left out")
        return Command(tables=())
    return Command(tables=tables, stop=kind == "stop-snapshot", after_gap=after_gap)


def after_gap(commands: Iterable[tuple[bytes, bytes]]) -> Sequence[bytes]:
    """Keys of the commands that ask for a new beginning after a gap."""
    return [key for key, value in commands if parse(value).after_gap]
