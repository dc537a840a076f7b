"""What the sink makes of its producer's errors, and when it sends. With a twin: no broker can be asked for all that."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from unittest.mock import MagicMock

import pytest
from kafka import errors as codes

from cdc.config.kafka_config import KafkaConfig, LogConfig
from cdc.encode.table_log import log_of
from cdc.machine import elapsed
from cdc.model.errors import (
    BugError,
    CdcError,
    ConfigError,
    FencedError,
    OperatorError,
    RetryableError,
    TooLargeError,
    TopicError,
)
from cdc.model.state import Phase, State
from sinks import kafka
from sinks.client.connection import LostError
from sinks.client.record_batch import BEHIND, CODECS, HEADER
from sinks.kafka import KafkaSink
from sinks.producer.batches import Batch, PlainBatches
from sinks.producer.retries import RefusedError
from sinks.topics.records.positions import Standing
from tests.text_tables import text_table

A = text_table("a", ["id"])
TOPIC = "p.s.a"
STATE = State(connector="c", identity={"database": "d"}, phase=Phase.STREAM, epoch=1, offset={"at": 7}, commit=7)
FENCED = pytest.mark.parametrize("code", [codes.ProducerFencedError.errno, codes.InvalidProducerEpochError.errno])
TOO_LARGE = pytest.mark.parametrize("code", [codes.MessageSizeTooLargeError.errno, codes.RecordListTooLargeError.errno])
Step = Callable[[KafkaSink], object]


class Twin:
    """A producer that keeps what it is handed, and fails as it is told to."""

    def __init__(self) -> None:
        self.did: list[str] = []
        self.sent: list[Sequence[Batch]] = []
        self.fails: dict[str, Exception] = {}
        self.of_partitions = 1
        self.busy = self.interrupted = self.fences_itself = False

    def _do(self, step: str) -> None:
        self.did.append(step)
        if step in self.fails:
            raise self.fails[step]

    def begin_epoch(self, within_s: float) -> None:
        self._do("begin_epoch")
        self.interrupted = False

    def partitions(self, topic: str, beside: Sequence[str] = ()) -> int:
        self._do("partitions")
        return self.of_partitions

    def ready(self) -> bool:
        self._do("ready")
        return not self.busy

    def send(self, batches: Sequence[Batch]) -> None:
        self.sent.append(batches)
        self._do("send")

    def flush(self) -> None:
        self._do("flush")

    def commit(self) -> None:
        self._do("commit")

    def close(self) -> None:
        self._do("close")

    def counts(self) -> list[int]:
        """How many records each request has had."""
        return [sum(batch.count for batch in batches) for batches in self.sent]


@pytest.fixture
def twin(monkeypatch: pytest.MonkeyPatch) -> Twin:
    """The producer of the sinks."""
    made = Twin()
    monkeypatch.setattr(kafka, "open_producer", lambda *_, **__: made)
    monkeypatch.setattr(kafka, "read_standing", lambda *_, **__: Standing(None, 0, None))
    return made


def _sink(options: dict[str, str] | None = None, log: LogConfig | None = None) -> KafkaSink:
    config = KafkaConfig(bootstrap_servers="nowhere:1", topic_prefix="p", options=options or {}, log=log)
    return KafkaSink(config, "c")


@pytest.fixture
def sink(twin: Twin) -> Iterator[KafkaSink]:
    """A fenced one."""
    made = _sink()
    made.fence()
    yield made
    made.close()


def _write(sink: KafkaSink) -> None:
    sink.write(TOPIC, b"k", b"v")


def _commit(sink: KafkaSink) -> None:
    _write(sink)
    sink.commit(STATE)


def _look(sink: KafkaSink) -> None:
    _write(sink)
    list(sink.records(A))


STEPS: dict[str, Step] = {
    "begin_epoch": lambda sink: sink.fence(),
    "partitions": _write,
    "send": _commit,
    "flush": _look,
    "commit": _commit,
}
ANY_STEP = pytest.mark.parametrize("step", STEPS)


def _raised(sink: KafkaSink, twin: Twin, step: str, error: Exception) -> CdcError:
    """What becomes of a producer's error in a step."""
    twin.fails[step] = error
    with pytest.raises(CdcError) as raised:
        STEPS[step](sink)
    assert raised.value.__cause__ is error
    twin.fails.clear()
    return raised.value


# ---- errors ----


@ANY_STEP
@FENCED
def test_a_fencing_is_another_copys(sink: KafkaSink, twin: Twin, step: str, code: int) -> None:
    """The operator runs one copy; nothing is tried again."""
    error = _raised(sink, twin, step, RefusedError(code))
    assert type(error) is FencedError
    assert error.message.startswith("another copy of connector c has started")


TIMEOUT_S = KafkaConfig(bootstrap_servers="x:9092").transaction_timeout_s


class Clock:
    """What `cdc.machine.elapsed` looks at; one of its clocks may stand still."""

    CLOCK_MONOTONIC = 1

    def __init__(self, monkeypatch: pytest.MonkeyPatch, stopped: str = "") -> None:
        self.now_s, self._stopped = 1000.0, stopped
        monkeypatch.setattr(elapsed, "time", self)

    def clock_gettime(self, _which: int) -> float:
        return 0.0 if self._stopped == "asleep too" else self.now_s

    def time(self) -> float:
        return 0.0 if self._stopped == "day" else self.now_s


@FENCED
@pytest.mark.parametrize("stopped", ["", "asleep too", "day"])
def test_a_fencing_may_be_the_brokers_where_a_transaction_took_long(
    sink: KafkaSink, twin: Twin, code: int, stopped: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends those that run out in the same way as another copy would: that is tried again, and said by its name.

    By whichever clock: a machine was asleep, or the time of day was set.
    """
    clock = Clock(monkeypatch, stopped)
    _write(sink)
    clock.now_s += TIMEOUT_S - 1
    assert type(_raised(sink, twin, "commit", RefusedError(code))) is FencedError
    clock.now_s += 1
    error = _raised(sink, twin, "commit", RefusedError(code))
    assert type(error) is RetryableError
    assert f"was open for {TIMEOUT_S:g} s, and brokers end it after {TIMEOUT_S:g} s" in error.message
    assert "another copy" not in error.message


@FENCED
def test_how_long_a_transaction_took_is_forgotten_with_it(
    sink: KafkaSink, twin: Twin, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind a commit the next one counts, however long nothing was written."""
    clock = Clock(monkeypatch)
    _commit(sink)
    clock.now_s += TIMEOUT_S
    assert type(_raised(sink, twin, "commit", RefusedError(code))) is FencedError
    _write(sink)
    clock.now_s += TIMEOUT_S
    twin.interrupted, twin.fails["begin_epoch"] = True, RefusedError(code)
    with pytest.raises(OperatorError, match="another copy"):
        _commit(sink)


@FENCED
def test_a_fencing_may_be_its_own(sink: KafkaSink, twin: Twin, code: int) -> None:
    """What began the epoch was sent twice, and the second copy has come."""
    twin.fences_itself = True
    assert type(_raised(sink, twin, "commit", RefusedError(code))) is RetryableError


def test_a_transaction_that_may_not_take_so_long_is_the_operators(sink: KafkaSink, twin: Twin) -> None:
    """It says what to set on the brokers."""
    error = _raised(sink, twin, "begin_epoch", RefusedError(codes.InvalidTransactionTimeoutError.errno))
    assert type(error) is OperatorError
    assert "transaction.max.timeout.ms=" in str(error.hint)


@ANY_STEP
@pytest.mark.parametrize(
    "code",
    [
        codes.TopicAuthorizationFailedError.errno,
        codes.ClusterAuthorizationFailedError.errno,
        codes.TransactionalIdAuthorizationFailedError.errno,
    ],
)
def test_what_is_not_allowed_is_the_operators(sink: KafkaSink, twin: Twin, step: str, code: int) -> None:
    """It says what the user needs."""
    error = _raised(sink, twin, step, RefusedError(code))
    assert type(error) is OperatorError
    assert "not allowed" in error.message
    assert "WRITE" in str(error.hint)


@ANY_STEP
def test_a_loss_is_tried_again(sink: KafkaSink, twin: Twin, step: str) -> None:
    """It says who does not answer, and what was being done."""
    error = _raised(sink, twin, step, LostError("broker:9092: no answer within 60 s"))
    assert type(error) is RetryableError
    assert error.message.startswith("Kafka at nowhere:1: ")
    assert error.message.endswith(": broker:9092: no answer within 60 s")


@ANY_STEP
@pytest.mark.parametrize("code", [-1, 3, 6, 45, 48, 49, 51, 59, 67, 87, 120, 999])
def test_what_else_is_refused_is_tried_again(sink: KafkaSink, twin: Twin, step: str, code: int) -> None:
    """In a new epoch, from the position."""
    assert type(_raised(sink, twin, step, RefusedError(code))) is RetryableError


@pytest.mark.parametrize("topic", ["p.s.a", "p.both"])
def test_a_topic_that_may_not_be_written_is_its_tables_matter(sink: KafkaSink, twin: Twin, topic: str) -> None:
    """As `check` says at a start, also of one that several share; the connector's own are the matter of all tables."""
    sink._refusals.of_tables = {"p.s.a", "p.both"}
    error = _raised(sink, twin, "send", RefusedError(29, Batch(topic, 0, 1, b"a row of somebody's")))
    assert isinstance(error, TopicError)
    assert (error.topic, f"--operation Write --topic {topic}" in str(error.hint)) == (topic, True)
    own = _raised(sink, twin, "send", RefusedError(29, Batch("p.schema", 0, 1, b"")))
    assert (type(own), "p.schema" in own.message) == (OperatorError, True)


def test_an_error_of_a_topic_names_it(sink: KafkaSink, twin: Twin) -> None:
    """And nothing that is in it."""
    error = _raised(sink, twin, "send", RefusedError(29, Batch("p.s.secret", 0, 1, b"a row of somebody's")))
    assert "p.s.secret" in error.message
    assert "somebody" not in repr(error)


def test_a_clock_that_the_topic_does_not_take_is_named(sink: KafkaSink, twin: Twin) -> None:
    """It is tried again, as clocks are set; the hint names what to look at, and what brokers have as they come."""
    error = _raised(sink, twin, "send", RefusedError(32, Batch(TOPIC, 0, 1, b"a row of somebody's")))
    assert type(error) is RetryableError
    assert "clock" in error.message
    assert f"--entity-name {TOPIC} --add-config message.timestamp.after.max.ms=3600000," in str(error.hint)


def test_a_producer_that_is_not_ready_for_the_question_fails_as_well(
    sink: KafkaSink, twin: Twin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers are read there, too."""
    twin.fails["ready"] = LostError("gone")
    with pytest.raises(RetryableError, match="writing records: gone"):
        _gather(sink, 2000)


def test_nothing_is_written_before_fencing(twin: Twin) -> None:
    """There would be nobody to write it."""
    with pytest.raises(BugError, match="not fenced"):
        _write(_sink())


@pytest.mark.parametrize("option", ["compression.type", "compression.codec"])
def test_a_compression_nobody_knows_is_the_users(option: str) -> None:
    """It says which there are, before anything is connected to."""
    with pytest.raises(ConfigError, match="snappy is not known") as refused:
        _sink({option: "snappy"})
    assert refused.value.hint == "known: none, gzip, lz4, zstd"


# ---- records that are too large ----


def _batch(key: bytes, value: bytes | None, *, copies: int = 1, topic: str = TOPIC) -> Batch:
    made = PlainBatches(
        lambda: None, lambda: None, lambda _: (1, None), most_records=9, most_bytes=9999, batch_bytes=9999
    )
    for _ in range(copies):
        made.add(topic, key, value)
    return made.take()[0]


@TOO_LARGE
@pytest.mark.parametrize("value", [b"a row of somebody's", None])
def test_a_record_the_broker_refuses_is_given_back(sink: KafkaSink, twin: Twin, code: int, value: bytes | None) -> None:
    """It may become a dead letter; the message has its size, not what is in it."""
    batch = _batch(b"somebody's key", value)
    error = _raised(sink, twin, "flush", RefusedError(code, batch))
    assert isinstance(error, TooLargeError)
    assert (error.topic, error.key, error.value) == (TOPIC, b"somebody's key", value or b"")
    size = 14 + len(value or b"")
    assert error.message == f"a record of {size} bytes is too large for topic {TOPIC} (its key has 14 bytes)"
    assert f"--entity-name {TOPIC} --add-config max.message.bytes=1048588" in str(error.hint), "no less as brokers have"
    assert "somebody" not in str(error)


@TOO_LARGE
def test_a_record_of_a_log_is_given_back_for_its_table(twin: Twin, code: int) -> None:
    """Whose dead letter it becomes; what is to be set is the log's."""
    sink = _sink(log=LogConfig(tables=("*.*",), retention="forever"))
    sink.fence()
    log = log_of(TOPIC)
    _write(sink)
    error = _raised(sink, twin, "flush", RefusedError(code, _batch(b"k", b"v", topic=log)))
    assert isinstance(error, TooLargeError)
    assert error.topic == TOPIC
    assert f"--entity-name {log} " in str(error.hint)


@TOO_LARGE
def test_records_the_broker_refuses_together_are_tried_apart(sink: KafkaSink, twin: Twin, code: int) -> None:
    """Their topic takes less than it said: the next session asks for its limit."""
    error = _raised(sink, twin, "flush", RefusedError(code, _batch(b"k", b"v", copies=2)))
    assert type(error) is RetryableError
    assert f"topic {TOPIC}: its max.message.bytes was lowered" in error.message


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("limit", [300, 3_000, 200_000])
def test_records_are_sent_together_only_where_they_fit_together(twin: Twin, codec: str, limit: int) -> None:
    """A topic's limit is for all that is sent; above it they would be refused however often they are tried."""
    sink = _sink({"compression.type": codec})
    sink._smallest_limit = limit
    sink.fence()
    source = random.Random(1)
    for size in (10, 50, 90, 190, limit // 3, limit // 2 + 9) * 6:
        sink.write(TOPIC, b"k", source.randbytes(size))
    sink.commit(STATE)
    batches = [batch for taken in twin.sent for batch in taken]
    assert sum(batch.count for batch in batches) == 37
    sizes = [(batch.count, HEADER.size + BEHIND.size + len(CODECS[codec].compress(batch.records))) for batch in batches]
    assert max((size for count, size in sizes if count > 1), default=0) <= limit


@pytest.mark.parametrize(("size", "sent"), [(900, True), (1100, False)])
def test_a_record_above_what_is_ever_sent_is_not(twin: Twin, size: int, sent: bool) -> None:
    """Brokers would end the connection."""
    sink = _sink({"message.max.bytes": "1000"})
    sink.fence()
    sink.write(TOPIC, b"k", b"v" * size)
    if sent:
        sink.commit(STATE)
    else:
        with pytest.raises(TooLargeError) as refused:
            sink.commit(STATE)
        assert (refused.value.topic, refused.value.key, refused.value.value) == (TOPIC, b"k", b"v" * size)
    assert bool(twin.sent) == sent


# ---- when it sends ----


def _gather(sink: KafkaSink, count: int, size: int = 10) -> None:
    for n in range(count):
        sink.write(TOPIC, b"%d" % n, b"v" * size)


@pytest.fixture
def small(sink: KafkaSink, monkeypatch: pytest.MonkeyPatch) -> KafkaSink:
    """One to which 40 records or 1000 bytes are many, and 5000 bytes too many."""
    monkeypatch.setattr(kafka, "_REQUEST_RECORDS", 40)
    monkeypatch.setattr(kafka, "_PARTITION_RECORDS", 20)
    monkeypatch.setattr(kafka, "_REQUEST_BYTES", 1000)
    monkeypatch.setattr(kafka, "_WAITING_BYTES", 5000)
    sink.fence()
    return sink


def test_what_waits_is_sent_as_soon_as_nothing_is_on_its_way(small: KafkaSink, twin: Twin) -> None:
    """Once there is enough for a request."""
    _gather(small, 39)
    assert twin.counts() == []
    _gather(small, 42)
    assert twin.counts() == [40, 40]


def test_more_is_gathered_while_something_is_on_its_way(small: KafkaSink, twin: Twin) -> None:
    """It is asked for now and then, not for each record."""
    twin.busy = True
    _gather(small, 119)
    assert (twin.counts(), twin.did.count("ready")) == ([], 2)
    twin.busy = False
    _gather(small, 1)
    assert twin.counts() == [120]


def test_no_more_is_gathered_than_memory_is_for(small: KafkaSink, twin: Twin) -> None:
    """Then it is sent regardless, which waits for what was sent before."""
    twin.busy = True
    _gather(small, 49, size=100)
    assert twin.counts() == []
    _gather(small, 1, size=100)
    assert twin.counts() == [50]
    assert small.pending()[0] == 50


def test_of_many_partitions_more_is_sent_at_once(small: KafkaSink, twin: Twin) -> None:
    """Each batch has its cost: there are some records to one, or the next look is waited for."""
    twin.of_partitions = 10
    small.fence()
    _gather(small, 199, size=1)
    assert (twin.counts(), twin.did.count("ready")) == ([], 0)
    _gather(small, 1, size=1)
    assert twin.counts() == [200]
    assert len(twin.sent[0]) == 10


def test_a_commit_sends_the_rest_with_the_position_last(small: KafkaSink, twin: Twin) -> None:
    """All that waits is sent, whether a request is in flight or not."""
    twin.busy = True
    _gather(small, 50)
    twin.did.clear()
    small.commit(STATE)
    assert twin.counts() == [51]
    assert twin.sent[0][-1].topic == small.position_topic
    assert [step for step in twin.did if step != "partitions"] == ["send", "flush", "commit"]
    assert small.pending() == (0, 0)


# ---- epochs ----


def test_an_interrupted_epoch_is_not_gone_on_with(sink: KafkaSink, twin: Twin, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one is begun once the commit is done; the position topic must have what was committed."""
    monkeypatch.setattr(kafka, "read_standing", lambda *_, **__: Standing(STATE, 1, None))
    _commit(sink)
    assert twin.did[-1] == "commit"
    twin.interrupted = True
    _commit(sink)
    assert twin.did[-2:] == ["commit", "begin_epoch"]
    assert not twin.interrupted


@pytest.mark.parametrize("found", [None, STATE.next()])
def test_a_copy_that_came_between_is_noticed(
    sink: KafkaSink, twin: Twin, found: State | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new epoch has shut it out, but what it has committed is there."""
    monkeypatch.setattr(kafka, "read_standing", lambda *_, **__: Standing(found, 1, None))
    twin.interrupted = True
    with pytest.raises(OperatorError, match="another copy of connector c has started"):
        _commit(sink)


def test_a_topic_of_messages_is_looked_for_again_behind_each_fence(
    sink: KafkaSink, twin: Twin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was deleted ends the session; what knew it from before would wait for it for ever."""
    made: list[str] = []
    there = MagicMock()
    there.__enter__.return_value.check = lambda wanted: made.extend(topic.name for topic in wanted) or []
    monkeypatch.setattr(kafka, "Topics", lambda *_: there)
    for _ in range(2):
        for _ in range(2):
            assert sink.routed_topic("outbox.event", "order") == "outbox.event.order"
        sink.fence()
    assert made == ["outbox.event.order"] * 2


def test_what_waited_is_forgotten_with_its_producer(sink: KafkaSink, twin: Twin) -> None:
    """A session begins with nothing."""
    _write(sink)
    sink.fence()
    assert sink.pending() == (0, 0)
    sink.commit(STATE)
    assert twin.counts() == [1]


def test_what_is_described_since_the_fence_is_kept(sink: KafkaSink) -> None:
    """A table that has published in this session is none of which nothing was published."""
    sink.keep_schema(b"k", b"described")
    assert sink.kept_schemas() == {b"k": b"described"}
