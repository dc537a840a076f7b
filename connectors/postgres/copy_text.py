r"""A parser of COPY's text format. Pure.

Columns apart by tabs, rows by newlines, NULL is ``\N``, and a backslash before b, f, n, r, t, v or itself:
https://www.postgresql.org/docs/current/sql-copy.html.
"""

from __future__ import annotations

import re
from typing import Final

from cdc.encode.built import built
from cdc.model.change import Row
from cdc.model.errors import ProtocolError

_compiled: Final = built("connectors.postgres.pgoutput.compiled")
_ESCAPED: Final = re.compile(rb"\\(.)", re.DOTALL)
_CHARACTERS: Final = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v", b"\\": b"\\"}


def parse_row(line: bytes, columns: int) -> Row:
    """Parse one line of COPY's text format, newline included. Raises ProtocolError."""
    if _compiled is not None:
        row: Row | None = _compiled.copy_row(line, columns)
        if row is not None:
            return row
    return parse_row_plainly(line, columns)


def parse_row_plainly(line: bytes, columns: int) -> Row:
    """Parse as `parse_row` does, without compiled code."""
    fields = line[:-1].split(b"\t")
    if len(fields) != columns or not line.endswith(b"\n"):
        raise ProtocolError(0, f"a COPY row of {len(fields)} columns where {columns} belong")
    if b"\\" not in line:
        return tuple(fields)
    return tuple(None if field == b"\\N" else _unescape(field) if b"\\" in field else field for field in fields)


def _unescape(field: bytes) -> bytes:
    return _ESCAPED.sub(lambda match: _CHARACTERS.get(match.group(1), match.group(1)), field)
