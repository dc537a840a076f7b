"""Measures a step of a view job in the embedded engine alone: a million tweets, a hundred thousand follows.

    python -m bench.derived.views [--tweets N] [--follows N]

Prints, for a timeline (a join of two million rows) and an aggregate, the seconds of one step by how many rows it
changes, the median of five, and of computing everything; and the process' memory. Neither Kafka nor Spark takes part.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import tempfile
import time
from pathlib import Path

from cdc.model.change import Kind
from spark_apply.views.fold import SourceTable
from spark_apply.views.sql.plan import plan_view
from spark_apply.views.sql.view_plan import Relation
from spark_apply.views.state import ViewState, place
from spark_apply.views.step import Step
from spark_apply.views.uses import TableUse
from spark_apply.views.view import View

INT, TEXT = Kind("int64"), Kind("string")
TWEETS = SourceTable(TableUse("public.tweets"), [("id", INT), ("sender", INT), ("text", TEXT)], ("id",))
FOLLOWS = SourceTable(TableUse("public.follows"), [("id", INT), ("follower", INT), ("followee", INT)], ("id",))
TABLES = [TWEETS, FOLLOWS]
TIMELINE = """SELECT f.id AS follow, f.follower, t.id AS tweet, t.sender, t.text
FROM public.tweets t JOIN public.follows f ON f.followee = t.sender"""
COUNTS = "SELECT sender, count(*) AS n, max(id) AS newest FROM public.tweets GROUP BY sender"
STEPS = (1, 1_000, 50_000)
SENDERS = 50_000


def _position(commit: int) -> str:
    return f"00000001.{commit:016x}.00000000"


class Bench:
    """A state with both tables and both views."""

    def __init__(self, folder: Path) -> None:
        self.state = ViewState(folder, memory="400MB")
        relations = {of.relation: Relation(of.relation, dict(of.columns), of.key) for of in TABLES}
        timeline = plan_view("timeline", TIMELINE, ["follow", "tweet"], relations)
        counts = plan_view("counts", COUNTS, ["sender"], relations)
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
            self.state.execute("CREATE TABLE work.published (view VARCHAR, key VARCHAR, row VARCHAR)")
        self.commit = 1

    def wait(self, table: SourceTable, rows: str) -> None:
        """Let events wait: `rows` selects the columns of a table, after the key's JSON."""
        columns = ", ".join(name for name, _ in table.columns)
        self.state.execute(
            f"INSERT INTO {place('pending', table.relation)} (_cdc_key, _cdc_position, _cdc_op, {columns}) "
            f"SELECT '{{\"id\":' || id || '}}', ?, 'u', * FROM ({rows})",
            [_position(self.commit)],
        )

    def step(self, *, stale: bool = False) -> float:
        self.commit += 1
        begun = time.perf_counter()
        with self.state.transaction():
            step = Step(self.state, _position(self.commit), 0, 0, [v.name for v in self.views] if stale else [])
            for table in TABLES:
                step.fold(table, reload=False)
            for view in self.views:
                step.compute(view)
            step.apply(TABLES, self.views)
            self.events = self.state.rows("SELECT count(*) FROM outbox")[0][0]
            self.state.execute("DELETE FROM outbox")
        return time.perf_counter() - begun


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.derived.views", description=__doc__)
    parser.add_argument("--tweets", type=int, default=1_000_000)
    parser.add_argument("--follows", type=int, default=100_000)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        bench.wait(TWEETS, f"SELECT i AS id, i % {SENDERS} AS sender, 'text ' || i FROM range({asked.tweets}) t(i)")
        follows = f"i AS id, i % 9973 AS follower, i % {SENDERS} AS followee FROM range({asked.follows}) t(i)"
        bench.wait(FOLLOWS, f"SELECT {follows}")
        print(f"everything, first: {bench.step(stale=True):.2f} s, {bench.events:,} events")
        print(f"{'changed tweets':>16} {'seconds':>8} {'changes/s':>10} {'events/s':>10}")
        for size in STEPS:
            taken, events = [], 0
            for turn in range(5):
                first = turn * size
                moved = f"i AS id, (i + {bench.commit}) % {SENDERS} AS sender, 'new ' || i"
                bench.wait(TWEETS, f"SELECT {moved} FROM range({first}, {first + size}) t(i)")
                taken.append(bench.step())
                events = bench.events
            median = statistics.median(taken)
            print(f"{size:>16,} {median:>8.3f} {size / median:>10,.0f} {events / median:>10,.0f}")
        print(f"memory at most: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:,.0f} MB")


if __name__ == "__main__":
    main()
