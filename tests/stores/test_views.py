"""Views on a real broker: what is published is what the SQL gives at each position, each change once."""

from __future__ import annotations

import json
import math
import random
import shutil
import struct
import threading
from contextlib import closing, suppress
from dataclasses import replace
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import spark_apply.views.embedded.step
from cdc.config.apply_config import ApplyTable, StoreConfig
from cdc.config.config import ApplyConfig
from cdc.config.views import MatchConfig, ReadConfig, ViewConfig
from cdc.model.errors import CdcError, ConfigError
from spark_apply.events.kafka.schema_topic import schema_versions
from spark_apply.job.job import run_apply
from spark_apply.job.watermarks.progress import Reader, origin_of
from spark_apply.model.store import open_store
from spark_apply.model.target_table import target
from spark_apply.views.embedded.containment import WHY
from spark_apply.views.job import run_views
from spark_apply.views.proof.explain import explain_view
from spark_apply.views.proof.verify import verify_views
from spark_apply.views.publishing.status import view_status
from tests.conftest import FULL
from tests.pushes import some_each_push
from tests.spark.kinds import EVERY_KIND, every_kind_rows
from tests.spark.laws import until
from tests.spark.records import position
from tests.views.bench import EACH, EITHER, ViewBench
from tests.views.cases import CASES, INT, TABLES, TEXT, at
from tests.views.one_job import BATCHES, COMMITS, LONG, Cases, fenced_by_a_second, killed, named

pytest_plugins = ["tests.spark.fixtures"]
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
_SOME = {name: case for number, (name, case) in enumerate(CASES.items()) if number % 12 == 1}
"""What each push asks of the forms in which batches are not as they were written down: some of each kind of view."""
_THIRD = {name: case for number, (name, case) in enumerate(CASES.items()) if number % 3 == 2}
"""What it asks batch by batch; plans of every form are in tests/property/test_view_laws.py."""


@pytest.mark.parametrize("killed_at", ["", *(pytest.param(each, marks=LONG) for each in COMMITS)])
def test_cases_batch_by_batch(
    apply_spark: SparkSession, kafka: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed_at: str
) -> None:
    """Unit by unit, however much of these small tables has changed, and wherever the job dies in each batch."""
    monkeypatch.setattr(spark_apply.views.embedded.step, "MOST_TOUCHED", math.inf)
    cases = Cases(kafka, tmp_path, CASES if FULL else _THIRD)
    for batch in cases.killed_before_each(killed_at):
        found, expected = cases.found(), cases.expected(batch)
        assert {name: of for name, of in found.items() if of != expected[name]} == {}, batch


def test_cases_at_once_in_any_order_again_and_without_the_state(
    apply_spark: SparkSession, kafka: str, tmp_path: Path
) -> None:
    """One batch of everything, in another order that Kafka may have; then what was published is not published again."""
    cases = Cases(kafka, tmp_path, CASES if FULL else _SOME)
    cases.publish(*range(BATCHES), shuffled=5)
    cases.bench.run()
    rows, keys = cases.rows(), cases.keys()
    assert {name: of for name, of in rows.items() if name not in keys} == cases.answers(apply_spark)
    assert {name: {",".join(map(str, key)) for key in rows[name]} for name in keys} == keys
    cases.found()
    cases.bench.commit = 10  # every event comes again, under its old position
    cases.publish(*range(BATCHES), shuffled=6)
    assert cases.bench.run().events == 0
    shutil.rmtree(cases.bench.folder / "state")
    assert cases.bench.run().events == 0
    assert {name: signs for name, signs in cases.found().items() if signs} == {}
    for number, name in enumerate(cases.cases):
        if name in keys:
            (verified,) = verify_views(cases.bench.config, only=named(number))
            assert verified.agrees, (name, verified)


@pytest.mark.parametrize("point", some_each_push(COMMITS, "after Kafka"))
def test_killed_at_each_commit(
    apply_spark: SparkSession, kafka: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    reads = {"public.s": ReadConfig(time="at", keep="30m")}
    kept = ViewConfig(sql="SELECT id FROM public.s", key=("id",), reads=reads)
    views = {"timeline": CASES["1 tweet first"].view, "kept": kept}
    bench = ViewBench(kafka, tmp_path, {name: TABLES[name] for name in ("t", "f", "s")}, views)
    bench.transaction(("t", "c", {"id": 1, "sender": "bob", "likes": 0}))
    bench.run()
    late = ("s", "c", {"id": 1, "at": at("9:00")})
    bench.transaction(("f", "c", {"id": 1, "follower": "ann", "followee": "bob"}), late, at_ms=at("10:00") // 1000)
    with monkeypatch.context() as patched:
        killed(patched, point)
        with suppress(CdcError):  # what is done again in the same process has to find out, too
            bench.run()
    bench.run()
    bench.transaction(("f", "d", {"id": 1}))
    bench.run()
    assert [op for op, _, _ in bench.events("timeline")] == ["c", "d"]
    assert view_status(bench.config)["views"]["kept"]["late"] == 1, "what comes again is not counted again"


def test_a_second_job_fences_the_first(apply_spark: SparkSession, kafka: str, tmp_path: Path) -> None:
    views = {"timeline": CASES["1 tweet first"].view}
    first = ViewBench(kafka, tmp_path / "first", {"t": TABLES["t"], "f": TABLES["f"]}, views)
    fenced_by_a_second(first, tmp_path / "second")


@pytest.mark.full  # tests/stores/test_views_contained.py, tests/unit/test_view_containment.py
@EITHER
def test_one_bad_view_and_one_bad_unit_stop_no_other(
    apply_spark: SparkSession, kafka: str, tmp_path: Path, engine: str
) -> None:
    views = {
        "by_sender": ViewConfig(sql="SELECT sender, id, likes FROM public.t", key=("sender",)),
        "number": ViewConfig(sql="SELECT id, CAST(sender AS INT) AS n FROM public.t", key=("id",)),
        "of_number": ViewConfig(sql="SELECT id FROM view.number WHERE n > 0", key=("id",)),
        "good": ViewConfig(sql="SELECT id, likes FROM public.t", key=("id",)),
        "all_senders": ViewConfig(sql="SELECT 'all' AS k, sum(likes) AS s FROM view.by_sender", key=("k",)),
        "total": ViewConfig(sql="SELECT 'all' AS k, sum(CAST(sender AS INT)) AS s FROM public.t", key=("k",)),
        "of_total": ViewConfig(sql="SELECT k, s + 1 AS s FROM view.total", key=("k",)),
        "top": ViewConfig(
            sql="SELECT id, likes FROM public.t ORDER BY likes DESC, id LIMIT 2", key=("id",), refresh="full"
        ),
        "positive": ViewConfig(sql="SELECT id FROM public.t WHERE CAST(sender AS INT) > 0", key=("id",)),
        "found": ViewConfig(
            match=MatchConfig(queries="public.t", query="sender", docs="public.t", fields=("sender",)),
            key=("query", "doc"),
        ),
    }
    bench = ViewBench(kafka, tmp_path, {"t": TABLES["t"]}, views, engine=engine)
    bench.transaction(("t", "c", {"id": 1, "sender": "7", "likes": 1}))
    assert bench.run().stopped == {}
    assert (bench.signs("by_sender"), bench.signs("number"), bench.signs("good")) == (["+7"], ["+1"], ["+1"])
    assert bench.signs("positive") == ["+1"]
    bench.transaction(
        ("t", "c", {"id": 2, "sender": "7", "likes": 2}),
        ("t", "c", {"id": 3, "sender": "secret OR", "likes": 3}),
        ("t", "c", {"id": 4, "sender": None, "likes": 4}),
    )
    summary = bench.run()
    assert list(summary.stopped) == ["positive"], "what fails in WHERE is not of some units"
    assert "secret" not in str(summary.stopped)
    assert (bench.signs("by_sender"), bench.signs("good")) == (["+secret OR"], ["+2", "+3", "+4"])
    assert (bench.signs("number"), bench.signs("of_number")) == (["+2", "+4"], ["+1", "+2"])
    assert [row["s"] for _, _, row in bench.events("total") + bench.events("of_total")] == [7, 8]
    verified = {of.view: of for of in verify_views(bench.config)}
    assert {name for name, of in verified.items() if not of.agrees} == {"positive"}
    assert verified["positive"].failed == "Spark cannot compute it: CAST_INVALID_INPUT"
    counts = {name: (of.rows, of.quarantined) for name, of in verified.items() if name not in ("positive", "found")}
    assert counts == {
        "by_sender": (1, 2),
        "number": (3, 1),
        "of_number": (2, 0),
        "good": (4, 0),
        "all_senders": (1, 0),
        "top": (2, 0),
        "total": (0, 1),
        "of_total": (1, 0),
    }
    assert verified["number"].keys == ((f"in quarantine, {WHY}", '{"id":3}'),)
    assert verified["total"].keys == ((f"in quarantine, {WHY}", "{}"),)
    held = dict(verified["by_sender"].keys)
    assert held == {
        "in quarantine, a column of the key is null": '{"sender":null}',
        "in quarantine, the key is not unique": '{"sender":"7"}',
    }
    assert verified["by_sender"].quarantined == 2
    assert bench.events("all_senders")[-1] == ("u", ("all",), {"k": "all", "s": 4}), "of the rows that units keep"
    status = view_status(bench.config)
    why = "no search, something is missing beside OR or between parentheses"
    assert verified["found"].keys == ((why, '{"query":3}'),)
    assert status["views"]["found"]["quarantined"] == 1
    assert bench.signs("found") == ["+1,1", "+1,2", "+2,1", "+2,2"], "what is no search finds nothing"
    assert status["views"]["by_sender"]["quarantined"] == 2
    assert (status["views"]["number"]["quarantined"], status["views"]["number"]["stopped"]) == (1, None)
    assert (status["views"]["total"]["quarantined"], status["views"]["total"]["stopped"]) == (1, None)
    assert status["views"]["positive"]["stopped"] == f"view positive: {WHY}"
    explained = explain_view(bench.config, view="total", key='{"k": "all"}')
    assert (explained.outcome, explained.published) == ("quarantined", {"k": "all", "s": 7})
    bench.transaction(("t", "d", {"id": 1}), ("t", "u", {"id": 3, "sender": "8", "likes": 3}), ("t", "d", {"id": 4}))
    assert bench.run().stopped == {}
    assert bench.signs("by_sender") == ["+8", "-secret OR", "~7"]
    assert bench.signs("found") == ["+3,3", "-1,1", "-1,2", "-2,1"]
    assert bench.signs("number") == ["+3", "-1", "-4"]
    assert bench.signs("of_number") == ["+3", "-1"]
    assert bench.signs("positive") == ["+2", "+3", "-1"]
    assert [row["s"] for _, _, row in bench.events("total") + bench.events("of_total")] == [15, 16]
    assert {of["quarantined"] for of in view_status(bench.config)["views"].values()} == {0}
    assert {(of.agrees, of.quarantined) for of in verify_views(bench.config)} == {(True, 0)}


@pytest.mark.full  # what is kept: tests/views/cases.py; what is no search: tests/property/test_view_histories.py
@EITHER
def test_what_a_search_that_is_none_keeps_is_no_difference(
    apply_spark: SparkSession, kafka: str, tmp_path: Path, engine: str
) -> None:
    """It is in quarantine by its key, with all that it had found, in the views that read it too."""
    sizes = ViewConfig(sql="SELECT query, count(*) AS n FROM view.alerts GROUP BY query", key=("query",))
    views = {"alerts": CASES["a search enters and leaves"].view, "sizes": sizes}
    bench = ViewBench(kafka, tmp_path, {name: TABLES[name] for name in ("q", "d")}, views, engine=engine)
    bike = {"title": "bike", "body": None}
    bench.transaction(
        ("q", "c", {"id": 1, "text": "bike"}), ("d", "c", {"id": 1, **bike}), ("d", "c", {"id": 2, **bike})
    )
    bench.run()
    bench.transaction(("q", "u", {"id": 1, "text": "(bike"}), ("q", "c", {"id": 2, "text": "bike"}))
    bench.run()
    assert bench.signs("alerts") == ["+1,1", "+1,2", "+2,1", "+2,2"]
    found = {of.view: (of.agrees, of.rows, of.quarantined, of.keys) for of in verify_views(bench.config)}
    held = ("no search, a parenthesis is not closed", '{"query":1}')
    assert found == {"alerts": (True, 2, 1, (held,)), "sizes": (True, 2, 0, ())}
    explained = explain_view(bench.config, view="alerts", key='{"query": 2, "doc": 1}')
    assert {row.table for row in explained.rows} == {"public.q", "public.d"}


def test_a_view_is_a_table_for_all_that_reads_topics(apply_spark: SparkSession, kafka: str, tmp_path: Path) -> None:
    """An apply job keeps a copy of it, and another view job reads it; each is complete up to the source's position."""
    views = {"timeline": CASES["1 tweet first"].view}
    bench = ViewBench(kafka, tmp_path, {"t": TABLES["t"], "f": TABLES["f"]}, views)
    copies = ApplyConfig(
        name="search",
        source=bench.config.source,
        stores={"copy": StoreConfig(type="tantivy", path=str(tmp_path / "copy"))},
        tables={"view.timeline": ApplyTable(stores=("copy",))},
        checkpoint=str(tmp_path / "checkpoint"),
    )
    more = replace(
        bench.config,
        name="more-views",
        state=str(tmp_path / "more"),
        views={
            "sizes": ViewConfig(
                sql="SELECT follower, count(*) AS n FROM view.timeline GROUP BY follower", key=("follower",)
            )
        },
    )
    bench.transaction(
        ("t", "c", {"id": 1, "sender": "bob", "likes": 0}),
        ("t", "c", {"id": 2, "sender": "bob", "likes": 0}),
        ("f", "c", {"id": 1, "follower": "ann", "followee": "bob"}),
        ("f", "c", {"id": 2, "follower": "dan", "followee": "bob"}),
    )
    bench.run()
    run_apply(copies, once=True)
    run_views(more, once=True)
    bench.transaction(("f", "d", {"id": 1}), ("t", "d", {"id": 2}))
    bench.run()
    run_apply(copies, once=True)
    run_views(more, once=True)
    made = target(schema_versions(bench.config.source)["view.timeline"], {})
    store = open_store(copies.stores["copy"], name="copy", prefix=bench.prefix, spark=apply_spark)
    with closing(store):
        assert [json.loads(row.document) for row in store.rows(made)] == [{"follower": "dan", "tweet": 1}]
        mark = store.mark(made)
    assert mark is not None
    assert mark.complete is not None
    assert mark.complete.position == position(bench.commit + 1, 0)
    with Reader(copies) as reader:
        assert reader.stores() == {"copy": [bench.prefix]}, "a token of the source reaches through views"
        assert reader.await_position(bench.prefix, position(bench.commit + 1, 0), ["copy"], timeout_s=0) == {}
    taken = ViewConfig(sql="SELECT id FROM public.t", key=("id",))
    with pytest.raises(ConfigError, match=r"publishes a table or a view of that name, view\.timeline, already"):
        run_views(replace(more, views={"timeline": taken}), once=True)
    assert origin_of(bench.config.source, "more-views") == bench.prefix
    assert bench.events("sizes")[-2:] == [("d", ("ann",), None), ("u", ("dan",), {"follower": "dan", "n": 1})]


@EACH
def test_every_kind_of_value_and_names_that_need_quotes(
    apply_spark: SparkSession, kafka: str, tmp_path: Path, engine: str
) -> None:
    """A view that copies a table publishes each value as the table's own topic has it, and keys of any kind."""
    columns = {**EVERY_KIND, "Order": INT, "select": TEXT, 'a "b" `c`': TEXT, "at": TEXT}
    kept = [name for name, kind in columns.items() if kind["kind"] not in ("geometry", "vector", "array")]
    listed = ", ".join(f"`{name.replace('`', '``')}`" for name in kept)
    bench = ViewBench(
        kafka,
        tmp_path,
        {"kinds": columns},
        {
            "copy": ViewConfig(sql=f"SELECT {listed} FROM public.kinds", key=("id",)),
            "by_text": ViewConfig(sql='SELECT `Order` AS `Number`, `a "b" ``c``` AS k FROM public.kinds', key=("k",)),
        },
        engine=engine,
    )
    names = {"Order": 7, "select": "x", "at": "now"}
    rows = [{**row, **names, 'a "b" `c`': f"it's “{number}”\n\t\\"} for number, row in enumerate(every_kind_rows())]
    bench.transaction(*(("kinds", "c", row) for row in rows))
    assert bench.run().stopped == {}
    folded = {key[0]: after for _, key, after in bench.events("copy")}
    types = {name: columns[name]["kind"] for name in kept}
    for row in rows:
        for name in kept:
            kind = types[name]
            there = folded[row["id"]][name]
            there = there if kind.startswith("time") else _stored(kind, there)
            assert there == _stored(kind, row[name]), (row["id"], name)
    assert {key for _, key, _ in bench.events("by_text")} == {(row['a "b" `c`'],) for row in rows}
    shutil.rmtree(tmp_path / "state")
    assert bench.run().events == 0, "what is read back from the topic is what is computed, byte by byte"


def _stored(kind: str, value: Any) -> Any:
    """A value as derived tables have it: a time of day is text, infinity a day, numbers are compared as numbers."""
    if value is None:
        return None
    last = {"date": 2932896, "timestamp_micros": 253402300799999999, "timestamptz": "9999-12-31T23:59:59.999999Z"}
    first = {"date": -719162, "timestamp_micros": -62135596800000000, "timestamptz": "0001-01-01T00:00:00Z"}
    name = "timestamp_micros" if kind == "timestamp_millis" else kind
    if value in ("infinity", "-infinity") and name in last:
        return (last if value == "infinity" else first)[name]
    if kind == "time_micros" and isinstance(value, int):
        seconds, micros = divmod(abs(value), 1_000_000)
        sign = "-" if value < 0 else ""
        return f"{sign}{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{micros:06}"
    if kind == "timestamp_millis":
        return value * 1000
    if kind in ("decimal", "uint64"):
        return Decimal(str(value)) if str(value)[-1].isdigit() else value
    if kind in ("float32", "float64"):
        return struct.pack("<f" if kind == "float32" else "<d", float(value))
    return value


@EACH
def test_no_reader_sees_half_a_transfer(apply_spark: SparkSession, kafka: str, tmp_path: Path, engine: str) -> None:
    """Money moves between two tables while the job follows them: after each step of the views, none is missing."""
    account = {"id": INT, "balance": INT}
    views = {
        "halves": ViewConfig(
            sql="SELECT id % 2 AS half, sum(balance) AS s FROM public.here GROUP BY id % 2", key=("half",)
        ),
        "there": ViewConfig(sql="SELECT 'all' AS k, sum(balance) AS s FROM public.there", key=("k",)),
        "all": ViewConfig(
            sql="SELECT 'all' AS k, sum(s) AS s FROM (SELECT s FROM view.halves UNION ALL SELECT s FROM view.there) u",
            key=("k",),
        ),
    }
    bench = ViewBench(kafka, tmp_path, {"here": account, "there": account}, views, engine=engine)
    money = {table: dict.fromkeys(range(10), 100) for table in ("here", "there")}
    bench.transaction(*((table, "c", {"id": n, "balance": 100}) for table in money for n in range(10)))
    rng, stop, failed = random.Random(4), threading.Event(), list[Exception]()

    def follow() -> None:
        try:
            run_views(bench.config, once=False, stop=stop)
        except Exception as exc:  # noqa: BLE001 - shown by the test
            failed.append(exc)

    job = threading.Thread(target=follow)
    job.start()
    until(lambda: bool(failed) or (tmp_path / "state" / "status.json").exists(), within_s=120)
    for turn in range(300):
        if turn % 100 == 99:  # a step of its own for what came so far
            until(partial(_reached, bench, failed, position(bench.commit + 1, 0)), within_s=120)
        source, target_of = rng.sample(["here", "there"], 2) if rng.random() < 0.7 else ["here", "here"]
        one, other, amount = rng.randrange(10), rng.randrange(10), rng.randrange(1, 50)
        money[source][one] -= amount
        money[target_of][other] += amount
        rows = {(source, one): money[source][one], (target_of, other): money[target_of][other]}
        bench.transaction(*((table, "u", {"id": n, "balance": balance}) for (table, n), balance in rows.items()))
    goal = position(bench.commit + 1, 0)
    until(partial(_reached, bench, failed, goal), within_s=120)
    stop.set()
    job.join(60)
    assert failed == []
    steps: dict[str, dict[Any, Any]] = {}
    for view in ("halves", "there"):
        for event in bench.whole_events(view):
            key = (view, *event["after"].values())[:2]
            steps.setdefault(event["transaction"]["id"], {})[key] = event["after"]["s"]
    sums: dict[Any, int] = {}
    for _, changes in sorted(steps.items()):
        sums |= changes
        assert sum(sums.values()) == 2_000
    assert len(steps) > 3
    assert [row["s"] for _, _, row in bench.events("all")] == [2_000]


def _reached(bench: ViewBench, failed: list[Exception], goal: str) -> bool:
    return bool(failed) or view_status(bench.config)["position"] >= goal
