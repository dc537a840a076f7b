"""Consumers are judged by their commits, and Kafka's records of commits are read as Kafka writes them."""

from __future__ import annotations

import re
import struct
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.cli.inspecting.tail import _topics
from cdc.config.config import ConnectorConfig
from cdc.config.kafka_config import KafkaConfig, LogConfig
from cdc.config.source_config import SourceConfig
from cdc.encode.table_log import log_of
from cdc.model.consumers import GroupOffsets, Groups, PartitionOffset, Unread
from cdc.model.state import Phase, State
from cdc.monitor.burrow import WINDOW_S, Commit, Status, judge, worst
from cdc.monitor.consumers import judged, topics_of
from sinks.consumers.groups import committed_ms
from sinks.consumers.offset_commits import OffsetCommit, parse, partition_of
from sinks.topics.names import table_topic

NOW = 1_700_000_000_000
S = 1000


def _window(*offsets_and_lags: tuple[int, int], last_ago_s: int = 1, every_s: int = 10) -> list[Commit]:
    count = len(offsets_and_lags)
    return [
        Commit(NOW - (last_ago_s + every_s * (count - 1 - at)) * S, offset, lag)
        for at, (offset, lag) in enumerate(offsets_and_lags)
    ]


@pytest.mark.parametrize(
    ("commits", "unread", "since_s", "status"),
    [
        ([], 0, None, Status.OK),
        (_window((1, 5), (1, 5), (1, 6)), 0, None, Status.OK),
        (_window((1, 5), (1, 5), (1, 6)), 6, 100, Status.STALLED),
        (_window((1, 5), (2, 5), (3, 6)), 6, 100, Status.SLOW),
        (_window((1, 5), (2, 5), (3, 5)), 6, 100, Status.SLOW),
        (_window((1, 5), (3, 4), (4, 6)), 6, 100, Status.OK),
        (_window((5, 5), (3, 7), (4, 6)), 6, 100, Status.REWOUND),
        (_window((1, 5), (9, 0), (9, 6)), 6, 100, Status.OK),
        (_window((1, 5), (2, 5), (3, 5), last_ago_s=21), 6, 100, Status.STOPPED),
        (_window((1, 5), (9, 0), (9, 0), last_ago_s=21), 6, 100, Status.STOPPED),
        (_window((1, 5), (9, 0), (9, 0), last_ago_s=21), 6, 3, Status.OK),
        (_window((1, 5), (2, 5), (3, 5), last_ago_s=20), 6, 100, Status.SLOW),
        ([], 6, 100, Status.UNKNOWN),
        (_window((1, 5)), 6, 100, Status.UNKNOWN),
        ([], 6, WINDOW_S + 1, Status.STOPPED),
        (_window((1, 5), last_ago_s=300), 6, WINDOW_S + 1, Status.STOPPED),
        (_window((1, 5), last_ago_s=5), 6, WINDOW_S + 1, Status.UNKNOWN),  # it has just begun to read an old topic
        ([], 6, None, Status.UNKNOWN),
    ],
)
def test_rules(commits: list[Commit], unread: int, since_s: int | None, status: Status) -> None:
    since_ms = None if since_s is None else NOW - since_s * S
    assert judge(commits, unread=unread, unread_since_ms=since_ms, now_ms=NOW) is status


def test_only_the_newest_commits_count() -> None:
    """One without lag that has left the window excuses nothing."""
    commits = _window((1, 0), *((2, 5) for _ in range(10)))
    assert judge(commits, unread=5, unread_since_ms=NOW - 999 * S, now_ms=NOW) is Status.STALLED


def test_the_worst_of_a_group() -> None:
    assert worst([Status.OK, Status.STOPPED, Status.SLOW]) is Status.STOPPED
    assert worst([]) is Status.OK


def _at(
    partition: int,
    offset: int,
    records: int,
    *,
    end: int,
    ago_s: int = 60,
    commits: tuple[tuple[int, int, int], ...] = (),
) -> PartitionOffset:
    at_ms = NOW - ago_s * S if records else None
    unread = Unread(records=records, exact=True, source_ms=at_ms, written_ms=at_ms)
    return PartitionOffset(
        topic="shop.public.t", partition=partition, offset=offset, begin=5, end=end, unread=unread, commits=commits
    )


def test_a_group_is_as_late_as_its_latest_partition() -> None:
    partitions = [_at(0, 10, 0, end=11), _at(1, 10, 4, end=15), _at(2, 12, 2, end=15, ago_s=90)]
    groups = Groups(groups=[GroupOffsets(group="g", state="Stable", partitions=partitions)])
    (found,) = judged("shop", groups, now_ms=NOW, source_now_ms=None).groups
    assert (found.records, found.seconds, found.exact) == (6, 90.0, True)
    assert [of.seconds for of in found.topics[0].partitions] == [0.0, 60.0, 90.0]
    (late,) = judged("shop", groups, now_ms=NOW, source_now_ms=NOW + 5 * S).groups
    assert late.seconds == 95.0  # by the source's clock


def test_a_marker_is_no_lag() -> None:
    """A consumer commits behind its last record, and the transaction's marker comes behind that."""
    commits = tuple((NOW - (21 - at) * S, 14, 15) for at in range(0, 20, 5))
    groups = Groups(
        groups=[GroupOffsets(group="g", state="Stable", partitions=[_at(0, 14, 3, end=20, commits=commits)])]
    )
    (found,) = judged("shop", groups, now_ms=NOW, source_now_ms=None).groups
    assert found.status is Status.OK


def test_no_status_is_made_up_where_commits_cannot_be_read() -> None:
    partitions = [_at(0, 10, 0, end=11), _at(1, 10, 4, end=15, ago_s=9_999)]
    groups = Groups(groups=[GroupOffsets(group="g", state="Empty", partitions=partitions)], no_commits="not allowed")
    (found,) = judged("shop", groups, now_ms=NOW, source_now_ms=None).groups
    assert [of.status for of in found.topics[0].partitions] == [Status.OK, Status.UNKNOWN]
    assert found.seconds == 9_999


@pytest.mark.parametrize(
    ("offset", "of_another", "noted"),
    [(4, False, "gone"), (12, True, "made again"), (12, False, None), (6, False, None)],
)
def test_an_offset_that_the_topic_does_not_have(offset: int, of_another: bool, noted: str | None) -> None:
    """12 may be where a reader of what is not committed yet stands: the stable end is 9."""
    partition = replace(_at(0, offset, 0, end=9), of_another=of_another)
    groups = Groups(groups=[GroupOffsets(group="g", state="", partitions=[partition])])
    (found,) = judged("shop", groups, now_ms=NOW, source_now_ms=None).groups
    note = found.topics[0].partitions[0].note
    assert note is None if noted is None else noted in (note or "")
    assert (found.status is Status.OK) != of_another


def test_a_group_of_a_topic_that_was_made_again_reads_nothing() -> None:
    """It had lag 0, and was ok, though its consumer is given nothing before its old offset, or begins behind it."""
    partition = replace(_at(0, 12, 4, end=9, ago_s=3600), of_another=True)
    groups = Groups(groups=[GroupOffsets(group="g", state="Empty", partitions=[partition])])
    (found,) = judged("shop", groups, now_ms=NOW, source_now_ms=None).groups
    assert (found.records, found.seconds, found.status) == (4, 3600.0, Status.STOPPED)


# --- Kafka's records --------------------------------------------------------------------------------------------------


def _text(text: str) -> bytes:
    return struct.pack(">h", len(text.encode())) + text.encode()


def _key(group: str, topic: str, partition: int, version: int = 1) -> bytes:
    return struct.pack(">h", version) + _text(group) + _text(topic) + struct.pack(">i", partition)


@pytest.mark.parametrize(
    "value",
    [
        struct.pack(">hq", 0, 42) + _text("by") + struct.pack(">q", NOW),
        struct.pack(">hq", 1, 42) + _text("") + struct.pack(">qq", NOW, NOW + 1),
        struct.pack(">hq", 2, 42) + _text("by") + struct.pack(">q", NOW),
        struct.pack(">hqi", 3, 42, 7) + _text("by") + struct.pack(">q", NOW),
        struct.pack(">hqi", 3, 42, 7) + struct.pack(">hq", -1, NOW),
        struct.pack(">hqi", 4, 42, 7) + b"\x03by" + struct.pack(">q", NOW) + b"\0",
        struct.pack(">hqi", 4, 42, 7) + b"\xad\x02" + b"x" * 300 + struct.pack(">q", NOW) + b"\0",
    ],
)
def test_a_commit_is_read_in_every_form(value: bytes) -> None:
    assert parse(_key("g", "shop.public.t", 3), value) == OffsetCommit("g", "shop.public.t", 3, 42, NOW)


@given(st.binary(max_size=60), st.binary(max_size=60))
def test_any_bytes_are_read_or_left(key: bytes, value: bytes) -> None:
    parse(key, value)
    parse(_key("g", "t", 0), value)
    assert parse(struct.pack(">h", 2) + key, value) is None
    assert parse(_key("g", "t", 0), None) is None


@pytest.mark.parametrize(
    ("group", "of"),
    [
        ("", 0),
        ("test", 48),
        ("console-consumer-56789", 26),
        ("größe", 7),
        ("tc654eaccf2-late", 47),
        ("polygenelubricants", 0),
    ],
)
def test_a_group_has_the_partition_that_java_gives_it(group: str, of: int) -> None:
    """Utils.abs of String.hashCode() by 50 partitions; the last but one is negative, the last Integer.MIN_VALUE."""
    assert partition_of(group, 50) == of


@pytest.mark.parametrize(
    ("value", "at_ms"),
    [
        (b'{"op":"c","source":{"ts_ms":5,"position":"p"},"ts_ms":9}', 5),
        (b'{"status":"BEGIN","id":"1:2","ts_ms":7,"event_count":null}', 7),
        (b'{"id":1,"status":"BEGIN","ts_ms":7}', None),  # a flat row with columns of these names
        (b'{"id":1,"ts_ms":7,"source":{"ts_ms":5}}', None),
        (b'{"id":1}', None),
        (b'{"source":{"ts_ms":"5","position":"p"}}', None),
        (b"[1]", None),
        (b"\xff", None),
        (None, None),
    ],
)
def test_when_an_event_was_committed(value: bytes | None, at_ms: int | None) -> None:
    assert committed_ms(value) == at_ms


def test_topics_of_a_schema_whose_name_has_a_dot() -> None:
    """Groups on them were not seen, and `cdc tail --table` found no topic: the name was split at its first dot."""
    sink = KafkaConfig(bootstrap_servers="h:1", topic_prefix="p", log=LogConfig(tables=("a.b.*",), retention="1d"))
    source = SourceConfig(type="postgres", url="postgresql://h/d", tables=("a.b.t", "s.u"))
    config = ConnectorConfig(name="c", source=source, sink=sink)
    state = State(connector="c", identity={}, phase=Phase.STREAM, epoch=1, tables=("a.b.t", "s.u"))
    found = topics_of(config, state)
    for schema, table in (("a.b", "t"), ("a", "b.t")):
        topic = table_topic("p", schema, table)
        assert topic in found
        assert log_of(topic) in found
        assert re.fullmatch(_topics(config, "a.b.t"), topic)
    assert sum(topic.endswith(".u") for topic in found) == 1
    assert not re.fullmatch(_topics(config, "s.u"), table_topic("p", "s", "v"))
