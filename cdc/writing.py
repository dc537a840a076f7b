"""Changes to records of their topics: key changes taken apart, holes filled, truncates spelled out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import orjson

from cdc.change import UNCHANGED, Change, Op, Position, Row, Table, Transaction
from cdc.envelope import Frame, TableEncoder
from cdc.errors import BugError, OperatorError
from cdc.interfaces import Handover, Sink, Snapshotter
from cdc.versions import Versions
from cdc.wide import WideValues

_NULL: Final = b"null"


class Writer:
    """Writes to the sink's open transaction; commits nothing."""

    def __init__(self, sink: Sink, versions: Versions, wide: WideValues, reader: Snapshotter) -> None:
        self._sink = sink
        self._versions = versions
        self._wide = wide
        self._reader = reader

    def rows(self, table: Table, rows: Sequence[Row], frame: Frame, position: Position, *, lsn: int) -> None:
        """Rows of a snapshot."""
        encoder = self._encoder(table, position)
        topic, write, key, encode, event = encoder.topic, self._sink.write, encoder.key, encoder.row, frame.event
        for row in rows:
            try:
                write(topic, key(row), event(encoder, b"r", _NULL, encode(row), lsn))
            except ValueError as exc:
                raise unreadable(encoder, row, position.text) from exc

    def changes(self, transaction: Transaction, frame: Frame, handover: Handover | None) -> None:
        """All changes of a source transaction, except those that a snapshot's rows already contain."""
        for change in transaction.changes:
            if change.op is Op.TRUNCATE:
                self._truncate(change, transaction, frame, handover)
                continue
            encoder = self._encoder_at(change.table, frame)
            try:
                self._change(change, encoder, transaction.xid, frame, handover)
            except ValueError as exc:
                raise unreadable(encoder, change.after or change.before or (), frame.next_position()) from exc

    def _change(self, change: Change, encoder: TableEncoder, xid: int, frame: Frame, handover: Handover | None) -> None:
        after, before = change.after, change.before
        if after is None:
            self._delete(change, encoder, xid, frame, handover)
            return
        key = encoder.key(after)
        old_key = key if before is None else encoder.key(before)
        hidden = left = handover is not None and handover.hides(change, xid)
        if handover is not None and old_key != key:
            left = handover.hides(change._replace(op=Op.DELETE, after=None), xid)
        fragments: dict[str, bytes] = {}
        gone = False
        if encoder.wide:
            if UNCHANGED in after:
                at = frame.next_position()
                fragments = self._wide.find(encoder, old_key, after, at, published=not left, needed=handover is None)
                if handover is not None and not hidden:
                    gone = not self._complete(encoder, after, fragments)
            if not gone:
                self._wide.keep(encoder, key, after, fragments)
        op, image = change.op, _NULL
        if old_key != key:
            self._delete(change, encoder, xid, frame, handover)
            op = Op.CREATE
        elif before is not None and not hidden:
            image = encoder.image(before)
        if hidden or gone:
            frame.skip()
            return
        value = frame.event(encoder, op.value.encode(), image, encoder.row(after, fragments), change.lsn)
        self._sink.write(encoder.topic, key, value)

    def _complete(self, encoder: TableEncoder, row: Row, fragments: dict[str, bytes]) -> bool:
        """Add to `fragments` what is still missing of `row`, from the source as it is now; False if the row is gone.

        Needed only between snapshot and stream, for a row that moved from keys not yet read to keys read before, under
        views that each missed it: its value was neither read nor logged. A later value may come early, a row that is
        gone not at all; the log's later events set both right before the handover is over.
        """
        columns = encoder.table.columns
        missing = {c.name for c, value in zip(columns, row, strict=True) if value is UNCHANGED} - fragments.keys()
        if not missing:
            return True
        key = [value for index in encoder.key_indexes if isinstance(value := row[index], bytes)]
        now = self._reader.row(encoder.table, key)
        if now is not None:
            fragments |= encoder.fragments(now, frozenset(missing))
        return now is not None

    def _delete(self, change: Change, encoder: TableEncoder, xid: int, frame: Frame, handover: Handover | None) -> None:
        """Of the row `before`: a delete, or a key change's first half."""
        if change.before is None:
            raise BugError(f"table {change.table.qualified}: a delete without its key")
        if handover is not None and handover.hides(change._replace(op=Op.DELETE, after=None), xid):
            frame.skip()
            return
        key = encoder.key(change.before)
        value = frame.event(encoder, b"d", encoder.image(change.before), _NULL, change.lsn)
        self._sink.write(encoder.topic, key, value)
        self._sink.write(encoder.topic, key, None)

    def _truncate(self, change: Change, transaction: Transaction, frame: Frame, handover: Handover | None) -> None:
        """A delete for every key the topic holds at this point, in the order of the keys: a replay is the same."""
        encoder = self._encoder_at(change.table, frame)
        bound = frame.next_position()
        live: set[bytes] = set()
        for key, value in self._sink.records(change.table):
            if value is None:
                continue
            event = orjson.loads(value)
            position = event["source"]["position"]
            if position >= bound:
                continue  # aborted: it lies ahead of where we are
            view = Position.parse(position).number if event["op"] == "r" else 0
            kept = handover is not None and handover.saw(change.table, view, transaction.xid)
            if event["op"] == "d" or kept:
                live.discard(key)
            else:
                live.add(key)
        for key in sorted(live):
            self._sink.write(encoder.topic, key, frame.event(encoder, b"d", key, _NULL, change.lsn))
            self._sink.write(encoder.topic, key, None)

    def _encoder_at(self, table: Table, frame: Frame) -> TableEncoder:
        found = self._versions.known(table)
        return found if found is not None else self._encoder(table, Position.parse(frame.next_position()))

    def _encoder(self, table: Table, position: Position) -> TableEncoder:
        found = self._versions.known(table)
        if found is not None:
            return found
        return self._versions.add(table, self._sink.topic(table), position, self._sink.schema)


def unreadable(encoder: TableEncoder, row: Row, position: str) -> OperatorError:
    """An encoder refused a value: which column is said, the value never."""
    names = encoder.blame(row)
    return OperatorError(
        f"table {encoder.table.qualified}, event {position}: the value of {names} cannot be written as JSON",
        hint="is the text valid in the database's encoding? fix the row, or leave the table out",
    )
