"""Reads which rows an event changed that has parts of JSON documents in it: their keys, not the documents. Pure.

A row of the event is the old image, as in every update, and then:

    packed options · if bit 0 is set: a bit for each JSON column of the table · the new image

A document or the part of it has its size in front all the same, so that it can be passed over.
https://dev.mysql.com/doc/dev/mysql-server/latest/classmysql_1_1binlog_1_1event_1_1Rows__event.html
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from cdc.model.errors import ProtocolError
from connectors.mysql.binlog import table_map
from connectors.mysql.binlog.cursor import Cursor
from connectors.mysql.binlog.events import PartialUpdateRows, TableColumn
from connectors.mysql.rows.image_codegen import generated
from connectors.mysql.rows.row_images import Images

_PARTIAL: Final = 1


def images(event: PartialUpdateRows, columns: Sequence[TableColumn]) -> list[Images]:
    """Return the old and the new image of each row, with bytes in place of documents.

    Raises ProtocolError on bytes that are no such rows.
    """
    plain = tuple(
        column._replace(type=table_map.GEOMETRY) if column.type == table_map.JSON else column for column in columns
    )
    if event.column_count != len(plain) or not any(event.before) or not any(event.after):
        raise ProtocolError(0, "parts of rows with another number of columns than their table map")
    old, new = (generated(plain, _flags(bits, len(plain))) for bits in (event.before, event.after))
    documents = sum(column.type == table_map.JSON for column in columns)
    found: list[Images] = []
    body, at = event.body, 0
    try:
        while at < len(body):
            before, at = old(body, at)
            options = Cursor(body, at, len(body))
            if options.packed() & _PARTIAL:
                options.take((documents + 7) // 8)
            after, at = new(body, options.at)
            found.append((before, after))
    except (IndexError, struct.error, OverflowError) as exc:
        raise ProtocolError(len(body), "a part of a row that ends early") from exc
    return found


def _flags(bits: bytes, columns: int) -> tuple[bool, ...]:
    return tuple(bool(bits[i >> 3] >> (i & 7) & 1) for i in range(columns))
