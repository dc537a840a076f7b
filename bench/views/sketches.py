"""Measures what one change costs in a group of a million rows: exact, and with a sketch that is kept.

    python -m bench.views.sketches [--rows N]

Prints, by what the view counts, the CPU milliseconds of a step (the median of five): for a row with a new value, for a
row that goes and whose value others have, for one whose value nobody else has, and for a row of another, small group;
and of computing everything. `count(*)` says what a step costs by itself. Then what a merge of a day's sketches costs.
Kafka and Spark take no part.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Final

from bench.views import steps
from cdc.model.change import Kind
from spark_apply.views.embedded.fold import SourceTable
from spark_apply.views.embedded.sketches import sketch, union
from spark_apply.views.embedded.state import place
from spark_apply.views.model.uses import TableUse
from spark_apply.views.planning.view import View
from spark_apply.views.sql.plan import plan_view
from spark_apply.views.sql.view_plan import Relation

_COLUMNS: Final = [("id", steps.INT), ("page", steps.INT), ("visitor", steps.INT)]
VISITS: Final = SourceTable(TableUse("public.visits"), _COLUMNS, ("id",))
COUNTED: Final = (
    "count(*)",
    "count(DISTINCT visitor)",
    "approx_count_distinct(visitor)",
    "approx_percentile(visitor, 0.95)",
    "approx_top_k(visitor % 1000, 10)",
    "approx_top_k(visitor, 10)",
)
HOT, COLD = 1, 7
TURNS: Final = 5


class Pages(steps.Bench):
    """A state with one table and one view of it."""

    def __init__(self, folder: Path, counted: str) -> None:
        self.state = self.opened(folder)
        sql = f"SELECT page, {counted} AS n FROM public.visits GROUP BY page"
        relation = Relation(VISITS.relation, dict(VISITS.columns), VISITS.key)
        of = steps.INT if "top_k" not in counted else Kind("array", element=steps.INT)
        self.views = [
            View(plan_view("pages", sql, ["page"], {relation.name: relation}), [("page", steps.INT), ("n", of)], sql)
        ]
        self.tables = [VISITS]
        with self.state.transaction():
            self.state.prepare_table(VISITS.relation, VISITS.columns, (), VISITS.key)
            self.state.execute("CREATE TABLE work.published (view VARCHAR, key VARCHAR, row VARCHAR)")
        self.commit = 1

    def delete(self, number: int) -> None:
        at = place("pending", VISITS.relation)
        self.state.execute(
            f"INSERT INTO {at} (_cdc_key, _cdc_position, _cdc_op, id) VALUES (?, ?, 'd', ?)",
            [f'{{"id":{number}}}', steps.position(self.commit), number],
        )

    def cpu_ms(self, *, stale: bool = False) -> float:
        begun = time.process_time()
        self.step(stale=stale)
        return (time.process_time() - begun) * 1000


def measured(counted: str, rows: int) -> list[float]:
    """Return what everything, and each kind of change, costs."""
    with tempfile.TemporaryDirectory() as folder:
        bench = Pages(Path(folder), counted)
        hot = f"SELECT i AS id, {HOT} AS page, hash(i) % {rows * 7 // 10} AS visitor FROM range({rows}) t(i)"
        bench.wait(VISITS, f"{hot} UNION ALL SELECT i, 2 + i % 1000, i FROM range({rows}, {rows + 10_000}) t(i)")
        found = [bench.cpu_ms(stale=True)]
        new, taken = rows * 2, dict[str, list[float]](new=[], shared=[], alone=[], cold=[])
        for turn in range(TURNS):
            bench.wait(VISITS, f"SELECT {new + turn} AS id, {HOT} AS page, {new + turn} AS visitor")
            taken["new"].append(bench.cpu_ms())
        for turn in range(TURNS):
            bench.wait(VISITS, f"SELECT {new + TURNS + turn} AS id, {HOT} AS page, {new + turn} AS visitor")
            bench.step()
            bench.delete(new + TURNS + turn)
            taken["shared"].append(bench.cpu_ms())
            bench.delete(new + turn)
            taken["alone"].append(bench.cpu_ms())
            bench.wait(VISITS, f"SELECT {rows * 3 + turn} AS id, {COLD} AS page, {new + turn} AS visitor")
            taken["cold"].append(bench.cpu_ms())
        bench.state.close()
    return [*found, *(statistics.median(of) for of in taken.values())]


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m bench.views.sketches", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    asked = parser.parse_args()
    heads = ("everything", "new value", "gone, shared", "gone, alone", "small group")
    print(f"CPU milliseconds of a step, {asked.rows:,} rows in one group")
    print(f"{'':36}" + "".join(f"{head:>14}" for head in heads))
    for counted in COUNTED:
        print(f"{counted:36}" + "".join(f"{ms:>14,.0f}" for ms in measured(counted, asked.rows)), flush=True)
    hours = [sketch([f"_{value}" for value in range(hour * 500, hour * 500 + 20_000)], 12) for hour in range(24)]
    begun = time.process_time()
    for _ in range(100):
        union(hours, 12)
    each = (time.process_time() - begun) * 10
    print(f"24 sketches of 20,000 values ({len(hours[0]):,} bytes each) are merged in {each:.2f} ms")


if __name__ == "__main__":
    main()
