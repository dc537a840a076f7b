"""`cdc.inbox`: what is read from topics takes effect in the consumer's own database exactly once.

    with cdc.inbox("mailer", connection, kafka="127.0.0.1:9092", topics=["outbox.event.order"]) as inbox:
        while True:
            with inbox.batch() as messages:
                for message in messages:
                    connection.cursor().execute("INSERT INTO mail …", …)

A batch is a transaction of `connection`. It has the effects and, in the table `cdc_inbox`, the offset from which on
each partition is new (the *mark*). It is committed at the end of the block, or rolled back with an exception.

Why every record takes effect exactly once. A record is given only in a transaction that holds the row of its partition
locked, only if its offset is not below the mark, and that transaction moves the mark behind it. So:

- **Redelivery**: what Kafka gives again is below the mark, and is left out. Kafka's own offsets decide nothing; a
  member that is given a partition begins at its mark.
- **A crash between effect and mark** cannot be: they are one transaction. If it is not known whether a commit went
  through, the next batch locks the row and sees.
- **A block that fails** is rolled back, and the next batch has the same records. None is passed over, for records leave
  the inbox only when they are committed.
- **A block that ends its transaction** and goes on in another, or catches an error that has ended it, is told: a
  savepoint behind the mark is gone then. What it does would else be committed without the mark.
- **Rebalance and zombies**: two members may have the same records in hand for a while. The second waits for the lock of
  the first, then finds the mark moved, and leaves them out. And no gap comes of it: what a member has read begins at a
  mark and is handled in order, so its next record is never beyond the first that is new.
- **Compaction** takes records out between two offsets; what is left is in order, and has the newest record of each key.
  Records that are gone before they were read, by retention or by hand, are told: the mark is below the beginning.
- **Re-reads of a connector** write rows again as records of their own, with `op` `r`: each is given once, as any other.
  Positions of other keys go back then; offsets do not. A position by key would not tell more, because for one key
  positions increase with offsets, and it would have to be kept for every key. Nor would the ids of an outbox's
  messages: the connector publishes each once, and their set never ends.
- **The end of a transaction** of Kafka's takes an offset that is no record's. Once all that was read before it is
  committed, the mark goes behind it: retention takes it with the records, and it must not pass for one that was missed.
- **A topic that is made again** begins at offset 0: by offsets alone its records would be passed over. The mark has the
  topic's id, which Kafka never gives twice. It is asked behind every fetch, so no record of the new topic is given.
"""

from __future__ import annotations

import datetime as dt
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self

from cdc.config import registry
from cdc.library.inbox.marks import TABLE, Mark, Marks, Place
from cdc.model.errors import ConfigError, GapError, OperatorError, RetryableError

_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,100}")
_AT_ONCE: Final = 500


@dataclass(frozen=True, slots=True)
class Received:
    """A record of a topic."""

    topic: str
    partition: int
    offset: int
    key: bytes | None = field(repr=False)
    value: bytes | None = field(repr=False)
    """None: a tombstone, or an outbox's message without a payload."""
    headers: tuple[tuple[str, bytes | None], ...] = field(repr=False)
    """Of an outbox's message ``id`` and ``eventType``."""
    written_at: dt.datetime
    """The record's timestamp, in UTC."""


class Inbox:
    """Gives each record of topics once, in transactions of a database; for one thread at a time."""

    def __init__(
        self,
        name: str,
        connection: Any,  # noqa: ANN401 - any driver's
        topics: Sequence[str],
        kafka: Mapping[str, str],
    ) -> None:
        """`kafka` are properties of the client, with its ``bootstrap.servers``."""
        if not _NAME.fullmatch(name):
            raise ConfigError(f"cdc.inbox: “{name}” is no name", hint="letters, digits, '.', '_' and '-', 100 at most")
        if not topics or any(topic.startswith("^") for topic in topics):
            raise ConfigError("cdc.inbox: topics are named one by one", hint='topics=["outbox.event.order"]')
        servers = kafka.get("bootstrap.servers")
        if not servers:
            raise ConfigError("cdc.inbox: kafka has no bootstrap.servers", hint='kafka="127.0.0.1:9092"')
        self._name = name
        self._marks = Marks(connection, name)
        self._known: dict[str, str] = {}
        self._waiting: deque[Any] = deque()
        self._ends: dict[Place, int] = {}
        self._failed: Exception | None = None
        self._open = False
        options = {key: value for key, value in kafka.items() if key != "bootstrap.servers"}
        self._reader = registry.part("sinks.topics.records.group_reader:GroupReader")(
            servers, options, name, list(topics), self._begin
        )

    @contextmanager
    def batch(self, most: int = _AT_ONCE, *, wait_s: float = 1.0) -> Iterator[tuple[Received, ...]]:
        """Give the records that are new, at most `most`; none if none come within `wait_s`.

        The block is a transaction of the connection: do not commit or roll back in it; savepoints are free. With an
        exception the transaction is rolled back, and the next batch has the same records. Errors of the database are
        its driver's own. Raises GapError where a topic is no longer the one that was read, or has lost what is next;
        RetryableError while Kafka does not answer: call it again.
        """
        if self._open:
            raise ConfigError("cdc.inbox: a batch is open already", hint="end its block first")
        if most < 1:
            raise ConfigError(f"cdc.inbox: most: {most} is out of range", hint="1 or more")
        self._marks.require_idle()
        self._fill(most, wait_s)
        taken = [self._waiting[number] for number in range(min(most, len(self._waiting)))]
        moved: dict[Place, int] = {}
        self._open = True
        try:
            fresh = self._lock(taken, moved)
            yield fresh
            if fresh:
                self._marks.require_moved()
            self._marks.commit()
        except BaseException:
            self._marks.roll_back()
            raise
        finally:
            self._open = False
        for _ in taken:
            self._waiting.popleft()
        self._reader.handled(moved)

    def close(self) -> None:
        """Leave the group. The connection stays open: it is its user's."""
        self._reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _fill(self, most: int, wait_s: float) -> None:
        """Wait for records if there are none; partitions come and go meanwhile."""
        if self._failed is not None:
            raise self._failed
        if self._waiting:
            return
        try:
            messages, identities, ends = self._reader.read(most, wait_s)
            for topic, identity in identities.items():
                self._require_same(topic, self._known[topic], identity)
        except OperatorError as exc:
            self._failed = exc
            raise
        self._waiting.extend((message, identities[message.topic()]) for message in messages)
        self._ends |= ends
        if self._ends and not messages:  # none waits either, so all before these ends is committed
            self._pass_ends()

    def _pass_ends(self) -> None:
        """Move marks behind what is no record, in a transaction of its own: a block without records need not end well.

        Another member that has such a partition by now may have moved its mark further.
        """
        try:
            marks = self._marks.lock(self._ends)
            moved = {
                place: end
                for place, end in self._ends.items()
                if (mark := marks.get(place)) and mark.offset < end and mark.topic_id == self._known[place[0]]
            }
            self._marks.move(moved)
            self._marks.commit()
        except BaseException:
            self._marks.roll_back()
            raise
        self._ends.clear()
        self._reader.handled(moved)

    def _begin(self, places: Mapping[Place, Any]) -> dict[Place, int]:
        """Say where partitions go on. Raises GapError if what comes next there is not in the topic."""
        self._known |= {topic: bounds.identity for (topic, _), bounds in places.items()}
        marks = self._marks.begin({place: Mark(of.identity, of.first) for place, of in places.items()})
        for (topic, part), mark in sorted(marks.items()):
            self._require_same(topic, mark.topic_id, self._known[topic])
            first, end = places[topic, part].first, places[topic, part].end
            if not first <= mark.offset <= end:
                raise GapError(
                    f"inbox {self._name}: topic {topic}, partition {part} has offsets from {first} to {end}, and "
                    f"{mark.offset} is next: "
                    + ("records are gone that were not read" if mark.offset < first else "the topic has lost records"),
                    hint=self._again(),
                )
        if marks.keys() != places.keys():  # rows that another member inserts at this moment
            raise RetryableError(f"inbox {self._name}: rows of {TABLE} cannot be seen yet", hint="call it again")
        return {place: mark.offset for place, mark in marks.items()}

    def _require_same(self, topic: str, before: str, now: str) -> None:
        if before != now:
            raise GapError(
                f"inbox {self._name}: topic {topic} was deleted and made again: its offsets begin again",
                hint=self._again(),
            )

    def _again(self) -> str:
        return (
            "an inbox of another name reads the topics from the beginning: "
            "what took effect from the topic of before takes effect again"
        )

    def _lock(self, taken: Sequence[Any], moved: dict[Place, int]) -> tuple[Received, ...]:
        """Return what is new of records, with their partitions locked, and their marks moved."""
        if not taken:
            return ()
        marks = self._marks.lock({(message.topic(), message.partition()) for message, _ in taken})
        fresh = []
        for message, identity in taken:
            place, offset = (message.topic(), message.partition()), message.offset()
            if place not in marks:
                raise OperatorError(
                    f"inbox {self._name}: its row of topic {place[0]}, partition {place[1]} is gone from {TABLE}",
                    hint="start the inbox again: it reads such a partition from the beginning",
                )
            self._require_same(place[0], marks[place].topic_id, identity)
            if offset >= moved.get(place, marks[place].offset):
                fresh.append(_received(message))
                moved[place] = offset + 1
        if fresh:
            self._marks.move(moved)
        else:
            self._marks.roll_back()
        return tuple(fresh)


def _received(message: Any) -> Received:  # noqa: ANN401 - a client's record
    at = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(milliseconds=max(0, message.timestamp()[1]))
    headers = tuple(message.headers() or ())
    return Received(message.topic(), message.partition(), message.offset(), message.key(), message.value(), headers, at)
