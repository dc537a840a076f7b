"""Finds the archive of Spark's classes, which a JVM maps into memory to start faster (`bench/derived/starts.py`).

An archive belongs to one Java and one set of jars; another JVM starts without it. See
https://docs.oracle.com/en/java/javase/17/vm/class-data-sharing.html.
`spark_apply.spark.jvm.build_class_archive` makes it.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

import pyspark

from cdc.dev.jars import cache_folder, of_spark
from cdc.dev.java import java

_QUIET: Final = "-Xlog:disable -Xlog:all=error:stderr"  # otherwise messages about the archive go to stdout


def archive() -> Path:
    """Return the path of the archive for this Java and these jars. Raises OperatorError without Java."""
    home = java().resolve().parents[1]
    release = home / "release"
    jars = [*sorted((Path(pyspark.__file__).parent / "jars").glob("*.jar")), *of_spark()]
    of = [str(home), release.read_text() if release.exists() else "", *(f"{jar} {jar.stat().st_size}" for jar in jars)]
    return cache_folder() / "classes" / f"spark-{hashlib.sha256(repr(of).encode()).hexdigest()[:16]}.jsa"


def options() -> str:
    """Return the options that a JVM of Spark is started with."""
    there = archive()
    return f'{_QUIET} "-XX:SharedArchiveFile={there}"' if there.exists() else _QUIET
