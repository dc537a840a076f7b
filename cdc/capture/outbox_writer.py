"""Writes the messages of an outbox: each insert of the log is one, and all of a transaction are committed together."""

from __future__ import annotations

import logging

from cdc.config.published.outbox import OutboxConfig
from cdc.encode.dead_letters import DeadLetters, PoisonRecord, UnwritableError
from cdc.encode.envelope.frame import Frame
from cdc.encode.envelope.table_encoder import TableEncoder
from cdc.model.change import UNCHANGED, Change, Described, Op, Row, Table, Xid
from cdc.model.interfaces import Sink
from cdc.rules.outbox import COLUMNS, NotRoutedError, route

log = logging.getLogger("cdc")


class OutboxWriter:
    """Writes to the sink's open transaction."""

    def __init__(self, outbox: OutboxConfig, sink: Sink, letters: DeadLetters) -> None:
        self.table = outbox.table
        self._prefix = outbox.topic_prefix
        self._sink = sink
        self._letters = letters
        self._topics: dict[str, str] = {}
        """By aggregate type."""
        self._told = self._told_unsure = False
        self._deleted: tuple[Xid, dict[str, object]] | None = None
        """The row that the change before this one has deleted."""

    def write(self, change: Change | Described, frame: Frame, xid: Xid) -> None:
        """Publish an insert. A delete is the application's way to tidy up, an update is no message.

        A READ says that rows may have changed without events, mostly by DDL. What is inserted without its row in the
        log (MySQL: a session with another binlog_format) cannot be told from what was published, so it is warned of.
        """
        if isinstance(change, Described):
            return
        if change.op is Op.READ:
            log.warning(
                "table %s: DDL, or a statement in the place of rows: rows of the outbox that came so are not "
                "published; source: {on_hole: stop} stops at such a statement", self.table,
            )  # fmt: skip
        moved = self._is_moved(change, xid)
        if change.op is Op.CREATE and change.after is not None and not moved:
            self._publish(change.table, change.after, change, frame, xid)
        elif (moved or change.op is Op.UPDATE) and not self._told:
            self._told = True
            log.warning("table %s: rows of the outbox are updated: an update is not published", self.table)
        frame.skip()

    def _is_moved(self, change: Change, xid: Xid) -> bool:
        """Whether an insert is the second half of an update, which has moved a row to another partition.

        PostgreSQL writes the two into its log one behind the other. The columns by which a table is partitioned are in
        its key, so the key is another one, and the message the same. Who deletes a message and inserts it again may
        mean another one: where the old row is not known whole the two cannot be told apart, and twice is better than
        not at all.
        """
        deleted, self._deleted = self._deleted, None
        if change.op is Op.DELETE and change.before is not None:
            self._deleted = xid, _named(change.table, change.before)
        if deleted is None or change.op is not Op.CREATE or change.after is None or deleted[0] != xid:
            return False
        was, now = deleted[1], _named(change.table, change.after)
        is_moved = was.get("id") == now.get("id") and any(was.get(name) != now.get(name) for name in change.table.key)
        if is_moved and UNCHANGED in was.values() and not self._told_unsure:
            self._told_unsure = True
            log.warning(
                "table %s: a row was deleted and inserted again under another key, or an update has moved it to "
                "another partition: which, the log does not tell, so it is published; with REPLICA IDENTITY FULL of "
                "the table and its partitions it tells, and an update publishes nothing", self.table,
            )  # fmt: skip
        return is_moved and all(was.get(name) == now.get(name) for name in COLUMNS)

    def _publish(self, table: Table, row: Row, change: Change, frame: Frame, xid: Xid) -> None:
        try:
            message = route(table, row)
            topic = self._topic(message.aggregate_type)
        except ValueError as exc:
            cause = UnwritableError(str(exc), exc.columns) if isinstance(exc, NotRoutedError) else exc
            bad = PoisonRecord(change.op, None, row, frame.next_position(), change.lsn, xid)
            encoder = TableEncoder(table, connector="", prefix="", database="", version=0, topic="")
            self._letters.add(encoder, bad, cause)
            return
        self._sink.write(topic, message.key, message.value, message.headers)

    def _topic(self, aggregate_type: str) -> str:
        if aggregate_type not in self._topics:
            try:
                self._topics[aggregate_type] = self._sink.routed_topic(self._prefix, aggregate_type)
            except ValueError as exc:
                raise NotRoutedError(str(exc), ("aggregatetype",)) from exc
        return self._topics[aggregate_type]


def _named(table: Table, row: Row) -> dict[str, object]:
    return {column.name: value for column, value in zip(table.columns, row, strict=True)}
