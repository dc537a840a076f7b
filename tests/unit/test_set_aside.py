"""A copy that cannot go on is set aside, noted first, and tried again; what concerns all ends the job. No server."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import pytest

from cdc.config.apply_config import ApplyTable
from cdc.model.change import Kind
from cdc.model.errors import BugError, CdcError, OperatorError, RetryableError
from spark_apply.events.kafka.client import NoAnswerError
from spark_apply.events.projection import projected_table
from spark_apply.events.set_aside import SetAside, aside_id
from spark_apply.job.copies.route import Route
from spark_apply.job.copies.set_aside import AsideCopies, of_all
from spark_apply.model.target_table import Version
from spark_apply.spark.failures import StoreAwayError

GONE, AWAY = OperatorError("the table was dropped"), RetryableError("the server is away")


@dataclass
class Quarantine:
    """Keeps what would be written to the topic, and may refuse it."""

    there: dict[bytes, bytes | None] = field(default_factory=dict)
    refuses: bool = False

    def write(self, records: dict[bytes, bytes | None]) -> None:
        if self.refuses and records:
            raise OperatorError("the quarantine cannot be written")
        self.there |= records


def route(name: str, *stores: str) -> Route:
    version = Version("shop", "public", name, f"shop.public.{name}", 1, ("id",), (("id", Kind("int64")),))
    anything: Any = dict.fromkeys(stores, object())
    return Route(projected_table([version], ApplyTable(stores=stores)), anything)


def asides(*, once: bool = False, noted: bool = False) -> tuple[AsideCopies, Quarantine, list[str]]:
    quarantine, told = Quarantine(), list[str]()
    routes = {f"shop.public.{name}": route(name, "lake", "search") for name in ("a", "b")}
    made = AsideCopies(routes, quarantine, told.append, once, containing=True)  # type: ignore[arg-type]
    if noted:
        made.known = {aside_id("shop.public.a", "lake"): SetAside("lake", "public.a", "shop.public.a", "x", None, 1)}
    return made, quarantine, told


def test_one_copy_is_set_aside_and_the_others_go_on() -> None:
    made, quarantine, told = asides()
    with made.contained("shop.public.a", "lake"):
        raise GONE
    assert list(made.routes["shop.public.a"].stores) == ["search"]
    assert list(made.routes["shop.public.b"].stores) == ["lake", "search"]
    assert list(made) == [("shop.public.a", "lake")]
    assert told == ["warning: public.a in lake is set aside, the others go on: the table was dropped"]
    assert list(quarantine.there) == [aside_id("shop.public.a", "lake")]
    with made.contained("shop.public.a", "lake"):
        raise GONE
    assert len(told) == 1, "it is so already"
    made.failed("shop.public.a", "lake", GONE)
    assert len(told) == 1, "for the same reason"
    made.failed("shop.public.a", "lake", AWAY)
    assert told[1:] == ["warning: public.a in lake is set aside, the others go on: the server is away"]
    made.forget_others()
    assert quarantine.there[aside_id("shop.public.a", "lake")] is not None
    del made.copies["shop.public.a", "lake"]
    made.forget_others()
    assert quarantine.there == {aside_id("shop.public.a", "lake"): None}


def test_a_store_at_which_nobody_answers_is_asked_for_none_of_its_copies() -> None:
    made, quarantine, told = asides()
    with made.contained("shop.public.a", "lake"):
        raise StoreAwayError("nobody answers")
    assert [list(of.stores) for of in made.routes.values()] == [["search"], ["search"]]
    assert set(quarantine.there) == {aside_id(f"shop.public.{table}", "lake") for table in ("a", "b")}
    assert told == [
        f"warning: public.{table} in lake is set aside, the others go on: nobody answers" for table in ("a", "b")
    ]


@pytest.mark.parametrize("exc", [BugError("ours"), KeyError("unknown"), InterruptedError()])
def test_what_concerns_all_is_raised(exc: Exception) -> None:
    made, quarantine, _ = asides()
    with pytest.raises(type(exc)), made.contained("shop.public.a", "lake"):
        raise exc
    assert not list(made)
    assert not quarantine.there


def test_a_failure_is_raised_as_long_as_the_batch_is_tried_again() -> None:
    made, _, _ = asides()
    made.containing = False
    with pytest.raises(OperatorError), made.contained("shop.public.a", "lake"):
        raise GONE
    assert not list(made)


def test_what_cannot_be_noted_ends_the_job() -> None:
    """Otherwise nobody would know that something is missing in the copy."""
    made, quarantine, _ = asides()
    quarantine.refuses = True
    with pytest.raises(OperatorError, match="cannot be written"), made.contained("shop.public.a", "lake"):
        raise GONE


@pytest.mark.parametrize(
    ("errors", "once", "ends"),
    [
        ([GONE, GONE, GONE, GONE], False, GONE),
        ([AWAY, AWAY, AWAY, AWAY], True, AWAY),
        ([AWAY, AWAY, AWAY, AWAY], False, None),
        ([AWAY, AWAY, GONE, AWAY], False, GONE),
    ],
)
def test_the_job_ends_if_no_copy_is_left(errors: list[CdcError], ends: CdcError | None, *, once: bool) -> None:
    """A job that only waits for servers goes on waiting, unless it runs once."""
    made, _, _ = asides(once=once)
    copies = [(topic, name) for topic, of in list(made.routes.items()) for name in of.stores]
    for (topic, name), error in zip(copies[:-1], errors, strict=False):
        made.put(topic, name, error)
    if ends is None:
        made.put(*copies[-1], errors[-1])
        return
    with pytest.raises(type(ends), match=str(ends)):
        made.put(*copies[-1], errors[-1])


def test_each_cause_is_told_where_no_copy_is_left() -> None:
    made, _, _ = asides()
    full = OperatorError("the disk is full", hint="make room")
    causes = [GONE, full, GONE, OperatorError("no right", hint="GRANT …")]
    *copies, last = [(topic, name) for topic in made.routes for name in ("lake", "search")]
    for (topic, name), error in zip(copies, causes, strict=False):
        made.put(topic, name, error)
    with pytest.raises(OperatorError) as told:
        made.put(*last, causes[-1])
    of = "public.a in lake and 1 more: the table was dropped; public.a in search: the disk is full; "
    assert told.value.message == f"no copy can go on. {of}public.b in search: no right"
    assert [line.strip() for line in (told.value.hint or "").splitlines()] == ["make room", "GRANT …"], "to be pasted"


def test_brokers_that_are_away_from_all_copies_are_waited_for() -> None:
    error = of_all({"a in lake": NoAnswerError("k does not answer (1)"), "b in lake": NoAnswerError("nor now (2)")})
    assert isinstance(error, NoAnswerError)
    mixed = of_all({"a in lake": NoAnswerError("k does not answer (1)"), "b in lake": GONE})
    assert not isinstance(mixed, NoAnswerError)


def test_a_start_knows_what_an_earlier_run_has_set_aside() -> None:
    made, _, _ = asides(noted=True)
    assert not made.is_behind("shop.public.b", "lake")
    assert made.is_behind("shop.public.a", "lake")
    assert list(made.routes["shop.public.a"].stores) == ["search"]
    assert made.copies["shop.public.a", "lake"].due_at == 0.0, "at once"


@pytest.mark.parametrize("once", [False, True])
@pytest.mark.parametrize("opened", [False, True])
@pytest.mark.parametrize("error", [AWAY, GONE])
def test_the_job_goes_on_while_a_copy_is_being_caught_up(error: CdcError, *, opened: bool, once: bool) -> None:
    """It ends once that one cannot go on either: by its error, not by the words that it is being caught up."""
    made, _, _ = asides(noted=True, once=once)
    made.routes = {topic: route(topic.rpartition(".")[2], "lake") for topic in made.routes}
    assert made.is_behind("shop.public.a", "lake")
    if opened:  # as a copy that has failed, and that its server takes again
        aside = made.copies["shop.public.a", "lake"]
        aside.error, aside.route = GONE, route("a", "lake")
    with made.contained("shop.public.b", "lake"):
        raise error
    assert not made.over
    if error is AWAY and not once:
        made.failed("shop.public.a", "lake", AWAY)
        return
    with pytest.raises(type(error), match=str(error)):
        made.failed("shop.public.a", "lake", AWAY)


@pytest.mark.parametrize(("error", "then"), [(GONE, [5.0, 10.0, 20.0]), (AWAY, [5.0, 5.0, 5.0])])
def test_one_that_fails_again_after_it_went_on_waits_longer(error: CdcError, then: list[float]) -> None:
    """Each time all copies of its store are folded in again; a server that was away is there again at once."""
    made, _, _ = asides()
    waits, route = [], made.routes["shop.public.a"]
    for _ in range(3):
        made.put("shop.public.a", "lake", error)
        waits.append(made.copies["shop.public.a", "lake"].wait_s)
        made.goes_on("shop.public.a", "lake", route)
    assert waits == then


@pytest.mark.parametrize(
    ("error", "then"),
    [
        (GONE, [5.0, 5.0, 10.0, 20.0, 40.0, 60.0]),
        (StoreAwayError("nobody answers"), [5.0, 5.0, 5.0, 5.0, 5.0, 5.0]),
    ],
)
def test_it_is_tried_less_and_less_often(error: CdcError, then: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that is back is found soon, however often its copies were tried in vain."""
    monkeypatch.setattr(time, "monotonic", lambda: 100.0)
    made, _, _ = asides()
    made.put("shop.public.a", "lake", error)
    waits = []
    for _ in range(6):
        waits.append(made.copies["shop.public.a", "lake"].due_at - 100.0)
        made.failed("shop.public.a", "lake", error)
    assert waits == then
