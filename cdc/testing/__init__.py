"""In-memory twins of the seams: a log, a source and a snapshotter over it, and a Kafka with transactions.

They keep the promises of `cdc.model.interfaces` and fail where the real ones fail: commits reach the log before a
view sees them, a commit that raised may have happened, a fenced producer cannot commit, aborted records stay in the
topic. To test a source of your own, run `cdc.capture.pipeline.Pipeline` with it and a `MemorySink`, and compare
`MemoryKafka.committed` with your tables. To see that it survives, pass `at=Faults(("sink.commit.answer", 1))`.

`at` is called with a name of `POINTS` just before what it names happens, and what it raises comes out of the twin's
method. It may also change things, such as commit to the log while a snapshot is read.
"""

from __future__ import annotations

from cdc.testing.faults import POINTS, At, Faults, Inline, Killed, nothing
from cdc.testing.kafka import MemoryKafka, MemorySink, Outcome, Record
from cdc.testing.log import Key, Logged, MemoryLog, View, delete, insert, key_of, truncate, update
from cdc.testing.meter import MemoryMeter
from cdc.testing.source import MemoryHandover, MemorySnapshotter, MemorySource, view_from

__all__ = [
    "POINTS",
    "At",
    "Faults",
    "Inline",
    "Key",
    "Killed",
    "Logged",
    "MemoryHandover",
    "MemoryKafka",
    "MemoryLog",
    "MemoryMeter",
    "MemorySink",
    "MemorySnapshotter",
    "MemorySource",
    "Outcome",
    "Record",
    "View",
    "delete",
    "insert",
    "key_of",
    "nothing",
    "truncate",
    "update",
    "view_from",
]
