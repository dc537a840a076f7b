"""Identifies a copy by a name of its own and the shape of its rows, written into it when it is created.

A copy cannot change its shape in place: the new columns would be missing in its old rows, and reading the events again
would not fill them, because those events are no newer than the rows. Nor can it change its key: some of its rows would
stay for good, and new ones would take the place of others. `cdc rebuild` makes the other shape beside it.
"""

from __future__ import annotations

import hashlib
import json
import uuid

from cdc.model.errors import OperatorError
from spark_apply.model.target_table import TargetTable, other_target, rebuilt

_KEY = "#"


def stamp(table: TargetTable, identity: str | None = None) -> str:
    """Return what to write into a new copy of `table`: a new identity, or that of the live copy (or its stamp).

    After it stands the shape, and the key if it is another than the source's table had at first.
    """
    name = _identity(identity or str(uuid.uuid4()))
    mark = table.projection.fingerprint if table.projection else ""
    return f"{name}/{mark}{_key(table)}" if mark else f"{name}{_key(table)}"


def identity_of(stamped: str, table: TargetTable, copy: str) -> str:
    """Return the identity in a stamp. Raises OperatorError for another shape or key; `copy` names it there."""
    if stamped == stamp(table, stamped):
        return _identity(stamped)
    if not has_key(stamped, table):
        raise OperatorError(
            f"{copy} has the rows of {table.qualified} under another key than the source’s table has now "
            f"({table.keys[-1].among(table.keys) if table.keys else ', '.join(table.source_key)})",
            hint=other_target(table) if table.history else rebuilt(table),
        )
    raise OperatorError(
        f"{copy} holds {table.qualified} in another shape than the job’s file asks for",
        hint=f"{rebuilt(table)}; or undo the change of columns, rename, where or computed",
    )


def has_key(stamped: str, table: TargetTable) -> bool:
    """Whether the rows of a copy with this stamp are under the key that the source's table has now."""
    return stamped.partition(_KEY)[1:] == _key(table).partition(_KEY)[1:]


def _identity(stamped: str) -> str:
    return stamped.partition(_KEY)[0].partition("/")[0]


def _key(table: TargetTable) -> str:
    """Return the mark of a key that is not the table's first: copies of earlier releases follow no other."""
    if not table.keys or table.keys[-1] == table.keys[0]:
        return ""
    key = table.keys[-1]
    is_first = key == next(one for one in table.keys if one.names == key.names)
    told = json.dumps(key.names if is_first else key)  # names alone: earlier releases told only these apart
    return _KEY + hashlib.sha256(told.encode()).hexdigest()[:16]
