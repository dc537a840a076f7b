"""Writes batches as the text that COPY reads: Spark makes it, and no row becomes a Python object."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses

from spark_apply.events.typed import KEY, OFFSET, OP, PARTITION, POSITION, SOURCE_MS
from spark_apply.model.store import Batch, Refused
from spark_apply.stores.postgres.types import copy_instant, copy_line, copy_text

_SLICE = 250_000
"""The number of rows in memory at a time."""
_LINE = "_cdc_line"
_NUL = re.compile(rb"\0")


class CopyText:
    """A file object of a batch's lines: its columns, then ``_cdc_position, _cdc_op, _cdc_partition, _cdc_offset``.

    In a history, ``_cdc_at`` follows ``_cdc_op``.
    """

    def __init__(self, batch: Batch, takes: Callable[[bytes], bool] = lambda _text: True) -> None:
        """`takes`: whether the database has a place for a text. It is asked by `parts` alone."""
        self.refused: list[Refused] = []
        """The rows that were left out, because PostgreSQL cannot store a character, as U+0000."""
        self._takes = takes
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
            self._chunk = found if _NUL.search(found) is None else memoryview(self._storable(bytes(found), _no_nul))
        taken, self._chunk = bytes(self._chunk[:size]), self._chunk[size:]
        return taken

    def parts(self) -> Iterator[io.BytesIO]:
        """Yield all as files, each for a COPY of its own: between two of them the server can be asked."""
        for chunk in self._chunks:
            yield io.BytesIO(self._storable(bytes(chunk), lambda text: _no_nul(text) and self._takes(text)))

    def _storable(self, text: bytes, has: Callable[[bytes], bool]) -> bytes:
        """Return the lines of a text that are all taken; those that are not are found by halves."""
        return b"".join(line + b"\n" for line in self._taken(text.removesuffix(b"\n").split(b"\n"), has))

    def _taken(self, lines: Sequence[bytes], has: Callable[[bytes], bool]) -> Iterator[bytes]:
        middle = len(lines) // 2
        if has(b"\n".join(lines)):
            yield from lines
        elif middle:
            yield from self._taken(lines[:middle], has)
            yield from self._taken(lines[middle:], has)
        else:
            *cells, partition, offset = lines[0].split(b"\t")
            named = [name for name, cell in zip(self._columns, cells, strict=False) if not has(cell)]
            what = "a character that its encoding does not have" if _no_nul(lines[0]) else "the character U+0000"
            reason = f"PostgreSQL cannot store {what}: {', '.join(named)}"
            self.refused.append(Refused(int(partition), int(offset), reason))


def _no_nul(text: bytes) -> bool:
    return b"\0" not in text


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
