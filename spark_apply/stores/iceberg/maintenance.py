"""Maintains an Iceberg table: compaction, and the expiry of snapshots that nothing needs.

See https://iceberg.apache.org/docs/latest/maintenance/ for common practice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses

from spark_apply.model.upkeep import SMALL_BYTES
from spark_apply.stores.lake.properties import APPLIED

Metadata = Mapping[str, Any]
"""A table's metadata, JSON as in the specification."""


def ancestry(metadata: Metadata, head: int | None) -> Iterator[Mapping[str, Any]]:
    """Yield the snapshots from `head` back to its oldest ancestor that is left."""
    snapshots = {snapshot["snapshot-id"]: snapshot for snapshot in metadata.get("snapshots", ())}
    while head in snapshots:
        yield snapshots[head]
        head = snapshots[head].get("parent-snapshot-id")


def unneeded(metadata: Metadata, spoken_of: int | None, before_ms: int) -> list[int]:
    """Return the snapshots older than `before_ms` that no branch, tag, applied position or mark needs.

    A branch or tag needs its head, and its nearest ancestor with an applied position. The mark needs all snapshots from
    the current one back to the one that it names (`spoken_of`).
    """
    needed: set[int] = set()
    for ref in metadata.get("refs", {}).values():
        for snapshot in ancestry(metadata, ref["snapshot-id"]):
            needed.add(snapshot["snapshot-id"])
            if APPLIED in snapshot.get("summary", {}):
                break
    line = [snapshot["snapshot-id"] for snapshot in ancestry(metadata, metadata.get("current-snapshot-id"))]
    if spoken_of in line:
        needed.update(line[: line.index(spoken_of) + 1])
    return [
        snapshot["snapshot-id"]
        for snapshot in metadata.get("snapshots", ())
        if snapshot["timestamp-ms"] < before_ms and snapshot["snapshot-id"] not in needed
    ]


def worn(files: DataFrame) -> int:
    """Count the `files` (a metadata table) that are small or are delete files."""
    return files.where((F.col("content") != 0) | (F.col("file_size_in_bytes") < SMALL_BYTES)).count()


def compact(actions: Any, loaded: Any, position: str | None) -> None:  # noqa: ANN401 - Java's SparkActions, Table
    """Compact small files and delete files; the new snapshots keep the applied `position`."""
    small: Any = actions.rewriteDataFiles(loaded).option("remove-dangling-deletes", "true")
    small.snapshotProperty(APPLIED, position or "").execute()
    loaded.refresh()
    deletes: Any = actions.rewritePositionDeletes(loaded)
    deletes.snapshotProperty(APPLIED, position or "").execute()


def expire(loaded: Any, ids: list[int]) -> None:  # noqa: ANN401 - Java's Table
    """Remove snapshots, and the files that they alone have."""
    change = loaded.expireSnapshots().expireOlderThan(0)  # no snapshot for its age alone
    for snapshot in ids:
        change = change.expireSnapshotId(snapshot)
    change.commit()
