"""Keeps one row of each key in a batch, by the equality of the MERGE that follows. DataFrame -> DataFrame.

The topic tells keys apart by their text, and so does the fold of a batch. A store tells them apart by value, as the
source does: 0.0 and -0.0 are one key, and so are two texts of one decimal or of one instant. At the source such keys
cannot be there at once: a change from one to the other is a delete of the one text and an insert of the other.

The texts of one value can lie in different partitions, which are read each in its own time. So of the newest events of
all texts, the newest row is written if it is newer than the row that is there; else the row that is there goes if its
own text was deleted after it was written. A delete of another text says nothing of it: that text made room for it, or
a new snapshot has not found it any more. `tests/property/test_equal_keys.py` is a model of this rule.

Values that are equal and cannot be told apart once they are stored (decimals of one scale) have the newest event alone.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses
from pyspark.sql import types as T  # noqa: N812 - the same

from spark_apply.events.typed import OP, POSITION
from spark_apply.model.target_table import TargetTable
from spark_apply.model.types import ONE_TEXT, spark_type
from spark_apply.spark.names import quoted

GONE: Final = "_cdc_gone"
"""Of a key of which values can be equal and differ: the texts that were deleted, each with the position."""

_BY_TEXT = (T.StringType, T.IntegerType, T.LongType, T.BooleanType, T.DateType, T.TimestampNTZType)
"""Types of which each value has one text in the key of an event."""
_NEWEST, _TEXT = "_cdc_newest", "_cdc_text"


def several_texts(table: TargetTable) -> bool:
    """Whether keys with different texts can have the same value."""
    return any(not isinstance(kind, _BY_TEXT) for kind in _key_types(table).values())


def can_differ(table: TargetTable) -> bool:
    """Whether two keys can be equal and still differ once they are stored: those with floating point."""
    return bool(_unlike(table))


def one_of_each_key(rows: DataFrame, table: TargetTable) -> DataFrame:
    """Return `rows` (one of each text of a key) with one row of each key; with `GONE` if keys can differ."""
    keys = [quoted(name) for name in table.key]
    every = F.struct(*map(quoted, rows.columns))
    text = [_text(table).alias(_TEXT)] if can_differ(table) else []
    found = rows.groupBy(*keys, *text).agg(F.max_by(every, POSITION).alias(_NEWEST)).select(f"{_NEWEST}.*")
    if not text:
        return found
    rows_first = F.struct(F.col(OP) != "d", F.col(POSITION))
    gone = F.collect_list(F.when(F.col(OP) == "d", F.struct(_text(table), F.col(POSITION))))
    merged = found.groupBy(*keys).agg(F.max_by(every, rows_first).alias(_NEWEST), F.map_from_entries(gone).alias(GONE))
    return merged.select(f"{_NEWEST}.*", GONE)


def gone_since(table: TargetTable) -> str:
    """Return SQL: whether the event ``s`` says that the row ``t``, with its own text, was deleted since."""
    texts = ", ".join(f"CAST(t.{quoted(name)} AS STRING)" for name in _unlike(table))
    return f"coalesce(try_element_at(s.{GONE}, concat_ws('|', {texts})) > coalesce(t.{POSITION}, ''), false)"


def _text(table: TargetTable) -> Column:
    return F.concat_ws("|", *(F.col(quoted(name)).cast("string") for name in _unlike(table)))


def _unlike(table: TargetTable) -> list[str]:
    return [name for name, kind in _key_types(table).items() if _has_float(kind)]


def _key_types(table: TargetTable) -> dict[str, T.DataType]:
    of_key = [column for column in table.columns if column.name in table.key]
    return {c.name: T.LongType() if c.kind.name in ONE_TEXT else spark_type(c.kind) for c in of_key}


def _has_float(kind: T.DataType) -> bool:
    if isinstance(kind, T.ArrayType):
        return _has_float(kind.elementType)
    return isinstance(kind, T.FloatType | T.DoubleType)
