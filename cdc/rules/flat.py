"""The formats of tables' records, and the flat one: a record's value is the row, and a tombstone is its delete. Pure.

A connector reads its topics back: for the keys that a TRUNCATE deletes, for rows that are gone, for values that the log
leaves out. It needs what the envelope tells, and a flat value does not: the event's position, the version of the table,
the operation. So each flat record has them in a header (`HEADER`), tombstones too, and who reads the topic back gets an
event made of both (`as_event`). A record without the header is read as it is: one of the time before, as an envelope,
or a foreign one. The header goes wherever the record goes, through compaction too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from cdc.config.kafka_config import KafkaConfig
from cdc.config.published.record_format import PRECISE, RecordFormat
from cdc.config.table_patterns import matches
from cdc.model.change import Table
from cdc.model.errors import OperatorError, TopicError

HEADER: Final = "__cdc"
"""Position, version of the table and operation, with spaces between: ``00000001.… 3 u``."""
FLAT: Final = "flat"
CHANGED: Final = "sink.format has changed for it"


@dataclass(frozen=True, slots=True)
class Flat:
    """The flat format of one table."""

    metadata: tuple[str, ...] = ()
    """What the value has besides the row: ``op``, ``position``, ``ts_ms``, ``deleted``."""

    def value(self, row: bytes, event: bytes, op: bytes, position: str) -> bytes:
        """Make a record's value of the row's JSON and of the event in its envelope."""
        if not self.metadata:
            return row
        told = {
            "op": b'"%b"' % op,
            "position": b'"%b"' % position.encode(),
            "ts_ms": event[event.rindex(b":") + 1 : -1],
            "deleted": b'"false"',
        }
        return row[:-1] + b"".join(b',"__%b":%b' % (name.encode(), told[name]) for name in self.metadata) + b"}"

    def header(self, op: bytes, position: str, version: int) -> tuple[str, bytes]:
        return HEADER, b"%b %d %b" % (position.encode(), version, op)


def _told(headers: Iterable[Any] | None) -> list[bytes] | None:
    """Return what the header of a flat record tells; None: it has none."""
    told = next((text for name, text in headers or () if name == HEADER), None)
    parts = told.split() if isinstance(told, bytes) else []
    return parts if len(parts) == len(("position", "version", "op")) and parts[1].isdigit() else None


def is_flat(headers: Iterable[Any] | None) -> bool:
    """Whether a record is a flat one, which its header alone can tell: a row may have columns named as an event's."""
    return _told(headers) is not None


def as_event(value: bytes | None, headers: Iterable[Any] | None) -> bytes | None:
    """Return a record's value as the event that it stands for, as far as it is read back."""
    told = _told(headers)
    if told is None:
        return value
    position, version, op = told
    source = orjson.dumps({"position": position.decode(errors="replace"), "schema_version": int(version)})
    return b'{"op":%b,"after":%b,"source":%b}' % (
        orjson.dumps(op.decode(errors="replace")), b"null" if value is None else value, source,
    )  # fmt: skip


class Formats:
    """Knows the format of each table's records."""

    def __init__(
        self,
        default: str = "",
        formats: Mapping[str, str] | None = None,
        metadata: Sequence[str] = (),
        logs: Sequence[str] = (),
        decimals: str = "precise",
    ) -> None:
        """`formats` has formats by name or pattern of a table; the first that fits is taken.

        `logs` has the tables that have a log beside their topic, as `sink.log.tables` names them. `decimals`: see
        `RegistryConfig`.
        """
        self._default, self._formats, self._logs = default, formats or {}, tuple(logs)
        self._flat, self.decimals = Flat(tuple(metadata)), decimals

    @classmethod
    def of_sink(cls, sink: KafkaConfig) -> Formats:
        return cls(
            sink.format,
            sink.formats,
            sink.flat_metadata,
            sink.log.tables if sink.log is not None else (),
            sink.registry.decimals if sink.registry is not None else "precise",
        )

    @property
    def plain(self) -> bool:
        """Whether all tables' records are plain JSON."""
        return all((RecordFormat.parsed(text) or RecordFormat()).encoding == "json" for text in self._named())

    def _named(self) -> Iterator[str]:
        yield self._default
        yield from self._formats.values()

    def _format(self, table: str) -> RecordFormat:
        found = next((of for item, of in self._formats.items() if matches(item, table)), self._default)
        return RecordFormat.parsed(found) or RecordFormat()

    def of(self, table: str) -> Flat | None:
        """Return the flat format of ``schema.table``; None: it has envelopes."""
        return self._flat if self._format(table).shape == FLAT else None

    def encoding(self, table: str) -> str:
        """Return how the keys and values of ``schema.table`` are encoded: ``json``, ``avro``, …"""
        return self._format(table).encoding

    def text(self, table: str) -> str:
        """Return the format of ``schema.table`` as the schema topic has it; empty: JSON in envelopes."""
        of = self._format(table)
        metadata = self._flat.metadata if of.shape == FLAT else ()
        if of.encoding == "json":
            return ",".join((FLAT, *metadata)) if of.shape == FLAT else ""
        decimals = " decimals-as-text" if of.encoding in PRECISE and self.decimals == "string" else ""
        return ",".join((f"{of.shape} {of.encoding}{decimals}", *metadata))

    def refusals(
        self,
        tables: Sequence[Table],
        topic: Callable[[Table], str],
        *,
        first: bool = False,
        beside: Collection[str] = (),
    ) -> Iterator[OperatorError]:
        """Give why tables, as published, cannot have their formats; before the `first` run, also what no table has.

        Later a table may be gone of which the file still speaks: that is no reason to stop. Nor is one of those
        `beside`, which are left out for now.
        """
        said = [("sink.formats", item) for item in self._formats] + [("sink.log.tables", item) for item in self._logs]
        for where, item in said if first else ():
            if not any(matches(item, name) for name in (*(table.qualified for table in tables), *beside)):
                yield OperatorError(
                    f"{where}: “{item}” matches no table that is captured",
                    hint="as schema.table, with * and ?; cdc check CONNECTOR.yaml names the tables",
                )
        for table in tables:
            flat = self.of(table.qualified)
            if flat is None:
                continue
            if any(matches(item, table.qualified) for item in self._logs):
                yield OperatorError(
                    f"sink.format: table {table.qualified} is flat and has a log: without deletes it tells no history",
                    hint=f"sink: {{formats: {{{table.qualified}: envelope}}}}; or take it out of sink.log.tables",
                )
            names = {f"__{name}" for name in flat.metadata}
            taken = [column.name for column in table.columns if column.name in names]
            if taken:
                yield TopicError(
                    f"sink.flat_metadata: table {table.qualified} has a column {', '.join(taken)} of its own",
                    hint="leave it out of flat_metadata; or leave the column out: source.columns",
                    topic=topic(table),
                )


ENVELOPES: Final = Formats()
