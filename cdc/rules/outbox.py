"""The outbox: what an application inserts into a table is published as its message, by Debezium's columns. Pure.

| column | becomes |
|---|---|
| `aggregatetype` | the topic's name, behind `outbox.event.` |
| `aggregateid` | the record's key |
| `payload` | the record's value; NULL is null |
| `id`, `type` | the headers `id` and `eventType` |
| `tracingspancontext`, if there is one | the headers `traceparent` and `tracestate` |

https://debezium.io/documentation/reference/stable/transformations/outbox-event-router.html

Why each insert is published exactly once. Only the log's inserts are published, and the log is followed from the place
where the connector began, each transaction once and whole. Rows that are read are not: of a row that a view has, its
event may have been published already, and of one that was deleted by then there is nothing to read. So what a snapshot
hides elsewhere is not hidden here, and an insert is published although its row is gone at the end of its transaction.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from cdc.config.published.outbox import OutboxConfig
from cdc.model.change import UNCHANGED, Row, Table
from cdc.model.errors import CdcError, LeftOutError, OperatorError
from cdc.model.interfaces import Headers
from cdc.rules.changed_values import plain

COLUMNS: Final = ("id", "aggregatetype", "aggregateid", "type", "payload")
TRACING: Final = "tracingspancontext"
"""Debezium's name of an optional column, in which a tracer leaves its context as Java's properties."""
_TRACEPARENT: Final = re.compile(rb"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_PROPERTY: Final = re.compile(rb"\s*(traceparent|tracestate)\s*[=:]\s*(.*?)\s*")


class Routed(NamedTuple):
    """What a row of the outbox becomes."""

    aggregate_type: str
    key: bytes
    value: bytes | None
    headers: Headers


class NotRoutedError(ValueError):
    """Says that a row cannot be published."""

    def __init__(self, reason: str, columns: tuple[str, ...]) -> None:
        super().__init__(reason)
        self.columns = columns


def route(table: Table, row: Row) -> Routed:
    """Return what a row becomes. Raises NotRoutedError where a part of it is missing, ValueError as encoders do."""
    found: dict[str, bytes | None] = {}
    for column, value in zip(table.columns, row, strict=True):
        if (column.name not in COLUMNS and column.name != TRACING) or value is UNCHANGED:
            continue
        text = None if value is None else plain(column.encode(value))
        if text is not None and column.kind.name == "bytes":
            text = b64decode(text)
        found[column.name] = text
    gone = tuple(name for name in COLUMNS if name not in found)
    if gone:  # dropped or renamed while it was followed: NULL would be somebody's word, and this is nobody's
        raise NotRoutedError(f"a message of an outbox that has no column {', '.join(gone)}", ())
    missing = tuple(name for name in ("id", "aggregatetype", "aggregateid") if not found.get(name))
    if missing:
        raise NotRoutedError(f"a message of the outbox without {', '.join(missing)}", missing)
    headers = [("id", found["id"] or b""), ("eventType", found["type"] or b""), *_tracing(found.get(TRACING))]
    aggregate_type = (found["aggregatetype"] or b"").decode()
    return Routed(aggregate_type, found["aggregateid"] or b"", found["payload"], headers)


def _tracing(context: bytes | None) -> Headers:
    """Return W3C's trace context; nothing where the text is none: a message is worth more than its trace."""
    lines = [_PROPERTY.fullmatch(line) for line in (context or b"").splitlines()]
    found = {line[1].decode(): re.sub(rb"\\(.)", rb"\1", line[2]) for line in lines if line is not None}
    return tuple(sorted(found.items())) if _TRACEPARENT.fullmatch(found.get("traceparent", b"")) else ()


def refusals(
    outbox: OutboxConfig | None,
    tables: Sequence[Table],
    left_out: Mapping[str, CdcError | None] = MappingProxyType({}),
) -> Iterator[CdcError]:
    """Give why the outbox cannot be the one of `tables`, which are captured, or is none of them.

    Nobody would notice that: no message comes, and rows of the table that was meant are events. `left_out` has the
    tables that a source leaves out by itself, each with its reason; None: that is told already.
    """
    if outbox is None:
        return
    table = next((table for table in tables if table.qualified == outbox.table), None)
    if table is None and outbox.table in left_out:
        reason = left_out[outbox.table]
        yield from () if reason is None else [reason]
    elif table is None:
        yield LeftOutError(  # it may be in the middle of being made again
            f"source.outbox: {outbox.table} is no captured table: none of its messages would be published",
            hint=f"captured are {', '.join(table.qualified for table in tables[:10])}; write its name as it is there; "
            "or, without an outbox, take source.outbox out",
        )
    else:
        names = [column.name for column in table.columns]
        missing = [name for name in COLUMNS if name not in names]
        if missing:
            yield OperatorError(
                f"source.outbox: table {table.qualified} has no column {', '.join(missing)}",
                hint=f"an outbox has the columns {', '.join(COLUMNS)}, as Debezium's outbox event router wants them",
            )
