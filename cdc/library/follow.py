"""`cdc.follow` of a database: its log's transactions without Kafka, by the same loop that runs connectors.

The loop (`cdc.capture.pipeline`) runs on a thread of its own, with a sink that hands over what a connector would write.
So all of its rules hold here too: the snapshot is aligned to the log, a gap stops with its verdict, a connection that
is cut is opened again, a position goes on only where it belongs.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import urlsplit

import orjson

from cdc.capture.pipeline import Pipeline, Settings
from cdc.config import registry
from cdc.config.config import ConnectorConfig
from cdc.config.kafka_config import KafkaConfig
from cdc.config.source_config import KeyedTable, SourceConfig
from cdc.config.yaml.yaml_binding import as_list
from cdc.files.position_file import PositionFile
from cdc.files.topicless_sink import UNSENT
from cdc.library.changes import Transaction
from cdc.library.handover import Batch, Channel, Progress
from cdc.library.handover_sink import HandoverSink
from cdc.library.values import RowReader
from cdc.model.change import Offset
from cdc.model.errors import CdcError, ConfigError, GapError, OperatorError
from cdc.model.hints import without_topics
from cdc.model.interfaces import Source
from cdc.rules.capture_rules import CaptureRules

SCHEMES: Final = {
    "postgresql": "postgres",
    "postgres": "postgres",
    "mysql": "mysql",
    "mariadb": "mysql",
    "sqlite": "triggers",
    "etcd": "etcd",
}
_UNNAMED: Final = re.compile("[^a-z0-9_-]+")
_LONGEST: Final = 40
_BEGIN_AGAIN: Final = (
    "a position file of another name, with create=True, begins with a new snapshot; what was changed in the gap is "
    "told by that alone"
)


class Follow:
    """Transactions of a database's log, in order: an iterator, and a context manager; for one thread at a time."""

    def __init__(
        self, config: ConnectorConfig, position: Path, *, create: bool = False, until_caught_up: bool = False
    ) -> None:
        """Begin to follow. Raises OperatorError if the position file is in use or cannot be read."""
        self._process = os.getpid()
        self._file = PositionFile(position)
        try:
            progress = Progress(self._file)
            _refuse_another_name(config, progress, position)
        except BaseException:
            self._file.close()
            raise
        self._progress, self._channel = progress, Channel()
        self._readers: dict[tuple[str, int], RowReader] = {}
        self._given: Iterator[Transaction] = iter(())
        where = f"position file {position}"
        sink = HandoverSink(progress, self._channel, where=where, make=None if create else _makes(config))
        self._pipeline = Pipeline(
            Settings(
                connector=config.name,
                prefix=config.name,
                chunk_rows=config.snapshot.chunk_rows,
                config=config.binding,
                by_pattern=lambda table: not config.names(table),
                rules=CaptureRules.of_source(config.source),
                unsent=orjson.dumps(UNSENT),
            ),
            open_source=_telling_what_is_safe(registry.source(config), sink),
            open_snapshotter=registry.snapshotter(config),
            sink=sink,
        )
        self._thread = threading.Thread(
            target=_run, args=(self._pipeline, self._channel, until_caught_up), name="cdc-follow", daemon=True
        )
        self._thread.start()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Transaction:
        """Wait for the next transaction. Raises what has ended the loop: a `cdc.CdcError`."""
        if os.getpid() != self._process:  # what follows is a thread, and no thread is in a copy of a process
            raise OperatorError(
                "cdc.follow: this was begun in another process, of which this one is a copy",
                hint="call cdc.follow in the process that reads it; or start processes by spawn, not by fork",
            )
        while True:
            for transaction in self._given:
                return transaction
            try:
                batch = self._channel.get()
            except CdcError:
                self.close()
                raise
            if batch is None:
                self._thread.join()
                self._file.has_ended = True
                raise StopIteration
            self._given = _transactions(batch, self._progress, self._readers)

    def close(self) -> None:
        """Stop following, and let go of the position file. What was not done comes again. Safe to call twice."""
        self._end()
        if self._thread is not threading.current_thread() and os.getpid() == self._process:
            self._thread.join()
        self._file.close()

    def _end(self) -> None:
        if os.getpid() != self._process:
            return
        self._pipeline.stop()
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):  # it could not be begun
            self._end()
            self._file.has_ended = True


def _refuse_another_name(config: ConnectorConfig, progress: Progress, position: Path) -> None:
    """Raise OperatorError for a file that was begun under another name: what it made at the source has that name."""
    state = progress.on_disk[0].state
    if state is not None and state.connector != config.name and config.source.type in ("postgres", "triggers"):
        raise OperatorError(
            f"position file {position} was begun under the name {state.connector}, not {config.name}",
            hint=f'name="{state.connector}" goes on with it, whatever the file is called by now',
        )


def _transactions(batch: Batch, progress: Progress, readers: dict[tuple[str, int], RowReader]) -> Iterator[Transaction]:
    """Make what is given, which holds on to nothing but the position file."""
    schemas = batch.after.schemas

    def reader(table: str, version: int) -> RowReader:
        found = readers.get((table, version))
        if found is None:
            for record in map(orjson.loads, schemas.values()):
                readers[f"{record['schema']}.{record['table']}", record["version"]] = RowReader(record["columns"])
            found = readers[table, version]
        return found

    for index, group in enumerate(batch.groups):
        identifier = None if group.of is None else orjson.loads(group.of)
        done = partial(progress.done, batch, index)
        yield Transaction(identifier, group.position, group.events.__iter__, reader, done)


def _run(pipeline: Pipeline, channel: Channel, until_caught_up: bool) -> None:  # noqa: FBT001 - a thread's
    try:
        pipeline.run(until_caught_up=until_caught_up)
    except CdcError as exc:
        exc.hint = without_topics(exc.hint, _BEGIN_AGAIN, of_gap=isinstance(exc, GapError))
        channel.end(exc)
    except BaseException as exc:  # noqa: BLE001 - it is raised on the other thread
        channel.end(exc)
    else:
        channel.end(None)


def _telling_what_is_safe(open_source: Callable[[], Source], sink: HandoverSink) -> Callable[[], Source]:
    """Let a source be told only of what is done, and be tended while a batch waits to be taken."""

    def opened() -> Source:
        source = open_source()
        acknowledge = source.acknowledge

        def acknowledge_safe(_offset: Offset) -> None:
            if sink.safe is not None:
                acknowledge(dict(sink.safe))

        source.acknowledge = acknowledge_safe  # type: ignore[method-assign, assignment]
        sink.tend = source.tend
        return source

    return opened


def _makes(config: ConnectorConfig) -> str:
    what = {
        "mysql": "reads the tables once and begins the file",
        "triggers": "makes a change table and triggers, and reads the tables once",
        "etcd": "reads the keys once and begins the file",
    }.get(
        config.source.type,
        f"makes publication {config.publication} and slot {config.slot}, and reads the tables once",
    )
    return f"cdc.follow(…, create=True) {what}; or name the position file that there is"


def configured(
    url: str, tables: Sequence[str | Mapping[str, Any]], position: Path, name: str | None
) -> ConnectorConfig:
    """Make a connector's configuration of a URL. Raises ConfigError."""
    kind = SCHEMES.get(urlsplit(url).scheme.partition("+")[0])
    if kind is None:
        raise ConfigError(
            "cdc.follow: neither a database's URL nor a connector's file",
            hint="postgresql://user:password@host:5432/database, mysql://user:password@host:3306, sqlite:///shop.db, "
            "or connector.yaml",
        )
    named = name or _UNNAMED.sub("_", position.stem.lower()).strip("_-")[:_LONGEST]
    if name is None and not named[:1].isalpha():
        raise ConfigError(
            f"cdc.follow: the slot cannot be named after the position file {position.name}",
            hint='name="orders", or a file whose name begins with a letter',
        )
    chosen: list[Any] = [item if isinstance(item, str) else _keyed(item) for item in tables]
    source = SourceConfig(type=kind, url=url, tables=tuple(chosen), messages=False)
    config = ConnectorConfig(name=named, source=source, sink=KafkaConfig(bootstrap_servers="none"))
    return replace(config, sink=replace(config.sink, topic_prefix=named))  # a name that is none is told as a name


_PARTS: Final[Mapping[str, tuple[type, ...]]] = {
    "table": (str,), "key": (str, list, tuple), "prefix": (str, type(None)), "text": (bool,),
}  # fmt: skip
"""What an item of `tables` that is a dictionary may have, as in a connector's file."""


def _keyed(item: object) -> KeyedTable:
    """Read such an item. Raises ConfigError: a part that is passed over would be another table, or another value."""
    said = {
        "hint": '{"table": "public.orders", "key": ["id"]}; of etcd {"table": "a.b", "prefix": "/b/", "text": True}'
    }
    if not isinstance(item, Mapping):
        raise ConfigError(f"cdc.follow: tables: {item!r} is neither a name nor a dictionary", **said)
    for name, value in item.items():
        if name not in _PARTS:
            raise ConfigError(f"cdc.follow: tables: {name!r} is no part of a table", **said)
        if not isinstance(value, _PARTS[name]):
            raise ConfigError(f"cdc.follow: tables: {name} is not what is needed here: {value!r}", **said)
    if "table" not in item:
        raise ConfigError("cdc.follow: tables: an item does not say its table", **said)
    return KeyedTable(
        table=item["table"],
        key=as_list(item.get("key", ())),
        prefix=item.get("prefix"),
        text=item.get("text", False),
    )
