"""Rows are the same whatever a machine, a cluster or a process has set: time zones, charsets, and Spark's settings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cdc.config.apply_config import StoreConfig as Of
from cdc.config.config import ApplyConfig, load_apply
from cdc.dev.jars import of_spark
from spark_apply.events.quarantine import read_entries
from spark_apply.spark.jvm import class_archive
from tests.conftest import FULL, Database
from tests.spark.kinds import EVERY_KIND, every_kind_rows
from tests.spark.laws import Setting
from tests.spark.records import position

pytest_plugins = ["tests.spark.fixtures"]
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # py4j's, one for each thread

_HOME = Path(__file__).parents[2]
_PATIENCE_S = 500.0
_ZONE = "America/New_York"
_JVM = "-Duser.timezone=Asia/Kathmandu -Dfile.encoding=ISO-8859-1"

HOSTILE: Mapping[str, str] = {
    "spark.sql.session.timeZone": _ZONE,
    "spark.sql.ansi.enabled": "false",
    "spark.sql.caseSensitive": "false",
    "spark.sql.columnNameOfCorruptRecord": "c_string",
    "spark.sql.json.enablePartialResults": "false",
    "spark.sql.json.enableExactStringParsing": "false",
    "spark.sql.jsonGenerator.ignoreNullFields": "true",
    "spark.sql.storeAssignmentPolicy": "LEGACY",
    "spark.sql.mapKeyDedupPolicy": "LAST_WIN",
    "spark.sql.datetime.java8API.enabled": "true",
    "spark.sql.decimalOperations.allowPrecisionLoss": "false",
    "spark.sql.timestampType": "TIMESTAMP_NTZ",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "LEGACY",
    "spark.sql.parquet.datetimeRebaseModeInRead": "LEGACY",
    "spark.sql.parquet.int96RebaseModeInWrite": "LEGACY",
    "spark.sql.parquet.outputTimestampType": "INT96",
    "spark.sql.parquet.inferTimestampNTZ.enabled": "false",
    "spark.sql.parquet.binaryAsString": "true",
    "spark.sql.avro.datetimeRebaseModeInWrite": "LEGACY",
    "spark.sql.legacy.timeParserPolicy": "LEGACY",
    "spark.sql.legacy.charVarcharAsString": "true",
    "spark.sql.legacy.castComplexTypesToString.enabled": "true",
    "spark.sql.legacy.allowNegativeScaleOfDecimal": "true",
    "spark.sql.legacy.literal.pickMinimumPrecision": "false",
    "spark.sql.legacy.sizeOfNull": "true",
    "spark.sql.legacy.integralDivide.returnBigint": "false",
    "spark.sql.legacy.raiseErrorWithoutErrorClass": "true",
    "spark.sql.parser.quotedRegexColumnNames": "true",
    "spark.sql.parser.escapedStringLiterals": "true",
    "spark.sql.ansi.doubleQuotedIdentifiers": "true",
    "spark.sql.ansi.enforceReservedKeywords": "true",
    "spark.sql.variable.substitute": "true",
    "spark.sql.defaultCatalog": "elsewhere",
    "spark.sql.files.ignoreCorruptFiles": "true",
    "spark.sql.files.ignoreMissingFiles": "true",
    "spark.sql.optimizer.nestedSchemaPruning.enabled": "false",
    "spark.sql.streaming.minBatchesToRetain": "1",
    "spark.sql.streaming.disabledV2MicroBatchReaders": "org.apache.spark.sql.kafka010.KafkaSourceProvider",
    "spark.sql.catalog.spark_catalog": "org.apache.iceberg.spark.SparkSessionCatalog",
    "spark.sql.iceberg.check-nullability": "false",
    "spark.sql.iceberg.check-ordering": "true",
    "spark.wap.branch": "elsewhere",
    "spark.databricks.delta.stalenessLimit": "1h",
    "spark.databricks.delta.properties.defaults.appendOnly": "true",
    "spark.databricks.delta.schema.autoMerge.enabled": "true",
}
"""Each of them changes rows, or what is read or written, where it is not pinned."""

_EMBEDDED = """
import sys
from pathlib import Path
from pyspark.sql import SparkSession
from cdc.config.config import load_apply
from cdc.dev import jars
from spark_apply.job.job import run_apply
from spark_apply.spark.session import SETTINGS
from tests.stores.test_hostile_settings import HOSTILE

builder = SparkSession.builder.master("local[2]").config("spark.driver.memory", "1g")
builder = builder.config("spark.ui.enabled", "false")
builder = builder.config("spark.jars", ",".join(map(str, jars.of_spark())))
builder = builder.config("spark.sql.extensions", SETTINGS["spark.sql.extensions"])
for name, value in HOSTILE.items():
    builder = builder.config(name, value)
theirs = builder.getOrCreate()
run_apply(load_apply(Path(sys.argv[1])), once=True)
assert {name: theirs.conf.get(name) for name in HOSTILE} == HOSTILE, "the other session is as it was"
"""


@pytest.mark.parametrize(
    "ways",
    [
        ("started", "embedded"),
        pytest.param(("embedded", "started"), marks=pytest.mark.full),
        pytest.param(("submitted", "submitted"), marks=pytest.mark.full),
    ],
    ids=" then ".join,
)
@pytest.mark.timeout(700)
def test_no_setting_from_outside_changes_a_row(
    ways: tuple[str, str], apply_spark: SparkSession, kafka: str, postgres18: Database, tmp_path: Path
) -> None:
    """Every kind of value in every store, with time zones and charsets of machines, too; rows compared in full.

    Of the two ways to run the job one writes the rows, the other changes one of them; in each push the first does both.
    """
    columns = {**EVERY_KIND, "Id": {"kind": "string"}, "${env:HOME}": {"kind": "string"}, ".*": {"kind": "int32"}}
    stores = {
        "lake": {"type": "iceberg", "path": str(tmp_path / "lake")},
        "delta": {"type": "delta", "path": str(tmp_path / "delta")},
        "search": {"type": "tantivy", "path": str(tmp_path / "search")},
        "warehouse": {"type": "postgres", "url": postgres18.url},
    }
    setting = Setting(apply_spark, kafka, tmp_path, lambda _: Of(**stores["lake"]))
    table, publisher = setting.table("kinds", columns), setting.publisher()
    publisher.create([table])
    more = {"Id": "of another case", "${env:HOME}": "no path", ".*": 7, "c_micros": 1710037800000000}
    values = [*every_kind_rows(), {"id": 9, "c_zoned": "2024-03-10T02:30:00Z", "c_date": -171_500}]
    rows = [
        {**dict.fromkeys(columns), **value, **{k: v for k, v in more.items() if k not in value}} for value in values
    ]
    records = [r for row in rows for r in table.event("c", row, position(10 + row["id"]))]
    file = tmp_path / "apply.yaml"
    file.write_text(
        json.dumps(
            {
                "name": "hostile",
                "source": {"bootstrap_servers": kafka, "topic_prefix": setting.prefix},
                "stores": stores,
                "tables": {"public.*": {"stores": [*stores]}},
                "checkpoint": str(tmp_path / "checkpoint"),
            }
        )
    )
    change = table.event("u", rows[0], position(40))
    for way, part in zip(ways, (records, change), strict=True) if FULL else ((ways[0], [*records, *change]),):
        publisher.publish(part)
        done = subprocess.run(
            _command(way, file), cwd=tmp_path, env=_environment(way, tmp_path), capture_output=True, text=True,
            timeout=_PATIENCE_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    config = load_apply(file)
    assert not read_entries(config)
    folded = setting.folded(table, records)
    for name in stores:
        found = setting.contents(table, _alone(config, name))
        assert found.keys() == folded.keys(), name
        for key, row in folded.items():
            assert _alike(found[key]) == _alike(row), (name, key)


def _alone(config: ApplyConfig, store: str) -> ApplyConfig:
    """The job with one of its stores, which is called as the laws call theirs."""
    return ApplyConfig(
        name=config.name, source=config.source, stores={"copy": config.stores[store]},
        tables={"public.*": type(config.tables["public.*"])(stores=("copy",))}, checkpoint=config.checkpoint,
    )  # fmt: skip


def _alike(row: Mapping[str, object]) -> dict[str, object]:
    """Without what servers print in other digits, or have no sign for: that is not what settings change."""
    return {name: value for name, value in row.items() if name not in ("c_float32", "c_decimal_any")}


def _command(way: str, file: Path) -> list[str]:
    if way == "started":
        return [sys.executable, "-m", "cdc", "apply", str(file), "--once"]
    if way == "embedded":
        return [sys.executable, "-c", _EMBEDDED, str(file)]
    jars = subprocess.run(
        [sys.executable, "-m", "cdc.dev.jars", "spark"], env={**os.environ, "PYTHONPATH": str(_HOME)},
        capture_output=True, check=True, text=True,
    )  # fmt: skip
    settings = {"spark.driver.host": "127.0.0.1", "spark.driver.memory": "1g", **HOSTILE}
    conf = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    submit = str(Path(sys.executable).parent / "spark-submit")
    where = ["--master", "local[2]", "--jars", jars.stdout.strip(), *conf]
    return [submit, *where, str(_HOME / "deploy" / "job.py"), "apply", str(file), "--once"]


def _environment(way: str, folder: Path) -> dict[str, str]:
    """A machine in another zone, of another charset; with defaults of Spark, and words for its command line."""
    found = {**os.environ, "PYTHONPATH": str(_HOME), "TZ": "Asia/Kathmandu", "LC_ALL": "C", "_JAVA_OPTIONS": _JVM}
    quick = f"-XX:TieredStopAtLevel=1 {class_archive.options()}"
    found |= {"SPARK_ANSI_SQL_MODE": "false", "SPARK_SUBMIT_OPTS": f"{quick} {_JVM}"}
    found["SPARK_DIST_CLASSPATH"] = ":".join(map(str, of_spark()))  # as the archive of classes has them
    if way == "started":
        defaults = folder / "conf" / "spark-defaults.conf"
        defaults.parent.mkdir(exist_ok=True)
        lines = [f"{name} {value}" for name, value in HOSTILE.items()]
        defaults.write_text("\n".join([*lines, f"spark.executor.extraJavaOptions {_JVM}", "spark.driver.memory 1g"]))
        found["SPARK_CONF_DIR"] = str(defaults.parent)
        words = (f"--conf {name}={value}" for name, value in HOSTILE.items())
        found["PYSPARK_SUBMIT_ARGS"] = " ".join([*words, "pyspark-shell"])
    return found
