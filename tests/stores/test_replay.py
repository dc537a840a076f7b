"""A replay runs beside the live job: from a position or a time on, into copies of its own, and touches no other."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession

from cdc.config.apply_config import ApplyTable, StoreConfig
from cdc.config.config import ApplyConfig
from cdc.model.change import Position
from cdc.model.errors import ConfigError, OperatorError
from spark_apply.events.quarantine import read_entries
from spark_apply.job.job import run_apply
from spark_apply.rebuild.quarantine_retry import run_retry
from spark_apply.replay.replay import file_of, prepare, run
from spark_apply.verify.leftovers import leftovers
from tests.conftest import Database
from tests.integration import in_process
from tests.spark.laws import Setting, order
from tests.spark.records import logged, position

pytest_plugins = ["tests.spark.fixtures"]
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # py4j's, one for each thread


def _digest(folder: Path) -> str:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return hashlib.sha256(b"".join(bytes(path) + path.read_bytes() for path in files)).hexdigest()


def _config(setting: Setting, database: Database) -> ApplyConfig:
    return replace(
        setting.config(),
        stores={"pg": StoreConfig(type="postgres", url=database.url)},
        tables={
            "public.orders": ApplyTable(stores=("pg",)),
            "public.i*": ApplyTable(stores=("pg",), mode="history"),
        },
    )


def test_a_replay_beside_the_live_job(
    apply_spark: SparkSession, kafka: str, postgres18: Database, tmp_path: Path
) -> None:
    setting = Setting(apply_spark, kafka, tmp_path, lambda path: StoreConfig(type="tantivy", path=str(path)))
    orders, items, publisher = setting.table(), setting.table("items"), setting.publisher()
    publisher.create([orders, items], logs=("items",))
    config = _config(setting, postgres18)
    for n in range(20):
        publisher.publish([*orders.event("c", order(n), position(10 + n)),
                           *logged(items.event("c", order(n), position(10 + n)))])  # fmt: skip
    time.sleep(0.1)
    between = dt.datetime.now(dt.UTC)
    for n in range(5):
        publisher.publish([*orders.event("u", order(n, "late"), position(50 + n)),
                           *logged(items.event("u", order(n, "late"), position(50 + n)))])  # fmt: skip
    publisher.publish([*orders.event("d", order(7), position(60)), *logged(items.event("d", order(7), position(60)))])
    publisher.publish([(orders.topic, b'{"id":99}', b"no event")])
    run_apply(config, once=True)
    live = {table: postgres18.rows(f"SELECT * FROM {table} ORDER BY id") for table in ("orders", "items_history")}
    checkpoint, held = _digest(Path(config.checkpoint)), read_entries(config)
    assert held, "one event is in quarantine"

    with pytest.raises(OperatorError, match="--from lies before the topics begin") as early:
        prepare(config, name="r", since=dt.datetime(2020, 1, 1, tzinfo=dt.UTC))
    assert position(10) in (early.value.hint or "")
    with pytest.raises(OperatorError, match="--from lies behind all events"):
        prepare(config, name="r", since=Position(1, 10_000, 1))
    with pytest.raises(ConfigError, match="has not begun yet"):
        prepare(config, name="r", since=None)

    with pytest.raises(ConfigError, match="--from is a position of connector other: it is no place in the topics of"):
        prepare(config, name="r", since=Position(1, 50, 1), connector="other")

    by_position = prepare(config, name="since-50", since=Position(1, 50, 1))
    told = {span.table: span for span in by_position.spans}
    assert "newest change alone may be left" in told["public.orders"].says
    assert "which has every change" in told["public.items"].says
    assert told["public.items"].first_at_ms is not None
    summary = run(by_position, once=True)
    assert not summary.aside
    assert summary.tables["public.orders"]["pg"].events == 6
    late = postgres18.rows("SELECT id FROM orders_since_50 WHERE status = 'late' ORDER BY id")
    assert late == [(0,), (1,), (2,), (3,), (4,)]
    assert postgres18.rows("SELECT count(*) FROM orders_since_50") == [(5,)]
    assert postgres18.rows("SELECT count(DISTINCT id) FROM items_history_since_50") == [(6,)]

    by_time = prepare(config, name="t", since=between)
    for mine, theirs in zip(by_time.spans, by_position.spans, strict=True):
        markers = [mine.begin_offsets[number] - offset for number, offset in theirs.begin_offsets.items()]
        assert set(markers) <= {0, 1}, "it begins at the same event, with the marker before it or without"

    for table, rows in live.items():
        assert postgres18.rows(f"SELECT * FROM {table} ORDER BY id") == rows, "the live copies are as they were"
    assert _digest(Path(config.checkpoint)) == checkpoint
    assert read_entries(config) == held
    assert len(read_entries(by_position.config)) == 1, "in a quarantine of its own"
    assert not read_entries(replace(config, name="since-50")), "that no job or replay of another file has"
    publisher.publish([(orders.topic, b'{"id":99}', None)])
    (done,) = run_retry(file_of(config, "since-50", copies=True))
    assert (done.outcome, read_entries(by_position.config)) == ("gone", {})
    assert read_entries(config) == held
    left = {of["place"]: of["what"] for of in leftovers(config, "public.orders", "7")}
    assert "cdc replay APPLY.yaml --as since-50 --once" in left["replay since-50 of law (pg)"], "it has read no delete"

    publisher.publish(orders.event("u", order(11, "later"), position(70)))
    again = prepare(config, name="since-50", since=Position(1, 10, 1))
    assert again.spans == (), "it goes on from its own checkpoint"
    run(again, once=True)
    assert postgres18.rows("SELECT id FROM orders_since_50 ORDER BY id") == [*late, (11,)]
    run_apply(config, once=True)
    assert postgres18.rows("SELECT status FROM orders WHERE id = 11") == [("later",)], "the live job goes on as before"

    with pytest.raises(OperatorError, match="_since_50 has rows already") as filled:
        run(prepare(config, name="since_50", since=Position(1, 60, 1)), once=True)
    assert "another name, by --as" in (filled.value.hint or "")
    assert postgres18.rows("SELECT id FROM orders_since_50 ORDER BY id") == [*late, (11,)]

    postgres18.execute("DROP TABLE orders_since_50")
    run(prepare(config, name="since-50", since=None), once=True)
    remade = postgres18.rows("SELECT id FROM orders_since_50 ORDER BY id")
    assert remade == [*late, (11,)], "made again, it has nothing of before the replay began"
    postgres18.execute("DROP TABLE orders_since_50, items_history_since_50")
    with pytest.raises(OperatorError, match="is older than the checkpoint") as ended:
        run(prepare(config, name="since-50", since=None), once=True)
    assert "APPLY.yaml" not in (ended.value.hint or ""), "no command for the live job is of use here"


def test_one_table_ends_no_replay(
    apply_spark: SparkSession, kafka: str, postgres18: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One without a topic, one that the file does not fit, and one that comes later, which is not read from its start.

    And with other tables it goes on where it was: it never reads what was before it.
    """
    monkeypatch.setenv("REPLAY_URL", postgres18.url)
    setting = Setting(apply_spark, kafka, tmp_path, lambda path: StoreConfig(type="tantivy", path=str(path)))
    names = ("orders", "goes", "gone", "twin", "twin_2", "unlike", "unread")
    tables = {name: setting.table(name) for name in names} | {"unlike": setting.table("unlike", {"id": ID})}
    publisher, admin = setting.publisher(), AdminClient({"bootstrap.servers": kafka})
    publisher.create(tables.values(), partitions=1)
    for at in (10, 50):
        publisher.publish([r for of in tables.values() for r in of.event("c", order(at), position(at))])
    publisher.publish([(tables["orders"].topic, b'{"id":99}', b"no event")])
    _delete(admin, tables["gone"].topic)
    stores = {"stores": ["pg"]}
    job = {
        "name": "law",
        "source": {"bootstrap_servers": kafka, "topic_prefix": setting.prefix},
        "stores": {"pg": {"type": "postgres", "url": "${REPLAY_URL}"}, "other": {"type": "tantivy", "path": "./x"}},
        "tables": {
            "public.twin*": {**stores, "target": "twins"},
            "public.unl*": {"stores": ["other"], "rename": {"status": "state"}},
            "public.unr*": {**stores, "where": "lenght(status) > 1"},
            "public.*": stores,
        },
        "checkpoint": str(tmp_path / "checkpoint"),
    }
    file = tmp_path / "apply.yaml"
    file.write_text(json.dumps(job))
    left = {f"public.{name}": said for name, said in {
        "gone": "does not exist", "twin_2": "both would be public.twins", "unlike": "no such column",
        "unread": "tables.public.unread.where",
    }.items()}  # fmt: skip

    def replayed(*more: str) -> tuple[int, dict[str, str], dict[str, Any]]:
        done = in_process.cdc(["replay", str(file), "--as", "r", "--json", *more], dict(os.environ))
        assert done.stdout, done.stderr
        found = json.loads(done.stdout)
        told = found["left"] if "--plan" in more else {table: {"reason": of} for table, of in _aside(found).items()}
        return done.returncode, {table: of["reason"] for table, of in told.items()}, found

    for how in ("--plan", "--once"):
        code, told, found = replayed("--from", position(50), how)
        assert (code, told.keys()) == (1, left.keys())
        assert all(said in told[table] for table, said in left.items()), told
    assert {table: of["pg"]["events"] for table, of in found["tables"].items()} == {
        "public.orders": 1, "public.goes": 1, "public.twin": 1,
    }  # fmt: skip
    assert postgres18.rows("SELECT id FROM orders_r ORDER BY id") == [(50,)]
    unread = ["list", str(file), "--json"]
    for more, entries in (["--as", "r"], 1), ([], 0):
        told = in_process.cdc(["quarantine", *unread, *more], dict(os.environ))
        assert len(json.loads(told.stdout)["entries"]) == entries, told.stderr
    typo = in_process.cdc(["quarantine", *unread, "--as", "s"], dict(os.environ))
    assert (typo.returncode, "no such replay has begun" in typo.stderr) == (2, True)
    _delete(admin, tables["goes"].topic)
    later = setting.table("later")
    admin.create_topics([NewTopic(later.topic, 1, 1)])[later.topic].result(30)
    publisher.versions([later])
    publisher.publish([r for of in (tables["orders"], later) for r in of.event("c", order(60), position(60))])
    code, told, _ = replayed("--once")
    assert (code, told.keys()) == (1, {*left, "public.goes", "public.later"})
    assert "is new since the replay r began" in told["public.later"]
    assert postgres18.rows("SELECT id FROM orders_r ORDER BY id") == [(50,), (60,)], "nothing of before is read"


ID = {"kind": "int64"}


def _delete(admin: AdminClient, topic: str) -> None:
    for future in admin.delete_topics([topic]).values():
        future.result(30)


def _aside(summary: dict[str, Any]) -> dict[str, str]:
    return {table: why for table, stores in summary["aside"].items() for why in stores.values()}


@pytest.mark.full
def test_a_replay_with_nothing_to_read_ends(
    apply_spark: SparkSession, kafka: str, postgres18: Database, tmp_path: Path
) -> None:
    """One of two tables has nothing in that span; the command tells by itself what it would do."""
    setting = Setting(apply_spark, kafka, tmp_path, lambda path: StoreConfig(type="tantivy", path=str(path)))
    orders, empty, publisher = setting.table(), setting.table("idle"), setting.publisher()
    publisher.create([orders, empty])
    publisher.publish(orders.event("c", order(1), position(10)))
    file = tmp_path / "apply.yaml"
    file.write_text(
        json.dumps(
            {
                "name": "law",
                "source": {"bootstrap_servers": kafka, "topic_prefix": setting.prefix},
                "stores": {"pg": {"type": "postgres", "url": "${REPLAY_URL}"}},
                "tables": {"public.*": {"stores": ["pg"]}},
                "checkpoint": str(tmp_path / "checkpoint"),
            }
        )
    )
    environment = {**os.environ, "REPLAY_URL": postgres18.url}
    done = in_process.cdc(["replay", str(file), "--as", "now", "--from", position(10), "--plan", "--json"], environment)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["targets"] == {"public.idle": "idle_now", "public.orders": "orders_now"}
    assert {span["table"]: span["offsets"] for span in found["tables"]}["public.idle"] == 0
    assert not (tmp_path / "checkpoint-now").exists()
    done = in_process.cdc(["replay", str(file), "--as", "now", "--from", position(10), "--once"], environment)
    assert done.returncode == 0, done.stderr
    assert "its topic is empty" in done.stderr
    assert postgres18.rows("SELECT id FROM orders_now") == [(1,)]
    done = in_process.cdc(["replay", str(file), "--as", "law", "--from", "24h"], environment)
    assert (done.returncode, "that is the job itself" in done.stderr) == (2, True)
