"""What is looked at beside the loop: found twice it stops, found once it does not, and nothing waits for it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from cdc.model.errors import OperatorError, RetryableError, TopicError
from sinks.topics import settings_watch
from sinks.topics.settings_watch import Seen, SettingsWatch
from sinks.topics.topics import Wanted
from sinks.topics.wanted import Refused
from tests.integration.running import eventually

WRONG = Seen((OperatorError("topic t has cleanup.policy=delete", hint="set it back"),))
OTHER = Seen((OperatorError("topic u has cleanup.policy=delete", hint="set it back"),))


class _Looks:
    """Gives one after the other; the last of them again and again."""

    def __init__(self, *seen: Seen | Exception) -> None:
        self._seen: Iterator[Seen | Exception] = iter(seen)
        self._last: Seen | Exception = Seen()
        self.done = 0

    def __call__(self) -> Seen:
        self._last = next(self._seen, self._last)
        self.done += 1
        if isinstance(self._last, Exception):
            raise self._last
        return self._last


def _after(looks: _Looks, times: int) -> SettingsWatch:
    watch = SettingsWatch(looks, every_s=0.0)

    def looked() -> bool:
        assert not watch.moved()
        return looks.done > times

    eventually(looked, "it looks")
    return watch


def test_what_two_looks_have_found_is_raised() -> None:
    """As a start would: with its statement."""
    watch = SettingsWatch(_Looks(Seen(), WRONG, WRONG), every_s=0.0)
    with pytest.raises(OperatorError, match=r"cleanup\.policy=delete") as caught:
        eventually(watch.moved, "it is raised")
    assert caught.value.hint == "set it back"


def test_what_is_set_back_is_not_raised() -> None:
    """Nor is another topic's fault taken for the first one's, nor a broker that is away for anything."""
    _after(_Looks(WRONG, Seen(), WRONG, OTHER, RetryableError("away"), OTHER, Seen()), 8)


def test_deleted_records_are_told() -> None:
    """At once: no look gives them back."""
    watch = SettingsWatch(_Looks(Seen(lost=True)), every_s=0.0)
    eventually(watch.moved, "it is told")


@pytest.mark.parametrize("first", ["it goes away while it is asked", "no leader", "no answer"])
def test_what_a_broker_has_that_was_away_is_looked_at_until_it_says(
    first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings_watch, "_AGAIN_S", 0.0)
    done: list[None] = []

    def look() -> Seen:
        done.append(None)
        if len(done) > 1:
            return Seen(lost=len(done) == 3)
        if first == "no answer":
            raise RetryableError("away")
        if first == "no leader":
            return Seen(led=False)
        watch.soon()
        return Seen()

    watch = SettingsWatch(look, every_s=0.0 if first.startswith("it") else 1_000.0)
    watch._every_s = 1_000.0
    if not first.startswith("it"):
        watch.soon()
    eventually(lambda: watch.moved() or len(done) == 2, "it looks again")
    eventually(lambda: watch._thread is None or not watch._thread.is_alive(), "it has looked")
    assert not watch.moved()
    assert len(done) == 2, "and then as always"
    watch.soon()
    eventually(watch.moved, "what it finds is told")


def test_a_look_that_takes_long_holds_up_nothing() -> None:
    """There is one of them at a time."""
    going, begun = threading.Event(), []

    def look() -> Seen:
        begun.append(threading.current_thread())
        going.wait(30)
        return WRONG

    watch = SettingsWatch(look, every_s=0.0)
    eventually(lambda: watch.moved() or begun, "it has begun")
    assert not any(watch.moved() for _ in range(100))
    assert len(begun) == 1
    going.set()
    begun[0].join()


def test_a_topic_that_was_right_again_ends_no_second_session() -> None:
    """Its table may be gone by then, so that nobody asks for it: each session would end after a minute, for ever."""
    refused, topic = Refused(), Wanted.events("p.a.b", 1)
    with suppress(TopicError), refused.noting():
        refused.ask([topic])
        raise TopicError("it is not as it must be", hint="make it so", topic=topic.of)
    assert refused.topics == [topic]
    assert not refused.moved(lambda: False)
    assert refused.topics == [topic]
    assert refused.moved(lambda: True)
    assert not refused.topics
