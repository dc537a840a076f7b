"""Adds a batch's events to those that wait; what PostgreSQL cannot keep goes into quarantine alone.

All lines are tried at once. Where one of them is refused (a text with U+0000, a date that is too far away, a row wider
than a page), they are halved behind savepoints until it is alone. A delete is tried without its row, of which the key
is all that is needed; if that is refused, too, there is nothing here that it could delete.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import Final

import psycopg2
import psycopg2.errors
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses

from spark_apply.events.typed import KEY, OFFSET, OP, PARTITION, POSITION, SOURCE_MS
from spark_apply.model.store import Batch, Refused
from spark_apply.spark.names import quoted as spark_quoted
from spark_apply.stores.postgres.batch.refused_rows import reason
from spark_apply.stores.postgres.values.types import copy_line, copy_text, escaped
from spark_apply.views.database.state import DatabaseState
from spark_apply.views.database.values import kept
from spark_apply.views.model.kept_columns import kept_columns
from spark_apply.views.model.values import quoted

_OF_ROWS: Final = (psycopg2.DataError, psycopg2.errors.ProgramLimitExceeded)
"""A value that the server does not take, or a row that is wider than its pages."""
_SLICE: Final = 250_000
"""The number of rows in memory at a time."""
_LINE: Final = "_cdc_line"
_OURS: Final = (KEY, POSITION, OP, SOURCE_MS)
_NOTHING: Final = "\\N"


def add(state: DatabaseState, batch: Batch, rows: DataFrame, tables: Sequence[str]) -> list[Refused]:
    """Add a batch's `rows` to the events that wait in `tables`; return those that PostgreSQL cannot keep."""
    names = [column for column, _ in kept(kept_columns(batch.table))]
    listed = ", ".join(map(quoted, (*_OURS, *names)))
    refused: list[Refused] = []
    for lines, places in _slices(batch, rows, names):
        wrong: dict[int, str] = {}
        if "\0" in "".join(lines) or not _is_copied(state, f"{tables[0]} ({listed})", lines):
            lines = [_of_key(line, names, batch.table.key) for line in lines]  # noqa: PLW2901 - with what is needed
            wrong = _copied_but(state, f"{tables[0]} ({listed})", lines, names)
        right = [line for number, line in enumerate(lines) if number not in wrong]
        for table in tables[1:]:
            _copy(state, f"{table} ({listed})", right)
        refused += [Refused(*places[number], why) for number, why in wrong.items() if not _is_delete(lines[number])]
    return refused


def _slices(batch: Batch, rows: DataFrame, names: Sequence[str]) -> Iterator[tuple[list[str], list[tuple[int, int]]]]:
    """Yield lines of COPY's text format, and where each event is in its topic."""
    cells = [copy_text(column) for column in batch.table.columns if column.name in names]
    first = [escaped(F.col(KEY)), F.col(POSITION), F.col(OP), F.col(SOURCE_MS).cast("string")]
    lines = rows.select(spark_quoted(KEY), copy_line([*first, *cells]).alias(_LINE), PARTITION, OFFSET)
    slices = -(-batch.keys // _SLICE)
    for number in range(slices):
        some = lines if slices == 1 else lines.where(F.pmod(F.xxhash64(KEY), F.lit(slices)) == number)
        found = some.select(_LINE, PARTITION, OFFSET).toArrow()
        line, *place = (found.column(name).to_pylist() for name in (_LINE, PARTITION, OFFSET))
        yield line, list(zip(*place, strict=True))


def _copy(state: DatabaseState, into: str, lines: Sequence[str]) -> None:
    state.copy(into, io.BytesIO("".join(lines).encode()))


def _is_copied(state: DatabaseState, into: str, lines: Sequence[str]) -> bool:
    """Copy lines; return whether all of them were taken, else none was."""
    try:
        with state.savepoint():
            _copy(state, into, lines)
    except _OF_ROWS:
        return False
    return True


def _copied_but(state: DatabaseState, into: str, lines: Sequence[str], names: Sequence[str]) -> dict[int, str]:
    """Copy lines but those that are refused; return their numbers, and why."""
    wrong = {number: _of_nul(line, names) for number, line in enumerate(lines) if "\0" in line}
    left = [[number for number in range(len(lines)) if number not in wrong]]
    while left:
        numbers = left.pop()
        try:
            with state.savepoint():
                _copy(state, into, [lines[number] for number in numbers])
        except _OF_ROWS as exc:
            if len(numbers) == 1:
                wrong[numbers[0]] = reason(exc)
            else:
                middle = len(numbers) // 2
                left += [numbers[middle:], numbers[:middle]]
    return wrong


def _of_nul(line: str, names: Sequence[str]) -> str:
    cells = line.split("\t")[len(_OURS) :]
    found = [name for name, cell in zip(names, cells, strict=True) if "\0" in cell]
    return f"PostgreSQL cannot store the character U+0000: {', '.join(found)}"


def _is_delete(line: str) -> bool:
    return line.split("\t")[_OURS.index(OP)] == "d"


def _of_key(line: str, names: Sequence[str], key: Sequence[str]) -> str:
    """Return a delete without what it does not need."""
    if not _is_delete(line):
        return line
    cells = line.removesuffix("\n").split("\t")
    own = [cell if name in key else _NOTHING for name, cell in zip(names, cells[len(_OURS) :], strict=True)]
    return "\t".join([*cells[: len(_OURS)], *own]) + "\n"
