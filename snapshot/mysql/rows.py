"""Reads the rows of a statement as they come, as bytes: by compiled code from the connection's own buffer.

What the server makes a text of (a JSON document, a generated column) and finds longer than `max_allowed_packet` it
sends as an empty text or as NULL, with a warning and without an error. No such row is read.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import pymysql
import pymysql.cursors

from cdc.encode.built import built
from cdc.model.change import Row
from cdc.model.errors import OperatorError, RetryableError
from connectors.mysql import session

_FETCHED: Final = 500
_CHANGED: Final = frozenset({1054, 1146, 1049, 1412, 1305})
"""Errors: unknown column, no such table or database, definition changed since the view was taken."""
_compiled: Final = built("connectors.mysql.binlog.compiled")
_CUT: Final = "1301"
"""The warning's number for a result that is longer than max_allowed_packet."""
_LOST: Final = 2013
"""The client library's number of a lost connection."""


@contextmanager
def looked_at_again(doing: str) -> Iterator[None]:
    """Let a table that has lost its name, or a column, since it was looked at be looked at again."""
    try:
        yield
    except (OperatorError, RetryableError) as exc:
        if session.code_of_exception(exc.__cause__) in _CHANGED:
            raise RetryableError(f"{doing}: it was altered or dropped meanwhile", hint=session.GO_ON) from exc
        raise


def all_rows(connection: session.Connection, doing: str, statement: str, documents: Sequence[int]) -> list[Row]:
    """Read the rows, as bytes; see `stream_rows`."""
    return [row for rows, _ in stream_rows(connection, doing, statement, documents) for row in rows]


def stream_rows(
    connection: session.Connection, doing: str, statement: str, documents: Sequence[int] = ()
) -> Iterator[tuple[Sequence[Row], int]]:
    """Give the rows as they come, some at a time, each with about how many bytes they have.

    `documents` are the places of JSON columns, whose text is never empty. Raises OperatorError, RetryableError.
    """
    for rows, size in _stream_rows(connection, doing, statement):
        if documents and any(row[at] == b"" for row in rows for at in documents):
            raise _cut(doing, "a JSON document")
        yield rows, size
    result = connection._result  # noqa: SLF001 - the library has no other way to ask
    if result is not None and result.warning_count:
        for _, number, words in session.texts(connection, doing, "SHOW WARNINGS"):
            if number == _CUT:
                raise _cut(doing, words)


def _cut(doing: str, what: str) -> OperatorError:
    return OperatorError(
        f"{doing}: a value is longer than the server's max_allowed_packet, and would be read as nothing: {what}",
        hint="SET GLOBAL max_allowed_packet = 1073741824",
    )


def _stream_rows(connection: session.Connection, doing: str, statement: str) -> Iterator[tuple[Sequence[Row], int]]:
    with looked_at_again(doing):
        try:
            cursor = connection.cursor(pymysql.cursors.SSCursor)
            try:
                cursor.execute(statement)
                yield from _rows_at_once(connection)
                while rows := cursor.fetchmany(_FETCHED):
                    for row in rows:
                        yield [row], _size(row)
            except BaseException:
                session.leave(connection)
                raise
            cursor.close()
        except session.DRIVER_ERRORS as exc:
            raise session.translate(exc, doing) from exc


def _size(row: Row) -> int:
    return sum(len(value) for value in row if isinstance(value, bytes))


def _rows_at_once(connection: session.Connection) -> Iterator[tuple[Sequence[Row], int]]:
    """Give rows from the connection's buffer by compiled code; the library reads rows that are there only in part.

    Without compiled code it gives nothing.
    """
    result, stream = connection._result, connection._rfile  # noqa: SLF001 - where the library reads
    if _compiled is None or result is None or any(convert for of in result.converters for convert in of):
        return
    while result.unbuffered_active:
        number = connection._next_seq_id  # noqa: SLF001
        taken, number, rows = _compiled.text_rows(_seen(connection, stream), result.field_count, number)
        if taken:
            stream.read(taken)  # what was seen: nothing is waited for
            connection._next_seq_id = number  # noqa: SLF001
            yield rows, taken
        elif (row := result._read_rowdata_packet_unbuffered()) is not None:  # noqa: SLF001
            yield [row], _size(row)


def _seen(connection: session.Connection, stream: io.BufferedReader) -> bytes:
    try:
        return stream.peek()
    except (OSError, ValueError) as exc:  # ValueError where another thread has closed it
        connection._force_close()  # noqa: SLF001 - as the library does
        raise pymysql.OperationalError(_LOST, f"Lost connection to MySQL server during query ({exc})") from exc
