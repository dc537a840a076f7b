"""Every version of every row in an Iceberg table, made from a log topic on a real broker."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from cdc.config import ApplyConfig, ApplyTable, StoreConfig
from cdc.errors import ConfigError, OperatorError
from cdc.logged import log_of
from cdc.state import Phase
from spark_apply import batches
from spark_apply.intervals import Event, intervals
from spark_apply.job import choose_tables, run_apply
from spark_apply.reading import Reader
from spark_apply.store import open_store
from spark_apply.stores.iceberg import IcebergStore
from spark_apply.tables import derived
from tests.spark_laws import Record, Setting, order
from tests.spark_records import logged, position

pytest_plugins = ["tests.spark_fixtures"]
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # py4j's, one for each thread

AT_MS = 1_763_673_600_000
HISTORY = ApplyTable(stores=("copy",), mode="history", untracked=("total",))


@pytest.fixture
def setting(apply_spark: SparkSession, kafka: str, tmp_path: Path) -> Setting:
    return Setting(apply_spark, kafka, tmp_path, lambda path: StoreConfig(type="iceberg", path=str(path)))


def _config(setting: Setting, follow: ApplyTable = HISTORY) -> ApplyConfig:
    return replace(setting.config(), tables={"public.orders": follow})


def _rows(setting: Setting, config: ApplyConfig) -> list[dict[str, Any]]:
    """What a user's SELECT gives: the job's own table, all columns."""
    spark = setting.spark.newSession()
    store = open_store(config.stores["copy"], name="copy", prefix=setting.prefix, spark=spark)
    assert isinstance(store, IcebergStore)
    found = spark.sql("SELECT * FROM copy.public.orders_history").collect()
    return [row.asDict() for row in found]


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
    """Versions of some rows: a snapshot, changes with and without a tracked column's, a delete, a truncate, a return."""
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


def test_any_order_and_any_repetition(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    """Late events, events again, a stop behind the store's commit, a lost checkpoint: the plain fold's table.

    A row of now is what `cdc verify` compares: the newest values, those of untracked columns too.
    """
    publisher, config = setting.publisher(), _config(setting)
    publisher.create([setting.table()], logs=True)
    events = [record for record in _changes(setting) if record[2] is not None]
    logs = [record for record in logged(events) if record[0] == log_of(setting.table().topic)]
    random.Random(3).shuffle(logs)
    for part in (logs[:20], logs[20:] + logs[:7]):
        publisher.publish(part)
        summary = setting.apply(config)
    assert summary.tables["public.orders"]["copy"].events == len(logs) - 13
    assert _said(_rows(setting, config)) == _expected(events)
    current = [row for row in _rows(setting, config) if row["_cdc_is_current"]]
    assert {(row["id"], row["status"], str(row["total"])) for row in current} == {
        (number, "back", "1.00") for number in range(8) if number % 3
    }

    more = setting.table().event("u", {**order(1, "late"), "total": "9.00"}, position(250), at_ms=AT_MS + 2500)
    more += setting.table().event("u", {**order(2, "back"), "total": "9.00"}, position(9000), at_ms=AT_MS + 9000)
    publisher.publish([record for record in logged(more) if ".log." in record[0]])
    with monkeypatch.context() as patch:
        patch.setattr(batches.TableCount, "add", _stopped)
        with pytest.raises(Exception, match="stopped behind the commit"):
            setting.apply(config)
    assert _said(_rows(setting, config)) == _expected(events + more)
    assert setting.apply(config).batches == 1
    shutil.rmtree(setting.folder / "checkpoints")
    setting.apply(config)
    assert _said(_rows(setting, config)) == _expected(events + more)
    spark = setting.spark.newSession()
    store = open_store(config.stores["copy"], name="copy", prefix=setting.prefix, spark=spark)
    ((_, (settings, versions)),) = choose_tables(config).items()
    found = [json.loads(row.document) for row in store.rows(derived(versions, settings))]
    assert {(row["id"], row["status"], row["total"]) for row in found} == {
        (number, "back", "9.00" if number == 2 else "1.00") for number in range(8) if number % 3
    }
    assert len(found) == len(current)


def _stopped(*_: object) -> None:
    msg = "stopped behind the commit"
    raise OperatorError(msg)


def test_a_history_says_how_far_it_is_complete(setting: Setting) -> None:
    """By the ends of its log, read without Spark."""
    table, publisher, config = setting.table(), setting.publisher(), _config(setting)
    publisher.create([table], logs=True)
    publisher.stand(Phase.STREAM, 20, [table], logged(table.event("c", order(2), position(19))), source_ms=1234)
    setting.apply(config)
    with Reader(config) as reader:
        found = reader.read("copy", setting.prefix).complete
    assert found is not None
    assert (found.position, found.source_ms) == (position(20, 0), 1234)


def test_what_cannot_be_a_history_is_refused_before_anything_is_made(setting: Setting) -> None:
    table, other, publisher = setting.table(), setting.table("orders_history"), setting.publisher()
    publisher.create([table, other])
    with pytest.raises(OperatorError, match=r"topic .*\.log\.public\.orders, which does not exist") as caught:
        run_apply(_config(setting), once=True)
    assert "sink: {log: {tables: [public.orders], retention: 30d}}" in str(caught.value)
    for untracked, said in (("totl", "did you mean total"), ("id", "is of the key")):
        with pytest.raises(ConfigError, match=said):
            run_apply(_config(setting, replace(HISTORY, untracked=(untracked,))), once=True)
    index = StoreConfig(type="tantivy", path=str(setting.folder / "index"))
    with pytest.raises(ConfigError, match=r"store copy \(tantivy\) keeps no history"):
        run_apply(replace(_config(setting), stores={"copy": index}), once=True)
    both = {"public.orders": HISTORY, "public.orders_history": ApplyTable(stores=("copy",))}
    with pytest.raises(ConfigError, match=r"store copy it would be the same table as public\.orders"):
        run_apply(replace(_config(setting), tables=both), once=True)
    assert list(setting.folder.iterdir()) == []
