"""COPY's text format and the statement that asks for it."""

from __future__ import annotations

import pytest

from cdc.change import Column, Kind, Table
from cdc.errors import ProtocolError
from snapshot.chunks import parse_row
from tests.text_tables import text_column

_ESCAPES = {b: b"\\" + c for b, c in zip(b"\b\f\n\r\t\v\\", (b"b", b"f", b"n", b"r", b"t", b"v", b"\\"), strict=True)}


def copy_text(row: tuple[bytes | None, ...]) -> bytes:
    """A row as COPY TO STDOUT writes it (CopyAttributeOutText)."""
    fields = (b"\\N" if v is None else b"".join(_ESCAPES.get(b, bytes([b])) for b in v) for v in row)
    return b"\t".join(fields) + b"\n"


@pytest.mark.parametrize(
    "row",
    [
        (b"1", b"plain", None),
        (b"", None, b""),
        (None,),
        (b"\\N", b"\\", b"\\\\N"),
        (b"a\tb", b"c\nd", b"e\\tf"),
        (b"\b\f\n\r\t\v\\", b"n", b"\\."),
        ("é ￿ \U0001f600".encode(), b"\x00\x01\xff", b"\\x5c"),
    ],
)
def test_a_row_parses_to_what_was_escaped(row: tuple[bytes | None, ...]) -> None:
    """parse∘escape is the identity: NULL, the empty string and a literal backslash-N stay three things."""
    assert parse_row(copy_text(row), len(row)) == row


@pytest.mark.parametrize("line", [b"1\t2\n", b"1\t2\t3\t4\n", b"\n", b"1\t2\t3"])
def test_a_row_of_other_width_or_without_its_end_is_a_protocol_error(line: bytes) -> None:
    """Columns are never shifted."""
    with pytest.raises(ProtocolError, match="columns where 3 belong"):
        parse_row(line, 3)


def test_the_error_holds_no_value() -> None:
    """A COPY row may hold anything."""
    with pytest.raises(ProtocolError) as caught:
        parse_row(b"secret\n", 2)
    assert "secret" not in str(caught.value)


def _statement(*, partitioned: bool = False, after: tuple[str, ...] | None = None) -> str:
    from psycopg2 import sql

    from snapshot.chunks import copy_statement

    table = Table(
        'sch"ema',
        "Order Lines",
        (Column("n", "bigint", Kind("int64"), bytes), text_column("no'te"), text_column("of", "uuid")),
        ("of", "n"),
    )

    def text(part: sql.Composable) -> str:
        """As `as_string`, which needs a connection: names quoted, literals by SQL's rule."""
        if isinstance(part, sql.Composed):
            return "".join(text(p) for p in part.seq)
        if isinstance(part, sql.Identifier):
            return ".".join('"' + name.replace('"', '""') + '"' for name in part.strings)
        if isinstance(part, sql.Literal):
            value = part.wrapped
            return str(value) if isinstance(value, int) else "'" + str(value).replace("'", "''") + "'"
        assert isinstance(part, sql.SQL)
        return part.string

    return text(copy_statement(table, partitioned=partitioned, after=after))


def test_the_statement_reads_all_columns_in_key_order() -> None:
    """In the table's column order, by the key's order: numbers by number, others by their text's bytes."""
    by_bytes = """convert_to(format('%s', "of"), 'UTF8'), "n\""""
    table = 'ONLY "sch""ema"."Order Lines"'
    assert _statement() == f'COPY (SELECT "n", "no\'te", "of" FROM {table}  ORDER BY {by_bytes}) TO STDOUT'


def test_the_statement_resumes_behind_a_key() -> None:
    """A row comparison of the whole key, in the key's order; the bound is a literal, never text of the statement."""
    assert (
        """WHERE (convert_to(format('%s', "of"), 'UTF8'), "n") > (convert_to('it''s', 'UTF8'), 7) ORDER"""
        in _statement(after=("it's", "7"))
    )


def test_a_partitioned_table_is_read_with_its_partitions() -> None:
    """ONLY would read nothing of it."""
    assert "ONLY" not in _statement(partitioned=True)
