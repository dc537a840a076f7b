"""What Spark fails with, told without the values of rows that its texts can hold."""

from __future__ import annotations

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

_CAUSES = 4


def spark_failure(exc: Exception) -> str | None:
    """A failure of Spark's by its condition and the names of classes in its text; None for any other's."""
    if not isinstance(exc, PySparkException | Py4JError):
        return None
    condition = exc.getCondition() if isinstance(exc, PySparkException) else None
    words = (word.rstrip(":") for word in str(exc).split())
    causes = list(dict.fromkeys(word for word in words if word.endswith(("Exception", "Error"))))
    return f"Spark stopped: {condition or 'no condition given'} ({', '.join(causes[:_CAUSES]) or type(exc).__name__})"
