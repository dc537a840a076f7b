"""What a copy is known by: a name of its own, and the shape of its rows, written into it when it is made.

A copy cannot change its shape in place. Its old rows lack what the new shape adds, and events that are read again
change nothing in them: they are no newer than what is there. So another shape is made beside it, by `cdc rebuild`.
"""

from __future__ import annotations

import uuid

from cdc.model.errors import OperatorError
from spark_apply.model.target_table import TargetTable


def stamp(table: TargetTable, identity: str | None = None) -> str:
    """What to write into a new copy of `table`: a new identity, or, beside a live copy, that one's (or its stamp)."""
    name = (identity or str(uuid.uuid4())).partition("/")[0]
    mark = table.shaping.fingerprint if table.shaping else ""
    return f"{name}/{mark}" if mark else name


def identity_of(stamped: str, table: TargetTable, copy: str) -> str:
    """The identity of the copy with this stamp; `copy` is what to call it. Raises OperatorError for another shape."""
    if stamped != stamp(table, stamped):
        raise OperatorError(
            f"{copy} holds {table.qualified} in another shape than the job’s file asks for",
            hint=f"cdc rebuild APPLY.yaml --table {table.qualified}  # from the topics, beside it, then swapped in; "
            "or undo the change of columns, rename, where or computed",
        )
    return stamped.partition("/")[0]
