"""Writes what the log says into the open Kafka transaction: whole source transactions, and messages between them."""

from __future__ import annotations

import time

from cdc.capture.commit_pace import CommitPace
from cdc.capture.freshness import Freshness
from cdc.capture.place import Place
from cdc.encode.envelope.frame import Frame, transaction_records
from cdc.encode.event_writer import EventWriter
from cdc.model.change import Message, Transaction
from cdc.model.interfaces import Handover, Sink, Source


class LogWriter:
    """Writes in the log's order; commits nothing. Each method returns how many events it has written."""

    def __init__(
        self,
        writer: EventWriter,
        sink: Sink,
        source: Source,
        place: Place,
        *,
        freshness: Freshness,
        pace: CommitPace,
        marks: bool,
    ) -> None:
        """`marks`: the beginning and the end of each transaction are written to a topic of their own."""
        self._writer, self._sink, self._source, self._place = writer, sink, source, place
        self._freshness, self._pace, self._marks = freshness, pace, marks
        self._epoch = place.state.epoch
        self.handover: Handover | None = None
        """Tells which events a snapshot's rows contain already; None: there are none such any more."""

    def batch(self, transactions: list[Transaction]) -> int:
        """Write a batch of source transactions in order: by the fast path those whose changes all take it."""
        at = events = 0
        while at < len(transactions):
            if self.handover is None and not self._marks:
                written, made = self._fast(transactions, at)
                at += written
                events += made
            if at < len(transactions):
                events += self.transaction(transactions[at])
                at += 1
        return events

    def _fast(self, transactions: list[Transaction], begin: int) -> tuple[int, int]:
        """Write the transactions from `begin` on by the fast path, up to one that it declines.

        Returns how many that were, and their events.
        """
        self._pace.begins(self._sink.pending()[0])
        made_at_ms = time.time_ns() // 1_000_000
        written, events = self._writer.batch(transactions, begin, self._epoch, made_at_ms)
        self._freshness.read(transactions[begin : begin + written])
        return written, events

    def transaction(self, transaction: Transaction) -> int:
        """Write one whole source transaction."""
        self._pace.begins(self._sink.pending()[0])
        frame = Frame(
            epoch=self._epoch,
            commit=transaction.commit,
            at_ms=transaction.committed_at_ms,
            made_at_ms=time.time_ns() // 1_000_000,
            transaction=(transaction.id, transaction.xid),
            where=transaction.where,
        )
        self._place.frame = frame
        self._writer.changes(transaction, frame, self.handover)
        self._place.frame = None
        self._freshness.read_one(transaction.committed_at_ms, frame.events)
        counts = frame.counts() if self._marks else []
        if counts:
            for key, value in transaction_records(transaction.id, transaction.committed_at_ms, counts):
                self._sink.log("transaction", key, value)
        if self.handover is not None and self.handover.spent(transaction.commit):
            self.handover = None
        return frame.events

    def message(self, message: Message) -> int:
        """Write a message that belongs to no transaction."""
        self._pace.begins(self._sink.pending()[0])
        now_ms = time.time_ns() // 1_000_000
        where, _ = self._source.coordinates(message.lsn)
        frame = Frame(
            epoch=self._epoch,
            commit=message.lsn,
            at_ms=now_ms,
            made_at_ms=now_ms,
            transaction=None,
            where=where,
            alone=True,
        )
        self._writer.message(message, frame)
        return 1
