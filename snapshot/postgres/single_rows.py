"""Reads single rows as they are now, for values that the log has left out."""

from __future__ import annotations

import io
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final, NamedTuple

import psycopg2.extensions

from cdc.model.change import UNCHANGED, Row, Table, Value, Xid
from cdc.model.errors import CdcError
from connectors.postgres import same_server, session
from connectors.postgres.catalog.catalog import Catalog
from connectors.postgres.copy_text import parse_row
from connectors.postgres.deadline import Deadline
from snapshot.postgres.copying import Relation, row_statement

_ANSWER_S: Final = 1.0
_PREPARE: Final = "SET statement_timeout = '900ms'; SET lock_timeout = '300ms'"
_TRIES: Final = 3
_VISIBLE_S: Final = 0.01
"""A commit is in the log a moment before others see it."""


class FoundRow(NamedTuple):
    """Is a row, and what has written it last."""

    row: Row
    writer: Value
    """A transaction id as the server prints it; None where it was not asked for."""


def single_row(
    connection: psycopg2.extensions.connection,
    publication: str,
    table: Table,
    key: Sequence[bytes],
    *,
    writer: bool = False,
) -> FoundRow | None:
    """Read the row with this key, UNCHANGED for a column that is gone or of another type; None: it is not there."""
    now = Catalog(connection, publication).now(table.schema, table.name)
    if now is None:
        return None
    there = tuple(c for c in table.columns if c.name in now.columns and now.columns[c.name].reads_as(c))
    names = [column.name for column in there]
    if not set(table.key) <= set(names):
        return None
    relation = Relation(0, partitioned=now.partitioned, encoding=session.key_encoding(connection))
    statement = row_statement(replace(table, columns=there), relation, tuple(key), writer=writer)
    found = io.BytesIO()
    Catalog(connection).copy(f"reading a row of table {table.qualified}", statement, found)
    if not found.getvalue():
        return None
    parsed = parse_row(found.getvalue(), len(names) + writer)
    values = dict(zip(names, parsed, strict=False))
    return FoundRow(
        tuple(values.get(column.name, UNCHANGED) for column in table.columns), parsed[-1] if writer else None
    )


class LastWrittenRows:
    """Reads rows of which a transaction must be the last writer, on a connection of its own.

    A row's `xmin` is the transaction that has made this version of it. If that is the one at hand, then no later one
    has changed the row, because each change makes a version of its own. A savepoint has an id of its own, of which the
    log does not tell whose it is: such a row is not known. Ids come again after four thousand million transactions;
    the slot keeps the server from getting so far ahead of it.
    """

    def __init__(self, params: Mapping[str, str], publication: str) -> None:
        self._params, self._publication = dict(params), publication
        self._connection: psycopg2.extensions.connection | None = None
        self._deadline: Deadline | None = None

    def row(self, table: Table, key: Sequence[bytes], xid: Xid) -> Row | None:
        """Return the row; None where it has another writer, and where the server does not tell at once."""
        try:
            for left in reversed(range(_TRIES)):
                found = self._ask(table, key)
                if found is None or found.writer == str(xid).encode():
                    return None if found is None else found.row
                if left:
                    time.sleep(_VISIBLE_S)
        except CdcError:  # a lock, a right that is missing, a lost connection: the topic tells
            self.close()
        return None

    def _ask(self, table: Table, key: Sequence[bytes]) -> FoundRow | None:
        if self._connection is None or self._deadline is None:
            self._connection = same_server.beside(self._params)
            self._deadline = Deadline(self._connection, _ANSWER_S)
            Catalog(self._connection).rows("preparing a session", _PREPARE)
        with self._deadline.answered():
            return single_row(self._connection, self._publication, table, key, writer=True)

    def close(self) -> None:
        """Close the connection; the next row opens another."""
        connection, self._connection, self._deadline = self._connection, None, None
        if connection is not None:
            with suppress(*session.DRIVER_ERRORS):
                connection.close()
