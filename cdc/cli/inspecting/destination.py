"""What `cdc check` asks where events go: Kafka, or a file in its place."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from shlex import quote
from typing import cast

from cdc.config import registry
from cdc.config.config import ConnectorConfig, FileSink
from cdc.config.findings import Finding, Level
from cdc.files.topicless_sink import TopiclessSink
from cdc.model.change import Table
from cdc.model.state import State


@dataclass(frozen=True, slots=True)
class Destination:
    """Holds what can be asked; all of it only reads."""

    position: Callable[[], State | None]
    described: Callable[..., list[bytes]]
    """What was said of the tables; without ``by_others``, by this connector."""
    topic: Callable[[Table], str]
    look: Callable[..., list[Finding]]


def destination_of(config: ConnectorConfig) -> Destination:
    """Return what can be asked of the place that the file of a connector names. Raises what asking it at once does."""
    return _in_kafka(config) if config.into is None else _in_file(config.into, config.name)


def _in_kafka(config: ConnectorConfig) -> Destination:
    sink, name = config.sink, config.name
    return Destination(
        partial(registry.part("sinks.check:position"), sink, name),
        partial(registry.part("sinks.check:described"), sink, name),
        registry.part("sinks.check:topic_of")(sink, name),
        partial(registry.part("sinks.check:check"), sink, name),
    )


def _in_file(file: FileSink, connector: str) -> Destination:
    path, sink = Path(file.path), registry.file_sink(file, connector)

    def position() -> State | None:
        found = registry.file_sink(file, connector).peek()
        return found if found is None or found.connector == connector else None  # another one's: `look` says so

    def look(tables: Sequence[Table], **_: object) -> list[Finding]:
        folder = path.absolute().parent
        if not os.access(folder, os.W_OK):
            why = "this user may not write there" if folder.is_dir() else "its folder is not there"
            what = f"file {path} cannot be written: {why}"
            return [Finding(Level.ERROR, "sink", what, f"ls -ld {quote(str(folder))}")]
        cast("TopiclessSink", registry.file_sink(file, connector)).require_place()
        if not path.exists():
            sink.check(tables)
            return [Finding(Level.OK, "sink", f"file {path} will be made at the start")]
        if not os.access(path, os.W_OK):
            what = f"file {path} cannot be written: this user may not write to it"
            return [Finding(Level.ERROR, "sink", what, f"ls -l {quote(str(path))}")]
        return [Finding(Level.OK, "sink", f"file {path} is there, and is gone on with")]

    return Destination(
        position,
        lambda **_: list(sink.schemas()),
        sink.topic,
        look,
    )
