"""`cdc apply --plan`, and the starts it speaks of: what is made, altered, read, refused; and topics that forget."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from cdc.cli.main import cdc
from cdc.config.config import ApplyConfig, load_apply
from cdc.model.errors import OperatorError
from spark_apply.job.job import run_apply
from spark_apply.rebuild.rebuild import run_rebuild
from spark_apply.stores.tantivy.store import _MARK
from tests.spark.laws import ORDERS, forget, order
from tests.spark.records import Publisher, SourceTable, position

pytest_plugins = ["tests.spark.fixtures"]
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # py4j's, one for each thread

_DAY_S = 86_400


class Job:
    """A file, and what `cdc apply --plan` says of it."""

    def __init__(self, kafka: str, prefix: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.file, self._capsys = folder / "apply.yaml", capsys
        self.stores = {name: {"type": kind, "path": str(folder / name)} for name, kind in KINDS.items()}
        self._about = {
            "name": "planned",
            "source": {"bootstrap_servers": kafka, "topic_prefix": prefix},
            "stores": self.stores,
            "checkpoint": str(folder / "checkpoint"),
        }
        self.write()

    def write(self, **table: Any) -> None:
        self.file.write_text(json.dumps({**self._about, "tables": {"public.orders": {"stores": [*KINDS], **table}}}))

    @property
    def config(self) -> ApplyConfig:
        return load_apply(self.file)

    def plan(self) -> tuple[int, dict[str, Any]]:
        self._capsys.readouterr()
        code = cdc.main(["apply", str(self.file), "--plan", "--json"], standalone_mode=False)
        return code, json.loads(self._capsys.readouterr().out)


KINDS = {"lake": "iceberg", "search": "tantivy"}


def actions(plan: dict[str, Any]) -> dict[str, tuple[str, list[str]]]:
    return {copy["store"]: (copy["action"], copy["steps"]) for copy in plan["copies"]}


def test_a_plan_is_what_a_start_does(
    *, apply_spark: SparkSession, kafka: str, prefix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Looked at before each start, and the folders are as they were; what it refuses, the start refuses."""
    table, publisher = SourceTable(prefix, "orders", {**ORDERS, "n": {"kind": "int32"}}), Publisher(kafka, prefix)
    publisher.create([table], partitions=1)
    publisher.publish([r for n in range(3) for r in table.event("c", {**order(n), "n": n}, position(10 + n))])
    job = Job(kafka, prefix, tmp_path, capsys)

    code, plan = job.plan()
    assert (code, actions(plan)) == (0, dict.fromkeys(KINDS, ("make", ["make public.orders"])))
    assert (plan["checkpoint"], plan["topics"][0]["begin"], plan["topics"][0]["offsets"]) == (None, "first offset", 4)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["apply.yaml"]

    run_apply(job.config, once=True)
    code, plan = job.plan()
    assert (code, actions(plan)) == (0, dict.fromkeys(KINDS, ("follow on", [])))
    assert (plan["topics"][0]["begin"], plan["topics"][0]["offsets"]) == ("checkpoint", 0)

    mark = (tmp_path / "search/public/orders").resolve() / _MARK  # as in a copy restored from an older backup
    mark.rename(mark.with_name("away"))
    code, plan = job.plan()
    assert (code, len(plan["problems"])) == (1, 1)
    assert "store search: its copy of public.orders is older than the checkpoint" in plan["problems"][0]["what"]
    mark.with_name("away").rename(mark)

    wider = SourceTable(prefix, "orders", {**ORDERS, "n": {"kind": "int64"}, "x": {"kind": "string"}}, version=2)
    publisher.versions([wider])
    publisher.publish(wider.event("u", {**order(1), "n": 2**40, "x": "y"}, position(20)))
    before = _contents(tmp_path)
    code, plan = job.plan()
    assert (code, plan["topics"][0]["offsets"]) == (0, 2)
    assert actions(plan) == {
        "lake": ("alter", ["widen column n from int to bigint", "add column x string"]),
        "search": ("alter", ["index its rows again, for x"]),
    }
    job.write(where="status <> ''")
    code, plan = job.plan()
    assert (code, plan["starts"], {copy["action"] for copy in plan["copies"]}) == (1, False, {"refused"})
    assert all("cdc rebuild APPLY.yaml --table public.orders" in copy["hint"] for copy in plan["copies"])
    assert _contents(tmp_path) == before
    with pytest.raises(OperatorError, match="in another shape"):
        run_apply(job.config, once=True)


def _contents(folder: Path) -> list[tuple[str, int]]:
    paths = (path for path in folder.rglob("*") if path.name != "apply.yaml" and not path.name.endswith(".lock"))
    return sorted((str(path), path.lstat().st_mtime_ns) for path in paths)


def test_what_a_topic_has_forgotten_is_never_skipped(
    *, apply_spark: SparkSession, kafka: str, prefix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Away for longer than deletes are kept; offsets deleted: said by plan and start, and repaired by what they say."""
    table, publisher = SourceTable(prefix, "orders", ORDERS), Publisher(kafka, prefix)
    publisher.create([table], partitions=1)
    _publish_late(kafka, [r for n in range(3) for r in table.event("c", order(n), position(10 + n))])
    job = Job(kafka, prefix, tmp_path, capsys)
    lake = replace(job.config, tables={"public.orders": replace(job.config.tables["public.orders"], stores=("lake",))})
    job.write(stores=["lake"])
    run_apply(lake, once=True)

    _publish_late(kafka, [*table.event("d", order(1), position(20)), *table.event("c", order(5), position(21))])
    code, plan = job.plan()
    assert (code, plan["copies"][0]["action"]) == (1, "refused")
    said = "public.orders in lake was not kept up for longer than its topic keeps deletes (delete.retention.ms, 1 days)"
    assert said in plan["copies"][0]["why"]
    with pytest.raises(OperatorError) as refused:
        run_apply(lake, once=True)
    assert said in refused.value.message
    assert refused.value.hint == "cdc rebuild APPLY.yaml --table public.orders --store lake"
    run_rebuild(lake)
    code, plan = job.plan()
    assert (code, actions(plan)["lake"][1]) == (0, ["fold in what came since it was rebuilt or put back"])
    run_apply(lake, once=True)

    publisher.publish(table.event("u", order(5, "gone"), position(30)) + table.event("u", order(5), position(31)))
    forget(kafka, table.topic)
    code, plan = job.plan()
    assert (code, plan["starts"]) == (1, False)
    (problem,) = plan["problems"]
    assert f"topic {table.topic}, partition 0: offsets " in problem["what"]
    with pytest.raises(OperatorError, match=r"in lake: offsets \d+ to \d+ of its topic, partition 0, were deleted"):
        run_apply(lake, once=True)
    assert problem["hint"].startswith("cdc rebuild APPLY.yaml && cdc apply APPLY.yaml --reset-checkpoint")


def _publish_late(kafka: str, records: list[tuple[str, bytes, bytes | None]]) -> None:
    """As if it had been written nine days ago."""
    producer = Producer({"bootstrap.servers": kafka, "log_level": 0})
    for topic, key, value in records:
        producer.produce(topic, key=key, value=value, timestamp=int((time.time() - 9 * _DAY_S) * 1000))
    assert producer.flush(30) == 0
