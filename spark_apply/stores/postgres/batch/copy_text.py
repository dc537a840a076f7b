"""Writes batches as the text that COPY reads: Spark makes it, and no row becomes a Python object."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Collection, Iterator
from typing import Any

from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses

from spark_apply.events.typed import KEY, OFFSET, OP, PARTITION, POSITION, SOURCE_MS
from spark_apply.model.store import Batch, Refused
from spark_apply.stores.postgres.values.types import copy_instant, copy_line, copy_text

_SLICE = 250_000
"""The number of rows in memory at a time."""
_LINE = "_cdc_line"
_NUL = "\0"
_HAS_NUL = re.compile(rb"\0")


class CopyText:
    """A file object of a batch's lines: its columns, then ``_cdc_position, _cdc_op, _cdc_partition, _cdc_offset``.

    In a history, ``_cdc_at`` follows ``_cdc_op``.
    """

    def __init__(self, batch: Batch, missing: Callable[[bytes], Collection[str]] = lambda _text: ()) -> None:
        """`missing`: the letters of a text that the database does not have. It is asked by `parts` alone."""
        self.refused: list[Refused] = []
        """The rows that were left out, because PostgreSQL cannot store a character, as U+0000."""
        self._missing = missing
        self._columns = [column.name for column in batch.table.columns]
        self._keeps_deletes = batch.table.history
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
            self._chunk = found if _HAS_NUL.search(found) is None else memoryview(self._storable(bytes(found), ()))
        taken, self._chunk = bytes(self._chunk[:size]), self._chunk[size:]
        return taken

    def parts(self) -> Iterator[io.BytesIO]:
        """Yield all as files, each for a COPY of its own: between two of them the server can be asked."""
        for chunk in self._chunks:
            yield io.BytesIO(self._storable(text := bytes(chunk), self._missing(text)))

    def _storable(self, text: bytes, missing: Collection[str]) -> bytes:
        """Return the lines of a text that are taken: without U+0000, and without letters that are missing."""
        if not missing and _HAS_NUL.search(text) is None:
            return text
        has = re.compile(f"[{re.escape(''.join(missing))}{_NUL}]").search
        lines = text.removesuffix(b"\n").split(b"\n")
        return b"".join(line + b"\n" for line in lines if not self._refuse(line, has))

    def _refuse(self, line: bytes, has: Callable[[str], object]) -> bool:
        """Note a line that is not taken; return whether it is one. A delete of such a key finds no row, and is done."""
        text = line.decode()
        if not has(text):
            return False
        *cells, partition, offset = text.split("\t")
        if cells[-1] == "d" and not self._keeps_deletes:
            return True
        named = [name for name, cell in zip(self._columns, cells, strict=False) if has(cell)]
        what = "the character U+0000" if _NUL in text else "a character that its encoding does not have"
        reason = f"PostgreSQL cannot store {what}: {', '.join(named)}"
        self.refused.append(Refused(int(partition), int(offset), reason))
        return True


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
