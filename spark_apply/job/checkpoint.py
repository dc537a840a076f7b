"""What a streaming query's checkpoint says of how far its batches go; on any file system that Spark can use.

<checkpoint>/offsets/<batch>   written before a batch runs: "v1", metadata, then each source's end offsets as JSON
<checkpoint>/commits/<batch>   written after it
"""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql import SparkSession

from spark_apply.model.completeness import Ends

_VERSION = "v1"
_FIRST_SOURCE = 2
_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
_BY_FILE_SYSTEM = "org.apache.spark.sql.execution.streaming.FileSystemBasedCheckpointFileManager"


def prepare(spark: SparkSession, checkpoint: str) -> None:
    """Have Spark write a checkpoint on this machine's disk without a process for each look at a file.

    Its own way there, by Hadoop's FileContext, runs `readlink` some twenty times a batch. What is promised is the same:
    both look whether the file is there, then rename. What the session was told for this is left.
    """
    _, files, _ = _opened(spark, checkpoint)
    if files.getScheme() == "file" and spark.conf.get(_MANAGER, None) is None:
        spark.conf.set(_MANAGER, _BY_FILE_SYSTEM)


def ends_of(spark: SparkSession, checkpoint: str, batch: int) -> Ends:
    """Where a batch ends: all records below these offsets are in it or in one before it."""
    jvm, files, folder = _opened(spark, f"{checkpoint}/offsets")
    stream = files.open(jvm.org.apache.hadoop.fs.Path(folder, str(batch)))
    try:
        lines = str(jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")).splitlines()
    finally:
        stream.close()
    if lines[0] != _VERSION:
        raise ValueError(lines[0])
    found = json.loads(lines[_FIRST_SOURCE])
    return {topic: {int(number): end for number, end in ends.items()} for topic, ends in found.items()}


def ends_committed(spark: SparkSession, checkpoint: str) -> Ends | None:
    """Where the last batch ends that was applied; None if there is none."""
    _, files, folder = _opened(spark, f"{checkpoint}/commits")
    if not files.exists(folder):
        return None
    names = [str(status.getPath().getName()) for status in files.listStatus(folder)]
    batches = [int(name) for name in names if name.isdigit()]
    return ends_of(spark, checkpoint, max(batches)) if batches else None


def _opened(spark: SparkSession, folder: str) -> tuple[Any, Any, Any]:
    """JVM, file system and path, by Hadoop's own classes: Python has no way to all the places that Spark can reach."""
    context: Any = spark.sparkContext
    jvm = context._jvm  # noqa: SLF001 - the only way to Hadoop's file systems
    path = jvm.org.apache.hadoop.fs.Path(folder)
    return jvm, path.getFileSystem(context._jsc.hadoopConfiguration()), path  # noqa: SLF001 - the same
