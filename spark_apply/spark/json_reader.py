"""Holds the options by which Spark's reader of JSON takes whatever a record of Kafka can hold."""

from __future__ import annotations

from typing import Any, Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses

_NO_LIMIT: Final = str(2**31 - 1)

CORRUPT: Final = "_cdc_corrupt"
"""A column of this name that is asked for holds what is no JSON of the type; it is null where all is."""

_OPTIONS: Final = {
    "columnNameOfCorruptRecord": CORRUPT,
    "maxStringLen": _NO_LIMIT,
    "maxNestingDepth": _NO_LIMIT,
    "maxNumLen": _NO_LIMIT,
}
"""Spark's own limits (20,000,000 characters, 1,000 levels, 1,000 digits) are not the data's: a row beyond them would
look like one that is no JSON. A column named like Spark's corrupt-record column would be null in every row."""


def read_json(text: Column | str, as_type: Any) -> Column:  # noqa: ANN401 - a DataType, or its name
    """Read JSON as values of `as_type`; null where it is no JSON."""
    return F.from_json(text, as_type, _OPTIONS)
