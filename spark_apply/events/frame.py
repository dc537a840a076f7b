"""A table's topic as a DataFrame of typed rows, for programs of users: `cdc.spark`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses

from cdc.config.apply_config import ApplySource, ApplyTable
from cdc.config.config import ConnectorConfig
from cdc.model.errors import OperatorError
from cdc.model.suggestion import not_described
from spark_apply.events.envelope import parse
from spark_apply.events.kafka.offsets import await_markers, committed_ends
from spark_apply.events.kafka.schema_topic import schema_versions
from spark_apply.events.kafka.stream import read_topic, stream_topics
from spark_apply.events.latest import latest_alone
from spark_apply.events.typed import KEY, MISFITS, OFFSET, OP, PARTITION, POSITION, in_row, typed
from spark_apply.model.target_table import TargetTable, derived
from spark_apply.spark.jvm.java_names import has_class
from spark_apply.spark.names import quoted

_RESTS_ON: Final = {"spark.sql.session.timeZone": "UTC", "spark.sql.ansi.enabled": "true"}
"""Settings of the session with others of which rows would be other rows."""
_VALID: Final = "_cdc_valid"
"""Whether a record is an event; a table may have a column ``valid``, and none that begins so."""
_READER: Final = "org.apache.spark.sql.kafka010.KafkaSourceProvider"


def dataframe(
    spark: SparkSession, config: ConnectorConfig, table: str, *, streaming: bool, types: Mapping[str, str]
) -> DataFrame:
    """Return the rows that `table` has now, or as a stream its changes. `types`: see apply-reference.md.

    The columns are the table's; a stream has ``_cdc_op``, ``_cdc_position`` and ``_cdc_key`` before them, and rows of
    deletes (``d``), with the key's columns alone. A value that does not fit its column fails the query that reads it.
    Raises OperatorError where the session or the topic is not as it must be.
    """
    _require(spark)
    source = ApplySource(
        bootstrap_servers=config.sink.bootstrap_servers, topic_prefix=config.sink.prefix, options=config.sink.options
    )
    described = schema_versions(source)
    versions = described.get(table)
    if not versions:
        raise not_described(config.name, [table], described)
    target = derived(versions, ApplyTable(stores=("a DataFrame",), types=types), rekeys=True)
    columns = in_row(target)
    if streaming:
        events = parse(stream_topics(spark, source, [target.topic]), columns).withColumnRenamed("valid", _VALID)
        changes = typed(events, target, _VALID, parsed=True).where(_fits(target))
        return changes.select(OP, POSITION, KEY, *_columns(target))
    await_markers(source, [target.topic])
    ends = committed_ends(source, target.topic)
    events = parse(read_topic(spark, source, target.topic, {}, ends), columns)
    newest = latest_alone(events).withColumnRenamed("valid", _VALID)
    rows = typed(newest, target, _VALID, parsed=True)
    return rows.where(_fits(target) & (F.col(OP) != "d")).select(*_columns(target))


def _columns(target: TargetTable) -> list[Column]:
    return [F.col(quoted(column.name)) for column in target.columns]


def _fits(target: TargetTable) -> Column:
    """Return a condition that is true, or fails the query: Spark would give a null where a value does not fit."""
    said = F.concat(
        F.lit(f"cdc: topic {target.topic}, partition "), F.col(PARTITION), F.lit(", offset "), F.col(OFFSET),
        F.lit(": "),
        F.when(F.col(_VALID), F.concat(F.lit("a value does not fit: "), F.array_join(F.col(MISFITS), ", ")))
        .otherwise(F.lit("it is no event of a connector")),
        F.lit('. Keep such a column as the text of its JSON: cdc.spark(…, types={"column": "string"})'),
    )  # fmt: skip
    fits = F.col(_VALID) & (F.size(F.col(MISFITS)) == 0)
    return F.when(fits, F.lit(True)).otherwise(F.raise_error(said).cast("boolean"))  # noqa: FBT003 - a literal column


def _require(spark: SparkSession) -> None:
    """Raise OperatorError if the session would read other rows, or cannot read Kafka."""
    for name, wanted in _RESTS_ON.items():
        found = str(spark.conf.get(name))
        if found != wanted:
            raise OperatorError(
                f"this Spark session has {name} = {found}: rows would have other values than their events",
                hint=f'spark.conf.set("{name}", "{wanted}"); times of one zone become another\'s in queries, by '
                "from_utc_timestamp",
            )
    jvm: Any = spark.sparkContext._jvm  # noqa: SLF001 - nothing public gives the JVM
    if not has_class(jvm, _READER):
        raise OperatorError(
            "this Spark session cannot read Kafka: its connector is not on the class path",
            hint='SparkSession.builder.config("spark.jars", …) with what python -m cdc.dev.jars spark prints',
        )
