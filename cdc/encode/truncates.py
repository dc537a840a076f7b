"""Writes a truncate as deletes: a compacted topic of keyed records can carry nothing else of it."""

from __future__ import annotations

from typing import Final

from cdc.encode.envelope.frame import Frame
from cdc.encode.envelope.table_encoder import TableEncoder
from cdc.encode.event_records import EventRecords
from cdc.encode.topic_contents.live_keys import LiveKeys
from cdc.encode.window_keys import LoggedKeys, Requests
from cdc.model.change import Change, Op, Xid
from cdc.model.interfaces import Handover, Sink

TRUNCATED_AT_ONCE: Final = 20_000
"""The loop reads and deletes the keys of a topic with so many records in about a second."""
_NULL: Final = b"null"
_TRUNCATE: Final = Op.TRUNCATE.value.encode()


class Truncates:
    """Writes to the sink's open transaction; commits nothing."""

    def __init__(
        self, sink: Sink, records: EventRecords, *, logged: LoggedKeys, requests: Requests, whole: bool
    ) -> None:
        """`whole`: the sink keeps no rows; a truncate is an event."""
        self._sink, self._logged, self._requests, self._whole = sink, logged, requests, whole
        self._records = records

    def write(self, change: Change, encoder: TableEncoder, xid: Xid, frame: Frame, handover: Handover | None) -> None:
        """Write a delete for every live key of the table, in the order of the keys: a replay writes the same.

        Of a topic that may have many keys they are written later, in parts: they are the keys that a reading of the
        table from here on does not confirm.
        """
        if not self._whole and self._sink.extent(change.table) > TRUNCATED_AT_ONCE:
            self._requests.emptied(change.table)
            return
        if encoder.table.qualified == self._logged.table:
            self._logged.empty(xid)
        if self._whole:
            self._records.put(encoder, b"", frame, op=_TRUNCATE, before=_NULL, after=_NULL, lsn=change.lsn)
            if handover is not None:  # a part of its rows may have been read behind it
                self._requests.emptied(change.table)
            return
        bound = frame.next_position()

        def kept(view: int) -> bool:
            return handover is not None and handover.saw(change.table, view, xid)

        with LiveKeys() as live:
            live.of_topic(self._sink.records(change.table), change.table, encoder.topic, bound=bound, kept=kept)
            for key in live:
                image = self._records.before(encoder, key) or encoder.key_image(key)
                self._records.put(encoder, key, frame, op=b"d", before=image, after=_NULL, lsn=change.lsn)
