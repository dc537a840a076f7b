"""Builds the archive of `spark_apply.spark.jvm.class_archive`.

python -m spark_apply.spark.jvm.build_class_archive     # in the cache, if it is not there; half a minute
"""

from __future__ import annotations

import logging
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses

from cdc.model.errors import CdcError
from spark_apply.spark.jvm.class_archive import archive
from spark_apply.spark.session import open_session

_log = logging.getLogger("cdc")

_EXIT_WITHIN_S: Final = 300
_ICEBERG: Final = "classes.db.t"
_MERGE: Final = (
    "MERGE INTO {} t USING batch s ON t.id = s.id WHEN MATCHED THEN UPDATE SET at = s.at "
    "WHEN NOT MATCHED THEN INSERT (id, at) VALUES (s.id, s.at)"
)


def make() -> None:
    """Build the archive from the classes that a small job uses."""
    wanted = archive()
    if wanted.exists():
        return
    _log.info("making an archive of Spark's classes, once")
    wanted.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".spark-", dir=wanted.parent) as scratch:
        made = Path(scratch) / "classes.jsa"
        options = {"spark.driver.extraJavaOptions": f'"-XX:ArchiveClassesAtExit={made}"'}
        _work(open_session("classes", options), Path(scratch))
        _end()
        if made.exists():
            made.rename(wanted)
        else:  # nothing depends on it
            _log.warning("Java has made no archive of Spark's classes: Spark will start without, which takes longer")


def _work(spark: SparkSession, folder: Path) -> None:
    """Load the classes that jobs need: a stream, JSON, aggregation, cached rows, a MERGE into each lake, Kafka."""
    source = folder / "in"
    source.mkdir()
    (source / "records").write_text('{"id":1,"at":"2024-01-01T00:00:00Z"}\n{"id":2,"at":null}\n')

    def apply(batch: DataFrame, _number: int) -> None:
        read = batch.select(F.from_json("value", "id string, at string").alias("row")).select("row.*")
        newest = read.groupBy("id").agg(F.max_by(F.struct("id", "at"), "at").alias("row")).select("row.*").persist()
        newest.select(F.col("id").try_cast("bigint"), F.col("at").try_cast("timestamp")).collect()
        newest.toArrow()
        newest.createOrReplaceTempView("batch")
        for name in (_ICEBERG, f"delta.`{folder / 'delta'}`"):
            newest.sparkSession.sql(_MERGE.format(name))
        newest.unpersist()

    for name, value in {
        "": "org.apache.iceberg.spark.SparkCatalog",
        ".type": "hadoop",
        ".warehouse": f"{folder}",
    }.items():
        spark.conf.set(f"spark.sql.catalog.classes{name}", value)
    for name, kind, properties in (
        (_ICEBERG, "iceberg", "'write.merge.mode' = 'merge-on-read'"),
        (f"delta.`{folder / 'delta'}`", "delta", "'delta.enableDeletionVectors' = 'true'"),
    ):
        spark.sql(f"CREATE TABLE {name} (id string, at string) USING {kind} TBLPROPERTIES ({properties})")
    stream = spark.readStream.text(str(source)).writeStream.foreachBatch(apply).trigger(availableNow=True)
    stream.option("checkpointLocation", str(folder / "checkpoint")).start().awaitTermination()
    _clients(spark._jvm)  # noqa: SLF001 - nothing public gives the JVM


def _clients(jvm: Any) -> None:  # noqa: ANN401 - py4j's view of the JVM
    """Make clients of Kafka as Spark does; no broker is there."""
    settings = jvm.java.util.HashMap({"bootstrap.servers": "127.0.0.1:1"})
    for name in ("key", "value"):
        settings.put(f"{name}.deserializer", "org.apache.kafka.common.serialization.ByteArrayDeserializer")
    jvm.org.apache.kafka.clients.consumer.KafkaConsumer(settings).close()
    jvm.org.apache.kafka.clients.admin.AdminClient.create(settings).close()


def _end() -> None:
    """Let the JVM end, which writes the archive."""
    gateway: Any = SparkContext._gateway  # noqa: SLF001 - nothing public ends the JVM
    active = SparkSession.getActiveSession()
    if active is not None:
        active.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    try:
        gateway.proc.wait(_EXIT_WITHIN_S)
    except subprocess.TimeoutExpired:
        gateway.proc.kill()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        make()
    except CdcError as error:
        sys.exit(f"error: {error}")
