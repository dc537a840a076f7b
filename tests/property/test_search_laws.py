"""Laws of matches: the job's way, an index's way and the plain way find the same, after each step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import spark_apply.views.embedded.step
from cdc.config.views import MatchConfig
from spark_apply.views.planning.view import View
from spark_apply.views.search.kept import KeptSearches
from spark_apply.views.search.plan import Match, match_of, plan_match
from spark_apply.views.search.query import Asked, read_search
from spark_apply.views.search.verified import pairs_of
from tests.conftest import FULL
from tests.views.engine import relation
from tests.views.steps import Steps

SEARCHES = relation("public.searches", ["id"], id="int64", text="string", other="int64")
LISTINGS = relation("public.listings", ["shop", "id"], shop="string", id="int64", title="string", body="string")
RELATIONS = {each.name: each for each in (SEARCHES, LISTINGS)}
CONFIG = MatchConfig(queries="public.searches", query="text", docs="public.listings", fields=("title", "body"))
KEY = ("query", "doc_shop", "doc_id")

Texts = Sequence[str | None]
Judge = Callable[[list[list[str]]], bool]
"""Whether a search finds texts, taken apart into words."""

word = st.sampled_from(["a", "b", "c", "d"])
text = st.one_of(st.none(), st.lists(st.sampled_from(["a", "B", "c,", "d", "x"]), max_size=5).map(" ".join))
texts = st.tuples(text, text)


def _apart(of: Texts) -> list[list[str]]:
    return [each.lower().replace(",", "").split() for each in of if each is not None]


def _has(of: Sequence[str]) -> Judge:
    size = len(of)
    return lambda fields: any(
        field[at : at + size] == list(of) for field in fields for at in range(len(field) - size + 1)
    )


def _every(parts: Sequence[tuple[str, Judge]]) -> tuple[str, Judge]:
    return " ".join(said for said, _ in parts), lambda fields: all(judge(fields) for _, judge in parts)


def _some(parts: Sequence[tuple[str, Judge]]) -> tuple[str, Judge]:
    return f"({' OR '.join(said for said, _ in parts)})", lambda fields: any(judge(fields) for _, judge in parts)


def _without(part: tuple[str, Judge], sign: str) -> tuple[str, Judge]:
    return f"{sign}({part[0]})", lambda fields: not part[1](fields)


def _larger(inner: st.SearchStrategy[tuple[str, Judge]]) -> st.SearchStrategy[tuple[str, Judge]]:
    excluded = st.builds(_without, inner, st.sampled_from(["-", "NOT "]))
    parts = st.tuples(inner, st.lists(st.one_of(inner, excluded), min_size=1, max_size=2)).map(
        lambda found: _every([found[0], *found[1]])
    )
    return st.one_of(parts, st.lists(inner, min_size=2, max_size=3).map(_some))


one = st.one_of(
    word.map(lambda of: (of.upper(), _has([of]))),
    st.lists(word, min_size=2, max_size=3).map(lambda of: (f'"{" ".join(of)}"', _has(of))),
    st.lists(word, min_size=2, max_size=2).map(lambda of: ("-".join(of), _has(of))),
)
searches = st.recursive(one, _larger, max_leaves=6)


@given(kept=st.lists(searches, max_size=6), rows=st.lists(texts, max_size=8))
@settings(max_examples=500 if FULL else 30, deadline=None)
def test_three_ways_find_the_same(kept: list[tuple[str, Judge]], rows: list[Texts]) -> None:
    expected = {
        (number, place)
        for number, (_, judge) in enumerate(kept)
        for place, row in enumerate(rows)
        if judge(_apart(row))
    }
    ours = KeptSearches()
    for number, (said, _) in enumerate(kept):
        asked_for = read_search(said)
        assert isinstance(asked_for, Asked), (said, asked_for)
        ours.add(number, asked_for)
    assert {(number, place) for place, row in enumerate(rows) for number in ours.finding(row)} == expected
    asked = (((number,), said) for number, (said, _) in enumerate(kept))
    by_index = list(pairs_of(_match(), asked, (((place,), row) for place, row in enumerate(rows))))
    assert len(by_index) == len(expected)
    assert set(by_index) == expected


def _match() -> Match:
    return match_of("alerts", CONFIG, KEY, RELATIONS)


def _view() -> View:
    match = _match()
    kinds = dict(zip(match.columns, (SEARCHES.columns["id"], *LISTINGS.columns.values()), strict=False))
    return View(plan_match(match, KEY), list(kinds.items()), match.sql, match)


_asked = st.one_of(searches, st.sampled_from([(None, None), ("(broken", None), ("", None)]))
_queries = st.dictionaries(
    st.integers(0, 3).map(lambda n: (n,)), st.one_of(st.none(), st.tuples(_asked, st.integers(0, 1))), max_size=3
)
_EVERY_DOC = tuple((shop, number) for shop in ("x", "y") for number in range(5))
_listings = st.dictionaries(
    st.tuples(st.sampled_from(["x", "y"]), st.integers(0, 4)), st.one_of(st.none(), texts, texts), max_size=5
)
histories = st.lists(st.tuples(_queries, _listings), min_size=2, max_size=6)


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Steps]:
    made = Steps(tmp_path_factory.mktemp("search"), list(RELATIONS.values()), [_view()])
    yield made
    made.close()


@given(history=histories, made_again=st.integers(0, 12), most=st.sampled_from([0.3, math.inf]))
@settings(max_examples=300 if FULL else 8, deadline=None)
def test_a_match_is_what_each_search_finds_after_each_step(
    steps: Steps, history: Any, made_again: int, most: float
) -> None:
    """A search that is none keeps what it had found until it is one again; what is as it was brings no event."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(spark_apply.views.embedded.step, "MOST_TOUCHED", most)
        steps.write("public.searches", dict.fromkeys(((number,) for number in range(4)), None))
        steps.step()
        _check(steps, [({}, dict.fromkeys(_EVERY_DOC, None)), *history], made_again)


def _check(steps: Steps, history: Any, made_again: int) -> None:
    queries: dict[Any, Any] = {}
    docs: dict[Any, Any] = {}
    rows: set[Any] = set()
    expected: dict[Any, set[Any]] = {}
    for number, (asked, listings) in enumerate(history):
        queries |= asked
        docs |= listings
        steps.write("public.searches", {key: None if of is None else (of[0][0], of[1]) for key, of in asked.items()})
        steps.write("public.listings", listings)
        for _, op, key, row in steps.step():
            assert (op == "c") == (key not in rows), "an event for what is as it was"
            assert op != "u"
            assert row is None or tuple(row.values()) == key
            rows.symmetric_difference_update({key})
        held = {key for key, of in queries.items() if of is not None and of[0][0] == "(broken"}
        kept = {key: of for key, of in expected.items() if key in held}
        expected = kept | {
            key: {(*key, *doc) for doc, of in docs.items() if of is not None and search[1](_apart(of))}
            for key, (search, _) in ((key, of) for key, of in queries.items() if of is not None)
            if search[1] is not None
        }
        assert rows == set[Any]().union(*expected.values())
        assert steps.quarantined("alerts") == [(f'["{key}"]', "a parenthesis is not closed") for (key,) in sorted(held)]
        if number == made_again:  # what is computed whole leaves out what is in quarantine
            expected = {key: of for key, of in expected.items() if key not in held}
            rows = set()
            for _, op, key, _ in steps.step(stale=True):
                assert op == "c"
                rows.add(key)
            assert rows == set[Any]().union(*expected.values())
