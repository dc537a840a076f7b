"""What is asked of a view beside its job: explain, repair, rebuild, rollback, while the job runs and while not."""

from __future__ import annotations

import json
import shutil
import signal
import threading
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest
import yaml
from click.testing import CliRunner
from pyspark.sql import SparkSession

import spark_apply.views.rebuild
from cdc.cli.main import cdc as command
from cdc.config.apply_config import ApplyTable, StoreConfig
from cdc.config.config import ApplyConfig
from cdc.config.views import ReadConfig, ViewConfig, ViewsConfig
from cdc.model.errors import ConfigError, OperatorError
from cdc.monitor.watched import WatchedViews
from sinks.topics.names import log_topic
from sinks.topics.records.read_back import read_to_end
from spark_apply.events.kafka.schema_topic import schema_versions
from spark_apply.job.job import run_apply
from spark_apply.model.store import open_store
from spark_apply.model.target_table import target
from spark_apply.views.job import ViewSummary, run_views
from spark_apply.views.planning.definitions import described
from spark_apply.views.proof.explain import explain_view
from spark_apply.views.proof.verify import verify_views
from spark_apply.views.publishing.status import view_status
from spark_apply.views.rebuild import publish, rebuild_views
from spark_apply.views.running.commands import Command, leave, new_command
from tests.conftest import FULL
from tests.spark.laws import until
from tests.spark.records import position
from tests.views.bench import ViewBench
from tests.views.cases import INT, TABLES, at

pytest_plugins = ["tests.spark.fixtures"]
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

_GROUPS = "SELECT g, count(*) AS n FROM public.x GROUP BY g"
_LARGE = "SELECT g, count(*) AS n FROM public.x WHERE v > 1 GROUP BY g"
_SIZES = ViewConfig(sql="SELECT n, count(*) AS m FROM view.groups GROUP BY n", key=("n",))
_TIME = TABLES["s"]["at"]
_SEARCHES = {
    "outcome": ViewConfig(
        sql="SELECT s.id, CASE WHEN min(c.at) IS NOT NULL THEN 'clicked' ELSE 'not clicked' END AS outcome "
        "FROM public.s s LEFT JOIN public.c c "
        "ON c.search_id = s.id AND c.at BETWEEN s.at AND s.at + INTERVAL 30 MINUTES "
        "GROUP BY s.id, s.at HAVING min(c.at) IS NOT NULL OR s.at + INTERVAL 40 MINUTES <= clock()",
        key=("id",),
    ),
    "outcomes": ViewConfig(
        sql="WITH o AS (SELECT outcome, count(*) AS n FROM view.outcome GROUP BY outcome) "
        "SELECT n, count(*) AS m FROM o GROUP BY n",
        key=("n",),
    ),
    "texts": ViewConfig(sql="SELECT CAST(id AS STRING) AS t, x FROM public.n", key=("x",)),
    "states": ViewConfig(
        sql="SELECT CASE WHEN at + INTERVAL 20 MINUTES <= clock() THEN 'old' ELSE 'new' END AS state, "
        "count(*) AS n FROM public.c GROUP BY 1",
        key=("state",),
    ),
}


@pytest.fixture(autouse=True)
def _nobody_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_apply.views.rebuild, "TAKEN_S", 0.0)


def _groups(sql: str, *key: str) -> ViewConfig:
    return ViewConfig(sql=sql, key=key or ("g",))


def _keys(rows: Any) -> list[tuple[str, Any]]:
    return [(row.table, json.loads(row.key)) for row in rows]


def test_what_a_row_comes_from(apply_spark: SparkSession, kafka: str, tmp_path: Path) -> None:
    """The rows of tables behind a row, through joins, nodes and other views; the deadline; the clock, or the rows."""
    columns = {
        "s": {"id": INT, "at": _TIME},
        "c": {"id": INT, "search_id": INT, "at": _TIME},
        "n": {"id": INT, "x": INT},
    }
    bench = ViewBench(kafka, tmp_path, columns, _SEARCHES)
    some, others = ([("s", "r", {"id": n, "at": at("10:00")}) for n in of] for of in (range(1, 20), range(20, 40)))
    read = bench.records(some, at_ms=at("9:59") // 1000)
    bench.commit -= 2  # all that a snapshot has read has one position
    read += bench.records(others, at_ms=at("10:00") // 1000)
    bench.stand(read, at_ms=at("10:00") // 1000)
    bench.transaction(("n", "c", {"id": 1, "x": 7}), ("n", "c", {"id": 2, "x": 8}), at_ms=at("10:01") // 1000)
    bench.run()
    bench.transaction(("c", "c", {"id": 5, "search_id": 3, "at": at("10:05")}), at_ms=at("10:06") // 1000)
    clicked = position(bench.commit, 1)
    bench.transaction(("n", "c", {"id": 3, "x": 8}), at_ms=at("10:06") // 1000)
    bench.run()

    found = explain_view(bench.config, "outcome", '{"id": 3}')
    assert (found.outcome, found.published) == ("row", {"id": 3, "outcome": "clicked"})
    assert (found.unit, _keys(found.rows)) == ({"id": 3}, [("public.s", {"id": 3}), ("public.c", {"id": 5})])
    assert [row.at_ms for row in found.rows] == [at("9:59") // 1000, at("10:06") // 1000], "of its own chunk"
    assert found.deadline is not None
    assert found.deadline.isoformat() == "2026-01-01T10:40:00"
    assert found.changed is not None
    assert not found.changed["clock"]
    assert found.changed["rows"] == [
        {"table": "public.c", "key": {"id": 5}, "position": clicked, "at_ms": at("10:06") // 1000}
    ]
    found = explain_view(bench.config, "outcome", "4")
    assert (found.outcome, found.published, found.records) == ("none", None, ())
    assert _keys(found.rows) == [("public.s", {"id": 4})]
    new = explain_view(bench.config, "states", "new")
    assert (new.published, _keys(new.rows)) == ({"state": "new", "n": 1}, [("public.c", {"id": 5})])
    assert new.deadline is not None
    assert new.deadline.isoformat() == "2026-01-01T10:25:00"
    held = explain_view(bench.config, "texts", "8")
    assert (held.outcome, held.quarantined) == ("quarantined", "the key is not unique")
    assert _keys(held.rows) == [("public.n", {"id": 3}), ("public.n", {"id": 2})]

    bench.stand(at_ms=at("10:41") // 1000)
    bench.run()
    found = explain_view(bench.config, "outcome", "4")
    assert (found.outcome, found.published) == ("row", {"id": 4, "outcome": "not clicked"})
    assert found.changed is not None
    assert (found.changed["clock"], found.deadline) == (True, None)
    assert explain_view(bench.config, "states", "new").outcome == "none"
    old = explain_view(bench.config, "states", "old")
    assert (old.published, _keys(old.rows)) == ({"state": "old", "n": 1}, [("public.c", {"id": 5})])
    assert old.changed is not None
    assert old.changed["clock"]
    whole = explain_view(bench.config, "outcomes", "38")
    assert (whole.published, len(whole.rows), list(whole.more)) == ({"n": 38, "m": 1}, 20, ["public.s"])
    assert len({row.key for row in whole.rows}) == 20, "each row once"
    assert {row.table for row in whole.rows} == {"public.s"}
    one = explain_view(bench.config, "outcomes", "1")
    assert _keys(one.rows) == [("public.s", {"id": 3}), ("public.c", {"id": 5})]


def _filled(kafka: str, folder: Path) -> ViewBench:
    bench = ViewBench(kafka, folder, {"x": TABLES["x"]}, {"groups": _groups(_GROUPS), "sizes": _SIZES})
    bench.transaction(*(("x", "c", {"id": n, "g": f"g{n % 3}", "v": n}) for n in range(8)))
    bench.run()
    assert (bench.signs("groups"), bench.signs("sizes")) == (["+g0", "+g1", "+g2"], ["+2", "+3"])
    return bench


def test_a_view_that_is_edited(apply_spark: SparkSession, kafka: str, tmp_path: Path) -> None:
    """Nothing that is published changes before it is asked for; then all of it at once, and back again."""
    bench = _filled(kafka, tmp_path)
    bench.views = {"groups": _groups(f"-- how many\n{_GROUPS.lower()}"), "sizes": _SIZES}
    assert bench.run().events == 0, "what means the same is the same"
    bench.views = {"groups": _groups(_LARGE), "sizes": _SIZES}
    for refused in (bench.run, partial(verify_views, bench.config), partial(explain_view, bench.config, "sizes", "1")):
        with pytest.raises(ConfigError, match=r"groups \(generation 1\): sql: “WHERE v > 1” was “”"):
            refused()
    shutil.rmtree(tmp_path / "state")
    with pytest.raises(ConfigError, match="generation 1"):  # it is not the state that knows
        bench.run()
    found = rebuild_views(bench.config, dry_run=True)
    assert found.as_json()["differs"]
    assert [(of.view, of.missing, of.different, of.extra) for of in found.views] == [("groups", 0, 2, 0)]
    assert (bench.signs("groups"), bench.signs("sizes")) == ([], [])

    assert bench.rebuild().generations == {"groups": 2}
    assert (bench.signs("groups"), bench.signs("sizes")) == (["~g0", "~g1"], ["-3", "~2"])
    steps = {event["transaction"]["id"] for view in ("groups", "sizes") for event in bench.whole_events(view)[-2:]}
    assert len(steps) == 1
    assert not bench.rebuild("groups").differs
    assert bench.run().events == 0
    assert view_status(bench.config)["views"]["groups"]["generation"] == 2
    watched = WatchedViews(tmp_path / "views.yaml", bench.config)
    for look in watched.looks():
        look.look()
    assert [(of["view"], of["stopped"]) for of in watched.entry()["views"]] == [("groups", None), ("sizes", None)]
    assert (watched.entry()["level"], watched.entry()["rows"]) == ("ok", 4.0)

    assert rebuild_views(bench.config, only=["groups"], rollback=True).generations == {"groups": 3}
    topic = log_topic(bench.config.source.topic_prefix, bench.config.name, "audit")
    acts = [json.loads(m.value() or b"") for m in read_to_end(kafka, {}, topic, "read_committed")]
    assert [act["about"] for act in acts if act["action"] == "view rebuild"] == [{"views": ["groups"]}] * 3
    assert (bench.signs("groups"), bench.signs("sizes")) == (["~g0", "~g1"], ["+3", "~2"])
    with pytest.raises(ConfigError, match="generation 3"):
        bench.run()
    bench.views = {"groups": _groups(_GROUPS), "sizes": _SIZES}
    leave(bench.config, new_command({"groups": described(_groups(_LARGE))}))  # of a rebuild that was killed
    assert bench.rebuild().generations == {"groups": 3}, "the file has the definition of before again"
    assert bench.run().events == 0
    if FULL:
        _definitions_that_are_refused(bench)
    assert (bench.signs("groups"), bench.signs("sizes")) == ([], [])


def _definitions_that_are_refused(bench: ViewBench) -> None:
    """Each is a job's start and its end."""
    for definition, why in (
        (_groups("SELECT g, n FROM (SELECT g, count(*) AS n FROM public.x GROUP BY g) t", "g", "n"), "it is .g, n."),
        (_groups("SELECT g, CAST(count(*) AS STRING) AS n FROM public.x GROUP BY g"), "column n is string, and bigint"),
    ):
        bench.views = {"groups": definition}
        with pytest.raises(ConfigError, match=why):
            bench.rebuild("groups")
    bench.views = {"groups": _groups("SELECT g, count(CAST(g AS INT)) AS n FROM public.x GROUP BY g"), "sizes": _SIZES}
    with pytest.raises(OperatorError, match="Spark cannot compute it"):
        bench.rebuild("groups")
    bench.views = {"groups": _groups(_GROUPS), "sizes": _SIZES}
    more = replace(bench.config, views={**bench.views, "new": _SIZES})
    with pytest.raises(OperatorError, match="nothing is published of it yet"):
        rebuild_views(more, only=["new"])


def test_a_view_that_is_left_out_for_a_while(apply_spark: SparkSession, kafka: str, tmp_path: Path) -> None:
    """What it has missed is made up for, however little of the table has changed; so is that of a stopped view."""
    columns = {"x": TABLES["x"], "s": TABLES["s"]}
    sql = "SELECT id, CAST(g AS INT) AS n FROM public.x WHERE CAST(g AS INT) >= 0"  # of which rows it is, none can say
    numbers = ViewConfig(sql=sql, key=("id",))
    searches = ViewConfig(sql="SELECT id, at FROM public.s", key=("id",))
    bench = ViewBench(kafka, tmp_path, columns, {"numbers": numbers, "groups": _groups(_GROUPS)})
    bench.views["searches"] = searches
    bench.transaction(("s", "c", {"id": 1, "at": at("10:00")}), at_ms=at("10:00") // 1000)
    bench.transaction(*(("x", "c", {"id": n, "g": str(n), "v": 0}) for n in range(50)))
    bench.run()
    assert (len(bench.signs("numbers")), len(bench.signs("groups"))) == (50, 50)
    bench.views = {"numbers": numbers, "searches": searches}
    bench.transaction(("x", "u", {"id": 7, "g": "x", "v": 0}), ("x", "d", {"id": 9}))
    assert list(bench.run().stopped) == ["numbers"]
    bench.views = {"groups": _groups("SELECT g, 2 AS n FROM public.x GROUP BY g"), "searches": searches}
    (found,) = rebuild_views(bench.config, dry_run=True).views
    assert (found.missing, found.extra, found.different) == (1, 2, 48)
    bench.transaction(("x", "u", {"id": 7, "g": "70", "v": 0}))
    bench.views = {"numbers": numbers, "groups": _groups(_GROUPS), "searches": searches}
    bench.run()
    assert (bench.signs("numbers"), bench.signs("groups")) == (["-9", "~7"], ["+70", "+x", "-7", "-9", "-x"])

    bench.views["searches"] = replace(searches, reads={"public.s": ReadConfig(time="at", keep="1h")})
    bench.rebuild()  # its table is read in another way, of which the state has no rows
    bench.transaction(("s", "c", {"id": 2, "at": at("10:00")}), at_ms=at("10:00") // 1000)
    bench.run()
    rebuild_views(bench.config, only=["searches"], rollback=True)
    assert bench.signs("searches") == ["+1", "+2"]
    bench.views["moments"] = replace(searches, sql="SELECT id, at FROM public.s WHERE id > 1")
    bench.views["searches"] = ViewConfig(sql="SELECT id, at FROM view.moments", key=("id",))
    assert bench.rebuild().views[0].extra == 1, "it reads a view that is new with it"
    assert (bench.signs("searches"), bench.signs("moments")) == (["-1"], ["+2"])
    moments = bench.views["moments"]
    bench.views = {"searches": searches}
    bench.rebuild()
    with pytest.raises(
        ConfigError, match=r"with the definition before, .*view\.moments is no view of the file"
    ) as lost:
        rebuild_views(bench.config, only=["searches"], rollback=True)
    assert "Write that view into the file again" in (lost.value.hint or "")
    bench.views["moments"] = moments
    assert rebuild_views(bench.config, only=["searches"], rollback=True, dry_run=True).views[0].extra == 1


def test_what_a_topic_has_wrong_is_put_right(apply_spark: SparkSession, kafka: str, tmp_path: Path) -> None:
    bench = _filled(kafka, tmp_path)
    first, *_, last = bench.whole_events("groups")
    forged = {**first, "op": "u", "after": {**first["after"], "n": 99}, "source": last["source"]}
    value = json.dumps(forged, separators=(",", ":")).encode()
    bench.publisher.publish([(f"{bench.prefix}.view.groups", b'{"g":"g0"}', value)])
    file = tmp_path / "views.yaml"
    views = {"groups": {"sql": _GROUPS, "key": ["g"]}, "sizes": {"sql": _SIZES.sql, "key": ["n"]}}
    source = {"bootstrap_servers": kafka, "topic_prefix": bench.prefix}
    made = {"name": bench.job, "source": source, "state": bench.config.state, "views": views}
    file.write_text(yaml.safe_dump(made))

    def cdc(*words: str) -> tuple[int, Any]:
        asked = ["view", words[0], str(file), *words[1:], "--json"]
        found = CliRunner().invoke(command, asked, standalone_mode=False, catch_exceptions=False)
        return int(found.return_value or 0), json.loads(found.stdout)

    code, explained = cdc("explain", "--view", "groups", "--key", "g0")
    assert (code, explained["outcome"], explained["published"]) == (0, "differs", {"g": "g0", "n": 99})
    code, found = cdc("verify", "--repair")
    assert (code, [(of["view"], of["different"]) for of in found["views"]]) == (1, [("groups", 1), ("sizes", 0)])
    assert found["repaired"] == ["groups"]
    code, found = cdc("verify", "--repair")
    assert (code, found["agree"], found["repaired"]) == (0, True, [])
    file.write_text(yaml.safe_dump({**made, "views": {**views, "groups": {"sql": _LARGE, "key": ["g"]}}}))
    code, found = cdc("rebuild", "--dry-run")
    assert (code, found["views"][0]["changed"], found["views"][0]["generation"]) == (1, 2, None)


_RUN = ViewSummary("job", 0.0, 1, 1, None, {})


class _Late:
    """Commands that are seen one look later; `there` has those that stand."""

    there: ClassVar[list[Command]] = []

    def __init__(self, _config: object) -> None:
        self._seen = [*self.there]

    def standing(self) -> list[Command]:
        seen, self._seen = self._seen, [*self.there]
        return seen

    def withdraw(self, _command: Command) -> None:
        self.there.clear()

    def close(self) -> None: ...


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> type[_Late]:
    """Have commands seen late, and no job wait for them."""
    monkeypatch.setattr(_Late, "there", [])
    for name, by in {"Commands": _Late, "leave": lambda _, each: _Late.there.append(each), "TAKEN_S": 0.0}.items():
        monkeypatch.setattr(spark_apply.views.rebuild, name, by)
    return _Late


def test_what_a_run_here_has_published_is_no_failure(late: type[_Late], monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: object, **__: object) -> ViewSummary:
        late.there.clear()
        return _RUN

    monkeypatch.setattr(spark_apply.views.rebuild, "run_views", run)
    publish(cast("ViewsConfig", None), {"groups": described(_groups(_LARGE))}, lambda _: None)


@pytest.mark.parametrize(
    ("run", "raised", "said"),
    [
        (replace(_RUN, signal=signal.SIGINT), KeyboardInterrupt, "^$"),
        (replace(_RUN, signal=signal.SIGTERM), SystemExit, "143"),
        (_RUN, OperatorError, "could not publish it yet: the topics are not complete yet"),
        (replace(_RUN, reading={"public.x"}), OperatorError, "yet: a table is being read again"),
        (replace(_RUN, stopped={"groups": "it is wrong"}), OperatorError, "yet: it is wrong"),
    ],
)
def test_what_a_run_here_has_not_published_is_withdrawn(
    late: type[_Late], monkeypatch: pytest.MonkeyPatch, run: ViewSummary, raised: type[BaseException], said: str
) -> None:
    """By a signal it ends as any command does, else it says why."""
    monkeypatch.setattr(spark_apply.views.rebuild, "run_views", lambda *_, **__: run)
    with pytest.raises(raised, match=said):
        publish(cast("ViewsConfig", None), {"groups": described(_groups(_LARGE))}, lambda _: None)
    assert late.there == []


def test_a_job_that_runs_takes_a_new_definition_over(
    apply_spark: SparkSession, kafka: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And back again; one that cannot be computed it refuses, and goes on with what it had."""
    monkeypatch.setattr(spark_apply.views.rebuild, "TAKEN_S", 120.0)
    bench = _filled(kafka, tmp_path)
    copies = ApplyConfig(
        name="copies",
        source=bench.config.source,
        stores={"copy": StoreConfig(type="tantivy", path=str(tmp_path / "copy"))},
        tables={"view.groups": ApplyTable(stores=("copy",))},
        checkpoint=str(tmp_path / "checkpoint"),
    )
    run_apply(copies, once=True)
    stop, ended, told = threading.Event(), list[Any](), list[str]()
    run = partial(run_views, bench.config, once=False, progress=told.append, stop=stop)
    job = threading.Thread(target=lambda: ended.append(run()))
    job.start()
    until(lambda: any(line.startswith("following") for line in told), within_s=120)
    named = {"groups": _groups(_LARGE.replace("AS n", "AS n, max(v) AS most")), "sizes": _SIZES}
    assert rebuild_views(replace(bench.config, views=named)).generations == {"groups": 2}
    assert (bench.signs("groups"), bench.signs("sizes")) == (["~g0", "~g1", "~g2"], ["-3", "~2"])
    bench.transaction(("x", "c", {"id": 20, "g": "new", "v": 5}))
    until(lambda: bench.signs("groups") == ["+new"], within_s=60)

    wrong = {"groups": described(_groups(_LARGE.replace("v > 1", "CAST(g AS INT) > 1")))}
    with pytest.raises(OperatorError, match="could not publish it: view groups: a value cannot be converted"):
        publish(bench.config, wrong, told.append)
    bench.transaction(("x", "c", {"id": 21, "g": "newer", "v": 5}))
    until(lambda: "+newer" in bench.signs("groups"), within_s=60)
    done = rebuild_views(replace(bench.config, views=named), only=["groups"], rollback=True)
    assert done.generations == {"groups": 3}
    stop.set()
    job.join(60)
    assert ended[0].stopped == {}
    run_apply(copies, once=True)
    made = target(schema_versions(bench.config.source)["view.groups"], {})
    store = open_store(copies.stores["copy"], name="copy", prefix=bench.prefix, spark=apply_spark)
    with closing(store):
        rows = {row["g"]: row["n"] for row in (json.loads(found.document) for found in store.rows(made))}
    assert rows == {"g0": 3, "g1": 3, "g2": 2, "new": 1, "newer": 1}
    assert bench.run().events == 0
