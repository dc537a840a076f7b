"""A sink without topics: it keeps no rows, and so cannot read back what it has written.

What a connector finds out by reading its topics back is told otherwise (`Settings.unsent`): a TRUNCATE is an event
``t``, and a value that the log leaves out and nobody knows has a mark. Where a table's rows must be read again while
the log is followed, a ``t`` stands at the place of the log since which they come again, instead of a delete at the end
for each key that is gone: events before it may be of rows that have gone, and a window leaves out a row only if an
event of it comes behind that place.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from stat import S_ISREG
from typing import Any, Final

import orjson

from cdc.files.position_file import Contents
from cdc.model.change import Position, Table
from cdc.model.errors import BugError, ConfigError
from cdc.model.interfaces import Headers, Log
from cdc.model.ledger import TopicFacts
from cdc.model.state import State

UNSENT: Final = {"__cdc": "unchanged"}
"""What an event's JSON has for a value that an update did not change and that nobody knows. No column has such a value.
"""


_A_FILE: Final = "path: the name of a file to make"


def file_at(path: str) -> Path:
    """Return where a sink's file is. Raises ConfigError for what is there and is none.

    A named pipe would hold the start until somebody reads it, and a device fails when the slot is made already.
    """
    try:
        with suppress(OSError):
            if not S_ISREG(Path(path).stat().st_mode):
                raise ConfigError(f"sink.path: “{path}” is there, and is no file", hint=_A_FILE)
        return Path(path).resolve()
    except (RuntimeError, ValueError) as exc:  # links that lead to themselves, and a character of no name
        raise ConfigError(f"sink.path: {path!r} leads to no file: {exc}", hint=_A_FILE) from exc


class TopiclessSink:
    """The part of a `cdc.model.interfaces.Sink` that is the same wherever events go."""

    def __init__(self, contents: Contents) -> None:
        self.epochs = 0
        self._contents = contents
        """What has been committed."""
        self._begin()

    def _begin(self) -> None:
        """Forget what is not committed."""
        self._schemas = dict(self._contents.schemas)
        self._commands = dict(self._contents.commands)

    def check(self, tables: Sequence[Table]) -> bool:  # noqa: ARG002 - the seam's
        return self._contents.state is not None

    def require_place(self) -> None:
        """Raise what a start would where the file is not as it was left, as far as that is seen without opening it."""

    def create(self, tables: Sequence[Table]) -> None:
        pass

    def neighbours(self) -> list[tuple[str, State]]:
        return []

    def occupied(self, tables: Sequence[Table]) -> list[str]:  # noqa: ARG002 - the seam's
        return []

    def fence(self) -> State | None:
        self.close()
        self.epochs += 1
        return self._contents.state

    def peek(self) -> State | None:
        return self._contents.state

    def recorded(self) -> Mapping[str, TopicFacts]:
        return {}

    def found(self) -> Mapping[str, TopicFacts]:
        return {}

    def rely(self, topic: str, facts: TopicFacts) -> None:  # noqa: ARG002 - the seam's
        raise BugError(f"there is no topic {topic} to rely on")

    def moved(self, *, whole: bool = False) -> bool:  # noqa: ARG002 - the seam's
        return False

    def kept_schemas(self) -> Mapping[bytes, bytes]:
        return self._schemas

    def keep_schema(self, key: bytes, value: bytes) -> None:
        self._schemas[key] = value

    def topic(self, table: Table) -> str:
        return table.qualified

    def log_topic(self, name: Log) -> str:
        return name

    def routed_topic(self, prefix: str, name: str) -> str:
        return f"{prefix}.{name}"

    def write(self, topic: str, key: bytes, value: bytes | None, headers: Headers = ()) -> None:
        raise NotImplementedError

    def schema(self, key: bytes, value: bytes) -> None:
        self.keep_schema(key, value)

    def keys(self) -> Iterator[tuple[bytes, bytes | None]]:
        return iter(())

    def log(self, name: Log, key: bytes, value: bytes | None) -> None:  # noqa: ARG002 - the seam's
        if name == "audit":  # it is kept in a topic, and here is none
            return
        raise BugError(f"nobody has asked for the log of {name}")

    def dead_letters(self) -> Iterator[tuple[bytes, bytes]]:
        return iter(())

    def schemas(self) -> Iterator[bytes]:
        return iter(list(self._schemas.values()))

    def records(self, table: Table, *, committed: bool = False) -> Iterator[tuple[bytes, bytes | None]]:  # noqa: ARG002 - the seam's
        return iter(())

    def extent(self, table: Table) -> int:  # noqa: ARG002 - the seam's
        return 0

    def partition(self, table: Table, key: bytes) -> tuple[str, int]:  # noqa: ARG002 - the seam's
        return table.qualified, 0

    def records_from(self, table: Table, partition: int, offset: int) -> Iterator[tuple[int, bytes, bytes | None]]:  # noqa: ARG002 - the seam's
        return iter(())

    def commands(self) -> list[tuple[bytes, bytes]]:
        return list(self._commands.items())

    def ask(self, key: bytes, value: bytes) -> None:
        self._commands[key] = value

    def answered(self, key: bytes) -> None:
        self._commands.pop(key, None)

    def close(self) -> None:
        self._begin()


def read_again(before: Contents, now: State) -> list[tuple[str, str]]:
    """Find the tables of which all rows are read again from a place that the log has come to: that place, and the name.

    The place may lie ahead when a reading is asked for: what the log still has before it may be of rows that are gone.
    A table that was captured once, and comes back, is among them: it may have lost rows meanwhile.
    """
    was = before.state
    if was is None:
        return []
    found = []
    for name, reading in {**was.reading, **now.reading}.items():
        since = str(reading["since"])
        asked = was.reading.get(name, {}).get("since") == since
        said = asked and _has_passed(was, since)
        if not said and _has_passed(now, since) and (name in was.tables or _is_described(name, before)):
            found.append((since, name))
    return sorted(found)


def _is_described(name: str, contents: Contents) -> bool:
    return any(_qualified(orjson.loads(record)) == name for record in contents.schemas.values())


def _has_passed(state: State, since: str) -> bool:
    return Position(state.epoch, state.commit, 0).text > since


def place_of(since: str, positions: Iterable[str]) -> int:
    """Return the number of the first event that is not before a place, of events in the log's order."""
    number = 0
    for number, position in enumerate(positions, 1):
        if position >= since:
            return number - 1
    return number


def emptied(name: str, since: str, schemas: Mapping[bytes, bytes]) -> bytes:
    """Make a ``t``: the table's rows before it are gone, or they come again.

    Its newest description among `schemas` says what it is called: in ``schema.table`` either may have dots.
    """
    found = [record for record in map(orjson.loads, schemas.values()) if _qualified(record) == name]
    schema, _, table = name.partition(".")
    newest = max(found, key=lambda of: int(of["version"]), default={"db": schema, "schema": schema, "table": table})
    where = {part: newest[part] for part in ("db", "schema", "table")}
    source = {**where, "ts_ms": time.time_ns() // 1_000_000, "position": since, "schema_version": 0}
    return orjson.dumps({"before": None, "after": None, "source": source, "transaction": None, "op": "t"})


def _qualified(record: Mapping[str, Any]) -> str:
    return f"{record['schema']}.{record['table']}"
