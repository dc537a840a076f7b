"""Turns changes into records of their topics: splits key changes, fills holes, expands truncates into deletes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final, Protocol, TypeAlias, cast

from cdc.encode.dead_letters import DeadLetters, PoisonRecord, UnwritableError
from cdc.encode.deferred_keys import DeferredKeys
from cdc.encode.envelope.frame import Frame
from cdc.encode.envelope.table_encoder import TableEncoder
from cdc.encode.event_records import EventRecords
from cdc.encode.fast_path import FastPath, Made, batch_fast_path, fast_path, read_fast_path
from cdc.encode.schema_versions import Resnapshot, SchemaVersions
from cdc.encode.topic_contents.live_keys import LiveKeys
from cdc.encode.topic_contents.toast import TOAST_FROM, Ask, ToastValues
from cdc.encode.window_keys import LoggedKeys, RequestedRows
from cdc.model.change import (
    UNCHANGED,
    Change,
    Coordinates,
    Described,
    Message,
    Op,
    Position,
    Row,
    Table,
    Transaction,
    Xid,
)
from cdc.model.errors import BugError, ChangedError
from cdc.model.interfaces import Handover, Headers, LastWritten, Sink, Snapshotter, Window
from cdc.model.state import Key
from cdc.rules.filtered_rows import FilteredRows

Reread: TypeAlias = Callable[[Table, Key | None], None]
"""Requests that the row with a key is read again, or without one all rows of a table."""

NEW_KEY: Final = "__debezium.newkey"
OLD_KEY: Final = "__debezium.oldkey"
"""Headers of the two halves of a key change, as in Debezium; the value is the other half's key."""
_NULL: Final = b"null"
TRUNCATED_AT_ONCE: Final = 20_000
"""The loop reads and deletes the keys of a topic with so many records in about a second."""
_CODES: Final = {op: op.value.encode() for op in Op}


class Outbox(Protocol):
    """Writes the messages of one table, whose changes are no events: `cdc.capture.outbox_writer`."""

    table: str

    def write(self, change: Change | Described, frame: Frame, xid: Xid) -> None: ...


class EventWriter:
    """Writes to the sink's open transaction; commits nothing."""

    def __init__(
        self,
        sink: Sink,
        versions: SchemaVersions,
        toast: ToastValues,
        reader: Snapshotter,
        *,
        logged: LoggedKeys,
        resnapshot: Resnapshot,
        reread: Reread,
        letters: DeadLetters,
        not_asked: set[str],
        emptied: Callable[[Table], None],
        key_headers: bool = False,
        unsent: bytes | None = None,
        outbox: Outbox | None = None,
    ) -> None:
        """`logged` notes the keys that events name, for the table that the incremental snapshot reads.

        `reread` is told of rows that have changed without events. The source is not asked for left-out values of the
        topics `not_asked`, to which topics are added. `emptied` has a table read from here on, because the rows it had
        are gone. `key_headers`: the records of a key change name the other key in a header. `unsent`: the sink keeps no
        rows; this JSON stands for values that are not known, and a TRUNCATE is an event.
        """
        self._unsent = unsent
        self._key_headers = key_headers
        self._outbox = outbox
        self._reread = reread
        self._emptied = emptied
        self._not_asked = not_asked
        self._answered: dict[tuple[str, bytes], frozenset[str]] = {}
        """By topic and key, the columns that the source has answered for in the transaction at hand."""
        self._logged = logged
        self._resnapshot = resnapshot
        self._letters = letters
        self._sink = sink
        self._versions = versions
        self._toast = toast
        self._reader = reader
        self._resnapshot_requested: set[tuple[str, int]] = set()
        self._deferred = DeferredKeys()
        self._filtered = FilteredRows()
        self._records = EventRecords(sink)
        self._fast_paths: dict[int, tuple[str, FastPath]] = {}
        self._batch_fast_path = batch_fast_path(self._fast_paths, self._fast_path, sink.write)

    def taken(self) -> Mapping[tuple[str, str], int]:
        """Return how many events of each table and op were written since the last call."""
        return self._versions.taken()

    def close(self) -> None:
        self._deferred.close()
        self._filtered.close()

    def rows(self, table: Table, rows: Sequence[Row], frame: Frame, position: Position, *, lsn: Coordinates) -> None:
        """Write rows of a snapshot."""
        if self._is_outbox(table):
            return
        encoder = self._encoder(table, position)
        rows = encoder.shown(rows)
        topic, key, encode = encoder.topic, encoder.key, encoder.row
        fast, at = read_fast_path(encoder, self._sink.write), 0
        as_a_rule = not self._letters.refuses
        while (at := fast(rows, at, frame, lsn) if as_a_rule else at) < len(rows):
            row = rows[at]
            at += 1
            try:
                row_key = key(row)
                if self._letters.refusals(topic, row_key, frame):
                    raise _too_large(topic)
                self._records.put(encoder, row_key, frame, op=b"r", before=_NULL, after=encode(row), lsn=lsn)
            except ValueError as exc:
                self._letters.add(encoder, PoisonRecord(Op.READ, None, row, position.text, lsn, None), exc)

    def window(self, window: Window, frame: Frame, position: Position, *, lsn: Coordinates) -> int:
        """Write rows read while the log was followed, without those that an event has overtaken; return how many."""
        if self._is_outbox(window.table):
            return 0
        encoder = self._encoder(window.table, position)
        written = 0
        for row in encoder.shown(window.rows):
            try:
                key = encoder.key(row)
                if self._logged.unseen(key, window.sees):
                    continue
                if self._letters.refusals(encoder.topic, key, frame):
                    raise _too_large(encoder.topic)
                after = encoder.row(row)
            except ValueError as exc:
                self._letters.add(encoder, PoisonRecord(Op.READ, None, row, position.text, lsn, None), exc)
                continue
            self._records.put(encoder, key, frame, op=b"r", before=_NULL, after=after, lsn=lsn)
            self._filtered.forget(encoder.topic, key)
            written += 1
            if encoder.toastable:
                self._toast.keep(encoder, key, row, {})
        self._toast.read_again(encoder.topic)
        return written

    def requested(self, requested: RequestedRows, frame: Frame, position: Position, *, lsn: Coordinates) -> int:
        """Write rows requested by their keys, and a delete for each key without a row; return how many of both."""
        window = requested.window
        if window is None or self._is_outbox(window.table):
            return 0
        table, encoder = window.table, self._encoder(window.table, position)
        left = {key for key in map(partial(_event_key, encoder), requested.keys) if key is not None}
        rows = []
        for row in window.rows:
            key = encoder.key(encoder.cut(row))
            if key in left and encoder.publishes(row) is True:
                left.discard(key)
                rows.append(row)
        gone = sorted(key for key in left if not self._logged.unseen(key, window.sees))
        self.stale(table, gone, frame, position, lsn=lsn)
        return len(gone) + self.window(replace(window, rows=rows), frame, position, lsn=lsn)

    def stale(self, table: Table, keys: Sequence[bytes], frame: Frame, position: Position, *, lsn: Coordinates) -> None:
        """Write a delete for each of `keys`, which the source no longer has."""
        encoder = self._encoder(table, position)
        for key in keys:
            self._records.put(encoder, key, frame, op=b"d", before=encoder.key_image(key), after=_NULL, lsn=lsn)

    def batch(self, transactions: list[Transaction], begin: int, epoch: int, made_at_ms: int) -> tuple[int, int]:
        """Write transactions from `begin` on by the fast path, up to one with a change that only `changes` can write.

        Returns how many transactions that were, and their events. Not to be used while a snapshot's rows hide events.
        """
        if self._batch_fast_path is None or self._letters.refuses:
            return 0, 0
        return self._batch_fast_path(transactions, begin, epoch, made_at_ms, self._logged.topic)

    def changes(self, transaction: Transaction, frame: Frame, handover: Handover | None) -> None:
        """Write all changes of a source transaction, except those that a snapshot's rows already contain."""
        fast_paths, write, logged = self._fast_paths, self._sink.write, self._logged
        as_a_rule, delete = handover is None and not self._letters.refuses, Op.DELETE
        answered = self._answered
        answered.clear()
        for change in transaction.changes:
            if as_a_rule and not answered and type(change) is Change:
                topic, fast = fast_paths.get(id(change.table)) or self._fast_path(change.table)
                if topic != logged.topic and (record := fast(change, frame)) is not None:
                    write(topic, *record)
                    if change[0] is delete and record[1] is not None:
                        write(topic, record[0], None)
                    continue
            if isinstance(change, Message):
                self.message(change, frame, transaction.xid)
            elif self._outbox is not None and change.table.qualified == self._outbox.table:
                self._outbox.write(change, frame, transaction.xid)
            elif isinstance(change, Described):
                self._encoder_at(change.table, frame)
            elif change.table.deferred_key:
                for settled in self._deferred.settle(change):
                    self._any_change(settled, transaction, frame, handover)
            else:
                self._any_change(change, transaction, frame, handover)
        for settled in self._deferred.end():
            self._any_change(settled, transaction, frame, handover)

    def _is_outbox(self, table: Table) -> bool:
        """Whether a table's rows are messages: of those nothing is published but the log's inserts."""
        return self._outbox is not None and table.qualified == self._outbox.table

    def _any_change(self, change: Change, transaction: Transaction, frame: Frame, handover: Handover | None) -> None:
        """Write what the fast path declines."""
        if change.op is Op.TRUNCATE:
            self._truncate(change, transaction, frame, handover)
            return
        encoder = self._encoder_at(change.table, frame)
        if change.op is Op.READ:
            self._read_again(change)
            return
        of_source = change
        if encoder.published is not None:
            change = _cut(change, encoder)
        try:
            if encoder.topic == self._logged.topic:
                for row in (change.before, change.after):
                    if row is not None:
                        self._logged.note(encoder.key(row), transaction.xid)
            if encoder.published is not None and encoder.published.judge is not None:
                self._judged(of_source, change, encoder, xid=transaction.xid, frame=frame, handover=handover)
            else:
                self._change(change, encoder, transaction.xid, frame, handover)
        except ValueError as exc:
            self._bad(change, encoder, transaction.xid, frame, exc)

    def _read_again(self, change: Change) -> None:
        """Request that the row whose key `after` has is read again, or without it all rows of the table."""
        table, row = change.table, change.after
        key = None if row is None else tuple(v for v in (row[i] for i in table.key_indexes) if v is not UNCHANGED)
        self._reread(table, cast("Key | None", key))

    def _judged(
        self,
        of_source: Change,
        change: Change,
        encoder: TableEncoder,
        *,
        xid: Xid,
        frame: Frame,
        handover: Handover | None,
    ) -> None:
        """Write what a change is to readers who see only the rows of the condition: see `cdc.rules.filtered_rows`.

        `change` is `of_source` with the published columns alone.
        """
        after, before = change.after, change.before
        key = encoder.key(after) if after is not None else b""
        old_key = key if before is None else encoder.key(before)
        self._hold_to_answers(encoder, change, old_key, key or old_key)
        halves = self._filtered.halves(
            of_source, change, encoder, old_key, key, being_read=encoder.topic == self._logged.topic
        )
        if after is not None and encoder.toastable and encoder.publishes(of_source.after or ()) is not True:
            self._toast.forget(encoder, key)
        for half in halves:
            if half is None:
                frame.skip()
            elif half.op is not Op.READ:
                self._change(half, encoder, xid, frame, handover)
            else:
                if handover is None or not handover.hides(change, xid):
                    self._read_again(of_source)
                frame.skip()

    def _fast_path(self, table: Table) -> tuple[str, FastPath]:
        """The topic and the fast path of a table's changes; it declines all until the description is published.

        It also declines all of a table with a deferred key, whose changes must be settled first.
        """
        encoder = self._versions.known(table)
        if encoder is None or table.deferred_key:
            return "", _decline
        if encoder.published is not None and encoder.published.judge is not None:
            return "", _decline
        fast = fast_path(encoder, self._toast.stored(encoder), TOAST_FROM)
        if encoder.published is not None and encoder.published.cut is not None:
            whole, of_cut = encoder, fast

            def fast(change: Change, frame: Frame) -> Made | None:
                return of_cut(_cut(change, whole), frame)

        made = encoder.topic, fast
        self._fast_paths[id(table)] = made  # the encoder keeps the table, and so its id
        return made

    def message(self, message: Message, frame: Frame, xid: Xid | None = None) -> None:
        """Write what an application wrote into the log; `xid` is of the transaction it belongs to."""
        encoder = self._versions.messages
        key = encoder.key(message)
        if self._letters.refusals(self._sink.log_topic("message"), key, frame):
            self._letters.add_message(encoder, message, frame.next_position(), xid)
            frame.skip()
            return
        self._sink.log("message", key, frame.message(encoder, message))

    def _bad(self, change: Change, encoder: TableEncoder, xid: Xid, frame: Frame, cause: ValueError) -> None:
        """Write the dead letter of a poison record; of a key change whose delete was written, the second half."""
        bad = PoisonRecord(change.op, change.before, change.after, frame.next_position(), change.lsn, xid)
        self._letters.add(encoder, bad, cause)
        if encoder.toastable and change.after is not None:
            with suppress(ValueError):  # its key may be what cannot be written
                self._toast.forget(encoder, encoder.key(change.after))
        frame.skip()

    def _change(self, change: Change, encoder: TableEncoder, xid: Xid, frame: Frame, handover: Handover | None) -> None:
        after, before = change.after, change.before
        if after is None:
            self._delete(change, encoder, xid, frame, handover)
            return
        try:
            key = encoder.key(after)
        except ValueError:
            if before is not None:
                self._delete(change, encoder, xid, frame, handover)  # of the key it had
            raise
        old_key = key if before is None else encoder.key(before)
        self._hold_to_answers(encoder, change, old_key, key)
        hidden = left = handover is not None and handover.hides(change, xid)
        if handover is not None and old_key != key:
            left = handover.hides(change._replace(op=Op.DELETE, after=None), xid)
        fragments: dict[str, bytes] = {}
        gone = False
        judged = encoder.published is not None and encoder.published.judge is not None
        if encoder.toastable:
            missing: frozenset[str] = frozenset()
            if encoder.has_holes(after):
                ask = self._ask(encoder, key, after, xid) if handover is None else None
                published = not left and not judged
                fragments, answered = self._toast.find(encoder, old_key, after, published=published, ask=ask)
                if answered:
                    self._answered[encoder.topic, key] = _holes(encoder, after)
                missing = frozenset() if hidden else _holes(encoder, after) - fragments.keys()
            self._toast.keep(encoder, key, after, fragments, unknown=missing)
            if missing:
                asked = self._completed(encoder, after, missing, fragments, moved=old_key != key, judged=judged)
                gone = asked and not missing <= fragments.keys()
                if (
                    asked
                    and (handover is None or gone)
                    and not self._letters.on
                    and self._unsent is None
                    and not judged
                ):
                    self._request_resnapshot(encoder, missing)
        op, image = change.op, _NULL
        headers: Headers = ()
        if old_key != key:
            to, of = (
                ((name, other),) if self._key_headers else () for name, other in ((NEW_KEY, key), (OLD_KEY, old_key))
            )
            self._delete(change, encoder, xid, frame, handover, headers=to)
            op, headers = Op.CREATE, of
        elif before is not None and not hidden:
            image = self._image(encoder, before, key, frame)
        if hidden or gone:
            frame.skip()
            return
        self._writable(encoder, key, frame, reduced=image != _NULL)
        row = encoder.row(after, fragments)
        self._records.put(
            encoder, key, frame, op=_CODES[op], before=image, after=row, lsn=change.lsn, headers=headers
        )  # fmt: skip

    def _completed(
        self,
        encoder: TableEncoder,
        row: Row,
        missing: frozenset[str],
        fragments: dict[str, bytes],
        *,
        moved: bool,
        judged: bool,
    ) -> bool:
        """Add what stands for the `missing` values to `fragments`, or ask for the row; False: the mark stands for them.

        A reader who keeps rows has the values under the old key, and so not those of a row that has `moved`.
        """
        if self._unsent is not None and not moved:
            fragments |= dict.fromkeys(missing, self._unsent)
            if encoder.topic == self._logged.topic:  # the reading may leave this row out, as one that is known
                self._reread(encoder.source, tuple(encoder.key_parts(row)))
            return False
        if judged:
            self._reread(encoder.source, tuple(encoder.key_parts(row)))
        else:
            self._fill_from_source(encoder, row, missing, fragments)
        return True

    def _ask(self, encoder: TableEncoder, key: bytes, row: Row, xid: Xid) -> Ask | None:
        """Return how the source is asked for the row at hand, if it is to be: it has left out values of it."""
        reader = self._reader
        if encoder.topic in self._not_asked or not isinstance(reader, LastWritten):
            return None
        if (encoder.topic, key) in self._answered:
            return None
        parts = encoder.key_parts(row)

        def ask() -> Row | None:
            found = reader.row_written_last(encoder.source, parts, xid)
            return None if found is None else encoder.cut(found)

        return ask

    def _hold_to_answers(self, encoder: TableEncoder, change: Change, old_key: bytes, key: bytes) -> None:
        """Raise ChangedError if the source has answered for a row that its transaction has written once more.

        The answer was the row as the transaction has left it, and not as the event that it was taken for. Nothing of
        this transaction is committed; the topic tells in the next session.
        """
        for at in {old_key, key} if self._answered else ():
            columns = self._answered.get((encoder.topic, at))
            if columns is None:
                continue
            left_out = change.after is not None and old_key == key and columns <= _holes(encoder, change.after)
            if not left_out:
                self._not_asked.add(encoder.topic)
                raise ChangedError(
                    f"table {encoder.table.qualified}: a transaction writes a row again whose left-out values the "
                    "source was asked for: they are read from the topic instead"
                )

    def _image(self, encoder: TableEncoder, before: Row, key: bytes, frame: Frame) -> bytes:
        """The old row's JSON for the event; with dead letters on, its key's alone if the rest cannot be written."""
        refused = self._letters.refusals(encoder.topic, key, frame)
        if refused > 1:
            raise _too_large(encoder.topic)
        if refused == 0:
            try:
                return encoder.image(before)
            except ValueError:
                if not self._letters.on:
                    raise
        return encoder.image(encoder.key_only(before))

    def _writable(self, encoder: TableEncoder, key: bytes, frame: Frame, *, reduced: bool) -> None:
        """Raise for a row too large to write; `reduced`: its event has been made smaller already."""
        if not reduced and self._letters.refusals(encoder.topic, key, frame):
            raise _too_large(encoder.topic)

    def _fill_from_source(
        self, encoder: TableEncoder, row: Row, missing: frozenset[str], fragments: dict[str, bytes]
    ) -> None:
        """Add the `missing` values of `row` to `fragments`, from the source as it is now, unless it has lost them.

        Two cases need it: a table that DDL rewrote; and, between snapshot and stream, a row that moved from a key not
        yet read to a key read before, so that no view saw it and its value was neither read nor logged. The source may
        give a later value than the event's, or no row; the log's later events correct both. The value is not kept: the
        key may be another row's by now.
        """
        now = self._reader.row(encoder.source, encoder.key_parts(row))
        if now is not None:
            now = encoder.cut(now)
            try:
                fragments |= encoder.fragments(now, missing)
            except ValueError as exc:
                columns = tuple(name for name in encoder.blame(now) if name in missing)
                raise UnwritableError(
                    f"the unchanged value of {', '.join(columns)} cannot be written as JSON", columns
                ) from exc

    def _request_resnapshot(self, encoder: TableEncoder, missing: frozenset[str]) -> None:
        """Request a re-snapshot once for each version: rows without events keep the values they had before it."""
        at = (encoder.topic, encoder.version)
        if at not in self._resnapshot_requested:
            self._resnapshot_requested.add(at)
            names = ", ".join(sorted(missing))
            self._resnapshot(encoder.table, f"unchanged values of {names} came that the topic does not have")

    def _delete(
        self,
        change: Change,
        encoder: TableEncoder,
        xid: Xid,
        frame: Frame,
        handover: Handover | None,
        *,
        headers: Headers = (),
    ) -> None:
        """Write the delete of the row `before`, which may be the first half of a key change."""
        if change.before is None:
            raise BugError(f"table {change.table.qualified}: a delete without its key")
        if handover is not None and handover.hides(change._replace(op=Op.DELETE, after=None), xid):
            frame.skip()
            return
        key = encoder.key(change.before)
        if change.op is Op.DELETE:
            self._hold_to_answers(encoder, change, key, key)
        image = self._image(encoder, change.before, key, frame)
        self._records.put(
            encoder, key, frame, op=b"d", before=image, after=_NULL, lsn=change.lsn, headers=headers
        )  # fmt: skip

    def _truncate(self, change: Change, transaction: Transaction, frame: Frame, handover: Handover | None) -> None:
        """Write a delete for every live key of the topic, in the order of the keys: a replay writes the same.

        Of a topic that may have many keys they are written later, in parts: they are the keys that a reading of the
        table from here on does not confirm.
        """
        encoder = self._encoder_at(change.table, frame)
        for topic, key in self._answered:
            if topic == encoder.topic:
                self._hold_to_answers(encoder, change, key, key)
        if self._unsent is None and self._sink.extent(change.table) > TRUNCATED_AT_ONCE:
            self._emptied(change.table)
            return
        if encoder.topic == self._logged.topic:
            self._logged.empty(transaction.xid)
        if self._unsent is not None:
            self._records.put(encoder, b"", frame, op=_CODES[Op.TRUNCATE], before=_NULL, after=_NULL, lsn=change.lsn)
            if handover is not None:  # a part of its rows may have been read behind it
                self._emptied(change.table)
            return
        bound = frame.next_position()
        xid = transaction.xid

        def kept(view: int) -> bool:
            return handover is not None and handover.saw(change.table, view, xid)

        with LiveKeys() as live:
            live.of_topic(self._sink.records(change.table), change.table, encoder.topic, bound=bound, kept=kept)
            for key in live:
                image = encoder.key_image(key)
                self._records.put(encoder, key, frame, op=b"d", before=image, after=_NULL, lsn=change.lsn)

    def _encoder_at(self, table: Table, frame: Frame) -> TableEncoder:
        found = self._versions.known(table)
        return found if found is not None else self._encoder(table, Position.parse(frame.next_position()))

    def _encoder(self, table: Table, position: Position) -> TableEncoder:
        found = self._versions.known(table)
        if found is not None:
            return found
        return self._versions.add(table, self._sink.topic(table), position, self._sink.schema, self._resnapshot)


def _cut(change: Change, encoder: TableEncoder) -> Change:
    """Leave out what is not published."""
    before, after = change.before, change.after
    return change._replace(
        table=encoder.table,
        before=None if before is None else encoder.cut(before),
        after=None if after is None else encoder.cut(after),
    )


def _decline(_change: Change, _frame: Frame) -> None:
    """Decline every change: the fast path of a table whose description is not published yet."""


def _holes(encoder: TableEncoder, row: Row) -> frozenset[str]:
    return frozenset(c.name for c, value in zip(encoder.table.columns, row, strict=True) if value is UNCHANGED)


def _event_key(encoder: TableEncoder, key: Key) -> bytes | None:
    """Encode a row's key as the event's; None for a text that no row of the table can have."""
    try:
        return encoder.key_of(key)
    except ValueError:
        return None


def _too_large(topic: str) -> UnwritableError:
    return UnwritableError(f"its record is larger than topic {topic} takes")
