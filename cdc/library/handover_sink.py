"""The sink of a program that follows a log without Kafka: it hands over what a connector would write to its topics.

It keeps no rows. So what a connector finds out by reading its topics back is told otherwise (`Settings.unsent`): a
TRUNCATE is an event ``t``, and a value that the log leaves out and nobody knows is `cdc.UNCHANGED`. Where a table's
rows must be read again while the log is followed, a ``t`` stands before the reading, instead of a delete at its end for
each key that is gone. It may stand earlier than the reading begins, never later: whole transactions are kept whole, and
every row that the table has then comes again, for a window leaves out a row only if an event of it comes behind the
beginning.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import orjson

from cdc.library.handover import Batch, Channel, Group, Progress
from cdc.library.position_file import Contents
from cdc.model.change import Table
from cdc.model.errors import BugError, OperatorError
from cdc.model.interfaces import Headers, Log
from cdc.model.ledger import TopicFacts
from cdc.model.state import Phase, State

_TRANSACTION: Final = b',"transaction":'
_ID: Final = b'{"id":'
_BEHIND_ID: Final = b',"total_order":'
_POSITION: Final = b'"position":"'
_POSITION_TEXT: Final = len("00000000.0000000000000000.00000000")
_COMMIT_TEXT: Final = len("00000000.0000000000000000")


class HandoverSink:
    """Is a `cdc.model.interfaces.Sink`, on the thread that follows the log."""

    def __init__(self, connector: str, progress: Progress, channel: Channel, *, where: str, make: str | None) -> None:
        """`where` names the position file. `make` says what a first start would make; None: it may."""
        self.epochs = 0
        self.tend: Callable[[], None] = lambda: None
        self._connector, self._progress, self._channel = connector, progress, channel
        self._where, self._make = where, make
        self._contents = progress.on_disk[0]
        """What has been handed over."""
        self._through = self._contents.through
        self._batches = 0
        self._begin()

    def _begin(self) -> None:
        self._groups: list[Group] = []
        self._records = self._bytes = 0
        self._schemas = dict(self._contents.schemas)
        self._commands = dict(self._contents.commands)

    @property
    def safe(self) -> Mapping[str, Any] | None:
        """The offset that the source may be told of; None: there is none yet."""
        state = self._progress.on_disk[0].state
        return None if state is None or state.phase is not Phase.STREAM else state.offset

    def check(self, tables: Sequence[Table]) -> bool:  # noqa: ARG002 - the seam's
        return self._contents.state is not None

    def create(self, tables: Sequence[Table]) -> None:  # noqa: ARG002 - the seam's
        state = self._contents.state
        if self._make is not None and (state is None or state.phase is Phase.CREATING):
            raise OperatorError(
                f"{self._where} has no position, and nothing is begun without create=True", hint=self._make
            )

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

    def write(self, topic: str, key: bytes, value: bytes | None, headers: Headers = ()) -> None:  # noqa: ARG002 - the seam's
        if value is None:
            return  # the delete before it says it
        at = value.rindex(_TRANSACTION) + len(_TRANSACTION)
        of = value[at + len(_ID) : value.index(_BEHIND_ID, at)] if value.startswith(_ID, at) else None
        if not self._groups or self._groups[-1].of != of:
            self._groups.append(Group(of))
        group = self._groups[-1]
        group.events.add(key, value)
        begin = value.rindex(_POSITION, 0, at) + len(_POSITION)
        group.position = value[begin : begin + _POSITION_TEXT].decode()
        self._records += 1
        self._bytes += len(key) + len(value)

    def schema(self, key: bytes, value: bytes) -> None:
        self.keep_schema(key, value)

    def log(self, name: Log, key: bytes, value: bytes) -> None:  # noqa: ARG002 - the seam's
        raise BugError(f"nobody has asked for the log of {name}")

    def dead_letters(self) -> Iterator[tuple[bytes, bytes]]:
        return iter(())

    def commit(self, state: State) -> None:
        before = self._contents
        self._contents = Contents(state, self._schemas, self._commands)
        groups = [group for group in self._groups if group.of is None or not self._is_done(group)]
        for since, name in sorted(_read_again(before.state, state)):
            at = next((i for i, group in enumerate(groups) if group.position >= since), len(groups))
            groups.insert(at, _emptied(name, since))
        if groups:
            self._batches += 1
            batch = Batch(self._batches, groups, before, self._contents)
            self._channel.put(batch, self.tend)
            self._progress.handed_over(batch)
        else:
            self._progress.moved(self._contents)
        self._begin()

    def _is_done(self, group: Group) -> bool:
        """Whether a transaction of the log was done before this process began."""
        return bool(self._through) and group.position[:_COMMIT_TEXT] <= self._through[:_COMMIT_TEXT]

    def pending(self) -> tuple[int, int]:
        return self._records, self._bytes

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


def _read_again(before: State | None, now: State) -> Iterator[tuple[str, str]]:
    """Find the tables that are read again from here on: the position where that begins, and the name."""
    for name, reading in now.reading.items():
        was = before.reading.get(name) if before is not None else None
        known = before is not None and name in before.tables
        if known and (was is None or was["since"] != reading["since"]):
            yield str(reading["since"]), name


def _emptied(name: str, since: str) -> Group:
    """Make a ``t``: the table's rows before it are gone, or they come again."""
    schema, _, table = name.partition(".")
    source = {"db": schema, "table": table, "ts_ms": time.time_ns() // 1_000_000, "position": since}
    event = {"before": None, "after": None, "source": {**source, "schema_version": 0}, "transaction": None, "op": "t"}
    group = Group(None, position=since)
    group.events.add(b"", orjson.dumps(event))
    return group
