"""A folder of this process in the place for temporary files, which nobody else can read.

Spark writes what it shuffles, and so rows, into `spark.local.dir`, with the rights that any file gets: in ``/tmp``,
which is its default, each user of the machine could read them. In this folder they are its owner's. A job that is
killed together with its JVM leaves it behind; the next one removes it.
"""

from __future__ import annotations

import atexit
import fcntl
import functools
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Final

_PREFIX: Final = "cdc-spark-"
_OF_JVM: Final = "jvm"
_NEW_S: Final = 60.0
"""A folder that is younger may not be locked yet."""


@functools.cache
def folder() -> Path:
    """Return the folder, which is removed at the end of the process."""
    made = Path(tempfile.mkdtemp(prefix=_PREFIX))
    _locked(made)
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    remove_left()
    return made


def of_jvm() -> Path:
    """Return the folder for the temporary files of the JVM: Spark's, unless it is told another one, and libraries."""
    made = folder() / _OF_JVM
    made.mkdir(exist_ok=True)
    return made


def remove_left() -> None:
    """Remove folders of this user's jobs that are gone, with the rows in them."""
    for left in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/{_OF_JVM}"):
        _remove(left.parent)


def _remove(left: Path) -> None:
    try:
        found = left.lstat()
        if found.st_uid != os.getuid() or left.is_symlink() or time.time() - found.st_mtime < _NEW_S:
            return
        lock = _locked(left)
        if lock is None:
            return
        try:
            shutil.rmtree(left, ignore_errors=True)
        finally:
            os.close(lock)
    except OSError:  # another job has removed it meanwhile
        return


def _locked(made: Path) -> int | None:
    """Lock a folder for as long as the process lives; None: it is another one's."""
    found = os.open(made, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(found, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(found)
        return None
    return found
