"""Reads from a streaming query's checkpoint how far its batches go, on any file system that Spark can use.

<checkpoint>/offsets/<batch>   written before a batch runs: "v1", metadata, then each source's end offsets as JSON
<checkpoint>/commits/<batch>   written after it
<checkpoint>/cdc-copies.json   written by us: the identities of the copies that it is of
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pyspark.sql import SparkSession

from spark_apply.model.completeness import Ends

Identities = Mapping[str, Mapping[str, str]]
"""The identities of copies, by table, then by store."""

_COPIES = "cdc-copies.json"
_VERSION = "v1"
_FIRST_SOURCE = 2
_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
_BY_FILE_SYSTEM = "org.apache.spark.sql.execution.streaming.FileSystemBasedCheckpointFileManager"


def prepare(spark: SparkSession, checkpoint: str) -> None:
    """Have Spark write a checkpoint on this machine's disk without starting a process for each file.

    Spark's default, Hadoop's FileContext, runs `readlink` about twenty times a batch. The guarantee is the same: both
    check whether the file exists, then rename. A manager that the session was given is kept.
    """
    _, files, _ = _opened(spark, checkpoint)
    if files.getScheme() == "file" and spark.conf.get(_MANAGER, None) is None:
        spark.conf.set(_MANAGER, _BY_FILE_SYSTEM)


def ends_of(spark: SparkSession, checkpoint: str, batch: int) -> Ends:
    """Return a batch's end offsets: all records below them are in this batch or in an earlier one."""
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
    """Return the end offsets of the last batch that was applied; None if there is none."""
    _, files, folder = _opened(spark, f"{checkpoint}/commits")
    if not files.exists(folder):
        return None
    names = [str(status.getPath().getName()) for status in files.listStatus(folder)]
    batches = [int(name) for name in names if name.isdigit()]
    return ends_of(spark, checkpoint, max(batches)) if batches else None


def note_copies(spark: SparkSession, checkpoint: str, identities: Identities) -> None:
    """Write into a checkpoint which copies it is of: a start at which one cannot be opened looks there."""
    _, files, path = _opened(spark, f"{checkpoint}/{_COPIES}")
    if not files.exists(path):
        stream = files.create(path, True)  # noqa: FBT003 - Java's
        try:
            stream.write(bytearray(json.dumps(identities, sort_keys=True).encode()))
        finally:
            stream.close()


def noted_copies(spark: SparkSession, place: str) -> list[Identities]:
    """Return the copies of all checkpoints in a folder, the last one that was written first."""
    jvm, files, folder = _opened(spark, place)
    if not files.exists(folder):
        return []
    found: list[tuple[int, Identities]] = []
    for status in files.globStatus(jvm.org.apache.hadoop.fs.Path(folder, f"*/{_COPIES}")):
        stream = files.open(status.getPath())
        try:
            text = str(jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()
        commits = jvm.org.apache.hadoop.fs.Path(status.getPath().getParent(), "commits")
        at = files.getFileStatus(commits).getModificationTime() if files.exists(commits) else 0
        found.append((int(at), json.loads(text)))
    return [identities for _, identities in sorted(found, key=lambda each: each[0], reverse=True)]


def _opened(spark: SparkSession, folder: str) -> tuple[Any, Any, Any]:
    """Return JVM, file system and path by Hadoop's classes: Python cannot read all file systems that Spark can."""
    context: Any = spark.sparkContext
    jvm = context._jvm  # noqa: SLF001 - nothing public gives Hadoop's file systems
    path = jvm.org.apache.hadoop.fs.Path(folder)
    return jvm, path.getFileSystem(context._jsc.hadoopConfiguration()), path  # noqa: SLF001 - the same
