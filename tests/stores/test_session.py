"""Starting Spark changes nothing for the rest of the process: its folder and its stderr stay what they are."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from cdc.config.apply_config import StoreConfig
from cdc.model.state import Phase
from spark_apply.events.envelope import parse
from spark_apply.job.batch.survey import cached
from spark_apply.spark.session import open_session
from tests.spark.laws import Setting, order
from tests.spark.records import position

pytest_plugins = ["tests.spark.fixtures"]

_HOME = Path(__file__).parents[2]
_PATIENCE_S = 300.0

_AT_ONCE = """
import os, sys, threading
from spark_apply.spark.session import open_session

here, stderr, counts = os.getcwd(), os.fstat(2), []
def open_one():
    spark = open_session("test", {"spark.driver.memory": "512m"})
    counts.append(spark.range(5).count())

starts = [threading.Thread(target=open_one) for _ in range(3)]
for start in starts:
    start.start()
while any(start.is_alive() for start in starts):
    assert os.getcwd() == here, os.getcwd()
    assert os.path.samestat(os.fstat(2), stderr)
workers = open_session("test").sparkContext.parallelize([1], 1).map(lambda _: sys.flags.safe_path)
assert workers.collect() == [True]
assert "PYTHONSAFEPATH" not in os.environ
print(counts, os.listdir(here), flush=True)
print("then", file=sys.stderr, flush=True)
"""

_FULL = """
from pyspark.sql import functions as F
from spark_apply.spark.failures import spark_failure

spark = open_session("test", {"spark.driver.memory": "512m"})
try:
    long = spark.range(0, 40_000_000, 1, 1).select(F.repeat(F.col("id").cast("string"), 20_000).alias("v"))
    long.agg(F.size(F.collect_list("v"))).collect()
except Exception as exc:
    print(spark_failure(exc))
"""


def test_rows_that_are_cached_make_no_session(apply_spark: SparkSession) -> None:
    """Spark 4.0.0 never lets go of a session (SPARK-54753): one for each batch filled the heap within hours."""
    for spark in (apply_spark, open_session("beside", {"spark.sql.adaptive.enabled": "true"})):
        rows = spark.range(3)
        with ExitStack() as stack:
            found: Any = cached(stack, rows)._jdf.queryExecution().withCachedData()
            assert found.cacheBuilder().cachedPlan().session().equals(spark._jsparkSession)


def test_what_is_shuffled_is_its_owners_alone(apply_spark: SparkSession) -> None:
    """In /tmp, as Spark has it, each user of the machine could read the rows."""
    assert apply_spark.range(100).repartition(3).distinct().count() == 100
    folder = Path(apply_spark._jvm.java.lang.System.getProperty("java.io.tmpdir"))  # type: ignore[union-attr]
    shuffled = list(folder.glob("blockmgr-*/*/shuffle_*.data"))
    assert shuffled
    assert stat.S_IMODE(folder.parent.stat().st_mode) == stat.S_IRWXU


@pytest.mark.full  # of the tests themselves: a JVM takes seconds to start
def test_a_test_that_ends_the_jvm_is_one_failure(apply_spark: SparkSession, revive: Callable[[], None]) -> None:
    """The next finds another behind the same session; columns that were made once are made again for it."""

    def parsed() -> int:
        columns = "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT"
        return parse(apply_spark.createDataFrame([(b"1", b"{}", "t", 0, 0)], columns)).count()

    assert parsed() == 1
    jvm: Any = SparkContext._gateway
    jvm.proc.kill()
    revive()
    assert SparkContext._gateway is not jvm
    assert parsed() == 1
    assert open_session("beside").range(5).count() == 5


def test_ctrl_c_stays_what_it_was(apply_spark: SparkSession) -> None:
    """PySpark's handler asks the JVM amid another call, and `cdc apply --plan` ended with an error of a store."""
    assert apply_spark.sparkContext
    assert "pyspark" not in str(getattr(signal.getsignal(signal.SIGINT), "__module__", ""))


@pytest.mark.full  # no command starts two at once
def test_threads_that_start_it_at_once_share_one_jvm_of_which_a_full_heap_is_told(tmp_path: Path) -> None:
    """They leave the process as it was; the setting that is too small is named; workers run nothing of their folder."""
    done = subprocess.run(
        [sys.executable, "-c", _AT_ONCE + _FULL],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(_HOME)}, capture_output=True, text=True, timeout=_PATIENCE_S,
        check=False,
    )  # fmt: skip
    assert (done.stderr.partition("then\n")[0], done.returncode) == ("", 0), done.stderr
    started, told = done.stdout.splitlines()
    assert started == "[5, 5, 5] []"
    assert "heap was full" in told
    assert "spark.driver.memory" in told


def test_a_jvm_that_cannot_start_is_told_with_what_it_was_asked_for(tmp_path: Path, kafka: str) -> None:
    job = _job(tmp_path, kafka, {"spark.driver.memory": "1k"})
    _, said = job.communicate(timeout=_PATIENCE_S)
    assert job.returncode == 1
    assert "the JVM of Spark did not start" in said
    assert "1k" in said
    assert "Traceback" not in said


@pytest.mark.full  # the other tests of this file
def test_a_jvm_that_is_killed_under_a_job_is_told(tmp_path: Path, kafka: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until then it has written its checkpoint without a process for each look at a file."""
    looks, tools = tmp_path / "looks", tmp_path / "tools"
    tools.mkdir()
    (tools / "readlink").write_text(f'#!/bin/sh\necho "$@" >> {looks}\nexec {shutil.which("readlink")} "$@"\n')
    (tools / "readlink").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    job = _job(tmp_path, kafka, {"spark.driver.memory": "1g"})
    assert _until(lambda: list((tmp_path / "checkpoints").rglob("commits/0")))
    assert not looks.exists()
    (jvm,) = _jvms(job.pid)
    os.kill(jvm, signal.SIGKILL)
    _, said = job.communicate(timeout=_PATIENCE_S)
    assert job.returncode == 1
    assert "Spark's JVM has ended: killed by signal 9" in said
    assert "Traceback" not in said


def _job(folder: Path, kafka: str, spark: dict[str, str]) -> subprocess.Popen[str]:
    """`cdc apply`, following a table of a few rows."""
    setting = Setting(None, kafka, folder, lambda path: StoreConfig(type="tantivy", path=str(path)))  # type: ignore[arg-type]
    table, publisher = setting.table(), setting.publisher()
    publisher.create([table])
    publisher.stand(Phase.STREAM, 20, [table], table.event("c", order(1), position(10)))
    file = folder / "apply.yaml"
    job = {
        "name": "job",
        "source": {"bootstrap_servers": kafka, "topic_prefix": setting.prefix},
        "stores": {"copy": {"type": "tantivy", "path": str(folder / "copy")}},
        "tables": {"public.*": {"stores": ["copy"]}},
        "checkpoint": str(folder / "checkpoints"),
        "spark": spark,
    }
    file.write_text(json.dumps(job))
    return subprocess.Popen(
        [sys.executable, "-m", "cdc", "apply", str(file)],
        env={**os.environ, "PYTHONPATH": str(_HOME)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def _jvms(parent: int) -> list[int]:
    children = (task / "children" for task in Path(f"/proc/{parent}/task").iterdir())
    pids = [int(pid) for file in children for pid in file.read_text().split()]
    return [pid for pid in pids if Path(f"/proc/{pid}/comm").read_text().strip() == "java"]


def _until(found: Callable[[], list[Any]]) -> list[Any]:
    end = time.monotonic() + _PATIENCE_S
    while not found():
        assert time.monotonic() < end
        time.sleep(0.2)
    return found()
