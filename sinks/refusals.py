"""What it means that brokers refuse a request of a connector's producer, and what to do about it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from kafka import errors as codes

from cdc.config.kafka_config import KafkaConfig
from cdc.formats.reading import Reading
from cdc.model.errors import CdcError, FencedError, OperatorError, RetryableError, TooLargeError, TopicError
from cdc.model.hints import configure, grant
from sinks.client.record_batch import first
from sinks.producer.batches import Batch
from sinks.producer.retries import FENCED, RefusedError
from sinks.topics.records.table_logs import TableLogs
from sinks.topics.topics import BY_CLOCK

LARGEST_REQUEST: Final = 100_000_000
"""A record of more bytes is refused before it is sent: brokers end the connection at 104,857,600 (their default)."""

_FORBIDDEN: Final = {
    codes.TopicAuthorizationFailedError.errno,
    codes.ClusterAuthorizationFailedError.errno,
    codes.TransactionalIdAuthorizationFailedError.errno,
}
_AS_IT_COMES: Final = 1_048_588
"""Brokers' own max.message.bytes: no topic needs less."""
_TOO_LARGE: Final = {codes.MessageSizeTooLargeError.errno, codes.RecordListTooLargeError.errno}


class Refusals:
    """Makes errors of ours of one connector's refusals."""

    def __init__(self, config: KafkaConfig, connector: str, reading: Reading, table_logs: TableLogs) -> None:
        self._config, self._connector = config, connector
        self._reading, self._table_logs = reading, table_logs
        self._servers = config.bootstrap_servers
        self.of_tables: Collection[str] = ()
        """The topics of tables: what is refused of one is a matter of its tables alone."""

    def of(self, error: RefusedError, doing: str, *, open_s: float, fences_itself: bool) -> CdcError:
        """Return what is wrong. The transaction has been open for `open_s`.

        `fences_itself`: the producer may have been refused for an older epoch of its own.
        """
        batch = error.batch
        where = (
            f"Kafka at {self._servers}: {doing}"
            if batch is None
            else f"Kafka at {self._servers}: {doing}: topic {batch.topic}"
        )
        if error.code in FENCED and open_s >= self._config.transaction_timeout_s:  # they fence as a copy would
            return self._ended_by_the_brokers(where, open_s)
        if error.code in FENCED and not fences_itself:
            return self.superseded()
        if error.code in _TOO_LARGE and batch is not None:
            if batch.count == 1:
                return self.too_large(batch)
            return RetryableError(f"{where}: its max.message.bytes was lowered: going on with smaller batches")
        if error.code == codes.InvalidTransactionTimeoutError.errno:
            return OperatorError(
                f"{where}: the connector's transactions may take {self._config.transaction_timeout_s:g} s, the brokers "
                "allow less",
                hint="set transaction.max.timeout.ms=900000 in each broker's server.properties, and restart it; or "
                "sink.transaction_timeout_s to less",
            )
        if error.code == codes.InvalidProducerIdMappingError.errno:
            return RetryableError(
                f"{where}: the brokers have forgotten the connector's transactional.id: there was nothing to write for "
                "longer than their transactional.id.expiration.ms",
                hint="nothing is lost: the connector reads its position and goes on",
            )
        if error.code == codes.InvalidTimestampError.errno and batch is not None:
            return RetryableError(
                f"{where}: the broker's clock and this machine's differ by more than the topic takes "
                f"({', '.join(BY_CLOCK)}): {error}",
                hint="nothing is lost: date -u on both machines tells whose clock is wrong; if neither is, "
                f"{configure(self._servers, batch.topic, ','.join(f'{name}={ms}' for name, ms in BY_CLOCK.items()))}",
            )
        unwritten = batch if error.code == codes.TopicAuthorizationFailedError.errno else None
        if unwritten is not None and (topic := self._table_logs.written_for(unwritten.topic)) in self.of_tables:
            return TopicError(
                f"{where}: this user may not WRITE to it",
                hint=grant(self._servers, self._config.options, ["Write"], unwritten.topic),
                topic=topic,
            )
        if error.code in _FORBIDDEN:
            return OperatorError(
                f"{where}: not allowed: {error}",
                hint="the user needs WRITE on the prefix’ topics and on its transactional.id",
            )
        return RetryableError(f"{where}: {error}")

    def too_large(self, batch: Batch) -> TooLargeError:
        """Name the record that a batch has alone."""
        key, value, headers = first(batch.records)
        size = len(key) + len(value or b"")
        return TooLargeError(
            f"a record of {size} bytes is too large for topic {batch.topic} (its key has {len(key)} bytes)",
            hint=configure(self._servers, batch.topic, f"max.message.bytes={max(2 * size, _AS_IT_COMES)}")
            if size < LARGEST_REQUEST
            else f"no broker takes more than its socket.request.max.bytes; sink.options: message.max.bytes "
            f"({LARGEST_REQUEST} bytes) is what is sent at most",
            topic=self._table_logs.written_for(batch.topic),
            key=key,
            value=self._reading.event(value, headers) or b"",
        )

    def superseded(self) -> FencedError:
        """Say that another copy of the connector goes on."""
        return FencedError(
            f"another copy of connector {self._connector} has started and fenced this one off",
            hint="nothing is lost, the other copy goes on; started again, this one stands by while the other follows",
        )

    def _ended_by_the_brokers(self, where: str, open_s: float) -> RetryableError:
        allowed_s = self._config.transaction_timeout_s
        return RetryableError(
            f"{where}: a transaction was open for {open_s:.0f} s, and brokers end it after {allowed_s:g} s "
            "(sink.transaction_timeout_s): what was in it is read again",
            hint="nothing is lost. Was the machine asleep, or its clock set? If a source transaction takes longer to "
            f"write, give it more: sink.transaction_timeout_s: {min(3 * allowed_s, 86_400):g}, and no less as the "
            "brokers' transaction.max.timeout.ms",
        )
