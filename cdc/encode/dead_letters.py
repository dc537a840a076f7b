"""Events that cannot be written: why, and, if the connector is to go on without them, what is kept of them.

A dead letter holds the row as the source's own text, base64, whole: what one record has no room for goes on in the next
(`part` of `parts`; the pieces of a column are put together in the order of the parts).
"""

from __future__ import annotations

import base64
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

import orjson

from cdc.encode.envelope import Frame, MessageEncoder, TableEncoder
from cdc.model.change import UNCHANGED, Coordinates, Message, Op, Row, Xid
from cdc.model.errors import BugError, OperatorError, TooLargeError
from cdc.model.interfaces import Sink

PIECE_BYTES: Final = 512 * 1024
"""Of a row's text in one record: far below what any broker takes."""
_TOLD_EVERY_S: Final = 10.0

log = logging.getLogger("cdc")

ReadDeadLetters: TypeAlias = Callable[[], Iterator[tuple[bytes, bytes]]]
"""Reads the dead letters: key, value."""

Refused: TypeAlias = Mapping[tuple[str, bytes, str], int]
"""How often the broker found the record of (topic, key, position) too large."""


class UnwritableError(ValueError):
    """An event cannot be written for a reason other than its encoder's."""

    def __init__(self, reason: str, columns: tuple[str, ...] = ()) -> None:
        super().__init__(reason)
        self.columns = columns


@dataclass(frozen=True, slots=True)
class PoisonRecord:
    """An event that could not be written."""

    op: Op
    before: Row | None
    after: Row | None
    position: str
    lsn: Coordinates
    xid: Xid | None


class DeadLetters:
    """Takes the events that cannot be written, or stops the connector at the first."""

    def __init__(self, sink: Sink, refused: Refused, *, on: bool) -> None:
        self._sink = sink
        self._refused = refused
        self.on = on
        self._count = self._told = 0
        self._told_at_s = float("-inf")

    @property
    def refuses(self) -> bool:
        """Whether the broker has found any record too large."""
        return bool(self._refused)

    def refusals(self, topic: str, key: bytes, frame: Frame) -> int:
        """How often the broker found the record of the frame's next event too large."""
        return self._refused.get((topic, key, frame.next_position()), 0) if self._refused else 0

    def add(self, encoder: TableEncoder, bad: PoisonRecord, cause: ValueError) -> None:
        """Write the dead letter. Raises OperatorError if there are to be none."""
        row = bad.after if bad.after is not None else bad.before or ()
        columns = cause.columns if isinstance(cause, UnwritableError) else encoder.blame(row)
        reason = (
            str(cause)
            if isinstance(cause, UnwritableError)
            else f"the value of {', '.join(columns)} cannot be written as JSON"
        )
        table = encoder.table
        if not self.on:
            raise OperatorError(
                f"table {table.qualified}, event {bad.position}: {reason} (key columns: {', '.join(table.key)})",
                hint="is the text valid in the database's encoding? fix the row, or leave the table out; "
                "on_error: dead_letter goes on without such events and keeps them in a topic of their own",
            )
        try:
            key = encoder.key(row)
        except (ValueError, BugError):
            key = b"null"
        head = {
            "schema": table.schema,
            "table": table.name,
            "schema_version": encoder.version,
            "position": bad.position,
            "lsn": bad.lsn,
            "txId": bad.xid,
            "op": bad.op.value,
            "reason": reason,
            "columns": columns,
            "key": orjson.Fragment(key),
        }
        images = {"before": _texts(encoder, bad.before), "after": _texts(encoder, bad.after)}
        self._write(key, head, images, f"table {table.qualified}, event {bad.position}: {reason}")

    def add_message(self, encoder: MessageEncoder, message: Message, position: str, xid: Xid | None) -> None:
        """A message too large for its topic."""
        key = encoder.key(message)
        reason = f"the record is larger than topic {encoder.topic} takes"
        head = {
            "schema": "", "table": "", "position": position, "lsn": message.lsn, "txId": xid, "op": Op.MESSAGE.value,
            "reason": reason, "columns": ["content"], "key": orjson.Fragment(key),
        }  # fmt: skip
        self._write(key, head, {"before": None, "after": {"content": message.content}}, f"event {position}: {reason}")

    def _write(
        self, key: bytes, head: dict[str, object], images: Mapping[str, dict[str, bytes | None] | None], told: str
    ) -> None:
        parts = _parts(images)
        for number, part in enumerate(parts, start=1):
            value = {**head, **part, "part": number, "parts": len(parts), "ts_ms": time.time_ns() // 1_000_000}
            self._sink.log("dead-letter", key, orjson.dumps(value))
        self._count += 1
        self._told += 1
        now = time.monotonic()
        if now - self._told_at_s >= _TOLD_EVERY_S:
            log.warning("%s: it went to the dead letters (%d since last told)", told, self._told)
            self._told_at_s, self._told = now, 0

    def take(self) -> int:
        """How many there were since the last call."""
        count, self._count = self._count, 0
        return count


def _texts(encoder: TableEncoder, row: Row | None) -> dict[str, bytes | None] | None:
    """What was sent of a row, by column."""
    if row is None:
        return None
    pairs = zip(encoder.table.columns, row, strict=True)
    return {column.name: value for column, value in pairs if value is not UNCHANGED}


def _parts(images: Mapping[str, dict[str, bytes | None] | None]) -> list[dict[str, dict[str, str | None] | None]]:
    """The images in base64, in as many records as they need."""
    parts: list[dict[str, dict[str, str | None] | None]] = [{}]
    room = PIECE_BYTES
    for name, image in images.items():
        if image is None:
            parts[0][name] = None
            continue
        parts[-1].setdefault(name, {})
        for column, value in image.items():
            pieces = [None] if value is None else _pieces(value, room)
            for number, piece in enumerate(pieces):
                if number or room <= 0:
                    parts.append({name: {}})
                    room = PIECE_BYTES
                kept = parts[-1].setdefault(name, {})
                if kept is not None:
                    kept[column] = None if piece is None else base64.b64encode(piece).decode()
                room -= len(piece or b"") + len(column)
    return parts


def _pieces(value: bytes, room: int) -> list[bytes]:
    """`value` cut so that its first piece fits where `room` is left."""
    first = room if room > 0 else PIECE_BYTES
    rest = [value[at : at + PIECE_BYTES] for at in range(first, len(value), PIECE_BYTES)]
    return [value[:first], *rest]


def refusal(error: TooLargeError) -> tuple[tuple[str, bytes, str], OperatorError] | None:
    """Which event's record the broker found too large, and the error that says so; None where it is no event's.

    The error names the table, the key's columns and sizes.
    """
    try:
        event = orjson.loads(error.value)
        source, columns = event["source"], ", ".join(orjson.loads(error.key))
        where, position = f"{source['schema']}.{source['table']}".strip("."), source["position"]
        what = f"table {where}" if where else "a message"
    except (ValueError, KeyError, TypeError):
        return None
    return (error.topic, error.key, position), OperatorError(
        f"{what}, event {position}: {error.message} (key columns: {columns})",
        hint=f"{error.hint}; or on_error: dead_letter, which goes on without it and keeps the row in its own topic",
    )


class Unpublished:
    """Keys of rows that went to the dead letters and were not published since: the topic has an older word of them."""

    def __init__(self, letters: ReadDeadLetters, encoder: TableEncoder, before: str) -> None:
        """Of the letters before the position `before`."""
        table = encoder.table
        self._newest: dict[bytes, str] = {}
        for key, value in letters():
            letter = orjson.loads(value)
            if (letter["schema"], letter["table"]) == (table.schema, table.name) and letter["position"] < before:
                self._newest[key] = max(self._newest.get(key, ""), letter["position"])

    def published(self, key: bytes, position: str) -> None:
        """An event of the table's topic."""
        if self._newest and self._newest.get(key, position) < position:
            del self._newest[key]

    def __iter__(self) -> Iterator[bytes]:
        """Those not published since."""
        return iter(self._newest)
