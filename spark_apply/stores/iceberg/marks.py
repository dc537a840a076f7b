"""Reads from a table's metadata what is applied, and up to where it is complete."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

from spark_apply.model.completeness import Mark
from spark_apply.stores.iceberg.maintenance import ancestry
from spark_apply.stores.lake.properties import APPLIED, DUE, mark_in


def position_at(loaded: Any, snapshot: Any) -> str | None:  # noqa: ANN401 - Java's Table, Snapshot
    """Return the applied position of a snapshot: the first one found from it backwards."""
    while snapshot is not None:
        position = snapshot.summary().get(APPLIED)
        if position is not None:
            return str(position) or None
        parent = snapshot.parentId()
        snapshot = None if parent is None else loaded.snapshot(parent)
    return None


def has_no_rows(snapshot: Any) -> bool:  # noqa: ANN401 - Java's Snapshot
    """Whether a table, or a branch, surely has no rows; those without an applied position may be of an earlier state.

    Another engine that rewrites a table's files and then expires its snapshots removes those that have the position.
    """
    return snapshot is None or snapshot.summary().get("total-records") == "0"


def mark_of(loaded: Any, java: Any) -> Mark | None:  # noqa: ANN401 - Java's Table, the package org.apache.iceberg
    """Return a table's mark; None if it is of a snapshot that the live one does not come from."""
    text, current = mark_in(loaded.properties(), f"Iceberg table {loaded.name()}"), loaded.currentSnapshot()
    spoken_of = None if text is None else json.loads(text).get("snapshot")
    ancestor = java.util.SnapshotUtil.isAncestorOf
    if spoken_of is not None and (current is None or not ancestor(loaded, current.snapshotId(), spoken_of)):
        return None
    return None if text is None else Mark.from_json(text)


def standing(loaded: Any) -> tuple[int | None, str | None]:  # noqa: ANN401 - Java's org.apache.iceberg.Table
    """Return the snapshot that is live, and the catch-up that was left due last."""
    current = loaded.currentSnapshot()
    return None if current is None else int(current.snapshotId()), loaded.properties().get(DUE)


def mark_in_folder(metadata: Path) -> str | None:
    """Read the mark of a table of a folder catalog from its newest metadata file; None if there is none.

    See https://iceberg.apache.org/spec/#file-system-tables.
    """
    found: dict[str, Any] | None = None
    while found is None:
        try:
            version = int((metadata / "version-hint.text").read_text())
        except (FileNotFoundError, ValueError):
            return None
        while (metadata / f"v{version + 1}.metadata.json").exists():
            version += 1
        with contextlib.suppress(FileNotFoundError):  # it became old and was deleted: read again
            found = json.loads((metadata / f"v{version}.metadata.json").read_bytes())
    text = mark_in(found["properties"], f"the Iceberg table in {metadata.parent}")
    if text is None:
        return None
    spoken_of = json.loads(text).get("snapshot")
    line = ancestry(found, found.get("current-snapshot-id"))
    return text if spoken_of is None or any(each["snapshot-id"] == spoken_of for each in line) else None
