"""The numbers of changes as ranges: a set is what it was, however it is written down, cut or put together."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from connectors.triggers.mysql.looks import stored_name
from connectors.triggers.mysql.numbers import Numbers
from connectors.triggers.mysql.rounds import within

NUMBERS = st.sets(st.integers(1, 60) | st.integers((1 << 64) - 20, (1 << 64) - 2))


def held(numbers: Numbers) -> set[int]:
    return {number for first, last in numbers.ranges() for number in range(first, last + 1)}


@given(NUMBERS)
def test_what_is_written_down_is_read_again(numbers: set[int]) -> None:
    """With as many ranges as there are, and no more."""
    made = Numbers(sorted(numbers))
    again = Numbers.parse(made.text)
    assert held(made) == held(again) == numbers
    assert again == made
    assert (again.count, again.last) == (len(numbers), max(numbers, default=0))
    assert len(made) == sum(number - 1 not in numbers for number in numbers)


@given(NUMBERS, NUMBERS, NUMBERS)
def test_a_union_has_all(one: set[int], two: set[int], three: set[int]) -> None:
    """Of sets that have nothing in common."""
    parts = (one, two - one, three - two - one)
    found = Numbers.union(Numbers(sorted(part)) for part in parts)
    assert held(found) == one | two | three
    assert all((number in found) == (number in one | two | three) for number in range(70))


@given(NUMBERS, st.integers(1, 5))
def test_what_is_looked_for_is_all_that_was_not_seen(numbers: set[int], most: int) -> None:
    """In few ranges; where there are too many, what is in the shortest of those that were seen is looked at again."""
    seen = Numbers(sorted(numbers))
    gaps = seen.gaps(most + 1)
    assert len(gaps) <= max(most + 1, 2)
    unseen = set(range(70)) - numbers
    assert all(any(first <= number <= last for first, last in gaps) for number in unseen)
    lengths = sorted(last - first + 1 for first, last in seen.ranges())
    again = sum(any(first <= number <= last for first, last in gaps) for number in numbers)
    assert again == sum(lengths[: max(0, len(lengths) - most)])
    exact = seen.gaps(1_000)
    assert all(not any(first <= number <= last for first, last in exact) for number in numbers)


@given(NUMBERS, st.integers(0, 70))
def test_ranges_from_a_number_on(numbers: set[int], begin: int) -> None:
    """As a page after the first reads them."""
    made = Numbers(sorted(numbers))
    found = {n for first, last in made.ranges_from(begin) for n in range(max(first, begin), last + 1)}
    assert found == {number for number in numbers if number >= begin}
    assert held(made.above(begin)) == {number for number in numbers if number > begin}


def test_names_as_innodb_has_them() -> None:
    """Tried on both servers."""
    assert stored_name("xt", "A b-c/x.y_1") == "xt/a@0020b@002dc@002fx@002ey_1"
    assert within([(1, 2), (5, 5)]) == "(seq BETWEEN 1 AND 2 OR seq BETWEEN 5 AND 5)"
