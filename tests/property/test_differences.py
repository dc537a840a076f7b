"""Two random maps: exactly the keys whose values differ are found, whatever the order they come in."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spark_apply.verify.differences import Candidate, CopiedRow, RowComparison, SourceRow

KEYS = st.text(alphabet="aé\0\"'\U0001f600{", max_size=3)
VALUES = st.binary(max_size=2)
ROWS = st.dictionaries(KEYS, VALUES, max_size=8)


@given(source=ROWS, copies=st.lists(st.lists(st.tuples(KEYS, VALUES), max_size=8), max_size=3), data=st.data())
def test_exactly_the_differences(
    source: dict[str, bytes], copies: list[list[tuple[str, bytes]]], data: st.DataObject
) -> None:
    with RowComparison() as differences:
        order = data.draw(st.permutations(sorted(source)))
        assert differences.add_source(SourceRow(key, source[key], f"text of {key}") for key in order) == len(source)
        for copy in [*copies, 2 * list(source.items()), list(source.items())]:
            differences.begin_copy()
            assert differences.add_copy(CopiedRow(key, value, f"id {n}") for n, (key, value) in enumerate(copy)) == len(
                copy
            )
            found = {one.key: one for one in differences.candidates()}
            of = {key: [value for other, value in copy if other == key] for key in {*source, *dict(copy)}}
            wanted = {key for key, values in of.items() if values != ([source[key]] if key in source else [])}
            assert found.keys() == wanted
            for key, one in found.items():
                ids = tuple(f"id {n}" for n, (other, _) in enumerate(copy) if other == key)
                assert one == Candidate(key, f"text of {key}" if key in source else None, one.ids)
                assert sorted(one.ids) == sorted(ids)
