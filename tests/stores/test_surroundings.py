"""Places that Spark cannot reach or use are sentences with a remedy, and no tracebacks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.integration.in_process import cdc
from tests.spark.laws import ORDERS, order, until
from tests.spark.records import Publisher, SourceTable, position

pytest_plugins = ["tests.spark.fixtures"]

_END = "no more of this JVM's words"
NOWHERE = "127.0.0.1:9"


@pytest.fixture
def job(kafka: str, tmp_path: Path) -> dict[str, Any]:
    prefix = f"p{os.getpid()}{abs(hash(str(tmp_path))) % 10_000}"
    table, publisher = SourceTable(prefix, "orders", ORDERS), Publisher(kafka, prefix)
    publisher.create([table])
    publisher.publish(table.event("c", order(1), position(10)))
    return {
        "name": "law",
        "source": {"bootstrap_servers": kafka, "topic_prefix": prefix},
        "stores": {"lake": {"type": "iceberg", "path": str(tmp_path / "lake")}},
        "tables": {"public.orders": {"stores": ["lake"]}},
        "checkpoint": str(tmp_path / "checkpoint"),
        "spark": {"spark.driver.memory": "1g", "spark.master": "local[1]"},
    }


def refused(job: dict[str, Any], folder: Path, **environment: str) -> str:
    """Start the job; return its last lines, of which one is a hint."""
    (folder / "apply.yaml").write_text(json.dumps(job))
    command = (sys.executable, "-m", "cdc", "apply", "apply.yaml", "--once")
    env = {**os.environ, "PYTHONPATH": str(Path.cwd()), **environment}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=1_200)
    return _told(done.returncode, done.stderr)


def refused_here(job: dict[str, Any], folder: Path, spark: SparkSession, capfd: pytest.CaptureFixture[str]) -> str:
    """Do the same in this process and its JVM, whose own words count, too."""
    file = folder / "apply.yaml"
    file.write_text(json.dumps(job))
    capfd.readouterr()
    done = cdc(["apply", str(file), "--once"], os.environ)
    jvm: Any = spark._jvm
    jvm.java.lang.System.err.println(_END)
    from_java: list[str] = []

    def all_said() -> bool:
        from_java.append(capfd.readouterr().err)
        return _END in "".join(from_java)

    until(all_said, within_s=60)
    return _told(done.returncode, "".join(from_java) + done.stderr)


def _told(code: int, stderr: str) -> str:
    assert code in (1, 2), stderr
    assert "Traceback" not in stderr, stderr
    lines = [line for line in stderr.splitlines() if line.startswith(("error:", "hint:"))]
    assert [line.split(":")[0] for line in lines] == ["error", "hint"], stderr
    return "\n".join(lines)


def test_places_that_cannot_be_reached(
    job: dict[str, Any], tmp_path: Path, apply_spark: SparkSession, capfd: pytest.CaptureFixture[str]
) -> None:
    hdfs = f"hdfs://{NOWHERE}/checkpoint"
    told = refused_here({**job, "checkpoint": hdfs}, tmp_path, apply_spark, capfd)
    assert f"checkpoint: {hdfs}: it cannot be reached" in told
    told = refused_here({**job, "checkpoint": "s3a://bucket/checkpoint"}, tmp_path, apply_spark, capfd)
    assert "Spark has no jars for s3a://" in told
    assert "spark.jars.packages: org.apache.hadoop:hadoop-aws:" in told
    rest = {"lake": {"type": "iceberg", "options": {"catalog": {"type": "rest", "uri": f"http://{NOWHERE}"}}}}
    told = refused_here({**job, "stores": rest}, tmp_path, apply_spark, capfd)
    assert "it cannot be reached" in told


@pytest.mark.full  # test_places_that_cannot_be_reached
def test_a_file_system_of_spark_conf_dir_that_cannot_be_reached(job: dict[str, Any], tmp_path: Path) -> None:
    conf = tmp_path / "conf"
    conf.mkdir()
    site = f"<property><name>fs.defaultFS</name><value>hdfs://{NOWHERE}</value></property>"
    (conf / "core-site.xml").write_text(f"<configuration>{site}</configuration>")
    told = refused(job, tmp_path, SPARK_CONF_DIR=str(conf))
    assert "it cannot be reached" in told
    assert "fs.defaultFS" in told


def test_a_stop_while_it_starts_ends_with_0(job: dict[str, Any], tmp_path: Path) -> None:
    """And all that it does is told, a line each."""
    (tmp_path / "apply.yaml").write_text(json.dumps(job))
    command = (sys.executable, "-m", "cdc", "apply", "apply.yaml")
    env = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    with subprocess.Popen(command, cwd=tmp_path, env=env, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if line.endswith("law: starting Spark\n"):
                process.terminate()
        assert process.wait(120) == 0, lines
    assert [line.split(" ", 1)[1].split("of p")[0].strip() for line in lines[:2]] == [
        *("INFO    law: reading the schema topic", "INFO    law: starting Spark"),
    ]
    assert not any("Traceback" in line for line in lines)
