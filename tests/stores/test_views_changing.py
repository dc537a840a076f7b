"""What changes under views: tables, the views themselves, their topics, their state. Only what differs is published."""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession

import spark_apply.views.rebuild
from cdc.config.views import MatchConfig, ReadConfig, ViewConfig
from cdc.model.errors import ConfigError, OperatorError
from cdc.model.state import Phase
from spark_apply.views.job import run_views
from spark_apply.views.planning.definitions import texts_of
from spark_apply.views.proof.verify import verify_views
from spark_apply.views.publishing.status import view_status
from spark_apply.views.rebuild import rebuild_views
from spark_apply.views.running.commands import leave, new_command
from tests.conftest import FULL
from tests.spark.laws import forget, until
from tests.spark.records import position
from tests.views.bench import EACH, EITHER, ViewBench
from tests.views.cases import CASES, INT, TABLES, TEXT, at, lookup

pytest_plugins = ["tests.spark.fixtures"]
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
_AMOUNT: Mapping[str, Any] = {"kind": "decimal", "precision": 12, "scale": 2}
_COUNTS = ViewConfig(sql="SELECT g, count(*) AS n FROM public.x GROUP BY g", key=("g",))


@EACH
def test_deletes_that_compaction_has_removed(
    apply_spark: SparkSession, kafka: str, tmp_path: Path, engine: str
) -> None:
    """Of a row that was deleted while the job was away the topic has a tombstone: views lose it, and stay right."""
    views = {
        "rows": ViewConfig(sql="SELECT id, g FROM public.x", key=("id",)),
        "sums": ViewConfig(sql="SELECT g, sum(v) AS s FROM public.x GROUP BY g", key=("g",)),
    }
    bench = ViewBench(kafka, tmp_path, {"x": TABLES["x"], "y": TABLES["x"]}, views, engine=engine, partitions=1)
    bench.transaction(*(("x", "c", {"id": n, "g": f"g{n % 2}", "v": n + 1}) for n in range(4)))
    bench.run()
    assert (len(bench.events("rows")), bench.signs("sums")) == (4, ["+g0", "+g1"])
    updated, deleted = {"id": 3, "g": "g1", "v": 9}, {"id": 0, "g": "g0", "v": 1}
    records = bench.records([("x", "u", updated), ("x", "d", deleted)])
    del records[1]
    forget(kafka, bench.tables["x"].topic, before=1)
    bench.stand(records)
    bench.run()
    assert (bench.signs("rows"), bench.signs("sums")) == (["-0"], ["~g0", "~g1"])
    bench.transaction(("x", "u", {"id": 1, "g": "g0", "v": 2}))
    bench.run()
    assert (bench.signs("rows"), bench.signs("sums")) == (["~1"], ["~g0", "~g1"])
    assert all(of.agrees for of in verify_views(bench.config))


@EACH
def test_tables_and_views_that_change(
    apply_spark: SparkSession, kafka: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    """A column more in a table; another SQL for a view, a view more, a view less: only what differs is published.

    A table that the connector captures no more stops the views that read it alone.
    """
    monkeypatch.setattr(spark_apply.views.rebuild, "TAKEN_S", 0.0)
    views = {
        "rows": ViewConfig(sql="SELECT id, g FROM public.x", key=("id",)),
        "sums": ViewConfig(sql="SELECT g, sum(v) AS s FROM public.x GROUP BY g", key=("g",)),
        "both": ViewConfig(sql="SELECT a.id, x.v FROM public.a a JOIN public.x x ON x.id = a.id", key=("id",)),
    }
    bench = ViewBench(kafka, tmp_path, {"x": TABLES["x"], "a": TABLES["a"]}, views, engine=engine)
    rows_of_x = [("x", "c", {"id": n, "g": f"g{n % 2}", "v": n}) for n in range(4)]
    bench.transaction(*rows_of_x, ("a", "c", {"id": 3, "k": 1, "v": 1}))
    bench.run()
    assert (len(bench.events("rows")), bench.signs("sums"), bench.signs("both")) == (4, ["+g0", "+g1"], ["+3"])
    captured = bench.tables.pop("a")
    bench.transaction(("x", "c", {"id": 4, "g": "g0", "v": 4}), ("x", "u", {"id": 3, "g": "g1", "v": 30}))
    why = "table public.a is left out: connector v\\d+ captures it no more"
    assert re.search(why, bench.run().stopped["both"])
    assert (bench.signs("rows"), bench.signs("sums"), bench.signs("both")) == (["+4"], ["~g0", "~g1"], [])
    assert re.search(why, bench.run().stopped["both"])
    assert bench.signs("both") == []  # nor does a start join rows of two positions
    both = ViewConfig(sql="SELECT a.id, x.v + 1 AS v FROM public.a a JOIN public.x x ON x.id = a.id", key=("id",))
    with pytest.raises(OperatorError, match=r"could not publish it: view both: table public\.a is left out"):
        rebuild_views(replace(bench.config, views={**views, "both": both}))
    bench.tables["a"] = captured
    bench.transaction(("x", "d", {"id": 4}), ("a", "c", {"id": 2, "k": 1, "v": 1}))
    assert bench.run().stopped == {}
    assert (bench.signs("rows"), bench.signs("sums"), bench.signs("both")) == (["-4"], ["~g0"], ["+2", "~3"])
    table = replace(bench.tables["x"], columns={**TABLES["x"], "more": TEXT}, version=2)
    bench.tables["x"] = table
    bench.publisher.versions([table])
    bench.views = {**views, "more": ViewConfig(sql="SELECT id, more FROM public.x WHERE id = 1", key=("id",))}
    reading = {"public.x": {"required": True}}
    bench.publisher.stand(Phase.STREAM, bench.commit + 1, bench.tables.values(), reading=reading)
    rows = ViewConfig(sql="SELECT id, CASE WHEN id = 1 THEN more ELSE g END AS g FROM public.x", key=("id",))
    with pytest.raises(OperatorError, match="could not publish it yet: a table is being read again"):
        rebuild_views(replace(bench.config, views={**bench.views, "rows": rows}))  # no other job runs
    assert (bench.signs("rows"), bench.signs("more")) == ([], [])  # its rows have no values there yet
    bench.transaction(("x", "u", {"id": 1, "g": "g1", "v": 5, "more": "m"}))
    bench.run()
    assert (bench.signs("rows"), bench.signs("sums"), bench.signs("both")) == ([], ["~g1"], [])
    assert bench.events("more") == [("c", (1,), {"id": 1, "more": "m"})]
    bench.views = {
        "rows": rows,
        "counts": ViewConfig(sql="SELECT g, count(*) AS n FROM public.x GROUP BY g", key=("g",)),
    }
    with pytest.raises(
        ConfigError, match=r"other definitions than what is published: rows \(generation 1\): sql: “CASE"
    ):
        bench.run()
    bench.rebuild("rows")
    assert (bench.signs("rows"), bench.signs("counts")) == (["~1"], ["+g0", "+g1"])
    bench.transaction(("x", "d", {"id": 0}))
    bench.run()
    assert (bench.signs("rows"), bench.signs("counts"), bench.signs("sums")) == (["-0"], ["~g0"], [])


@pytest.mark.full  # tests/stores/test_views_changing.py: tables and views that change
@EITHER
def test_a_table_that_is_read_in_another_way(
    apply_spark: SparkSession, kafka: str, tmp_path: Path, engine: str
) -> None:
    """What the state has of a table is not enough for another way of reading it: its topic, or its log, is read."""
    bench = ViewBench(
        kafka,
        tmp_path,
        {"sale": TABLES["sale"], "rate": TABLES["rate"]},
        {"tax": lookup("now")},
        logs=frozenset({"rate"}),
        engine=engine,
    )
    now = at("10:00") // 1000
    bench.transaction(("rate", "c", {"country": "de", "pct": 7}), at_ms=now)
    bench.transaction(("sale", "c", {"id": 1, "country": "de", "at": at("10:00")}), at_ms=now + 1)
    bench.transaction(("rate", "u", {"country": "de", "pct": 8}), at_ms=now + 2)
    for how, expected in (
        ("now", ["+1,8"]),
        ("event", ["+1,7", "-1,8"]),
        ("arrival", []),
        *((("now", ["+1,8", "-1,7"]), ("event", ["+1,7", "-1,8"])) if FULL else ()),  # and back again
    ):
        bench.views = {"tax": lookup(how)}
        bench.run() if view_status(bench.config)["position"] is None else bench.redefine()
        assert bench.signs("tax") == expected, how
    kept = {**lookup("event").reads, "public.sale": ReadConfig(time="at", keep="1h")}
    bench.views = {"tax": replace(lookup("event"), reads=kept)}
    bench.transaction(("sale", "c", {"id": 2, "country": "de", "at": at("09:00")}), at_ms=now)
    with duckdb.connect(str(tmp_path / "state" / "state.duckdb")) as file:  # as an earlier release has made it
        file.execute("DELETE FROM meta WHERE name = 'events'")
    leave(bench.config, new_command(texts_of(bench.config)))
    told: list[str] = []
    run_views(bench.config, once=True, progress=told.append)
    assert any(line.startswith("warning: the state may miss rows of snapshots") for line in told)
    assert bench.signs("tax") == []
    assert view_status(bench.config)["views"]["tax"]["late"] == 1


@EACH
def test_a_column_that_is_dropped_stops_the_views_that_use_it(
    apply_spark: SparkSession, kafka: str, tmp_path: Path, engine: str
) -> None:
    """It has no new values: to go on with null would be to answer wrong. What they showed stays; the others go on.

    If it is there again, they go on by themselves. A column that has another type now stops them, too, and a new start
    follows it.
    """
    views = {
        "groups": ViewConfig(sql="SELECT g, count(*) AS n FROM public.x GROUP BY g", key=("g",)),
        "sizes": ViewConfig(sql="SELECT n, count(*) AS m FROM view.groups GROUP BY n", key=("n",)),
        "numbers": ViewConfig(sql="SELECT id, v FROM public.x", key=("id",)),
        "everything": ViewConfig(sql="SELECT * FROM public.x", key=("id",)),
        "texts": ViewConfig(sql="SELECT id, k FROM public.a", key=("id",)),
        "amounts": ViewConfig(sql="SELECT id, v + 1 AS more FROM public.a", key=("id",)),
        "all_of_a": ViewConfig(sql="SELECT * FROM public.a", key=("id",)),
        "ids": ViewConfig(sql="SELECT id FROM public.a", key=("id",)),
        "other_key": ViewConfig(sql="SELECT id FROM public.b", key=("id",)),
        "times": ViewConfig(sql="SELECT id, at FROM public.s", key=("id",)),
    }
    match = MatchConfig(queries="public.x", query="g", docs="public.x", fields=("g",))
    searches = {"found": ViewConfig(match=match, key=("query", "doc"))} if engine == "duckdb" else {}
    tables = {name: TABLES[name] for name in ("x", "a", "b", "s")}
    bench = ViewBench(kafka, tmp_path, tables, {**views, **searches}, engine=engine)
    bench.transaction(("x", "c", {"id": 1, "g": "a", "v": 1}), ("a", "c", {"id": 1, "k": 7, "v": 1}))
    bench.transaction(("b", "c", {"id": 1, "k": 1, "z": 1}), ("s", "c", {"id": 1, "at": at("10:00")}))
    bench.run()
    other = replace(bench.tables["a"], columns={"id": INT, "k": TEXT, "v": _AMOUNT}, version=2)
    table = replace(bench.tables["x"], columns={"id": INT, "v": INT}, version=2)
    stop, ended, told = threading.Event(), list[Any](), list[str]()
    run = partial(run_views, bench.config, once=False, progress=told.append, stop=stop)
    job = threading.Thread(target=lambda: ended.append(run()))
    job.start()
    until(lambda: any(line.startswith("following") for line in told), within_s=120)
    rekeyed = replace(bench.tables["b"], key=("k",), version=2)
    moment = replace(bench.tables["s"], columns={"id": INT, "at": TEXT}, version=2)
    bench.tables |= {"x": table, "a": other, "b": rekeyed, "s": moment}
    bench.publisher.versions([table, other, rekeyed, moment])
    bench.transaction(("x", "c", {"id": 2, "v": 2}), ("a", "c", {"id": 2, "k": "seven", "v": "2.50"}))
    bench.transaction(("b", "u", {"id": 1, "k": 1, "z": 2}), ("s", "c", {"id": 2, "at": "at ten"}))
    until(partial(_reached, bench, [], position(bench.commit + 1, 0)), within_s=120)
    again = replace(table, columns=TABLES["x"], version=3)
    bench.tables["x"] = again
    bench.publisher.versions([again])
    bench.transaction(*(("x", "r", {"id": n, "g": g, "v": n}) for n, g in ((1, "a"), (2, "b"))))
    until(lambda: view_status(bench.config)["views"]["sizes"]["stopped"] is None, within_s=120)
    table = replace(table, version=4)
    bench.tables["x"] = table
    bench.publisher.versions([table])
    bench.transaction(("x", "c", {"id": 3, "v": 3}))
    until(partial(_reached, bench, [], position(bench.commit + 1, 0)), within_s=120)
    stop.set()
    job.join(60)
    retyped = {"texts", "amounts", "all_of_a", "times"}
    assert set(ended[0].stopped) == {*searches, *retyped, "groups", "sizes", "everything", "other_key"}
    assert "public.b is left out: public.b: its key changed from (id) to (k)" in ended[0].stopped["other_key"]
    assert "public.x has changed" in ended[0].stopped["groups"]
    assert "column k of public.a is string now; a new start of the job follows it" in ended[0].stopped["texts"]
    assert [bench.signs(name) for name in sorted(retyped)] == [["+1"]] * 4
    assert bench.signs("ids") == ["+1", "+2"]
    assert (bench.signs("groups"), bench.signs("sizes")) == (["+a", "+b"], ["+1", "~1"])
    assert (bench.signs("everything"), bench.signs("numbers")) == (["+1", "+2"], ["+1", "+2", "+3"])
    assert [bench.signs(name) for name in searches] == [["+1,1", "+2,2"] for _ in searches]
    with pytest.raises(ConfigError, match=r"views\.groups\.sql"):
        bench.run()
    bench.views = {name: views[name] for name in ("ids", "other_key")}
    with pytest.raises(ConfigError, match=r"views\.other_key cannot read it: public\.b: its key changed"):
        bench.run()
    moved = ViewConfig(
        sql="SELECT x.id, g FROM public.x JOIN (SELECT id, k AS g FROM public.a) a USING (id)", key=("id",)
    )
    bench.views = {name: views[name] for name in (*sorted(retyped), "ids", "numbers")} | {"moved": moved}
    assert bench.run().stopped == {}
    assert bench.signs("moved") == ["+1", "+2"]  # g of the other table: x has none any more
    assert bench.events("texts") == [("u", (1,), {"id": 1, "k": "7"}), ("c", (2,), {"id": 2, "k": "seven"})]
    assert bench.events("times") == [
        ("u", (1,), {"id": 1, "at": str(at("10:00"))}),
        ("c", (2,), {"id": 2, "at": "at ten"}),
    ]
    assert [row["more"] for _, _, row in bench.events("amounts")] == ["2.00", "3.50"]
    assert [row["k"] for _, _, row in bench.events("all_of_a")] == ["7", "seven"]
    assert (bench.signs("ids"), bench.signs("numbers")) == ([], [])
    for only in (None,) if FULL else ("amounts", "moved"):
        assert all(of.agrees for of in verify_views(bench.config, only=only))


@pytest.mark.full  # tests/unit/test_target_table.py; tests/stores/test_views_changing.py: a column that is dropped
@EACH
def test_a_column_that_becomes_wider_is_followed_by_the_running_job(
    apply_spark: SparkSession, kafka: str, tmp_path: Path, engine: str
) -> None:
    """`ALTER COLUMN v TYPE bigint`: the job plans its views again, in the same process. No value is beyond its type.

    So it does for a column more, where a view takes all.

    Where a start would be refused the views that use it are stopped, and the others go on; so they do if a rebuild is.
    """
    columns = {"id": {"kind": "int32"}, "g": TEXT, "v": {"kind": "int32"}, "d": {**_AMOUNT, "precision": 5}}
    views = {
        "rows": ViewConfig(sql="SELECT id, v, d FROM public.n", key=("id",)),
        "best": ViewConfig(
            sql="SELECT g, v FROM (SELECT g, v, row_number() OVER (PARTITION BY g ORDER BY v DESC, id) AS r "
            "FROM (SELECT id, g, max(v) AS v FROM public.n GROUP BY id, g) a) t WHERE r = 1",
            key=("g",),
        ),
        "over": ViewConfig(sql="SELECT v, count(*) AS n FROM view.best GROUP BY v", key=("v",)),
        "notes": ViewConfig(sql="SELECT id, k FROM public.a", key=("id",)),
        "named": ViewConfig(sql="SELECT id, k FROM public.b", key=("id",)),
        "all": ViewConfig(sql="SELECT * FROM public.b", key=("id",)),
        "all_of_all": ViewConfig(sql="SELECT t.* FROM view.all t WHERE id > 0", key=("id",)),
    }
    bench = ViewBench(kafka, tmp_path, {"n": columns, "a": TABLES["a"], "b": TABLES["b"]}, views, engine=engine)
    bench.transaction(("n", "c", {"id": 1, "g": "a", "v": 1, "d": "1.50"}), ("b", "c", {"id": 1, "k": 1, "z": 1}))
    bench.run()
    stop, ended, told = threading.Event(), list[Any](), list[str]()
    run = partial(run_views, bench.config, once=False, progress=told.append, stop=stop)
    job = threading.Thread(target=lambda: ended.append(run()))
    job.start()
    until(lambda: any(line.startswith("following") for line in told), within_s=120)
    wider = replace(bench.tables["n"], columns={**columns, "id": INT, "v": INT, "d": _AMOUNT}, version=2)
    bench.tables["n"] = wider
    bench.publisher.versions([wider])
    bench.transaction(("n", "c", {"id": 2**40, "g": "a", "v": 2**40, "d": "1234567.25"}))
    until(lambda: sum(line.startswith("following") for line in told) == 2, within_s=120)
    more = replace(bench.tables["b"], columns={**TABLES["b"], "y": TEXT}, version=2)
    bench.tables["b"] = more
    bench.publisher.versions([more])
    bench.transaction(("b", "c", {"id": 2, "k": 2, "z": 2, "y": "two"}))
    until(lambda: sum(line.startswith("following") for line in told) == 3, within_s=120)
    assert [line for line in told if "planned again" in line] == [
        f"table public.{name} has more or wider columns: the views are planned again" for name in "nb"
    ]
    for of in ("all", "all_of_all"):
        until(lambda of=of: "y" in bench.whole_events(of)[-1]["after"], within_s=120)  # type: ignore[misc]
        rows = {key: row for _, (key,), row in bench.events(of)}
        assert [rows[key]["y"] for key in (1, 2)] == [None, "two"], "the row that was there has the column, too"
    assert len(bench.events("named")) == 2
    assert not any("it is stopped" in line for line in told), "nobody has to do anything"
    dropped = replace(bench.tables["a"], columns={"id": INT}, version=2)
    widest = replace(wider, columns={**wider.columns, "d": {**_AMOUNT, "precision": 20}}, version=3)
    bench.tables |= {"a": dropped, "n": widest}
    bench.publisher.versions([dropped, widest])
    bench.transaction(("a", "c", {"id": 1}))
    leave(bench.config, new_command(texts_of(bench.config)))  # it is refused, and nothing ends
    until(lambda: any("is not done" in line for line in told), within_s=120)
    bench.transaction(("n", "c", {"id": 3, "g": "b", "v": 3, "d": "123456789012345678.25"}))
    until(partial(_reached, bench, [], position(bench.commit + 1, 0)), within_s=120)
    stop.set()
    job.join(60)
    assert "no column k" in next(line for line in told if "is not done, and the views go on as they were" in line)
    assert set(ended[0].stopped) == {"rows", "notes"}
    assert "column d of public.n is decimal(20,2) now" in ended[0].stopped["rows"]
    assert [row["d"] for _, _, row in bench.events("rows")] == ["1.50", "1234567.25"]
    assert [row["v"] for _, _, row in bench.events("best")] == [1, 2**40, 3]
    bench.views = {name: view for name, view in views.items() if name != "notes"}
    assert bench.run().stopped == {}
    assert [row["d"] for _, _, row in bench.events("rows")] == ["123456789012345678.25"]
    assert all(of.agrees for of in verify_views(bench.config))


@EACH
def test_a_topic_of_a_view_that_is_deleted_is_filled_again(
    apply_spark: SparkSession, kafka: str, tmp_path: Path, engine: str
) -> None:
    """The state says that its rows were published: what the broker has is compared with what was recorded of it.

    Of a table whose topic was made again nothing is published until the state is; views of other tables go on.
    """
    other = ViewConfig(sql="SELECT id FROM public.y", key=("id",))
    views = {"kept": ViewConfig(sql="SELECT id FROM public.x", key=("id",)), "lost": _COUNTS, "other": other}
    bench = ViewBench(kafka, tmp_path, {"x": TABLES["x"], "y": TABLES["x"]}, views, engine=engine)
    bench.transaction(("x", "c", {"id": 1, "g": "a", "v": 1}), ("x", "c", {"id": 2, "g": "b", "v": 1}))
    bench.run()
    assert (bench.signs("kept"), bench.signs("lost")) == (["+1", "+2"], ["+a", "+b"])
    admin = AdminClient({"bootstrap.servers": kafka})
    topic = f"{bench.prefix}.view.lost"
    admin.delete_topics([topic])[topic].result(30)
    until(lambda: topic not in admin.list_topics(timeout=60).topics)
    assert bench.run().events == 2
    bench.seen["lost"] = 0
    assert (bench.signs("kept"), bench.signs("lost")) == ([], ["+a", "+b"])
    bench.transaction(("x", "d", {"id": 1}))
    bench.run()
    assert (bench.signs("kept"), bench.signs("lost")) == (["-1"], ["-a"])
    assert bench.run().events == 0
    table = bench.tables["x"]
    admin.delete_topics([table.topic])[table.topic].result(30)
    until(lambda: table.topic not in admin.list_topics(timeout=60).topics)
    made = NewTopic(table.topic, 3, 1, config={"cleanup.policy": "compact"})
    admin.create_topics([made])[table.topic].result(30)
    moved = "cdc_views_shop_views" if engine == "postgres" else str(bench.config.state)
    said: list[str] = []
    bench.transaction(("y", "c", {"id": 5, "g": "b", "v": 1}))  # the connector has not read x again
    assert run_views(bench.config, once=True, progress=said.append).stopped.keys() == {"kept", "lost"}
    assert any("what reads public.x waits" in line and moved in line for line in said)
    assert any("public.x in views is set aside" in line and "it was deleted and made again" in line for line in said)
    assert (bench.signs("kept"), bench.signs("lost"), bench.signs("other")) == ([], [], ["+5"])
    bench.transaction(
        ("x", "r", {"id": 2, "g": "b", "v": 1}), ("x", "r", {"id": 4, "g": "b", "v": 1}),
        ("y", "d", {"id": 5, "g": "b", "v": 1}), ("y", "c", {"id": 6, "g": "b", "v": 1}),
    )  # fmt: skip
    assert bench.run().stopped.keys() == {"kept", "lost"}
    assert (bench.signs("kept"), bench.signs("lost"), bench.signs("other")) == ([], [], ["+6", "-5"])
    if engine == "postgres":
        with psycopg.connect(bench.config.store or "") as session:
            session.execute("ALTER SCHEMA cdc_views_shop_views RENAME TO cdc_views_before")
    else:
        shutil.move(bench.config.state, tmp_path / "before")
    assert bench.run().stopped == {}
    assert (bench.signs("kept"), bench.signs("lost"), bench.signs("other")) == (["+4"], ["~b"], [])
    assert all(of.agrees for of in verify_views(bench.config))


@pytest.mark.full  # tests/unit/test_view_state.py
@EITHER
def test_a_state_that_cannot_be_used_is_made_again(
    apply_spark: SparkSession, kafka: str, tmp_path: Path, engine: str
) -> None:
    """A torn file, and one that is older than the topics say: nothing is published twice, and nothing is lost."""
    tables = {name: TABLES[name] for name in ("t", "f", "c")}
    bench = ViewBench(kafka, tmp_path, tables, {"timeline": CASES["1 tweet first"].view}, engine=engine)
    bench.transaction(
        ("t", "c", {"id": 1, "sender": "bob", "likes": 0}), ("f", "c", {"id": 1, "follower": "ann", "followee": "bob"})
    )
    bench.run()
    state, kept = tmp_path / "state", tmp_path / "kept"
    shutil.copytree(state, kept)
    bench.transaction(("f", "c", {"id": 2, "follower": "dan", "followee": "bob"}))
    bench.run()
    assert bench.signs("timeline") == ["+ann,1", "+dan,1"]
    shutil.rmtree(state)
    kept.rename(state)
    bench.transaction(("f", "d", {"id": 1}))
    bench.run()
    assert bench.signs("timeline") == ["-ann,1"]
    (state / "state.duckdb").write_bytes(b"torn" * 5_000)
    bench.transaction(("f", "d", {"id": 2}))
    bench.run()
    assert bench.signs("timeline") == ["-dan,1"]
    assert len(list(state.glob("state.duckdb.unusable-*"))) == 1


def _reached(bench: ViewBench, failed: list[Exception], goal: str) -> bool:
    return bool(failed) or view_status(bench.config)["position"] >= goal
