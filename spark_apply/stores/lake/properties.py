"""Names the properties that we keep in a lake table, and reads what they say."""

from __future__ import annotations

from typing import Any

from cdc.model.errors import OperatorError, RetryableError
from spark_apply.model.completeness import Mark
from spark_apply.model.identity import identity_of
from spark_apply.model.kept_mark import kept_mark
from spark_apply.model.store import Due
from spark_apply.model.target_table import TargetTable, other_target

IDENTITY, APPLIED, MARK = "cdc.identity", "cdc.position", "cdc.mark"
PREVIOUS_IDENTITY = "cdc.previous-identity"
DUE, CAUGHT_UP, REPLACED_AT = "cdc.due", "cdc.caught-up", "cdc.replaced-at"
"""The keys of the table properties that we keep."""


def own_identity(stamped: str | None, table: TargetTable, copy: str) -> str:
    """Return the identity of a copy. Raises OperatorError for a table that is not ours; `copy` names it."""
    return identity_of(required_stamp(stamped, table, copy), table, copy)


def required_stamp(stamped: str | None, table: TargetTable, copy: str) -> str:
    """Return the stamp of a copy, whatever its shape. Raises OperatorError for a table that is not ours."""
    if stamped is None:
        msg = f"{copy} is there already and was not made by this toolkit"
        raise OperatorError(msg, hint=f"give the store another path; or {other_target(table)}")
    return stamped


def due_in(properties: Any) -> Due | None:  # noqa: ANN401 - a dict, or Java's Map
    """Return the catch-up that a table's properties say is due."""
    found = properties.get(DUE)
    due = None if found is None else Due.from_json(found)
    return None if due is None or properties.get(CAUGHT_UP) == due.id else due


def mark_in(properties: Any, copy: str) -> str | None:  # noqa: ANN401 - a dict, or Java's Map
    """Return the mark as it was written; None while a catch-up is due, or if it is damaged. `copy` names the table."""
    found = properties.get(MARK)
    if found is None or due_in(properties) is not None or kept_mark(str(found), copy) is None:
        return None
    return str(found)


def kept_in(properties: Any, copy: str) -> Mark | None:  # noqa: ANN401 - a dict, or Java's Map
    """Return the mark that `mark_in` finds."""
    text = mark_in(properties, copy)
    return None if text is None else Mark.from_json(text)


def gone(what: str) -> RetryableError:
    """Return the error of a table that another hand has removed, renamed or made again while a job follows it."""
    msg = f"{what} was removed, renamed or made again by another hand while the job runs"
    return RetryableError(msg, hint="nothing has to be done: the job makes it again, and fills it from the topics")
