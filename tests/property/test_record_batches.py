"""What is sent to a broker is what others read: kafka-python's decoder and encoder are the oracles."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import example, given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2
from kafka.protocol.producer import ProduceRequest, ProduceResponse
from kafka.record.memory_records import MemoryRecords

from sinks.client.connection import answered
from sinks.client.produce_request import IMPLICIT, NEWEST, OLDEST, codes, request
from sinks.client.record_batch import CODECS, Identity, first, header, records_of
from sinks.producer.batches import Batch, Batches, PlainBatches, partition_of
from sinks.producer.batches import murmur2 as our_murmur2

TEXTS = st.one_of(
    st.binary(max_size=70), st.builds(bytes.__mul__, st.binary(min_size=1, max_size=3), st.integers(0, 900))
)
RECORDS = st.lists(st.tuples(TEXTS, st.one_of(st.none(), TEXTS)), min_size=1, max_size=80)
KINDS = pytest.mark.parametrize("kind", list(dict.fromkeys((PlainBatches, Batches))), ids=lambda kind: kind.__module__)
"""The plain ones, and those that are used here."""


def batches_of(kind: Any, records: Any, *, partitions: int = 1, batch_bytes: int = 1 << 30) -> list[Batch]:
    made = kind(
        list, list, lambda _: (partitions, None), most_records=1 << 30, most_bytes=1 << 30, batch_bytes=batch_bytes
    )
    for key, value in records:
        made.add("t", key, value)
    taken: list[Batch] = made.take()
    return taken


def _header(batch: Batch) -> bytes:
    return header(batch.records, batch.count, codec=0, at_ms=1, identity=Identity(1, 2), sequence=3)


def read(written: bytes) -> list[Any]:
    """The batches in it; all of it is one, or several."""
    found = MemoryRecords(written)
    assert found.valid_bytes() == len(written)
    return list(found)


WRITERS = st.tuples(
    st.builds(Identity, st.integers(0, 2**63 - 1), st.integers(0, 2**15 - 1)), st.integers(0, 2**31 - 1)
)


@KINDS
@pytest.mark.parametrize("name", CODECS)
@given(RECORDS, WRITERS, st.integers(0, 2**45))
def test_a_batch_is_read_back(kind: Any, name: str, records: Any, writer: tuple[Identity, int], at_ms: int) -> None:
    """By kafka-python: keys, values, offsets, who wrote it, a valid checksum, and what kind of batch it is."""
    identity, sequence = writer
    (batch,) = batches_of(kind, records)
    codec = CODECS[name]
    compressed = codec.compress(batch.records)
    made = header(compressed, batch.count, codec=codec.number, at_ms=at_ms, identity=identity, sequence=sequence)
    (found,) = read(made + compressed)
    assert found.validate_crc()
    assert (found.producer_id, found.producer_epoch, found.base_sequence) == (*identity, sequence)
    assert (found.is_transactional, found.is_control_batch) == (True, False)
    assert (found.compression_type, found.magic, found.base_offset) == (codec.number, 2, 0)
    assert (found.records_count, found.last_offset_delta) == (len(records), len(records) - 1)
    assert (found.first_timestamp, found.max_timestamp, found.timestamp_type) == (at_ms, at_ms, 0)
    read_back = [(each.key, each.value, each.offset, each.timestamp, each.headers) for each in found]
    assert read_back == [(key, value, n, at_ms, []) for n, (key, value) in enumerate(records)]


@given(st.binary(max_size=9000))
@example(bytes(200_000))
def test_blocks_of_lz4_do_not_depend_on_each_other(records: bytes) -> None:
    """Java reads no others (bit 5 of the flags behind the magic number); they are of 64 kB (4 in the next byte)."""
    frame = CODECS["lz4"].compress(records)
    assert frame[:4] == b"\x04\x22\x4d\x18"
    assert frame[4] & 0x20
    assert frame[5] >> 4 & 7 == 4


@given(RECORDS, st.data())
def test_a_checksum_is_of_all_behind_it(records: Any, data: st.DataObject) -> None:
    """A broker writes again what is before it."""
    (batch,) = batches_of(Batches, records)
    made = bytearray(_header(batch) + batch.records)
    at = data.draw(st.integers(0, len(made) - 1))
    made[at] ^= data.draw(st.integers(1, 255))
    stated = struct.unpack_from(">I", made, 17)[0]
    assert (crc32c(bytes(made[21:])) == stated) == (at < 17)


@KINDS
@given(RECORDS, st.integers(1, 5), st.integers(1, 300))
def test_batches_that_are_cut_have_all_records_in_order(
    kind: Any, records: Any, partitions: int, batch_bytes: int
) -> None:
    """Of each partition, however many batches they are cut into; a batch's offsets begin at 0."""
    found: dict[int, list[Any]] = {}
    for batch in batches_of(kind, records, partitions=partitions, batch_bytes=batch_bytes):
        (made,) = read(_header(batch) + batch.records)
        messages = list(made)
        assert [message.offset for message in messages] == list(range(batch.count))
        found.setdefault(batch.partition, []).extend((message.key, message.value) for message in messages)
    expected: dict[int, list[Any]] = {}
    for key, value in records:
        expected.setdefault((murmur2(key) & 0x7FFFFFFF) % partitions, []).append((key, value))
    assert found == expected


@KINDS
@given(RECORDS)
@example([(b"", None)])
@example([(b"", b"")])
@example([(b"k" * 64, b"v" * 9000), (b"", None)])
def test_the_first_record_of_a_batch_is_found(kind: Any, records: Any) -> None:
    (batch,) = batches_of(kind, records)
    assert first(batch.records) == (*records[0], [])
    assert list(records_of(batch.records)) == [(key, value, []) for key, value in records]


@KINDS
@given(RECORDS, st.lists(st.tuples(st.text(max_size=70), st.binary(max_size=200)), max_size=3))
def test_headers_are_read_back(kind: Any, records: Any, headers: list[tuple[str, bytes]]) -> None:
    """By kafka-python and by us, of each record its own; the topic's log has them too."""
    made = kind(
        list,
        list,
        lambda t: (1, "log" if t == "t" else None),
        most_records=999,
        most_bytes=1 << 30,
        batch_bytes=1 << 30,
    )
    expected = []
    for n, (key, value) in enumerate(records):
        of = headers if n % 2 else ()
        made.add("t", key, value, of)
        expected.append((key, value, list(of)))
    batches = made.take()
    for batch in batches:
        wanted = expected if batch.topic == "t" else [each for each in expected if each[1] is not None]
        (found,) = read(_header(batch) + batch.records)
        assert [(each.key, each.value, each.headers) for each in found] == wanted
        assert list(records_of(batch.records)) == wanted


@given(st.binary(max_size=40), st.integers(1, 2**31 - 1))
@example(b"", 1)
@example(b"", 7)
def test_a_key_is_where_java_puts_it(key: bytes, partitions: int) -> None:
    """By kafka-python's copy of Java's hash."""
    assert our_murmur2(key) == murmur2(key)
    assert partition_of(key, partitions) == (murmur2(key) & 0x7FFFFFFF) % partitions


@KINDS
@pytest.mark.parametrize("size", range(10))
@given(st.data())
def test_short_keys_are_where_java_puts_them(kind: Any, size: int, data: st.DataObject) -> None:
    """Whatever is left over of four bytes each, and where bytes are above 127, which are negative in Java."""
    keys = data.draw(st.lists(st.binary(min_size=size, max_size=size), min_size=1, max_size=9))
    for key in (*keys, b"\xff" * size, b"\x80" * size):
        (batch,) = batches_of(kind, [(key, None)], partitions=97)
        assert batch.partition == partition_of(key, 97) == (murmur2(key) & 0x7FFFFFFF) % 97


@pytest.mark.parametrize(
    ("key", "expected"),
    [(b"21", -973932308), (b"foobar", -790332482), (b"a-little-bit-long-string", -985981536),
     (b"a-little-bit-longer-string", -1486304829), (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
     (b"abc", 479470107)],
)  # fmt: skip
def test_the_hash_is_that_of_kafkas_own_tests(key: bytes, expected: int) -> None:
    """`UtilsTest.testMurmur2` of Apache Kafka."""
    assert our_murmur2(key) == expected & 0xFFFFFFFF


PIECES = st.tuples(st.integers(0, 2**31 - 1), st.binary(min_size=61, max_size=61), TEXTS)
SENT = st.dictionaries(
    st.text("täé.-_", min_size=1, max_size=130), st.lists(PIECES, min_size=1, max_size=4), max_size=4
)


NUMBERS = st.integers(0, 2**31 - 1)


@pytest.mark.parametrize("version", range(OLDEST, NEWEST + 1))
@given(SENT, st.tuples(st.text("cdc-ü", max_size=40), st.text("shop.ö", max_size=200)), NUMBERS, NUMBERS)
@example({f"topic{n}": [(p, b"h" * 61, b"r" * 40_000) for p in range(n)] for n in range(1, 4)}, ("cdc", "a.b"), 77, 30)
@example({f"t{n}": [(0, b"h" * 61, b"")] for n in range(130)}, ("", "a"), 0, 0)
@example({"t": [(p, b"h" * 61, b"") for p in range(130)]}, ("", "a"), 0, 0)
def test_a_request_is_the_clients_own(
    version: int, sent: Any, names: Any, correlation_id: int, timeout_ms: int
) -> None:
    """Byte for byte, in each version of it."""
    client_id, name = names
    made = request(
        version, sent, correlation_id=correlation_id, client_id=client_id, transactional_id=name, timeout_ms=timeout_ms
    )
    topics = ProduceRequest.TopicProduceData
    parts = topics.PartitionProduceData
    expected = ProduceRequest(
        version=version,
        transactional_id=name,
        acks=-1,
        timeout_ms=timeout_ms,
        topic_data=[
            topics(
                name=topic, partition_data=[parts(index=place, records=begin + rest) for place, begin, rest in pieces]
            )
            for topic, pieces in sent.items()
        ],
    )
    expected.with_header(correlation_id, client_id)
    assert b"".join(made) == expected.encode(framed=True, header=True)


def test_records_are_not_copied_into_a_request() -> None:
    """They are pieces of their own: joining them is left to who sends them."""
    records = bytes(1000)
    pieces = request(
        IMPLICIT, {"t": [(0, b"h" * 61, records)]}, correlation_id=1, client_id="c", transactional_id="i", timeout_ms=1
    )
    assert any(piece is records for piece in pieces)


FLEXIBLE = 9
CODES = st.integers(-1, 130)
SAID = st.dictionaries(
    st.text("täé.-_", min_size=1, max_size=130),
    st.dictionaries(NUMBERS, st.tuples(CODES, st.booleans(), st.booleans(), st.booleans()), min_size=1, max_size=4),
    max_size=4,
)
"""By topic and partition a code, and whether a record's error, a message and the new leader are said with it."""


def _answer(version: int, told: Any) -> bytes:
    topics = ProduceResponse.TopicProduceResponse
    parts = topics.PartitionProduceResponse
    leader, record = parts.LeaderIdAndEpoch, parts.BatchIndexAndErrorMessage

    def part(number: int, code: int, record_told: bool, message: bool, moved: bool) -> Any:
        made = parts(index=number, error_code=code, base_offset=7, log_append_time_ms=-1, log_start_offset=3)
        made.record_errors = [record(batch_index=1, batch_index_error_message="no")] if record_told else []
        made.error_message = "no" if message else None
        if moved and version >= 10:
            made.current_leader = leader(leader_id=3, leader_epoch=4)
        return made

    answer = ProduceResponse(
        version=version,
        responses=[
            topics(name=name, partition_responses=[part(number, *of) for number, of in partitions.items()])
            for name, partitions in told.items()
        ],
    )
    written: bytes = answer.encode()
    return written


@pytest.mark.parametrize("version", range(OLDEST, NEWEST + 1))
@given(SAID, st.data())
@example({f"topic{n}": dict.fromkeys(range(130), (0, False, False, False)) for n in range(130)}, None)
@example({"t": {0: (0, False, False, True), 1: (6, False, False, False)}}, None)
def test_the_codes_of_an_answer_are_those_the_client_reads(version: int, told: Any, data: Any) -> None:
    """Whatever is said with them; of one that ends early there are none, or all of them."""
    expected = [(name, [(number, of[0]) for number, of in partitions.items()]) for name, partitions in told.items()]
    answer = _answer(version, told)
    assert answered(version, answer)[0] == expected
    usual = version >= FLEXIBLE and not any(any(of[1:]) for partitions in told.values() for of in partitions.values())
    assert codes(version, answer) == expected if usual else codes(version, answer) in (None, expected)
    if data is not None:
        try:
            found = answered(version, answer[: data.draw(st.integers(0, len(answer)))])[0]
        except (ValueError, IndexError, struct.error):
            return
        assert found == expected
