"""Shows commands that an apply job is at work: a lock on the folder of its checkpoint, which ends with its process.

It is for what must not happen beside a job, as the import of offsets. It is told where the folder is on this machine's
disks; on other file systems, and on some that are shared, nobody can tell.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from cdc.model.errors import OperatorError
from spark_apply.spark.paths import local


@contextmanager
def at_work(checkpoint: str) -> Iterator[None]:
    """Hold the lock, beside other jobs, while the block runs; without one where the file system has none."""
    folder = local(checkpoint)
    if folder is None:
        yield
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:  # Spark says what is wrong with it
        yield
        return
    try:
        try:
            fcntl.flock(number, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            msg = f"checkpoint {folder}: offsets are being imported"
            raise OperatorError(msg, hint="start the job again in a moment") from None
        except OSError:
            pass
        yield
    finally:
        os.close(number)


@contextmanager
def alone(checkpoint: str, job: str) -> Iterator[bool]:
    """Keep jobs from starting while the block runs; whether that can be told here. Raises OperatorError if one runs."""
    folder = local(checkpoint)
    try:
        number = None if folder is None else os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        number = None
    if number is None:
        yield False
        return
    try:
        sure = True
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            msg = f"apply job {job} is at work: it would go on from where it is"
            raise OperatorError(msg, hint="stop it, then import again") from None
        except OSError:
            sure = False
        yield sure
    finally:
        os.close(number)
