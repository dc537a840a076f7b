"""What is read is read by names, which somebody may take from a table, or a column, at any time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from psycopg2 import errors

from cdc.model.errors import ChangedError, OperatorError, RetryableError

_NAMELESS: Final = (errors.UndefinedTable, errors.UndefinedColumn, errors.InvalidSchemaName)


@contextmanager
def named(altered: ChangedError) -> Iterator[None]:
    """Raise a RetryableError as `altered` where a name means nothing any more: the next session finds what is there.

    It waits before, and not for ever: a name of an expression, as in a generated column, may mean nothing for good.
    """
    try:
        yield
    except OperatorError as exc:
        if isinstance(exc.__cause__, _NAMELESS):
            raise RetryableError(altered.message, hint=altered.hint) from exc
        raise
