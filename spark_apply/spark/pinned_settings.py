"""Pins what rows rest on: SQL settings, time zone and charset of the JVMs, whatever a machine or a cluster has set.

A setting of Spark comes from the job's file, `spark-submit`, PYSPARK_SUBMIT_ARGS, ``spark-defaults.conf`` of any
SPARK_CONF_DIR, the environment, or a session that the process had before. One of hundreds can move each timestamp, fold
names that differ in case alone, or round a decimal, and the job would end with exit code 0. So the rule is the reverse:
a setting of SQL that is known to cost or save time alone is taken from anywhere; of all others the session has Spark's
default, or ours. Those in the job's file are refused by name, those from elsewhere are left out and logged.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Mapping
from typing import Any, Final

from pyspark.sql import SparkSession

from cdc.model.errors import ConfigError

PINNED: Final[Mapping[str, str]] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.caseSensitive": "true",  # sources tell "Id" from id
    "spark.sql.variable.substitute": "false",  # a column may be called ${env:HOME}
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",  # Delta has no other
}
"""What a session has, whatever anybody else has set."""

AVRO_LIMITS: Final = {
    f"org.apache.avro.limits.{what}.maxLength": str(16 << 20) for what in ("bytes", "string", "collectionItems")
}
"""Avro takes memory for what a length says before it reads: without these, ten bytes of a record can end the JVM."""

JVM_OPTIONS: Final = " ".join(
    ["-Duser.timezone=UTC -Dfile.encoding=UTF-8", *(f"-D{name}={value}" for name, value in AVRO_LIMITS.items())]
)
"""The last options of each JVM: of two of the same name, the last one holds."""

STACK: Final = "-Xss1900k"
"""Of each thread: Spark goes down nested JSON, and nested expressions, by calls, and a JVM whose stack is too small
ends. With its default of 1 MB that is at about 1,000 levels, as many as JSON may have; from 2 MB on, Linux may take
whole huge pages for each thread."""

DRIVER_OPTIONS: Final = "spark.driver.extraJavaOptions"
EXECUTOR_OPTIONS: Final = "spark.executor.extraJavaOptions"

_SQL: Final = ("spark.sql.", "spark.databricks.", "spark.wap.")
"""The settings that can change what rows are; other settings of Spark are about machines."""

_HARMLESS: Final = re.compile(
    r"""spark\.sql\.(
        extensions | warehouse\.dir | catalogImplementation | queryExecutionListeners
      | artifact\.isolation\..+ | catalog\..+ | hive\.metastore\..+ | adaptive\..+ | shuffle\.partitions
      | ui\..+ | event\..+ | redaction\..+ | debug\..+
      | autoBroadcastJoinThreshold | broadcastTimeout | leafNodeDefaultParallelism | cache\.serializer
      | maxMetadataStringLength | maxPlanStringLength | join\.preferSortMergeJoin
      | codegen\.(cache\.maxEntries | wholeStage | maxFields | hugeMethodLimit | factoryMode | comments)
      | files\.(maxPartitionBytes | openCostInBytes | minPartitionNum | maxPartitionNum | maxRecordsPerFile)
      | inMemoryColumnarStorage\..+ | (parquet|orc)\.compression\.codec | execution\.arrow\.maxRecordsPerBatch
      | windowExec\.buffer\..+ | sortMergeJoinExec\.buffer\..+ | objectHashAggregate\..+
      | sources\.(parallelPartitionDiscovery | bucketing)\..+
      | optimizer\.canChangeCachedPlanOutputPartitioning
      | iceberg\.(planning | executor-cache | locality)\..+
      | streaming\.(stopTimeout | metricsEnabled | pollingDelay | numRecentProgressUpdates | streamingQueryListeners
                   | checkpointFileManagerClass)
    )
  | spark\.databricks\.delta\.(
        snapshotPartitions | optimize\.(maxFileSize | minFileSize | maxThreads)
      | merge\.repartitionBeforeWrite\.enabled | vacuum\.parallelDelete\..+ | snapshotCache\..+ | deltaLog\.cacheSize
    )""",
    re.VERBOSE,
)
"""What is taken from anywhere: how much at once, how many tasks, what is cached, where catalogs are."""

log: Final = logging.getLogger("cdc.apply")


def is_pinned(name: str) -> bool:
    """Whether a setting is the job's own: rows may depend on it."""
    return name in PINNED or (name.startswith(_SQL) and _HARMLESS.fullmatch(name) is None)


def refuse_pinned(asked: Collection[str]) -> None:
    """Raise ConfigError for a setting of the job's file that is not the file's to choose."""
    for name in sorted(filter(is_pinned, asked)):
        msg = f"spark.{name}: the rows of copies can depend on this setting, so the job sets it itself"
        raise ConfigError(msg, hint="leave it out; types:, where: and computed: of a table say how its rows look")


def taken(found: Mapping[str, str]) -> dict[str, str]:
    """Return the settings from outside of the job's file that a job takes."""
    return {name: value for name, value in found.items() if not is_pinned(name)}


def jvm_options(asked: str) -> str:
    """Return the options of a JVM: a stack that a user may choose, what is asked, and behind it what is ours alone."""
    return f"{STACK} {asked}".strip() + f" {JVM_OPTIONS}"


def pin(session: SparkSession, settings: Mapping[str, str]) -> SparkSession:
    """Give a new session `settings` and what is pinned; undo what it has from elsewhere. Returns the session.

    It becomes the active session of this thread: parts of Delta and Iceberg ask that one for its settings.
    """
    jvm: Any = session._jvm  # noqa: SLF001 - nothing public sets it
    jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(session._jsparkSession)  # noqa: SLF001 - the same
    for name, value in AVRO_LIMITS.items():
        jvm.java.lang.System.setProperty(name, value)  # under spark-submit this JVM has other options
    conf = session.conf
    foreign = sorted(name for name in conf.getAll if is_pinned(name) and name not in PINNED and _can_change(conf, name))
    for name in foreign:
        conf.unset(name)
    for name, value in {**settings, **PINNED}.items():
        if name.startswith(_SQL) and _can_change(conf, name):
            conf.set(name, value)
    if foreign:
        log.warning("settings of Spark that rows can depend on are left out: %s", ", ".join(foreign))
    return session


def _can_change(conf: Any, name: str) -> bool:  # noqa: ANN401 - RuntimeConfig, of two kinds of sessions
    """Whether a session can change a setting: Spark says no of those that it does not know, as Delta's defaults."""
    return not name.startswith("spark.sql.") or bool(conf.isModifiable(name))
