"""Generated writers against the plain methods, their oracle: the same bytes, or the same refusal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.encode import json_text
from cdc.encode.envelope.row_codegen import hole_finder, size_bound
from cdc.encode.envelope.table_encoder import TableEncoder
from cdc.model.change import UNCHANGED, Column, Kind, Row, Table
from cdc.model.errors import BugError, OperatorError
from tests.text_tables import encoder


def refusing(value: bytes) -> bytes:
    if value.startswith(b"no"):
        raise ValueError("refused")
    return b"[" + value + b"]"


ENCODERS = (json_text.as_is, json_text.quoted, json_text.text, refusing)
GOOD = st.one_of(st.none(), st.sampled_from([b"", b"1", b"%b %d %%", 'é\u2028"\\'.encode(), b"'\n\x00"]))
ANY = st.one_of(GOOD, st.sampled_from([b"\xff", b"no", UNCHANGED]))


@st.composite
def tables(draw: st.DrawFn) -> TableEncoder:
    names = draw(st.lists(st.sampled_from([*"abcdef", "%b", 'q"', "\\", "é", "v0", "row"]), min_size=1, unique=True))
    columns = tuple(Column(name, "t", Kind("string"), draw(st.sampled_from(ENCODERS))) for name in names)
    key = draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
    return encoder(Table("s", "t", columns, tuple(key)))


def outcome(write: Callable[[Row], bytes], row: Row) -> Any:
    try:
        return write(row)
    except (ValueError, BugError, OperatorError) as exc:
        return type(exc), str(exc)


@given(st.data())
def test_a_row_is_written_as_the_plain_one_writes_it(data: st.DataObject) -> None:
    """Whatever is in it; a row of another length is refused by both."""
    made = data.draw(tables())
    size = len(made.table.columns) + data.draw(st.sampled_from([0, 0, 0, 0, -1, 1]))
    row = tuple(data.draw(st.lists(ANY, min_size=size, max_size=size)))
    assert outcome(made.row, row) == outcome(made.row_plainly, row)


@given(st.data())
def test_a_key_is_written_as_the_plain_one_writes_it(data: st.DataObject) -> None:
    made = data.draw(tables())
    size = len(made.table.columns)
    row = tuple(data.draw(st.lists(ANY, min_size=size, max_size=size)))
    assert outcome(made.key, row) == outcome(made.key_plainly, row)


@given(st.data())
def test_what_can_be_written_is_written_by_the_generated_code(data: st.DataObject) -> None:
    """It would prove little if the plain one did it all."""
    made = data.draw(tables())
    size = len(made.table.columns)
    row = tuple(data.draw(st.lists(GOOD, min_size=size, max_size=size)))
    assert made.write_row(row) == made.row_plainly(row)
    whole = tuple(value if value is not None else b"1" for value in row)
    assert made.write_key(whole) == made.key_plainly(whole)


@given(st.lists(ANY, min_size=4, max_size=4).map(tuple), st.sets(st.integers(0, 3)))
def test_holes_are_found_and_sizes_added_up(row: Row, indexes: set[int]) -> None:
    """Of the columns given; a hole has no size."""
    some = sorted(indexes)
    assert hole_finder(tuple(some))(row) is any(row[index] is UNCHANGED for index in some)
    bound = size_bound(24, {index: index + 1 for index in some})
    if any(row[index] is UNCHANGED for index in some):
        with pytest.raises(TypeError):
            bound(row)
    else:
        assert bound(row) == 24 + sum(len(row[index] or b"") * (index + 1) for index in some)  # type: ignore[arg-type]


def test_a_table_of_as_many_columns_as_any_server_has() -> None:
    columns = tuple(Column(f"c{n}", "t", Kind("string"), ENCODERS[n % 3]) for n in range(4096))
    made = encoder(Table("s", "t", columns, ("c0",)))
    row = tuple(b"%d" % n for n in range(4096))
    assert made.write_row(row) == made.row_plainly(row)


@pytest.mark.parametrize("write", ["row", "key"])
def test_a_refusal_says_no_value(write: str) -> None:
    """`\\xff` is in the error that Python itself would raise."""
    made = encoder(Table("s", "t", (Column("a", "t", Kind("string"), json_text.text),), ("a",)))
    with pytest.raises(ValueError, match="not valid UTF-8") as caught:
        getattr(made, write)((b"secret \xff",))
    assert "secret" not in str(caught.value)
    assert not isinstance(caught.value.__context__, UnicodeDecodeError)
