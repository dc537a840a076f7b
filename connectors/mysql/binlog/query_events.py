"""Reads the events of statements: their text, and what of the session decides what it means. Pure."""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Final

from cdc.model.errors import ProtocolError
from connectors.mysql.binlog import charsets
from connectors.mysql.binlog.compressed import inflated
from connectors.mysql.binlog.cursor import Cursor
from connectors.mysql.binlog.events import Header, Query

INCIDENT: Final = "INCIDENT"
"""Stands for a statement of which the log says nothing; no server takes it for one."""
_QUERY: Final = Struct("<IIBHH")
_LOAD_SIZE: Final = 13
"""Bytes of LOAD DATA's own: file, where its name begins and ends in the statement, what is done with duplicates."""


def query(header: Header, body: Cursor) -> Query:
    """Read a statement."""
    return _of(header, body, lambda text: text)


def query_compressed(header: Header, body: Cursor) -> Query:
    """Read the same where MariaDB has compressed the text."""
    return _of(header, body, inflated)


def _of(header: Header, body: Cursor, plain: Callable[[bytes], bytes]) -> Query:
    thread_id, _seconds, schema_size, error_code, size = _QUERY.unpack(body.take(_QUERY.size))
    charset, ddl_xid, sql_mode = _variables(body.part(size))
    schema = body.text(schema_size)
    if body.uint(1):
        raise ProtocolError(body.at - 1, "a name without its end")
    text = plain(body.rest())
    return Query(header, thread_id, error_code, schema, charsets.lenient(charset, text), charset, ddl_xid, sql_mode)


_VARIABLE_SIZES: Final = {0: 4, 3: 4, 7: 2, 8: 2, 9: 8, 10: 4, 13: 3, 16: 1, 18: 2, 19: 1, 20: 1, 128: 3, 129: 8}
"""Bytes of the status variables that have a fixed size, by code: flags, SQL mode, increments, …"""
_SQL_MODE, _CHARSET, _DDL_XID, _DATABASES, _INVOKER, _TIME_ZONE, _CATALOG, _CATALOG_NZ = 1, 4, 17, 12, 11, 5, 2, 6
_TOO_MANY_DATABASES: Final = 254


def _variables(body: Cursor) -> tuple[str, int | None, int]:
    """Read character_set_client, the XID of DDL, and sql_mode. What lies behind an unknown code cannot be read.

    https://dev.mysql.com/doc/dev/mysql-server/latest/classmysql_1_1binlog_1_1event_1_1Query__event.html
    """
    charset, ddl_xid, sql_mode = "utf8mb4", None, 0
    while body.left:
        code = body.uint(1)
        if code == _CHARSET:
            charset = charsets.of_collation(body.uint(2))
            body.take(4)
        elif code == _DDL_XID:
            ddl_xid = body.uint(8)
        elif code == _SQL_MODE:
            sql_mode = body.uint(8)
        elif code in _VARIABLE_SIZES:
            body.take(_VARIABLE_SIZES[code])
        elif code in (_TIME_ZONE, _CATALOG_NZ):
            body.take(body.uint(1))
        elif code == _CATALOG:
            body.take(body.uint(1) + 1)
        elif code == _INVOKER:
            body.take(body.uint(1))
            body.take(body.uint(1))
        elif code == _DATABASES:
            count = body.uint(1)
            for _ in range(0 if count == _TOO_MANY_DATABASES else count):
                end = body.data.find(b"\0", body.at, body.end)
                body.take(end + 1 - body.at if end >= 0 else body.left + 1)
        else:
            break
    return charset, ddl_xid, sql_mode


def incident(header: Header, _body: Cursor) -> Query:
    """Read that the server could not log what a statement has changed: it may have written any table."""
    return Query(header, 0, 0, "", INCIDENT, "utf8mb4", None)


def execute_load_query(header: Header, body: Cursor) -> Query:
    """Read LOAD DATA as a statement: behind what every statement has stands where the name of the file does.

    https://dev.mysql.com/doc/dev/mysql-server/latest/classmysql_1_1binlog_1_1event_1_1Execute__load__query__event.html
    """
    head = body.take(_QUERY.size)
    body.take(_LOAD_SIZE)
    data = head + body.rest()
    return query(header, Cursor(data, 0, len(data)))
