"""Which keys a topic says are gone, without the delete that says it: what compaction leaves. No server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from spark_apply.job.topics.compacted_deletes import buried_keys


@dataclass
class Record:
    """What is asked of a record of Kafka's client."""

    at: int
    of: str | None
    text: str | None
    number: int = 0

    def key(self) -> bytes | None:
        return None if self.of is None else self.of.encode()

    def value(self) -> bytes | None:
        return None if self.text is None else self.text.encode()

    def offset(self) -> int:
        return self.at

    def partition(self) -> int:
        return self.number


ROW, DELETE, GONE = '{"op":"u"}', '{"op":"d"}', None


@pytest.mark.parametrize(
    ("records", "buried"),
    [
        ([("a", DELETE), ("a", GONE)], []),
        ([("b", ROW), ("a", GONE)], ["a"]),
        ([("b", ROW), ("a", GONE), ("a", ROW)], []),
        ([("b", ROW), ("a", GONE), ("a", DELETE), ("a", GONE)], []),
        ([("a", DELETE), ("a", GONE), ("a", ROW), ("a", GONE)], ["a"]),
        ([("a", GONE), ("b", GONE)], ["b"]),  # the first one's delete may be the last that was read
        ([("b", "no event"), ("a", "[1]"), ("a", GONE), (None, ROW)], ["a"]),
        ([("b", ROW), ("c", GONE), ("a", GONE), ("c", GONE)], ["c", "a"]),
    ],
)
def test_a_tombstone_without_its_delete_is_found(
    records: list[tuple[str | None, str | None]], buried: list[str]
) -> None:
    read: Any = [Record(10 + number, key, text) for number, (key, text) in enumerate(records)]
    assert buried_keys(read, {0: 10}) == buried
