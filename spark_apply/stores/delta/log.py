"""Reads and writes a Delta table's log by Delta's Java API, for commits that SQL cannot express; also without Spark.

See https://github.com/delta-io/delta/blob/master/PROTOCOL.md. An action (``add``, ``remove``, …) is a Java object.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from spark_apply.spark.names import quoted

Properties = dict[str, str]

LOG = "_delta_log"
_CONFLICT = re.compile(r"(Concurrent\w*|MetadataChanged|ProtocolChanged)Exception")
_TRIES, _WAIT_S = 20, 0.02
_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.(?:\d+\.\d+\.)?parquet")


def delta_name(path: str) -> str:
    """Return the name of the table at `path`, quoted for Spark's SQL."""
    return f"delta.{quoted(path)}"


class State(NamedTuple):
    """What a table is at a version."""

    version: int
    properties: Properties
    schema: str
    """JSON, as in the protocol."""


@dataclass(frozen=True, slots=True)
class DeltaLog:
    """The log of the table at `path`, which may not exist yet."""

    spark: SparkSession
    path: str

    @property
    def name(self) -> str:
        return delta_name(self.path)

    def snapshot(self) -> Any:  # noqa: ANN401 - Java's Snapshot
        """Return the newest state; its version is -1 without a table."""
        nothing = self._jvm.scala.Option.empty()
        return self._java.update(False, nothing, nothing)  # noqa: FBT003 - no older state will do

    def exists(self) -> bool:
        """Whether the table exists."""
        return int(self.snapshot().version()) >= 0

    def properties(self) -> Properties:
        """Return the table properties, as they are now."""
        return dict(_metadata(self.snapshot())["metaData"]["configuration"])

    def state(self) -> State:
        """Return what a writer compares, of one snapshot: each look at the log lists its folder."""
        snapshot = self.snapshot()
        found = _metadata(snapshot)["metaData"]
        return State(int(snapshot.version()), dict(found["configuration"]), str(found["schemaString"]))

    def files(self, snapshot: Any) -> list[Any]:  # noqa: ANN401 - Java's Snapshot
        """Return the ``add`` action of each file of a state."""
        return list(snapshot.allFiles().collectAsList())

    def action(self, about: Mapping[str, Any]) -> Any:  # noqa: ANN401 - Java's Action
        """Make an action from its JSON."""
        return self._delta.actions.Action.fromJson(json.dumps(about))

    def commit(
        self, change: Callable[[Any, Properties], Iterable[Any]], *, schema: Callable[[str], str] | None = None
    ) -> None:
        """Commit the actions that `change` returns for a state, and the properties, which it modifies.

        `schema`, which is called behind it, gives another schema for the one that is there; both are JSON. After a
        conflict, both are called again with the new state.
        """
        for number in range(1, _TRIES + 1):
            transaction = self._java.startTransaction()
            metadata = _metadata(transaction)
            properties = metadata["metaData"]["configuration"]
            before = dict(properties)
            actions = list(change(transaction.snapshot(), properties))
            if schema is not None:
                metadata["metaData"]["schemaString"] = schema(metadata["metaData"]["schemaString"])
            transaction.updateMetadata(self.action(metadata), False)  # noqa: FBT003 - no defaults of the session
            if actions:
                transaction.readWholeTable()  # so that a file added meanwhile is a conflict
            try:
                transaction.commit(self._sequence(actions), self._operation(before, properties, bare=not actions))
            except (Py4JError, PySparkException) as exc:
                if number == _TRIES or not _CONFLICT.search(str(exc)):
                    raise
                time.sleep(_WAIT_S * number)
            else:
                return

    def create_like(
        self, other: DeltaLog, schema: Callable[[str], str], properties: Mapping[str, str], without: Iterable[str]
    ) -> None:
        """Create an empty table with the columns of `other`, also their names in files, and its properties.

        `schema` is as in `commit`.
        """
        transaction = self._java.startTransaction()
        metadata = _metadata(other.snapshot())
        kept = {key: value for key, value in metadata["metaData"]["configuration"].items() if key not in without}
        metadata["metaData"]["configuration"] = {**kept, **properties}
        metadata["metaData"]["schemaString"] = schema(metadata["metaData"]["schemaString"])
        transaction.updateMetadataForNewTable(self.action(metadata))
        transaction.commit(self._sequence([]), self._manual)

    def commit_info(self, version: int) -> dict[str, Any] | None:
        """Return the commit info of a version; None if the log no longer has it."""
        path = self._delta.util.FileNames.unsafeDeltaFile(self._java.logPath(), version)
        if not self._file_system.exists(path):
            return None
        for line in self._each_line(path):
            if line.startswith('{"commitInfo"'):
                return dict(json.loads(line)["commitInfo"])
        return {}

    def read(self, name: str) -> list[str]:
        """Return the lines of one of our files in the table's folder."""
        return self._lines(self._path(name))

    def write(self, name: str, lines: Iterable[str]) -> None:
        """Write one of our files into the table's folder; durable when this returns."""
        stream = self._file_system.create(self._path(name), True)  # noqa: FBT003 - over one of that name
        try:
            stream.write(bytearray("\n".join(lines).encode()))
        finally:
            stream.close()

    def remove(self, name: str) -> None:
        """Remove a file or a folder in the table's folder, if it exists."""
        self._file_system.delete(self._path(name), True)  # noqa: FBT003 - with all in it

    def folders(self) -> list[str]:
        """Return the names of the folders in the table's folder, without Delta's own."""
        found = self._file_system.listStatus(self._java.dataPath()) if self.exists() else ()
        return [each.getPath().getName() for each in found if each.isDirectory() and each.getPath().getName() != LOG]

    def notes(self, begin: str) -> list[str]:
        """Return the names of our files in the table's folder that begin so."""
        found = self._file_system.listStatus(self._java.dataPath()) if self.exists() else ()
        names = [each.getPath().getName() for each in found if not each.isDirectory()]
        return [name for name in names if name.startswith(begin)]

    def is_there(self, action: Any) -> bool:  # noqa: ANN401 - Java's AddFile
        """Whether the file of an ``add`` and its deletion vector exist."""
        return all(self._file_system.exists(path) for path in self._paths(action))

    def paths(self, action: Any) -> list[str]:  # noqa: ANN401 - Java's AddFile
        """Return the paths of these files, absolute, with their file system."""
        return [self._file_system.makeQualified(path).toString() for path in self._paths(action)]

    def file_table(self) -> DataFrame:
        """Return the files of the newest state, a row for each ``add``."""
        return DataFrame(self.snapshot().allFiles().toDF(), self.spark)

    def _paths(self, action: Any) -> list[Any]:  # noqa: ANN401 - Java's AddFile, Path
        root = self._java.dataPath()
        found = [self._delta.util.DeltaFileOperations.absolutePath(root.toString(), action.path())]
        deleted = action.deletionVector()
        return [*found, deleted.absolutePath(root)] if deleted is not None and deleted.isOnDisk() else found

    @property
    def _jvm(self) -> Any:  # noqa: ANN401 - py4j's
        context: Any = self.spark.sparkContext
        return context._jvm  # noqa: SLF001

    @property
    def _delta(self) -> Any:  # noqa: ANN401 - the package
        return self._jvm.org.apache.spark.sql.delta

    @property
    def _java(self) -> Any:  # noqa: ANN401 - Java's DeltaLog
        session: Any = self.spark
        return self._delta.DeltaLog.forTable(session._jsparkSession, self.path)  # noqa: SLF001

    @property
    def _file_system(self) -> Any:  # noqa: ANN401 - Hadoop's
        return self._java.dataPath().getFileSystem(self._java.newDeltaHadoopConf())

    @property
    def _manual(self) -> Any:  # noqa: ANN401 - Java's Operation
        return getattr(getattr(self._delta, "DeltaOperations$ManualUpdate$"), "MODULE$")

    def _path(self, name: str) -> Any:  # noqa: ANN401 - Hadoop's Path
        return self._jvm.org.apache.hadoop.fs.Path(self._java.dataPath(), name)

    def _lines(self, path: Any) -> list[str]:  # noqa: ANN401 - Hadoop's Path
        return list(self._each_line(path))

    def _each_line(self, path: Any) -> Iterable[str]:  # noqa: ANN401 - Hadoop's Path
        """Return the lines of a file, for each of which Java is asked; a commit has one for each file of its own."""
        lines = self._java.store().read(path, self._java.newDeltaHadoopConf())
        found: Iterable[str] = self._jvm.scala.jdk.javaapi.CollectionConverters.asJava(lines)
        return found

    def _sequence(self, actions: Iterable[Any]) -> Any:  # noqa: ANN401 - Scala's Seq
        found = self._jvm.java.util.ArrayList()
        for action in actions:
            found.add(action)
        return self._jvm.scala.jdk.javaapi.CollectionConverters.asScala(found).toSeq()

    def _operation(self, before: Properties, after: Properties, *, bare: bool) -> Any:  # noqa: ANN401 - Java's Operation
        """Return the operation of a commit: with SET TBLPROPERTIES Delta keeps the checksum, which saves 0.1 s."""
        if not bare:
            return self._manual
        changed = self._jvm.java.util.HashMap()
        for key, value in after.items():
            if before.get(key) != value:
                changed.put(key, value)
        immutable = getattr(self._jvm.scala.collection.immutable.Map, "from")
        entries = immutable(self._jvm.scala.jdk.javaapi.CollectionConverters.asScala(changed))
        return getattr(self._delta, "DeltaOperations$SetTableProperties")(entries)


def _metadata(holder: Any) -> dict[str, Any]:  # noqa: ANN401 - Java's Snapshot or OptimisticTransaction
    found: dict[str, Any] = json.loads(holder.metadata().json())
    found["metaData"].setdefault("configuration", {})
    return found


def properties_in_folder(log: Path) -> Properties | None:
    """Read the newest properties from a log in a local folder, without Spark; None without a log."""
    while True:
        try:
            names = [path.name for path in log.iterdir()]
            return _newest_properties(log, names)
        except NotADirectoryError:
            return None
        except FileNotFoundError:  # no log; or a file became old and was removed: read again
            if not log.is_dir():
                return None


def _newest_properties(log: Path, names: Iterable[str]) -> Properties | None:
    commits, checkpoints = [], []
    for name in names:
        if commit := _COMMIT.fullmatch(name):
            commits.append((int(commit[1]), name))
        elif checkpoint := _CHECKPOINT.fullmatch(name):
            checkpoints.append((int(checkpoint[1]), name))
    base = max((version for version, _ in checkpoints), default=-1)
    for _, name in sorted((each for each in commits if each[0] > base), reverse=True):
        with (log / name).open(encoding="utf-8") as lines:
            for line in lines:
                if line.startswith('{"metaData"'):
                    return dict(json.loads(line)["metaData"].get("configuration", {}))
    for version, name in checkpoints:
        if version == base and (found := _properties_in_checkpoint(log / name)) is not None:
            return found
    return None


def _properties_in_checkpoint(path: Path) -> Properties | None:
    from pyarrow import parquet  # noqa: PLC0415 - rarely needed

    for row in parquet.read_table(path, columns=["metaData"]).column("metaData").to_pylist():
        if row is not None:
            return dict(row["configuration"])
    return None
