"""Settings of a Spark session come from apply.yaml, else from spark-submit, else from our defaults."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from cdc.dev.java import java
from cdc.model.errors import ConfigError
from spark_apply.spark.pinned_settings import EXECUTOR_OPTIONS, JVM_OPTIONS, PINNED, STACK
from spark_apply.spark.session import LOOPBACK, SETTINGS, class_path, has_other_jars, java_options, settings_of

ICEBERG = SETTINGS["spark.sql.extensions"]


def test_alone_all_is_ours_and_on_loopback() -> None:
    assert settings_of({}, {}) == {**SETTINGS, **LOOPBACK, **PINNED, EXECUTOR_OPTIONS: f"{STACK} {JVM_OPTIONS}"}


def test_the_file_wins_over_spark_submit_and_that_over_us() -> None:
    submitted = {"spark.master": "spark://m:7077", "spark.sql.shuffle.partitions": "16", "spark.cores.max": "8"}
    found = settings_of(submitted, {"spark.cores.max": "4"})
    assert {name: found[name] for name in submitted} == {**submitted, "spark.cores.max": "4"}
    assert found["spark.sql.session.timeZone"] == "UTC"


@pytest.mark.parametrize("master", ["spark://m:7077", "yarn", "k8s://https://m:443"])
def test_executors_elsewhere_can_reach_the_driver(master: str) -> None:
    """However the master is set: Spark then chooses the driver's address itself, unless one is given."""
    for found in (settings_of({"spark.master": master}, {}), settings_of({}, {"spark.master": master})):
        assert not LOOPBACK.keys() & found.keys()
    given = settings_of({"spark.master": master, "spark.driver.host": "10.0.0.7"}, {})
    assert given["spark.driver.host"] == "10.0.0.7"


def test_a_local_master_stays_on_loopback() -> None:
    found = settings_of({"spark.master": "local[2]"}, {})
    assert {name: found[name] for name in LOOPBACK} == LOOPBACK


@pytest.mark.parametrize("given", ["org.example.Mine", f"{ICEBERG}, org.example.Mine", f"{ICEBERG},org.example.Mine,"])
def test_extensions_are_added_to_those_that_the_stores_need(given: str) -> None:
    assert settings_of({"spark.sql.extensions": given}, {})["spark.sql.extensions"] == f"{ICEBERG},org.example.Mine"


def test_our_jars_are_on_the_class_path_unless_others_have_to_be_seen_by_them(tmp_path: Path) -> None:
    """As Amazon's by Iceberg's classes: then all are given as files, as they are to executors elsewhere."""
    alone = {**settings_of({}, {}), "spark.driver.extraJavaOptions": "-Xss8m"}
    assert not has_other_jars(alone, {})
    for given in ("spark.jars", "spark.jars.packages"):
        assert has_other_jars({**alone, given: "x"}, {})
    assert has_other_jars(alone, {"PYSPARK_SUBMIT_ARGS": "--packages a:b:1 pyspark-shell"})
    assert not has_other_jars(alone, {"SPARK_CONF_DIR": str(tmp_path)})
    (tmp_path / "spark-defaults.conf").write_text("spark.jars.packages a:b:1\n")
    assert has_other_jars(alone, {"SPARK_CONF_DIR": str(tmp_path)})


@pytest.mark.parametrize("before", [None, "/opt/hadoop/lib/*"])
def test_the_class_path_is_told_to_the_launcher_alone(before: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "SPARK_DIST_CLASSPATH"
    monkeypatch.delenv(name, raising=False)
    if before is not None:
        monkeypatch.setenv(name, before)
    with class_path(["/a.jar", "/b.jar"]):
        assert os.environ[name] == (f"{before}:" if before else "") + "/a.jar:/b.jar"
    with class_path([]):
        assert os.environ.get(name) == before
    assert os.environ.get(name) == before


def test_a_collector_that_is_asked_for_is_the_only_one() -> None:
    assert re.findall(r"-XX:\+Use\w+GC ", java_options("")) == [
        "-XX:+UseParallelGC ",
        "-XX:+UseAdaptiveSizePolicyWithSystemGC ",
    ]
    found = java_options("-XX:+UseZGC -Xss8m")
    assert "-XX:+UseZGC" in found
    assert "ParallelGC" not in found
    assert "FreeRatio" not in found
    assert found.endswith(f"-XX:+UseZGC -Xss8m {JVM_OPTIONS}")


def test_java_knows_the_options_for_memory() -> None:
    """What it does not know it ignores without a word, as it is told to for others' sake."""
    command = [str(java()), *shlex.split(java_options("")), "-XX:+PrintFlagsFinal", "-version"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = dict(re.findall(r"(\w+) += (\w+) .*command line", said))
    assert (
        found.items()
        >= {
            "UseParallelGC": "true",
            "MinHeapFreeRatio": "40",
            "MaxHeapFreeRatio": "70",
            "UseAdaptiveSizePolicyWithSystemGC": "true",
            "ThreadStackSize": "1900",
        }.items()
    )


@pytest.mark.parametrize("name", [
    *PINNED, "spark.sql.columnNameOfCorruptRecord", "spark.sql.legacy.timeParserPolicy",
    "spark.sql.parquet.datetimeRebaseModeInWrite", "spark.sql.storeAssignmentPolicy", "spark.sql.mapKeyDedupPolicy",
    "spark.sql.files.ignoreMissingFiles", "spark.databricks.delta.stalenessLimit", "spark.wap.id",
    "spark.sql.a.setting.of.the.future",
])  # fmt: skip
def test_what_rows_can_depend_on_is_not_taken_from_anywhere(name: str) -> None:
    """The job's file is refused by name; from a cluster it is left out."""
    with pytest.raises(ConfigError, match=re.escape(f"spark.{name}: the rows of copies can depend on this setting")):
        settings_of({}, {name: "x"})
    assert settings_of({name: "x"}, {}) == settings_of({}, {})


@pytest.mark.parametrize("name", [
    "spark.sql.shuffle.partitions", "spark.sql.adaptive.enabled", "spark.sql.files.maxPartitionBytes",
    "spark.sql.catalog.lake.uri", "spark.databricks.delta.snapshotPartitions", "spark.hadoop.fs.s3a.endpoint",
    "spark.sql.streaming.stopTimeout", "spark.executor.memory",
])  # fmt: skip
def test_what_costs_or_saves_time_alone_is_taken(name: str) -> None:
    assert settings_of({name: "x"}, {})[name] == settings_of({}, {name: "x"})[name] == "x"


def test_options_of_executors_are_kept_and_ours_hold() -> None:
    found = settings_of({EXECUTOR_OPTIONS: "-Xss8m -Duser.timezone=Asia/Kathmandu"}, {})[EXECUTOR_OPTIONS]
    assert found == f"{STACK} -Xss8m -Duser.timezone=Asia/Kathmandu {JVM_OPTIONS}"


@pytest.mark.parametrize("found", [java_options("-Xss8m"), settings_of({}, {})[EXECUTOR_OPTIONS]])
def test_no_jvm_takes_memory_for_what_a_length_in_avro_says(found: str) -> None:
    for what in ("bytes", "string", "collectionItems"):
        assert f"-Dorg.apache.avro.limits.{what}.maxLength=16777216" in found.split()
