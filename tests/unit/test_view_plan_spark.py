"""Plans of views for Spark itself: the same rule, in Spark's own SQL; what it refuses, by name."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from typing import Any

import pytest
import sqlglot
from pyspark.errors import AnalysisException

from cdc.config.apply_config import ApplySource
from cdc.config.views import ReadConfig, ViewConfig, ViewsConfig, engine_of
from cdc.model.errors import ConfigError
from spark_apply.views.model.uses import uses_of
from spark_apply.views.planning import output_types
from spark_apply.views.planning.forms import plan_config
from spark_apply.views.sql.expressions.engines.dialects import stand_in
from spark_apply.views.sql.plan import plan_view
from spark_apply.views.sql.view_plan import Relation
from tests.views.shapes import RELATIONS, SHAPES

CONFIG = ViewsConfig(
    name="shop-views",
    source=ApplySource(bootstrap_servers="127.0.0.1:9092", topic_prefix="shop"),
    state="./state",
    views={"rows": ViewConfig(sql="SELECT id FROM public.a", key=("id",))},
)


@pytest.mark.parametrize("name", [name for name in SHAPES if "sketches" not in name])
def test_a_plan_divides_a_view_as_the_other_engine_does(name: str) -> None:
    """And each of its statements is one SELECT of Spark's over temporary views."""
    sql, key = SHAPES[name]
    one, other = (plan_view("v", sql, key, RELATIONS, engine=engine) for engine in ("duckdb", "spark"))
    for mine, theirs in zip(one.nodes, other.nodes, strict=True):
        assert (mine.name, mine.units, mine.columns) == (theirs.name, theirs.units, theirs.columns)
        assert (len(mine.touched), len(mine.due)) == (len(theirs.touched), len(theirs.due))
        for statement in (theirs.whole, theirs.restricted, *theirs.touched, *theirs.due, *theirs.next_due):
            tree = sqlglot.parse_one(statement, read="spark")
            assert all(table.name.startswith("cdc_") and not table.db for table in tree.find_all(sqlglot.exp.Table))
    assert (one.reads, one.uses_clock, one.unique_key) == (other.reads, other.uses_clock, other.unique_key)


def test_rows_that_differ_are_read_from_tables_of_their_own() -> None:
    plan = plan_view("v", SHAPES["inner"][0], SHAPES["inner"][1], RELATIONS, engine="spark")
    assert all("EXISTS" not in statement for statement in plan.nodes[0].touched)
    assert any(stand_in("before_changed", "public.a") in statement for statement in plan.nodes[0].touched)


@pytest.mark.parametrize(
    "value",
    [
        "named_struct('x', n).x",
        "element_at(array(n, k), 2)",
        "bround(n, 1)",
        "g RLIKE 'x'",
        "CAST(n AS STRING) || g",
        "hash(g)",
        "try_to_number(g, '999')",
        "g + 1",
    ],
)
def test_what_spark_takes_is_not_looked_through(value: str) -> None:
    plan = plan_view("v", f"SELECT id, {value} AS r FROM public.a", ["id"], RELATIONS, engine="spark")
    assert plan.nodes[0].units == ("id",)


def test_a_function_is_written_with_all_its_arguments() -> None:
    """For the views, and for what they are verified by."""
    sql = "SELECT id, to_char(n, '999') AS r FROM public.a"
    plan = plan_view("v", sql, ["id"], RELATIONS, engine="spark")
    assert "TO_CHAR(`a`.`n`, '999')" in plan.nodes[0].whole
    clock = dt.datetime(2026, 1, 1)  # noqa: DTZ001 - in UTC, as clocks are
    assert "TO_CHAR(n, '999')" in output_types.spark_text(sql, {"public.a": "a"}, clock)


def test_an_interval_of_several_units_is_one_literal_in_a_frame() -> None:
    """Spark takes no sum there."""
    frame = "RANGE BETWEEN INTERVAL 1 DAY 2 HOURS PRECEDING AND INTERVAL 3 DAYS 1 HOUR FOLLOWING"
    sql = f"SELECT id, count(*) OVER (PARTITION BY id ORDER BY timestamp_seconds(n) {frame}) AS r FROM public.a"
    written = "RANGE BETWEEN INTERVAL '1 DAY 2 HOURS' PRECEDING AND INTERVAL '3 DAYS 1 HOUR' FOLLOWING"
    assert written in plan_view("v", sql, ["id"], RELATIONS, engine="spark").nodes[0].whole
    clock = dt.datetime(2026, 1, 1)  # noqa: DTZ001 - in UTC, as clocks are
    assert written in output_types.spark_text(sql, {"public.a": "a"}, clock)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("rand()", "not the same each time"),
        ("uuid()", "not the same each time"),
        ("now()", "not the same each time"),
        ("unix_timestamp()", "not the same each time"),
        ("current_schema()", "not the same each time"),
        ("first(g)", "order in which rows are read"),
        ("first_value(g)", "order in which rows are read"),
        ("last_value(g) IGNORE NULLS", "order in which rows are read"),
        ("array_sort(collect_list(g), (x, y) -> 0)", "order in which rows are read"),
        ("lag(g) IGNORE NULLS OVER (PARTITION BY k ORDER BY n)", "has no total order"),
        ("collect_list(g)", "order in which rows are read"),
        ("hll_sketch_agg(n)", "a sketch, which `engine: spark` does not keep"),
        ("approx_percentile(n, 2)", "from 0 to 1"),
        ("mode(n)", "order in which rows are read"),
        ("date_trunc('M', at)", "the unit M, which Spark does not know"),
        ("explode(n)", "several rows of one"),
        ("stack(2, n, k)", "several rows of one"),
        ("own_function(n)", "not known to be a function of one row"),
        ("kurtosis(n)", "not known|neither in GROUP BY"),
    ],
)
def test_what_spark_would_compute_in_another_way_each_time_is_refused(value: str, why: str) -> None:
    sql = f"SELECT id, {value} AS r FROM public.a"
    if any(name in value for name in ("first", "last", "max_by", "collect", "percentile", "mode", "hll")):
        sql += " GROUP BY id"
    with pytest.raises(ConfigError, match=why):
        plan_view("v", sql, ["id"], RELATIONS, engine="spark")


def test_values_that_are_collected_are_taken_where_their_order_does_not_count() -> None:
    for value in (
        "sort_array(collect_set(g))",
        "array_join(sort_array(collect_list(g), false), ',')",
        "size(collect_set(g) FILTER (WHERE n > 1))",
        "sort_array(collect_list(struct(n, g)))[0].g",
    ):
        assert plan_view("v", f"SELECT k, {value} AS r FROM public.a GROUP BY k", ["k"], RELATIONS, engine="spark")


def test_a_field_is_taken_of_a_value_where_no_table_has_its_name() -> None:
    sql = "WITH s AS (SELECT id, named_struct('x', struct(n, g)) AS s, k FROM public.a) SELECT id, {} AS r FROM s"
    meant = {"s.s.x.n": ".x).n", "s.x.g": ".x).g", "s.k": "`k`"}
    for written, there in meant.items():
        assert there in plan_view("v", sql.format(written), ["id"], RELATIONS, engine="spark").nodes[-1].whole


def test_streams_and_rows_as_they_were_are_read_as_by_the_other_engine() -> None:
    reads = {"public.a": ReadConfig(time="at", keep="7d"), "public.b": ReadConfig(at="event")}
    uses = uses_of(reads)
    relations = {
        use.relation: Relation(use.relation, {**RELATIONS[name].columns, **dict(use.hidden)}, use.key(("id",)))
        for name, use in uses.items()
    }
    view = ViewConfig(sql="SELECT a.id, b.k FROM public.a a JOIN public.b b ON b.id = a.id", key=("id", "k"))
    one, other = (plan_config("v", view, relations, uses, engine=engine).plan for engine in ("duckdb", "spark"))
    assert one.reads == other.reads == ("public.a@at+604800000ms", "public.b@history")
    assert [node.units for node in one.nodes] == [node.units for node in other.nodes]
    for statement in (*other.nodes[0].touched, other.nodes[0].whole):
        sqlglot.parse_one(statement, read="spark")


@pytest.mark.parametrize(
    ("given", "submitted", "engine"),
    [
        ({}, None, "duckdb"),
        ({}, "local[4]", "duckdb"),
        ({}, "spark://cluster:7077", "spark"),
        ({"spark": {"spark.master": "k8s://https://cluster"}}, None, "spark"),
        ({"engine": "spark"}, "local[*]", "spark"),
        ({"engine": "duckdb"}, "yarn", "duckdb"),
    ],
)
def test_the_engine_follows_the_master_unless_the_file_says(
    given: dict[str, Any], submitted: str | None, engine: str
) -> None:
    assert engine_of(replace(CONFIG, **given), submitted) == engine


def test_a_relation_is_named_whose_number_begins_with_that_of_another() -> None:
    said = AnalysisException("[X.Y] cannot resolve `_cdc_relation_11`.`a` of _cdc_relation_1. SQLSTATE: 42703")
    stand_ins = {f"public.t{number}": output_types._stand_in(number) for number in range(12)}
    assert output_types._why(said, stand_ins) == "cannot resolve `public.t11`.`a` of public.t1"
