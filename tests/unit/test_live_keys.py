"""The keys a topic holds, however many."""

from __future__ import annotations

import random
import tracemalloc

from cdc.encode.topic_contents.live_keys import LiveKeys


def test_it_is_a_set_in_the_order_of_bytes() -> None:
    """Whatever comes and goes, and how often."""
    chance = random.Random(7)
    expected: set[bytes] = set()
    with LiveKeys() as live:
        for _ in range(3_000):
            key = b'{"id":%d}' % chance.randrange(300)
            if chance.random() < 0.5:
                live.put(key)
                expected.add(key)
            else:
                live.discard(key)
                expected.discard(key)
        assert list(live) == sorted(expected)
        assert list(live) == sorted(expected), "reading takes nothing away"


def test_bytes_are_bytes() -> None:
    """Zero bytes and bytes that are no text are told apart."""
    with LiveKeys() as live:
        for key in (b"", b"\0", b"\xff", b"a", b"a\0"):
            live.put(key)
        assert list(live) == [b"", b"\0", b"a", b"a\0", b"\xff"]


def test_memory_does_not_follow_the_number_of_keys() -> None:
    """50,000 keys cost a set of Python's more than 5 MB."""
    tracemalloc.start()
    with LiveKeys() as live:
        for n in range(50_000):
            live.put(b'{"id":%d}' % n)
        assert sum(1 for _ in live) == 50_000
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000
