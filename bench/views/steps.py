"""Measures a step of a view job in one engine alone: a million tweets, a hundred thousand follows.

    python -m bench.views.steps [--engine duckdb|spark|postgres] [--tweets N] [--follows N] [--views 50]

Prints, for a timeline (a join of two million rows) and an aggregate, the seconds of one step by how many rows it
changes, the median of five, and of computing everything, with the CPU time of the process and its JVM; and the process'
memory. Kafka takes no part; with the embedded engine, neither does Spark. With the embedded engine also a step of one
change with the aggregate alone, and beside as many other views over rows that do not change.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import statistics
import tempfile
import time
from pathlib import Path

from cdc.dev.servers.launch import family
from cdc.dev.stack import DevServers
from cdc.model.change import Kind
from spark_apply.spark.session import open_session
from spark_apply.views.cluster.kept_rows import Kept
from spark_apply.views.cluster.lake import Lake
from spark_apply.views.cluster.state import ClusterState
from spark_apply.views.cluster.step import ClusterStep
from spark_apply.views.cluster.step_parts import Running
from spark_apply.views.database.names import waiting
from spark_apply.views.database.state import DatabaseState
from spark_apply.views.database.step import DatabaseStep
from spark_apply.views.embedded.fold import SourceTable
from spark_apply.views.embedded.state import ViewState, place
from spark_apply.views.embedded.step import Step
from spark_apply.views.model.uses import TableUse
from spark_apply.views.planning.view import View
from spark_apply.views.running.step import StepOfViews
from spark_apply.views.sql.plan import plan_view
from spark_apply.views.sql.view_plan import Relation

INT, TEXT = Kind("int64"), Kind("string")
TWEETS = SourceTable(TableUse("public.tweets"), [("id", INT), ("sender", INT), ("text", TEXT)], ("id",))
FOLLOWS = SourceTable(TableUse("public.follows"), [("id", INT), ("follower", INT), ("followee", INT)], ("id",))
TABLES = [TWEETS, FOLLOWS]
TIMELINE = """SELECT f.id AS follow, f.follower, t.id AS tweet, t.sender, t.text
FROM public.tweets t JOIN public.follows f ON f.followee = t.sender"""
COUNTS = "SELECT sender, count(*) AS n, max(id) AS newest FROM public.tweets GROUP BY sender"
STEPS = (1, 1_000, 50_000)
SENDERS = 50_000


def position(commit: int) -> str:
    """Return the position of a commit, by its number."""
    return f"00000001.{commit:016x}.00000000"


class Bench:
    """A state with both tables and both views."""

    engine = "duckdb"
    tables = TABLES

    def __init__(self, folder: Path) -> None:
        self.state = self.opened(folder)
        relations = {of.relation: Relation(of.relation, dict(of.columns), of.key) for of in TABLES}
        timeline = plan_view("timeline", TIMELINE, ["follow", "tweet"], relations, engine=self.engine)
        counts = plan_view("counts", COUNTS, ["sender"], relations, engine=self.engine)
        self.views = [
            View(
                timeline,
                [*((name, INT) for name in ("follow", "follower", "tweet", "sender")), ("text", TEXT)],
                TIMELINE,
            ),
            View(counts, [("sender", INT), ("n", INT), ("newest", INT)], COUNTS),
        ]
        with self.state.transaction():
            for of in TABLES:
                self.state.prepare_table(of.relation, of.columns, (), of.key)
        for view in self.views:
            self.state.keep_published(view.name, ())
        self.commit = 1

    def opened(self, folder: Path) -> ViewState:
        return ViewState(folder, memory="400MB")

    def series(self, count: int) -> str:
        """Return what has the numbers below `count` as ``i``."""
        return f"range({count}) t(i)"

    def new_step(self, stale: list[str]) -> StepOfViews:
        return Step(self.state, position(self.commit), 0, 0, stale)

    def end(self, step: StepOfViews) -> None:
        """Take over what the step has made."""

    def close(self) -> None:
        """End what was opened."""
        self.state.close()

    def waiting(self, relation: str) -> str:
        """Return the table in which events of a relation wait."""
        return place("pending", relation)

    def wait(self, table: SourceTable, rows: str) -> None:
        """Let events wait: `rows` selects the columns of a table, after the key's JSON."""
        columns = ", ".join(name for name, _ in table.columns)
        self.state.execute(
            f"INSERT INTO {self.waiting(table.relation)} (_cdc_key, _cdc_position, _cdc_op, {columns}) "
            f"SELECT '{{\"id\":' || id || '}}', ?, 'u', * FROM ({rows}) r",
            [position(self.commit)],
        )

    def step(self, *, stale: bool = False) -> float:
        self.commit += 1
        begun = time.perf_counter()
        with self.state.transaction():
            step = self.new_step([v.name for v in self.views] if stale else [])
            for table in self.tables:
                step.fold(table, reload=False)
            for view in self.views:
                step.compute(view)
            step.apply(self.tables, self.views)
            self.events = self.state.rows("SELECT count(*) FROM outbox")[0][0]
            self.state.execute("DELETE FROM outbox")
        self.end(step)
        return time.perf_counter() - begun


class OnExecutors(Bench):
    """The same in tables of a lake, computed by Spark on this machine."""

    engine = "spark"

    def opened(self, folder: Path) -> ViewState:
        spark = open_session("bench", {"spark.master": "local[2]", "spark.sql.shuffle.partitions": "2"})
        self.lake = Lake(spark, str(folder / "tables"))
        self.lake.settle(spark)
        self.kept: dict[str, Kept] = {}
        self.file = ClusterState(folder, memory="400MB")
        return self.file

    def new_step(self, stale: list[str]) -> StepOfViews:
        on = Running(self.lake.spark, self.lake, self.file, position(self.commit))
        return ClusterStep(on, 0, 0, stale, self.kept)

    def end(self, step: StepOfViews) -> None:
        assert isinstance(step, ClusterStep)
        step.end()
        self.kept |= step.relations


class InDatabase(Bench):
    """The same in a PostgreSQL of its own."""

    engine = "postgres"

    def opened(self, folder: Path) -> ViewState:
        self.servers = DevServers(folder / "servers", servers=("postgres18",))
        return DatabaseState(self.servers.__enter__()["postgres18"].url, job="bench", prefix="bench")

    def series(self, count: int) -> str:
        return f"generate_series(0, {count - 1}) t(i)"

    def waiting(self, relation: str) -> str:
        return waiting(relation)

    def new_step(self, stale: list[str]) -> StepOfViews:
        assert isinstance(self.state, DatabaseState)
        return DatabaseStep(self.state, position(self.commit), 0, 0, stale)

    def close(self) -> None:
        super().close()
        self.servers.__exit__(None, None, None)


ENGINES = {of.engine: of for of in (Bench, OnExecutors, InDatabase)}


def beside_others(bench: Bench, count: int) -> None:
    """Print what one change costs with one view, and with others beside it that it does not touch."""
    relations = {of.relation: Relation(of.relation, dict(of.columns), of.key) for of in TABLES}
    others = []
    for number in range(count - 1):
        sql = f"SELECT follower, count(*) AS n FROM public.follows WHERE followee % 100 = {number} GROUP BY follower"
        plan = plan_view(f"other_{number}", sql, ["follower"], relations)
        others.append(View(plan, [("follower", INT), ("n", INT)], sql))
        bench.state.keep_published(plan.name, ())
    alone = bench.views[1:]
    bench.views = [*alone, *others]
    bench.step(stale=True)
    print(f"{'views, one of them touched':>28} {'seconds':>8} {'CPU':>8}")
    for views in (alone, [*alone, *others]):
        bench.views, taken, used = views, [], []
        for turn in range(9):
            bench.wait(TWEETS, f"SELECT {turn} AS id, {turn + len(views)} AS sender, 'other' AS text")
            begun = cpu_seconds()
            taken.append(bench.step())
            used.append(cpu_seconds() - begun)
        print(f"{len(views):>28} {statistics.median(taken):>8.3f} {statistics.median(used):>8.2f}")


def cpu_seconds() -> float:
    """Of this process and all that it has started."""
    ticks = 0
    for pid in family(os.getpid()):
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.views.steps", description=__doc__)
    parser.add_argument("--tweets", type=int, default=1_000_000)
    parser.add_argument("--follows", type=int, default=100_000)
    parser.add_argument("--engine", choices=[*ENGINES], default="duckdb")
    parser.add_argument("--views", type=int, default=50, help="beside each other, one of them touched; 0: not measured")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, contextlib.closing(ENGINES[asked.engine](Path(folder))) as bench:
        bench.wait(TWEETS, f"SELECT i AS id, i % {SENDERS} AS sender, 'text ' || i FROM {bench.series(asked.tweets)}")
        follows = f"i AS id, i % 9973 AS follower, i % {SENDERS} AS followee FROM {bench.series(asked.follows)}"
        bench.wait(FOLLOWS, f"SELECT {follows}")
        print(f"everything, first: {bench.step(stale=True):.2f} s, {bench.events:,} events")
        print(f"{'changed tweets':>16} {'seconds':>8} {'CPU':>8} {'changes/s':>10} {'events/s':>10}")
        for size in STEPS:
            taken, used, events = [], [], 0
            for turn in range(5):
                first = turn * size
                moved = (
                    f"i + {first} AS id, (i + {first + bench.commit}) % {SENDERS} AS sender, 'new ' || (i + {first})"
                )
                bench.wait(TWEETS, f"SELECT {moved} FROM {bench.series(size)}")
                begun = cpu_seconds()
                taken.append(bench.step())
                used.append(cpu_seconds() - begun)
                events = bench.events
            median, cpu = statistics.median(taken), statistics.median(used)
            print(f"{size:>16,} {median:>8.3f} {cpu:>8.2f} {size / median:>10,.0f} {events / median:>10,.0f}")
        if asked.views and asked.engine == "duckdb":
            beside_others(bench, asked.views)
        print(f"load at the end: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
        print(f"memory at most: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:,.0f} MB")


if __name__ == "__main__":
    main()
