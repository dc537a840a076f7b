"""What the producer sends, in which order and under which numbers; in both versions of the transaction protocol."""

from __future__ import annotations

from typing import Any

import pytest
from kafka.protocol.producer import EndTxnRequest, ProduceRequest

from sinks.producer import producer
from sinks.producer.producer import Producer
from sinks.producer.retries import RefusedError
from tests.scripted.brokers import ANSWER_LOST, CONCURRENT, ONLY_FIRST, ONLY_SECOND, Cluster, Log, batch

pytest_plugins = ["tests.scripted.fixtures"]

NOT_TRIED = 55


def _sequences(cluster: Cluster, topic: str = "t", partition: int = 0) -> list[tuple[int, int]]:
    """Epochs and sequences of a partition's batches, as they were sent."""
    sent = [said[topic, partition] for said in cluster.told("produce") if (topic, partition) in said]
    return [(each.epoch, each.sequence) for each in sent]


def test_what_is_handed_over_can_be_read_once_it_is_committed(opened: Producer, cluster: Cluster) -> None:
    """All of it at once, each partition's records in order."""
    opened.send([batch("t", 0, b"1", b"2"), batch("t", 2, b"3"), batch("u", 0, b"4")])
    opened.flush()
    assert cluster.committed(("t", 0)) == []
    opened.commit()
    assert [cluster.committed(place) for place in (("t", 0), ("t", 2), ("u", 0))] == [[b"1", b"2"], [b"3"], [b"4"]]
    assert not opened.interrupted


def test_a_brokers_request_has_one_batch_of_each_partition(opened: Producer, cluster: Cluster) -> None:
    """Later ones follow in order, numbered through."""
    opened.send([batch("t", 0, b"1", b"2"), batch("t", 1, b"a"), batch("t", 0, b"3"), batch("t", 0, b"4")])
    opened.flush()
    sent = [{place: (each.sequence, each.values) for place, each in said.items()} for said in cluster.told("produce")]
    assert sent == [
        {("t", 0): (0, [b"1", b"2"]), ("t", 1): (0, [b"a"])},
        {("t", 0): (2, [b"3"])},
        {("t", 0): (3, [b"4"])},
    ]


def test_each_request_is_answered_before_the_next_is_sent(opened: Producer, cluster: Cluster) -> None:
    """To the same broker."""
    opened.send([batch("t", 0, b"1"), batch("t", 0, b"2")])
    opened.send([batch("t", 0, b"3")])
    opened.flush()
    assert cluster.order("produce", "read") == [(1, "produce"), (1, "read")] * 3


def test_brokers_have_their_requests_at_once(opened: Producer, cluster: Cluster) -> None:
    """None waits for another's answer."""
    cluster.leaders["t", 1] = 2
    opened.send([batch("t", 0, b"1"), batch("t", 1, b"2"), batch("t", 1, b"3")])
    opened.flush()
    assert cluster.order("produce", "read")[:4] == [(1, "produce"), (2, "produce"), (1, "read"), (2, "read")]
    assert [set(said) for said in cluster.told("produce")] == [{("t", 0)}, {("t", 1)}, {("t", 1)}]


def test_handing_over_waits_for_what_was_handed_over_before(opened: Producer, cluster: Cluster) -> None:
    """And not for what is handed over; nothing has been compressed in vain meanwhile."""
    opened.send([batch("t", 0, b"1"), batch("t", 0, b"2")])
    assert cluster.order("produce", "read") == [(1, "produce")]
    opened.send([batch("t", 1, b"3")])
    assert cluster.order("produce", "read") == [(1, "produce"), (1, "read")] * 2 + [(1, "produce")]


def test_a_request_is_of_a_certain_size(opened: Producer, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of other partitions wait for the next; one that is larger alone goes alone."""
    monkeypatch.setattr(producer, "_REQUEST_BYTES", 100)
    opened.send([batch("t", 0, b"1" * 200), batch("t", 1, b"2" * 40), batch("t", 2, b"3" * 40), batch("u", 0, b"4")])
    opened.commit()
    assert [set(said) for said in cluster.told("produce")] == [{("t", 0)}, {("t", 1), ("t", 2)}, {("u", 0)}]


def test_ready_says_whether_all_is_written(opened: Producer, cluster: Cluster) -> None:
    """It waits for no answer, and reads one that has come."""
    assert opened.ready()
    cluster.silent = True
    opened.send([batch("t", 0, b"1")])
    assert not opened.ready()
    assert cluster.order("read") == []
    cluster.silent = False
    assert opened.ready()
    assert cluster.order("read") == [(1, "read")]


def test_what_waits_behind_another_batch_goes_once_that_is_written(opened: Producer, cluster: Cluster) -> None:
    """Asking whether all is written sends the rest, else nothing would be in flight while more gathers."""
    opened.send([batch("t", 0, b"1"), batch("t", 0, b"2")])
    assert not opened.ready()
    assert cluster.order("produce", "read") == [(1, "produce"), (1, "read"), (1, "produce")]
    assert opened.ready()


def test_topics_that_are_asked_for_next_are_looked_up_at_once(opened: Producer, cluster: Cluster) -> None:
    """And none of them again, until a broker says that it leads no more."""
    assert opened.partitions("t", ["u"]) == 3
    assert (opened.partitions("u"), opened.partitions("t")) == (1, 3)
    opened.send([batch("t", 0, b"1"), batch("u", 0, b"2")])
    opened.commit()
    cluster.leaders["u", 0] = 2
    opened.send([batch("t", 0, b"1"), batch("u", 0, b"2")])
    opened.commit()
    assert [{topic.name for topic in said.topics} for said in cluster.told("metadata")] == [{"t", "u"}, {"u"}]


# ---- numbers ----


@ONLY_FIRST
def test_sequences_go_on_after_a_commit_in_version_1(opened: Producer, cluster: Cluster) -> None:
    """An epoch is for many transactions."""
    for values in ((b"1", b"2"), (b"3",), (b"4",)):
        opened.send([batch("t", 0, *values)])
        opened.commit()
    assert _sequences(cluster) == [(1, 0), (1, 2), (1, 3)]


@ONLY_SECOND
def test_sequences_start_again_after_a_commit_in_version_2(opened: Producer, cluster: Cluster) -> None:
    """A transaction has an epoch of its own, which the end of the one before it gives."""
    for values in ((b"1", b"2"), (b"3",)):
        opened.send([batch("t", 0, *values), batch("t", 0, b"x")])
        opened.commit()
    assert _sequences(cluster) == [(1, 0), (1, 2), (2, 0), (2, 1)]
    assert [end.producer_epoch for end in cluster.told("end")] == [1, 2]


def test_partitions_are_numbered_apart(opened: Producer, cluster: Cluster) -> None:
    """Each from 0."""
    opened.send([batch("t", 0, b"1", b"2"), batch("t", 0, b"3"), batch("t", 1, b"4"), batch("t", 1, b"5")])
    opened.flush()
    assert _sequences(cluster) == [(1, 0), (1, 2)]
    assert _sequences(cluster, partition=1) == [(1, 0), (1, 1)]


@pytest.mark.parametrize(
    ("begin", "following"), [(2**31 - 3, 0), (2**31 - 2, 1), (2**31 - 1, 2), (2**31 - 4, 2**31 - 1)]
)
def test_a_sequence_that_is_used_up_begins_again(
    opened: Producer, cluster: Cluster, begin: int, following: int
) -> None:
    """At 0 behind 2**31 - 1, also within a batch."""
    opened._sequences["t", 0] = begin
    cluster.logs["t", 0] = Log(epoch=1, following=begin)
    opened.send([batch("t", 0, b"1", b"2", b"3"), batch("t", 0, b"4")])
    opened.flush()
    assert _sequences(cluster) == [(1, begin), (1, following)]


def test_another_epoch_forgets_what_waited(opened: Producer, cluster: Cluster) -> None:
    """What was open is given up, numbers begin again, and nothing is left to be read from a connection."""
    cluster.silent = True
    opened.send([batch("t", 0, b"1"), batch("t", 0, b"2")])
    used = cluster.connections[-1]
    opened.begin_epoch(10)
    assert used.closed
    assert opened.ready()
    opened.send([batch("t", 0, b"3")])
    opened.commit()
    assert _sequences(cluster) == [(1, 0), (2, 0)]
    assert cluster.committed(("t", 0)) == [b"3"]


def test_another_epoch_goes_by_the_version_there_is_now(opened: Producer, cluster: Cluster) -> None:
    """Brokers are told of another one while they run."""
    for second in (True, False):
        cluster.second = second
        opened.begin_epoch(10)
        opened.send([batch("t", 0, b"1")])
        opened.commit()
        assert cluster.told("end")[-1].version == (5 if second else 4)
    assert cluster.committed(("t", 0)) == [b"1"] * 2


@ONLY_SECOND
@pytest.mark.parametrize(("request_", "newest"), [(ProduceRequest, 11), (EndTxnRequest, 4)])
def test_version_2_is_not_spoken_with_a_broker_of_before(
    opened: Producer, cluster: Cluster, request_: Any, newest: int
) -> None:
    """One that is back in the cluster would take it for version 1."""
    cluster.newest[request_] = newest
    opened.send([]) if request_ is ProduceRequest else opened.send([batch("t", 0, b"1")])
    with pytest.raises(RefusedError, match="UnsupportedVersion"):
        opened.send([batch("t", 0, b"1")]) if request_ is ProduceRequest else opened.commit()
    assert cluster.told("end") == []
    cluster.newest.clear()


@ONLY_SECOND
def test_closing_lets_go_whatever_the_coordinator_speaks(opened: Producer, cluster: Cluster) -> None:
    """In version 2 an older coordinator cannot be told: the next producer aborts what is open."""
    opened.send([batch("t", 0, b"1")])
    cluster.newest[EndTxnRequest] = 4
    try:
        opened.close()
    finally:
        cluster.newest.clear()
    assert all(connection.closed for connection in cluster.connections)


def test_another_epoch_is_not_interrupted(opened: Producer, cluster: Cluster) -> None:
    """What was, was in the one before."""
    cluster.fail("produce", ANSWER_LOST)
    opened.send([batch("t", 0, b"1")])
    opened.flush()
    assert opened.interrupted
    opened.begin_epoch(10)
    assert not opened.interrupted


# ---- the transaction's partitions ----


def _added(cluster: Cluster) -> list[set[tuple[str, int]]]:
    """What each AddPartitionsToTxn named."""
    return [
        {(topic.name, partition) for topic in said.v3_and_below_topics for partition in topic.partitions}
        for said in cluster.told("add")
    ]


@ONLY_FIRST
def test_partitions_are_added_once_before_their_records_in_version_1(opened: Producer, cluster: Cluster) -> None:
    """Once a transaction, only those that are about to be written."""
    for _ in range(2):
        opened.send([batch("t", 0, b"1"), batch("t", 0, b"2"), batch("u", 0, b"3")])
        opened.send([batch("t", 0, b"4"), batch("t", 1, b"5")])
        opened.commit()
    once: list[Any] = ["add", "produce", "produce", "add", "produce", "end"]
    assert [what for _, what in cluster.order("add", "produce", "end")] == once * 2
    assert _added(cluster) == [{("t", 0), ("u", 0)}, {("t", 1)}] * 2


@ONLY_SECOND
def test_partitions_are_never_added_in_version_2(opened: Producer, cluster: Cluster) -> None:
    """Brokers do that, for requests of the version that says so."""
    for _ in range(2):
        opened.send([batch("t", 0, b"1"), batch("u", 0, b"3")])
        opened.commit()
    assert cluster.told("add") == []


@ONLY_FIRST
def test_partitions_are_added_again_in_another_epoch(opened: Producer, cluster: Cluster) -> None:
    """That one's transaction has none."""
    for _ in range(2):
        opened.send([batch("t", 0, b"1")])
        opened.flush()
        opened.begin_epoch(10)
    assert _added(cluster) == [{("t", 0)}] * 2


@ONLY_FIRST
def test_partitions_that_were_not_added_are_added_again(opened: Producer, cluster: Cluster) -> None:
    """The error that is one partition's own counts, not that the others were not tried."""
    places = [("t", n) for n in range(20)]
    cluster.partitions["t"] = len(places)
    cluster.fail("add", {place: CONCURRENT if place == ("t", 7) else NOT_TRIED for place in places})
    opened.send([batch(*place, b"1") for place in places])
    opened.commit()
    assert _added(cluster) == [set(places)] * 2
    assert [cluster.committed(place) for place in places] == [[b"1"]] * 20


# ---- closing ----


def test_closing_gives_up_what_is_open(opened: Producer, cluster: Cluster) -> None:
    """At once, so that readers wait for nothing."""
    opened.send([batch("t", 0, b"1")])
    opened.flush()
    opened.close()
    opened.close()
    assert [(end.committed, end.producer_epoch) for end in cluster.told("end")] == [(False, 1)]
    assert cluster.open == set()


def test_closing_asks_for_nothing_where_nothing_is_open(opened: Producer, cluster: Cluster) -> None:
    """Neither before the first transaction nor behind a committed one."""
    opened.close()
    assert cluster.told("end") == []
    opened.begin_epoch(10)
    opened.send([batch("t", 0, b"1")])
    opened.commit()
    opened.close()
    assert [end.committed for end in cluster.told("end")] == [True]


@ONLY_FIRST
def test_closing_leaves_open_what_is_on_its_way_in_version_1(opened: Producer, cluster: Cluster) -> None:
    """It could arrive behind the end, outside any transaction: the next producer fences it."""
    cluster.silent = True
    opened.send([batch("t", 0, b"1")])
    opened.close()
    assert cluster.told("end") == []


@ONLY_FIRST
def test_closing_leaves_open_what_may_be_on_its_way_in_version_1(opened: Producer, cluster: Cluster) -> None:
    """A request whose connection was lost is in flight as well, though nobody waits for its answer any more."""
    cluster.fail("produce", ANSWER_LOST)
    opened.send([batch("t", 0, b"1")])
    opened.flush()
    assert opened.interrupted
    opened.close()
    assert cluster.told("end") == []


@ONLY_SECOND
def test_closing_gives_up_what_is_on_its_way_in_version_2(opened: Producer, cluster: Cluster) -> None:
    """Arriving behind the end, it is of an older epoch."""
    cluster.silent = True
    opened.send([batch("t", 0, b"1")])
    opened.close()
    assert [(end.committed, end.producer_epoch) for end in cluster.told("end")] == [(False, 1)]
    assert cluster.epoch == 2


@ONLY_FIRST
def test_closing_asks_for_nothing_behind_a_commit_that_may_come_late_in_version_1(
    opened: Producer, cluster: Cluster
) -> None:
    """It is left to the next producer to see whether it was committed."""
    opened.send([batch("t", 0, b"1")])
    cluster.fail("end", ANSWER_LOST, *[CONCURRENT] * 400)
    with pytest.raises(RefusedError):
        opened.commit()
    cluster.heal()
    opened.close()
    assert {end.committed for end in cluster.told("end")} == {True}


def test_closing_waits_for_no_coordinator(opened: Producer, cluster: Cluster) -> None:
    """It makes no connection, and takes no answer for one that must come."""
    opened.send([batch("t", 0, b"1")])
    opened.flush()
    cluster.fail("end", ANSWER_LOST)
    made = len(cluster.connections)
    opened.close()
    assert len(cluster.connections) == made
    assert len(cluster.told("end")) == 1
