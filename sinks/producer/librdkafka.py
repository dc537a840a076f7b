"""Produces through librdkafka: the exit from our own producer, for the day when that one is at fault.

Exactly once rests on the same four things as `sinks.producer.producer` says; librdkafka does the second and the third.
What it does by itself, and what is done about it here:

- It sends requests again, also EndTxn, and only its log tells so. It speaks version 1 of the transaction protocol,
  where the first copy may arrive in the next transaction and end that one. So `interrupted` listens to the log, and the
  sink begins a new epoch (docs/adr/0010).
- A client that had an error is not used again. An epoch is a client of its own: `begin_epoch` makes one.
- Of a refused batch every record is reported, those thrown away behind it too, and maybe first. The one that is
  refused for its size is alone in its batch: `batch.size` is the smallest limit of the topics.

It is slower (docs/adr/0015), and takes 4 to 12 times the CPU of a record where there are many partitions.
"""

from __future__ import annotations

import base64
import logging
import time
import uuid
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, cast

from confluent_kafka import KafkaError, KafkaException, Message, Producer, TopicCollection, Uuid
from confluent_kafka.admin import AdminClient
from kafka import errors as codes

from cdc.model.errors import BugError
from cdc.model.interfaces import Headers
from sinks.client.connection import LostError
from sinks.client.record_batch import records_of
from sinks.producer.batches import Batch, PlainBatches
from sinks.producer.retries import ABSENT_S, PATIENCE_S, Patience, RefusedError, code_of

_SLICE_S: Final = 1.0
"""A signal is only heard between calls of the client."""
_LOOK_S: Final = 10.0
_CLOSE_S: Final = 5.0
_COMPLAIN_S: Final = 30.0
_QUEUE_KB: Final = 2_097_151
_QUEUE_RECORDS: Final = 10_000_000
"""What waits is bounded by the sink: a call to `send` waits for the one before."""

_INTERRUPTIONS: Final = {"FAIL", "REQTMOUT"}
"""What the client's log calls a connection lost with requests on it, and an answer that was waited for too long."""
_THROWN_AWAY: Final = {KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT}  # noqa: SLF001 - its public names
_FENCED: Final = KafkaError._FENCED  # noqa: SLF001 - the same
_DOWN: Final = KafkaError._ALL_BROKERS_DOWN  # noqa: SLF001 - the same
_KEPT: Final = ("acks", "enable.idempotence", "transactional.id", "partitioner", "bootstrap.servers")
"""Options that cannot be had otherwise: exactly once rests on them."""

_PRODUCER_ONLY: Final = ("compression.type", "compression.codec", "message.max.bytes", "linger.ms", "batch.size")

log = logging.getLogger("cdc.kafka")


class LibrdkafkaProducer:
    """Produces as one transactional id, by `sinks.producer.transactional`."""

    def __init__(
        self,
        bootstrap_servers: str,
        options: Mapping[str, str],
        *,
        transactional_id: str,
        timeout_ms: int,
        compression: str,
        batch_bytes: int,
        largest_bytes: int,
    ) -> None:
        """`batch_bytes` is what a batch of several records may have; `largest_bytes` what a record may have."""
        self._servers = bootstrap_servers
        asked = {name: value for name, value in options.items() if name not in _KEPT}
        self._options: dict[str, Any] = {
            "linger.ms": 5,
            **asked,
            "compression.type": compression,
            "message.max.bytes": largest_bytes,
            "batch.size": max(1, min(batch_bytes, largest_bytes)),
            "bootstrap.servers": bootstrap_servers,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": timeout_ms,
            "enable.idempotence": True,
            "acks": "all",
            "allow.auto.create.topics": "false",  # a topic that is gone would come again, with a broker's settings
            "queue.buffering.max.messages": _QUEUE_RECORDS,
            "queue.buffering.max.kbytes": _QUEUE_KB,
            "delivery.report.only.error": True,
            "error_cb": self._heard,
            "log_level": 6,
            "log.connection.close": True,
        }
        plain = {name: value for name, value in asked.items() if name not in _PRODUCER_ONLY}
        self._admin_options: dict[str, str | int | float | bool] = {**plain, "bootstrap.servers": bootstrap_servers}
        self._client: Producer | None = None
        self._admin: AdminClient | None = None
        self._told = _Told()
        self._in_transaction = False
        self._failed: RefusedError | LostError | None = None
        self._complained_s = float("-inf")
        self.fences_itself = False

    @property
    def interrupted(self) -> bool:
        if self._client is not None:
            self._client.poll(0)  # brings what the client has told
        return self._told.of_interruption

    def begin_epoch(self, within_s: float) -> None:
        self._drop()
        self._told = _Told()
        client = self._client = Producer(self._options, logger=self._told)
        # The client looks for its coordinator at once and, unless a broker has answered by then, half a second later.
        with suppress(KafkaException):
            client.list_topics(timeout=_SLICE_S)
        self._patiently(client.init_transactions, within_s)
        client.poll(0)
        self.fences_itself = self._told.of_interruption

    def partitions(self, topic: str, beside: Iterable[str] = ()) -> int:  # noqa: ARG002 - the client asks for all it has met
        patience = Patience(ABSENT_S)
        while True:
            reason: Exception
            try:
                found = self._open().list_topics(topic, timeout=_LOOK_S).topics[topic]
            except KafkaException as exc:
                reason = _error(exc.args[0])
            else:
                if found.error is None and found.partitions:
                    return len(found.partitions)
                reason = RefusedError(code_of(codes.UnknownTopicOrPartitionError))
                if found.error is not None:
                    reason = _error(found.error)
                    if not found.error.retriable() and not _absent(found.error):
                        raise reason
            patience.wait(reason)

    def there(self, topics: Sequence[str]) -> dict[str, tuple[str, int]]:
        if self._admin is None:
            self._admin = AdminClient(self._admin_options, logger=logging.getLogger("cdc.kafka"))
        if not topics:
            return {}
        found = {}
        for topic, future in self._admin.describe_topics(
            TopicCollection(list(topics)), request_timeout=_LOOK_S
        ).items():
            try:
                described = future.result()
            except KafkaException as exc:
                if _absent(exc.args[0]):
                    continue
                raise LostError(exc.args[0].str()) from exc
            found[topic] = _identity(described.topic_id), len(described.partitions)
        return found

    def ready(self) -> bool:
        client = self._open()
        self._reported(client.poll, 0)
        return len(client) == 0

    def send(self, batches: list[Batch]) -> None:
        self.flush()
        client = self._open()
        if not self._in_transaction:
            self._call(client.begin_transaction)
            self._in_transaction = True
        waiting = deque(batches)
        batches.clear()
        while waiting:
            self._hand_over(client, waiting.popleft())
        self._reported(client.poll, 0)

    def flush(self) -> None:
        client, deadline_s = self._open(), time.monotonic() + PATIENCE_S
        while len(client):
            self._reported(client.flush, _SLICE_S)
            if len(client) and time.monotonic() > deadline_s:
                raise LostError(f"records were not taken within {PATIENCE_S:.0f} s")
        self._raise_failed()

    def commit(self) -> None:
        self.flush()
        if not self._in_transaction:
            self._call(self._open().begin_transaction)
        self._patiently(self._open().commit_transaction, PATIENCE_S)
        self._in_transaction = False

    def close(self) -> None:
        self._drop()
        self._admin = None

    def _hand_over(self, client: Producer, batch: Batch) -> None:
        found = list(records_of(batch.records))
        if any(headers for _, _, headers in found):
            self._hand_over_singly(client, batch, found)
            return
        records = [{"key": key, "value": value} for key, value, _ in found]
        try:
            taken = client.produce_batch(batch.topic, records, partition=batch.partition, on_delivery=self._report)
        except (KafkaException, BufferError) as exc:
            self._raise_failed()
            raise LostError(str(exc)) from exc
        if taken == len(records):
            return
        self._reported(client.poll, 0)  # reports: the client itself says only that its state is erroneous
        bad = next(record for record in records if "_error" in record)
        error: Any = bad["_error"]
        if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            raise RefusedError(error.code(), _alone(batch.topic, batch.partition, bad["key"] or b"", bad["value"]))
        raise _error(error)

    def _hand_over_singly(
        self, client: Producer, batch: Batch, records: Iterable[tuple[bytes, bytes | None, list[tuple[str, bytes]]]]
    ) -> None:
        """Hand over records of which some have headers: `produce_batch` takes none."""
        for key, value, headers in records:
            try:
                client.produce(
                    batch.topic, value, key, partition=batch.partition, headers=dict(headers), on_delivery=self._report
                )
            except KafkaException as exc:
                self._raise_failed()
                if exc.args[0].code() == KafkaError.MSG_SIZE_TOO_LARGE:
                    alone = _alone(batch.topic, batch.partition, key, value, headers)
                    raise RefusedError(KafkaError.MSG_SIZE_TOO_LARGE, alone) from exc
                raise _error(exc.args[0]) from exc
            except BufferError as exc:
                self._raise_failed()
                raise LostError(str(exc)) from exc

    def _report(self, error: KafkaError | None, message: Message) -> None:
        """Note why a record was not taken: one is the cause; those thrown away behind it may be reported before it."""
        if error is None or error.code() in _THROWN_AWAY or self._failed is not None:
            return
        self._failed = _error(error)
        if error.code() in (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE):
            headers = cast("Headers", message.headers() or ())
            alone = _alone(
                message.topic() or "", message.partition() or 0, message.key() or b"", message.value(), headers
            )
            self._failed = RefusedError(error.code(), alone)

    def _raise_failed(self) -> None:
        """Raise why a record was not taken: its transaction sends nothing more."""
        failed, self._failed = self._failed, None
        if failed is not None:
            raise failed

    def _reported(self, serve: Callable[[float], int], timeout_s: float) -> None:
        self._call(lambda: serve(timeout_s))
        self._raise_failed()

    def _patiently(self, step: Callable[[float], object], within_s: float) -> None:
        """Do a step of the transaction protocol that may be called again after a timeout, where it then goes on."""
        deadline_s = time.monotonic() + within_s
        while True:
            try:
                with _plainly(self._open()):
                    step(_SLICE_S)
            except KafkaException as exc:
                # retriable: the time was up; its code may be what the broker said last
                if not exc.args[0].retriable() or time.monotonic() > deadline_s:
                    self._raise_failed()
                    raise _error(exc.args[0]) from exc
            else:
                return

    def _call(self, step: Callable[[], object]) -> None:
        """Do a step; a fatal error (fenced) comes from whichever call is next."""
        try:
            with _plainly(self._open()):
                step()
        except KafkaException as exc:
            self._raise_failed()
            raise _error(exc.args[0]) from exc

    def _heard(self, error: KafkaError) -> None:
        """Log, now and then, that no broker answers; the client's other complaints are its own business."""
        now_s = time.monotonic()
        if error.code() == _DOWN and now_s - self._complained_s > _COMPLAIN_S:
            self._complained_s = now_s
            logging.getLogger("cdc").warning("Kafka at %s: no broker answers; waiting for one", self._servers)

    def _open(self) -> Producer:
        if self._client is None:
            raise BugError("no epoch was begun: nothing may be written")
        return self._client

    def _drop(self) -> None:
        """Throw away what waits and abort what is open; where that may not be (fenced), the next epoch does."""
        client, self._client = self._client, None
        open_, self._in_transaction = self._in_transaction, False
        if client is None:
            return
        client.purge(in_queue=True, in_flight=True, blocking=False)
        with warnings.catch_warnings(), suppress(KafkaException), _plainly(client):
            warnings.simplefilter("ignore", RuntimeWarning)
            if open_:
                client.abort_transaction(_CLOSE_S)
            client.close()
        self._failed = None  # also what it said of the records thrown away just now


class _Told:
    """Passes the client's log on. Only there does it tell that a connection or an answer was lost."""

    def __init__(self) -> None:
        self.of_interruption = False

    def log(self, _level: int, message: str, facility: str, *more: object) -> None:
        """Take the client's line, with logging's arguments, from within any call of it."""
        self.of_interruption |= facility in _INTERRUPTIONS
        log.debug(message, facility, *more)


@contextmanager
def _plainly(client: Producer) -> Iterator[None]:
    """Let a fatal error come out of the client as what it is, also where a report of ours was called after it."""
    try:
        yield
    except SystemError as exc:
        if isinstance(exc.__cause__, KafkaException):  # "returned a result with an exception set"
            raise exc.__cause__ from None
        # "returned NULL without setting an exception": the client lost it. Asked for a step, it says it again.
        client.begin_transaction()
        raise


def _error(error: KafkaError) -> RefusedError | LostError:
    code = error.code()
    if code == _FENCED:
        return RefusedError(code_of(codes.ProducerFencedError))
    return RefusedError(code) if code > 0 else LostError(error.str())


def _absent(error: KafkaError) -> bool:
    return error.code() in (
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001 - its public name
        KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001 - the same
    )


def _alone(topic: str, partition: int, key: bytes, value: bytes | None, headers: Headers = ()) -> Batch:
    """Return a batch of one record, as the sink names what is too large."""
    made = PlainBatches(
        lambda: None, lambda: None, lambda _: (1, None), most_records=1 << 30, most_bytes=1 << 60, batch_bytes=1 << 60
    )
    made.add(topic, key, value, headers)
    (batch,) = made.take()
    return batch._replace(partition=partition)


def _identity(topic_id: Uuid) -> str:
    """Return a topic's id as `sinks.client.brokers` writes it; empty where the broker has none."""
    found = uuid.UUID(bytes=base64.urlsafe_b64decode(f"{topic_id}=="))
    return str(found) if found.int else ""
