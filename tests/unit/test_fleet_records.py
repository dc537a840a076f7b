"""What a fleet's member knows of the topic of entries, behind a failure to look at it."""

from __future__ import annotations

import queue
from typing import Any
from unittest.mock import Mock

import pytest

from cdc.model.errors import RetryableError
from sinks.fleet import topic
from sinks.fleet.topic import FollowedRecords

ENTRY = {"connector/a": b"1"}


@pytest.mark.parametrize(
    ("known", "told", "found", "made_and_taken"),
    [
        ("one", ["one", "one"], ENTRY, (1, [ENTRY])),
        ("", ["", ""], ENTRY, (1, [ENTRY])),
        ("", ["", ""], {}, (2, [])),
        ("one", ["", "one"], ENTRY, (2, [ENTRY])),
        ("one", ["two", "two"], {}, (2, [])),
    ],
    ids=["same", "broker without ids", "without ids, made again or deleted", "deleted for a moment", "made again"],
)
def test_entries_are_read_again_behind_a_failure(
    monkeypatch: pytest.MonkeyPatch, known: str, told: list[str], found: dict[str, bytes], made_and_taken: Any
) -> None:
    """By new clients, once: a broker that gives topics no ids was asked by another client every two seconds."""
    made = Mock()
    monkeypatch.setattr(topic, "AdminClient", made)
    followed: Any = object.__new__(FollowedRecords)
    followed._servers, followed._options, followed._topic, followed._identity = "s", {}, "t", known
    followed._next = queue.SimpleQueue()
    followed._over = Mock(wait=Mock(side_effect=[False, False, False, True]))
    followed._looked_up = Mock(side_effect=[RetryableError("away"), *told])
    followed._read = Mock(return_value=(found, Mock()))
    followed._watch()
    taken = [followed._next.get_nowait()[0] for _ in range(followed._next.qsize())]
    assert (made.call_count, taken) == made_and_taken
