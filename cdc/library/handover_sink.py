"""The sink of a program that follows a log without Kafka: it hands over what a connector would write to its topics."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from cdc.files.position_file import Contents
from cdc.files.topicless_sink import TopiclessSink, emptied, place_of, read_again
from cdc.library.handover import Batch, Channel, Group, Progress
from cdc.model.change import Position, Table
from cdc.model.errors import OperatorError
from cdc.model.interfaces import Headers
from cdc.model.state import Phase, State

_TRANSACTION: Final = b',"transaction":'
_ID: Final = b'{"id":'
_BEHIND_ID: Final = b',"total_order":'
_POSITION: Final = b'"position":"'
_POSITION_TEXT: Final = len("00000000.0000000000000000.00000000")
_COMMIT_TEXT: Final = len("00000000.0000000000000000")


class HandoverSink(TopiclessSink):
    """Is a `cdc.model.interfaces.Sink`, on the thread that follows the log."""

    def __init__(self, progress: Progress, channel: Channel, *, where: str, make: str | None) -> None:
        """`where` names the position file. `make` says what a first start would make; None: it may."""
        self.tend: Callable[[], None] = lambda: None
        self._progress, self._channel = progress, channel
        self._where, self._make = where, make
        self._batches = 0
        super().__init__(progress.on_disk[0])
        self._through = self._contents.through

    def _begin(self) -> None:
        super()._begin()
        self._groups: list[Group] = []
        self._records = self._bytes = 0

    @property
    def safe(self) -> Mapping[str, Any] | None:
        """The offset that the source may be told of; None: there is none yet."""
        state = self._progress.on_disk[0].state
        return None if state is None or state.phase is not Phase.STREAM else state.offset

    def create(self, tables: Sequence[Table]) -> None:  # noqa: ARG002 - the seam's
        state = self._contents.state
        if self._make is not None and (state is None or state.phase is Phase.CREATING):
            raise OperatorError(
                f"{self._where} has no position, and nothing is begun without create=True", hint=self._make
            )

    def write(self, topic: str, key: bytes, value: bytes | None, headers: Headers = ()) -> None:  # noqa: ARG002 - the seam's
        if value is None:
            return  # the delete before it says it
        at = value.rindex(_TRANSACTION) + len(_TRANSACTION)
        of = value[at + len(_ID) : value.index(_BEHIND_ID, at)] if value.startswith(_ID, at) else None
        if not self._groups or self._groups[-1].of != of:
            self._groups.append(Group(of))
        group = self._groups[-1]
        group.events.add((key, value), len(key) + len(value))
        begin = value.rindex(_POSITION, 0, at) + len(_POSITION)
        group.position = value[begin : begin + _POSITION_TEXT].decode()
        self._records += 1
        self._bytes += len(key) + len(value)

    def commit(self, state: State) -> None:
        before = self._contents
        is_behind = self._through >= Position(state.epoch, state.commit, 0).text
        self._contents = Contents(state, self._schemas, self._commands, self._through if is_behind else "")
        groups = [group for group in self._groups if group.of is None or not self._is_done(group)]
        for since, name in read_again(before, state):  # whole transactions are kept whole
            at = place_of(since, (group.position for group in groups))
            group = Group(None, position=since)
            group.events.add((b"", emptied(name, since, self._schemas)), 0)
            groups.insert(at, group)
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
