"""What cannot be computed of a view are some of its units: they keep what they had, and the others go on."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.config.views import ViewConfig
from cdc.model.change import Kind
from spark_apply.views.embedded import containment
from spark_apply.views.embedded.containment import WHOLE, WHY, Range, Search
from spark_apply.views.embedded.step import ViewError
from spark_apply.views.planning.forms import plan_config
from spark_apply.views.planning.view import View
from tests.views.contained import HALF, ROWS
from tests.views.steps import Steps


def view(name: str, sql: str, key: str, **columns: Kind) -> View:
    plan, text, match = plan_config(name, ViewConfig(sql=sql, key=(key,)), {ROWS.name: ROWS}, {})
    return View(plan, list(columns.items()), text, {}, match)


TEXT, INT = Kind("string"), Kind("int64")
NUMBERS = view("numbers", "SELECT id, CAST(s AS BIGINT) AS s, 10 div n AS d FROM public.m", "id", id=INT, s=INT, d=INT)


@contextmanager
def stepped(folder: Path, views: Sequence[View], count: int = 40) -> Iterator[Steps]:
    steps = Steps(folder, [ROWS], views)
    steps.write("public.m", {(n,): (f"g{n % 8}", "1.00", n % 8 + 1, str(n)) for n in range(count)})
    steps.step()
    yield steps
    steps.close()


def test_what_is_not_of_some_units_stops_the_view(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One whose WHERE, unit or CTE fails; and one of which too many units would have to be told apart."""
    cast = view("cast", "SELECT id FROM public.m WHERE CAST(s AS BIGINT) > 0", "id", id=INT)
    by_cast = view(
        "by_cast", "SELECT CAST(s AS BIGINT) AS s, count(*) AS n FROM public.m GROUP BY 1", "s", s=INT, n=INT
    )
    sums = (
        "WITH c AS (SELECT g, sum(n) AS s FROM public.m GROUP BY g) SELECT m.id, c.s FROM public.m m JOIN c USING (g)"
    )
    of_sums = view("of_sums", sums, "id", id=INT, s=INT)
    for number, of in enumerate((cast, by_cast, of_sums, NUMBERS)):
        with stepped(tmp_path / str(number), [of]) as steps:
            monkeypatch.setattr(containment, "MOST_TRIES", 5)
            bad = {(100 + n,): ("g", "1.00", HALF, "x") for n in range(4)}
            steps.write("public.m", bad)
            with pytest.raises(ViewError, match=f"view {of.name}: {re.escape(WHY)}"):
                steps.step()
            assert steps.tries <= 5
    monkeypatch.setattr(containment, "LONGEST_S", 0.0)
    with stepped(tmp_path / "late", [NUMBERS]) as steps:
        steps.write("public.m", {(100,): ("g", "1.00", 1, "x")})
        with pytest.raises(ViewError):  # the others do not wait for the search any longer
            steps.step()
        assert steps.tries == 0


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT id FROM public.m GROUP BY id HAVING max(CAST(s AS BIGINT)) > 0",
        "SELECT id, sum(CAST(s AS BIGINT)) OVER (PARTITION BY id ORDER BY n) AS s FROM public.m WHERE n > 0",
        "SELECT DISTINCT id, CAST(s AS BIGINT) AS s FROM public.m",
        "SELECT id, CAST(s AS BIGINT) AS s FROM public.m UNION ALL SELECT -id, -n FROM public.m WHERE id > 0",
    ],
    ids=["having", "a window", "distinct", "branches"],
)
def test_units_of_a_view_that_is_computed_whole_are_told_apart_whatever_fails(tmp_path: Path, sql: str) -> None:
    """To know which there are, nothing of them is computed."""
    of = view("of", sql, "id", **{"id": INT, "s": INT} if "AS s" in sql else {"id": INT})
    with stepped(tmp_path, [of], 8) as steps:
        steps.write("public.m", {(100,): ("g", "1.00", 1, "x")})
        events = steps.step(stale=True)
        assert ("c", (7,)) in [(op, key) for _, op, key, _ in events]
        assert steps.quarantined("of") == [('["100"]', WHY)]


def test_a_view_without_units_stops_where_nothing_is_known_of_its_rows(tmp_path: Path) -> None:
    """It would be published as empty: so it is stopped until it can be computed, and what reads it waits."""
    alone = view("alone", "SELECT 'all' AS k, sum(n) AS s FROM public.m", "k", k=TEXT, s=INT)
    with stepped(tmp_path, [alone]) as steps:
        steps.write("public.m", {(100 + n,): ("g", "1.00", HALF, "x") for n in range(4)})
        with pytest.raises(ViewError, match="view alone: "):
            steps.step(stale=True)
        assert steps.step() == []
        assert steps.quarantined("alone") == [(WHOLE, WHY)]
        with pytest.raises(ViewError, match="view alone: "):
            steps.step(stale=True)


def test_a_unit_that_stays_wrong_is_not_looked_for_again(tmp_path: Path) -> None:
    """It is tried by itself at once, however many others change with it."""
    with stepped(tmp_path, [NUMBERS]) as steps:
        steps.write("public.m", {(100,): ("g", "1.00", 1, "x")})
        steps.step()
        for turn in range(1, 4):
            steps.tries = 0
            right = {(n,): ("g", "1.00", 1, f"{turn}{n}") for n in range(32)}
            steps.write("public.m", {**right, (100,): ("g", "1.00", turn, "x")})
            assert len(steps.step()) == 32
            assert steps.tries == 2


@given(st.sets(st.integers(0, 99)), st.integers(0, 100), st.integers(0, 100))
def test_every_unit_is_computed_or_told(bad: set[int], count: int, held: int) -> None:
    """The fewest that can be: no unit that could be computed is left out, and none is computed twice."""
    search = Search()
    search.is_worth_it("v", None)

    def fails(units: Range) -> bool:
        return any(number in bad for number in range(*units))

    while True:
        good, left_out = search.divided("v", count, min(held, count))
        failing = next((units for units in good if fails(units)), None)
        if failing is None:
            break
        search.is_worth_it("v", failing)
    assert sorted(left_out) == sorted(number for number in bad if number < count)
    computed = sorted(number for units in good for number in range(*units))
    assert computed == [number for number in range(count) if number not in bad]


def test_how_long_the_step_took_before_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first rows of a large table take longer than units are looked for."""
    now = [0.0]
    monkeypatch.setattr(containment.time, "monotonic", lambda: now[0])
    search = Search(longest_s=30.0)
    now[0] = 1_000.0
    assert search.is_worth_it("v", None)
    now[0] += 29.0
    assert search.is_worth_it("v", (0, 9))
    now[0] += 2.0
    assert not search.is_worth_it("v", (0, 4))
