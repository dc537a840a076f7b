"""Keeps copies of a table as branches and tags of it, and exchanges them in one commit.

``main`` is the live copy, ``cdc_beside_…`` one that is being made, and the tag ``cdc_previous`` the one before.
"""

from __future__ import annotations

import datetime as dt
import json
import uuid
from collections.abc import Callable
from typing import Any, Final

from cdc.model.errors import OperatorError
from spark_apply.model.identity import stamp
from spark_apply.model.store import Due
from spark_apply.model.target_table import TargetTable
from spark_apply.stores.iceberg.columns import names_of, refuse_used, replaced, with_beside, with_columns
from spark_apply.stores.iceberg.tables import IcebergTables
from spark_apply.stores.lake.properties import APPLIED, DUE, IDENTITY, PREVIOUS_IDENTITY, REPLACED_AT

MAIN = "main"
_PREVIOUS, _BESIDE = "cdc_previous", "cdc_beside_"
_REPLACED: Final = "cdc.previous-columns"
"""The table property that has the columns of the previous copy which the live one has otherwise."""


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
        had = loaded.properties()[IDENTITY]
        now = dt.datetime.now(dt.UTC).isoformat()
        properties = {DUE: due.to_json(), REPLACED_AT: now, IDENTITY: stamp(table, had), PREVIOUS_IDENTITY: had}
        schema = with_beside(there := schema_of(tables, loaded.schema()))
        properties[_REPLACED] = replaced(there, schema)
        tag = tables.java.SnapshotRef.tagBuilder(loaded.currentSnapshot().snapshotId()).build()

        def also(of: Any) -> Any:  # noqa: ANN401 - Java's TableMetadata.Builder
            return of.setProperties(properties).setRef(_PREVIOUS, tag).removeRef(branch)

        _exchange(tables, loaded, beside, schema, also)

    tables.commit(table, change)


def _exchange(
    tables: IcebergTables,
    loaded: Any,  # noqa: ANN401 - Java's org.apache.iceberg.Table
    live: Any,  # noqa: ANN401 - Java's SnapshotRef
    schema: str,
    also: Callable[[Any], Any],
) -> None:
    """Make a snapshot the live copy in one commit, with a schema and what `also` changes of the metadata.

    Iceberg's own changes of a schema never give a column an old number again, by which its files know it.
    """
    operations = loaded.operations()
    before = operations.current()
    change = tables.java.TableMetadata.buildFrom(before)
    if json.loads(schema) != json.loads(schema_of(tables, loaded.schema())):
        change = change.setCurrentSchema(tables.java.SchemaParser.fromJson(schema), before.lastColumnId())
    operations.commit(before, also(change.setBranchSnapshot(live.snapshotId(), MAIN)).build())


def schema_of(tables: IcebergTables, schema: Any) -> str:  # noqa: ANN401 - Java's org.apache.iceberg.Schema
    """Return a schema as JSON: all in one call of the JVM."""
    return str(tables.java.SchemaParser.toJson(schema))


def replaced_at(loaded: Any) -> dt.datetime | None:  # noqa: ANN401 - Java's org.apache.iceberg.Table
    """Return when the previous copy was replaced; None without one."""
    if loaded.refs().get(_PREVIOUS) is None:
        return None
    return dt.datetime.fromisoformat(loaded.properties()[REPLACED_AT])


def put_previous_back(tables: IcebergTables, table: TargetTable, due: Due) -> None:
    """Make the previous copy the live one."""

    def change(loaded: Any) -> None:  # noqa: ANN401 - Java's org.apache.iceberg.Table
        had, previous = loaded.properties(), loaded.refs()[_PREVIOUS]
        properties = {DUE: due.to_json(), IDENTITY: had.get(PREVIOUS_IDENTITY) or had[IDENTITY]}
        columns = had.get(_REPLACED) or "[]"
        refuse_used(tables, table, loaded, names_of(columns))
        schema = with_columns(schema_of(tables, loaded.schema()), columns)
        _exchange(tables, loaded, previous, schema, lambda of: of.setProperties(properties).removeRef(_PREVIOUS))

    tables.commit(table, change)
