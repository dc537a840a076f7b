"""Upkeep of an Iceberg table: what is worn, and which of its snapshots nobody needs.

See https://iceberg.apache.org/docs/latest/maintenance/ for what practice is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses

from spark_apply.model.upkeep import SMALL_BYTES
from spark_apply.stores.lake import APPLIED

Metadata = Mapping[str, Any]
"""A table's, as the specification has it in JSON."""


def ancestry(metadata: Metadata, head: int | None) -> Iterator[Mapping[str, Any]]:
    """The snapshots from `head` back to the oldest that is left of its line."""
    snapshots = {snapshot["snapshot-id"]: snapshot for snapshot in metadata.get("snapshots", ())}
    while head in snapshots:
        yield snapshots[head]
        head = snapshots[head].get("parent-snapshot-id")


def unneeded(metadata: Metadata, spoken_of: int | None, before_ms: int) -> list[int]:
    """The snapshots of before `before_ms` that no name needs, nor the applied position of one, nor the mark.

    A branch or tag needs its head, and on the way back the first that holds an applied position; the mark needs the
    line from the current one to the one that it speaks of.
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
    """How many of a table's `files` (its metadata table) are small, or hold what was deleted of others."""
    return files.where((F.col("content") != 0) | (F.col("file_size_in_bytes") < SMALL_BYTES)).count()


def compact(actions: Any, loaded: Any, position: str | None) -> None:  # noqa: ANN401 - Java's SparkActions, Table
    """Put small files together, and apply deletes to files that have lost much; `position` goes into the snapshots."""
    small: Any = actions.rewriteDataFiles(loaded).option("remove-dangling-deletes", "true")
    small.snapshotProperty(APPLIED, position or "").execute()
    loaded.refresh()
    deletes: Any = actions.rewritePositionDeletes(loaded)
    deletes.snapshotProperty(APPLIED, position or "").execute()


def expire(loaded: Any, ids: list[int]) -> None:  # noqa: ANN401 - Java's Table
    """Remove snapshots, and the files that only they have."""
    change = loaded.expireSnapshots().expireOlderThan(0)  # none for its age alone
    for snapshot in ids:
        change = change.expireSnapshotId(snapshot)
    change.commit()
