"""Tells what an error of PostgreSQL is about: a row, or something larger; and finds by halves of which rows it is."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import psycopg2
import psycopg2.errors

from spark_apply.stores.postgres.session.server import Cursor, passes, unfound_in

_OF_ROWS: Final = ("09", "21", "22", "23", "27", "2F", "38", "39", "44", "54", "P0", "XX")
"""SQLSTATE classes by which a server refuses a row: its values, its size, a constraint, a trigger, a function.

See https://www.postgresql.org/docs/current/errcodes-appendix.html.
"""
TAKEN: Final = ("23505", "23P01")
"""A unique or an exclusion constraint finds the row's value in another row."""
FOR_OTHERS: Final = ("23001", "23503", *TAKEN)
"""SQLSTATEs of what may be right once other rows have come or gone: those, and a foreign key's
(the one of ``RESTRICT`` since PostgreSQL 18)."""

_AT_ONCE = 100
"""So many refused rows are put into quarantine together, which ends the search where it is full."""


def refuses_rows(exc: psycopg2.Error) -> bool:
    """Whether an error may be due to some of the rows alone."""
    if passes(exc):
        return False
    in_function = "function" in (exc.diag.context or "")  # a trigger's, which may fail for one row in any way
    return (exc.pgcode or "")[:2] in _OF_ROWS or in_function


def reason(exc: psycopg2.Error) -> str:
    """Say why a row was refused: condition, constraint and column by name, and no value."""
    code = exc.pgcode or ""
    try:
        condition = " ".join(re.findall("[A-Z][a-z]*", psycopg2.errors.lookup(code).__name__)).lower()
    except KeyError:
        condition = "an error of its own"
    named = {"constraint": exc.diag.constraint_name, "column": exc.diag.column_name}
    where = "".join(f", {kind} {name}" for kind, name in named.items() if name)
    unfound = unfound_in(exc)
    return f"PostgreSQL refuses the row: {condition} ({code}){where}{f': {unfound}' if unfound else ''}"


class UndoneError(Exception):
    """What was done since the savepoint is not kept."""


@contextmanager
def savepoint(cur: Cursor) -> Iterator[None]:
    """Undo the block alone if it fails."""
    cur.execute("SAVEPOINT cdc_careful")
    try:
        yield
    except (psycopg2.Error, UndoneError):
        cur.execute("ROLLBACK TO SAVEPOINT cdc_careful")
        cur.execute("RELEASE SAVEPOINT cdc_careful")
        raise
    cur.execute("RELEASE SAVEPOINT cdc_careful")


def bisect(
    cur: Cursor,
    rows: int,
    attempt: Callable[[int, int], None],
    refused: Callable[[Sequence[tuple[int, psycopg2.Error]]], None],
) -> None:
    """Do `attempt` for ranges of 1 to `rows`, ascending, that together leave out the numbers given to `refused`."""
    todo, found = [(1, rows)] if rows else [], list[tuple[int, psycopg2.Error]]()
    while todo:
        low, high = todo.pop()
        try:
            with savepoint(cur):
                attempt(low, high)
        except psycopg2.Error as exc:
            if not refuses_rows(exc):
                raise
            if low == high:
                found.append((low, exc))
            else:
                middle = (low + high) // 2
                todo += [(middle + 1, high), (low, middle)]
        if len(found) == _AT_ONCE:
            refused(found)
            found = []
    if found:
        refused(found)
