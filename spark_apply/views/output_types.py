"""Asks Spark what columns a view's SQL gives: names and types are Spark's, whichever engine computes the rows."""

from __future__ import annotations

from collections.abc import Mapping

import sqlglot
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses
from sqlglot import exp

from cdc.model.errors import ConfigError
from spark_apply.model.types import kind_of, spark_type
from spark_apply.spark.failures import spark_failure
from spark_apply.spark.names import quoted
from spark_apply.views.values import Columns, may_be_published

_CLOCK = "CAST('2000-01-01 00:00:00' AS TIMESTAMP_NTZ)"


def output_columns(spark: SparkSession, view: str, sql: str, relations: Mapping[str, Columns]) -> Columns:
    """Return the columns of a view. Raises ConfigError for SQL that Spark refuses, and for a type that events lack."""
    tree = sqlglot.parse_one(sql, read="spark")
    for number, (relation, columns) in enumerate(sorted(relations.items())):
        stand_in = spark.range(0).select(*(F.lit(None).cast(spark_type(kind)).alias(name) for name, kind in columns))
        stand_in.createOrReplaceTempView(_stand_in(number))
        schema, _, table = relation.partition(".")
        for found in list(tree.find_all(exp.Table)):
            if (found.db, found.name) == (schema, table):
                alias = found.alias or found.name
                found.replace(exp.alias_(exp.to_table(_stand_in(number)), alias, table=True))
    for call in list(tree.find_all(exp.Anonymous)):
        if call.name.lower() == "clock":
            call.replace(sqlglot.parse_one(_CLOCK, read="spark"))
    try:
        schema_found = spark.sql(tree.sql(dialect="spark")).schema
    except PySparkException as exc:
        msg = f"views.{view}.sql: Spark does not take it: {spark_failure(exc) or type(exc).__name__}"
        raise ConfigError(msg, hint="correct the SQL; it is Spark's dialect") from exc
    finally:
        for number in range(len(relations)):
            spark.catalog.dropTempView(_stand_in(number))
    found_columns = []
    for field in schema_found.fields:
        kind = kind_of(field.dataType)
        if kind is None or not may_be_published(kind):
            msg = f"views.{view}.sql: column {field.name} is {field.dataType.simpleString()}, which no event has"
            raise ConfigError(msg, hint=f"CAST({quoted(field.name)} AS STRING), or another type of docs/values.md")
        found_columns.append((field.name, kind))
    return found_columns


def _stand_in(number: int) -> str:
    return f"_cdc_relation_{number}"
