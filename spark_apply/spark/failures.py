"""Describes failures of Spark without the values of rows that its messages can hold."""

from __future__ import annotations

import re
import subprocess
from typing import Any, Final

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import PySparkException

from cdc.model.errors import BugError, CdcError, RetryableError

_CAUSES: Final = 4
_ENDS_WITHIN_S: Final = 5.0
_NO_BROKER: Final = re.compile(
    r"org\.apache\.kafka\.common\.errors\.(Timeout|Disconnect|Network|\w*NotAvailable|NotLeaderOrFollower)Exception"
    "|Cannot fetch record for offset"
)
_FULL: Final = 52
"""The exit status of a JVM whose heap is full (org.apache.spark.util.SparkExitCode)."""
_FULL_HEAP: Final = (
    "Spark's heap was full. Give it more, with `spark: {spark.driver.memory: …}` in the job's file; on a cluster also "
    "spark.executor.memory"
)


class StoreAwayError(RetryableError):
    """Nobody answers at the address of a store: that is so for all of its copies, and no other is asked to tell."""


def spark_failure(exc: Exception) -> str | None:
    """Describe a failure of Spark by its condition and the class names in its message; None for any other."""
    if _out_of_memory(exc):
        return _FULL_HEAP
    status = _exit_status(exc)
    if status == _FULL:
        return _FULL_HEAP
    if status is not None:
        return f"Spark's JVM has ended: {f'killed by signal {-status}' if status < 0 else f'exit status {status}'}"
    if not isinstance(exc, PySparkException | Py4JError):
        return None
    condition = exc.getCondition() if isinstance(exc, PySparkException) else None
    words = (word.rstrip(":") for word in str(exc).split())
    causes = list(dict.fromkeys(word for word in words if word.endswith(("Exception", "Error"))))
    return f"Spark stopped: {condition or 'no condition given'} ({', '.join(causes[:_CAUSES]) or type(exc).__name__})"


def concerns_spark(exc: Exception) -> bool:
    """Whether a failure is not of one table: Spark has ended, its heap is full, or nobody knows."""
    if isinstance(exc, CdcError):
        return isinstance(exc, BugError)
    if _out_of_memory(exc) or _exit_status(exc) is not None:
        return True
    return not isinstance(exc, PySparkException | Py4JJavaError)


def waited_for_kafka(exc: Exception) -> bool:
    """Whether Spark has failed because a broker did not answer it in time: the others may answer."""
    return isinstance(exc, PySparkException | Py4JJavaError) and _NO_BROKER.search(str(exc)) is not None


def _out_of_memory(exc: Exception) -> bool:
    return isinstance(exc, PySparkException | Py4JError) and "java.lang.OutOfMemoryError" in str(exc)


def _exit_status(exc: Exception) -> int | None:
    """Return the exit status of our JVM if its end caused `exc`; negative for a signal."""
    lost = isinstance(exc, ConnectionError) or (isinstance(exc, Py4JError) and not isinstance(exc, Py4JJavaError))
    if not lost and "SparkContext was shut down" not in str(exc):
        return None
    jvm: Any = getattr(SparkContext._gateway, "proc", None)  # noqa: SLF001 - the one place where PySpark keeps it
    if jvm is None:
        return None
    try:
        status: int = jvm.wait(_ENDS_WITHIN_S)
    except subprocess.TimeoutExpired:
        return None
    return status
