"""A job waits for brokers that are away, as it waits for stores, and goes on where it was."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from cdc.config.apply_config import StoreConfig
from cdc.config.views import ViewConfig
from cdc.dev.servers.process import Server
from cdc.dev.stack import SERVERS
from cdc.model.errors import CdcError, OperatorError
from cdc.model.state import Phase
from spark_apply.events.kafka import client, stream
from spark_apply.job.topics import identity
from spark_apply.job.watermarks import barriers
from spark_apply.views.job import run_views
from spark_apply.views.publishing import output
from tests.conftest import Database
from tests.spark.laws import Setting, order, until
from tests.spark.records import Publisher, position
from tests.views.bench import EITHER, ViewBench
from tests.views.cases import TABLES

pytest_plugins = ["tests.spark.fixtures"]
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # py4j's, one for each thread

_IMPATIENT = {
    "kafka.default.api.timeout.ms": "3000", "kafka.request.timeout.ms": "2000", "fetchOffset.numRetries": "1",
    "kafkaConsumer.pollTimeoutMs": "3000",
}  # fmt: skip


@pytest.fixture
def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """Give a broker of a test's own, for which nobody waits long."""
    configured = stream._configured
    monkeypatch.setattr(stream, "_configured", lambda *given: configured(*given).options(**_IMPATIENT))
    monkeypatch.setattr(identity, "AWAY_S", 2.0)
    monkeypatch.setattr(barriers, "_AWAY_S", 2.0)
    monkeypatch.setattr(client, "ANSWER_WITHIN_S", 2.0)
    monkeypatch.setattr(output, "_PATIENCE_S", 2.0)
    broker = Server("kafka", tmp_path / "kafka", SERVERS["kafka"])
    broker.start()
    try:
        yield broker
    finally:
        broker.resume()
        broker.kill()


@pytest.mark.full  # tests/unit/test_apply_retry.py has what ends a round for it
@pytest.mark.timeout(900)
def test_brokers_that_are_away_are_waited_for(
    apply_spark: SparkSession, postgres18: Database, tmp_path: Path, broker: Server
) -> None:
    """While nothing has come since the start, and in the midst of a batch; dead, and frozen.

    What came meanwhile is there, once.
    """
    setting = Setting(apply_spark, broker.url, tmp_path, lambda _: StoreConfig(type="postgres", url=postgres18.url))
    table, publisher = setting.table(), setting.publisher()
    publisher.create([table])
    records: list[Any] = []

    def publish(commit: int, rows: int) -> None:
        more = [r for n in range(rows) for r in table.event("u", order(n, f"at {commit}"), position(commit, n + 1))]
        setting.publisher().stand(Phase.STREAM, commit + 5, [table], more)
        records.extend(more)

    def is_there(commit: int) -> bool:
        (mark,) = setting.marks(table)
        return job.failure is not None or bool(mark.complete and mark.complete.position == position(commit + 5, 0))

    publish(10, 3)
    setting.apply()
    with setting.running("checkpoints") as job:
        until(lambda: job.said("following"), 300)
        for number, (away, back) in enumerate(((broker.kill, broker.start), (broker.pause, broker.resume))):
            if number:
                folder = setting.folder / "checkpoints"
                begun = len([*folder.glob("*/offsets/[0-9]*")])
                publish(200, 20_000)
                until(lambda: len([*folder.glob("*/offsets/[0-9]*")]) > begun, 60)  # noqa: B023
            away()
            waited = sum("does not answer" in line for line in job.lines)
            until(lambda: sum("does not answer" in line for line in job.lines) > waited or job.failure, 300)  # noqa: B023
            back()
            publish(at := 100 + 200 * number, 5)
            until(lambda: is_there(at), 300)
            assert job.failure is None
    assert setting.contents(table) == setting.folded(table, records)
    broker.kill()
    with pytest.raises(OperatorError, match="does not answer"):
        setting.apply()


@pytest.mark.full  # tests/unit/test_kafka_waited_for.py
@pytest.mark.timeout(900)
@EITHER
def test_a_view_job_waits_for_brokers_too(
    apply_spark: SparkSession, tmp_path: Path, broker: Server, engine: str
) -> None:
    """Dead, and frozen: what came meanwhile is published, once, and the job is the same process."""
    views = {"sums": ViewConfig(sql="SELECT g, sum(v) AS s FROM public.x GROUP BY g", key=("g",))}
    bench = ViewBench(broker.url, tmp_path, {"x": TABLES["x"]}, views, engine=engine)
    stop, ended, told = threading.Event(), list[Any](), list[str]()

    def follow() -> None:
        try:
            ended.append(run_views(bench.config, once=False, progress=told.append, stop=stop))
        except CdcError as exc:
            ended.append(exc)

    def publish(number: int) -> None:
        bench.publisher = Publisher(broker.url, bench.prefix)
        bench.transaction(("x", "c", {"id": number, "g": "a", "v": number}))
        until(lambda: bool(ended) or len(bench.whole_events("sums")) == number, within_s=300)

    job = threading.Thread(target=follow)
    job.start()
    publish(1)
    for number, (away, back) in enumerate(((broker.kill, broker.start), (broker.pause, broker.resume)), 2):
        waited = sum("The job waits" in line for line in told)
        away()
        until(lambda: bool(ended) or sum("The job waits" in line for line in told) > waited, within_s=300)  # noqa: B023
        back()
        publish(number)
    assert ended == []
    stop.set()
    job.join(120)
    assert ended[0].stopped == {}
    assert [row["s"] for _, _, row in bench.events("sums")] == [1, 3, 6]
