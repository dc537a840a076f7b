"""The Spark session: what it is made of, on loopback, quiet, in UTC, with exact arithmetic."""

from __future__ import annotations

import atexit
import functools
import logging
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

from cdc import jars
from cdc.java import java

SETTINGS: Mapping[str, str] = {
    "spark.master": "local[*]",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "4",  # of a stateless job whose batches are small; free to change between runs
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.caseSensitive": "true",  # sources tell "Id" from id
    "spark.sql.extensions": (
        "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions,io.delta.sql.DeltaSparkSessionExtension"
    ),
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",  # Delta has no other
    "spark.databricks.delta.snapshotPartitions": "2",  # tasks for the state of a log, of 50 before
    "spark.sql.streaming.stopTimeout": "30s",
}
"""What a session has unless the job's file says otherwise."""

# The gateway's level is what Spark makes the root's, and it prints a line where the two differ.
_LOGGING = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{ISO8601} %p %c{1}: %m%n%ex{0}
"""

_INCUBATOR = b"WARNING: Using incubator modules"

_REPORTED_BY_US = (
    "org.apache.spark.sql.execution.streaming.MicroBatchExecution",
    "org.apache.spark.executor",
    "org.apache.spark.scheduler",
    "org.apache.spark.storage",
    "org.apache.spark.util.Utils",
    "org.apache.spark.sql.execution.datasources.v2",
    "org.apache.spark.sql.execution.adaptive",
    "org.apache.spark.sql.delta",
)
"""Loggers that print a failure which the job raises again as its own error; their texts can hold row values."""


def open_session(name: str, spark: Mapping[str, str] | None = None) -> SparkSession:
    """Start Spark, or use what runs, and return a session with catalogs and SQL settings of its own.

    `spark` adds to `SETTINGS` and wins over them.

    The jars are fetched once into the cache and handed over as files: nothing is resolved, or printed, at a start.
    Raises OperatorError without Java 17 and when the jars cannot be fetched.
    """
    java()
    for logger in ("py4j", "SQLQueryContextLogger"):  # they print exceptions that we raise, with texts of queries
        logging.getLogger(logger).setLevel(logging.CRITICAL)
    settings = {**SETTINGS, **(spark or {})}
    shipped = Path(pyspark.__file__).parent / "jars"
    files = [str(jar) for jar in jars.fetch("spark", jars.SPARK) if not (shipped / jar.name).exists()]
    settings["spark.jars"] = ",".join(filter(None, [*files, settings.get("spark.jars")]))
    options = f"-Dlog4j2.configurationFile={_logging_file()} -XX:+IgnoreUnrecognizedVMOptions"
    settings["spark.driver.extraJavaOptions"] = f"{options} {settings.get('spark.driver.extraJavaOptions', '')}".strip()
    builder = SparkSession.builder.appName(name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    with _launching():
        return builder.getOrCreate().newSession()


@contextmanager
def _launching() -> Iterator[None]:
    """Around the launch of the JVM, which inherits its folder and its stderr.

    A folder of its own, since Spark 4.0 makes one named ``artifacts`` wherever it starts (SPARK-52396); and for stderr
    a pipe, to keep back the one line that every JVM of Spark's prints and no option silences.
    """
    if SparkSession.getActiveSession() is not None:
        yield
        return
    reading, writing = os.pipe()
    kept, here = os.dup(2), Path.cwd()
    os.dup2(writing, 2)
    os.chdir(_folder())
    threading.Thread(target=_pass_on, args=(reading, kept), name="spark-stderr", daemon=True).start()
    try:
        yield
    finally:
        os.chdir(here)
        os.dup2(kept, 2)
        os.close(writing)


@functools.cache
def _folder() -> Path:
    """Scratch of this process, gone with it."""
    folder = Path(tempfile.mkdtemp(prefix="cdc-spark-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _pass_on(reading: int, kept: int) -> None:
    with open(reading, "rb", buffering=0) as lines:
        for line in lines:
            if _INCUBATOR not in line:
                os.write(kept, line)


def _logging_file() -> Path:
    lines = [_LOGGING]
    for index, logger in enumerate(_REPORTED_BY_US):
        lines += [f"logger.q{index}.name = {logger}", f"logger.q{index}.level = off"]
    path = _folder() / "log4j2.properties"
    path.write_text("\n".join(lines) + "\n")
    return path
