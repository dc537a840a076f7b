"""What the producer makes of a coordinator that fails, in both versions of the transaction protocol."""

from __future__ import annotations

import pytest

from sinks.client.connection import LostError
from sinks.producer import retries
from sinks.producer.producer import Producer
from sinks.producer.retries import RefusedError
from tests.scripted.brokers import (
    ANSWER_LOST,
    CONCURRENT,
    LOSSES,
    NO_COORDINATOR,
    NOT_COORDINATOR,
    ONLY_FIRST,
    REQUEST_LOST,
    SILENCE,
    Clock,
    Cluster,
    batch,
)

pytest_plugins = ["tests.scripted.fixtures"]

LOADING, NOT_ALLOWED, UNAUTHORIZED_ID = 14, 29, 53


def test_a_transaction_under_way_is_waited_for(opened: Producer, cluster: Cluster, clock: Clock) -> None:
    """To begin an epoch, to add partitions, to end: each time with longer pauses."""
    for what in ("begin", "end") if cluster.second else ("begin", "add", "end"):
        cluster.fail(what, *[CONCURRENT] * 4)
    opened.begin_epoch(10)
    opened.send([batch("t", 0, b"1")])
    opened.commit()
    assert cluster.all_failed
    assert clock.paused == (8 if cluster.second else 12)
    assert cluster.committed(("t", 0)) == [b"1"]
    assert not opened.interrupted


def test_a_coordinator_that_is_loading_is_waited_for(opened: Producer, cluster: Cluster) -> None:
    """It is the right one."""
    opened.send([batch("t", 0, b"1")])
    opened.flush()
    cluster.fail("end", *[LOADING] * 5)
    opened.commit()
    assert cluster.order("find", "end")[1:] == [(1, "end")] * 6


@pytest.mark.parametrize("code", [NOT_COORDINATOR, NO_COORDINATOR])
def test_another_coordinator_is_looked_for(opened: Producer, cluster: Cluster, code: int) -> None:
    """Also one that is found elsewhere only at the second look."""
    opened.send([batch("t", 0, b"1")])
    opened.flush()
    cluster.fail("end", code)
    cluster.fail("find", NO_COORDINATOR)
    cluster.coordinator = 2
    opened.commit()
    assert cluster.order("find", "end")[1:] == [(1, "end"), (1, "find"), (1, "find"), (2, "end")]
    assert cluster.committed(("t", 0)) == [b"1"]
    assert not opened.interrupted


def test_a_coordinator_that_is_gone_for_good_is_replaced(opened: Producer, cluster: Cluster) -> None:
    """Where nobody listens, another may be it by now: it is asked for again, until there is one."""
    cluster.leaders = {("t", n): 2 for n in range(3)}
    opened.send([batch("t", 0, b"1")])
    opened.flush()
    for connection in cluster.connections:
        connection.cut = connection.broker == 1

    def moves() -> str:
        cluster.coordinator = 2
        return "refused"

    cluster.fail("connect", "refused", moves, *["refused"] * 999, broker=1)
    opened.commit()
    assert cluster.order("find", "end")[-2:] == [(2, "find"), (2, "end")]
    assert cluster.committed(("t", 0)) == [b"1"]


@LOSSES
def test_an_end_that_may_have_been_lost_is_asked_for_again(opened: Producer, cluster: Cluster, loss: str) -> None:
    """It may come twice, of which the producer tells; what it commits, it commits once."""
    cluster.fail("end", loss)
    for value in (b"1", b"2"):
        opened.send([batch("t", 0, value)])
        opened.commit()
        assert opened.interrupted
    assert cluster.committed(("t", 0)) == [b"1", b"2"]
    epochs = [end.producer_epoch for end in cluster.told("end")]
    first = [1] * (2 if loss in {ANSWER_LOST, SILENCE} else 1)
    assert epochs == [*first, 2 if cluster.second else 1]


@ONLY_FIRST
@LOSSES
def test_adding_that_may_have_been_lost_is_asked_for_again(opened: Producer, cluster: Cluster, loss: str) -> None:
    """Arriving in the next transaction, it would hold that one's partitions open: the producer tells of it."""
    cluster.fail("add", loss)
    opened.send([batch("t", 0, b"1")])
    opened.commit()
    assert opened.interrupted
    assert cluster.committed(("t", 0)) == [b"1"]


@LOSSES
def test_beginning_an_epoch_twice_interrupts_nothing(fresh: Producer, cluster: Cluster, loss: str) -> None:
    """The last one counts; but a copy that comes later still ends its epoch, as another producer would."""
    cluster.fail("begin", loss)
    fresh.begin_epoch(10)
    assert (fresh.interrupted, fresh.fences_itself) == (False, True)
    fresh.send([batch("t", 0, b"1")])
    fresh.commit()
    assert cluster.committed(("t", 0)) == [b"1"]
    fresh.begin_epoch(10)
    assert not fresh.fences_itself


@pytest.mark.parametrize("what", ["begin", "end"])
@pytest.mark.parametrize("code", [UNAUTHORIZED_ID, 50])
def test_what_the_coordinator_refuses_is_raised(opened: Producer, cluster: Cluster, what: str, code: int) -> None:
    """Once, without trying again; it is about no batch."""
    opened.send([batch("t", 0, b"1")])
    opened.flush()
    asked = len(cluster.told(what))
    cluster.fail(what, code)
    with pytest.raises(RefusedError) as refused:
        opened.commit() if what == "end" else opened.begin_epoch(10)
    assert (refused.value.code, refused.value.batch) == (code, None)
    assert len(cluster.told(what)) == asked + 1


@ONLY_FIRST
def test_adding_what_may_not_be_written_is_raised(opened: Producer, cluster: Cluster) -> None:
    """No record is sent; that others were not tried is not the reason."""
    cluster.fail("add", {("t", 0): 55, ("t", 1): NOT_ALLOWED})
    with pytest.raises(RefusedError) as refused:
        opened.send([batch("t", 0, b"1"), batch("t", 1, b"1")])
    assert refused.value.code == NOT_ALLOWED
    assert cluster.told("produce") == []


@pytest.mark.parametrize("what", ["begin", "end"])
@pytest.mark.parametrize("fault", [CONCURRENT, NOT_COORDINATOR, REQUEST_LOST])
def test_the_coordinator_is_not_tried_for_ever(
    opened: Producer, cluster: Cluster, clock: Clock, what: str, fault: int | str
) -> None:
    """What stands in the way comes out."""
    opened.send([batch("t", 0, b"1")])
    opened.flush()
    cluster.fail(what, *[fault] * 999)
    began_s = clock.now_s
    with pytest.raises((RefusedError, LostError)) as raised:
        opened.commit() if what == "end" else opened.begin_epoch(10)
    assert getattr(raised.value, "code", fault) == fault
    patience_s = retries.PATIENCE_S if what == "end" else 10
    assert patience_s < clock.now_s - began_s < patience_s + 1


def test_no_broker_at_all(fresh: Producer, cluster: Cluster) -> None:
    """It is waited for as long as is asked for; then the loss comes out, which says where."""
    cluster.fail("connect", *["refused"] * 999)
    with pytest.raises(LostError, match="one:1: Connection refused"):
        fresh.begin_epoch(10)
    cluster.heal()
    fresh.begin_epoch(10)
    assert cluster.epoch == 1
