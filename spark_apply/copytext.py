"""Batches as the text that COPY reads: made by Spark, handed on as bytes, no row becomes a Python object."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses

from cdc.errors import OperatorError
from spark_apply.pgtypes import copy_instant, copy_line, copy_text
from spark_apply.store import Batch
from spark_apply.typed import KEY, OFFSET, OP, PARTITION, POSITION, SOURCE_MS

_SLICE = 250_000
"""Rows that are in memory here at a time."""
_LINE = "_cdc_line"


class CopyText:
    """A file of a batch's lines: its table's columns, then ``_cdc_position, _cdc_op, _cdc_partition, _cdc_offset``.

    Of a history, ``_cdc_at`` stands behind ``_cdc_op``.
    """

    def __init__(self, batch: Batch) -> None:
        self._table = batch.table.qualified
        self._chunks = _chunks(batch)
        self._chunk = memoryview(b"")

    def readline(self, _size: int = -1, /) -> bytes:
        """Never called; the driver's types ask for it."""
        raise NotImplementedError

    def read(self, size: int = 1 << 20, /) -> bytes:
        """The next bytes, at most `size`; none at the end. Raises OperatorError for U+0000 in it."""
        while not self._chunk:
            found = next(self._chunks, None)
            if found is None:
                return b""
            self._chunk = found
        taken, self._chunk = bytes(self._chunk[:size]), self._chunk[size:]
        if b"\0" in taken:
            msg = f"{self._table}: a text has the character U+0000, which PostgreSQL cannot store"
            raise OperatorError(msg, hint="leave its column out of this store, or mend the row at the source")
        return taken


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
