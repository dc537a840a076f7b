"""Patterns and matches that are refused before anything is touched, with what is wrong and the way out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlglot
import yaml

from cdc.config.view_pattern import Absence, Element, PatternConfig, duration_us, parse_pattern
from cdc.config.views import MatchConfig, ReadConfig, ViewConfig, load_views
from cdc.model.errors import ConfigError
from spark_apply.views.model.uses import uses_of
from spark_apply.views.planning.forms import PlannedView, plan_config
from spark_apply.views.sql.view_plan import Relation
from tests.views.engine import relation

STALLED: dict[str, Any] = {
    "of": "public.orders",
    "by": "customer",
    "match": "placed !paid{10m}",
    "define": {"placed": "status = 'new'", "paid": "status = 'paid'"},
}
ALERTS: dict[str, Any] = {
    "queries": "public.saved_searches",
    "query": "text",
    "docs": "public.listings",
    "fields": ["title", "body"],
}
RELATIONS = {
    each.name: each
    for each in (
        relation(
            "public.orders",
            ["id"],
            id="int64",
            customer="string",
            status="string",
            total="int64",
            at="timestamp_micros",
        ),
        relation(
            "public.visits", ["id"], id="int64", a="timestamp_micros", b="timestamp_micros", day="date", ok="boolean"
        ),
        relation("public.saved_searches", ["id"], id="int64", text="string"),
        relation("public.listings", ["shop", "id"], shop="int64", id="int64", title="string", body="string"),
        relation("public.numbers", ["id"], id="int64", n="int64"),
        relation("view.other", ["k"], k="int64", v="string"),
    )
}


def planned(view: ViewConfig, relations: Mapping[str, Relation] = RELATIONS) -> PlannedView:
    uses = uses_of(view.reads)
    read = {use.relation: replace(relations[use.table], name=use.relation) for use in uses.values()}
    return plan_config("v", view, {**relations, **read}, uses)


MATCHES = [
    ("", "it is empty", "match: placed"),
    ("!paid{10m} placed", "it begins with an absence, !paid{10m}", "begin with a row"),
    ("!paid{10m}", "it begins with an absence", "begin with a row"),
    ("placed !paid", "!paid stands at the end without a duration", "!paid{10m}"),
    ("placed !paid !paid{1m}", "!paid stands at the end without a duration", "!paid{10m}"),
    ("placed sent", "“sent” is not defined", "define: {sent:"),
    ("placed", "define: match does not use “paid”", "leave it out"),
    ("placed{10m} paid", "there is no row before placed{10m}", "within:"),
    ("placed paid{3}{10m}", "paid{3}{10m} has a count and a duration", "within:"),
    ("placed{1} paid", "placed{1}: 1 is out of range", "from 2 to 100"),
    ("placed{101} paid", "placed{101}: 101 is out of range", "from 2 to 100"),
    ("placed paid{0m}", "“0m” is no duration", "10m, or 1h30m"),
    ("placed paid{10}{20}", "“20” is no duration", "10m, or 1h30m"),
    ("placed paid{10 m}", "“paid{10” is no element", "a name of define:"),
    ("placed paid{soon}", "“soon” is no duration", "10m, or 1h30m"),
    ("placed !paid{3}", "“3” is no duration", "10m, or 1h30m"),
    ("placed+ paid", "placed+ has no fixed number of rows", "failed{2}"),
    ("placed paid*", "paid* has no fixed number of rows", "failed{2}"),
    ("placed? paid", "placed? has no fixed number of rows", "leave out what may be missing"),
    ("placed{2,} paid", "placed{2,} has no fixed number of rows", "failed{2}"),
    ("placed|paid", "“placed|paid” is no element", "a name of define:"),
    ("(placed paid)", "“(placed” is no element", "a name of define:"),
    ("! paid", "“!” is no element", "a name of define:"),
    ("placed " * 9 + "!paid paid", "it has more than 10 elements", "a view of its first part"),
]


@pytest.mark.parametrize(("match", "what", "hint"), MATCHES)
def test_what_is_no_pattern(match: str, what: str, hint: str) -> None:
    with pytest.raises(ConfigError) as refused:
        PatternConfig(**{**STALLED, "match": match})
    assert what in refused.value.message
    assert hint in (refused.value.hint or "")


def test_names_that_differ_in_case_alone() -> None:
    define = {"paid": "status = 'paid'", "Paid": "status = 'PAID'"}
    with pytest.raises(ConfigError, match="two names differ in upper and lower case alone"):
        PatternConfig(**{**STALLED, "match": "paid Paid", "define": define})


def test_two_columns_of_one_name() -> None:
    define = {"placed": "status = 'new'", "placed_2": "status = 'new'"}
    for change in ({"match": "placed placed placed_2"}, {"match": "placed placed_2", "by": ["Placed_At"]}):
        with pytest.raises(ConfigError, match="two columns of the view would be"):
            PatternConfig(**{**STALLED, "define": define, **change})


def test_the_elements_of_a_pattern() -> None:
    assert parse_pattern("a{3} !b{1h30m} !c a{500ms}") == (
        Element("a", "a", 3, None, (Absence("b", 5_400_000_000), Absence("c", None))),
        Element("a", "a_2", 1, 500_000),
    )


@pytest.mark.parametrize(
    ("text", "us"),
    [("1us", 1), ("1d1us", 86_400_000_001), ("3660d", 316_224_000_000_000), ("3660d1us", None), ("1.5h", None),
     ("-1m", None), ("m", None), ("", None), ("10M", None)],
)  # fmt: skip
def test_durations(text: str, us: int | None) -> None:
    assert duration_us(text) == us


PLANNED: list[tuple[dict[str, Any], str, str, str]] = [
    ({"of": "public.order"}, "", "views.v.pattern.of: the table public.order is not captured", "public.orders?"),
    ({"of": "orders"}, "", "the table orders is not captured", "did you mean public.orders?"),
    ({"of": "view.v"}, "", "views.v: the view reads itself: view.v", "other views"),
    ({"by": "custmer"}, "", "views.v.pattern.by: public.orders has no column custmer", "did you mean customer?"),
    ({"time": "att"}, "", "views.v.pattern.time: public.orders has no column att", "at"),
    ({"time": "status"}, "", "column status of public.orders is no timestamp", "timestamps of it are: at"),
    ({"of": "public.visits", "by": "id"}, "", "it is not known when a row of public.visits happened: a, b", "time: a"),
    ({"of": "view.other", "by": "k"}, "", "it has no timestamp", "says when a row happened"),
    ({}, "customer, placed", "views.v.key: placed is no column of the view", "did you mean placed_at?"),
    ({}, "id", "views.v.key: id is no column of the view", "there are: customer, placed_at"),
]
CONDITIONS = [
    ("statuz = 'new'", "line 1: there is no column statuz", "did you mean status?"),
    ("status = ", "this is no condition", "status = 'paid'"),
    ("status = 'new", "this is no condition", "status = 'paid'"),
    ("status = 'new') OR (true", "this is no condition", "status = 'paid'"),
    ("status = 'new'; SELECT 1", "this is no condition", "status = 'paid'"),
    ("status = 'new';", "this is no condition", "status = 'paid'"),
    ("SELECT status FROM public.orders", "this is no condition", "status = 'paid'"),
    ("DELETE FROM public.orders", "this is no condition", "status = 'paid'"),
    ("total", "is bigint; it should be a condition", ""),
    ("count(*) > 1", "COUNT(*) is not of one row", "a column in a view"),
    ("row_number() OVER (ORDER BY id) = 1", "is not of one row", "a column in a view"),
    ("status IN (SELECT v FROM view.other)", "is not of one row", "a column in a view"),
    ("at < clock()", "clock() is not of a row", "durations in the pattern"),
    ("rand() < 0.5", "RAND", ""),
]


@pytest.mark.parametrize(("change", "key", "what", "hint"), PLANNED)
def test_a_pattern_that_its_table_does_not_allow(change: dict[str, Any], key: str, what: str, hint: str) -> None:
    pattern = PatternConfig(**{**STALLED, **change})
    columns = tuple(key.split(", ")) if key else pattern.columns
    with pytest.raises(ConfigError) as refused:
        planned(ViewConfig(pattern=pattern, key=columns))
    assert what in refused.value.message
    assert hint in (refused.value.hint or "")


@pytest.mark.parametrize(("condition", "what", "hint"), CONDITIONS)
def test_what_is_no_condition_of_a_row(condition: str, what: str, hint: str) -> None:
    pattern = PatternConfig(**{**STALLED, "define": {"placed": condition, "paid": "status = 'paid'"}})
    with pytest.raises(ConfigError) as refused:
        planned(ViewConfig(pattern=pattern, key=("customer", "placed_at")))
    assert refused.value.message.startswith("views.v.pattern.define.placed:")
    assert what in refused.value.message
    assert hint in (refused.value.hint or "")


@pytest.mark.parametrize(
    "condition", ["status = 'new' -- a comment", "orders.status = 'new'", "status <=> 'new' OR customer IS NULL", "ok"]
)
def test_conditions_over_a_row(condition: str) -> None:
    relations = {**RELATIONS, "public.orders": RELATIONS["public.orders"]}
    orders = relations["public.orders"]
    relations["public.orders"] = replace(
        orders, columns={**orders.columns, "ok": RELATIONS["public.visits"].columns["ok"]}
    )
    pattern = PatternConfig(**{**STALLED, "define": {"placed": condition, "paid": "status = 'paid'"}})
    plan = planned(ViewConfig(pattern=pattern, key=("customer", "placed_at")), relations).plan
    assert plan.uses_clock
    assert plan.null_keys
    assert plan.warnings == ()


MATCHED: list[tuple[dict[str, Any], list[str], str, str]] = [
    ({"queries": "public.searches"}, [], "views.v.match.queries: the table public.searches is not captured", ""),
    (
        {"docs": "public.listing"},
        [],
        "views.v.match.docs: the table public.listing is not captured",
        "public.listings?",
    ),
    ({"docs": "view.v"}, [], "views.v: the view reads itself: view.v", "other views"),
    ({"query": "txt"}, [], "views.v.match.query: public.saved_searches has no column txt", "did you mean text?"),
    ({"query": "id"}, [], "views.v.match.query: column id of public.saved_searches is no text", "are: text"),
    ({"fields": ["title", "boddy"]}, [], "views.v.match.fields: public.listings has no column boddy", "body?"),
    ({"fields": ["shop"]}, [], "column shop of public.listings is no text", "texts of it are: title, body"),
    ({"docs": "public.numbers", "fields": ["n"]}, [], "column n of public.numbers is no text", "it has no text"),
    ({"fields": ["title", "TITLE"]}, [], "a column is named twice", "keep one"),
    ({}, ["query", "doc"], "told apart by query, doc_shop, doc_id, all of them", "key: [query, doc_shop, doc_id]"),
    ({}, ["query", "doc_shop"], "told apart by query, doc_shop, doc_id", "key: [query, doc_shop, doc_id]"),
]


@pytest.mark.parametrize(("change", "key", "what", "hint"), MATCHED)
def test_a_match_that_its_tables_do_not_allow(change: dict[str, Any], key: list[str], what: str, hint: str) -> None:
    match = MatchConfig(**{**ALERTS, **change})
    view = ViewConfig(match=match, key=tuple(key or ("query", "doc_shop", "doc_id")))
    with pytest.raises(ConfigError) as refused:
        planned(view)
    assert what in refused.value.message
    assert hint in (refused.value.hint or "")


def test_a_match_over_the_file_and_a_view(tmp_path: Path) -> None:
    """`fields` and `by` may be one name or a list."""
    file = tmp_path / "views.yaml"
    made = {"queries": "public.saved_searches", "query": "text", "docs": "view.other", "fields": "v"}
    views = {"alerts": {"match": made, "key": ["doc", "query"]}, "stalled": {"pattern": STALLED, "key": ["customer"]}}
    source = {"bootstrap_servers": "127.0.0.1:9092", "topic_prefix": "shop"}
    file.write_text(yaml.safe_dump({"name": "shop", "source": source, "state": "./state", "views": views}))
    config = load_views(file)
    alerts = planned(config.views["alerts"]).plan
    assert alerts.reads == ("public.saved_searches", "view.other")
    assert alerts.nodes[-1].columns == ("query", "doc")
    plan = planned(config.views["stalled"]).plan
    assert [node.units for node in plan.nodes] == [("_by0",), ("customer",)]
    assert len(plan.warnings) == 1, "two alerts of a customer would have one key"


def test_a_pattern_over_a_stream() -> None:
    """The stream's time is the pattern's, whatever other times its table has."""
    define = {"visit": "ok"}
    pattern = PatternConfig(of="public.visits", by=("id",), match="visit !visit{1h}", define=define)
    for read in (ReadConfig(time="b", keep="7d"), ReadConfig(time="b")):
        made = planned(ViewConfig(pattern=pattern, key=("id", "visit_at"), reads={"public.visits": read}))
        assert "`b` AS _at" in made.sql
        assert made.plan.reads == (uses_of({"public.visits": read})["public.visits"].relation,)
    own = replace(pattern, time="a")
    made = planned(ViewConfig(pattern=own, key=("id", "visit_at"), reads={"public.visits": ReadConfig(time="b")}))
    assert "`a` AS _at" in made.sql


def test_a_match_reads_tables_as_they_are() -> None:
    reads = {"public.listings": ReadConfig(time="at", keep="7d")}
    with pytest.raises(ConfigError, match="from goes with sql and pattern alone") as refused:
        ViewConfig(match=MatchConfig(**ALERTS), key=("query", "doc"), reads=reads)
    assert "have the match over that view" in (refused.value.hint or "")


def test_the_engine_spark_takes_patterns_and_matches() -> None:
    """A pattern is SQL of either engine; of a match the statements are that find what has changed."""
    pattern = ViewConfig(pattern=PatternConfig(**STALLED), key=("customer", "placed_at"))
    plan = plan_config("v", pattern, RELATIONS, {}, engine="spark").plan
    assert plan.uses_clock
    assert all("`" in node.restricted for node in plan.nodes)
    match = ViewConfig(match=MatchConfig(**ALERTS), key=("query", "doc_shop", "doc_id"))
    (node,) = plan_config("v", match, RELATIONS, {}, engine="spark").plan.nodes
    assert node.computed is not None
    for statement in (*node.touched, node.restricted, node.whole):
        sqlglot.parse_one(statement, read="spark")
        assert '"' not in statement
