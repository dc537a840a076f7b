"""What `cdc snapshot` asks of a connector: Debezium's signals, as records of the connector's signal topic. Pure.

https://debezium.io/documentation/reference/stable/configuration/signalling.html: ``execute-snapshot`` and
``stop-snapshot``. Ours are, in the data, ``after-gap``: the log has a gap, and reading everything again shall close it;
and ``keys``: of the one table named, only the rows with these keys.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import orjson

from cdc.model.state import Key, key_from_json, key_to_json

log = logging.getLogger("cdc")


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """Read tables while the log is followed, or stop doing so."""

    tables: tuple[str, ...]
    """``schema.table``"""
    stop: bool = False
    after_gap: bool = False
    keys: tuple[Key, ...] = ()
    """Of the one table, those to read; none: all."""

    def to_bytes(self, identifier: str) -> bytes:
        data: dict[str, object] = {"type": "incremental", "data-collections": list(self.tables)}
        if self.after_gap:
            data["after-gap"] = True
        if self.keys:
            data["keys"] = [key_to_json(key) for key in self.keys]
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
        keys = tuple(key_from_json(key) for key in data.get("keys", ()))
        if keys and len(tables) != 1:
            raise ValueError(tables)
    except (ValueError, KeyError, TypeError, AttributeError):
        log.warning("the signal topic holds a record that is no command of ours; it is left out")
        return Command(tables=())
    return Command(tables=tables, stop=kind == "stop-snapshot", after_gap=after_gap, keys=keys)


def after_gap(commands: Iterable[tuple[bytes, bytes]]) -> Sequence[bytes]:
    """Keys of the commands that ask for a new beginning after a gap."""
    return [key for key, value in commands if parse(value).after_gap]
