"""Follows the position topics while the job runs, and takes a barrier for each State (`model.completeness`)."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable
from types import TracebackType
from typing import Any, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from cdc.config.apply_config import ApplySource
from cdc.model.errors import BugError, CdcError, OperatorError
from cdc.model.state_records import StateReader
from spark_apply.events.kafka.client import client_settings, unreachable
from spark_apply.events.kafka.offsets import committed_ends
from spark_apply.events.kafka.topics import existing_topics, partition_counts, position_topic
from spark_apply.model.completeness import Barrier, Barriers, complete_tables, kept_up, position_of
from spark_apply.model.target_table import TargetTable

_POLL_S = 0.1
_AT_ONCE = 500
_ANSWER_WITHIN_S = 10.0
_AWAY_S = 120.0
"""So long the broker may not answer before the job stops; at least as long as Spark itself tries."""

_FATAL = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001 - the client's public name for it
        KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001 - the same
    }
)


class PositionWatcher:
    """Takes a barrier for each connector's State on entry, and on a thread until it exits; a context manager.

    Entering raises OperatorError.
    """

    def __init__(self, config: ApplySource, tables: Iterable[TargetTable]) -> None:
        self._config = config
        self.barriers = Barriers()
        self._followed: dict[str, dict[str, str]] = {}
        for table in tables:
            self._followed.setdefault(table.connector, {})[table.qualified] = table.topic
        self.seen: set[str] = set()
        """The connectors that have published a position."""
        self._states: dict[str, StateReader] = {}
        self._moved: dict[str, str] = {}
        """Connectors whose newest position has no barrier yet, with their position topic."""
        self._positions: dict[str, str] = {}
        self._read_to: dict[str, int] = {}
        """By topic, the offset behind the last record."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cdc-positions", daemon=True)
        self._consumer: Consumer | None = None
        self._admin = AdminClient(client_settings(config))
        self.failure: CdcError | None = None
        """The error that ended the thread."""

    def follow(self, table: TargetTable) -> None:
        """Take barriers for one more table of a connector that is followed."""
        self._followed.setdefault(table.connector, {})[table.qualified] = table.topic

    def _begin(self) -> None:
        wanted = {position_topic(self._config.topic_prefix, name): name for name in self._followed}
        there = existing_topics(self._config, wanted)
        self._positions = {topic: name for topic, name in wanted.items() if topic in there}
        if not self._positions:
            return
        self._consumer = Consumer(
            {
                **client_settings(self._config),
                "group.id": f"{self._config.topic_prefix}.apply-positions",  # nothing is committed under it
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 100,
            }
        )
        ends = {topic: committed_ends(self._config, topic)[0] for topic in self._positions}
        self._consumer.assign([TopicPartition(topic, 0, 0) for topic in self._positions])
        unread, until = set(self._positions), time.monotonic() + _ANSWER_WITHIN_S
        while unread:
            unread -= self._read(self._consumer)  # an end that keeps moving is never reached
            unread -= {topic for topic in unread if self._read_to.get(topic, 0) >= ends[topic]}
            if time.monotonic() > until:
                msg = f"topic {min(unread)} cannot be read to its end in {_ANSWER_WITHIN_S:.0f} s"
                raise OperatorError(msg, hint="is the partition's leader alive?")
        try:
            self._make()
        except KafkaException as exc:
            raise unreachable(self._config, exc) from exc

    def __enter__(self) -> Self:
        try:
            self._begin()
        except BaseException:
            self._close()
            raise
        if self._consumer is not None:
            self._thread.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _exc: BaseException | None, _at: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._consumer is not None:
            self._thread.join()
        self._close()

    def _close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()

    def _run(self) -> None:
        consumer, away_since = self._consumer, None
        while consumer is not None and not self._stop.is_set():
            try:
                self._read(consumer)
                self._make()
                away_since = None
            except KafkaException as exc:
                away_since = away_since or time.monotonic()
                if time.monotonic() - away_since > _AWAY_S:
                    self.failure = unreachable(self._config, exc)
                    return
                self._stop.wait(1)
            except CdcError as exc:
                self.failure = exc
                return
            except Exception as exc:  # noqa: BLE001 - otherwise the thread would end silently
                self.failure = BugError(f"watching the positions failed: {type(exc).__name__}: {exc}")
                return

    def _read(self, consumer: Consumer) -> set[str]:
        """Read new records; return the topics whose end was reached."""
        ended: set[str] = set()
        first = consumer.poll(_POLL_S)
        for message in [] if first is None else [first, *consumer.consume(_AT_ONCE, timeout=0)]:
            topic, error, value = message.topic() or "", message.error(), message.value()
            if error is not None:
                if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - the client's public name for it
                    ended.add(topic)
                elif error.code() in _FATAL:
                    msg = f"topic {topic} can be read no more ({error.name()})"
                    raise OperatorError(msg, hint="was it deleted, or may this user not read it any more?")
                continue  # the client recovers from other errors by itself
            offset, connector = message.offset() or 0, self._positions[topic]
            if offset < self._read_to.get(topic, 0):  # a topic that was made again
                del self._states[connector]
            self._read_to[topic] = offset + 1
            states = self._states.setdefault(connector, StateReader(connector))
            if states.hear(message.key(), value) and value is not None:
                self._moved[connector] = topic
                self.seen.add(connector)
        return ended

    def _make(self) -> None:
        """Take a barrier for each State that was read; a State whose barrier fails is tried again."""
        for connector, topic in list(self._moved.items()):
            state = self._states[connector].state(where=f"topic {topic}")
            if state is None:
                continue
            tables = complete_tables(state, self._followed[connector])
            if tables is not None:
                topics = {self._followed[connector][table] for table in tables}
                highs, gone = self._highs(topics), frozenset(self._followed[connector]).difference(kept_up(state))
                self.barriers.add(Barrier(connector, tables, position_of(state), state.source_ms or None, highs, gone))
            del self._moved[connector]

    def _highs(self, topics: Collection[str]) -> dict[str, dict[int, int]]:
        there = partition_counts(self._admin, topics)  # each time: partitions can be added
        gone = sorted(set(topics) - set(there))
        if gone:
            raise OperatorError(f"topic {gone[0]} is gone", hint="was it deleted while the job follows it?")
        # High watermarks, not last stable offsets: control records of the State's own transaction may still be missing.
        places = [TopicPartition(topic, number) for topic in topics for number in range(there[topic])]
        found: dict[str, dict[int, int]] = {topic: {} for topic in topics}
        if places:
            latest: dict[TopicPartition, Any] = dict.fromkeys(places, OffsetSpec.latest())  # type: ignore[no-untyped-call]
            for place, answer in self._admin.list_offsets(latest, request_timeout=_ANSWER_WITHIN_S).items():
                found[place.topic][place.partition] = answer.result().offset
        return found
