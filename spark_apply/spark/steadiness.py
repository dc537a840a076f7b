"""Tells whether Spark gives the same for the same rows each time."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
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
    with _showing_all(known.sparkSession):
        return _DAY.search(plan.toString()) is not None


@contextmanager
def _showing_all(session: Any) -> Iterator[None]:  # noqa: ANN401 - a SparkSession
    """Have plans show all of their columns: the session that is active in the JVM's thread says how many."""
    sessions, shown = session._get_j_spark_session_class(session._jvm), session.conf.get(_SHOWN)  # noqa: SLF001
    before = sessions.getActiveSession()
    session.conf.set(_SHOWN, str(1 << 30))
    sessions.setActiveSession(session._jsparkSession)  # noqa: SLF001
    try:
        yield
    finally:
        session.conf.set(_SHOWN, shown)
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()
