"""How far partitions reach: never further than they do, and never less than was committed but for its markers."""

from __future__ import annotations

from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.model.ledger import Loss, TopicFacts, loss
from sinks.topics.ends import Ends, compared, missing, of_these, parse

FACTS: Final = TopicFacts(identity="i", partitions=3, ends=(5, 0, 9))


@given(
    st.lists(
        st.tuples(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4)), max_size=4), st.booleans()), max_size=12
    )
)
def test_what_is_recorded_is_where_a_partition_ends_before_the_marker(
    transactions: list[tuple[list[tuple[int, int]], bool]],
) -> None:
    """A broker adds a marker for each transaction, aborted ones stay, and a session that failed is begun again."""
    ends, recorded = [5, 0, 9], b"{}"
    counted = Ends({"t": FACTS}, {})
    for batches, commits in transactions:
        known = counted.add(("t", partition, count) for partition, count in batches)
        assert known == bool(batches)
        for partition, count in batches:
            ends[partition] += count
        for partition, end in parse(counted.to_bytes()).get("t", {}).items():
            assert end == ends[partition]
        for partition in {partition for partition, _ in batches}:
            ends[partition] += 1
        if commits:
            recorded = counted.to_bytes()
            counted.marked()
        else:
            found = TopicFacts(identity="i", partitions=3, ends=tuple(ends))
            counted = Ends({"t": found}, parse(recorded))
    now = TopicFacts(identity="i", partitions=3, ends=tuple(ends))
    assert not compared({"t": now}, parse(recorded))["t"].cut
    for partition, end in parse(recorded).get("t", {}).items():
        less = tuple(end - 1 if number == partition else each for number, each in enumerate(ends))
        assert compared({"t": TopicFacts(identity="i", partitions=3, ends=less)}, parse(recorded))["t"].cut


def test_a_topic_that_is_another_one_is_not_compared() -> None:
    reached = {"t": {0: 9}}
    for found in (
        TopicFacts(identity="another", partitions=3, ends=(0, 0, 0)),
        TopicFacts(identity="i", partitions=3, ends=(0, 0, 0), made=True),
    ):
        assert of_these({"t": found}, {"t": FACTS}, reached) == {}
    assert of_these({"t": FACTS}, {}, reached) == of_these({}, {"t": FACTS}, reached) == {}
    assert of_these({"t": FACTS}, {"t": FACTS}, reached) == reached


def test_where_ends_cannot_be_told_what_is_recorded_stays() -> None:
    """A partition without a leader says nothing, and is no reason to forget how far it reached."""
    unknown = TopicFacts(identity="i", partitions=3)
    assert not compared({"t": unknown}, {"t": {2: 9}})["t"].cut
    ends = Ends({"t": unknown}, {"t": {2: 9}})
    assert not ends.add([("t", 1, 1), ("other", 0, 1)])
    assert ends.add([("t", 2, 3)])
    assert parse(ends.to_bytes()) == {"t": {2: 12}}


def test_those_written_last_are_recorded() -> None:
    found = {f"t{n}": TopicFacts(identity="i", partitions=1, ends=(0,)) for n in range(300)}
    ends = Ends(found, {"t299": {0: 0}})
    for n in range(300):
        ends.add([(f"t{n}", 0, 1), ("t7", 0, 1)])
    assert list(parse(ends.to_bytes())) == [*(f"t{n}" for n in range(201, 300)), "t7"]
    assert parse(ends.to_bytes())["t7"] == {0: 301}


def test_a_topic_that_was_cut_is_found_again_though_it_is_filled_up() -> None:
    """Until a commit records where it ends."""
    reached = {"t": {0: 6, 1: 0}}
    cut = compared({"t": FACTS}, reached)["t"]
    assert cut.cut
    assert loss(FACTS, cut, keeps=True) is loss(FACTS, cut, keeps=False) is Loss.CUT
    lacking = missing(cut, reached["t"])
    claimed = parse(Ends({"t": cut}, reached).claim({"t": lacking}))
    full = TopicFacts(identity="i", partitions=3, ends=(FACTS.ends[0] + lacking[0] + 1, 0, 9))
    assert full.ends[0] > reached["t"][0] + 1, "what readers have read at most, with the last marker"
    assert compared({"t": full}, claimed)["t"].cut
    ends = Ends({"t": full}, {})
    ends.add([("t", 0, 1)])
    assert parse(ends.to_bytes()) == {"t": {0: full.ends[0] + 1}}


@pytest.mark.parametrize("record", [b"[]", b'{"t": 1}', b"{", b'{"t": {"x": 1}}', b'{"t": {"0": null}}'])
def test_a_damaged_record(record: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse(record)
