"""What cannot be computed of a view are some of its units: they keep what they had, and the others go on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.config.views import ViewConfig
from cdc.model.change import Kind
from spark_apply.views.embedded import containment, step
from spark_apply.views.embedded.containment import Range, Search
from spark_apply.views.embedded.step import ViewError
from spark_apply.views.planning.forms import plan_config
from spark_apply.views.planning.view import View
from spark_apply.views.sql.view_plan import Relation
from tests.views.steps import Steps

MONEY = Kind("decimal", 38, 2)
ROWS = Relation(
    "public.m", {"id": Kind("int64"), "g": Kind("string"), "d": MONEY, "n": Kind("int64"), "s": Kind("string")}, ("id",)
)
LARGEST, HALF = "9" * 36, 1 << 62


def view(name: str, sql: str, key: str, **columns: Kind) -> View:
    plan, text, match = plan_config(name, ViewConfig(sql=sql, key=(key,)), {ROWS.name: ROWS}, {})
    return View(plan, list(columns.items()), text, {}, match)


TEXT, INT = Kind("string"), Kind("int64")
SUMS = view("sums", "SELECT g, sum(d) AS s FROM public.m GROUP BY g", "g", g=TEXT, s=MONEY)
TOTALS = view("totals", "SELECT g, sum(n) AS s, max(id) AS last FROM public.m GROUP BY g", "g", g=TEXT, s=INT, last=INT)
NUMBERS = view("numbers", "SELECT id, CAST(s AS BIGINT) AS s, 10 div n AS d FROM public.m", "id", id=INT, s=INT, d=INT)
SQUARES = view("squares", "SELECT id, n * n AS n FROM public.m WHERE n > 0", "id", id=INT, n=INT)
EVERY = (SUMS, TOTALS, NUMBERS, SQUARES)


@contextmanager
def stepped(folder: Path, views: Sequence[View], count: int = 40) -> Iterator[Steps]:
    steps = Steps(folder, [ROWS], views)
    steps.write("public.m", {(n,): (f"g{n % 8}", "1.00", n % 8 + 1, str(n)) for n in range(count)})
    steps.step()
    yield steps
    steps.close()


@pytest.mark.parametrize("whole", [False, True], ids=["by units", "whole"])
def test_only_units_that_cannot_be_computed_stay_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, whole: bool
) -> None:
    """A sum beyond its type, an integer, a division by zero, a text that is no number; until the row is right."""
    monkeypatch.setattr(step, "MOST_TOUCHED", 0.0 if whole else 1e9)
    with stepped(tmp_path, EVERY) as steps:
        steps.write("public.m", {(100,): ("g1", LARGEST, HALF, "x"), (101,): ("g1", LARGEST, HALF * 2 - 1, "7")})
        steps.write("public.m", {(102,): ("g2", "8.00", 0, "8"), (103,): (None, "2.00", 3, "9")})
        found = [(name, op, *key) for name, op, key, _ in steps.step()]
        assert found == [
            ("sums", "u", "g2"),
            ("sums", "c", None),
            ("totals", "u", "g2"),
            ("totals", "c", None),
            ("numbers", "c", 101),
            ("numbers", "c", 103),
            ("squares", "c", 103),
        ]
        held = {of.name: steps.quarantined(of.name) for of in EVERY}
        assert {name: [unit for unit, _ in of] for name, of in held.items()} == {
            "sums": ['["g1"]'],
            "totals": ['["g1"]'],
            "numbers": ['["100"]', '["102"]'],
            "squares": ['["100"]', '["101"]'],
        }
        assert {why for of in held.values() for _, why in of} <= {
            step._WHY[name] for name in ("ConversionException", "OutOfRangeException", "InvalidInputException")
        }
        assert not any(value in str(held) for value in (LARGEST, str(HALF)))
        # the others of its row's units go on, and again beside it
        steps.write("public.m", {(0,): ("g0", "5.00", 1, "0")})
        assert [(name, *key) for name, _, key, _ in steps.step()] == [("sums", "g0")]
        # a hot unit that stays wrong, then is right
        steps.write("public.m", {(1,): ("g1", "7.00", 2, "1")})
        assert steps.step() == []
        steps.write("public.m", {(100,): None, (101,): None, (102,): None})
        changed = {(name, op, *key): row for name, op, key, row in steps.step()}
        assert changed["sums", "u", "g1"] == {"g": "g1", "s": "11.00"}
        assert [change for change in changed if change[0] == "numbers"] == [("numbers", "d", 101)]
        assert [steps.quarantined(of.name) for of in EVERY] == [[]] * 4


def test_what_is_not_of_some_units_stops_the_view(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A view without units; one whose WHERE fails; and one of which too many units would have to be told apart."""
    alone = view("alone", "SELECT 'all' AS k, sum(n) AS s FROM public.m", "k", k=TEXT, s=INT)
    cast = view("cast", "SELECT id FROM public.m WHERE CAST(s AS BIGINT) > 0", "id", id=INT)
    for number, of in enumerate((alone, cast, NUMBERS)):
        with stepped(tmp_path / str(number), [of]) as steps:
            monkeypatch.setattr(containment, "MOST_TRIES", 5)
            bad = {(100 + n,): ("g", "1.00", HALF, "x") for n in range(4)}
            steps.write("public.m", bad)
            with pytest.raises(ViewError, match=f"view {of.name}: "):
                steps.step()
            assert steps.tries <= 5
    monkeypatch.setattr(containment, "LONGEST_S", 0.0)
    with stepped(tmp_path / "late", [NUMBERS]) as steps:
        steps.write("public.m", {(100,): ("g", "1.00", 1, "x")})
        with pytest.raises(ViewError):  # the others do not wait for the search any longer
            steps.step()
        assert steps.tries == 0


@given(st.sets(st.integers(0, 99)), st.integers(0, 100))
def test_every_unit_is_computed_or_told(bad: set[int], count: int) -> None:
    """The fewest that can be: no unit that could be computed is left out, and none is computed twice."""
    search = Search()
    search.is_worth_it("v", None, "why")

    def fails(units: Range) -> bool:
        return any(number in bad for number in range(*units))

    while True:
        good, left_out = search.divided("v", count)
        failing = next((units for units in good if fails(units)), None)
        if failing is None:
            break
        search.is_worth_it("v", failing, "why")
    assert sorted(left_out) == sorted(number for number in bad if number < count)
    computed = sorted(number for units in good for number in range(*units))
    assert computed == [number for number in range(count) if number not in bad]
