"""Reads a stream's records in Avro as the JSON that they would be: each names its schema, at a registry, by an id.

| bytes | |
|---|---|
| 0 | says so |
| four | the schema's id |
| the rest | Avro |

https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/index.html
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses
from pyspark.sql.avro.functions import from_avro

from cdc.model.errors import OperatorError
from spark_apply.spark.failures import spark_failure

SchemaOf: TypeAlias = Callable[[int], tuple[str, str] | None]
"""Gives the type and the text of a schema by its id; None: there is none."""

_SHIPPED: Final = "org.apache.spark.sql.avro.SchemaConverters"
_HEAD: Final = 5
_AS_TEXT: Final = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
"""In UTC; Spark's own would leave out microseconds."""


@dataclass(slots=True)
class AvroRecords:
    """The records of one stream; `schema_of` is asked once for each schema."""

    stream: str
    schema_of: SchemaOf
    goes_on: bool
    """Whether records whose schema is not to be had are left out."""
    _known: dict[int, str] = field(default_factory=dict)

    def as_json(self, records: DataFrame) -> Column:
        """Return the JSON of `value`, null where it is no Avro of its schema. The records are read for their schemas.

        Raises OperatorError for a schema that is not there, or that Spark does not take, and what asking raises.
        """
        _require_avro(records.sparkSession)
        number = F.conv(F.hex(F.substring("value", 2, _HEAD - 1)), 16, 10).cast("long")
        is_avro = (F.length("value") > _HEAD) & (F.hex(F.substring("value", 1, 1)) == "00")
        rows = records.where(is_avro).select(number.alias("number")).distinct().collect()
        avro, found = F.expr(f"substring(value, {_HEAD + 1})"), F.lit(None).cast("string")
        for each in sorted(row.number for row in rows):
            text = self._schema(each)
            if text is not None:
                found = F.when(is_avro & (number == each), self._read(records, avro, each, text)).otherwise(found)
        return found

    def _read(self, records: DataFrame, avro: Column, number: int, text: str) -> Column:
        made = F.to_json(from_avro(avro, text, {"mode": "PERMISSIVE"}), _AS_TEXT)
        try:
            records.select(made)
        except (PySparkException, Py4JJavaError) as exc:
            if self.goes_on:
                return F.lit(None).cast("string")
            raise OperatorError(
                f"streams.{self.stream}: Spark does not take schema {number} of the registry: {spark_failure(exc)}",
                hint="a schema that refers to itself is none for Spark; on_loss: go_on under the stream leaves records "
                "of it out, and counts them",
            ) from exc
        return made

    def _schema(self, number: int) -> str | None:
        if number not in self._known:
            found = self.schema_of(number)
            if found is not None and found[0] == "AVRO":
                self._known[number] = found[1]
        if number not in self._known and not self.goes_on:
            raise OperatorError(
                f"streams.{self.stream}: records name schema {number}, which the registry does not have as one of Avro",
                hint="is it the registry that they were written with? Put the schema back under this id; on_loss: "
                "go_on under the stream leaves such records out, and counts them",
            )
        return self._known.get(number)


def _require_avro(spark: SparkSession) -> None:
    jvm: Any = spark._jvm  # noqa: SLF001 - PySpark has no other way
    try:
        jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(_SHIPPED)
    except Py4JJavaError as exc:
        raise OperatorError(
            "spark-submit was not given Spark's jar for Avro",
            hint='spark-submit --jars "$(python -m cdc.dev.jars spark)" …',
        ) from exc
