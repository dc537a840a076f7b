"""Makes the sink, where its packages are installed."""

from __future__ import annotations

from typing import cast

from cdc.config import registry
from cdc.files.topicless_sink import file_at
from cdc.library.packages import require
from cdc.model.interfaces import Sink


def open_sink(path: str, connector: str) -> Sink:
    """Make the sink, for the registry. Opens nothing yet.

    Raises ConfigError if a package is missing, or what is there is no file.
    """
    require("duckdb")
    require("pyarrow")
    return cast("Sink", registry.part("sinks.duckdb.sink:DuckdbSink")(file_at(path), connector))
