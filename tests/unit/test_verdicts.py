"""Start-up verdicts on the in-memory twins: each by its name, with what was found and what to do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from cdc.capture.pipeline import Pipeline, Settings
from cdc.model.change import Offset
from cdc.model.errors import FINAL, GapError, OperatorError, VerdictError
from cdc.model.state import State
from cdc.testing import MemoryKafka, MemoryLog, MemorySink, MemorySnapshotter, MemorySource, insert
from connectors.postgres.lsn import lsn_number
from connectors.postgres.slot.timeline import refusals, switch_point
from tests.text_tables import text_table

A, B = text_table("a", ["id"]), text_table("b", ["id"])
BINDING = {"source.slot": "cdc_c", "source.publication": "cdc_c"}


class Standby(MemorySource):
    """The server that has taken over."""

    timeline = "1"
    continues = True

    def connect(self) -> Mapping[str, str]:
        return {**super().connect(), "timeline": self.timeline}

    def verify(self, state: State) -> tuple[Offset, int] | None:
        super().verify(state)
        return (state.offset, state.commit) if state.identity["timeline"] != self.timeline else None


def run(
    log: MemoryLog,
    kafka: MemoryKafka,
    *,
    name: str = "c",
    prefix: str = "p",
    tables: Any = (A,),
    source: type[MemorySource] = MemorySource,
    config: Mapping[str, str] = BINDING,
) -> State:
    """One run until caught up; the state it leaves."""
    Pipeline(
        Settings(connector=name, prefix=prefix, config=config),
        open_source=lambda: source(log, tables),
        open_snapshotter=lambda: MemorySnapshotter(log),
        sink=MemorySink(kafka, name, prefix),
    ).run(until_caught_up=True)
    state = kafka.state(prefix, name)
    assert state is not None
    return state


def test_after_a_fail_over_a_new_epoch_begins() -> None:
    """The position and the rest of the identity go on; every event after it sorts behind every one before."""

    class Promoted(Standby):
        timeline = "2"

    log, kafka = MemoryLog(), MemoryKafka()
    log.commit(insert(A, (b"1",)))
    before = run(log, kafka, source=Standby)
    log.commit(insert(A, (b"2",)))
    after = run(log, kafka, source=Promoted)
    assert (before.epoch, after.epoch) == (1, 2)
    assert after.identity == {"database": "memory", "timeline": "2"}
    assert after.offset["at"] > before.offset["at"]
    assert run(log, kafka, source=Promoted).epoch == 2


@pytest.mark.parametrize("setting", BINDING)
def test_a_setting_that_the_position_depends_on(setting: str) -> None:
    """By its name in the file, from what to what; nothing is written, and set back it goes on."""
    log, kafka = MemoryLog(), MemoryKafka()
    before = run(log, kafka)
    with pytest.raises(OperatorError, match=f"config changed: {setting} is other, .*made with cdc_c") as caught:
        run(log, kafka, config={**BINDING, setting: "other"})
    assert f"set {setting}: cdc_c again" in (caught.value.hint or "")
    assert run(log, kafka).config == before.config == BINDING
    assert run(log, kafka, config={**BINDING, "source.new": "a later release's"}).config == BINDING


def test_another_prefix() -> None:
    """The same connector under another prefix has no position there: that is a change, not a beginning."""
    log, kafka = MemoryLog(), MemoryKafka()
    run(log, kafka)
    with pytest.raises(OperatorError, match=r"config changed: sink\.topic_prefix is q, .*under p"):
        run(log, kafka, prefix="q")
    assert not [topic for topic in kafka.topics if topic.startswith("q")]

    class Other(MemorySource):
        def connect(self) -> Mapping[str, str]:
            return {"database": "another"}

    assert run(MemoryLog(), kafka, prefix="q", source=Other).sequence > 0  # of one name, but of another database


@pytest.mark.parametrize("rows", [0, 1])
def test_a_topic_of_another_connector(rows: int) -> None:
    """Whether it has records or none yet, at the first start and for a table added; the owner is named."""
    kafka, theirs = MemoryKafka(), MemoryLog()
    for key in range(rows):
        theirs.commit(insert(A, (str(key).encode(),)))
    run(theirs, kafka, name="first")
    owned = r"topic owned by another connector: p\.s\.a is written by first"
    with pytest.raises(OperatorError, match=owned) as caught:
        run(MemoryLog(), kafka, name="second")
    assert "leave the table out" in (caught.value.hint or "")
    log = MemoryLog()
    run(log, kafka, name="third", tables=(B,))
    with pytest.raises(OperatorError, match=owned):
        run(log, kafka, name="third", tables=(A, B))
    run(log, kafka, name="third", tables=(B,))
    run(theirs, kafka, name="first")


HISTORY = "1\t0/3000148\tno recovery target specified\n\n2\t1/A0\tbefore 2000-01-01 00:00:00+00\n"


class Answers:
    """A walsender that knows one history."""

    def query(self, statement: str, doing: str) -> list[list[str]]:
        assert statement == "TIMELINE_HISTORY 3"
        return [["00000003.history", HISTORY]]


def test_switch_points() -> None:
    """Where each timeline was left; one that was never walked has none."""
    assert switch_point(HISTORY, 1) == lsn_number("0/3000148")
    assert switch_point(HISTORY, 2) == lsn_number("1/A0")
    assert switch_point(HISTORY, 3) is None
    assert switch_point("", 1) is None


@pytest.mark.parametrize(
    ("then", "now", "lsn", "views", "verdict"),
    [
        (1, 1, "9/0", True, None),
        (1, 3, "0/3000148", False, None),
        (1, 3, "0/3000149", False, "promoted standby behind the published position"),
        (2, 3, "1/A0", False, None),
        (2, 3, "1/A1", False, "promoted standby behind the published position"),
        (2, 3, "0/1", True, "fail-over during the snapshot"),
        (4, 3, "0/1", False, "other timeline"),
        (2, 1, "0/1", False, "other timeline"),
    ],
)
def test_which_positions_a_promoted_server_continues(
    then: int, now: int, lsn: str, views: bool, verdict: str | None
) -> None:
    """Up to the switch point and no further; a server that does not descend from ours never."""
    found = list(refusals(Answers(), then=then, now=now, lsn=lsn_number(lsn), snapshot_views=views))
    assert [e.message.partition(":")[0] for e in found] == ([verdict] if verdict else [])
    assert all(e.hint for e in found)


def test_a_verdict_asks_for_no_restart_unless_it_may_pass() -> None:
    """A slot that is gone is gone at the next start, too; a replica that is behind catches up."""
    assert {GapError("gone").exit_code, VerdictError("another source").exit_code} == {4}
    assert {4, 3, 2} == FINAL
    assert GapError("behind, as it seems", may_pass=True).exit_code == OperatorError("a right").exit_code == 1
