"""Decodes row images: each value becomes the server's own text, as a SELECT over utf8mb4 would print it. Pure.

`Reader` has a function made for one table (`image_codegen`), of how each of its columns is read (`column_forms`).
Layout of an image:

    null bits, one for each column that the image has, rounded up to bytes · values of the columns not null

| type | bytes |
|---|---|
| TINYINT … BIGINT | 1, 2, 3, 4, 8, little-endian |
| FLOAT, DOUBLE | 4, 8, little-endian |
| DECIMAL | big-endian groups of nine digits, see `server_text.decimal` |
| BIT | big-endian |
| DATE, YEAR | 3 (day 5 bits, month 4, year), 1 (since 1900; 0 is 0000) |
| TIME, DATETIME, TIMESTAMP | 3, 5, 4, big-endian, and up to 3 of fraction, see `texts` |
| CHAR, BINARY, VARCHAR, VARBINARY | size in 1 byte, 2 if the longest is over 255 · bytes without padding |
| TEXT, BLOB, JSON, GEOMETRY, VECTOR | size in 1 to 4 bytes · bytes |
| ENUM, SET | number of the label from 1, 0 for ''; a bit for each label |

https://dev.mysql.com/doc/dev/mysql-server/latest/classmysql_1_1binlog_1_1event_1_1Rows__event.html

What a text is where SELECT alone does not say it (`values.select_expression` gives the same):
FLOAT and DOUBLE are the number as a DOUBLE, BIT is a decimal number, no number is padded by ZEROFILL, BINARY(n) has its
zero bytes, TIMESTAMP is in UTC, GEOMETRY is SRID and WKB, VECTOR its float32s.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import Final, TypeAlias

from cdc.model.change import Change, Row, Table
from cdc.model.errors import ProtocolError
from connectors.mysql.binlog.events import Rows, TableMap
from connectors.mysql.rows.column_forms import form_of
from connectors.mysql.rows.compressed_values import ROOM
from connectors.mysql.rows.image_codegen import Read, compiled, read_image

Images: TypeAlias = tuple[Row | None, Row | None]
"""Are the row before and after; None where the event has no such image."""


class Reader:
    """Decodes Rows events of `table`, row by row. Make one for each TableMap whose columns differ.

    Raises OperatorError if the log does not tell what is needed: signs, character sets, labels. Its methods raise
    ProtocolError on bytes that are no rows of this table, ValueError on text that is not valid in its character set.
    """

    def __init__(self, table: TableMap) -> None:
        self._columns = table.columns
        self._reads: dict[bytes, Read] = {}
        for column in self._columns:
            form_of(column)  # refuse now, not at the first row

    def __call__(self, rows: Rows) -> list[Images]:
        """Return all images of one event."""
        before, after = self._of(rows)
        ROOM.begin(rows.body)
        try:
            return _images(before, after, rows.body)
        except (IndexError, struct.error, OverflowError) as exc:
            raise ProtocolError(len(rows.body), "a row image that ends early") from exc

    def own(self, images: Iterable[Images]) -> Iterable[Images]:
        """Return images as they are: see `own_columns`."""
        return images

    def whole(self) -> Read:
        """Return what reads one image of all columns."""
        bits = (1 << len(self._columns)) - 1
        return self._image(bits.to_bytes((len(self._columns) + 7) // 8, "little"))

    def changes(self, rows: Rows, table: Table, offset: int) -> Iterable[Change]:
        """Return the images as changes of `table`; `offset` is where the event begins."""
        if compiled is None:
            made = enumerate(self(rows))
            return (tuple.__new__(Change, (rows.op, table, old, new, (offset, n))) for n, (old, new) in made)
        before, after = self._of(rows)
        ROOM.begin(rows.body)
        try:
            found: list[Change] = compiled.changes(rows.op, table, before, after, rows.body, offset)
        except (IndexError, struct.error, OverflowError) as exc:
            raise ProtocolError(len(rows.body), "a row image that ends early") from exc
        return found

    def _of(self, rows: Rows) -> tuple[Read | None, Read | None]:
        if rows.column_count != len(self._columns):
            raise ProtocolError(0, f"rows of {rows.column_count} columns of a table of {len(self._columns)}")
        return self._image(rows.before) if rows.before else None, self._image(rows.after) if rows.after else None

    def _image(self, present: bytes) -> Read:
        read = self._reads.get(present)
        if read is None:
            if len(present) != (len(self._columns) + 7) // 8:
                raise ProtocolError(0, "rows with another number of columns than their table map")
            if not any(present):
                raise ProtocolError(0, "rows without a column")
            flags = tuple(bool(present[i >> 3] >> (i & 7) & 1) for i in range(len(self._columns)))
            read = self._reads[present] = read_image(self._columns, flags)
        return read


def generated_images(before: Read | None, after: Read | None, body: bytes) -> list[Images]:
    """Read images by functions that `generated` has made."""
    end, at = len(body), 0
    images: list[Images] = []
    append = images.append
    if before is None and after is not None:
        while at < end:
            new, at = after(body, at)
            append((None, new))
    elif after is None and before is not None:
        while at < end:
            old, at = before(body, at)
            append((old, None))
    elif before is not None and after is not None:
        while at < end:
            old, at = before(body, at)
            new, at = after(body, at)
            append((old, new))
    if at != end:
        raise IndexError
    return images


_images: Final[Callable[[Read | None, Read | None, bytes], list[Images]]] = (
    generated_images if compiled is None else compiled.images
)
