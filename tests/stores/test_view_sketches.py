"""Approximate aggregates in a job: within their bounds, retracted, the same after a replay and in Spark."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import datasketches
import pytest
from pyspark.sql import SparkSession

from cdc.config.views import ViewConfig
from spark_apply.views.proof.explain import explain_view
from spark_apply.views.proof.verify import verify_views
from tests.views.bench import EITHER, ViewBench
from tests.views.cases import INT, TEXT, TIME, at

pytest_plugins = ["tests.spark.fixtures"]
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

VIEWS = {
    "uniques": ViewConfig(
        sql="SELECT page, approx_count_distinct(visitor) AS n FROM public.visits GROUP BY page", key=("page",)
    ),
    "pages": ViewConfig(
        sql="SELECT page, count(*) AS visits, approx_count_distinct(visitor, 0.05) FILTER (WHERE ms > 1) AS visitors, "
        "approx_percentile(ms, 0.9) AS p90, approx_top_k(visitor, 2) AS most FROM public.visits GROUP BY page",
        key=("page",),
    ),
    "days": ViewConfig(
        sql="WITH hours AS (SELECT date_trunc('HOUR', at) AS hour, hll_sketch_agg(visitor) AS s FROM public.visits "
        "GROUP BY date_trunc('HOUR', at)) SELECT date_trunc('DAY', hour) AS day, "
        "hll_sketch_estimate(hll_union_agg(s)) AS n FROM hours GROUP BY date_trunc('DAY', hour)",
        key=("day",),
    ),
}


@EITHER
def test_approximate_values_follow_their_rows(
    apply_spark: SparkSession, kafka: str, tmp_path: Path, engine: str
) -> None:
    """Rows that leave a value as it is publish nothing; neither does a job whose state is lost."""
    views = {name: view for name, view in VIEWS.items() if engine == "duckdb" or name != "days"}
    columns: Mapping[str, Mapping[str, Any]] = {
        "visits": {"id": INT, "page": TEXT, "visitor": INT, "ms": INT, "at": TIME}
    }
    bench = ViewBench(kafka, tmp_path, columns, views, engine=engine, partitions=1)
    rows: dict[int, dict[str, Any]] = {}

    def write(*changes: tuple[str, dict[str, Any]]) -> dict[str, list[tuple[str, Any, Any]]]:
        for op, row in changes:
            rows.pop(row["id"], None)
            if op != "d":
                rows[row["id"]] = row
        bench.transaction(*(("visits", op, row) for op, row in changes))
        assert bench.run().stopped == {}
        return {name: bench.events(name) for name in views}

    def visit(number: int, page: str | None, visitor: int, ms: int = 5) -> dict[str, Any]:
        return {"id": number, "page": page, "visitor": visitor, "ms": ms, "at": at(f"{number % 24:02}:30")}

    found = write(
        *(("c", visit(n, "a", n % 450, n)) for n in range(600)),
        *(("c", visit(n, None, n % 5)) for n in range(600, 620)),
    )
    for page in ("a", None):
        (row,) = (after for _, key, after in found["pages"] if key == (page,))
        of = [each for each in rows.values() if each["page"] == page]
        exact = len({each["visitor"] for each in of if each["ms"] > 1})
        assert abs(row["visitors"] / exact - 1) <= datasketches.hll_sketch.get_rel_err(False, True, 9, 3)
        assert (row["visits"], row["p90"]) == (len(of), sorted(each["ms"] for each in of)[-(-len(of) * 9 // 10) - 1])
        often = Counter(each["visitor"] for each in of)
        assert row["most"] == sorted(often, key=lambda visitor: (-often[visitor], visitor))[:2]
    (before,) = (after["n"] for _, key, after in found["uniques"] if key == ("a",))
    assert abs(before / 450 - 1) <= datasketches.hll_sketch.get_rel_err(False, True, 12, 3)

    found = write(("c", visit(1_000, "a", 3)), ("d", visit(0, "a", 0, 0)))
    assert (found["uniques"], len(found["pages"])) == ([], 1), "all visitors are still there"
    found = write(*(("c", visit(n, "a", n)) for n in range(1_001, 1_061)))
    ((_, _, row),) = found["uniques"]
    assert row["n"] > before
    found = write(*(("d", visit(n, "a", n)) for n in range(1_001, 1_061)))
    assert found["uniques"] == [("u", ("a",), {"page": "a", "n": before})], "what it was before they came"
    found = write(*(("d", row) for row in list(rows.values()) if row["page"] is None))
    assert [(op, key) for op, key, _ in found["uniques"]] == [("d", (None,))]
    assert all(of.agrees for of in verify_views(bench.config))
    told = explain_view(bench.config, "uniques", '{"page": "a"}')
    assert (told.outcome, told.unit) == ("row", {"page": "a"})
    assert told.rows
    shutil.rmtree(tmp_path / "state")
    assert bench.run().stopped == {}
    assert {name: bench.events(name) for name in views} == {name: [] for name in views}
