"""Reads files of checkpoints: by Hadoop's classes wherever Spark can, or on this machine's disk without Spark."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import Any, Final, Protocol

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from cdc.config.config import ApplyConfig
from cdc.model.errors import OperatorError
from spark_apply.spark.paths import has_scheme, local

_GONE: Final = "FileNotFoundException"
_UNREADABLE: Final = ("ChecksumException", "EOFException", "MalformedInputException")
_ELSEWHERE: Final = ("HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_CONF_DIR", "SPARK_HOME", "PYSPARK_SUBMIT_ARGS")
"""What may give Hadoop another file system than this machine's for paths that name none."""
_DEFAULT: Final = "spark.hadoop.fs.defaultFS"


class DamageError(Exception):
    """A file is missing, or its bytes are not what was written; says which."""


class Files(Protocol):
    """Where the files of checkpoints are."""

    def there(self, place: str) -> bool:
        """Whether there is such a file or folder."""

    def names(self, folder: str) -> list[str]:
        """Return what a folder has; nothing where there is none."""

    def text(self, place: str) -> str:
        """Read a file. Raises DamageError."""


class Disk:
    """This machine's disk."""

    def there(self, place: str) -> bool:
        with _readable(place):
            return Path(place).exists()

    def names(self, folder: str) -> list[str]:
        with _readable(folder):
            return sorted(path.name for path in Path(folder).iterdir()) if Path(folder).is_dir() else []

    def text(self, place: str) -> str:
        with _readable(place):
            try:
                return Path(place).read_text(encoding="utf-8")
            except FileNotFoundError as exc:
                raise DamageError("it is missing") from exc
            except UnicodeDecodeError as exc:
                raise DamageError("it cannot be read (MalformedInputException)") from exc


@contextmanager
def _readable(place: str) -> Iterator[None]:
    """Raise OperatorError where this user may not read something, or the disk does not give it."""
    try:
        yield
    except OSError as exc:
        raise OperatorError(
            f"checkpoint {place}: cannot be read: {exc.strerror}",
            hint=f"may this user read it? ls -ld {quote(str(place))}",
        ) from exc


class Hadoop:
    """Any file system that Spark can use: Python cannot read all of them."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def opened(self, place: str) -> tuple[Any, Any, Any]:
        """Return JVM, file system and path, by Hadoop's classes."""
        context: Any = self._spark.sparkContext
        jvm = context._jvm  # noqa: SLF001 - nothing public gives Hadoop's file systems
        path = jvm.org.apache.hadoop.fs.Path(place)
        return jvm, path.getFileSystem(context._jsc.hadoopConfiguration()), path  # noqa: SLF001 - the same

    def there(self, place: str) -> bool:
        _, files, path = self.opened(place)
        return bool(files.exists(path))

    def names(self, folder: str) -> list[str]:
        _, files, path = self.opened(folder)
        return [str(of.getPath().getName()) for of in files.listStatus(path)] if files.exists(path) else []

    def text(self, place: str) -> str:
        jvm, files, path = self.opened(place)
        try:
            stream = files.open(path)
            try:
                return str(jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
            finally:
                stream.close()
        except Py4JJavaError as exc:
            kind = str(exc.java_exception.getClass().getSimpleName())
            if kind not in (_GONE, *_UNREADABLE):
                raise
            raise DamageError("it is missing" if kind == _GONE else f"it cannot be read ({kind})") from exc


def on_this_disk(config: ApplyConfig) -> str | None:
    """Return the folder of a job's checkpoints, if it can only be on this machine's disk; None: Spark has to look."""
    here = local(config.checkpoint)
    if here is None:
        return None
    if not has_scheme(config.checkpoint) and (_DEFAULT in config.spark or any(map(os.environ.get, _ELSEWHERE))):
        return None
    return str(here)
