"""A folder of this process in the place for temporary files, which nobody else can read.

Spark writes what it shuffles, and so rows, into `spark.local.dir`, with the rights that any file gets: in ``/tmp``,
which is its default, each user of the machine could read them. In this folder they are its owner's. A job that is
killed together with its JVM leaves it behind; the next one removes it.
"""

from __future__ import annotations

import atexit
import functools
from pathlib import Path
from typing import Final

from cdc.machine.process_folder import ProcessFolder

_OF_JVM: Final = "jvm"


@functools.cache
def folder() -> Path:
    """Return the folder, which is removed at the end of the process."""
    made = ProcessFolder("cdc-spark-", _OF_JVM)
    atexit.register(made.remove)
    return made.path


def of_jvm() -> Path:
    """Return the folder for the temporary files of the JVM: Spark's, unless it is told another one, and libraries."""
    return folder() / _OF_JVM
