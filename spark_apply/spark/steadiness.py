"""Tells whether Spark gives the same for the same rows each time."""

from __future__ import annotations

import re
from typing import Any, Final

from pyspark.sql import DataFrame

_DAY: Final = re.compile(
    r"(?:cast|to_date|to_timestamp\w*)\(\s*(?:now|today|yesterday|tomorrow)\s*(?:,| as (?:date|time))", re.IGNORECASE
)
"""A text that Spark reads as a time of its own clock. A plan shows texts as they are, columns with a number."""
_SHOWN: Final = "spark.sql.debug.maxToStringFields"
"""So many columns of a list a plan shows."""


def differs_each_time(frame: DataFrame) -> bool:
    """Whether a query asks for the time now, a random number or the session's state; no row is read.

    The time now may be asked for by a text, such as 'today', wherever a date is expected, in a cast that nobody wrote.
    """
    known: Any = frame
    plan = known._jdf.queryExecution().analyzed()  # noqa: SLF001 - only the plan tells
    patterns = known.sparkSession.sparkContext._jvm.org.apache.spark.sql.catalyst.trees.TreePattern  # noqa: SLF001
    if not plan.deterministic() or plan.containsPattern(patterns.CURRENT_LIKE()):
        return True
    conf = known.sparkSession.conf
    shown = conf.get(_SHOWN)
    conf.set(_SHOWN, str(1 << 30))
    try:
        return _DAY.search(plan.toString()) is not None
    finally:
        conf.set(_SHOWN, shown)
