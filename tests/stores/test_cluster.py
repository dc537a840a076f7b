"""The apply job on a Spark cluster: a real standalone master, two workers, `spark-submit`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cdc.config.apply_config import StoreConfig
from cdc.config.config import load_apply
from spark_apply.events.kafka.offsets import written_ends
from spark_apply.job.batch.size import EVENTS_ALONE
from tests.integration.running import eventually
from tests.spark.cluster import QUICK, Cluster, Submitted, cluster, executors
from tests.spark.laws import Record, Setting, order, workload
from tests.spark.records import position

pytest_plugins = ["tests.spark.fixtures"]
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),  # py4j's, one for each thread
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="/proc is missing: it tells processes"),
]

HOME = Path(__file__).parents[2]
SUBMIT = Path(sys.executable).parent / "spark-submit"
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": str(HOME),
    "PYSPARK_DRIVER_PYTHON": sys.executable,
    "PYSPARK_PYTHON": "/nonexistent/python",  # of the executors
}


def _written(setting: Setting) -> Path:
    """The job's file, its places as URIs."""
    config = {
        "name": "clustered",
        "source": {"bootstrap_servers": setting.bootstrap, "topic_prefix": setting.prefix},
        "stores": {"copy": {"type": "iceberg", "path": (setting.folder / "copy").as_uri()}},
        "tables": {"public.orders": {"stores": ["copy"]}},
        "checkpoint": (setting.folder / "checkpoints").as_uri(),
    }
    file = setting.folder / "apply.yaml"
    file.write_text(json.dumps(config))
    return file


@contextmanager
def submitted(at: Cluster, file: Path, *words: str) -> Iterator[Submitted]:
    jars = subprocess.run(
        [sys.executable, "-m", "cdc.dev.jars", "spark"], env=ENVIRONMENT, capture_output=True, check=True
    )
    conf = [word for name, value in at.settings.items() for word in ("--conf", f"{name}={value}")]
    where = [*conf, "--jars", jars.stdout.decode().strip()]
    command = [str(SUBMIT), *where, str(HOME / "deploy" / "job.py"), *words, str(file)]
    job = Submitted(command, file.parent, ENVIRONMENT | {"SPARK_SUBMIT_OPTS": QUICK})
    try:
        yield job
    finally:
        job.kill()


def _begun(folder: Path) -> bool:
    """Whether a batch is under way: its offsets are written, and it is not committed."""
    written, done = ({int(p.name) for p in folder.glob(f"*/{log}/[0-9]*")} for log in ("offsets", "commits"))
    return bool(written - done)


@pytest.mark.parametrize("batches", [1, pytest.param(2, marks=pytest.mark.full)])
def test_two_workers_fold_what_one_would_and_one_of_them_may_be_killed(
    batches: int, apply_spark: SparkSession, kafka: str, tmp_path: Path
) -> None:
    """In the middle of the last batch; the executors have the jars, and no Python."""
    setting = Setting(apply_spark, kafka, tmp_path, lambda path: StoreConfig(type="iceberg", path=path.as_uri()))
    table, publisher = setting.table(), setting.publisher()
    publisher.create([table], partitions=2)
    seen: list[Record] = []

    def publish(part: list[list[Record]]) -> None:
        for transaction in part:
            publisher.publish(transaction)
            seen.extend(transaction)

    def held(job: Submitted) -> Callable[[], bool]:
        ends = written_ends(load_apply(file).source, table.topic)

        def holds() -> bool:
            assert job.running, job.said
            (mark,) = setting.marks(table)
            return mark is not None and mark.holds(ends)

        return holds

    def several(status: str, commit: int) -> list[Record]:
        """More events than one task would be given."""
        rows = enumerate((order(10_000 + number, status) for number in range(EVENTS_ALONE + 1)), 1)
        return [record for at, row in rows for record in table.event("u", row, position(commit, at))]

    file, stream = _written(setting), workload(table)
    publish([several("new", 50), *stream[:20]])
    with cluster(tmp_path / "cluster", 2) as running, submitted(running, file, "apply") as job:
        eventually(lambda: _begun(tmp_path / "checkpoints"), "a batch is under way", within_s=300)
        eventually(lambda: [len(executors(worker)) for worker in running.workers] == [1, 1], "both have an executor")
        if batches > 1 or not _begun(tmp_path / "checkpoints"):
            eventually(held(job), "the first batch is in the store", within_s=300)
            assert setting.contents(table) == setting.folded(table, seen)
            publish([several("paid", 5_000), *stream[20:]])
            eventually(lambda: _begun(tmp_path / "checkpoints"), "a batch is under way", within_s=300)
        running.workers[0].kill()
        eventually(held(job), "what came then is in the store", within_s=300)
        assert job.end() == 0, job.said
    assert setting.contents(table) == setting.folded(table, seen)
    assert "/nonexistent/python" not in job.said


@pytest.mark.full  # test_two_workers_fold_what_one_would_and_one_of_them_may_be_killed submits with them
def test_spark_submit_without_the_jars_says_what_to_give_it(kafka: str, tmp_path: Path) -> None:
    setting = Setting(None, kafka, tmp_path, StoreConfig)  # type: ignore[arg-type]
    table, publisher = setting.table(), setting.publisher()
    publisher.create([table])
    command = [SUBMIT, "--master", "local[1]", HOME / "deploy" / "job.py", "apply", _written(setting), "--once"]
    done = subprocess.run(command, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "error: spark-submit was not given the jars of the apply job" in done.stdout  # Spark merges the two
    assert 'hint:  spark-submit --jars "$(python -m cdc.dev.jars spark)" …' in done.stdout
