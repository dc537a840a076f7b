"""Finds, in Spark's answer, the units of a view that its job cannot publish and puts into quarantine.

They are told by themselves: their rows are neither missing in the view's topic nor extra there, where the unit keeps
the rows that it had.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses

from spark_apply.spark.names import quoted
from spark_apply.views.planning.view import View

WHY = "why"
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
    return keys.select(*units, why.alias(WHY)).where(F.col(WHY).isNotNull()).groupBy(*units).agg(F.min(WHY).alias(WHY))


def of_units(view: View, rows: DataFrame, units: DataFrame, *, how: str) -> DataFrame:
    """Return the rows of these units (``left_semi``), or all others (``left_anti``)."""
    same = F.lit(True)  # noqa: FBT003 - a literal column: a view without units is one
    for name in view.last.units:
        same &= F.col(f"_cdc_r.{quoted(name)}").eqNullSafe(F.col(f"_cdc_u.{quoted(name)}"))
    return rows.alias("_cdc_r").join(units.alias("_cdc_u"), same, how)
