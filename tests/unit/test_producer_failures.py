"""What the producer makes of brokers that lead and fail, in both versions of the transaction protocol."""

from __future__ import annotations

import pytest
from kafka import errors as codes

from sinks.client.connection import LostError
from sinks.producer import retries
from sinks.producer.batches import Batch
from sinks.producer.producer import Producer
from sinks.producer.retries import RefusedError
from tests.scripted.brokers import (
    ANSWER_LOST,
    CONCURRENT,
    DUPLICATE,
    FENCED,
    LEFT_OUT,
    LOSSES,
    NOT_LEADER,
    OLD_EPOCH,
    ONLY_SECOND,
    OUT_OF_ORDER,
    REQUEST_LOST,
    SEND_FAILS,
    SILENCE,
    UNKNOWN_TOPIC,
    Clock,
    Cluster,
    Done,
    batch,
)

pytest_plugins = ["tests.scripted.fixtures"]

NO_LEADER, TIMED_OUT, TOO_LARGE, TOO_FEW, NOT_ALLOWED = 5, 7, 10, 19, 29


def _sequences(cluster: Cluster, topic: str = "t", partition: int = 0) -> list[tuple[int, list[bytes | None]]]:
    """Sequences and values of a partition's batches, as brokers have heard them."""
    sent = [said[topic, partition] for said in cluster.told("produce") if (topic, partition) in said]
    return [(each.sequence, each.values) for each in sent]


# ---- records ----


def test_a_leader_that_moved_is_looked_for(opened: Producer, cluster: Cluster) -> None:
    """The other one gets the same batch under the same number; nothing may have been sent twice."""
    opened.send([batch("t", 0, b"0")])
    opened.flush()
    cluster.leaders["t", 0] = 2
    opened.send([batch("t", 0, b"1", b"2"), batch("t", 0, b"3")])
    opened.commit()
    assert cluster.order("produce", "metadata")[2:] == [(1, "produce"), (1, "metadata"), (2, "produce"), (2, "produce")]
    assert _sequences(cluster)[1:] == [(1, [b"1", b"2"]), (1, [b"1", b"2"]), (3, [b"3"])]
    assert not opened.interrupted


def test_a_leader_is_looked_for_until_it_is_known(opened: Producer, cluster: Cluster, clock: Clock) -> None:
    """Brokers hear of it one after the other."""
    cluster.fail("produce", *[NOT_LEADER] * 5)
    opened.send([batch("t", 0, b"1")])
    opened.commit()
    assert len(cluster.told("metadata")) == 6
    assert clock.paused == 5
    assert cluster.committed(("t", 0)) == [b"1"]


@LOSSES
def test_a_connection_that_is_lost_is_made_again(opened: Producer, cluster: Cluster, loss: str) -> None:
    """The same batch goes first, under the same number, and is written once; it may have been sent twice."""
    cluster.fail("produce", loss)
    opened.send([batch("t", 0, b"1", b"2"), batch("t", 1, b"3"), batch("t", 0, b"4")])
    opened.flush()
    once = [(0, [b"1", b"2"])]
    assert _sequences(cluster) == once * (2 if loss in {ANSWER_LOST, SILENCE} else 1) + [(2, [b"4"])]
    assert len(cluster.told("metadata")) == 2, "another may lead by now"
    assert opened.interrupted
    opened.commit()
    assert cluster.committed(("t", 0)) == [b"1", b"2", b"4"]
    assert cluster.committed(("t", 1)) == [b"3"]
    assert opened.interrupted


def test_a_connection_that_ended_meanwhile_interrupts_nothing(opened: Producer, cluster: Cluster) -> None:
    """Brokers end those that are idle: nothing was in flight."""
    for _ in range(2):
        opened.send([batch("t", 0, b"1")])
        opened.commit()
        for connection in cluster.connections:
            connection.cut = True
    assert not opened.interrupted
    assert cluster.committed(("t", 0)) == [b"1"] * 2


@pytest.mark.parametrize("lost_first", [False, True])
def test_a_leader_that_is_gone_for_good_is_replaced(opened: Producer, cluster: Cluster, lost_first: bool) -> None:
    """Where nobody listens, another may lead by now: leaders are asked for again, until there is one."""
    opened.send([batch("t", 0, b"0"), batch("u", 0, b"0")])
    opened.flush()
    cluster.leaders |= {("t", 0): 2}
    opened.send([batch("t", 0, b"1")])
    opened.flush()

    def moves() -> str:
        cluster.leaders["t", 0] = 1
        return "refused"

    if lost_first:
        cluster.fail("produce", SEND_FAILS, broker=2)
    else:
        cluster.connections[-1].cut = True
    cluster.fail("connect", "refused", moves, *["refused"] * 999, broker=2)
    opened.send([batch("t", 0, b"2")])
    opened.flush()
    assert _sequences(cluster)[-1] == (2, [b"2"])


def test_a_copy_that_was_written_counts(opened: Producer, cluster: Cluster) -> None:
    """Brokers say so of a copy of an older batch."""
    cluster.fail("produce", {("t", 0): DUPLICATE})
    opened.send([batch("t", 0, b"1"), batch("t", 1, b"2")])
    opened.flush()
    assert opened.ready()
    assert _sequences(cluster) == [(0, [b"1"])]


@pytest.mark.parametrize("code", [TOO_LARGE, NOT_ALLOWED, OUT_OF_ORDER, -1, 120])
def test_what_does_not_pass_is_raised_with_its_batch(opened: Producer, cluster: Cluster, code: int) -> None:
    """Once, without trying again."""
    sent = batch("t", 1, b"2")
    cluster.fail("produce", {("t", 1): code})
    opened.send([batch("t", 0, b"1"), sent])
    with pytest.raises(RefusedError, match=codes.for_code(code).__name__) as refused:
        opened.flush()
    assert (refused.value.code, refused.value.batch) == (code, sent)
    assert len(cluster.told("produce")) == 1


def test_of_records_that_are_refused_together_none_is_kept(opened: Producer, cluster: Cluster) -> None:
    """Nobody could say which: their memory is let go as soon as they are compressed."""
    sent = [batch("t", 1, b"2", b"3")]
    cluster.fail("produce", {("t", 1): TOO_LARGE})
    opened.send(sent)
    assert sent == []
    with pytest.raises(RefusedError) as refused:
        opened.flush()
    assert refused.value.batch == Batch("t", 1, 2, b"")


@pytest.mark.parametrize("code", [OLD_EPOCH, FENCED])
@pytest.mark.parametrize("what", ["produce", "end"])
def test_who_says_only_for_a_moment_that_we_are_fenced_off_was_frozen(
    opened: Producer, cluster: Cluster, what: str, code: int
) -> None:
    """A broker that leads or coordinates no more goes by what it knew: the one that does is asked."""
    said = {("t", 0): code} if what == "produce" else code
    for number in range(3):
        cluster.fail(what, said, said)
        opened.send([batch("t", 0, b"%d" % number)])
        opened.commit()
    assert cluster.committed(("t", 0)) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("code", [OLD_EPOCH, FENCED])
@pytest.mark.parametrize("what", ["produce", "end"])
def test_who_is_fenced_off_stays_so(opened: Producer, cluster: Cluster, clock: Clock, what: str, code: int) -> None:
    """For some seconds nobody says otherwise."""
    cluster.fail(what, *[{("t", 0): code} if what == "produce" else code] * 999)
    began_s = clock.now_s
    opened.send([batch("t", 0, b"1")])
    with pytest.raises(RefusedError) as refused:
        opened.commit()
    assert refused.value.code == code
    assert retries.STALE_S <= clock.now_s - began_s < retries.STALE_S + 1


def test_an_answer_that_leaves_something_out_is_none(opened: Producer, cluster: Cluster) -> None:
    """Nobody knows what became of that, nor would ask again."""
    cluster.fail("produce", {("t", 1): LEFT_OUT})
    opened.send([batch("t", 0, b"1"), batch("t", 1, b"2")])
    with pytest.raises(RefusedError, match="UnknownError"):
        opened.flush()


@pytest.mark.parametrize("code", [UNKNOWN_TOPIC, NO_LEADER, NOT_LEADER, TIMED_OUT, 9, 13, TOO_FEW, 20, 56, 74, 75])
def test_what_passes_is_sent_again_first_of_all(opened: Producer, cluster: Cluster, code: int) -> None:
    """Beside what follows on other partitions, which were written."""
    cluster.fail("produce", {("t", 0): code})
    opened.send([batch("t", 0, b"1"), batch("t", 1, b"2"), batch("t", 0, b"3"), batch("t", 1, b"4")])
    opened.commit()
    assert _sequences(cluster) == [(0, [b"1"]), (0, [b"1"]), (1, [b"3"])]
    assert _sequences(cluster, partition=1) == [(0, [b"2"]), (1, [b"4"])]
    assert not opened.interrupted


@pytest.mark.parametrize("code", [TIMED_OUT, TOO_FEW])
def test_what_was_written_without_its_copies_is_not_written_twice(
    opened: Producer, cluster: Cluster, code: int
) -> None:
    """The number says so to the broker."""
    cluster.fail("produce", Done(code))
    opened.send([batch("t", 0, b"1")])
    opened.commit()
    assert _sequences(cluster) == [(0, [b"1"])] * 2
    assert cluster.committed(("t", 0)) == [b"1"]


@ONLY_SECOND
def test_records_wait_for_the_transaction_before_theirs(opened: Producer, cluster: Cluster) -> None:
    """Its end is still being written; leaders are where they were."""
    cluster.fail("produce", *[CONCURRENT] * 3)
    opened.send([batch("t", 0, b"1")])
    opened.commit()
    assert _sequences(cluster) == [(0, [b"1"])] * 4
    assert len(cluster.told("metadata")) == 1


def test_a_broker_that_fails_leaves_what_another_has_written(opened: Producer, cluster: Cluster) -> None:
    """Only the first broker's batches are sent again."""
    cluster.leaders["t", 1] = 2
    cluster.fail("produce", ANSWER_LOST, broker=1)
    opened.send([batch("t", 0, b"1"), batch("t", 1, b"2")])
    opened.flush()
    assert _sequences(cluster) == [(0, [b"1"])] * 2
    assert _sequences(cluster, partition=1) == [(0, [b"2"])]


def test_a_partition_without_a_leader_keeps_no_other_waiting(opened: Producer, cluster: Cluster, clock: Clock) -> None:
    """It is sent once it has one."""
    cluster.leaders["t", 0] = -1

    def elected() -> None:
        if clock.paused > 5:
            cluster.leaders["t", 0] = 2

    cluster.fail("metadata", *[elected] * 7)
    opened.send([batch("t", 0, b"1"), batch("t", 1, b"2")])
    opened.commit()
    assert [set(said) for said in cluster.told("produce")] == [{("t", 1)}, {("t", 0)}]


def test_another_broker_is_asked_after_a_while(opened: Producer, cluster: Cluster) -> None:
    """One that is cut off from the others knows of no new leader."""
    opened.send([batch("t", 0, b"1")])
    opened.commit()
    cluster.stale[1] = {}
    cluster.leaders["t", 0] = 2
    opened.send([batch("t", 0, b"2")])
    opened.commit()
    assert cluster.order("produce", "metadata")[-2:] == [(2, "metadata"), (2, "produce")]


# ---- patience ----


@pytest.mark.parametrize("fault", [NOT_LEADER, ANSWER_LOST, UNKNOWN_TOPIC])
def test_records_are_not_tried_for_ever(opened: Producer, cluster: Cluster, clock: Clock, fault: int | str) -> None:
    """What stands in the way comes out, sooner for a topic that is not there."""
    cluster.fail("produce", *[fault] * 999)
    opened.send([batch("t", 0, b"1")])
    began_s = clock.now_s
    with pytest.raises((RefusedError, LostError)) as raised:
        opened.flush()
    assert isinstance(raised.value, LostError) == (fault == ANSWER_LOST)
    assert getattr(raised.value, "code", fault) == fault
    patience_s = retries.ABSENT_S if fault == UNKNOWN_TOPIC else retries.PATIENCE_S
    assert patience_s < clock.now_s - began_s < patience_s + 1


def test_patience_begins_again_for_each_trouble(opened: Producer, cluster: Cluster, clock: Clock) -> None:
    """One that has passed says nothing of the next."""
    for _ in range(5):
        cluster.fail("produce", *[NOT_LEADER] * 100)
        opened.send([batch("t", 0, b"1")])
        opened.commit()
        clock.now_s += 2 * retries.PATIENCE_S
    assert cluster.committed(("t", 0)) == [b"1"] * 5


def test_a_topic_is_waited_for_a_while(opened: Producer, cluster: Cluster, clock: Clock) -> None:
    """Just made, it is not there for a moment; one that never comes is refused."""
    cluster.fail("metadata", UNKNOWN_TOPIC, NO_LEADER, REQUEST_LOST, SILENCE)
    assert opened.partitions("t") == 3
    began_s = clock.now_s
    with pytest.raises(RefusedError) as refused:
        opened.partitions("absent")
    assert refused.value.code == UNKNOWN_TOPIC
    assert retries.ABSENT_S < clock.now_s - began_s < retries.ABSENT_S + 1


def test_a_topic_that_may_not_be_seen_is_refused_at_once(opened: Producer, cluster: Cluster, clock: Clock) -> None:
    """Waiting does not help."""
    cluster.fail("metadata", NOT_ALLOWED)
    with pytest.raises(RefusedError) as refused:
        opened.partitions("t")
    assert (refused.value.code, clock.paused) == (NOT_ALLOWED, 0)
