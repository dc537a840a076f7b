"""Opens the Spark session: on loopback, quiet, in UTC, with exact arithmetic."""

from __future__ import annotations

import logging
import os
import re
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from cdc.dev import jars
from cdc.machine.stop_signals import hang_ups_end_no_child
from cdc.model.errors import OperatorError
from spark_apply.spark.failures import spark_failure
from spark_apply.spark.jvm import scratch
from spark_apply.spark.jvm.class_archive import options as class_options
from spark_apply.spark.jvm.environment import require_environment
from spark_apply.spark.jvm.java_names import has_class, remember_names
from spark_apply.spark.pinned_settings import (
    DRIVER_OPTIONS,
    EXECUTOR_OPTIONS,
    PINNED,
    jvm_options,
    pin,
    refuse_pinned,
    taken,
)
from spark_apply.spark.remedies import remedy

_EXTENSIONS, _JARS, _DIST = "spark.sql.extensions", "spark.jars", "SPARK_DIST_CLASSPATH"

SETTINGS: Mapping[str, str] = {
    "spark.master": "local[*]",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.ui.explainMode": "simple",  # each query's plan is printed, for the event log and a page that is off
    "spark.python.sql.dataFrameDebugging.enabled": "false",  # an F.col that notes its line calls the JVM 8 times
    "spark.driver.memory": "3g",  # at most: of Spark's own 1g, the first full batch into a large Delta table dies
    "spark.sql.shuffle.partitions": "4",  # of a stateless job whose batches are small; free to change between runs
    # Else Spark makes a session for each DataFrame that is cached, and Spark 4.0.0 never lets go of one (SPARK-54753):
    # 0.3 MB a batch. No table has buckets, and plans of cached rows may change as all others do.
    "spark.sql.sources.bucketing.autoBucketedScan.enabled": "false",
    "spark.sql.optimizer.canChangeCachedPlanOutputPartitioning": "true",
    "spark.sql.codegen.cache.maxEntries": "1000",  # with Spark's 100, Delta's batches compile all classes again
    _EXTENSIONS: (
        "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions,io.delta.sql.DeltaSparkSessionExtension"
    ),
    "spark.databricks.delta.snapshotPartitions": "2",  # tasks for the state of a log, of 50 before
    "spark.sql.streaming.pollingDelay": "500ms",  # after a look that found nothing: a job that has work does not wait
    "spark.sql.streaming.stopTimeout": "30s",
    "spark.hadoop.ipc.client.connect.max.retries": "3",  # HDFS that is away is told in seconds, not in 15 minutes
    "spark.hadoop.ipc.client.connect.max.retries.on.timeouts": "1",
}
"""The defaults of a session; apply.yaml and `spark-submit` override them, but not what is pinned."""

LOOPBACK: Mapping[str, str] = {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
"""More defaults for a local master; on a cluster, executors connect to the driver."""

_SHIPPED = (
    "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    "io.delta.sql.DeltaSparkSessionExtension",
    "org.apache.kafka.clients.consumer.Consumer",
)
"""Classes that show whether `spark-submit` was given the jars."""

# Spark sets the root's level to the gateway's, and prints a line if the two differ.
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

_LAUNCH = threading.Lock()

_COLLECTOR = re.compile(r"-XX:\+Use(Epsilon|G1|Parallel|Serial|Shenandoah|Z)GC\b")
_HEAP_FREE = re.compile(r"-XX:M(in|ax)HeapFreeRatio=")
_THROUGHPUT = "-XX:+UseParallelGC"  # that counts, not pauses
_FOLLOWS = "-XX:MinHeapFreeRatio=40 -XX:MaxHeapFreeRatio=70 -XX:+UseAdaptiveSizePolicyWithSystemGC"
"""Told these ratios, which are Java's own defaults, that collector has the heap follow what is alive in it. Else it
takes a gigabyte for the garbage of small batches, and gives back nothing of what a large one has needed."""
_TRIM = "-XX:TrimNativeHeapInterval=60000"
"""Give back what the compilers of a young JVM have freed; of Java before 17.0.9 it is not known, and ignored."""

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
"""Loggers of failures that the job raises as its own errors; their messages can hold row values."""


def open_session(name: str, spark: Mapping[str, str] | None = None) -> SparkSession:
    """Start Spark, or use the running one, and return a session with catalogs and SQL settings of its own.

    `spark` overrides `SETTINGS` and the settings of `spark-submit`, as in any Spark job.

    The jars are fetched once into the cache and passed as files: nothing is resolved, or printed, at a start. Under
    `spark-submit` a JVM runs already, and has its jars. Raises OperatorError without Java 17, if the jars are missing
    in that JVM, and if they cannot be fetched.
    """
    for logger in (
        "py4j",
        "SQLQueryContextLogger",
        "DataFrameQueryContextLogger",
    ):  # they print exceptions that we raise, with texts of queries
        logging.getLogger(logger).setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(_not_py4j)
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        settings = settings_of(_submitted(), spark or {})
        return pin(_built(name, settings).newSession(), settings)
    if SparkContext._active_spark_context is not None:  # noqa: SLF001 - the one place where PySpark keeps it
        return _beside_others(spark or {})
    require_environment()
    # Python workers run no module of the current folder. By a setting: our own environment is our caller's too.
    settings = {"spark.executorEnv.PYTHONSAFEPATH": "1", **settings_of({}, spark or {})}
    ours, others = [*map(str, jars.of_spark())], has_other_jars(settings)
    if others or not _is_alone(settings):
        settings[_JARS] = ",".join(filter(None, [*ours, settings.get(_JARS)]))
    settings[DRIVER_OPTIONS] = java_options(settings.get(DRIVER_OPTIONS, ""))
    _launch(settings, [] if others else ours)
    return pin(_built(name, settings).newSession(), settings)


def has_other_jars(settings: Mapping[str, str], environment: Mapping[str, str] = os.environ) -> bool:
    """Whether Spark is given jars besides ours. Without, ours are on the JVM's class path, as its archive has them.

    What is on it does not see jars of `spark.jars`, as Iceberg's classes of S3 would have to see Amazon's.
    """
    home = Path(environment.get("SPARK_HOME") or Path(pyspark.__file__).parent)
    defaults = Path(environment.get("SPARK_CONF_DIR") or home / "conf") / "spark-defaults.conf"
    named = any(name.startswith(_JARS) for name in settings)
    return named or bool(environment.get("PYSPARK_SUBMIT_ARGS")) or defaults.exists()


def _is_alone(settings: Mapping[str, str]) -> bool:
    """Whether all executors are in the JVM: to those elsewhere, Spark sends the files of `spark.jars`."""
    return re.fullmatch(r"local(\[.*\])?", settings["spark.master"]) is not None


def java_options(asked: str) -> str:
    """Return the options of the JVM; those of the user override ours, except what is pinned."""
    collector = [] if _COLLECTOR.search(asked) else [_THROUGHPUT, "" if _HEAP_FREE.search(asked) else _FOLLOWS]
    logs = f"-Dlog4j2.configurationFile={_logging_file()} -XX:+IgnoreUnrecognizedVMOptions"
    logs += f" -Djava.io.tmpdir={scratch.of_jvm()}"  # where Spark writes rows, too, unless it is told another folder
    return jvm_options(" ".join(filter(None, (logs, *collector, _TRIM, class_options(), asked))))


def settings_of(submitted: Mapping[str, str], spark: Mapping[str, str]) -> dict[str, str]:
    """Merge the settings of a session: `spark` over `submitted` over our defaults; extensions are joined.

    What is pinned comes last. Raises ConfigError for a setting in `spark` that is pinned.
    """
    refuse_pinned(spark)
    asked = {**taken(submitted), **spark}
    alone = asked.get("spark.master", SETTINGS["spark.master"]).startswith("local")
    settings = {**SETTINGS, **(LOOPBACK if alone else {}), **asked, **PINNED}
    settings[EXECUTOR_OPTIONS] = jvm_options(asked.get(EXECUTOR_OPTIONS, ""))
    extensions = f"{SETTINGS[_EXTENSIONS]},{asked.get(_EXTENSIONS, '')}".split(",")
    settings[_EXTENSIONS] = ",".join(dict.fromkeys(filter(None, map(str.strip, extensions))))
    return settings


def _built(name: str, settings: Mapping[str, str]) -> SparkSession:
    builder = SparkSession.builder.appName(name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    try:
        with _own_interrupts():
            return builder.getOrCreate()
    except (Py4JError, PySparkException) as exc:
        told = remedy(exc)
        if told is not None:
            msg = f"Spark did not start, because of a place in its settings: {told[0]}. {spark_failure(exc)}"
            raise OperatorError(msg, hint=told[1]) from exc
        msg = f"Spark did not start on {settings['spark.master']}. {spark_failure(exc)}"
        hint = "is the master up, and do its workers have the memory and the cores that the job asks for?"
        raise OperatorError(msg, hint=hint) from exc


@contextmanager
def _own_interrupts() -> Iterator[None]:
    """Keep the process's handler of Ctrl-C. PySpark's asks the JVM amid another call, whose error then comes first."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if before is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)


def _beside_others(spark: Mapping[str, str]) -> SparkSession:
    """Return a session of our own in the Spark that this process runs already, whose other sessions stay as they are.

    Raises OperatorError if that Spark does not have our jars or extensions, which a running Spark cannot be given.
    """
    base = SparkSession.builder.getOrCreate()
    running = dict(base.sparkContext.getConf().getAll())
    missing = [name for name in SETTINGS[_EXTENSIONS].split(",") if name not in running.get(_EXTENSIONS, "")]
    if missing:
        msg = f"this process runs a Spark without {', '.join(missing)}"
        hint = "let the job start Spark itself: run it in a process of its own, or before other sessions are made"
        raise OperatorError(msg, hint=hint)
    _require_jars(base._jvm)  # noqa: SLF001 - nothing public gives the JVM
    return pin(base.newSession(), settings_of(running, spark))


def _require_jars(jvm: Any) -> None:  # noqa: ANN401 - py4j's view of the JVM
    """Raise OperatorError if the running JVM does not have our jars."""
    if not all(has_class(jvm, needed) for needed in _SHIPPED):
        msg = "spark-submit was not given the jars of the apply job"
        raise OperatorError(msg, hint='spark-submit --jars "$(python -m cdc.dev.jars spark)" …')


def _submitted() -> dict[str, str]:
    """Return the settings of `spark-submit`; silence what we report ourselves. Raises OperatorError without jars."""
    SparkContext._ensure_initialized()  # noqa: SLF001 - connects to the JVM that started this process
    jvm: Any = SparkContext._jvm  # noqa: SLF001 - the same
    _require_jars(jvm)
    _keep_time(jvm)
    remember_names(jvm)
    for logger in _REPORTED_BY_US:
        jvm.org.apache.logging.log4j.core.config.Configurator.setLevel(logger, jvm.org.apache.logging.log4j.Level.OFF)
    return dict(SparkConf().getAll())


@contextmanager
def class_path(ours: Sequence[str]) -> Iterator[None]:
    """Have Spark's launcher put jars behind its own, which a setting can only put before them."""
    was = os.environ.get(_DIST)
    if ours:
        os.environ[_DIST] = ":".join(filter(None, [was, *ours]))
    try:
        yield
    finally:
        if was is not None:
            os.environ[_DIST] = was
        elif ours:
            del os.environ[_DIST]


def _launch(settings: Mapping[str, str], ours: Sequence[str]) -> None:
    """Start the JVM, unless this process has one: in a folder of its own, and with a pipe for its stderr.

    The folder is needed because Spark 4.0 creates a folder ``artifacts`` wherever it starts (SPARK-52396), the pipe to
    drop the one line that every JVM of Spark prints and no option silences. Folder and stderr of this process stay as
    they are, since other threads may start programs and open files meanwhile.
    """
    with _LAUNCH:
        if SparkContext._gateway is not None:  # noqa: SLF001 - the one place where PySpark keeps its JVM
            return
        conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
        reading, writing = os.pipe()
        try:
            with hang_ups_end_no_child(), class_path(ours):
                gateway = launch_gateway(conf, {"cwd": scratch.folder(), "stderr": writing})  # type: ignore[no-untyped-call]
        except PySparkException as exc:
            msg = f"the JVM of Spark did not start. {spark_failure(exc)}"
            hint = (
                f"Java's own words are above; with less memory: spark: {{spark.driver.memory: 1g}} "
                f"(it is {settings['spark.driver.memory']} now)"
            )
            raise OperatorError(msg, hint=hint) from exc
        finally:
            os.close(writing)
            threading.Thread(target=_pass_on, args=(reading,), name="spark-stderr", daemon=True).start()
        SparkContext._ensure_initialized(gateway=gateway)  # noqa: SLF001 - uses it for every session
        _keep_time(SparkContext._jvm)  # noqa: SLF001 - the same
        remember_names(SparkContext._jvm)  # noqa: SLF001 - the same


def _keep_time(jvm: Any) -> None:  # noqa: ANN401 - py4j's view of the JVM
    """Set the time zone of a JVM that is ours: the environment (_JAVA_OPTIONS) wins over its options."""
    jvm.java.util.TimeZone.setDefault(jvm.java.util.TimeZone.getTimeZone("UTC"))


def _not_py4j(record: logging.LogRecord) -> bool:
    """Drop records of py4j, which logs a lost JVM to the root logger, with a traceback."""
    return Path(record.pathname).parent.name != "py4j"


def _pass_on(reading: int) -> None:
    with open(reading, "rb", buffering=0) as lines:
        for line in lines:
            if _INCUBATOR not in line:
                os.write(2, line)


def _logging_file() -> Path:
    lines = [_LOGGING]
    for index, logger in enumerate(_REPORTED_BY_US):
        lines += [f"logger.q{index}.name = {logger}", f"logger.q{index}.level = off"]
    path = scratch.folder() / "log4j2.properties"
    path.write_text("\n".join(lines) + "\n")
    return path
