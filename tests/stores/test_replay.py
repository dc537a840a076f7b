"""A replay runs beside the live job: from a position or a time on, into copies of its own, and touches no other."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cdc.config.apply_config import ApplyTable, StoreConfig
from cdc.config.config import ApplyConfig
from cdc.model.change import Position
from cdc.model.errors import ConfigError, OperatorError
from spark_apply.events.quarantine import read_entries
from spark_apply.job.job import run_apply
from spark_apply.replay.replay import prepare, run
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

    publisher.publish(orders.event("u", order(11, "later"), position(70)))
    again = prepare(config, name="since-50", since=Position(1, 10, 1))
    assert again.spans == (), "it goes on from its own checkpoint"
    run(again, once=True)
    assert postgres18.rows("SELECT id FROM orders_since_50 ORDER BY id") == [*late, (11,)]
    run_apply(config, once=True)
    assert postgres18.rows("SELECT status FROM orders WHERE id = 11") == [("later",)], "the live job goes on as before"


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
