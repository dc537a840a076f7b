"""docs/view-recipes.md shows what its recipes give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_apply.views.proof.verify import verify_views
from tests.spark.records import Record
from tests.views.bench import ViewBench
from tests.views.cases import at, renamed
from tests.views.recipes import CLOCKS, RECIPES, Change, Recipe, page

pytest_plugins = ["tests.spark.fixtures"]
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

PAGE = Path(__file__).parents[2] / "docs" / "view-recipes.md"


@pytest.mark.full  # the page is generated; cases of views are in test_views.py
def test_the_page_shows_what_the_recipes_give(apply_spark: SparkSession, kafka: str, tmp_path: Path) -> None:
    columns = {f"r{n}{name}": of for n, recipe in enumerate(RECIPES) for name, of in recipe.tables.items()}
    views = {f"r{n}": renamed(recipe.view, f"r{n}".__add__) for n, recipe in enumerate(RECIPES)}
    bench = ViewBench(kafka, tmp_path, columns, views)
    found: list[list[list[Mapping[str, Any]]]] = [[] for _ in RECIPES]
    for batch, clock in enumerate(CLOCKS):
        records = [
            record
            for number, recipe in enumerate(RECIPES)
            for record in _records(bench, number, recipe, (recipe.first, recipe.second)[batch])
        ]
        bench.stand(records, at_ms=at(clock) // 1000)
        assert bench.run().stopped == {}
        for number, of in enumerate(found):
            of.append(_rows(bench, f"r{number}"))
    assert {of.view: of.agrees for of in verify_views(bench.config)} == dict.fromkeys(views, True)
    made = page(found)
    assert PAGE.read_text(encoding="utf-8") == made, made


def _records(bench: ViewBench, number: int, recipe: Recipe, changes: Sequence[Change]) -> list[Record]:
    named = [
        (f"r{number}{table}", op, dict(zip(recipe.tables[table], values, strict=False)))
        for table, op, values in changes
    ]
    return bench.records(named)


def _rows(bench: ViewBench, view: str) -> list[Mapping[str, Any]]:
    rows: dict[str, Mapping[str, Any]] = {}
    for event in bench.whole_events(view):
        row = event["after"] or event["before"]
        key = repr([row[name] for name in bench.views[view].key])
        rows.pop(key, None)
        if event["op"] != "d":
            rows[key] = event["after"]
    return [rows[key] for key in sorted(rows)]
