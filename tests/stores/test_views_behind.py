"""A view that could not be taken to the position of its job is not taken for one that was."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cdc.config.apply_config import ApplyTable, StoreConfig
from cdc.config.config import ApplyConfig
from cdc.config.views import ViewConfig
from spark_apply.job.job import run_apply
from spark_apply.job.watermarks.progress import Reader
from spark_apply.views.job import run_views
from tests.spark.records import position
from tests.views.bench import ViewBench
from tests.views.cases import TABLES

pytest_plugins = ["tests.spark.fixtures"]
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")


@pytest.mark.full  # tests/unit/test_view_start.py
def test_what_reads_a_stopped_view_of_another_job_stays_where_it_was(
    apply_spark: SparkSession, kafka: str, tmp_path: Path
) -> None:
    """Its rows are of an older position than those of the views beside it; its copies do not say otherwise."""
    counts = ViewConfig(sql="SELECT g, count(*) AS n FROM public.x GROUP BY g", key=("g",), unit_limit=2)
    views = {"rows": ViewConfig(sql="SELECT id, g FROM public.x", key=("id",)), "counts": counts}
    bench = ViewBench(kafka, tmp_path, {"x": TABLES["x"]}, views, partitions=1)
    over = {
        "ids": ViewConfig(sql="SELECT id FROM view.rows", key=("id",)),
        "both": ViewConfig(sql="SELECT r.id, c.n FROM view.rows r JOIN view.counts c ON c.g = r.g", key=("id",)),
    }
    second = replace(bench.config, name="second", state=str(tmp_path / "second"), views=over)
    copies = ApplyConfig(
        name="copies",
        source=bench.config.source,
        checkpoint=str(tmp_path / "copies" / "checkpoint"),
        stores={"copy": StoreConfig(type="tantivy", path=str(tmp_path / "copy"))},
        tables={f"view.{name}": ApplyTable(stores=("copy",)) for name in views},
    )

    def run() -> tuple[Mapping[str, str], Mapping[str, str], bool]:
        stopped = bench.run().stopped, run_views(second, once=True).stopped
        run_apply(copies, once=True)
        with Reader(copies) as reader:
            complete = reader.read("copy", bench.prefix).complete
        return *stopped, complete is not None and complete.position == position(bench.commit + 1, 0)

    bench.transaction(*(("x", "c", {"id": number, "g": "a", "v": 1}) for number in (1, 2)))
    assert run() == ({}, {}, True)
    assert (bench.signs("ids"), bench.signs("both")) == (["+1", "+2"], ["+1", "+2"])
    bench.transaction(("x", "c", {"id": 3, "g": "a", "v": 1}))
    first, others, is_there = run()
    assert (list(first), list(others), is_there) == (["counts"], ["both"], False)
    assert "view job shop-views has stopped it" in others["both"]
    with Reader(copies) as reader:  # it says at the time-out which view it has waited for in vain
        late = reader.await_position(bench.prefix, position(bench.commit + 1, 0), ["copy"], timeout_s=0)
        assert late["copy"].ended == ["view.counts"]
    assert (bench.signs("ids"), bench.signs("both")) == (["+3"], [])
    bench.transaction(("x", "d", {"id": 1}))
    assert run() == ({}, {}, True)
    assert (bench.signs("ids"), bench.signs("both")) == (["-1"], ["+3", "-1"])
