"""The Spark session: what it is made of, on loopback, quiet, in UTC, with exact arithmetic."""

from __future__ import annotations

import logging
import os
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
    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
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
    with _without_incubator_warning():
        return builder.getOrCreate().newSession()


@contextmanager
def _without_incubator_warning() -> Iterator[None]:
    """Keep one line off stderr, which every JVM of Spark's prints and no option silences: the rest passes through.

    The JVM inherits file descriptor 2, so it gets a pipe, whose reader lives as long as the JVM writes.
    """
    if SparkSession.getActiveSession() is not None:
        yield
        return
    reading, writing = os.pipe()
    kept = os.dup(2)
    os.dup2(writing, 2)
    threading.Thread(target=_pass_on, args=(reading, kept), name="spark-stderr", daemon=True).start()
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(writing)


def _pass_on(reading: int, kept: int) -> None:
    with open(reading, "rb", buffering=0) as lines:
        for line in lines:
            if _INCUBATOR not in line:
                os.write(kept, line)


def _logging_file() -> Path:
    lines = [_LOGGING]
    for index, logger in enumerate(_REPORTED_BY_US):
        lines += [f"logger.q{index}.name = {logger}", f"logger.q{index}.level = off"]
    path = Path(tempfile.gettempdir()) / f"cdc-log4j2-{abs(hash(tuple(lines))):x}.properties"
    path.write_text("\n".join(lines) + "\n")
    return path
