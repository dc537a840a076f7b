"""Identifies a copy by a name of its own and the shape of its rows, written into it when it is created.

A copy cannot change its shape in place: the new columns would be missing in its old rows, and reading the events again
would not fill them, because those events are no newer than the rows. `cdc rebuild` makes the other shape beside it.
"""

from __future__ import annotations

import uuid

from cdc.model.errors import OperatorError
from spark_apply.model.target_table import TargetTable


def stamp(table: TargetTable, identity: str | None = None) -> str:
    """Return what to write into a new copy of `table`: a new identity, or that of the live copy (or its stamp)."""
    name = (identity or str(uuid.uuid4())).partition("/")[0]
    mark = table.projection.fingerprint if table.projection else ""
    return f"{name}/{mark}" if mark else name


def identity_of(stamped: str, table: TargetTable, copy: str) -> str:
    """Return the identity in a stamp. Raises OperatorError for another shape; `copy` is a name for the message."""
    if stamped != stamp(table, stamped):
        raise OperatorError(
            f"{copy} holds {table.qualified} in another shape than the job’s file asks for",
            hint=f"cdc rebuild APPLY.yaml --table {table.qualified}  # from the topics, beside it, then swapped in; "
            "or undo the change of columns, rename, where or computed",
        )
    return stamped.partition("/")[0]
