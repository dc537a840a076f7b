"""Turns changes of the log into records of their topics, by the fast path where that takes them; splits key changes."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Final, Protocol, cast

from cdc.encode.dead_letters import DeadLetters, PoisonRecord, TooLargeForTopicError
from cdc.encode.deferred_keys import DeferredKeys
from cdc.encode.envelope.frame import Frame
from cdc.encode.envelope.table_encoder import TableEncoder
from cdc.encode.event_records import EventRecords
from cdc.encode.fast_path import FastPath, Made, batch_fast_path, fast_path
from cdc.encode.left_out_values import LeftOutValues
from cdc.encode.schema_versions import SchemaVersions
from cdc.encode.snapshot_rows import SnapshotRows, written_key
from cdc.encode.topic_contents.toast import TOAST_FROM, ToastValues
from cdc.encode.truncates import Truncates
from cdc.encode.window_keys import LoggedKeys, Requests
from cdc.model.change import (
    UNCHANGED,
    Change,
    Described,
    Message,
    Op,
    Position,
    Row,
    Table,
    Transaction,
    Xid,
)
from cdc.model.errors import BugError
from cdc.model.interfaces import Handover, Headers, Sink
from cdc.model.state import Key
from cdc.rules.filtered_rows import FilteredRows

NEW_KEY: Final = "__debezium.newkey"
OLD_KEY: Final = "__debezium.oldkey"
"""Headers of the two halves of a key change, as in Debezium; the value is the other half's key."""
_NAMES_NO_ROW: Final = "the log has a row without the whole of its key"
_NULL: Final = b"null"
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
        records: EventRecords,
        *,
        left_out: LeftOutValues,
        truncates: Truncates,
        logged: LoggedKeys,
        requests: Requests,
        letters: DeadLetters,
        key_headers: bool,
        outbox: Outbox | None,
    ) -> None:
        """`logged` notes the keys that events name, for the table that the incremental snapshot reads.

        `key_headers`: the records of a key change name the other key in a header.
        """
        self._sink, self._versions, self._toast, self._letters = sink, versions, toast, letters
        self._records, self._held = records, records.held
        self._left_out, self._answered, self._truncates = left_out, left_out.answered, truncates
        self._logged, self._requests = logged, requests
        self._key_headers, self._outbox = key_headers, outbox
        self._deferred = DeferredKeys()
        self._filtered = FilteredRows()
        self.snapshot: Final = SnapshotRows(
            sink,
            self._records,
            self._encoder_of_read,
            toast,
            self._filtered,
            last=versions.last,
            logged=logged,
            letters=letters,
            outbox=outbox.table if outbox is not None else None,
        )
        """Writes rows that were read."""
        self._fast_paths: dict[int, tuple[str, FastPath]] = {}
        self._batch_fast_path = batch_fast_path(self._fast_paths, self._fast_path, sink.write)

    def taken(self) -> Mapping[tuple[str, str], int]:
        """Return how many events of each table and op were written since the last call."""
        return self._versions.taken()

    def close(self) -> None:
        self._deferred.close()
        self._filtered.close()
        if self._held is not None:
            self._held.close()

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

    def _any_change(self, change: Change, transaction: Transaction, frame: Frame, handover: Handover | None) -> None:
        """Write what the fast path declines."""
        if change.op is Op.TRUNCATE:
            encoder = self._encoder_at(change.table, frame)
            self._left_out.hold_all(encoder, change)
            self._truncates.write(change, encoder, transaction.xid, frame, handover)
            return
        encoder = self._encoder_at(change.table, frame)
        if change.op is Op.READ:
            self._read_again(change)
            return
        if _names_no_row(change):
            self._requests.add(change.table, None, _NAMES_NO_ROW)
            frame.skip()
            return
        of_source = change
        if encoder.published is not None:
            change = _cut(change, encoder)
        try:
            is_read = encoder.table.qualified == self._logged.table
            for row in (change.before, change.after) if is_read or self._letters.refuses else ():
                if row is not None:
                    with suppress(ValueError):  # of a key that cannot be written, `_change` deletes the one before it
                        self._letters.changed(encoder.topic, key := encoder.key(row))
                        if is_read:
                            self._logged.note(key, transaction.xid)
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
        self._requests.add(table, cast("Key | None", key))

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
        key = b"" if after is None else written_key(encoder.key, after)  # None: `_change` tells of it, if it is seen
        old_key = key if before is None else written_key(encoder.key, before)
        if self._answered and old_key is not None:
            self._left_out.hold(encoder, change, old_key, key or old_key)
        halves = self._filtered.halves(
            of_source, change, encoder, old_key, key, being_read=encoder.table.qualified == self._logged.table
        )
        if after is not None and key and encoder.toastable and encoder.publishes(of_source.after or ()) is not True:
            self._toast.forget(encoder, key)
        for half in halves:
            if half is None:
                frame.skip()
            elif half.op is not Op.READ:
                try:
                    self._change(half, encoder, xid, frame, handover)
                except ValueError as exc:
                    self._bad(half, encoder, xid, frame, exc)  # without what readers do not see of the change
            else:
                if handover is None or not handover.hides(change, xid):
                    self._read_again(of_source)
                frame.skip()

    def _fast_path(self, table: Table) -> tuple[str, FastPath]:
        """The topic and the fast path of a table's changes; it declines all until the description is published.

        It also declines all of a table with a deferred key, whose changes must be settled first.
        """
        encoder = self._versions.known(table)
        if encoder is None or table.deferred_key or (self._held is not None and encoder.flat is None):
            return "", _decline
        if self._records.headed:
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
        if change.after is not None:
            with suppress(ValueError):  # its key may be what cannot be written
                key = encoder.key(change.after)
                if isinstance(cause, TooLargeForTopicError):
                    self._letters.too_large(encoder.topic, key)
                if encoder.toastable:
                    self._toast.forget(encoder, key)
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
        if self._answered:
            self._left_out.hold(encoder, change, old_key, key)
        hidden = left = handover is not None and handover.hides(change, xid)
        if handover is not None and old_key != key:
            left = handover.hides(change._replace(op=Op.DELETE, after=None), xid)
        fragments: dict[str, bytes] = {}
        gone = False
        if encoder.toastable:
            if encoder.has_holes(after):
                fragments, gone = self._left_out.fill(
                    encoder, after, old_key, key, xid, handover=handover, hidden=hidden, left=left
                )
            else:
                self._toast.keep(encoder, key, after, fragments)
        op, image = change.op, _NULL
        headers: Headers = ()
        if old_key != key:
            to, of = (
                ((name, other),) if self._key_headers else () for name, other in ((NEW_KEY, key), (OLD_KEY, old_key))
            )
            self._delete(change, encoder, xid, frame, handover, headers=to)
            op, headers = Op.CREATE, of
        elif not hidden and (before is not None or self._held is not None):
            image = self._image(encoder, before, key, frame)
        if hidden or gone:
            frame.skip()
            return
        self._writable(encoder, key, frame, reduced=image != _NULL)
        row = encoder.row(after, fragments)
        self._records.put(
            encoder, key, frame, op=_CODES[op], before=image, after=row, lsn=change.lsn, headers=headers
        )  # fmt: skip

    def _image(self, encoder: TableEncoder, before: Row | None, key: bytes, frame: Frame) -> bytes:
        """The old row's JSON for the event; with dead letters on, its key's alone if the rest cannot be written.

        Where the log has not the whole of it, it is the row that the topic holds, if that is asked.
        """
        refused = self._letters.refusals(encoder.topic, key, frame)
        if refused > 1:
            raise TooLargeForTopicError(encoder.topic)
        if refused == 0 and (before is None or UNCHANGED in before):
            held = self._records.before(encoder, key)
            if held is not None or before is None:
                return held or _NULL
        if before is None:
            return encoder.key_image(key)
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
            raise TooLargeForTopicError(encoder.topic)

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
        if self._answered and change.op is Op.DELETE:
            self._left_out.hold(encoder, change, key, key)
        image = self._image(encoder, change.before, key, frame)
        self._records.put(
            encoder, key, frame, op=b"d", before=image, after=_NULL, lsn=change.lsn, headers=headers
        )  # fmt: skip

    def _encoder_at(self, table: Table, frame: Frame) -> TableEncoder:
        found = self._versions.known(table)
        return found if found is not None else self._encoder(table, Position.parse(frame.next_position()))

    def _encoder_of_read(self, table: Table, position: Position) -> TableEncoder:
        if self._versions.known(table) is None:
            self._versions.refuse_strange(table)
        return self._encoder(table, position)

    def _encoder(self, table: Table, position: Position) -> TableEncoder:
        found = self._versions.known(table)
        if found is not None:
            return found
        return self._versions.add(
            table, self._sink.topic(table), position, self._sink.schema, self._requests.resnapshot
        )


def _names_no_row(change: Change) -> bool:
    """Tell whether a row of the log has no value in a column of its key, and so does not say which row it is.

    The topic has no such row, and may have what it was before or is after. The column may have been nullable for a
    time. Or it is a partition of PostgreSQL, which sends of an old row the columns of its own replica identity, as if
    they were its root's: of the others those that are in the root's are null. Reading the table again brings what is
    right, because a reading is of a table that can be captured at that time: else the next session leaves it out.
    """
    rows = [row for row in (change.before, change.after) if row is not None and None in row]
    if not rows:  # as a rule: where the key stands is looked up for each call
        return False
    indexes = change.table.key_indexes
    return any(row[index] is None for row in rows for index in indexes)


def _cut(change: Change, encoder: TableEncoder) -> Change:
    """Leave out what is not published."""
    before, after = change.before, change.after
    cut = None if after is None else encoder.cut(after)  # first: it may make a key, under which the old row was, too
    return change._replace(table=encoder.table, before=None if before is None else encoder.cut_old(before), after=cut)


def _decline(_change: Change, _frame: Frame) -> None:
    """Decline every change: the fast path of a table whose description is not published yet."""
