"""Writes an event's records to its table's topic, in the topic's format.

| | envelope | flat |
|---|---|---|
| `r`, `c`, `u` | the event | the row |
| `d` | the event, then a tombstone | a tombstone |

CloudEvents' attributes, if they are asked for, are on the record that is the event: on a flat tombstone, not on one
behind a `d`. That one says nothing new, and a second event with the same id would be taken for the first again.

The numbers of events in a transaction are the same in both: they are positions.
"""

from __future__ import annotations

from cdc.encode.envelope.cloud_events import CloudEvents
from cdc.encode.envelope.frame import Frame
from cdc.encode.envelope.table_encoder import TableEncoder
from cdc.encode.topic_contents.topic_rows import TopicRows
from cdc.model.change import Coordinates
from cdc.model.interfaces import Headers, Sink

_DELETE = b"d"


class EventRecords:
    """Writes to the sink's open transaction."""

    def __init__(self, sink: Sink, held: TopicRows | None = None, cloud_events: CloudEvents | None = None) -> None:
        """`held` is told of each row; None: the `before` of events is what the log has.

        `cloud_events` makes headers of every event.
        """
        self._write, self.held, self._cloud_events = sink.write, held, cloud_events
        self.headed = cloud_events is not None
        """Whether every event has headers: no fast path makes them."""

    def before(self, encoder: TableEncoder, key: bytes) -> bytes | None:
        """Return the JSON of the row that the topic holds of a key; None: it holds none, or is not asked."""
        return None if self.held is None or encoder.flat is not None else self.held.find(encoder, key)

    def put(
        self,
        encoder: TableEncoder,
        key: bytes,
        frame: Frame,
        *,
        op: bytes,
        before: bytes,
        after: bytes,
        lsn: Coordinates,
        headers: Headers = (),
    ) -> None:
        """Write the event of a row, in JSON; of a delete `after` is ``null``."""
        wire = encoder.wire
        if encoder.flat is None:
            if self.held is not None:
                self.held.note(encoder, key, after)
            event = frame.event(encoder, op, before, after, lsn)
            told = headers if self._cloud_events is None else (*headers, *self._told(encoder, key, event, op))
            self._write(encoder.topic, key, event if wire is None else wire.value(event), told)
            if op == _DELETE:
                self._write(encoder.topic, key, None, headers)
            return
        position = frame.next_position()
        event = frame.event(encoder, op, b"", b"", lsn)  # which counts it, and has its time
        told = (
            *headers,
            encoder.flat.header(op, position, encoder.version),
            *self._told(encoder, key, event, op, empty=op == _DELETE),
        )
        value = None if op == _DELETE else encoder.flat.value(after, event, op, position)
        self._write(encoder.topic, key, value if wire is None or value is None else wire.value(value), told)

    def _told(self, encoder: TableEncoder, key: bytes, event: bytes, op: bytes, *, empty: bool = False) -> Headers:
        return () if self._cloud_events is None else self._cloud_events.headers(encoder, key, event, op, empty=empty)
