"""Views on a real broker: what is published is what the SQL gives at each position, each change once."""

from __future__ import annotations

import json
import math
import random
import shutil
import struct
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import replace
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from confluent_kafka import OFFSET_END, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession

import spark_apply.views.embedded.step
from cdc.cli.main import cdc as command
from cdc.config.apply_config import ApplyTable, StoreConfig
from cdc.config.config import ApplyConfig
from cdc.config.view_pattern import PatternConfig
from cdc.config.views import MatchConfig, ReadConfig, StreamConfig, ViewConfig
from cdc.model.errors import CdcError, ConfigError, FencedError
from sinks.kafka import KafkaSink
from spark_apply.events.kafka.schema_topic import schema_versions
from spark_apply.job.job import run_apply
from spark_apply.job.watermarks.progress import Reader, origin_of
from spark_apply.model.store import open_store
from spark_apply.model.target_table import target
from spark_apply.views.embedded.step import Step
from spark_apply.views.job import run_views
from spark_apply.views.proof.explain import explain_view
from spark_apply.views.proof.verify import verify_views
from spark_apply.views.publishing.status import view_status
from tests.conftest import FULL
from tests.spark.kinds import EVERY_KIND, every_kind_rows
from tests.spark.laws import until
from tests.spark.records import Record, position
from tests.views.bench import ViewBench, oracle
from tests.views.cases import CASES, CLOCKS, INT, TABLES, TEXT, Case, at, lookup, renamed, tables_of

pytest_plugins = ["tests.spark.fixtures"]
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

EITHER = pytest.mark.parametrize(
    "engine", [pytest.param("duckdb"), pytest.param("spark", marks=[pytest.mark.full, pytest.mark.timeout(1800)])]
)
_AMOUNT: Mapping[str, Any] = {"kind": "decimal", "precision": 12, "scale": 2}
_COUNTS = ViewConfig(sql="SELECT g, count(*) AS n FROM public.x GROUP BY g", key=("g",))
_THIRD = {name: case for number, (name, case) in enumerate(CASES.items()) if number % 3 == 1 or case.view.reads}
"""What each push asks of the forms in which batches are not as they were written down: some of each kind of view."""
_BATCHES = max(len(case.batches) for case in CASES.values())


def _named(number: int) -> str:
    return f"v{number:02}"


def _used(case: Case) -> list[str]:
    return sorted({table for transactions, _ in case.batches for change in transactions for table, *_ in change})


class Cases:
    """Cases in one job: each has tables and a view of its own."""

    def __init__(
        self, kafka: str, folder: Path, cases: Mapping[str, Case] = CASES, *, engine: str | None = None
    ) -> None:
        self.cases = cases
        columns: dict[str, Mapping[str, Any]] = {}
        views: dict[str, ViewConfig] = {}
        logs: set[str] = set()
        for number, case in enumerate(self.cases.values()):
            columns |= {f"{_named(number)}{name}": TABLES[name] for name in tables_of(case.view)}
            view = renamed(case.view, _named(number).__add__)
            logs |= {name.removeprefix("public.") for name, of in view.reads.items() if of.at != "now"}
            views[_named(number)] = view
        self.bench = ViewBench(kafka, folder, columns, views, logs=frozenset(logs), engine=engine)

    def records(self, batch: int) -> Iterator[Record]:
        """The records of a batch, in the order of their commits."""
        for number, case in enumerate(self.cases.values()):
            for transaction in case.batches[batch][0] if batch < len(case.batches) else ():
                changes = [
                    (f"{_named(number)}{table}", op, dict(zip(TABLES[table], values, strict=False)))
                    for table, op, values in transaction
                ]
                yield from self.bench.records(changes, at_ms=at(CLOCKS[batch]) // 1000)

    def publish(self, *batches: int, shuffled: int | None = None) -> None:
        records = [record for batch in batches for record in self.records(batch)]
        if shuffled is not None:
            records = _in_any_order(records, random.Random(shuffled))
        self.bench.stand(records, at_ms=at(CLOCKS[batches[-1]]) // 1000)

    def answers(self, spark: SparkSession) -> dict[str, dict[Any, Any]]:
        """Spark's batch answer over the last rows of all tables, at the last clock, where no more than those counts."""
        tables: dict[str, dict[Any, dict[str, Any]]] = {name: {} for name in self.bench.columns}
        found = {}
        for number, (name, case) in enumerate(self.cases.items()):
            if case.view.reads:
                continue
            for transactions, _ in case.batches:
                for table, op, values in (change for transaction in transactions for change in transaction):
                    rows = tables[f"{_named(number)}{table}"]
                    if op == "d":
                        rows.pop(values[0], None)
                    else:
                        rows[values[0]] = dict(zip(TABLES[table], values, strict=True))
            mine = {table: list(of.values()) for table, of in tables.items() if table.startswith(_named(number))}
            view = self.bench.views[_named(number)]
            found[name] = oracle(spark, view, mine, self.bench, at(CLOCKS[-1]) // 1000)
        return {name: rows for name, rows in found.items() if rows}

    def expected(self, batch: int) -> dict[str, list[str]]:
        return {
            name: sorted(case.batches[batch][1]) if batch < len(case.batches) else []
            for name, case in self.cases.items()
        }

    def found(self) -> dict[str, list[str]]:
        return {name: self.bench.signs(_named(number)) for number, name in enumerate(self.cases)}

    def rows(self) -> dict[str, dict[Any, Any]]:
        """Keys and rows of all views, as a reader of their topics has them."""
        self.bench.seen.clear()
        rows: dict[str, dict[Any, Any]] = {}
        for number, name in enumerate(self.cases):
            for op, key, row in self.bench.events(_named(number)):
                if op == "d":
                    del rows.setdefault(name, {})[key]
                else:
                    assert (op == "c") == (key not in rows.setdefault(name, {}))
                    rows[name][key] = row
        return {name: found for name, found in rows.items() if found}

    def keys(self) -> dict[str, set[str]]:
        """The keys that are left of what the cases expect, where more than the last rows counts."""
        found: dict[str, set[str]] = {}
        for name, case in self.cases.items():
            for _, signs in case.batches if case.view.reads else ():
                gone = {sign[1:] for sign in signs if sign[0] == "-"}
                found[name] = (found.get(name, set()) - gone) | {sign[1:] for sign in signs if sign[0] != "-"}
        return found


def _in_any_order(records: list[Record], rng: random.Random) -> list[Record]:
    """Any order that Kafka can have: records of one topic and key keep theirs."""
    queues: dict[tuple[str, bytes], list[Record]] = {}
    for record in records:
        queues.setdefault(record[:2], []).append(record)
    found = []
    while queues:
        key = rng.choice(sorted(queues))
        found.append(queues[key].pop(0))
        if not queues[key]:
            del queues[key]
    return found


def test_cases_batch_by_batch(
    apply_spark: SparkSession, kafka: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unit by unit, however much of these small tables has changed."""
    monkeypatch.setattr(spark_apply.views.embedded.step, "MOST_TOUCHED", math.inf)
    cases = Cases(kafka, tmp_path)
    for batch in range(_BATCHES):
        cases.publish(batch)
        assert cases.bench.run().stopped == {}
        found, expected = cases.found(), cases.expected(batch)
        assert {name: of for name, of in found.items() if of != expected[name]} == {}, batch


def test_cases_at_once_in_any_order_again_and_without_the_state(
    apply_spark: SparkSession, kafka: str, tmp_path: Path
) -> None:
    """One batch of everything, in another order that Kafka may have; then what was published is not published again."""
    cases = Cases(kafka, tmp_path, CASES if FULL else _THIRD)
    cases.publish(*range(_BATCHES), shuffled=5)
    cases.bench.run()
    rows, keys = cases.rows(), cases.keys()
    assert {name: of for name, of in rows.items() if name not in keys} == cases.answers(apply_spark)
    assert {name: {",".join(map(str, key)) for key in rows[name]} for name in keys} == keys
    cases.found()
    cases.bench.commit = 10  # every event comes again, under its old position
    cases.publish(*range(_BATCHES), shuffled=6)
    assert cases.bench.run().events == 0
    shutil.rmtree(cases.bench.folder / "state")
    assert cases.bench.run().events == 0
    assert {name: signs for name, signs in cases.found().items() if signs} == {}
    for number, name in enumerate(cases.cases):
        if name in keys:
            (verified,) = verify_views(cases.bench.config, only=_named(number))
            assert verified.agrees, (name, verified)


@pytest.mark.parametrize("point", ["before the state", "before Kafka", "after Kafka"])
def test_killed_at_each_commit(
    apply_spark: SparkSession, kafka: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    bench = ViewBench(kafka, tmp_path, {"t": TABLES["t"], "f": TABLES["f"]}, {"timeline": CASES["1 tweet first"].view})
    bench.transaction(("t", "c", {"id": 1, "sender": "bob", "likes": 0}))
    bench.run()
    bench.transaction(("f", "c", {"id": 1, "follower": "ann", "followee": "bob"}))
    with monkeypatch.context() as patched:
        _killed(patched, point)
        with suppress(CdcError):  # what is done again in the same process has to find out, too
            bench.run()
    bench.run()
    bench.transaction(("f", "d", {"id": 1}))
    bench.run()
    assert [op for op, _, _ in bench.events("timeline")] == ["c", "d"]


def _killed(patched: pytest.MonkeyPatch, point: str) -> None:
    def die(*_: object) -> None:
        raise RuntimeError("killed")

    commit = KafkaSink.commit

    def commit_and_die(sink: KafkaSink, state: Any) -> None:
        commit(sink, state)
        die()

    if point == "before the state":
        patched.setattr(Step, "apply", die)
    elif point == "before Kafka":
        patched.setattr(KafkaSink, "commit", die)
    else:
        patched.setattr(KafkaSink, "commit", commit_and_die)


def test_a_second_job_fences_the_first(apply_spark: SparkSession, kafka: str, tmp_path: Path) -> None:
    views = {"timeline": CASES["1 tweet first"].view}
    first = ViewBench(kafka, tmp_path / "first", {"t": TABLES["t"], "f": TABLES["f"]}, views)
    first.transaction(("t", "c", {"id": 1, "sender": "bob", "likes": 0}))
    stop, ended = threading.Event(), []

    def follow() -> None:
        try:
            run_views(first.config, once=False, stop=stop)
        except CdcError as exc:
            ended.append(exc)

    thread = threading.Thread(target=follow)
    thread.start()
    until((tmp_path / "first" / "state" / "status.json").exists, within_s=120)
    second = replace(first.config, state=str(tmp_path / "second"))
    run_views(second, once=True)
    first.transaction(("f", "c", {"id": 1, "follower": "ann", "followee": "bob"}))
    thread.join(120)
    stop.set()
    assert [type(error) for error in ended] == [FencedError]
    assert first.events("timeline") == []
    assert run_views(second, once=True).events == 1
    assert [op for op, _, _ in first.events("timeline")] == ["c"]


@EITHER
def test_one_bad_view_and_one_bad_unit_stop_no_other(
    apply_spark: SparkSession, kafka: str, tmp_path: Path, engine: str
) -> None:
    views = {
        "by_sender": ViewConfig(sql="SELECT sender, id, likes FROM public.t", key=("sender",)),
        "number": ViewConfig(sql="SELECT id, CAST(sender AS INT) AS n FROM public.t", key=("id",)),
        "of_number": ViewConfig(sql="SELECT id FROM view.number WHERE n > 0", key=("id",)),
        "good": ViewConfig(sql="SELECT id, likes FROM public.t", key=("id",)),
    }
    if engine == "duckdb":
        match = MatchConfig(queries="public.t", query="sender", docs="public.t", fields=("sender",))
        views["found"] = ViewConfig(match=match, key=("query", "doc"))
    bench = ViewBench(kafka, tmp_path, {"t": TABLES["t"]}, views, engine=engine)
    bench.transaction(("t", "c", {"id": 1, "sender": "7", "likes": 1}))
    assert bench.run().stopped == {}
    assert (bench.signs("by_sender"), bench.signs("number"), bench.signs("good")) == (["+7"], ["+1"], ["+1"])
    bench.transaction(
        ("t", "c", {"id": 2, "sender": "7", "likes": 2}),
        ("t", "c", {"id": 3, "sender": "secret OR", "likes": 3}),
        ("t", "c", {"id": 4, "sender": None, "likes": 4}),
    )
    summary = bench.run()
    assert list(summary.stopped) == ["number", "of_number"]
    assert "secret" not in summary.stopped["number"]
    assert (bench.signs("by_sender"), bench.signs("number"), bench.signs("good")) == (
        ["+secret OR"],
        [],
        ["+2", "+3", "+4"],
    )
    verified = {of.view: of for of in verify_views(bench.config)}
    assert {name for name, of in verified.items() if of.agrees} == {"good"} | (views.keys() & {"found"})
    assert {name for name, of in verified.items() if of.failed} == {"number", "of_number"}
    assert verified["by_sender"].missing > 0, "what is in quarantine is no row of the topic"
    status = view_status(bench.config)
    if "found" in views:
        why = "no search, something is missing beside OR or between parentheses"
        assert verified["found"].keys == ((why, '{"query":3}'),)
        assert status["views"]["found"]["quarantined"] == 1
        assert bench.signs("found") == ["+1,1", "+1,2", "+2,1", "+2,2"], "what is no search finds nothing"
    assert status["views"]["by_sender"]["quarantined"] == 2
    assert status["views"]["number"]["stopped"] == summary.stopped["number"]
    bench.transaction(("t", "d", {"id": 1}), ("t", "u", {"id": 3, "sender": "8", "likes": 3}), ("t", "d", {"id": 4}))
    assert bench.run().stopped == {}
    assert bench.signs("by_sender") == ["+8", "-secret OR", "~7"]
    assert "found" not in views or bench.signs("found") == ["+3,3", "-1,1", "-1,2", "-2,1"]
    assert bench.signs("number") == ["+2", "+3", "-1"]
    assert bench.signs("of_number") == ["+1", "+2", "+3", "-1"]
    assert view_status(bench.config)["views"]["by_sender"]["quarantined"] == 0


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


@EITHER
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


@EITHER
def test_tables_and_views_that_change(apply_spark: SparkSession, kafka: str, tmp_path: Path, engine: str) -> None:
    """A column more in a table; another SQL for a view, a view more, a view less: only what differs is published."""
    views = {
        "rows": ViewConfig(sql="SELECT id, g FROM public.x", key=("id",)),
        "sums": ViewConfig(sql="SELECT g, sum(v) AS s FROM public.x GROUP BY g", key=("g",)),
    }
    bench = ViewBench(kafka, tmp_path, {"x": TABLES["x"]}, views, engine=engine)
    bench.transaction(*(("x", "c", {"id": n, "g": f"g{n % 2}", "v": n}) for n in range(4)))
    bench.run()
    assert (len(bench.events("rows")), bench.signs("sums")) == (4, ["+g0", "+g1"])
    table = replace(bench.tables["x"], columns={**TABLES["x"], "more": TEXT}, version=2)
    bench.tables["x"] = table
    bench.publisher.versions([table])
    bench.transaction(("x", "u", {"id": 1, "g": "g1", "v": 5, "more": "m"}))
    bench.run()
    assert (bench.signs("rows"), bench.signs("sums")) == ([], ["~g1"])
    bench.views = {
        "rows": ViewConfig(sql="SELECT id, CASE WHEN id = 1 THEN more ELSE g END AS g FROM public.x", key=("id",)),
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


def test_a_table_that_is_read_in_another_way(apply_spark: SparkSession, kafka: str, tmp_path: Path) -> None:
    """What the state has of a table is not enough for another way of reading it: its topic, or its log, is read."""
    bench = ViewBench(
        kafka,
        tmp_path,
        {"sale": TABLES["sale"], "rate": TABLES["rate"]},
        {"tax": lookup("now")},
        logs=frozenset({"rate"}),
    )
    now = at("10:00") // 1000
    bench.transaction(("rate", "c", {"country": "de", "pct": 7}), at_ms=now)
    bench.transaction(("sale", "c", {"id": 1, "country": "de", "at": at("10:00")}), at_ms=now + 1)
    bench.transaction(("rate", "u", {"country": "de", "pct": 8}), at_ms=now + 2)
    for how, expected in (
        ("now", ["+1,8"]),
        ("event", ["+1,7", "-1,8"]),
        ("arrival", []),
        ("now", ["+1,8", "-1,7"]),
        ("event", ["+1,7", "-1,8"]),
    ):
        bench.views = {"tax": lookup(how)}
        bench.run() if view_status(bench.config)["position"] is None else bench.redefine()
        assert bench.signs("tax") == expected, how
    kept = {**lookup("event").reads, "public.sale": ReadConfig(time="at", keep="1h")}
    bench.views = {"tax": replace(lookup("event"), reads=kept)}
    bench.transaction(("sale", "c", {"id": 2, "country": "de", "at": at("09:00")}), at_ms=now)
    bench.redefine()
    assert bench.signs("tax") == []
    assert view_status(bench.config)["views"]["tax"]["late"] == 1


@EITHER
def test_a_column_that_is_dropped_stops_the_views_that_use_it(
    apply_spark: SparkSession, kafka: str, tmp_path: Path, engine: str
) -> None:
    """It has no new values: to go on with null would be to answer wrong. What they showed stays; the others go on.

    So it is with a column that has another type now, which a new start follows.
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
    stop.set()
    job.join(60)
    retyped = {"texts", "amounts", "all_of_a", "times"}
    assert set(ended[0].stopped) == {*searches, *retyped, "groups", "sizes", "everything", "other_key"}
    assert "public.b is left out: public.b: its key changed from (id) to (k)" in ended[0].stopped["other_key"]
    assert "public.x has changed" in ended[0].stopped["groups"]
    assert "column k of public.a is string now; a new start of the job follows it" in ended[0].stopped["texts"]
    assert [bench.signs(name) for name in (*sorted(retyped), "everything")] == [["+1"]] * 5
    assert bench.signs("ids") == ["+1", "+2"]
    assert (bench.signs("groups"), bench.signs("sizes"), bench.signs("numbers")) == (["+a"], ["+1"], ["+1", "+2"])
    assert [bench.signs(name) for name in searches] == [["+1,1"] for _ in searches]
    with pytest.raises(ConfigError, match=r"views\.groups\.sql"):
        bench.run()
    bench.views = {name: views[name] for name in ("ids", "other_key")}
    with pytest.raises(ConfigError, match=r"views\.other_key cannot read it: public\.b: its key changed"):
        bench.run()
    bench.views = {name: views[name] for name in (*sorted(retyped), "ids", "numbers")}
    assert bench.run().stopped == {}
    assert bench.events("texts") == [("u", (1,), {"id": 1, "k": "7"}), ("c", (2,), {"id": 2, "k": "seven"})]
    assert bench.events("times") == [
        ("u", (1,), {"id": 1, "at": str(at("10:00"))}),
        ("c", (2,), {"id": 2, "at": "at ten"}),
    ]
    assert [row["more"] for _, _, row in bench.events("amounts")] == ["2.00", "3.50"]
    assert [row["k"] for _, _, row in bench.events("all_of_a")] == ["7", "seven"]
    assert (bench.signs("ids"), bench.signs("numbers")) == ([], [])
    assert [of.agrees for of in verify_views(bench.config)] == [True] * 6


@EITHER
def test_a_topic_of_a_view_that_is_deleted_is_filled_again(
    apply_spark: SparkSession, kafka: str, tmp_path: Path, engine: str
) -> None:
    """The state says that its rows were published: what the broker has is compared with what was recorded of it."""
    views = {"kept": ViewConfig(sql="SELECT id FROM public.x", key=("id",)), "lost": _COUNTS}
    bench = ViewBench(kafka, tmp_path, {"x": TABLES["x"]}, views, engine=engine)
    bench.transaction(("x", "c", {"id": 1, "g": "a", "v": 1}), ("x", "c", {"id": 2, "g": "b", "v": 1}))
    bench.run()
    assert (bench.signs("kept"), bench.signs("lost")) == (["+1", "+2"], ["+a", "+b"])
    admin = AdminClient({"bootstrap.servers": kafka})
    topic = f"{bench.prefix}.view.lost"
    admin.delete_topics([topic])[topic].result(30)
    until(lambda: topic not in admin.list_topics(timeout=10).topics)
    assert bench.run().events == 2
    bench.seen["lost"] = 0
    assert (bench.signs("kept"), bench.signs("lost")) == ([], ["+a", "+b"])
    bench.transaction(("x", "d", {"id": 1}))
    bench.run()
    assert (bench.signs("kept"), bench.signs("lost")) == (["-1"], ["-a"])
    assert bench.run().events == 0


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


@EITHER
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


_CLICKS = StreamConfig(
    topic="clicks",
    schema="id STRING, search BIGINT, at TIMESTAMP, `n n` DECIMAL(9,2)",
    key=("id",),
    time="at",
    keep="30m",
)


def test_streams_that_others_write(
    apply_spark: SparkSession, kafka: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic of JSON objects: read once, each key once, late ones and what is no event left out and counted."""
    bench = ViewBench(kafka, tmp_path, {"s": TABLES["s"]}, {})
    topic = f"{bench.prefix}-clicks"
    bench.views = {
        "outcome": ViewConfig(
            sql="SELECT s.id, count(c.id) AS n, min(c.at) AS first, sum(c.`n n`) AS total FROM public.s s "
            "LEFT JOIN stream.clicks c ON c.search = s.id GROUP BY s.id",
            key=("id",),
        ),
        "minutes": ViewConfig(
            sql="SELECT date_trunc('MINUTE', at) AS minute, count(*) AS n FROM stream.clicks GROUP BY 1",
            key=("minute",),
        ),
        "again": ViewConfig(
            pattern=PatternConfig(
                of="stream.clicks",
                by=("search",),
                match="one other{5m}",
                define={"one": "id IS NOT NULL", "other": "`n n` > 2"},
            ),
            key=("search", "one_at"),
        ),
        "found": ViewConfig(
            match=MatchConfig(queries="stream.clicks", query="id", docs="stream.clicks", fields=("id",)),
            key=("query", "doc"),
        ),
    }
    bench.streams = {"clicks": replace(_CLICKS, topic=topic)}
    with pytest.raises(ConfigError, match=rf"streams\.clicks\.topic: there is no topic {topic}"):
        bench.run()
    admin = AdminClient({"bootstrap.servers": kafka})
    admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(30)
    producer = Producer({"bootstrap.servers": kafka, "partitioner": "murmur2_random"})

    def click(key: str, search: int, clock: str, *, written: str, partition: int = 0, **more: object) -> None:
        event = {"id": key, "search": search, "at": f"2026-01-01T{clock}:00Z", "n n": 1.5, "unknown": [1], **more}
        producer.produce(topic, json.dumps(event), partition=partition, timestamp=at(written) // 1000)

    bench.transaction(("s", "c", {"id": 1, "at": at("10:00")}), at_ms=at("10:00") // 1000)
    click("a", 1, "10:05", written="10:05")
    click("a", 1, "10:05", written="10:06", partition=1)  # a producer without idempotence
    click("late", 1, "10:01", written="10:31")
    click("b", 2, "10:06", written="10:06")
    for value in ("no JSON: secret", "[]", '{"search": 1}', '{"id": "c", "at": "when?"}'):
        producer.produce(topic, value, partition=1)
    producer.produce(topic, None, key=b"a")
    producer.flush(30)
    told: list[str] = []
    run_views(bench.config, once=True, progress=told.append)
    assert bench.events("outcome") == [
        ("c", (1,), {"id": 1, "n": 1, "first": "2026-01-01T10:05:00Z", "total": "1.50"}),
    ]
    assert bench.signs("minutes") == ["+2026-01-01T10:05:00Z", "+2026-01-01T10:06:00Z"]
    assert (bench.signs("again"), bench.signs("found")) == ([], ["+a,a", "+b,b"])
    assert "warning: 4 records of stream clicks are no events of it: left out" in told
    assert "warning: 1 events of stream.clicks came later than keep: they are left out" in told
    assert not any("secret" in line for line in told)
    click("d", 1, "10:07", written="10:07", **{"n n": "2.25"})
    producer.flush(30)
    with monkeypatch.context() as patched:
        _killed(patched, "before the state")
        with pytest.raises((CdcError, RuntimeError)):
            bench.run()
    assert bench.run().events == 4, "without anything new in the captured tables, nor in the topic since"
    assert view_status(bench.config)["streams"] == {"clicks": {"unreadable": 4}}
    assert (bench.signs("again"), bench.signs("found")) == (["+1,2026-01-01T10:05:00Z"], ["+d,d"])
    assert [row["n"] for _, _, row in bench.events("outcome")] == [2]
    assert bench.run().events == 0
    assert [of.agrees for of in verify_views(bench.config)] == [True] * 4
    explained = explain_view(bench.config, "outcome", "1")
    assert {row.table for row in explained.rows} == {"public.s", "stream.clicks"}
    assert explained.published == explained.computed
    shutil.rmtree(bench.folder / "state")
    assert bench.run().events == 0
    bench.streams = {"clicks": replace(_CLICKS, topic=topic, keep="1h")}
    with pytest.raises(ConfigError, match=r"outcome \(generation 1\): streams: “.1h.,” was “.30m.,”"):
        bench.run()
    bench.redefine()
    assert [row["n"] for _, _, row in bench.events("outcome")] == [3], "what was late is not, now"
    click("e", 1, "10:08", written="10:08")
    producer.flush(30)
    gone = TopicPartition(topic, 0, OFFSET_END)
    admin.delete_records([gone])[gone].result(30)
    with pytest.raises(CdcError, match=rf"streams\.clicks: 1 records of topic {topic} were removed before they were"):
        bench.run()
    goes_on = {"clicks": replace(bench.streams["clicks"], on_loss="go_on")}
    bench.streams = goes_on
    assert bench.run().events == 0
    admin.delete_topics([topic])[topic].result(30)
    until(lambda: topic not in admin.list_topics(timeout=10).topics, within_s=60)
    admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(30)
    bench.streams = {"clicks": replace(goes_on["clicks"], on_loss="stop")}
    with pytest.raises(CdcError, match=rf"topic {topic} is not the one that was read: it was deleted and made again"):
        bench.run()
    click("f", 1, "10:09", written="10:09")
    producer.flush(30)
    bench.streams = goes_on
    bench.run()
    assert [row["n"] for _, _, row in bench.events("outcome")] == [4], "what was read of the topic before stays"


@EITHER
def test_the_command(apply_spark: SparkSession, kafka: str, tmp_path: Path, engine: str) -> None:
    tables = {name: TABLES[name] for name in ("t", "f", "c")}
    bench = ViewBench(kafka, tmp_path, tables, {"timeline": CASES["1 tweet first"].view}, engine=engine)
    bench.transaction(
        ("t", "c", {"id": 1, "sender": "bob", "likes": 0}), ("f", "c", {"id": 1, "follower": "ann", "followee": "bob"})
    )
    file = tmp_path / "views.yaml"
    source = {"bootstrap_servers": kafka, "topic_prefix": bench.prefix}
    view = {"sql": CASES["1 tweet first"].view.sql, "key": ["follower", "tweet"]}
    made = {
        "name": "shop-views",
        "source": source,
        "state": str(tmp_path / "state"),
        "views": {"timeline": view},
        "engine": engine,
    }
    file.write_text(yaml.safe_dump(made))

    def cdc(*words: str) -> Any:
        found = CliRunner().invoke(command, ["view", *words, str(file), "--json"], catch_exceptions=False)
        assert found.exit_code == 0
        return json.loads(found.stdout)

    assert cdc("check") == cdc("plan")
    assert cdc("plan")["views"]["timeline"]["reads"] == ["public.f", "public.t"]
    assert not (tmp_path / "state").exists()
    assert cdc("status")["position"] is None
    assert cdc("run", "--once")["events"] == 1
    assert cdc("status")["views"]["timeline"]["rows"] == 1
    file.write_text(yaml.safe_dump({**made, "views": {"timeline": {**view, "sql": "SELECT * FROM public.tt"}}}))
    with pytest.raises(ConfigError, match=r"views\.timeline\.sql"):
        CliRunner().invoke(command, ["view", "run", str(file)], standalone_mode=False, catch_exceptions=False)
    twice = {"sql": "SELECT id, likes AS v, sender AS V FROM public.t", "key": ["id"]}
    file.write_text(yaml.safe_dump({**made, "views": {"twice": twice}}))
    with pytest.raises(ConfigError, match=r"columns of view\.twice differ in upper and lower case alone: V, v|twice"):
        CliRunner().invoke(command, ["view", "check", str(file)], standalone_mode=False, catch_exceptions=False)
    for reads, sql, what in _WRONG_READS:
        file.write_text(yaml.safe_dump({**made, "views": {"v": {"sql": sql, "key": ["id"], "from": reads}}}))
        with pytest.raises(ConfigError, match=what):
            CliRunner().invoke(command, ["view", "check", str(file)], standalone_mode=False, catch_exceptions=False)


_LOOKUP = "SELECT a.id, b.id AS other FROM public.t a JOIN public.f b ON b.follower = a.sender"
_WRONG_READS: list[tuple[Mapping[str, Any], str, str]] = [
    ({"public.tt": {"time": "at"}}, "SELECT id FROM public.t", r"views\.v\.from\.public\.tt: it is no captured table"),
    ({"public.t": {"time": "sent"}}, "SELECT id FROM public.t", r"from\.public\.t\.time: there is no column sent"),
    ({"public.t": {"time": "sender"}}, "SELECT id FROM public.t", r"time: sender is string, which is no time"),
    ({"public.f": {"at": "now"}}, "SELECT id FROM public.t", r"from: public\.f is not read by the SQL"),
    ({"public.f": {"at": "event"}}, _LOOKUP, r"looked up at: event, and no table beside it has a time"),
    (
        {"public.f": {"at": "event"}, "public.c": {"time": "at"}},
        "SELECT c.id FROM public.c c JOIN public.f b ON c.id = b.id",
        r"takes its log, topic \S+\.log\.public\.f: it does not exist",
    ),
    (
        {"public.f": {"at": "arrival"}, "public.c": {"time": "at"}},
        "SELECT * FROM public.c c JOIN public.f b ON c.id = b.id",
        r"\* in a SELECT that looks up rows as they were",
    ),
    (
        {"public.f": {"at": "arrival"}, "public.c": {"time": "at"}},
        "SELECT c.id FROM public.f b JOIN public.c c ON c.id = b.id",
        r"public\.f is looked up at: arrival: it is joined by JOIN or LEFT JOIN, with ON",
    ),
]
