"""Writes rows that were read, by the initial snapshot or while the log is followed, as events of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from cdc.encode.dead_letters import DeadLetters, PoisonRecord, TooLargeForTopicError
from cdc.encode.envelope.frame import Frame
from cdc.encode.envelope.table_encoder import TableEncoder
from cdc.encode.event_records import EventRecords
from cdc.encode.fast_path import read_fast_path
from cdc.encode.topic_contents.toast import ToastValues
from cdc.encode.window_keys import LoggedKeys, RequestedRows
from cdc.model.change import Coordinates, Op, Position, Row, Table
from cdc.model.interfaces import Sink, Window
from cdc.rules.filtered_rows import FilteredRows

_NULL: Final = b"null"


class SnapshotRows:
    """Writes to the sink's open transaction; commits nothing."""

    def __init__(
        self,
        sink: Sink,
        records: EventRecords,
        encoder: Callable[[Table, Position], TableEncoder],
        toast: ToastValues,
        filtered: FilteredRows,
        *,
        last: Callable[[Table], TableEncoder | None],
        logged: LoggedKeys,
        letters: DeadLetters,
        outbox: str | None,
    ) -> None:
        """`encoder` gives a table's encoder, and publishes its description at a position if it is new.

        `last` gives the encoder of a table as it was met last.

        `outbox` names the table whose rows are messages: of those nothing is published but the log's inserts.
        """
        self._sink, self._encoder, self._last, self._toast, self._filtered = sink, encoder, last, toast, filtered
        self._logged, self._letters, self._outbox = logged, letters, outbox
        self._records = records

    def rows(self, table: Table, rows: Sequence[Row], frame: Frame, position: Position, *, lsn: Coordinates) -> None:
        """Write rows of a snapshot."""
        if table.qualified == self._outbox:
            return
        encoder = self._encoder(table, position)
        rows = encoder.shown(rows)
        topic, key, encode = encoder.topic, encoder.key, encoder.row
        fast, at = read_fast_path(encoder, self._sink.write), 0
        as_a_rule = not self._letters.refuses and not self._records.headed
        while (at := fast(rows, at, frame, lsn) if as_a_rule else at) < len(rows):
            row = rows[at]
            at += 1
            try:
                row_key = key(row)
                if self._letters.refuses_read(topic, row_key):
                    raise TooLargeForTopicError(topic)
                self._records.put(encoder, row_key, frame, op=b"r", before=_NULL, after=encode(row), lsn=lsn)
            except ValueError as exc:
                self._letters.add(encoder, PoisonRecord(Op.READ, None, row, position.text, lsn, None), exc)

    def window(self, window: Window, frame: Frame, position: Position, *, lsn: Coordinates) -> int:
        """Write rows read while the log was followed, without those that an event has overtaken; return how many."""
        if window.table.qualified == self._outbox:
            return 0
        encoder = self._encoder(window.table, position)
        encoder.refuse_unjudged()
        written = 0
        for row in encoder.shown(window.rows):
            try:
                key = encoder.key(row)
                if self._logged.unseen(key, window.sees):
                    continue
                if self._letters.refuses_read(encoder.topic, key):
                    raise TooLargeForTopicError(encoder.topic)
                after = encoder.row(row)
            except ValueError as exc:
                self._letters.add(encoder, PoisonRecord(Op.READ, None, row, position.text, lsn, None), exc)
                continue
            self._records.put(encoder, key, frame, op=b"r", before=_NULL, after=after, lsn=lsn)
            self._filtered.forget(encoder.topic, key)
            written += 1
            if encoder.toastable:
                self._toast.keep(encoder, key, row, {})
        self._toast.read_again(encoder.table.qualified)
        return written

    def requested(self, requested: RequestedRows, frame: Frame, position: Position, *, lsn: Coordinates) -> int:
        """Write rows requested by their keys, and a delete for each key without a row; return how many of both."""
        window = requested.window
        if window is None or window.table.qualified == self._outbox:
            return 0
        table, encoder = window.table, self._encoder(window.table, position)
        encoder.refuse_unjudged()
        left = {key for key in map(partial(written_key, encoder.key_of), requested.keys) if key is not None}
        rows = []
        for row in window.rows:
            key = written_key(encoder.key, encoder.cut_old(row))
            if (key is None or key in left) and encoder.publishes(row) is True:
                left.discard(key or b"")
                rows.append(row)  # one whose key cannot be written is a dead letter
        gone = sorted(key for key in left if not self._logged.unseen(key, window.sees))
        self.stale(table, gone, frame, position, lsn=lsn)
        return len(gone) + self.window(replace(window, rows=rows), frame, position, lsn=lsn)

    def stale(self, table: Table, keys: Sequence[bytes], frame: Frame, position: Position, *, lsn: Coordinates) -> int:
        """Write a delete for each of `keys`, which the source no longer has; return how many.

        None of a table that is an outbox now: no row of it is written that would confirm one.

        `table` may be as it was before it was read: to describe it so again would undo the change of its columns.
        """
        if not keys or table.qualified == self._outbox:
            return 0
        encoder = self._last(table) or self._encoder(table, position)
        for key in keys:
            image = self._records.before(encoder, key) or encoder.key_image(key)
            self._records.put(encoder, key, frame, op=b"d", before=image, after=_NULL, lsn=lsn)
        return len(keys)


def written_key(write: Callable[[Any], bytes], key: Any) -> bytes | None:  # noqa: ANN401 - a row, or its key
    """Write the key of an event; None for what cannot be: no event has it."""
    try:
        return write(key)
    except ValueError:
        return None
