"""Checks a table's expressions with Spark's analyzer, which also gives their types. Reads no row.

A replay must give the same rows, and so must `cdc verify`: an expression sees one row of the source and nothing else,
and gives the same value each time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses
from pyspark.sql import types as T  # noqa: N812 - the same

from cdc.model.errors import ConfigError
from cdc.model.suggestion import did_you_mean
from spark_apply.events.typed import KEY, row_type
from spark_apply.model.target_table import Partition, TargetColumn, TargetTable
from spark_apply.model.types import kind_of, spark_type
from spark_apply.spark.steadiness import differs_each_time

_DATES: tuple[type[T.DataType], ...] = (T.DateType, T.TimestampType, T.TimestampNTZType)
_WHOLE: tuple[type[T.DataType], ...] = (T.IntegerType, T.LongType)
_CUT: tuple[type[T.DataType], ...] = (*_WHOLE, T.DecimalType, T.StringType, T.BinaryType)
_TAKES: dict[str | None, tuple[type[T.DataType], ...]] = {
    "years": _DATES,
    "months": _DATES,
    "days": _DATES,
    "hours": _DATES[1:],
    "bucket": (*_DATES, *_CUT),
    "truncate": _CUT,
    None: (*_DATES, *_CUT, T.BooleanType, T.FloatType, T.DoubleType),
}
"""The types that each partition function accepts."""


@dataclass(frozen=True, slots=True)
class _Judged:
    type: T.DataType
    columns: frozenset[str]
    """The source's columns that it reads."""


def resolved(table: TargetTable, spark: SparkSession) -> TargetTable:
    """Return `table`, as `projected_table` gives it, with computed columns; it reads only needed source columns.

    Raises ConfigError for an expression that cannot be used.
    """
    at, projection = f"tables.{table.qualified}", table.projection
    made = table
    if projection is not None:
        needed = {column.source for column in table.columns}
        if projection.where is not None:
            judged = _judge(spark, projection.reads, projection.where, f"{at}.where")
            if not isinstance(judged.type, T.BooleanType):
                msg = f"{at}.where: it gives {judged.type.simpleString()}, and has to give true or false"
                raise ConfigError(msg, hint="compare it with something: where: amount > 0")
            needed |= judged.columns
        computed = []
        for name, expression in projection.computed:
            judged = _judge(spark, projection.reads, expression, f"{at}.computed.{name}")
            kind = kind_of(judged.type)
            if kind is None:
                msg = f"{at}.computed.{name}: it gives {judged.type.simpleString()}, which copies have no column for"
                raise ConfigError(msg, hint=f"computed: {{{name}: CAST(… AS STRING)}}, or to_json(…)")
            computed.append(TargetColumn(name, kind, ((kind, ()),), computed=expression))
            needed |= judged.columns
        reads = replace(projection.reads, columns=tuple(c for c in projection.reads.columns if c.name in needed))
        made = replace(table, columns=(*table.columns, *computed), projection=replace(projection, reads=reads))
    for partition in made.partition_by:
        _check_partition(at, partition, made)
    return made


def _check_partition(at: str, partition: Partition, table: TargetTable) -> None:
    (kind,) = (column.kind for column in table.columns if column.name == partition.column)
    if not isinstance(spark_type(kind), _TAKES[partition.function]):
        what = f"{partition.function}({partition.column})" if partition.function else partition.column
        msg = f"{at}.partition_by: {what}: column {partition.column} is {spark_type(kind).simpleString()}"
        raise ConfigError(msg, hint="days() and the like take dates and times; a computed column can make one")


def _judge(spark: SparkSession, table: TargetTable, expression: str, at: str) -> _Judged:
    names = [column.name for column in table.columns]
    try:
        schema = T.StructType([*row_type(table), T.StructField(KEY, T.StringType())])  # ours, so that * is noticed
        frame: Any = spark.createDataFrame([], schema).select(F.expr(expression))
        plan = frame._jdf.queryExecution().analyzed()  # noqa: SLF001 - only the plan tells what is deterministic
        found, read = list(frame.schema), _names(plan.references())
    except PySparkException as exc:
        raise ConfigError(f"{at}: {_sentence(exc)}", hint=_nearest(exc, names)) from exc
    context: Any = spark.sparkContext
    patterns = context._jvm.org.apache.spark.sql.catalyst.trees.TreePattern  # noqa: SLF001 - the same
    if KEY in read:
        raise ConfigError(f"{at}: * is of no use here: it would take ours for columns too", hint="name the columns")
    plain = plan.nodeName() == "Project" and plan.child().children().isEmpty()
    if not plain or plan.containsPattern(patterns.PLAN_EXPRESSION()) or len(found) != 1:
        msg = f"{at}: one value of one row is needed: no aggregate, window, subquery or list of columns"
        raise ConfigError(msg, hint="a view in the store, over the copy, can have those")
    if differs_each_time(frame):
        msg = f"{at}: it does not give the same value each time (the time now, a random number, the session's state)"
        raise ConfigError(msg, hint="rows are computed again in a replay: use the source's columns alone")
    for column in table.columns:
        if column.name in read and _became_text(column):
            was = ", ".join(spark_type(kind).simpleString() for kind, _ in column.versions)
            msg = f"{at}: column {column.name} has been {was}, which only a text holds together, and it compares as one"
            hint = f"types: {{{column.name}: string}} under tables.{table.qualified}, and an expression over its text"
            raise ConfigError(msg, hint=hint)
    return _Judged(found[0].dataType, frozenset(read))


def _became_text(column: TargetColumn) -> bool:
    texts = [isinstance(spark_type(kind), T.StringType) for kind, _ in column.versions]
    return isinstance(spark_type(column.kind), T.StringType) and not all(texts)


def _names(attributes: Any) -> list[str]:  # noqa: ANN401 - Scala's AttributeSet
    names, found = attributes.iterator(), []
    while names.hasNext():
        found.append(str(names.next().name()))
    return found


def _sentence(exc: PySparkException) -> str:
    """Return the first sentence of Spark's message; it is about the expression, since no row was read."""
    line = str(exc).strip().splitlines()[0]
    _, _, said = line.rpartition("] ") if line.startswith("[") and line.count("] ") == 1 else line.partition("] ")
    return (said or line).partition(". ")[0].removesuffix(".")


def _nearest(exc: PySparkException, columns: list[str]) -> str:
    named = (exc.getMessageParameters() or {}).get("objectName", "").strip("`")
    return did_you_mean(named, columns, f"Spark SQL over the source’s columns: {', '.join(columns)}")
