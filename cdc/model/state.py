"""The state a connector needs to go on, and the record of it: `cdc.model.state_records` has the tables' part beside it.

A record that cannot be read whole is an error, never a fresh start: a connector that forgets its position loses data.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TypeAlias

import orjson

from cdc.model.change import Offset
from cdc.model.errors import OperatorError

VERSION = 4
"""1: a position record has all of its tables itself. 3: the connector is paused. 4: see `State.version`; else 2."""
_PAUSED, _COMMON = 3, 2
UNLOGGED = "unlogged"
"""What an offset has where the server was found to write no log since: what was written meanwhile is read again."""
EMPTIED = "emptied"
"""What a table's `State.reading` has where the log has told that all of its rows are gone."""

Key: TypeAlias = tuple[bytes, ...]
"""A key's parts as the server prints them, in key order."""


def key_to_json(key: Key) -> list[object]:
    """Write each part as text where it is UTF-8, which a SQL_ASCII database does not promise."""
    return [_text(part) for part in key]


def key_from_json(value: Sequence[str | Mapping[str, str]]) -> Key:
    """Read what `key_to_json` wrote."""
    return tuple(part.encode() if isinstance(part, str) else bytes.fromhex(part["hex"]) for part in value)


def _text(part: bytes) -> str | dict[str, str]:
    try:
        return part.decode()
    except UnicodeDecodeError:
        return {"hex": part.hex()}


class Phase(StrEnum):
    """The phase of a connector; the pipeline sets each as it commits the step before."""

    CREATING = "creating"
    """The log's hold (slot) is about to be made. Nothing is published yet: what is half made can be made again."""
    SNAPSHOT = "snapshot"
    """The hold stands at `offset`; rows are being read."""
    STREAM = "stream"
    """All rows read; the log is followed from `offset`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """All that a connector must know to go on."""

    connector: str
    identity: Mapping[str, str]
    """Which server, database and slot this position belongs to."""
    phase: Phase
    epoch: int
    """The first part of every position; it goes up when the order of commit positions starts again."""
    offset: Offset = field(default_factory=dict)
    commit: int = 0
    """`offset` as the commit part of a position: every transaction that lies below it has been read."""
    source_ms: int = 0
    """A time of the source's clock, in ms since 1970, up to which all that was committed there is in Kafka.

    0: not known yet. Before the phase is STREAM it is the time from which on the log is held.
    """
    tables: tuple[str, ...] = ()
    """The captured tables, `schema.table`."""
    carried: Mapping[str, str] = field(default_factory=dict)
    """Since when the log carries each table, in the source's own terms."""
    unread: tuple[str, ...] = ()
    """The tables that the current snapshot reads; of other tables it must hide nothing."""
    snapshot: Mapping[str, object] = field(default_factory=dict)
    """The snapshotter's progress and read views, in its own terms."""
    reading: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """Tables of the incremental snapshot, the one being read first: see
    `cdc.capture.snapshots.incremental_progress.IncrementalProgress`."""
    windows: int = 0
    """The greatest number of a view so far: the last part of its rows' position."""
    dead_letters: int = 0
    """Events that went to the dead-letter topic instead of their own, ever."""
    asked: tuple[str, ...] = ()
    """Tables of which rows are to be read again by keys; the keys are in commands of the signal topic."""
    rereads: int = 0
    """How often rows of a table, or all of them, were read again because the log did not say what changed, ever."""
    paused_ms: int = 0
    """Since when the connector is paused, in ms since 1970; 0: it is not."""
    config: Mapping[str, str] = field(default_factory=dict)
    """The settings that a running state depends on, by their names in the file; none is secret."""
    sequence: int = 0
    """Counts the records; each commit adds one."""
    beside: str = ""
    """Of a record alone: what the records of its tables beside it sum up to; empty: it has everything itself."""

    def next(self, **changes: object) -> State:
        """Make the record that follows this one."""
        return replace(self, sequence=self.sequence + 1, **changes)  # type: ignore[arg-type]

    @property
    def version(self) -> int:
        """The least version of a record by which no earlier release passes over what it must heed.

        Those that know no `UNLOGGED` would go on behind a gap, those that know no `EMPTIED` would fail or keep rows.
        """
        if self.offset.get(UNLOGGED) or any(of.get(EMPTIED) for of in self.reading.values()):
            return VERSION
        return _PAUSED if self.paused_ms else _COMMON

    def to_bytes(self, version: int | None = None) -> bytes:
        """Write a record. `version` is that of the whole, where others have its tables."""
        body = {
            "version": self.version if version is None else version,
            "sequence": self.sequence,
            "connector": self.connector,
            "identity": dict(self.identity),
            "phase": self.phase.value,
            "epoch": self.epoch,
            "offset": self.offset,
            "commit": self.commit,
            "source_ms": self.source_ms,
            "tables": list(self.tables),
            "carried": dict(self.carried),
            "unread": list(self.unread),
            "snapshot": dict(self.snapshot),
            "reading": {name: dict(reading) for name, reading in self.reading.items()},
            "windows": self.windows,
            "dead_letters": self.dead_letters,
            "asked": list(self.asked),
            "rereads": self.rereads,
            "config": dict(self.config),
            "beside": self.beside,
            **({"paused_ms": self.paused_ms} if self.paused_ms else {}),
        }
        return orjson.dumps({**body, "checksum": checksum_of(body)})

    @classmethod
    def from_bytes(cls, record: bytes, *, where: str) -> State:
        """Parse a record. Raises OperatorError for one that is damaged or of a newer version."""
        try:
            body = orjson.loads(record)
            checksum = body.pop("checksum")
            version = body.pop("version")
            if version > VERSION:
                raise of_newer_release(where, f"record version {version}")
            if checksum != checksum_of({"version": version, **body}):
                raise ValueError("checksum")
            if unknown := body.keys() - cls.__slots__:
                raise of_newer_release(where, f"with {', '.join(sorted(unknown))}")
            return cls(
                **{
                    **body,
                    "phase": Phase(body["phase"]),
                    "tables": tuple(body["tables"]),
                    "unread": tuple(body["unread"]),
                    "asked": tuple(body.get("asked", ())),
                }
            )
        except (ValueError, KeyError, TypeError, AttributeError) as exc:
            raise damaged(where) from exc


def of_newer_release(where: str, what: str) -> OperatorError:
    """Return what it means that a position says what this release does not know."""
    return OperatorError(
        f"{where}: the position was written by a newer release ({what})", hint="run that release or a later one"
    )


def damaged(where: str) -> OperatorError:
    """Return what it means that a position cannot be read whole."""
    return OperatorError(
        f"{where}: the position record is damaged; going on from anywhere else would lose or double changes",
        hint="restore the topic, or begin under a new connector name (a fresh snapshot)",
    )


def checksum_of(body: Mapping[str, object]) -> str:
    """Return what shows that a record is as it was written."""
    return hashlib.sha256(orjson.dumps(body, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]
