"""COPY's text format for any row."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cdc.model.errors import ProtocolError
from connectors.postgres.copy_text import parse_row
from tests.unit.test_chunks import copy_text

VALUES = st.one_of(st.none(), st.binary(max_size=20), st.text("\\Nntbfrv.x\t\n", max_size=8).map(str.encode))


@given(st.lists(VALUES, min_size=1, max_size=6).map(tuple))
def test_parsing_undoes_escaping(row: tuple[bytes | None, ...]) -> None:
    """parse∘escape is the identity."""
    assert parse_row(copy_text(row), len(row)) == row


@given(st.binary(max_size=40), st.integers(1, 4))
def test_any_line_is_a_row_of_that_width_or_a_protocol_error(line: bytes, columns: int) -> None:
    """Never another error, never another width."""
    try:
        assert len(parse_row(line, columns)) == columns
    except ProtocolError:
        pass
