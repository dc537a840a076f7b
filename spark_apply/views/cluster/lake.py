"""The tables of a lake in which the bulk of a state is: each version of a relation's rows is a snapshot of its table.

A snapshot counts when the state names it. What was written and never named is overwritten by the next version.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Iterable
from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses

from spark_apply.spark.names import folder_name, quoted
from spark_apply.spark.paths import located

ROWS: Final = "rows"
WAITING: Final = "waiting"
_NAMESPACES: Final = (ROWS, WAITING)
_PROPERTIES: Final = {
    "format-version": "2",
    "write.parquet.compression-codec": "lz4",  # it is read at each step: what is read fast counts
    "write.parquet.row-group-size-bytes": str(16 << 20),  # the smallest part that a search for keys reads
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "2",
    "write.distribution-mode": "none",
    "write.merge.mode": "merge-on-read",  # rows that go are noted beside the files that have them
    "write.merge.distribution-mode": "none",
}
_TAKEN: Final = frozenset(
    (
        "_file", "_pos", "_deleted", "_spec_id", "_partition", "_row_id", "_last_updated_sequence_number",
        "_change_type", "_change_ordinal", "_commit_snapshot_id",
    )
)  # fmt: skip
"""Names that Iceberg has for what it knows of a row: it reads no table with a column that has one of them."""
_STORED: Final = "_cdc_column"
_MOST_FILES: Final = 100
"""A table with so many files is written again as a whole: each read opens all that may have a row."""
_MOST_DEAD: Final = 0.5
"""So many rows that do not count any more may lie among those that do: each read reads them, too."""
_FILES: Final = ("total-data-files", "total-delete-files")
_SAID: Final = (*_FILES, "total-position-deletes")
_GOING: Final = "cdc_views_going"


class Lake:
    """Iceberg tables in one place, which the driver and all executors must reach."""

    def __init__(self, spark: SparkSession, place: str) -> None:
        self.spark = spark
        self.place = located(place)
        self._catalog = f"cdc_views_{hashlib.sha256(self.place.encode()).hexdigest()[:12]}"
        self._made = False

    def settle(self, spark: SparkSession) -> None:
        """Let a session know the catalog."""
        name = f"spark.sql.catalog.{self._catalog}"
        spark.conf.set(name, "org.apache.iceberg.spark.SparkCatalog")
        for key, value in {"type": "hadoop", "warehouse": self.place, "cache-enabled": "false"}.items():
            spark.conf.set(f"{name}.{key}", value)

    def _name(self, namespace: str, relation: str) -> str:
        return ".".join(map(quoted, (self._catalog, namespace, folder_name(relation))))

    def write(self, namespace: str, relation: str, rows: DataFrame) -> int | None:
        """Write all rows of a relation as a new snapshot; return its number, None where it has no rows."""
        self._make(rows.sparkSession)
        writer = _as_stored(rows).writeTo(self._name(namespace, relation)).using("iceberg")
        for key, value in _PROPERTIES.items():
            writer = writer.tableProperty(key, value)
        writer.createOrReplace()
        return self._newest(namespace, relation)

    def can_change(self, namespace: str, relation: str, snapshot: int, *, going: int, number: int) -> bool:
        """Whether to let rows go from a snapshot and add others costs less than to write its `number` rows again.

        Not where it is not the newest one either: a killed step has written others since, which do not count.
        """
        newest = self._loaded(namespace, relation).currentSnapshot()
        if newest is None or int(newest.snapshotId()) != snapshot:
            return False
        said = {name: int(newest.summary().get(name) or 0) for name in _SAID}
        dead = said["total-position-deletes"] + going
        return sum(said[name] for name in _FILES) <= _MOST_FILES and dead <= _MOST_DEAD * number

    def change(
        self, namespace: str, relation: str, going: DataFrame | None, rows: DataFrame | None, *, null_safe: bool
    ) -> int:
        """Let rows with these keys go from the newest snapshot, and add rows; return the number of the one made."""
        name = self._name(namespace, relation)
        if going is not None:
            keys, equal = _as_stored(going), "<=>" if null_safe else "="
            same = " AND ".join(f"t.{column} {equal} g.{column}" for column in map(quoted, keys.columns))
            self._make(keys.sparkSession)
            F.broadcast(keys).createOrReplaceTempView(_GOING)
            try:
                keys.sparkSession.sql(f"MERGE INTO {name} t USING {_GOING} g ON {same} WHEN MATCHED THEN DELETE")
            finally:
                keys.sparkSession.catalog.dropTempView(_GOING)
        if rows is not None:
            self._make(rows.sparkSession)
            _as_stored(rows).writeTo(name).append()
        return int(self._loaded(namespace, relation).currentSnapshot().snapshotId())

    def append(self, namespace: str, relation: str, rows: DataFrame) -> int | None:
        """Add rows to a relation's newest snapshot; return the number of the one that is made."""
        self._make(rows.sparkSession)
        _as_stored(rows).writeTo(self._name(namespace, relation)).append()
        return self._newest(namespace, relation)

    def read(self, namespace: str, relation: str, snapshot: int) -> DataFrame:
        """Read a snapshot."""
        rows = self.spark.read.option("snapshot-id", str(snapshot)).table(self._name(namespace, relation))
        known = [name.removeprefix(_STORED) for name in rows.columns]
        return rows if known == rows.columns else rows.toDF(*known)

    def has(self, named: Iterable[tuple[str, str, int]]) -> bool:
        """Whether each snapshot is there and can be read."""
        try:
            for namespace, relation, snapshot in named:
                if self._loaded(namespace, relation).snapshot(snapshot) is None:
                    return False
                if not self._whole(namespace, relation, snapshot):
                    return False
        except (PySparkException, Py4JJavaError):
            return False
        return True

    def _whole(self, namespace: str, relation: str, snapshot: int) -> bool:
        """Whether a snapshot's files have the sizes that they were written with; their contents are not read."""
        name = f"{self._name(namespace, relation)}.`files`"
        files = self.spark.read.option("snapshot-id", str(snapshot)).table(name)
        session: Any = self.spark
        java = session.sparkContext._jvm.org.apache.hadoop.fs.Path  # noqa: SLF001 - nothing public has it
        conf = session._jsparkSession.sessionState().newHadoopConf()  # noqa: SLF001
        for path, size in files.select("file_path", "file_size_in_bytes").collect():
            at = java(path)
            if at.getFileSystem(conf).getFileStatus(at).getLen() != size:
                return False
        return True

    def forget(self, namespace: str, relation: str) -> None:
        """Remove the snapshots before the newest one, and the files that they alone have."""
        with contextlib.suppress(PySparkException, Py4JJavaError):  # they are removed the next time
            loaded = self._loaded(namespace, relation)
            loaded.expireSnapshots().expireOlderThan(time.time_ns() // 1_000_000 + 1).retainLast(1).commit()

    def _make(self, spark: SparkSession) -> None:
        self.settle(spark)
        if not self._made:
            for namespace in _NAMESPACES:
                spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {quoted(self._catalog)}.{quoted(namespace)}")
            self._made = True

    def _newest(self, namespace: str, relation: str) -> int | None:
        snapshot = self._loaded(namespace, relation).currentSnapshot()
        return None if snapshot is None else int(snapshot.snapshotId())

    def _loaded(self, namespace: str, relation: str) -> Any:  # noqa: ANN401 - Java's org.apache.iceberg.Table
        session: Any = self.spark
        self.settle(self.spark)
        java = session.sparkContext._jvm.org.apache.iceberg.spark.Spark3Util  # noqa: SLF001 - nothing public has it
        return java.loadIcebergTable(session._jsparkSession, self._name(namespace, relation))  # noqa: SLF001


def _as_stored(rows: DataFrame) -> DataFrame:
    """Return rows with names that a table may have."""
    stored = [_STORED + name if name in _TAKEN else name for name in rows.columns]
    return rows if stored == rows.columns else rows.toDF(*stored)
