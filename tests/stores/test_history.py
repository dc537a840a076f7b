"""Every version of every row in each store that takes them, made from a log topic on a real broker."""

from __future__ import annotations

import datetime as dt
import json
import random
import shutil
from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg2
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from psycopg2.extras import RealDictCursor
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses

from cdc.cli.main import cdc
from cdc.config.apply_config import ApplyTable, StoreConfig
from cdc.config.config import ApplyConfig, load_apply
from cdc.encode.table_log import log_of
from cdc.model.errors import ConfigError, OperatorError
from cdc.model.state import Phase
from spark_apply.events import history
from spark_apply.events.intervals import Event, intervals
from spark_apply.job.batch.counts import TableCount
from spark_apply.job.copies.chosen import choose_usable
from spark_apply.job.job import run_apply
from spark_apply.job.plan import run_plan
from spark_apply.job.topics.losses import RebuildLoss
from spark_apply.job.watermarks.progress import Reader
from spark_apply.model.store import HISTORIES, connect, open_store
from spark_apply.model.target_table import TargetTable, derived
from spark_apply.rebuild.rebuild import Differences, run_rebuild, run_rollback
from spark_apply.stores.lake import history as lake_history
from tests.conftest import Database
from tests.integration.connector import Connector
from tests.spark.laws import ORDERS, Record, Setting, order
from tests.spark.records import logged, position

pytest_plugins = ["tests.spark.fixtures"]
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # py4j's, one for each thread

AT_MS = 1_763_673_600_000
HISTORY = ApplyTable(stores=("copy",), mode="history", untracked=("total",))


@pytest.fixture(params=HISTORIES)
def setting(request: pytest.FixtureRequest, apply_spark: SparkSession, kafka: str, tmp_path: Path) -> Setting:
    if request.param == "postgres":
        url = request.getfixturevalue("postgres18").url
        return Setting(apply_spark, kafka, tmp_path, lambda _: StoreConfig(type="postgres", url=url))
    return Setting(apply_spark, kafka, tmp_path, lambda path: StoreConfig(type=request.param, path=str(path)))


def _of(*types: str) -> pytest.MarkDecorator:
    """Only with these stores."""
    return pytest.mark.parametrize("setting", types, indirect=True)


def _most_in_full(*pushed: str) -> pytest.MarkDecorator:
    """With every store, of which `make test` takes these: stores that share what is asked."""
    others = [pytest.param(kind, marks=pytest.mark.full) for kind in HISTORIES if kind not in pushed]
    return pytest.mark.parametrize("setting", [*pushed, *others], indirect=True)


def _config(setting: Setting, follow: ApplyTable = HISTORY) -> ApplyConfig:
    return replace(setting.config(), tables={"public.orders": follow})


def _rows(setting: Setting, config: ApplyConfig) -> list[dict[str, Any]]:
    """What a user's SELECT gives: the job's own table, all columns."""
    copy = config.stores["copy"]
    if copy.type == "postgres":
        with (
            closing(psycopg2.connect(copy.url, cursor_factory=RealDictCursor)) as connection,
            connection.cursor() as cur,
        ):
            cur.execute("SELECT * FROM public.orders_history")
            return [dict(row) for row in cur.fetchall()]
    spark = setting.spark.newSession()
    open_store(copy, name="copy", prefix=setting.prefix, spark=spark)
    name = "copy.public.orders_history" if copy.type == "iceberg" else f"delta.`{copy.path}/public/orders_history`"
    return [row.asDict() for row in spark.sql(f"SELECT * FROM {name}").collect()]


def _store(setting: Setting, config: ApplyConfig) -> Any:
    spark = setting.spark.newSession()
    return open_store(config.stores["copy"], name="copy", prefix=setting.prefix, spark=spark)


def _forget(setting: Setting, *topics: str) -> None:
    """Let retention take all that logs have."""
    admin = AdminClient({"bootstrap.servers": setting.bootstrap})
    gone = [TopicPartition(topic, number, -1) for topic in topics for number in range(3)]
    for done in admin.delete_records(gone).values():
        done.result(30)


def _said(rows: Iterable[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Key, values, and what the row says of its interval."""
    times = ("_cdc_valid_from", "_cdc_valid_to")
    return sorted(
        (
            row["id"], row["_cdc_position"], row["status"], str(row["total"]), row["_cdc_from_position"],
            row["_cdc_to_position"], *(row[name] and round(row[name].timestamp() * 1000) for name in times),
            row["_cdc_is_current"],
        )
        for row in rows
    )  # fmt: skip


def _expected(records: Iterable[Record]) -> list[tuple[Any, ...]]:
    """The plain fold of the events."""
    values: dict[str, dict[str, Any]] = {}
    of: dict[int, list[Event]] = {}
    for _, key, value in records:
        event = json.loads(value or b"{}")
        if not event:
            continue
        after, at = event["after"] or {}, event["source"]["position"]
        values[at] = after
        made = Event(at, event["op"], event["source"]["ts_ms"], after.get("status"), after.get("total"))
        of.setdefault(json.loads(key)["id"], []).append(made)
    return sorted(
        (
            number, event.position, event.tracked, str(event.untracked), found.from_position, found.to_position,
            found.valid_from, found.valid_to, found.current,
        )
        for number, events in of.items()
        for event, found in intervals(events).items()
    )  # fmt: skip


def _changes(setting: Setting) -> list[Record]:
    """Versions of rows: a snapshot, changes with and without those of a tracked column, deletes, a truncate, more."""
    table, made = setting.table(), list[Record]()
    for number in range(8):
        steps = [("r", "new", "1.00"), ("u", "new", "2.00"), ("u", "paid", "2.00"), ("u", "paid", "3.00")]
        steps += [("d", "", ""), ("c", "new", "3.00")] if number % 2 else []
        steps += [("d", "", "")]  # all rows are gone: a truncate
        steps += [("c", "back", "1.00")] if number % 3 else []
        for step, (op, status, total) in enumerate(steps):
            row = {**order(number, status), "total": total}
            made += table.event(op, row, position(100 * step + number), at_ms=AT_MS + 1000 * step - 1500 * (step == 3))
    return made


@_most_in_full("postgres")
def test_any_order_and_any_repetition(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    """Late events, events again, a stop behind the store's commit, a lost checkpoint: the plain fold's table.

    A row of now is what `cdc verify` compares: the newest values, those of untracked columns too.
    """
    publisher, config = setting.publisher(), _config(setting)
    publisher.create([setting.table()], logs={setting.table().name})
    late = setting.table().event("u", {**order(1, "late"), "total": "9.00"}, position(250), at_ms=AT_MS + 2500)
    newest = setting.table().event("u", {**order(2, "back"), "total": "9.00"}, position(9000), at_ms=AT_MS + 9000)
    events = [record for record in (*_changes(setting), *late, *newest) if record[2] is not None]
    logs = [record for record in logged(events) if record[0] == log_of(setting.table().topic)]
    random.Random(3).shuffle(logs)
    publisher.publish(logs[:20])
    setting.apply(config)
    assert _said(_rows(setting, config)) == _expected(logs[:20])
    publisher.publish(logs[20:] + logs[:7])
    with monkeypatch.context() as patch:
        patch.setattr(TableCount, "add", _stopped)
        with pytest.raises(OperatorError, match="stopped behind the commit"):
            setting.apply(config)
    assert _said(_rows(setting, config)) == _expected(events)
    shutil.rmtree(setting.folder / "checkpoints")
    assert setting.apply(config).tables["public.orders"]["copy"].events == len(logs) + 7
    rows = _rows(setting, config)
    assert _said(rows) == _expected(events)
    now = {(number, "back", "9.00" if number == 2 else "1.00") for number in range(8) if number % 3}
    assert {(row["id"], row["status"], str(row["total"])) for row in rows if row["_cdc_is_current"]} == now
    ((settings, versions),) = choose_usable(config)[0].values()
    found = [json.loads(row.document) for row in _store(setting, config).rows(derived(versions, settings))]
    assert sorted((row["id"], row["status"], row["total"]) for row in found) == sorted(now)


def _stopped(*_: object) -> None:
    msg = "stopped behind the commit"
    raise OperatorError(msg)


@pytest.mark.full  # the law two_jobs_on_one_target; the fold is that of tests/property/test_history.py
@pytest.mark.parametrize("setting", [pytest.param("iceberg", marks=pytest.mark.full), "delta"], indirect=True)
def test_another_writers_commit_is_folded_in(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    """One between a fold and its MERGE, of a batch that adds a column."""
    table, publisher, config = setting.table(), setting.publisher(), _config(setting)
    publisher.create([table], logs={table.name})
    events = table.event("c", order(2), position(19))
    publisher.publish(logged(events))
    setting.apply(config)
    wider = setting.table(columns={**ORDERS, "more": {"kind": "string"}}, version=2)
    publisher.versions([wider])
    theirs = wider.event("u", {**order(2, "theirs"), "more": "y"}, position(30))
    ours = wider.event("u", {**order(2, "ours"), "more": "x"}, position(25))
    publisher.publish([record for record in logged(ours) if ".log." in record[0]])
    meddling: list[DataFrame] = []

    def meddled(known: DataFrame, found: DataFrame, made: TargetTable) -> DataFrame:
        folded = history.changed(known, found, made)
        if not meddling:
            folded = found.sparkSession.createDataFrame(folded.collect(), folded.schema)  # what we saw is what we saw
            values = {"_cdc_position": position(30), "status": "theirs", "more": "y"}
            meddling.append(found.withColumns({name: F.lit(value) for name, value in values.items()}))
            name = _store(setting, config).table_name(made)
            history.changed(known, meddling[0], made).createOrReplaceTempView("theirs")
            known.sparkSession.sql(history.merge(made, name, "theirs"))
        return folded

    with monkeypatch.context() as patch:
        patch.setattr(lake_history, "changed", meddled)
        setting.apply(config)
    assert meddling
    assert _said(_rows(setting, config)) == _expected(events + theirs + ours)
    more = [row["more"] for row in sorted(_rows(setting, config), key=lambda row: row["_cdc_position"])]
    assert more == [None, "x", "y"]


@_most_in_full("postgres")
def test_a_history_is_complete_and_made_anew(setting: Setting) -> None:
    """How far it is complete goes by the ends of its log, and is read without Spark.

    A rebuild is the same again. Once the log has forgotten its beginning, the plan says what a rebuild would lose, and
    it is not begun unless told to lose it; nor is a rollback that would.
    """
    table, publisher, config = setting.table(), setting.publisher(), _config(setting)
    publisher.create([table], logs={table.name})
    assert _prospect(config).what == "nothing: there is no copy yet"
    events = table.event("c", order(2), position(18)) + table.event("u", order(2, "paid"), position(19))
    publisher.stand(Phase.STREAM, 20, [table], logged(events), source_ms=1234)
    setting.apply(config)
    with Reader(config) as reader:
        found = reader.read("copy", setting.prefix).complete
    assert found is not None
    assert (found.position, found.source_ms) == (position(20, 0), 1234)
    (rebuilt,) = run_rebuild(config)
    assert (rebuilt.events, rebuilt.differences) == (2, Differences(rows=1))
    setting.apply(config)
    assert _said(_rows(setting, config)) == _expected(events)
    assert _prospect(config) == RebuildLoss(
        False,
        "nothing yet: its log has all, but forgets what is older than 7 days, which is then in the copy alone",
        None,
        0,
    )

    _forget(setting, log_of(table.topic))
    later = table.event("u", order(2, "later"), position(25))
    publisher.stand(Phase.STREAM, 30, [table], logged(later))
    found = _prospect(config)
    assert found.loses
    assert found.offsets_gone == 3  # two events, and what ends their transaction
    assert found.versions_before is not None
    age = dt.datetime.now(dt.UTC) - dt.datetime.fromisoformat(found.versions_before)
    assert dt.timedelta() <= age < dt.timedelta(minutes=5)
    setting.apply(config)
    assert _said(_rows(setting, config)) == _expected(events + later)
    with pytest.raises(
        OperatorError, match=r"a rebuild would lose versions before 20\S+: they are in the copy alone"
    ) as no:
        run_rebuild(config)
    words = "cdc rebuild APPLY.yaml --table public.orders --store copy --lose-history"
    assert words in str(no.value.hint)
    with pytest.raises(OperatorError, match="a rollback would lose versions since"):
        run_rollback(config)
    assert _said(_rows(setting, config)) == _expected(events + later)
    (rebuilt,) = run_rebuild(config, lose_history=True)
    assert rebuilt.events == 1
    assert _said(_rows(setting, config)) == _expected(later)
    setting.apply(config)
    (kept,) = run_rollback(config)
    assert kept.store == "copy"
    setting.apply(config)
    assert _said(_rows(setting, config)) == _expected(events + later)


@pytest.mark.full  # a_type_that_changes_is_followed_by_a_rebuild
def test_a_type_that_changes_is_followed_by_a_rebuild_of_all_versions(setting: Setting) -> None:
    """Versions of before and of after have one type; a rollback has those of before with theirs."""
    was, publisher, config = setting.table(), setting.publisher(), _config(setting)
    publisher.create([was], logs={was.name})
    before = was.event("c", order(2), position(18)) + was.event("u", order(2, "paid"), position(19))
    publisher.stand(Phase.STREAM, 20, [was], logged(before))
    setting.apply(config)
    now = setting.table(columns={**ORDERS, "total": {"kind": "decimal", "precision": 12, "scale": 4}}, version=2)
    publisher.versions([now])
    after = now.event("u", {**order(2, "sent"), "total": "0.0625"}, position(25))
    publisher.stand(Phase.STREAM, 30, [now], logged(after))
    with pytest.raises(OperatorError, match=r"total: it is .* would"):
        setting.apply(config)
    for _ in range(2):
        run_rebuild(config)
        assert setting.apply(config).aside == {}
        rows = sorted(_rows(setting, config), key=lambda row: row["_cdc_position"])
        assert [str(row["total"]) for row in rows] == ["2.5000", "2.5000", "0.0625"]
        assert [row["status"] for row in rows if row["_cdc_is_current"]] == ["sent"]
        run_rollback(config)
        with pytest.raises(OperatorError, match=r"total: it is .* would"):
            setting.apply(config)
        assert [str(row["total"]) for row in _rows(setting, config)] == ["2.50", "2.50"]


def _prospect(config: ApplyConfig) -> RebuildLoss:
    """What the plan says of a rebuild."""
    (copy,) = run_plan(config).copies
    assert copy.mode == "history"
    assert copy.rebuild is not None
    return copy.rebuild


@_most_in_full("postgres")
def test_a_history_that_was_away_for_longer_than_its_log_is_kept(setting: Setting) -> None:
    """What its log forgot before it was read is missing for good: refused, until that is said to be known."""
    table, publisher, config = setting.table(), setting.publisher(), _config(setting)
    publisher.create([table], logs={table.name})
    events = table.event("c", order(2), position(18))
    publisher.stand(Phase.STREAM, 20, [table], logged(events))
    setting.apply(config)
    publisher.stand(Phase.STREAM, 26, [table], logged(table.event("u", order(2, "missed"), position(25))))
    _forget(setting, log_of(table.topic))
    later = table.event("u", order(2, "later"), position(30))
    publisher.stand(Phase.STREAM, 31, [table], logged(later))
    with pytest.raises(OperatorError, match="were deleted before it had them") as refused:
        setting.apply(config)
    assert "cdc apply APPLY.yaml --lose-history" in str(refused.value.hint)
    with pytest.raises(OperatorError, match="what the job would read next is gone") as refused:
        run_apply(config, once=True, lose_history=True)
    assert str(refused.value.hint).startswith("cdc apply APPLY.yaml --reset-checkpoint --lose-history")
    run_apply(config, once=True, lose_history=True, reset_checkpoint=True)
    assert _said(_rows(setting, config)) == _expected(events + later)
    setting.apply(config)


@pytest.mark.full  # test_a_kill_at_every_step has a reader of transactions
@_of("postgres")
def test_versions_of_one_transaction_show_together(setting: Setting) -> None:
    """Of two tables, or none; while all is read again, too, and what waits outlives a log that forgets it.

    Late events of transactions that are whole split an interval; a lake that follows beside it has all events, too.
    """
    one, other, publisher = setting.table(), setting.table("items"), setting.publisher()
    publisher.create([one, other], logs={one.name, other.name})
    both = {"public.orders": replace(HISTORY, stores=("copy", "lake")), "public.items": replace(HISTORY, untracked=())}
    lake = StoreConfig(type="iceberg", path=str(setting.folder / "lake"))
    config = replace(setting.config(), tables=both, stores={**setting.config().stores, "lake": lake})

    def counts() -> list[tuple[Any, ...]]:
        sums = " + ".join(f"(SELECT count(*) FROM cdc_apply.waiting_{number})" for number in (1, 2))
        shown = ", ".join(f"(SELECT count(*) FROM public.{name}_history)" for name in ("orders", "items"))
        with closing(psycopg2.connect(config.stores["copy"].url)) as connection, connection.cursor() as cur:
            cur.execute(f"SELECT {shown}, {sums}")
            return list(cur.fetchall())

    first = one.event("c", order(1), position(10)) + other.event("c", order(7), position(10, 2))
    publisher.stand(Phase.STREAM, 20, [one, other], logged(first))
    setting.apply(config)
    assert counts() == [(1, 1, 0)]
    half, rest = one.event("u", order(1, "paid"), position(25)), other.event("u", order(7, "sold"), position(25, 2))
    publisher.publish(logged(half))
    setting.apply(config)
    assert counts() == [(1, 1, 1)]
    shutil.rmtree(setting.folder / "checkpoints")
    setting.apply(config)
    assert counts() == [(1, 1, 1)]
    shutil.rmtree(setting.folder / "checkpoints")
    _forget(setting, log_of(one.topic), log_of(other.topic))
    setting.apply(config)
    assert counts() == [(1, 1, 1)]
    publisher.stand(Phase.STREAM, 30, [one, other], logged(rest))
    setting.apply(config)
    assert counts() == [(2, 2, 0)]
    late = one.event("u", order(1, "late"), position(15)) + one.event("u", order(1, "later"), position(16))
    publisher.stand(Phase.STREAM, 40, [one, other], logged(late))
    count = setting.apply(config).tables["public.orders"]["copy"]
    assert (count.written, count.stale) == (3, None)  # they, and the one before, which they end
    expected = _expected([record for record in first + half + late if record[0] == one.topic])
    assert _said(_rows(setting, config)) == expected
    assert _said(_rows(setting, replace(config, stores={**config.stores, "copy": lake}))) == expected


@pytest.mark.full
@_of("iceberg")
def test_from_the_database(
    postgres18: Database, setting: Setting, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Snapshot, changes and a truncate of a real table become intervals, of which `cdc verify` takes the open ones."""
    postgres18.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, status text, seen int)",
        "INSERT INTO orders VALUES (1, 'new', 0), (2, 'new', 0)",
    )
    log = {"tables": ["public.*"], "retention": "forever"}
    connector = Connector(
        setting.folder, setting.prefix, postgres18.url, setting.bootstrap, ["public.orders"], sink={"log": log}
    )
    connector.catch_up()
    postgres18.execute(
        "UPDATE orders SET status = 'paid' WHERE id = 1",
        "UPDATE orders SET seen = 7 WHERE id = 1",
        "TRUNCATE orders",
        "INSERT INTO orders VALUES (1, 'again', 1)",
    )
    connector.catch_up()
    file = setting.folder / "apply.yaml"
    file.write_text(
        json.dumps(
            {
                "name": "kept",
                "source": {"bootstrap_servers": setting.bootstrap, "topic_prefix": setting.prefix},
                "stores": {"lake": {"type": "iceberg", "path": str(setting.folder / "lake")}},
                "tables": {"public.orders": {"stores": ["lake"], "mode": "history", "untracked": ["seen"]}},
                "checkpoint": str(setting.folder / "checkpoint"),
            }
        )
    )
    config = load_apply(file)
    run_apply(config, once=True)
    spark, _ = connect(config)
    intervals = "SELECT id, status, seen, _cdc_valid_to IS NULL FROM lake.public.orders_history "
    intervals += "WHERE _cdc_from_position IS NOT NULL ORDER BY id, _cdc_from_position"
    assert [tuple(row) for row in spark.sql(intervals).collect()] == [
        (1, "new", 0, False), (1, "paid", 7, False), (1, "again", 1, True), (2, "new", 0, False),
    ]  # fmt: skip
    capsys.readouterr()
    assert cdc.main(["apply", str(file), "--plan"], standalone_mode=False) == 0
    said = capsys.readouterr().out
    assert "in lake: follow on\n  a rebuild would lose nothing: its log has all, and forgets nothing\n" in said
    monkeypatch.setenv("TEST_DATABASE_URL", connector.environment["TEST_DATABASE_URL"])
    words = ["verify", str(connector.file), str(file), "--json"]
    code = cdc.main(words, standalone_mode=False)
    assert (code, json.loads(capsys.readouterr().out)["copies"][0]["equal"]) == (0, 1)


@_of("iceberg")
def test_what_cannot_be_a_history_is_refused_before_anything_is_made(setting: Setting) -> None:
    table, other, publisher = setting.table(), setting.table("orders_history"), setting.publisher()
    publisher.create([table, other])
    with pytest.raises(OperatorError, match=r"topic .*\.log\.public\.orders, which does not exist") as caught:
        run_apply(_config(setting), once=True)
    assert "sink: {log: {tables: [public.orders], retention: 30d}}" in str(caught.value)
    (plan, *_) = run_plan(_config(setting)).copies
    assert (plan.action, plan.why, plan.hint) == ("refused", caught.value.message, caught.value.hint)
    assert plan.rebuild is not None
    assert plan.rebuild.loses
    assert "every version but the newest of each row" in plan.rebuild.what
    for untracked, said in (("totl", "did you mean total"), ("id", "is of the key")):
        with pytest.raises(ConfigError, match=said):
            run_apply(_config(setting, replace(HISTORY, untracked=(untracked,))), once=True)
    index = StoreConfig(type="tantivy", path=str(setting.folder / "index"))
    with pytest.raises(ConfigError, match=r"store copy \(tantivy\) keeps no history"):
        run_apply(replace(_config(setting), stores={"copy": index}), once=True)
    both = {"public.orders": HISTORY, "public.orders_history": ApplyTable(stores=("copy",))}
    with pytest.raises(ConfigError, match=r"both would be public\.orders_history in store copy"):
        run_apply(replace(_config(setting), tables=both), once=True)
    assert list(setting.folder.iterdir()) == []
