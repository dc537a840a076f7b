"""Missing offsets and missing deletes of a topic are found from offsets alone."""

from __future__ import annotations

import pytest

from spark_apply.job.topics.retention import Extent, kept_from, missed_deletes, missing_offsets

_WEEK_MS = 7 * 86_400_000


def extent(first: int, end: int, kept: int) -> Extent:
    return Extent(first, end, kept, _WEEK_MS)


@pytest.mark.parametrize(
    ("begin", "told"),
    [
        ({"t": {0: 5}}, None),
        ({"t": {0: 10}}, None),
        ({}, None),
        ({"t": {0: 4}}, "topic t, partition 0: offsets 4 to 4 were deleted"),
        ({"t": {0: 11}}, "topic t, partition 0: it ends at 10, and 11 was read: recreated"),
    ],
)
def test_a_checkpoint_that_names_what_is_not_there(begin: dict[str, dict[int, int]], told: str | None) -> None:
    assert missing_offsets(begin, {"t": {0: extent(5, 10, 5), 1: extent(0, 3, 0)}}) == ([("t", told)] if told else [])


@pytest.mark.parametrize(
    ("has", "there", "told"),
    [
        ({0: 7}, extent(0, 10, 7), None),  # the first unread one is young
        ({0: 10}, extent(0, 10, 10), None),  # all is old, and all was read
        ({}, extent(0, 10, 10), None),  # it is read from the beginning
        ({0: 6}, extent(0, 10, 7), "keeps deletes (delete.retention.ms, 7 days)"),
        ({0: 6}, extent(0, 10, 10), "keeps deletes (delete.retention.ms, 7 days)"),
        ({0: 6}, extent(8, 10, 8), "offsets 6 to 7 of its topic, partition 0, were deleted before it had them"),
    ],
)
def test_a_copy_that_was_away(has: dict[int, int], there: Extent, told: str | None) -> None:
    found = missed_deletes("a copy", has, {0: there})
    assert (told in (found or "")) if told else found is None


def test_only_compaction_forgets_deletes() -> None:
    assert kept_from(3, 9, 5, compacted=True) == 5
    assert kept_from(3, 9, -1, compacted=True) == 9
    assert kept_from(3, 9, -1, compacted=False) == 3
