"""Dead letters keep poison records: changes whose events cannot be written, with the reason.

A dead letter holds the whole row as the source's own text in base64. A row too large for one record continues in the
next (`part` of `parts`; the pieces of a column are joined in the order of the parts).
"""

from __future__ import annotations

import base64
import logging
import time
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import Final, TypeAlias

import orjson

from cdc.encode.envelope.frame import Frame
from cdc.encode.envelope.message_encoder import MessageEncoder
from cdc.encode.envelope.table_encoder import TableEncoder
from cdc.model.change import UNCHANGED, Coordinates, Message, Op, Row, Xid
from cdc.model.errors import BugError, OperatorError, TooLargeError
from cdc.model.interfaces import Sink
from cdc.rules.changed_values import plain

PIECE_BYTES: Final = 512 * 1024
"""How much of a row's text goes into one record: far below any broker's limit."""
_LOG_EVERY_S: Final = 10.0

log = logging.getLogger("cdc")

Refused: TypeAlias = MutableMapping[tuple[str, bytes, str], int]
"""How often the broker found the record of (topic, key, position) too large; of a row that was read, see `_READ`."""
_READ: Final = ""
"""In place of the position of a row that was read: each reading of it has another one, since the log goes on."""


class UnwritableError(ValueError):
    """Says that an event cannot be written for a reason other than its encoder's."""

    def __init__(self, reason: str, columns: tuple[str, ...] = ()) -> None:
        super().__init__(reason)
        self.columns = columns


class TooLargeForTopicError(UnwritableError):
    """Says of an event that its topic does not take it."""

    def __init__(self, topic: str) -> None:
        super().__init__(f"its record is larger than topic {topic} takes")


@dataclass(frozen=True, slots=True)
class PoisonRecord:
    """A poison record: a change whose event cannot be written."""

    op: Op
    before: Row | None
    after: Row | None
    position: str
    lsn: Coordinates
    xid: Xid | None


class DeadLetters:
    """Writes dead letters of poison records, or stops the connector at the first."""

    def __init__(self, sink: Sink, refused: Refused, *, on: bool) -> None:
        self._sink = sink
        self._refused = refused
        self._used = set[tuple[str, bytes, str]]()
        """Notes that this transaction has made use of: nothing that they are of is written again behind its commit."""
        self.on = on
        self._count = self._since_logged = 0
        self._logged_at_s = float("-inf")

    @property
    def refuses(self) -> bool:
        """Whether the broker has found any record too large."""
        return bool(self._refused)

    def refusals(self, topic: str, key: bytes, frame: Frame) -> int:
        """How often the broker found the record of the frame's next event too large."""
        if not self._refused:
            return 0
        note = (topic, key, frame.next_position())
        count = self._refused.get(note, 0)
        if count:
            self._used.add(note)
        return count

    def refuses_read(self, topic: str, key: bytes) -> bool:
        """Whether the broker has found the row of a key too large when it was read."""
        note = (topic, key, _READ)
        if note not in self._refused:
            return False
        self._used.add(note)
        return True

    def changed(self, topic: str, key: bytes) -> None:
        """Note that the log has an event of a key: as its row is now, the broker has not refused it yet."""
        self._refused.pop((topic, key, _READ), None)

    def too_large(self, topic: str, key: bytes) -> None:
        """Note that the log's event of a key is too large, and so is its row where it is read behind it.

        Else a row that is written all the time would be refused at each reading, and its events would undo each note.
        """
        note = (topic, key, _READ)
        self._refused.setdefault(note, 1)
        self._used.add(note)

    def committed(self) -> None:
        """Forget what is a dead letter now: the topic may take the row when it is read another time."""
        for note in self._used:
            self._refused.pop(note, None)
        self._used.clear()

    def add(self, encoder: TableEncoder, bad: PoisonRecord, cause: ValueError) -> None:
        """Write the dead letter. Raises OperatorError if dead letters are off."""
        row = bad.after if bad.after is not None else bad.before or ()
        columns = cause.columns if isinstance(cause, UnwritableError) else encoder.blame(row)
        reason = (
            str(cause)
            if isinstance(cause, UnwritableError)
            else f"the value of {', '.join(columns)} cannot be written as JSON"
        )
        table = encoder.table
        if not self.on:
            encoding = "" if isinstance(cause, UnwritableError) else "is the text valid in the database's encoding? "
            raise OperatorError(
                f"table {table.qualified}, event {bad.position}: {reason} (key columns: {', '.join(table.key)})",
                hint=f"{encoding}on_error: dead_letter goes on without such events and keeps them in a topic of their "
                "own; or leave the table out. To alter the row is no help where the log has the event already",
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
            "key": orjson.Fragment(encoder.key_image(key)),
        }
        images = {"before": _texts(encoder, bad.before), "after": _texts(encoder, bad.after)}
        self._write(key, head, images, f"table {table.qualified}, event {bad.position}: {reason}")

    def add_message(self, encoder: MessageEncoder, message: Message, position: str, xid: Xid | None) -> None:
        """Write the dead letter of a message that is too large for its topic."""
        key = encoder.key(message)
        reason = f"the record is larger than topic {encoder.topic} takes"
        head = {
            "schema": "", "table": "", "position": position, "lsn": message.lsn, "txId": xid, "op": Op.MESSAGE.value,
            "reason": reason, "columns": ["content"], "key": orjson.Fragment(key),
        }  # fmt: skip
        self._write(key, head, {"before": None, "after": {"content": message.content}}, f"event {position}: {reason}")

    def _write(
        self, key: bytes, head: dict[str, object], images: Mapping[str, dict[str, bytes | None] | None], what: str
    ) -> None:
        parts = _parts(images)
        for number, part in enumerate(parts, start=1):
            value = {**head, **part, "part": number, "parts": len(parts), "ts_ms": time.time_ns() // 1_000_000}
            self._sink.log("dead-letter", key, orjson.dumps(value))
        self._count += 1
        self._since_logged += 1
        now = time.monotonic()
        if now - self._logged_at_s >= _LOG_EVERY_S:
            log.warning("%s: it went to the dead letters (%d since last told)", what, self._since_logged)
            self._logged_at_s, self._since_logged = now, 0

    def take(self) -> int:
        """Return how many there were since the last call."""
        count, self._count = self._count, 0
        return count


def _texts(encoder: TableEncoder, row: Row | None) -> dict[str, bytes | None] | None:
    """The values that the source sent of a row, by column.

    Of columns that are masked, hashed or truncated, what would have been published; nothing, if it cannot be written.
    """
    if row is None:
        return None
    changed = encoder.published.changed if encoder.published is not None else frozenset()
    texts: dict[str, bytes | None] = {}
    for column, value in zip(encoder.table.columns, row, strict=True):
        if value is UNCHANGED:
            continue
        if value is not None and column.name in changed:
            try:
                texts[column.name] = plain(column.encode(value))
            except ValueError:
                continue
        else:
            texts[column.name] = value
    return texts


def _parts(images: Mapping[str, dict[str, bytes | None] | None]) -> list[dict[str, dict[str, str | None] | None]]:
    """Split the images into as many records as they need, in base64."""
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
    """Cut `value` so that its first piece fits where `room` is left."""
    first = room if room > 0 else PIECE_BYTES
    rest = [value[at : at + PIECE_BYTES] for at in range(first, len(value), PIECE_BYTES)]
    return [value[:first], *rest]


def refusal(error: TooLargeError) -> tuple[tuple[str, bytes, str], OperatorError] | None:
    """Find the event whose record the broker found too large, and make the error that names it; None for no event's.

    The error names the table, the key's columns and sizes.
    """
    try:
        event = orjson.loads(error.value)
        source, columns = event["source"], _columns(error.key)
        position = source["position"]
        named = (source.get("schema", source.get("db")), source.get("table"))  # a flat record has neither
        where = ".".join(name for name in named if name)
        what = f"table {where}" if where else f"topic {error.topic}" if named == (None, None) else "a message"
    except (ValueError, KeyError, TypeError):
        return None
    at = _READ if event.get("op") == Op.READ.value else position
    return (error.topic, error.key, at), OperatorError(
        f"{what}, event {position}: {error.message}{columns}",
        hint=f"{error.hint}; or on_error: dead_letter, which goes on without it and keeps the row in its own topic",
    )


def _columns(key: bytes) -> str:
    """Name the columns of a record's key, as far as the key is JSON that names them."""
    try:
        found = orjson.loads(key)
    except ValueError:
        return ""
    found = found.get("payload", found) if isinstance(found, dict) else {}
    return f" (key columns: {', '.join(found)})" if isinstance(found, dict) else ""
