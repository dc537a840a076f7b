"""What a member starts and stops, of what it has heard."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cdc.fleet.roster import (
    FENCED_S,
    FRESH_S,
    LASTED_S,
    PAUSE_LONGEST_S,
    STOP_S,
    Job,
    Jobs,
    Kill,
    Reason,
    Roster,
    Start,
    Stop,
)
from cdc.model.errors import FencedError, VerdictError

A, B = Job("a", 0, "1"), Job("b", 1, "1")


def of(*jobs: Job) -> Roster:
    roster = Roster()
    roster.entries(Jobs(jobs))
    return roster


def running(*jobs: Job) -> Roster:
    roster = of(*jobs)
    roster.assigned([job.place for job in jobs], 0.0)
    assert roster.decide(0.0) == [Start(job.name, take_over=True) for job in jobs]
    return roster


def test_only_what_is_its_own_is_started() -> None:
    roster = of(A, B)
    assert roster.decide(0.0) == []
    roster.assigned([1, 5], 1.0)
    assert roster.decide(1.0) == [Start("b", take_over=True)]
    assert roster.decide(1.0) == []


def test_a_place_is_given_up_when_its_child_has_ended() -> None:
    roster = running(A, B)
    roster.revoked([0])
    assert roster.decide(1.0) == [Stop("a")]
    assert roster.busy([0])
    assert roster.decide(1.0 + STOP_S - 0.1) == []
    assert roster.decide(1.0 + STOP_S) == [Kill("a")]
    assert roster.decide(2.0 + STOP_S) == []
    assert roster.ended("a", -9, 10.0) is None
    assert not roster.busy([0])
    assert roster.decide(10.0) == []


def test_what_is_lost_goes_on_until_the_group_has_spoken() -> None:
    """The coordinator may be away for long; then places come in turns, or not at all."""
    roster = running(A, B)
    roster.lost()
    assert roster.decide(1000.0) == []
    roster.assigned([1], 1000.0)
    assert roster.decide(1000.0) == [Stop("a")]
    assert roster.running == {"a", "b"}


def test_what_is_lost_and_taken_out_of_the_fleet_is_stopped() -> None:
    roster = running(A, B)
    roster.lost()
    roster.entries(Jobs([B]))
    assert roster.decide(1.0) == [Stop("a")]


def test_old_news_takes_nothing_over() -> None:
    """A member that was frozen between the news and the start: what it starts stands by."""
    roster = of(A)
    roster.assigned([0], 0.0)
    assert roster.decide(FRESH_S + 0.1) == [Start("a", take_over=False)]


def test_a_child_that_is_fenced_is_not_started_before_the_group_would_have_told() -> None:
    roster = running(A)
    roster.ended("a", 3, 100.0)
    assert roster.decide(100.0 + FENCED_S - 0.1) == []
    roster.lost()  # it was out
    roster.assigned([], 100.0 + FENCED_S)
    assert roster.decide(200.0) == []


def test_a_child_that_was_fenced_from_outside_stands_by_in_the_end() -> None:
    roster = running(A)
    roster.ended("a", 3, 100.0)
    assert roster.decide(100.0 + FENCED_S) == [Start("a", take_over=False)]


def test_a_new_tenure_takes_over_at_once() -> None:
    roster = running(A)
    roster.ended("a", 3, 1.0)
    roster.lost()
    roster.assigned([0], 2.0)
    assert roster.decide(2.0) == [Start("a", take_over=True)]


def test_one_that_fails_backs_off_alone() -> None:
    """Each restart in a tenure stands by; a run that lasted begins again with the shortest pause."""
    roster = running(A, B)
    now = 1.0
    waited = []
    for _ in range(9):
        pause = roster.ended("a", 1, now)
        assert pause is not None
        waited.append(pause.until_s - now)
        assert roster.decide(pause.until_s - 0.01) == []
        now = pause.until_s
        assert roster.decide(now) == [Start("a", take_over=False)]
    assert waited == [1, 2, 4, 8, 16, 32, PAUSE_LONGEST_S, PAUSE_LONGEST_S, PAUSE_LONGEST_S]
    pause = roster.ended("a", 1, now + LASTED_S)
    assert pause is not None
    assert pause.failures == 1
    assert roster.running == {"b"}


def test_an_entry_that_is_replaced_is_started_again_with_no_pause() -> None:
    roster = running(A)
    roster.ended("a", 2, 1.0)
    assert roster.decide(1.0) == []
    roster.entries(Jobs([Job("a", 0, "2")]))
    assert roster.decide(1.1) == [Start("a", take_over=False)]
    roster.entries(Jobs([Job("a", 0, "3")]))
    assert roster.decide(2.0) == [Stop("a")]
    roster.ended("a", 0, 2.5)
    assert roster.decide(2.5) == [Start("a", take_over=False)]


def test_a_verdict_is_met_once_a_tenure() -> None:
    """No pause ends it: an entry of another version does, another tenure, and who asks the member to try."""
    roster = running(A, B)
    steps: list[tuple[float, Callable[[], object]]] = [
        (1.0, lambda: roster.entries(Jobs([Job("a", 0, "asked for"), B]))),
        (1e9, roster.tries_again),
        (2e9, lambda: (roster.revoked([0]), roster.assigned([0], 2e9))),
    ]
    for now, again in steps:
        pause = roster.ended("a", VerdictError.exit_code, now)
        assert pause is not None
        assert pause.reason is Reason.STOPPED
        assert roster.decide(now + 1e8) == []
        again()
        assert [one.name for one in roster.decide(now + 1e8)] == ["a"]
    roster.ended("b", FencedError.exit_code, 3e9)
    roster.tries_again()
    assert roster.decide(3e9) == [], "who was fenced waits until the group has had the time to say why"


@pytest.mark.parametrize("settled", [True, False])
def test_a_member_that_leaves_stops_everything(settled: bool) -> None:
    roster = running(A, B)
    if not settled:
        roster.lost()
    roster.leave()
    assert roster.decide(1.0) == [Stop("a"), Stop("b")]
    roster.ended("a", 0, 1.5)
    roster.ended("b", 1, 1.5)
    assert not roster.running
    assert roster.decide(100.0) == []
