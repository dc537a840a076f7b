"""Makes the parts of an event that are the same in all events of a table: its `source` block. Pure.

They are parts of a format (`%`) for the plain frame, and a `Shape` for the compiled one.
"""

from __future__ import annotations

from collections import Counter
from typing import Protocol

import orjson

from cdc import __version__
from cdc.encode.envelope.row_codegen import compiled


class Counting(Protocol):
    """Is an encoder: it counts the events that were made with it, by op."""

    made: Counter[bytes]
    shape: object


def source_block(connector: str, prefix: str, database: str, schema: str, table: str) -> tuple[bytes, bytes]:
    """Make the parts of the source block that are the same in all events of a table, as parts of a format."""
    source = {"version": __version__, "connector": connector, "name": prefix}
    where = {"db": database, "schema": schema, "table": table} if database else {"db": schema, "table": table}
    return (
        literally(b'"source":' + orjson.dumps(source)[:-1] + b',"ts_ms":'),
        literally(b"," + orjson.dumps(where)[1:-1] + b","),
    )


def take_counts(encoder: Counting) -> dict[str, int]:
    """Sum up what compiled code and the plain one have counted, and begin again."""
    found = {op.decode(): many for op, many in encoder.made.items()}
    encoder.made.clear()
    if compiled is not None:
        for op, many in zip("rcdu", encoder.shape.taken(), strict=True):  # type: ignore[attr-defined]
            if many:
                found[op] = found.get(op, 0) + many
    return found


def compiled_shape(head: bytes, where: bytes, tail: bytes, counted: str, name: str) -> object:
    """Make the same parts for `compiled.Frame`, which needs no formats; it numbers those `counted` alike together."""
    return compiled and compiled.Shape(*(part.replace(b"%%", b"%") for part in (head, where, tail)), counted, name)


def literally(part: bytes) -> bytes:
    """Escape a part of a format."""
    return part.replace(b"%", b"%%")
