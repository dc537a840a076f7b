"""Views in PostgreSQL on a real broker: the cases of the other engines, and what its readers see."""

from __future__ import annotations

import json
import math
import random
import shutil
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from pyspark.sql import SparkSession

import spark_apply.views.embedded.step
from cdc.cli.main import cdc as command
from cdc.config.apply_config import QuarantineConfig
from cdc.config.views import MatchConfig, ReadConfig, StreamConfig, ViewConfig
from cdc.model.errors import ConfigError
from spark_apply.events.quarantine import read_entries
from spark_apply.views.job import run_views
from spark_apply.views.planning.planned import plan_views
from spark_apply.views.proof.explain import explain_view
from spark_apply.views.proof.verify import verify_views
from spark_apply.views.publishing.status import view_status
from tests.conftest import FULL, Database
from tests.spark.laws import until
from tests.spark.records import Record, position
from tests.views.bench import ViewBench
from tests.views.cases import CASES, INT, TABLES, TEXT, lookup, view
from tests.views.one_job import BATCHES, COMMITS, LONG, Cases, fenced_by_a_second, named

pytest_plugins = ["tests.spark.fixtures"]
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

_TAKEN = {
    name: case
    for name, case in CASES.items()
    if case.view.match is None and all(read.keep is None and read.at == "now" for read in case.view.reads.values())
}
"""What this engine takes: all but searches, what comes too late, and rows as they were."""
_SOME = {
    name: CASES[name]
    for name in (
        "5 sender changed",
        "22 outer join: matches come and go",
        "28 a deadline passes while nothing happens, 29 a straggler",
        "the best two of each group",
    )
}
"""What each push asks; steps of every form are in tests/integration/test_views_in_postgres.py."""
_SCHEMA = "cdc_views_shop_views"


@pytest.mark.parametrize("killed_at", ["", *(pytest.param(each, marks=LONG) for each in COMMITS)])
def test_cases_batch_by_batch(  # noqa: PLR0917 - what a server and a job take
    apply_spark: SparkSession,
    kafka: str,
    postgres18: Database,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    killed_at: str,
) -> None:
    """Unit by unit, wherever the job dies in each batch; then nothing, whatever of the state is lost."""
    cases = Cases(kafka, tmp_path, _TAKEN if FULL else _SOME, engine="postgres", store=postgres18.url)
    with monkeypatch.context() as patched:
        patched.setattr(spark_apply.views.embedded.step, "MOST_TOUCHED", math.inf)
        for batch in cases.killed_before_each(killed_at):
            found, expected = cases.found(), cases.expected(batch)
            assert {name: of for name, of in found.items() if of != expected[name]} == {}, batch
    status = view_status(cases.bench.config)
    assert status["engine"] == "postgres"
    assert {of["computed"] for of in status["views"].values()} <= {"units", None}
    if FULL:
        shutil.rmtree(cases.bench.folder / "state")
        assert cases.bench.run().events == 0
    postgres18.execute(f"DROP SCHEMA {_SCHEMA} CASCADE")
    assert cases.bench.run().events == 0


@pytest.mark.full
def test_cases_at_once_in_any_order_and_again(
    apply_spark: SparkSession, kafka: str, postgres18: Database, tmp_path: Path
) -> None:
    cases = Cases(kafka, tmp_path, _TAKEN, engine="postgres", store=postgres18.url)
    cases.publish(*range(BATCHES), shuffled=5)
    cases.bench.run()
    rows, keys = cases.rows(), cases.keys()
    assert {name: of for name, of in rows.items() if name not in keys} == cases.answers(apply_spark)
    assert {name: {",".join(map(str, key)) for key in rows.get(name, ())} for name in keys} == keys
    cases.found()
    cases.bench.commit = 10  # every event comes again, under its old position
    cases.publish(*range(BATCHES), shuffled=6)
    assert cases.bench.run().events == 0
    assert {name: signs for name, signs in cases.found().items() if signs} == {}
    for number, name in enumerate(cases.cases):
        (verified,) = verify_views(cases.bench.config, only=named(number))
        assert verified.agrees, (name, verified)


def _timeline(kafka: str, folder: Path, database: Database) -> ViewBench:
    views = {"timeline": CASES["1 tweet first"].view}
    tables = {"t": TABLES["t"], "f": TABLES["f"]}
    return ViewBench(kafka, folder, tables, views, engine="postgres", store=database.url)


@pytest.mark.full  # tests/integration/test_views_in_postgres.py fences a state
def test_a_second_job_fences_the_first(
    apply_spark: SparkSession, kafka: str, postgres18: Database, tmp_path: Path
) -> None:
    first = _timeline(kafka, tmp_path / "first", postgres18)
    fenced_by_a_second(first, tmp_path / "second")


_TRANSFERS, _TOGETHER = 100_000, 500


@pytest.mark.full  # that steps are transactions is tested in test_views_in_postgres.py
@pytest.mark.timeout(1800)
def test_readers_of_the_database_see_tables_and_views_of_one_position(
    apply_spark: SparkSession, kafka: str, postgres18: Database, tmp_path: Path
) -> None:
    """Money moves while a reader polls: no sum is ever wrong, and views are those of the tables beside them."""
    account = {"id": INT, "half": TEXT, "balance": INT}
    views = {
        "halves": view("SELECT half, sum(balance) AS s FROM public.here GROUP BY half", "half"),
        "all": view("SELECT 'all' AS k, sum(s) AS s FROM view.halves", "k"),
    }
    bench = ViewBench(kafka, tmp_path, {"here": account}, views, engine="postgres", store=postgres18.url)
    money = dict.fromkeys(range(10), 100)
    rows = {n: {"id": n, "half": "one" if n % 2 else "other", "balance": 100} for n in money}
    bench.transaction(*(("here", "c", row) for row in rows.values()))
    stop, failed, seen = threading.Event(), list[Exception](), set[str]()
    wrong = list[object]()

    def follow() -> None:
        try:
            run_views(bench.config, once=False, stop=stop)
        except Exception as exc:  # noqa: BLE001 - shown by the test
            failed.append(exc)

    def poll() -> None:
        asked = (
            f"SELECT (SELECT value FROM {_SCHEMA}.meta WHERE name = 'position'), "
            f'(SELECT sum(balance) FROM {_SCHEMA}."public.here"), (SELECT sum(s) FROM {_SCHEMA}."view.halves"), '
            f'(SELECT s FROM {_SCHEMA}."view.all"), (SELECT count(*) FROM {_SCHEMA}."view.halves" v JOIN '
            f'(SELECT half, sum(balance) AS s FROM {_SCHEMA}."public.here" GROUP BY half) h USING (half, s))'
        )
        while not stop.is_set():
            ((at, *sums),) = postgres18.rows(asked)
            seen.add(str(at))
            if sums != [1_000, 1_000, 1_000, 2]:
                wrong.append((at, sums))

    job, reader = threading.Thread(target=follow), threading.Thread(target=poll)
    job.start()
    until(lambda: bool(failed) or (tmp_path / "state" / "status.json").exists(), within_s=120)
    reader.start()
    rng = random.Random(4)

    def transfer() -> list[Record]:
        one, other = rng.sample(sorted(rows), 2)
        amount = rng.randrange(1, 50)
        for number, more in ((one, -amount), (other, amount)):
            rows[number] = {**rows[number], "balance": int(str(rows[number]["balance"])) + more}
        return bench.records([("here", "u", rows[one]), ("here", "u", rows[other])])

    for turn in range(60):
        if turn % 20 == 19:  # a step of its own for what came so far, once without a connection
            until(partial(_reached, bench, failed), within_s=120)
            postgres18.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND application_name = 'cdc apply'"
            )
        bench.stand(transfer())
    for _ in range(0, _TRANSFERS, _TOGETHER):
        bench.stand([record for _ in range(_TOGETHER) for record in transfer()])
    until(partial(_reached, bench, failed), within_s=900)
    stop.set()
    job.join(60)
    reader.join(60)
    assert failed == []
    assert wrong == []
    assert len(seen) > 2
    explained = explain_view(bench.config, view="all", key='{"k": "all"}')
    assert (explained.outcome, explained.published) == ("row", {"k": "all", "s": 1_000})


def _reached(bench: ViewBench, failed: list[Exception]) -> bool:
    return bool(failed) or view_status(bench.config)["position"] >= position(bench.commit + 1, 0)


def test_what_postgres_does_not_take_is_refused_with_the_way_out(
    apply_spark: SparkSession, kafka: str, postgres18: Database, tmp_path: Path
) -> None:
    tables = {name: TABLES[name] for name in ("t", "s", "sale", "rate")} | {"own": {"id": INT, "ctid": INT}}
    bench = ViewBench(
        kafka, tmp_path, tables, {"v": lookup("now")},
        engine="postgres", store=postgres18.url, logs=frozenset({"rate"}),
        streams={"k": StreamConfig(topic="k", schema="id BIGINT, at TIMESTAMP", key=("id",))},
    )  # fmt: skip
    search = MatchConfig(queries="public.t", query="sender", docs="public.t", fields=("sender",))
    kept = {"public.s": ReadConfig(time="at", keep="30m")}
    of_stream = "SELECT t.id, k.at FROM public.t t JOIN stream.k k ON k.id = t.id"
    refused = {
        "views.v.match: PostgreSQL finds no searches": ViewConfig(match=search, key=("query", "doc")),
        "views.v.from.public.s.keep: PostgreSQL": ViewConfig(sql="SELECT id FROM public.s", key=("id",), reads=kept),
        "views.v.from.public.rate.at: PostgreSQL": lookup("event"),
        "views.v.stream.k: PostgreSQL reads captured tables": ViewConfig(sql=of_stream, key=("id",)),
        "views.v.sql: line 1: UPPER": ViewConfig(sql="SELECT id, upper(sender) AS s FROM public.t", key=("id",)),
        "views.v: the column aaa": ViewConfig(sql=f"SELECT id, sender AS {'a' * 64} FROM public.t", key=("id",)),
        "views.v: the column bbb": ViewConfig(
            sql=f"WITH c AS (SELECT sender, count(*) AS {'b' * 64} FROM public.t GROUP BY 1) SELECT sender FROM c",
            key=("sender",),
        ),
        "views.v.sql: ccc": ViewConfig(sql=f"SELECT id FROM public.t {'c' * 64}", key=("id",)),
        "views.v: the column xmin": ViewConfig(sql="SELECT id AS xmin FROM public.t", key=("xmin",)),
        "views.v.sql: line 1: t.ctid": ViewConfig(sql="SELECT * FROM public.own t", key=("id",)),
        "views.v: PostgreSQL keeps no table of": ViewConfig(
            sql=f"SELECT id, {', '.join(f'id AS c{number}' for number in range(1_600))} FROM public.t", key=("id",)
        ),
    }
    for message, one in refused.items():
        with pytest.raises(ConfigError) as error:
            plan_views(replace(bench.config, views={"v": one}), apply_spark)
        assert error.value.message.startswith(message)
        assert "engine: duckdb" in (error.value.hint or "")
    assert postgres18.rows("SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'cdc%'") == [(0,)]


@pytest.mark.full  # tests/stores/test_views_command.py, tests/stores/test_view_rebuild.py
def test_the_commands(apply_spark: SparkSession, kafka: str, postgres18: Database, tmp_path: Path) -> None:
    bench = _timeline(kafka, tmp_path, postgres18)
    bench.transaction(
        ("t", "c", {"id": 1, "sender": "bob", "likes": 0}), ("f", "c", {"id": 1, "follower": "ann", "followee": "bob"})
    )
    file, of = tmp_path / "views.yaml", CASES["1 tweet first"].view
    made = {
        "name": "shop-views",
        "source": {"bootstrap_servers": kafka, "topic_prefix": bench.prefix},
        "state": str(tmp_path / "state"),
        "engine": "postgres",
        "store": postgres18.url,
        "views": {"timeline": {"sql": of.sql, "key": list(of.key)}},
    }
    file.write_text(yaml.safe_dump(made))

    def cdc(*words: str) -> Any:
        found = CliRunner().invoke(command, ["view", *words, "--json"], catch_exceptions=False)
        assert found.exit_code == 0
        return json.loads(found.stdout)

    assert cdc("check", str(file)) == cdc("plan", str(file))
    assert cdc("plan", str(file))["engine"] == "postgres"
    assert cdc("run", str(file), "--once")["events"] == 1
    assert cdc("status", str(file))["views"]["timeline"]["rows"] == 1
    assert cdc("verify", str(file))["agree"]
    key = '{"follower": "ann", "tweet": 1}'
    assert cdc("explain", str(file), "--view", "timeline", "--key", key)["outcome"] == "row"
    edited = f"{of.sql} WHERE t.likes > 0"
    file.write_text(yaml.safe_dump({**made, "views": {"timeline": {"sql": edited, "key": list(of.key)}}}))
    assert cdc("rebuild", str(file), "--dry-run")["views"][0]["removed"] == 1
    assert cdc("rebuild", str(file))["views"][0]["generation"] == 2
    assert bench.signs("timeline") == ["+ann,1", "-ann,1"]
    assert postgres18.rows(f'SELECT count(*) FROM {_SCHEMA}."view.timeline"') == [(0,)]
    assert cdc("verify", str(file))["agree"]


@pytest.mark.full  # tests/stores/test_containment.py has rows that PostgreSQL refuses, and tables that are set aside
def test_what_postgres_cannot_keep_blocks_its_own_key_alone(
    apply_spark: SparkSession, kafka: str, postgres18: Database, tmp_path: Path
) -> None:
    """Its row stays as it was until it is right; where no event may be in quarantine, the other tables go on."""
    views = {
        "days": view("SELECT sender, count(*) AS n, max(day) AS last FROM public.t GROUP BY sender", "sender"),
        "again": view("SELECT a.id FROM public.t a JOIN public.t b ON a.id = b.id", "id"),
        "sums": view("SELECT g, sum(v) AS s FROM public.x GROUP BY g", "g"),
        "firsts": view("SELECT id, c0 FROM public.wide", "id"),
    }
    wide = [f"c{number}" for number in range(600)]
    tables = {"t": {"id": INT, "sender": TEXT, "day": {"kind": "date"}, "xmin": INT}, "x": TABLES["x"]}
    tables |= {"wide": {"id": INT, **dict.fromkeys(wide, TEXT)}}
    bench = ViewBench(kafka, tmp_path, tables, views, engine="postgres", store=postgres18.url)
    told: list[str] = []

    def row(number: int, sender: str, day: int = 1) -> dict[str, Any]:
        return {"id": number, "sender": sender, "day": day, "xmin": number}

    def signs(limit: int = 1_000) -> tuple[dict[str, str], list[list[str]]]:
        config = replace(bench.config, quarantine=QuarantineConfig(limit=limit))
        done = run_views(config, once=True, progress=told.append)
        return dict(done.stopped), [bench.signs(name) for name in views]

    long_ago = -2_500_000
    bench.transaction(*(("t", "c", row(number, "bob")) for number in range(4)), ("x", "c", {"id": 1, "g": "a", "v": 1}))
    assert signs() == ({}, [["+bob"], ["+0", "+1", "+2", "+3"], ["+a"], []])
    bench.transaction(
        ("t", "u", row(0, "a\0b")), ("t", "u", row(1, "ann", long_ago)), ("t", "u", row(2, "dan")),
        ("t", "d", row(3, "a\0b", long_ago)), ("t", "c", row(4, "\0")), ("x", "u", {"id": 1, "g": "a", "v": 2}),
    )  # fmt: skip
    stopped, found = signs(limit=0)
    assert (sorted(stopped), found) == (["again", "days"], [[], [], ["~a"], []])
    assert "left out" in stopped["days"]
    bench.transaction(("x", "u", {"id": 1, "g": "a", "v": 3}))
    assert signs() == ({}, [["+dan", "~bob"], ["-3"], ["~a"], []])
    (line,) = [line for line in told if "PostgreSQL cannot keep" in line]
    assert "public.t: events in quarantine that PostgreSQL cannot keep: 3" in line
    assert not any("a\0b" in line for line in told)
    bench.transaction(("t", "u", row(0, "ann")), ("t", "u", row(1, "ann", 2)), ("t", "d", row(4, "\0")))
    assert signs() == ({}, [["+ann", "-bob"], [], [], []])
    assert all(verified.agrees for verified in verify_views(bench.config))
    job: Any = SimpleNamespace(name=bench.job, source=bench.config.source)
    assert read_entries(job) == {}
    too_wide = {"id": 1, **dict.fromkeys(wide, "more than a page of these")}
    bench.transaction(("wide", "c", too_wide), ("wide", "c", {**dict.fromkeys(wide, "a"), "id": 2}))
    assert signs() == ({}, [[], [], [], ["+2"]])
    assert any("public.wide: events in quarantine that PostgreSQL cannot keep: 1;" in line for line in told)
    bench.transaction(("wide", "d", too_wide), ("wide", "u", {**dict.fromkeys(wide, "b"), "id": 2}))
    assert signs() == ({}, [[], [], [], ["~2"]])
    assert read_entries(job) == {}
