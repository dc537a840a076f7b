"""Negative controls: with a guarantee taken out the oracles must report violations, with all in place none.

A checker that cannot fail proves nothing. What each control found is printed.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from connectors.postgres.lsn import lsn_number
from tests.conftest import Database
from tests.faults.connector import Connector
from tests.faults.oracles import Findings, Judge
from tests.faults.postgres import SOURCE, PostgresWriter
from tests.faults.reading import Positions, Reader, topics_of
from tests.faults.soak import judged
from tests.faults.workload import Workload

_ENDS_S = 120


@dataclass
class Bench:
    """A small workload, a connector, and the judge."""

    database: Database
    kafka: str
    connector: Connector
    workload: Workload
    handed_over: int = 0

    def caught_up(self, *module: str) -> None:
        """Run, as it is or broken, until all is in Kafka."""
        copy = self.connector.start("--until-caught-up", module=module or ("cdc", "run"))
        assert copy.process.wait(_ENDS_S) == 0, copy.said()

    def dies(self, *module: str) -> None:
        """Run, as it is or broken, until it kills itself."""
        copy = self.connector.start(module=module)
        self.workload.write(30)
        assert copy.process.wait(_ENDS_S) == -signal.SIGKILL, copy.said()

    def refused(self, *verdicts: str) -> None:
        """As it is, it stops and says why, which is one of these."""
        copy = self.connector.start("--until-caught-up")
        assert copy.process.wait(_ENDS_S) == 4, copy.said()
        assert any(verdict in copy.said() for verdict in verdicts), copy.said()

    def begin(self) -> None:
        """The snapshot done, and some transactions behind it."""
        self.caught_up()
        self.handed_over = self.log_end()
        self.workload.write(30)

    def log_end(self) -> int:
        return lsn_number(str(self.database.rows("SELECT pg_current_wal_insert_lsn()::text")[0][0]))

    def slot(self) -> int:
        ((lsn,),) = self.database.rows(
            f"SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = '{self.slot_name}'"
        )
        return lsn_number(str(lsn))

    @property
    def slot_name(self) -> str:
        return f"cdc_{self.connector.name}"

    def found(self, isolation: str = "read_committed") -> Findings:
        judge = judged(
            *(self.kafka, self.connector.name, self.workload),
            schema="public", handed_over=self.handed_over, isolation=isolation,
        )  # fmt: skip
        return judge.found


@pytest.fixture
def bench(postgres18: Database, kafka: str, prefix: str, tmp_path: Path) -> Iterator[Bench]:
    workload = Workload(PostgresWriter, postgres18.url, seed=1, accounts=600, writers=1)
    workload.prepare()
    connector = Connector(tmp_path, SOURCE, postgres18.url, kafka, chunk_rows=100, name=prefix)
    with closing(connector):
        yield Bench(postgres18, kafka, connector, workload)


Show = Callable[[str, Findings], None]


@pytest.fixture
def show(capsys: pytest.CaptureFixture[str]) -> Show:
    """Print what a control found, also where tests pass."""

    def told(control: str, found: Findings) -> None:
        with capsys.disabled():
            print(
                f"\n  control “{control}”: lost {found.lost}, doubled {found.doubled}, torn {found.torn}, "
                f"order breaks {found.order_breaks}"
            )
            for line in found.said[:3]:
                print(f"    {line}")

    return told


@pytest.mark.full  # the soaks, of which the same oracles have nothing to say
def test_nothing_taken_out(bench: Bench, show: Show) -> None:
    """Killed between writing and committing, and after committing: the oracles have nothing to say."""
    bench.begin()
    for point in ("sink.commit", "sink.commit.answer"):
        bench.dies("tests.faults.crashing", point, "2")
    bench.caught_up()
    found = bench.found()
    show("nothing taken out", found)
    assert not found.any, found.said


@pytest.mark.full  # two controls stand for all: one of what is lost, one of what is torn and doubled
def test_future_check_removed(bench: Bench, show: Show) -> None:
    """A slot moved on by hand: the verdict stops the connector; without the verdict the gap is noticed as lost."""
    bench.begin()
    bench.caught_up()
    bench.workload.write(30)
    bench.database.execute(f"SELECT pg_replication_slot_advance('{bench.slot_name}', pg_current_wal_insert_lsn())")
    bench.workload.write(10)
    bench.refused("slot ahead", "slot re-made")  # where nothing was running, it looks as if made there
    bench.caught_up("tests.faults.broken", "no-verdict", "none", "0")
    found = bench.found()
    show("future check removed", found)
    assert found.lost >= 30


def test_acknowledged_before_the_commit(bench: Bench, show: Show) -> None:
    """Killed between acknowledgement and commit: the slot is ahead, and going on regardless has lost something."""
    bench.begin()
    bench.dies("tests.faults.broken", "no-verdict", "early-acknowledge", "sink.commit", "1")
    with Positions(bench.kafka, bench.connector.name, bench.connector.name) as positions:
        state = positions.newest()
    assert state is not None
    assert bench.slot() > state.commit, "a sample that says: slot ahead"
    bench.refused("slot ahead", "slot re-made")  # by where the server had begun to keep the log
    bench.caught_up("tests.faults.broken", "no-verdict", "none", "0")
    found = bench.found()
    show("acknowledged before the commit", found)
    assert found.lost > 0


@pytest.mark.full  # two controls stand for all: one of what is lost, one of what is torn and doubled
def test_read_uncommitted(bench: Bench, show: Show) -> None:
    """A copy dies with its events written and not committed: who reads them too sees them twice."""
    bench.begin()
    bench.dies("tests.faults.crashing", "sink.flushed", "1")
    bench.caught_up()
    committed, uncommitted = bench.found(), bench.found("read_uncommitted")
    show("read_uncommitted", uncommitted)
    assert not committed.any, committed.said
    assert uncommitted.doubled > 0
    assert uncommitted.order_breaks > 0


def test_committed_in_pieces(bench: Bench, show: Show) -> None:
    """Dead between two pieces of a source transaction: seen at once as ahead of its position, and later as twice."""
    bench.begin()
    bench.dies("tests.faults.broken", "torn", "sink.write", "100")
    seen = Judge(total=bench.workload.total)
    name = bench.connector.name
    with (
        closing(Reader(bench.kafka, topics_of(name, "public"))) as reader,
        Positions(bench.kafka, name, name) as positions,
    ):
        assert reader.open()
        ends = reader.ends()
        assert ends is not None
        reader.read(seen.feed, ends, within_s=5)  # the last piece is open, and stays so
        state = positions.newest()
    assert state is not None
    seen.ahead(state.commit)
    show("committed in pieces, seen at once", seen.found)
    assert seen.found.torn > 0
    bench.caught_up()
    found = bench.found()
    show("committed in pieces, seen later", found)
    assert found.doubled > 0


@pytest.mark.full  # two controls stand for all: one of what is lost, one of what is torn and doubled
def test_new_slot_after_a_snapshot_crash(bench: Bench, show: Show) -> None:
    """The snapshot dies half-way and goes on behind another slot: what happened in between is in neither."""
    bench.dies("tests.faults.crashing", "sink.commit.answer", "4")
    bench.workload.write(60)
    bench.database.execute(
        f"SELECT pg_drop_replication_slot('{bench.slot_name}')",
        f"SELECT pg_create_logical_replication_slot('{bench.slot_name}', 'pgoutput')",
    )
    bench.refused("slot re-made")
    bench.caught_up("tests.faults.broken", "no-verdict", "none", "0")
    found = bench.found()
    show("new slot after a snapshot crash", found)
    assert found.lost > 0
