"""Finds, in Spark's answer, the units of a view that its job cannot publish and puts into quarantine.

They are told by themselves: their rows are neither missing in the view's topic nor extra there, where the unit keeps
the rows that it had.
"""

from __future__ import annotations

from typing import Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses

from spark_apply.spark.names import quoted
from spark_apply.stores.lake.rows import no_rows
from spark_apply.views.cluster.containment import (
    LONGEST_S,
    NUMBER,
    computed,
    is_of_values,
    numbered,
    told_apart,
    within,
)
from spark_apply.views.embedded.containment import WHY as VALUE
from spark_apply.views.embedded.containment import Range, Search
from spark_apply.views.embedded.held import is_one_unit
from spark_apply.views.planning.view import View

WHY = "why"
_HASH: Final = "_cdc_hash"
_VALUE: Final = f"in quarantine, {VALUE}"
_NULL, _TWICE = "in quarantine, a column of the key is null", "in quarantine, the key is not unique"


def held_back(view: View, answer: DataFrame) -> DataFrame | None:
    """Return the units of an answer that go into quarantine, and why; None where the SQL alone shows that none do."""
    plan, key = view.plan, [F.col(quoted(name)) for name in view.plan.key]
    if view.match is not None or (plan.unique_key and plan.null_keys):
        return None
    null = F.lit(False)  # noqa: FBT003 - a literal column
    for column in () if plan.null_keys else key:
        null |= column.isNull()
    keys = (
        answer.select(*key, F.lit(1).alias(WHY))
        if plan.unique_key
        else answer.groupBy(*key).agg(F.count("*").alias(WHY))
    )
    why = F.when(null, _NULL).when(F.col(WHY) > 1, _TWICE)
    units = [F.col(quoted(name)) for name in view.last.units]
    found = keys.select(*units, why.alias(WHY)).where(F.col(WHY).isNotNull()).groupBy(*units).agg(F.min(WHY).alias(WHY))
    return found.where(F.col(WHY).isNotNull())  # without units there is a row even where nothing is wrong


def failing(view: View, answer: DataFrame) -> tuple[DataFrame, DataFrame] | None:
    """Divide an answer that Spark cannot compute into rows of units that it can, and units that it cannot, and why.

    None where the units cannot be told apart, as the job cannot then: it has stopped the view.
    """
    spark, why = answer.sparkSession, F.lit(_VALUE).alias(WHY)
    if is_one_unit(view):
        return no_rows(spark, answer.schema), spark.range(1).select(why)
    units, search = [F.col(quoted(name)) for name in view.last.units], Search(longest_s=LONGEST_S)
    hashed = F.xxhash64(*units)  # a condition on it is asked before anything is computed; a join with units may not be
    search.is_worth_it(view.name, None)
    try:
        every = numbered(answer.select(hashed.alias(_HASH)).distinct(), None).cache()
        count = every.count()

        def attempt(some: Range) -> None:
            first, last = within(every, some).agg(F.min(_HASH), F.max(_HASH)).collect()[0]
            computed(answer.where(hashed.between(first, last)))

        numbers, error = told_apart(search, view.name, (count, 0), attempt)
    except (PySparkException, Py4JJavaError) as exc:
        if not is_of_values(exc):
            raise
        return None
    if error is not None or (len(numbers) == count and len(view.plan.nodes) > 1):
        return None  # what fails is likely to be a CTE, not its units
    bad = hashed.isin([row[_HASH] for row in every.where(F.col(NUMBER).isin(numbers)).collect()])
    return answer.where(~bad), answer.where(bad).select(*units).distinct().withColumn(WHY, why).cache()


def of_units(view: View, rows: DataFrame, units: DataFrame, *, how: str) -> DataFrame:
    """Return the rows of these units (``left_semi``), or all others (``left_anti``)."""
    same = F.lit(True)  # noqa: FBT003 - a literal column: a view without units is one
    for name in view.held_by:
        same &= F.col(f"_cdc_r.{quoted(name)}").eqNullSafe(F.col(f"_cdc_u.{quoted(name)}"))
    return rows.alias("_cdc_r").join(units.alias("_cdc_u"), same, how)
