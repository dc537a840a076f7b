"""Asks Spark what columns a view's SQL gives: names and types are Spark's, whichever engine computes the rows."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from typing import ClassVar, cast

import sqlglot
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses
from sqlglot import exp
from sqlglot.generators.spark import SparkGenerator

from cdc.model.errors import ConfigError
from spark_apply.model.types import kind_of, spark_type
from spark_apply.spark.failures import spark_failure
from spark_apply.spark.names import quoted
from spark_apply.spark.steadiness import differs_each_time
from spark_apply.views.model.uses import TableUse
from spark_apply.views.model.values import Columns, may_be_published
from spark_apply.views.sql.expressions.engines.spark import as_spark
from spark_apply.views.sql.reading.lookups import as_read
from spark_apply.views.sql.reading.written import SparkSql, Written

_STAND_IN = "_cdc_relation_"
_SAID = re.compile(r"\[[A-Z_.0-9]+\] ([^\n]+?)\.? SQLSTATE: ")
_ANY_TIME = dt.datetime(2000, 1, 1)  # noqa: DTZ001 - timestamps without a zone, in UTC


class _Nested(SparkGenerator):
    """Writes WITH where it stands: moved to the top, as for Hive, two of one name would meet there."""

    EXPRESSIONS_WITHOUT_NESTED_CTES: ClassVar[set[type[exp.Expr]]] = set()


def spark_text(
    sql: str, stand_ins: Mapping[str, str], clock: dt.datetime, uses: Mapping[str, TableUse] | None = None
) -> str:
    """Return a view's SQL over temporary views in place of its relations, by name, at one time of the clock."""
    tree = as_read(cast("exp.Query", sqlglot.parse_one(sql, read=SparkSql)), uses or {}, Written("", sql))
    for column in tree.find_all(exp.Column):
        if f"{column.db}.{column.table}" in stand_ins:  # a table can be called by its whole name where it has no alias
            column.set("db", None)
    for found in list(tree.find_all(exp.Table)):
        stand_in = stand_ins.get(f"{found.db}.{found.name}")
        if stand_in is not None:
            found.replace(exp.alias_(exp.to_table(stand_in), found.alias or found.name, table=True))
    for call in list(tree.find_all(exp.Anonymous)):
        if call.name.lower() == "clock":
            call.replace(sqlglot.parse_one(f"CAST('{clock}' AS TIMESTAMP_NTZ)", read="spark"))
    return str(_Nested(dialect="spark").generate(as_spark(tree)))


def output_columns(
    spark: SparkSession,
    view: str,
    sql: str,
    relations: Mapping[str, Columns],
    uses: Mapping[str, TableUse] | None = None,
) -> Columns:
    """Return the columns of a view. Raises ConfigError for SQL that Spark refuses, and for a type that events lack."""
    stand_ins = {name: _stand_in(number) for number, name in enumerate(sorted(relations))}
    for relation, columns in relations.items():
        stand_in = spark.range(0).select(*(F.lit(None).cast(spark_type(kind)).alias(name) for name, kind in columns))
        stand_in.createOrReplaceTempView(stand_ins[relation])
    try:
        frame = spark.sql(spark_text(sql, stand_ins, _ANY_TIME, uses))
        found, unsteady = frame.schema, differs_each_time(frame)
    except PySparkException as exc:
        why = _why(exc, stand_ins)
        raise ConfigError(
            f"views.{view}.sql: Spark does not take it: {why}",
            hint="a timestamp without a zone is one in UTC by CAST(… AS TIMESTAMP)"
            if '"TIMESTAMP"' in why and '"TIMESTAMP_NTZ"' in why
            else "correct the SQL; it is Spark's dialect",
        ) from exc
    finally:
        for made in stand_ins.values():
            spark.catalog.dropTempView(made)
    if unsteady:
        msg = f"views.{view}.sql: it is not the same each time (the time now, 'today' as a date, a random number)"
        raise ConfigError(msg, hint="use clock(), or a column that the application writes")
    found_columns = []
    for field in found.fields:
        kind = kind_of(field.dataType)
        if kind is None or not may_be_published(kind):
            msg = f"views.{view}.sql: column {field.name} is {field.dataType.simpleString()}, which no event has"
            raise ConfigError(msg, hint=f"CAST({quoted(field.name)} AS STRING), or another type of docs/values.md")
        found_columns.append((field.name, kind))
    return found_columns


def _why(exc: PySparkException, stand_ins: Mapping[str, str]) -> str:
    """Return what Spark says of a SQL that it has read over tables without rows: it names parts of the SQL alone."""
    said = _SAID.match(str(exc)) if isinstance(exc, AnalysisException) else None
    if said is None:
        return spark_failure(exc) or type(exc).__name__
    why = said[1]
    names = {stand_in: name for name, stand_in in stand_ins.items()}
    return re.sub(rf"{_STAND_IN}\d+", lambda found: names.get(found[0], found[0]), why)


def _stand_in(number: int) -> str:
    return f"{_STAND_IN}{number}"
