"""What a search asks for, what is no search, and what it finds."""

from __future__ import annotations

import pytest

from spark_apply.views.search.query import MOST_CHARACTERS, Asked, finds, read_search
from spark_apply.views.search.words import places

FOUND = [
    ("bike", ["a Bike"], True),
    ("BIKE", ["a bike"], True),
    ("bike", ["bikes"], False),
    ("red bike", ["a bike", "it is red"], True),
    ("red bike", ["a bike"], False),
    ("red AND bike", ["bike, red"], True),
    ("red OR bike", ["bike"], True),
    ("red bike OR blue car", ["the red car"], False),
    ("red bike OR blue car", ["a car is blue"], True),
    ("(red OR blue) bike", ["blue bike"], True),
    ("(red OR blue) bike", ["blue car"], False),
    ("bike -rusty", ["a bike"], True),
    ("bike -rusty", ["bike", "rusty"], False),
    ("bike NOT rusty", ["rusty bike"], False),
    ('bike -"very old"', ["very old bike"], False),
    ('bike -"very old"', ["old and very good bike"], True),
    ("bike -(old rusty)", ["old bike"], True),
    ("bike -(old rusty)", ["rusty old bike"], False),
    ('"red bike"', ["red  bike"], True),
    ('"red bike"', ["red, bike"], True),
    ('"red bike"', ["bike red"], False),
    ('"red bike"', ["a red", "bike"], False),
    ('"red red bike"', ["red bike"], False),
    ('"red red bike"', ["red red bike"], True),
    ("e-mail", ["send an e-mail"], True),
    ("e-mail", ["mail e"], False),
    ("don't", ["Don't!"], True),
    ("or and not", ["not or and"], True),
    ("a & b", ["a b"], True),
    ("bike*", ["bikes"], False),
    ("école", ["ÉCOLE"], True),
    ("café", ["cafe\u0301"], True),
    ("cafe\u0301", ["un café"], True),
    ("日本語", ["日本語"], True),
    ("x" * 100, ["a " + "X" * 100], True),
    ("bike", [None, "bike"], True),
    ("bike", [None, None], False),
    ("bike", [], False),
]


@pytest.mark.parametrize(("search", "texts", "expected"), FOUND)
def test_what_a_search_finds(search: str, texts: list[str | None], expected: bool) -> None:
    read = read_search(search)
    assert isinstance(read, Asked)
    text = places(texts)
    assert finds(read.search, text) is expected
    assert not expected or read.needs & text.keys(), "it would not have been asked"


@pytest.mark.parametrize("search", ["", "  ", "!!!", "-", '""', "& %"])
def test_what_says_nothing_finds_nothing(search: str) -> None:
    assert read_search(search) is None


@pytest.mark.parametrize(
    ("search", "why"),
    [
        ("(red", "a parenthesis is not closed"),
        ("red)", "a parenthesis is closed that is not open"),
        ('"red', "a quote is not closed"),
        ("OR", "something is missing beside OR or between parentheses"),
        ("red OR", "something is missing beside OR or between parentheses"),
        ("OR red", "something is missing beside OR or between parentheses"),
        ("red OR OR blue", "something is missing beside OR or between parentheses"),
        ("()", "something is missing beside OR or between parentheses"),
        ("AND red", "AND has nothing before it"),
        ("red AND", "AND has nothing behind it"),
        ("red AND AND blue", "AND has nothing behind it"),
        ("red NOT", "NOT has nothing behind it"),
        ("NOT NOT red", "NOT has nothing behind it"),
        ("-red", "it only excludes, or one of its alternatives does"),
        ("NOT red", "it only excludes, or one of its alternatives does"),
        ("red OR -blue", "it only excludes, or one of its alternatives does"),
        ("-(-red)", "it only excludes, or one of its alternatives does"),
        ("(" * 51 + "a" + ")" * 51, "it has more than 50 parentheses in each other"),
        ("a" * (MOST_CHARACTERS + 1), "it has more than 4,000 characters"),
    ],
)
def test_what_is_no_search(search: str, why: str) -> None:
    assert read_search(search) == why


def test_a_search_is_asked_for_by_few_and_long_words() -> None:
    search = read_search("(a OR b) the bicycle -rusty")
    assert isinstance(search, Asked)
    assert search.needs == {"bicycle"}
