"""Holds the options by which Spark's reader of JSON takes whatever a record of Kafka can hold."""

from __future__ import annotations

from typing import Any, Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses

_NO_LIMIT: Final = 2**31 - 1

CORRUPT: Final = "_cdc_corrupt"
"""A column of this name that is asked for holds what is no JSON of the type; it is null where all is."""

_OPTIONS: Final = {
    "columnNameOfCorruptRecord": CORRUPT,
    "maxStringLen": str(_NO_LIMIT),
    "maxNumLen": str(_NO_LIMIT),
}
"""Spark's own limits (20,000,000 characters, 1,000 levels, 1,000 digits) are not the data's: a row beyond them would
look like one that is no JSON. A column named like Spark's corrupt-record column would be null in every row."""


LEVELS_OF_VARIANTS: Final = 250
"""How deep JSON may be nested that is read as variants: Spark makes these by calls for each level, some 850 bytes of a
thread's stack a level, and a thread has a megabyte. Where it is too small, the JVM ends."""


def read_json(text: Column | str, as_type: Any, *, levels: int = _NO_LIMIT) -> Column:  # noqa: ANN401 - a DataType, or its name
    """Read JSON as values of `as_type`; null where it is no JSON, or nested deeper than `levels`."""
    return F.from_json(text, as_type, {**_OPTIONS, "maxNestingDepth": str(levels)})
