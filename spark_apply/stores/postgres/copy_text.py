"""Writes batches as the text that COPY reads: Spark makes it, and no row becomes a Python object."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses

from spark_apply.events.typed import KEY, OFFSET, OP, PARTITION, POSITION, SOURCE_MS
from spark_apply.model.store import Batch, Refused
from spark_apply.stores.postgres.types import copy_instant, copy_line, copy_text

_SLICE = 250_000
"""The number of rows in memory at a time."""
_LINE = "_cdc_line"
UTF8: Final = "utf_8"
_NUL = re.compile(rb"\0")


class CopyText:
    """A file object of a batch's lines: its columns, then ``_cdc_position, _cdc_op, _cdc_partition, _cdc_offset``.

    In a history, ``_cdc_at`` follows ``_cdc_op``.
    """

    def __init__(self, batch: Batch, encoding: str = UTF8) -> None:
        """`encoding` is Python's name of the one that the database has."""
        self.refused: list[Refused] = []
        """The rows that were left out, because PostgreSQL cannot store a character, as U+0000."""
        self._encoding = encoding
        self._columns = [column.name for column in batch.table.columns]
        self._chunks = _chunks(batch)
        self._chunk = memoryview(b"")

    def readline(self, _size: int = -1, /) -> bytes:
        """Not called; the driver's types require it."""
        raise NotImplementedError

    def read(self, size: int = 1 << 20, /) -> bytes:
        """Return the next bytes, at most `size`; empty at the end."""
        while not self._chunk:
            found = next(self._chunks, None)
            if found is None:
                return b""
            self._chunk = found if self._has(found) else memoryview(b"".join(self._storable(bytes(found))))
        taken, self._chunk = bytes(self._chunk[:size]), self._chunk[size:]
        return taken

    def _has(self, text: memoryview) -> bool:
        """Whether the database has each character of a text."""
        if _NUL.search(text) is not None:
            return False
        if self._encoding != UTF8:
            try:
                str(text, UTF8).encode(self._encoding)
            except UnicodeEncodeError:
                return False
        return True

    def _storable(self, lines: bytes) -> Iterator[bytes]:
        for line in lines.removesuffix(b"\n").split(b"\n"):
            if self._has(memoryview(line)):
                yield line + b"\n"
                continue
            *cells, partition, offset = line.split(b"\t")
            named = [n for n, cell in zip(self._columns, cells, strict=False) if not self._has(memoryview(cell))]
            what = "the character U+0000" if b"\0" in line else "a character that its encoding does not have"
            reason = f"PostgreSQL cannot store {what}: {', '.join(named)}"
            self.refused.append(Refused(int(partition), int(offset), reason))


def _chunks(batch: Batch) -> Iterator[memoryview]:
    cells = [copy_text(column) for column in batch.table.columns]
    said = [F.col(POSITION), F.col(OP), *([copy_instant(F.col(SOURCE_MS))] if batch.table.history else [])]
    last = [*said, F.col(PARTITION).cast("string"), F.col(OFFSET).cast("string")]
    slices = -(-batch.keys // _SLICE)
    for number in range(slices):
        rows = batch.rows
        if slices > 1:
            rows = rows.where(F.pmod(F.xxhash64(KEY), F.lit(slices)) == number)
        arrow: Any = rows.select(copy_line([*cells, *last]).alias(_LINE)).toArrow()
        for chunk in arrow.column(_LINE).chunks:
            _, offsets, text = chunk.buffers()  # https://arrow.apache.org/docs/format/Columnar.html
            ends = memoryview(offsets).cast("i")
            if len(chunk):
                yield memoryview(text)[ends[chunk.offset] : ends[chunk.offset + len(chunk)]]
