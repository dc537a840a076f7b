"""A rebuild that fills its copy in one pass, and gives it up for the other way where that may not be."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from cdc.config.apply_config import StoreConfig
from spark_apply.events.quarantine import read_entries
from spark_apply.model.store import Offsets, open_store
from spark_apply.rebuild import rebuild
from spark_apply.rebuild.diff import Differences
from spark_apply.rebuild.rebuild import Rebuilt, run_rebuild
from tests.spark.kinds import EVERY_KIND, every_kind_rows
from tests.spark.laws import ORDERS, Record, Setting, order, workload
from tests.spark.records import Publisher, SourceTable, position

pytest_plugins = ["tests.spark.fixtures"]
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # py4j's, one for each thread


# Both share how a copy is filled; test_apply_delta.py has another rebuild.
@pytest.fixture(params=["iceberg", pytest.param("delta", marks=pytest.mark.full)])
def setting(request: pytest.FixtureRequest, apply_spark: SparkSession, kafka: str, tmp_path: Path) -> Setting:
    return Setting(apply_spark, kafka, tmp_path, lambda path: StoreConfig(type=request.param, path=str(path)))


@pytest.fixture
def fills(monkeypatch: pytest.MonkeyPatch) -> list[Offsets | None]:
    """What became of each try to fill a copy."""
    done, original = [], rebuild.fill

    def fill(*arguments: Any) -> Offsets | None:
        done.append(original(*arguments))
        return done[-1]

    monkeypatch.setattr(rebuild, "fill", fill)
    return done


def _rebuilt(setting: Setting) -> Rebuilt:
    (copy,) = run_rebuild(setting.config())
    return copy


def _begun(setting: Setting, publisher: Publisher, table: SourceTable) -> list[Record]:
    publisher.create([table])
    records = [record for transaction in workload(table) for record in transaction]
    late = table.event("u", order(3, "late"), position(1))
    records += table.event("c", order(3, "last"), position(9_000))
    publisher.publish([*records, *late])
    publisher.publish(table.event("u", order(3, "never"), position(9_999)), commit=False)
    setting.apply()
    return records


def test_a_copy_is_filled_in_one_pass(
    setting: Setting, fills: list[Offsets | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deletes, late events and those of aborted transactions in it; what comes meanwhile is merged, job and all."""
    table, publisher = setting.table(), setting.publisher()
    records = _begun(setting, publisher, table)
    there = setting.folded(table, records)
    assert setting.contents(table) == there
    meanwhile = [*table.event("d", order(3), position(9_001)), *table.event("c", order(700), position(9_002))]
    original = rebuild.compare

    def compare(*arguments: Any) -> Differences:
        publisher.publish(meanwhile)
        return original(*arguments)

    monkeypatch.setattr(rebuild, "compare", compare)
    copy = _rebuilt(setting)
    assert fills != []
    assert None not in fills
    assert copy.differences == Differences(rows=len(there))
    assert copy.events == sum(value is not None for _, _, value in [*records, *meanwhile]) + 1
    records += meanwhile
    assert setting.contents(table) == setting.folded(table, records)
    more = [*table.event("u", order(700, "paid"), position(9_003)), *table.event("c", order(3), position(9_004))]
    publisher.publish(more)
    setting.apply()
    assert setting.contents(table) == setting.folded(table, records + more)
    assert setting.rows(table) == len(setting.folded(table, records + more))
    monkeypatch.setattr(rebuild, "compare", original)
    records += more
    assert _rebuilt(setting).differences == Differences(rows=len(setting.folded(table, records)))
    spark = setting.spark.newSession()
    store = open_store(setting.store(setting.folder / "copy"), name="copy", prefix=setting.prefix, spark=spark)
    assert store.position(setting.target(table)) == position(9_004)  # without it, what comes next would be added
    last = [*table.event("u", order(700, "sent"), position(9_005)), *table.event("d", order(3), position(9_006))]
    publisher.publish(last)
    setting.apply()
    assert setting.contents(table) == setting.folded(table, records + last)
    assert setting.rows(table) == len(setting.folded(table, records + last))


@pytest.mark.full
def test_every_kind_an_empty_topic_and_nothing_but_a_key(setting: Setting, fills: list[Offsets | None]) -> None:
    kinds, empty, publisher = setting.table("kinds", EVERY_KIND), setting.table("empty"), setting.publisher()
    links = replace(setting.table("links", {"a": {"kind": "int64"}, "b": {"kind": "string"}}), key=("a", "b"))
    publisher.create([kinds, empty, links])
    records = [r for row in every_kind_rows() for r in kinds.event("c", row, position(10 + row["id"]))]
    gone = empty.event("c", order(1), position(5)) + empty.event("d", order(1), position(6))
    linked = [r for n in range(3) for r in links.event("c", {"a": n, "b": str(n)}, position(10 + n))]
    linked += links.event("d", {"a": 1, "b": "1"}, position(20))
    publisher.publish([*records, *gone, *linked])
    setting.apply()
    done = run_rebuild(setting.config())
    assert [(copy.table, copy.differences) for copy in done] == [
        ("public.empty", Differences()),
        ("public.kinds", Differences(rows=len(every_kind_rows()))),
        ("public.links", Differences(rows=2)),
    ]
    assert len(fills) == len(done)
    assert None not in fills
    assert setting.contents(kinds) == setting.folded(kinds, records)
    assert setting.contents(empty) == {}
    assert setting.contents(links) == setting.folded(links, linked)


@pytest.mark.parametrize("bad", ["a misfit", pytest.param("no event", marks=pytest.mark.full)])
def test_a_copy_with_anything_bad_is_given_up(setting: Setting, fills: list[Offsets | None], bad: str) -> None:
    """The key keeps its newest event that fits, the bad one is noted; nothing of the first try is left."""
    table = setting.table(columns={**ORDERS, "count": {"kind": "int32"}})
    publisher = setting.publisher()
    publisher.create([table], partitions=1)
    good = [r for n in range(5) for r in table.event("c", {**order(n), "count": n}, position(10 + n))]
    publisher.publish(good)
    setting.apply()
    misfit = table.event("u", {**order(2), "count": 2**40}, position(30))
    publisher.publish(misfit if bad == "a misfit" else [(table.topic, b'{"id":2}', b"{}")])
    copy = _rebuilt(setting)
    assert fills == [None]
    assert copy.differences == Differences(rows=len(good))
    assert setting.contents(table) == setting.folded(table, good)
    assert setting.rows(table) == len(good)
    setting.apply()
    (entry,) = read_entries(setting.config()).values()
    assert entry.key == '{"id":2}'
    _rebuilt(setting)  # what waits in quarantine may be settled by it: it is looked for
    assert fills == [None]
    newer = table.event("u", {**order(2, "mended"), "count": 3}, position(40))
    publisher.publish(newer)
    _rebuilt(setting)
    shutil.rmtree(setting.folder / "checkpoints")
    setting.apply()
    assert setting.contents(table) == setting.folded(table, good + newer)
    assert not read_entries(setting.config())
