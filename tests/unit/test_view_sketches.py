"""Sketches are functions of a set: laws of the functions, and what a step of a view reads to keep one."""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import datasketches
import pytest

from cdc.model.change import Kind
from cdc.model.errors import ConfigError
from spark_apply.views.embedded import sketches
from spark_apply.views.embedded.sketches import estimate, sketch, union
from spark_apply.views.planning.view import View
from spark_apply.views.sql.plan import plan_view
from spark_apply.views.sql.view_plan import Relation
from tests.views.steps import Steps, position

INT = Kind("int64")
VISITS = Relation("public.visits", {"id": INT, "page": INT, "visitor": INT, "seconds": INT}, ("id",))


def texts(values: Sequence[int]) -> list[str]:
    return [f"_{value}" for value in values]


@pytest.mark.parametrize("lg_k", [4, 12])
@pytest.mark.parametrize("size", [0, 1, 8, 9, 300, 384, 385, 390, 3_000])
def test_a_sketch_is_the_same_bytes_in_whatever_order_and_parts_its_values_came(size: int, lg_k: int) -> None:
    """As a list of few values, a set of more, and as registers; also where it has become one from the other."""
    chance, values = random.Random(size), texts(range(size))
    whole = sketch(values, lg_k)
    for _ in range(5):
        chance.shuffle(values)
        parts = [sketch(values[start::3], lg_k) for start in range(3)]
        grown: bytes | None = None
        for at in range(0, size, max(size // 7, 1)):
            grown = union([grown, sketch(values[at : at + max(size // 7, 1)], lg_k)], lg_k)
        assert {sketch(values, lg_k), union(parts, lg_k), union([whole, *parts], lg_k)} == {whole}
        assert grown in (whole, None)


@pytest.mark.parametrize("lg_k", [9, 12, 14])
def test_an_estimate_is_within_the_bound_of_the_library(lg_k: int) -> None:
    """Of three standard errors; by chance one of 370 sets would be beyond, and none of these is."""
    most = datasketches.hll_sketch.get_rel_err(False, True, lg_k, 3)
    for size in (10, 1_000, 20_000):
        for first in range(0, 5 * size, size):
            found = estimate(sketch(texts(range(first, first + size)), lg_k))
            assert found is not None
            assert abs(found / size - 1) <= most, (size, first)


def test_values_that_are_null_or_repeated_count_as_they_do_in_count_distinct() -> None:
    assert estimate(sketch(["_", "_a", None, "_a", "_"], 12)) == 2
    assert (estimate(sketch(None, 12)), estimate(union([None], 12))) == (0, 0)
    assert (union(None, 12), estimate(None)) == (None, None)


def test_where_datasketches_is_not_installed_a_view_with_a_sketch_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(ConfigError, match="takes the package datasketches") as refused:
        planned("SELECT page, approx_count_distinct(visitor) AS n FROM public.visits GROUP BY page")
    assert "pip install 'cdc-toolkit[sketches]'" in (refused.value.hint or "")
    planned("SELECT page, approx_top_k(visitor, 2) AS n FROM public.visits GROUP BY page")


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ("approx_count_distinct(visitor)", "APPROX_COUNT_DISTINCT(visits.visitor)"),
        ("approx_count_distinct(visitor, 0.1) FILTER (WHERE id > 1)", "APPROX_COUNT_DISTINCT(visits.visitor, 0.1)"),
        ("1 + approx_percentile(seconds, 0.5)", "PERCENTILE_APPROX(visits.seconds, 0.5)"),
        ("size(approx_top_k(visitor, 2))", "APPROX_TOP_K(visits.visitor, 2)"),
        ("hll_sketch_estimate(hll_sketch_agg(visitor))", "HLL_SKETCH_AGG(visits.visitor)"),
        ("hll_sketch_estimate(hll_sketch_agg(visitor, 8))", "HLL_SKETCH_AGG(visits.visitor, 8)"),
    ],
)
def test_postgres_has_nothing_approximate_and_says_which_engine_has(
    monkeypatch: pytest.MonkeyPatch, value: str, named: str
) -> None:
    """As it is written, and before a package is asked for that would not help."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    sql = f"SELECT page, {value} AS n FROM public.visits GROUP BY page"
    with pytest.raises(ConfigError) as refused:
        plan_view("pages", sql, ["page"], {VISITS.name: VISITS}, engine="postgres")
    assert refused.value.message.endswith(f"{named} is approximate, which `engine: postgres` does not have")
    assert (refused.value.hint or "").startswith("say `engine: duckdb`")


def planned(sql: str) -> View:
    plan = plan_view("pages", sql, ["page"], {VISITS.name: VISITS})
    return View(plan, [(name, INT) for name in plan.nodes[-1].columns], sql)


def wait(steps: Steps, rows: Mapping[tuple[Any, ...], Sequence[Any] | None]) -> None:
    """Let events wait, many at once."""
    columns = ["_cdc_key", "_cdc_position", "_cdc_op", "_cdc_source_ms", "id", "page", "visitor", "seconds"]
    at = position(steps.commit)
    events = [[f"[{n}]", at, "d" if row is None else "u", 0, n, *(row or [0, 0, 0])] for (n,), row in rows.items()]
    steps.state.insert('pending."public.visits"', columns, events)


SQL = "SELECT page, approx_count_distinct(visitor) AS n FROM public.visits GROUP BY page"


def test_a_row_that_comes_goes_into_its_groups_sketch_and_no_other_row_is_read_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A value that is lost has its group's sketch made again; one that another row still has is not lost."""
    read: list[int] = []

    def counted(values: Sequence[str | None] | None, lg_k: int) -> bytes:
        read.append(len(values or ()))
        return sketch(values, lg_k)

    monkeypatch.setattr(sketches, "sketch", counted)
    steps = Steps(tmp_path, [VISITS], [planned(SQL)])

    def taken(rows: dict[tuple[Any, ...], Sequence[Any] | None]) -> tuple[list[Any], int]:
        read.clear()
        wait(steps, rows)
        return [(op, row) for _, op, _, row in steps.step()], sum(read)

    try:
        rows = {(n,): (n % 2, n % 200, 1) for n in range(1_000)}
        assert taken(rows)[0] == [("c", {"page": page, "n": 100}) for page in (0, 1)]
        assert taken({(2_000,): (0, 777, 1)}) == ([("u", {"page": 0, "n": 101})], 1)
        assert taken({(2_001,): (0, 777, 1)}) == ([], 1), "a value that is there changes nothing"
        assert taken({(2_000,): None}) == ([], 0), "another row has the value"
        assert taken({(2_001,): (0, 777, 5)}) == ([], 1), "another column of a row changes nothing"
        assert taken({(2_001,): None}) == ([("u", {"page": 0, "n": 100})], 100), "the page is counted again"
        assert taken({(0,): (1, 0, 1), (2_002,): (7, 1, 1)}) == (
            [("u", {"page": 1, "n": 101}), ("c", {"page": 7, "n": 1})],
            2,
        ), "it goes over to another page: the value 0 is still there in its own"
        assert taken({(2_002,): None}) == ([("d", None)], 0)
        steps.step(stale=True)
        assert steps.state.rows('SELECT page, n FROM before."view.pages" ORDER BY page') == [(0, 100), (1, 101)]
    finally:
        steps.close()


def test_a_sketch_that_grew_is_the_one_that_is_made_of_all_rows(tmp_path: Path) -> None:
    """With so many values that it has registers: bytes are compared, and the estimate with what the bound allows."""
    steps, chance = Steps(tmp_path, [VISITS], [planned(SQL)]), random.Random(3)
    rows: dict[tuple[Any, ...], Any] = {}
    try:
        for batch in range(6):
            new: dict[tuple[Any, ...], Any] = {
                (n,): (chance.randrange(2), chance.randrange(3_000), 0) for n in range(batch * 500, batch * 500 + 1_500)
            }
            if batch == 4:
                new |= dict.fromkeys(chance.sample(sorted(rows), 40))
            rows |= new
            wait(steps, new)
            steps.step()
            whole = steps.views[0].plan.nodes[0].whole
            assert steps.state.rows(f'({whole}) EXCEPT ALL SELECT * FROM before."pages#1"') == []
        for page, found in steps.state.rows('SELECT page, n FROM before."view.pages"'):
            exact = len({row[1] for row in rows.values() if row is not None and row[0] == page})
            assert abs(found / exact - 1) <= datasketches.hll_sketch.get_rel_err(False, True, 12, 3)
    finally:
        steps.close()
