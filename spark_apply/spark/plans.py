"""Lets Spark plan for few rows or for many: few are computed before code for them would be compiled."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from pyspark.sql import SparkSession

_CODEGEN: Final = {
    "spark.sql.codegen.wholeStage": ("false", "true"),
    "spark.sql.codegen.factoryMode": ("NO_CODEGEN", "FALLBACK"),
}
"""Settings for few rows, and for many."""


def plan_for(spark: SparkSession, *, few: bool) -> None:
    """Plan what this session is asked for from now on for few rows, or for many."""
    for name, (for_few, for_many) in _CODEGEN.items():
        spark.conf.set(name, for_few if few else for_many)


@contextmanager
def planned_for_many(spark: SparkSession) -> Iterator[None]:
    """Plan a block for many rows, as one that reads a whole table; then as before."""
    before = {name: spark.conf.get(name) for name in _CODEGEN}
    plan_for(spark, few=False)
    try:
        yield
    finally:
        for name, value in before.items():
            spark.conf.set(name, value or "")
