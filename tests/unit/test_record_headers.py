"""Headers of records: none unless they are asked for; of a key change each half names the other."""

from __future__ import annotations

import pytest

from cdc.capture.pipeline import Pipeline, Settings
from cdc.model.change import Change, Op
from cdc.testing import MemoryKafka, MemoryLog, MemorySink, MemorySnapshotter, MemorySource, Record, insert, update
from tests.text_tables import text_table

TABLE = text_table("t", ["id", "note"])


def _moved(*, key_headers: bool, whole: bool) -> list[Record]:
    log, kafka = MemoryLog(), MemoryKafka()
    log.commit(insert(TABLE, (b"1", b"a")))

    def run() -> None:
        Pipeline(
            Settings(connector="c", prefix="p", key_headers=key_headers),
            open_source=lambda: MemorySource(log, [TABLE]),
            open_snapshotter=lambda: MemorySnapshotter(log),
            sink=MemorySink(kafka, "c", "p", logged=["s.t"]),
        ).run(until_caught_up=True)

    run()
    moved = update(TABLE, (b"2", b"b"), key=(b"1",))
    log.commit(Change(Op.UPDATE, TABLE, (b"1", b"a"), (b"2", b"b"), 0) if whole else moved)
    log.commit(update(TABLE, (b"2", b"c")))
    run()
    assert [r.headers for r in kafka.committed("p.log.s.t")] == [
        r.headers for r in kafka.committed("p.s.t") if r.value is not None
    ]
    return kafka.committed("p.s.t")


@pytest.mark.parametrize("whole", [False, True])
def test_a_key_change_names_the_other_key(*, whole: bool) -> None:
    """The delete and its tombstone the new one, the create the old one; nothing else has headers."""
    records = _moved(key_headers=True, whole=whole)
    new, old = (("__debezium.newkey", b'{"id":"2"}'),), (("__debezium.oldkey", b'{"id":"1"}'),)
    assert [r.headers for r in records] == [(), new, new, old, ()]


def test_without_being_asked_nothing_has_headers() -> None:
    """So no record is larger than before."""
    assert not any(r.headers for r in _moved(key_headers=False, whole=False))
