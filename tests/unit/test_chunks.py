"""COPY's text format and the statement that asks for it."""

from __future__ import annotations

import pytest
from psycopg2 import sql

from cdc.model.change import Column, Kind, Table
from cdc.model.errors import ProtocolError
from cdc.model.state import Key
from connectors.postgres.copy_text import parse_row
from snapshot.postgres.copying import Relation, copy_statement, sample_statement
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


NUMBER = Column("n", "bigint", Kind("int64"), bytes)
LINES = Table('sch"ema', "Order Lines", (NUMBER, text_column("no'te"), text_column("of")), ("of", "n"))
PLAIN, BY_INDEX = Relation(1), Relation(1, indexed=frozenset({"of"}))


def _sql(part: sql.Composable) -> str:
    """As `as_string`, which needs a connection: names quoted, literals by SQL's rule."""
    if isinstance(part, sql.Composed):
        return "".join(_sql(p) for p in part.seq)
    if isinstance(part, sql.Identifier):
        return ".".join('"' + name.replace('"', '""') + '"' for name in part.strings)
    if isinstance(part, sql.Literal):
        value = part.wrapped
        return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else str(value)
    assert isinstance(part, sql.SQL)
    return part.string


def _statement(relation: Relation = PLAIN, *, after: Key | None = None, upto: Key | None = None) -> str:
    return _sql(copy_statement(LINES, relation, after=after, upto=upto))


def test_the_statement_reads_all_columns_in_key_order() -> None:
    """In the table's column order, by the key's order: numbers by number, others by their text's bytes."""
    by_bytes = """convert_to(format('%s', "of"), 'UTF8'), "n\""""
    table = 'ONLY "sch""ema"."Order Lines"'
    assert _statement() == f'COPY (SELECT "n", "no\'te", "of" FROM {table} ORDER BY {by_bytes}) TO STDOUT'


def test_the_statement_reads_between_two_keys() -> None:
    """Row comparisons of the whole key, in the key's order; the bounds are literals, never text of the statement."""
    order = """(convert_to(format('%s', "of"), 'UTF8'), "n")"""
    bounded = _statement(after=(b"it's", b"7"), upto=(b"caf\xe9", b"-1"))
    assert (
        f" WHERE {order} > (decode('69742773', 'hex'), '7') AND {order} <= (decode('636166e9', 'hex'), '-1')" in bounded
    )
    assert "<=" not in _statement(after=(b"a", b"1"))
    assert ">" not in _statement(upto=(b"a", b"1"))


def test_what_orders_by_bytes_itself_is_left_to_its_index() -> None:
    """Text of a collation that does, uuid, bytea and boolean are compared as they are."""
    assert """("of", "n") > ('it''s', '7') ORDER BY "of", "n\"""" in _statement(BY_INDEX, after=(b"it's", b"7"))
    for type_ in ("uuid", "bytea", "boolean"):
        table = Table("s", "t", (text_column("k", type_),), ("k",))
        assert 'ORDER BY "k")' in _sql(copy_statement(table, PLAIN, after=None, upto=None))


def test_a_database_of_no_encoding_converts_nothing() -> None:
    """Converting bytes that are not UTF-8 to UTF-8 is an error of the server's."""
    assert """convert_to(format('%s', "of"), 'SQL_ASCII')""" in _statement(Relation(1, encoding="SQL_ASCII"))


def test_a_partitioned_table_is_read_with_its_partitions() -> None:
    """ONLY would read nothing of it."""
    assert "ONLY" not in _statement(Relation(1, partitioned=True))


def test_a_sample_is_of_the_keys_alone() -> None:
    """In the key's order, whatever the table's."""
    assert _sql(sample_statement(LINES, PLAIN, percent=0.5)) == (
        'COPY (SELECT "of", "n" FROM ONLY "sch""ema"."Order Lines" TABLESAMPLE SYSTEM (0.5)) TO STDOUT'
    )
