"""Keeps copies of a table as branches and tags of it, and exchanges them in one commit.

``main`` is the live copy, ``cdc_beside_…`` one that is being made, and the tag ``cdc_previous`` the one before.
"""

from __future__ import annotations

import datetime as dt
import uuid
from typing import Any

from cdc.model.errors import OperatorError
from spark_apply.model.identity import stamp
from spark_apply.model.store import Due
from spark_apply.model.target_table import TargetTable
from spark_apply.stores.iceberg.tables import IcebergTables
from spark_apply.stores.lake.properties import APPLIED, DUE, IDENTITY, PREVIOUS_IDENTITY, REPLACED_AT

MAIN = "main"
_PREVIOUS, _BESIDE = "cdc_previous", "cdc_beside_"


def begin_beside(tables: IcebergTables, table: TargetTable) -> str:
    """Make a branch that begins with a snapshot without rows, and remove those of others; return its name."""
    branch = f"{_BESIDE}{uuid.uuid4().hex}"
    everything = tables.java.expressions.Expressions.alwaysTrue()

    def make(loaded: Any) -> None:  # noqa: ANN401 - Java's org.apache.iceberg.Table
        transaction = loaded.newTransaction()
        names = transaction.manageSnapshots().createBranch(branch, loaded.currentSnapshot().snapshotId())
        for name in loaded.refs():
            if name.startswith(_BESIDE):
                names = names.removeBranch(name)
        names.commit()
        delete = transaction.newDelete().deleteFromRowFilter(everything).set(APPLIED, "")
        delete.toBranch(branch).commit()
        transaction.commitTransaction()

    tables.commit(table, make)
    return branch


def swap_in(tables: IcebergTables, table: TargetTable, branch: str, due: Due) -> None:
    """Make a branch the live copy, and tag the one that it replaces. Raises OperatorError if the branch is gone."""

    def change(loaded: Any) -> None:  # noqa: ANN401 - Java's org.apache.iceberg.Table
        beside = loaded.refs().get(branch)
        if beside is None:
            msg = f"Iceberg table {tables.name(table)}: another rebuild has taken the place of this one"
            raise OperatorError(msg, hint="the live table is as it was; let one rebuild run at a time")
        transaction = loaded.newTransaction()
        now = dt.datetime.now(dt.UTC).isoformat()
        had = loaded.properties()[IDENTITY]
        properties = transaction.updateProperties().set(DUE, due.to_json()).set(REPLACED_AT, now)
        properties.set(IDENTITY, stamp(table, had)).set(PREVIOUS_IDENTITY, had).commit()
        names, live = transaction.manageSnapshots(), loaded.currentSnapshot().snapshotId()
        kept = loaded.refs().get(_PREVIOUS)
        names = names.createTag(_PREVIOUS, live) if kept is None else names.replaceTag(_PREVIOUS, live)
        names.replaceBranch(MAIN, beside.snapshotId()).removeBranch(branch).commit()
        transaction.commitTransaction()

    tables.commit(table, change)


def replaced_at(loaded: Any) -> dt.datetime | None:  # noqa: ANN401 - Java's org.apache.iceberg.Table
    """Return when the previous copy was replaced; None without one."""
    if loaded.refs().get(_PREVIOUS) is None:
        return None
    return dt.datetime.fromisoformat(loaded.properties()[REPLACED_AT])


def put_previous_back(tables: IcebergTables, table: TargetTable, due: Due) -> None:
    """Make the previous copy the live one."""

    def change(loaded: Any) -> None:  # noqa: ANN401 - Java's org.apache.iceberg.Table
        transaction = loaded.newTransaction()
        properties = transaction.updateProperties().set(DUE, due.to_json())
        had = loaded.properties()
        properties.set(IDENTITY, had.get(PREVIOUS_IDENTITY) or had[IDENTITY]).commit()
        names = transaction.manageSnapshots().replaceBranch(MAIN, loaded.refs()[_PREVIOUS].snapshotId())
        names.removeTag(_PREVIOUS).commit()
        transaction.commitTransaction()

    tables.commit(table, change)
