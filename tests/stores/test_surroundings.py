"""Places that Spark cannot reach or use are sentences with a remedy, and no tracebacks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.spark.laws import ORDERS, order
from tests.spark.records import Publisher, SourceTable, position

pytest_plugins = ["tests.spark.fixtures"]

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
    assert done.returncode in (1, 2), done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith(("error:", "hint:"))]
    assert [line.split(":")[0] for line in lines] == ["error", "hint"], done.stderr
    return "\n".join(lines)


def test_places_that_cannot_be_reached(job: dict[str, Any], tmp_path: Path) -> None:
    hdfs = f"hdfs://{NOWHERE}/checkpoint"
    told = refused({**job, "checkpoint": hdfs}, tmp_path)
    assert f"checkpoint: {hdfs}: it cannot be reached" in told
    told = refused({**job, "checkpoint": "s3a://bucket/checkpoint"}, tmp_path)
    assert "Spark has no jars for s3a://" in told
    assert "spark.jars.packages: org.apache.hadoop:hadoop-aws:" in told
    rest = {"lake": {"type": "iceberg", "options": {"catalog": {"type": "rest", "uri": f"http://{NOWHERE}"}}}}
    told = refused({**job, "stores": rest}, tmp_path)
    assert "it cannot be reached" in told


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
