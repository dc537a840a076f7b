"""Tells what Spark refuses because of values from other failures, and finds the units of a view that hold them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses

from spark_apply.spark.names import quoted
from spark_apply.views.embedded.containment import Range, Search

LONGEST_S: Final = 120.0
"""So long units are looked for: a try is a query on executors, which takes seconds where the embedded engine takes
hundredths of one."""

_EXCLUDED: Final = "spark.sql.optimizer.excludedRules"
_EARLY: Final = "org.apache.spark.sql.catalyst.optimizer.ConvertToLocalRelation"
NUMBER: Final = "_cdc_number"
_HELD: Final = "_cdc_held"
_CLASSES: Final = ("22", "21", "P0")
"""SQLSTATEs for data: what a cast or a function refuses, more than one row where there must be one, `raise_error`."""
_STATE: Final = re.compile(r"SQLSTATE: (\w{5})")
_CAUSE: Final = re.compile(r"(?:executor \w+\): |Caused by: )([\w.$]+)")
_JAVA: Final = re.compile(
    r"java\.lang\.(Arithmetic|IllegalArgument|NumberFormat|ArrayIndexOutOfBounds)Exception"
    r"|java\.time\.[\w.]*Exception|java\.util\.regex\.\w+Exception|java\.util\.Illegal\w+Exception"
    r"|com\.fasterxml\.jackson\.core\.\w+Exception"
)
"""What functions of Java raise for a value: Spark passes some of it on as it is."""
_NAMED: Final = (
    "ArithmeticException", "DateTimeException", "NumberFormatException", "IllegalArgumentException",
    "ArrayIndexOutOfBoundsException",
)  # fmt: skip
"""The same as PySpark names it, where Spark gives no SQLSTATE."""


def sql_state(exc: Exception) -> str:
    """Return the SQLSTATE of a failure of Spark; empty where it has none."""
    state = exc.getSqlState() if isinstance(exc, PySparkException) else None
    found = _STATE.search(str(exc))
    return found[1] if found else state or ""


def is_of_values(exc: Exception) -> bool:
    """Whether Spark has failed for a value, which may be that of a few units."""
    state = sql_state(exc)
    if state:
        return state.startswith(_CLASSES)
    if isinstance(exc, Py4JJavaError):
        causes = _CAUSE.findall(str(exc))
        return any(map(_JAVA.fullmatch, causes))
    return isinstance(exc, PySparkException) and type(exc).__name__ in _NAMED


def numbered(units: DataFrame, held: DataFrame | None) -> DataFrame:
    """Number units from 0, those of `held` first; equal units have equal numbers each time."""
    names = [quoted(name) for name in units.columns]
    if held is None:
        known = units.withColumn(_HELD, F.lit(0))
    else:
        same = F.lit(True)  # noqa: FBT003 - a literal column
        for name in names:
            same &= F.col(f"_cdc_u.{name}").eqNullSafe(F.col(f"_cdc_h.{name}"))
        marked = held.withColumn(_HELD, F.lit(1)).alias("_cdc_h")
        joined = units.alias("_cdc_u").join(F.broadcast(marked), same, "left")
        known = joined.select(*(F.col(f"_cdc_u.{name}") for name in names), F.coalesce(_HELD, F.lit(0)).alias(_HELD))
    order = Window.orderBy(F.col(_HELD).desc(), *map(F.col, names))
    return known.withColumn(NUMBER, F.row_number().over(order) - 1).drop(_HELD)


@contextmanager
def no_rows_computed_by_the_planner(spark: SparkSession) -> Iterator[None]:
    """Have Spark leave columns out that nothing reads before it computes what the driver ships: they may be wrong."""
    was = spark.conf.get(_EXCLUDED, "") or ""
    spark.conf.set(_EXCLUDED, ",".join(filter(None, (was, _EARLY))))
    try:
        yield
    finally:
        spark.conf.set(_EXCLUDED, was)


def within(rows: DataFrame, units: Range) -> DataFrame:
    """Return the units of a range, without their numbers."""
    return rows.where((F.col(NUMBER) >= units[0]) & (F.col(NUMBER) < units[1])).drop(NUMBER)


def told_apart(
    search: Search, view: str, counts: tuple[int, int], attempt: Callable[[Range], None]
) -> tuple[list[int], Exception | None]:
    """Return the numbers of the units that cannot be computed, of so many, of which the first ones are in quarantine.

    What `attempt` raises for values is looked into; and the last of it returned, where that has taken too long.
    """
    tried = set[Range]()
    while True:
        good, bad = search.divided(view, *counts)
        units = next((each for each in good if each not in tried), None)
        if units is None:
            return bad, None
        try:
            attempt(units)
        except (PySparkException, Py4JJavaError) as exc:
            if not is_of_values(exc):
                raise
            if not search.is_worth_it(view, units):
                return bad, exc
        else:
            tried.add(units)


def computed(rows: DataFrame) -> None:
    """Compute all columns of all rows, and keep none."""
    rows.write.format("noop").mode("overwrite").save()
