"""Makes the sink, where its packages are installed."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from cdc.config import registry
from cdc.library.packages import require
from cdc.model.interfaces import Sink


def open_sink(path: str, connector: str) -> Sink:
    """Make the sink, for the registry. Opens nothing yet. Raises ConfigError if a package is missing."""
    require("duckdb")
    require("pyarrow")
    return cast("Sink", registry.part("sinks.duckdb.sink:DuckdbSink")(Path(path).resolve(), connector))
