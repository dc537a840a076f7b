"""What is asked of a view beside its job: explain, repair, rebuild, rollback, while the job runs and while not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from cdc.config.views import ViewConfig
from spark_apply.views.explain import explain_view
from tests.spark_records import position
from tests.view_bench import ViewBench
from tests.view_cases import INT, TABLES, at

pytest_plugins = ["tests.spark_fixtures"]
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

_TIME = TABLES["s"]["at"]
_SEARCHES = {
    "outcome": ViewConfig(
        sql="SELECT s.id, CASE WHEN min(c.at) IS NOT NULL THEN 'clicked' ELSE 'not clicked' END AS outcome "
        "FROM public.s s LEFT JOIN public.c c "
        "ON c.search_id = s.id AND c.at BETWEEN s.at AND s.at + INTERVAL 30 MINUTES "
        "GROUP BY s.id, s.at HAVING min(c.at) IS NOT NULL OR s.at + INTERVAL 40 MINUTES <= clock()",
        key=("id",),
    ),
    "outcomes": ViewConfig(
        sql="WITH o AS (SELECT outcome, count(*) AS n FROM view.outcome GROUP BY outcome) "
        "SELECT n, count(*) AS m FROM o GROUP BY n",
        key=("n",),
    ),
    "texts": ViewConfig(sql="SELECT CAST(id AS STRING) AS t, x FROM public.n", key=("x",)),
}


def _keys(rows: Any) -> list[tuple[str, Any]]:
    return [(row.table, json.loads(row.key)) for row in rows]


def test_what_a_row_comes_from(apply_spark: SparkSession, kafka: str, tmp_path: Path) -> None:
    """The rows of tables behind a row, through joins, nodes and other views; the deadline; the clock, or the rows."""
    columns = {
        "s": {"id": INT, "at": _TIME},
        "c": {"id": INT, "search_id": INT, "at": _TIME},
        "n": {"id": INT, "x": INT},
    }
    bench = ViewBench(kafka, tmp_path, columns, _SEARCHES)
    bench.transaction(
        *(("s", "c", {"id": n, "at": at("10:00")}) for n in range(1, 40)),
        ("n", "c", {"id": 1, "x": 7}),
        ("n", "c", {"id": 2, "x": 8}),
        at_ms=at("10:01") // 1000,
    )
    bench.run()
    bench.transaction(("c", "c", {"id": 5, "search_id": 3, "at": at("10:05")}), at_ms=at("10:06") // 1000)
    clicked = position(bench.commit, 1)
    bench.transaction(("n", "c", {"id": 3, "x": 8}), at_ms=at("10:06") // 1000)
    bench.run()

    found = explain_view(bench.config, "outcome", '{"id": 3}')
    assert (found.outcome, found.published) == ("row", {"id": 3, "outcome": "clicked"})
    assert (found.unit, _keys(found.rows)) == ({"id": 3}, [("public.s", {"id": 3}), ("public.c", {"id": 5})])
    assert found.deadline is not None
    assert found.deadline.isoformat() == "2026-01-01T10:40:00"
    assert found.changed is not None
    assert not found.changed["clock"]
    assert found.changed["rows"] == [
        {"table": "public.c", "key": {"id": 5}, "position": clicked, "at_ms": at("10:06") // 1000}
    ]
    found = explain_view(bench.config, "outcome", "4")
    assert (found.outcome, found.published, found.records) == ("none", None, ())
    assert _keys(found.rows) == [("public.s", {"id": 4})]
    held = explain_view(bench.config, "texts", "8")
    assert (held.outcome, held.quarantined) == ("quarantined", "the key is not unique")
    assert _keys(held.rows) == [("public.n", {"id": 3}), ("public.n", {"id": 2})]

    bench.stand(at_ms=at("10:41") // 1000)
    bench.run()
    found = explain_view(bench.config, "outcome", "4")
    assert (found.outcome, found.published) == ("row", {"id": 4, "outcome": "not clicked"})
    assert found.changed is not None
    assert (found.changed["clock"], found.deadline) == (True, None)
    whole = explain_view(bench.config, "outcomes", "38")
    assert (whole.published, len(whole.rows), list(whole.more)) == ({"n": 38, "m": 1}, 20, ["public.s"])
    assert {row.table for row in whole.rows} == {"public.s"}
    one = explain_view(bench.config, "outcomes", "1")
    assert _keys(one.rows) == [("public.s", {"id": 3}), ("public.c", {"id": 5})]
