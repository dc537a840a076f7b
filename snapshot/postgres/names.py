"""What is read is read by names, which somebody may take from a table, or a column, at any time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from psycopg2 import errors

from cdc.model.errors import ChangedError, OperatorError

_NAMELESS: Final = (errors.UndefinedTable, errors.UndefinedColumn, errors.InvalidSchemaName)


@contextmanager
def named(altered: ChangedError) -> Iterator[None]:
    """Raise `altered` where a name means nothing any more: the next session finds the table as it is, or gone."""
    try:
        yield
    except OperatorError as exc:
        if isinstance(exc.__cause__, _NAMELESS):
            raise altered from exc
        raise
