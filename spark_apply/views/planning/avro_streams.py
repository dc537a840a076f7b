"""Reads a stream's records in Avro as the JSON that they would be: each names its schema, at a registry, by an id.

| bytes | |
|---|---|
| 0 | says so |
| four | the schema's id |
| the rest | Avro |

https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/index.html
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses
from pyspark.sql.avro.functions import from_avro, to_avro

from cdc.model.errors import OperatorError
from spark_apply.spark.failures import spark_failure
from spark_apply.spark.jvm.java_names import has_class
from spark_apply.views.planning.avro_schema import refusal

SchemaOf: TypeAlias = Callable[[int], tuple[str, str] | None]
"""Gives the type and the text of a schema by its id; None: there is none."""

_SHIPPED: Final = "org.apache.spark.sql.avro.SchemaConverters"
_HEAD: Final = 5
_AS_TEXT: Final = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
"""In UTC; Spark's own would leave out microseconds."""
_MISSED_S: Final = 30.0
"""So long a schema that is not there is not asked for again, where its records are left out."""
_GO_ON: Final = (
    "on_loss: go_on under the stream leaves records of it out, and counts them; it also goes on where the topic has "
    "lost records that were not read"
)


@dataclass(slots=True)
class AvroRecords:
    """The records of one stream; `schema_of` is asked once for each schema."""

    stream: str
    schema_of: SchemaOf
    goes_on: bool
    """Whether records whose schema is not to be had are left out."""
    _known: dict[int, str | None] = field(default_factory=dict)
    _missed: dict[int, float] = field(default_factory=dict)
    """When the registry said that it does not have a schema."""

    def as_json(self, records: DataFrame) -> Column:
        """Return the JSON of `value`, null where it is no Avro of its schema. The records are read for their schemas.

        Raises OperatorError for a schema that is not there, or is not read as it is meant, and what asking raises.
        """
        spark = records.sparkSession
        _require_avro(spark)
        number = F.conv(F.hex(F.substring("value", 2, _HEAD - 1)), 16, 10).cast("long")
        is_avro = (F.length("value") > _HEAD) & (F.hex(F.substring("value", 1, 1)) == "00")
        rows = records.where(is_avro).select(number.alias("number")).distinct().collect()
        avro, found = F.expr(f"substring(value, {_HEAD + 1})"), F.lit(None).cast("string")
        for each in sorted(row.number for row in rows):
            text = self._schema(spark, each)
            if text is not None:
                found = F.when(is_avro & (number == each), self._read(avro, text)).otherwise(found)
        return found

    def _read(self, avro: Column, text: str) -> Column:
        row = from_avro(avro, text, {"mode": "PERMISSIVE"})
        found = F.to_json(row, _AS_TEXT)
        # Spark ignores what stands behind a record, which may be one of another schema.
        again = F.when(found != "{}", to_avro(row, text))  # of bytes that are no record it makes one of nulls
        behind = F.startswith(avro, again) & (F.length(avro) > F.length(again))
        return F.when(~F.coalesce(behind, F.lit(False)), found)  # noqa: FBT003 - a literal column

    def _schema(self, spark: SparkSession, number: int) -> str | None:
        """Return the text of a schema that Spark reads as it is meant; None: its records are left out."""
        if number in self._known:
            return self._known[number]
        if self.goes_on and time.monotonic() - self._missed.get(number, -_MISSED_S) < _MISSED_S:
            return None
        found = self.schema_of(number)
        if found is None or found[0] != "AVRO":
            self._missed[number] = time.monotonic()
            self._leave_out(
                f"streams.{self.stream}: records name schema {number}, which the registry does not have as one of Avro",
                "is it the registry that they were written with? Put the schema back under this id",
            )
            return None
        why = refusal(found[1]) or _spark_says(spark, found[1])
        if why is not None:
            self._leave_out(
                f"streams.{self.stream}: schema {number} of the registry is not read here: {why}",
                "write events of another schema, or JSON",
            )
        self._known[number] = None if why else found[1]
        return self._known[number]

    def _leave_out(self, what: str, way: str) -> None:
        """Raise the error, unless the file says to go on."""
        if not self.goes_on:
            raise OperatorError(what, hint=f"{way}; {_GO_ON}")


def _require_avro(spark: SparkSession) -> None:
    jvm: Any = spark._jvm  # noqa: SLF001 - PySpark has no other way
    if not has_class(jvm, _SHIPPED):
        raise OperatorError(
            "spark-submit was not given Spark's jar for Avro",
            hint='spark-submit --jars "$(python -m cdc.dev.jars spark)" …',
        )


def _spark_says(spark: SparkSession, text: str) -> str | None:
    """Return why Spark does not take a schema."""
    try:
        spark.range(0).select(from_avro(F.lit(b""), text))
    except (PySparkException, Py4JJavaError) as exc:
        return spark_failure(exc) or type(exc).__name__
    return None
