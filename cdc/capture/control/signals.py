"""Commands to a connector: Debezium's signals, as records of the connector's signal topic. Pure.

https://debezium.io/documentation/reference/stable/configuration/signalling.html: ``execute-snapshot`` and
``stop-snapshot``. We add three members of the data: ``after-gap``, because the log has a gap and a re-snapshot of all
tables shall close it, with ``server`` also at a server that has taken another one's place; and ``keys``, for only the
rows with these keys of the one table named. ``pause-connector``, ``resume-connector``, ``reload-connector`` and
``erase-key`` are ours.

What Debezium's signals may ask for and we do not do is refused as a whole, by name: half of what was asked for would
be something else. A condition on rows is SQL of anybody who may write to the topic, so it is not taken; its text is
told nowhere, since it may have values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import orjson

from cdc.model.audit import DONE, Act, name_of, time_of
from cdc.model.state import Key, key_from_json, key_to_json

_PAUSE: Final = "pause-connector"
_RESUME: Final = "resume-connector"
_RELOAD: Final = "reload-connector"
_SHRED: Final = "erase-key"
_START: Final = "execute-snapshot"
_STOP: Final = "stop-snapshot"
_NOT_DONE: Final = ("log", "pause-snapshot", "resume-snapshot", "schema-changes", "set-binlog-position")
"""Signals of Debezium's that are none of ours."""
_MEMBERS: Final = {
    _START: {"type", "data-collections", "after-gap", "server", "keys"},
    _STOP: {"type", "data-collections"},
}
_NO_CONDITION: Final = "no condition on rows is taken: `keys` names rows, and without it the whole table is read"
_WHY: Final = {
    "additional-conditions": _NO_CONDITION,
    "additional-condition": _NO_CONDITION,
    "surrogate-key": "a table is read by its own key",
}
_INCREMENTALLY: Final = "done, incrementally: the log is followed meanwhile"


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """Starts or stops the incremental snapshot of tables, pauses or resumes the connector, has it read its file."""

    tables: tuple[str, ...] = ()
    """``schema.table``"""
    stop: bool = False
    after_gap: bool = False
    server: str = ""
    """The number of a server that has taken the place of the one that was followed, whose rows are to be read."""
    keys: tuple[Key, ...] = ()
    """The keys to read of the one table; none: all rows."""
    pause: bool | None = None
    """Whether the connector is to pause, or else to go on; None: it is about tables."""
    reload: bool = False
    """Whether the connector is to read its file again."""
    refused: str = ""
    """Why it is not carried out, where it is one of Debezium's that asks for what is not done here."""
    outcome: str = DONE
    """What the audit says when it is carried out."""
    shred: bytes | None = None
    """Whose key is to be erased, as the key topic names it."""
    by: str | None = None
    """Who asks for it; a signal of Debezium's does not say."""
    asked_ms: int | None = None
    """When."""

    def to_bytes(self, identifier: str) -> bytes:
        data: dict[str, object]
        asked = {} if self.by is None else {"by": self.by, "asked_ms": self.asked_ms}
        if self.reload:
            return orjson.dumps({"id": identifier, "type": _RELOAD, "data": {}, **asked})
        if self.shred is not None:
            data = {"subject": self.shred.decode()}
            return orjson.dumps({"id": identifier, "type": _SHRED, "data": data, **asked})
        if self.pause is not None:
            return orjson.dumps({"id": identifier, "type": _PAUSE if self.pause else _RESUME, "data": {}, **asked})
        data = {"type": "incremental", "data-collections": list(self.tables)}
        if self.after_gap:
            data["after-gap"] = True
        if self.server:
            data["server"] = self.server
        if self.keys:
            data["keys"] = [key_to_json(key) for key in self.keys]
        kind = _STOP if self.stop else _START
        return orjson.dumps({"id": identifier, "type": kind, "data": data, **asked})

    @property
    def asks(self) -> bool:
        """Whether it asks for anything: a record that is no command does not."""
        asked = self.pause is not None or self.reload or self.shred is not None
        return asked or bool(self.tables or self.refused)

    def act(self, key: bytes, outcome: str = DONE) -> Act:
        """Return what the audit keeps of it: tables and how many keys, never a key, and not whose was erased."""
        about: dict[str, object] = {"tables": list(self.tables)} if self.tables else {}
        if self.keys:
            about["keys"] = len(self.keys)
        if self.after_gap:
            about["after_gap"] = True
        if self.server:
            about["server"] = self.server
        return Act(
            action=self._action(),
            by=self.by,
            asked_ms=self.asked_ms,
            id=key.decode(errors="replace"),
            about=about,
            outcome=outcome,
        )

    def _action(self) -> str:
        if self.refused and not self.tables:
            return "signal"
        if self.reload:
            return "reload"
        if self.shred is not None:
            return "erase key"
        if self.pause is not None:
            return "pause" if self.pause else "resume"
        if self.stop:
            return "snapshot stop"
        return "read rows" if self.keys else "snapshot start"


def parse(value: bytes) -> Command:
    """Parse a command; a record that is no command asks for nothing, as Debezium has it.

    It may be looked at often before it is answered, so who answers it tells of it.
    """
    try:
        record = orjson.loads(value)
        kind, data = record["type"], record["data"]
        by, asked_ms = name_of(record.get("by")), time_of(record.get("asked_ms"))
        if kind == _RELOAD:
            return Command(reload=True, by=by, asked_ms=asked_ms)
        if kind == _SHRED:
            return Command(shred=str(data["subject"]).encode(), by=by, asked_ms=asked_ms)
        if kind in (_PAUSE, _RESUME):
            return Command(pause=kind == _PAUSE, by=by, asked_ms=asked_ms)
        if kind in _NOT_DONE:
            return Command(refused=f"the signal {kind} is not carried out", by=by, asked_ms=asked_ms)
        if kind not in _MEMBERS:
            raise ValueError(kind)
        refused = _refused(kind, data)
        if kind == _STOP and not data.get("data-collections"):
            refused = refused or "`data-collections` must name the tables that are not to be read any more"
        named = data.get("data-collections", []) if refused else data["data-collections"]
        if not isinstance(named, list):  # a text would be taken for a table of each letter
            raise TypeError(named)
        tables, after_gap = tuple(map(str, named)), data.get("after-gap") is True
        if refused:
            return Command(tables=tables, stop=kind == _STOP, refused=refused, by=by, asked_ms=asked_ms)
        keys = tuple(key_from_json(key) for key in data.get("keys", ()))
        if keys and len(tables) != 1:
            raise ValueError(tables)
    except (ValueError, KeyError, TypeError, AttributeError):
        return Command()
    outcome = _INCREMENTALLY if kind == _START and str(data.get("type")).lower() == "blocking" else DONE
    return Command(
        tables=tables,
        stop=kind == _STOP,
        after_gap=after_gap,
        server=str(data.get("server") or ""),
        keys=keys,
        outcome=outcome,
        by=by,
        asked_ms=asked_ms,
    )


def _refused(kind: str, data: Mapping[str, object]) -> str:
    """Say why a signal about snapshots is not carried out; nothing for one that is."""
    for name, value in data.items():
        if value and name not in _MEMBERS[kind]:
            known = name in _WHY
            return (
                f"`{name}` is not carried out: {_WHY[name]}" if known else "`data` has a member that is not known here"
            )
    if str(data.get("type") or "incremental").lower() not in ("incremental", "blocking"):
        return "`type` must be incremental"
    if data.get("after-gap") not in (None, True, False):
        return "`after-gap` must be true or false"
    return ""


def after_gap(commands: Iterable[tuple[bytes, bytes]], *, server: str = "") -> Sequence[bytes]:
    """Give the keys of the commands that ask to go on behind a gap; with `server`, at that one by its number."""
    asked = [(key, parse(value)) for key, value in commands]
    return [key for key, command in asked if command.after_gap and (not server or command.server == server)]
