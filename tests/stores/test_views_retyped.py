"""What a state has of columns that have other types now is what their events have."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cdc.config.views import ViewConfig
from spark_apply.views.proof.verify import verify_views
from tests.views.bench import EITHER, ViewBench, most_over
from tests.views.cases import INT, TABLES, TEXT, TIME, at, lookup

pytest_plugins = ["tests.spark.fixtures"]
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

_REAL = {"kind": "float32"}
_SINCE = "SELECT s.id, s.made, r.since, r.part, r.v FROM public.sale s JOIN public.rate r ON r.country = s.country"


@pytest.mark.full  # tests/unit/test_view_state.py
@EITHER
def test_rows_as_they_were_of_columns_that_have_another_type_now(
    apply_spark: SparkSession, kafka: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    """Older versions have the texts that their events have, as if the job had never had them otherwise."""
    most_over(monkeypatch, 0)  # executors fold them, too
    tables = {
        "sale": {**TABLES["sale"], "made": TIME},
        "rate": {"country": TEXT, "since": TIME, "part": _REAL, "v": INT},
    }
    views = {how: ViewConfig(sql=_SINCE, key=("id",), reads=lookup(how).reads) for how in ("event", "arrival")}
    bench = ViewBench(kafka, tmp_path, tables, views, logs=frozenset({"rate"}), engine=engine, partitions=1)
    for number, (op, clock) in enumerate((("r", "9:00"), ("u", "10:00"), ("u", "11:00")), 1):
        sale = {"id": number, "country": "de", "at": at(clock) + 1_000_000, "made": at(clock)}
        rate = ("rate", op, {"country": "de", "since": at(clock), "part": 0.1, "v": number})
        bench.transaction(rate, ("sale", "c", sale), at_ms=at(clock) // 1000)
    bench.run()
    assert [bench.signs(how) for how in views] == [["+1", "+2", "+3"]] * 2
    table = bench.tables["rate"]
    bench.tables["rate"] = replace(table, columns={**table.columns, "part": {"kind": "float64"}}, version=2)
    bench.publisher.versions(bench.tables.values())
    bench.transaction(at_ms=at("11:30") // 1000)
    assert bench.run().stopped == {}
    assert [bench.signs(how) for how in views] == [[], []], "a wider column has the same values"
    for name, column in (("sale", "made"), ("rate", "since")):
        table = bench.tables[name]
        bench.tables[name] = replace(table, columns={**table.columns, column: TEXT}, version=3)
    bench.publisher.versions(bench.tables.values())
    last = {"country": "de", "since": "noon", "part": 0.1, "v": 4}
    bench.transaction(("rate", "u", last), at_ms=at("12:00") // 1000)
    assert bench.run().stopped == {}
    texts = [(number, str(at(f"{number + 8}:00"))) for number in (1, 2, 3)]
    for how in views:
        found = [(op, row["id"], row["made"], row["since"]) for op, _, row in bench.events(how)]
        assert found == [("u", number, clock, clock) for number, clock in texts]
    assert all(of.agrees for of in verify_views(bench.config))
