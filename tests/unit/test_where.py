"""Conditions of `source.where`: judged as SQL does, or refused."""

from __future__ import annotations

import pytest

from cdc.config.published.where import parse
from cdc.model.change import UNCHANGED, Column, Kind, Row, Table
from cdc.model.errors import ConfigError, OperatorError
from cdc.rules.row_filter import equality_of, judge_of
from tests.text_tables import text_column


def _column(name: str, type_: str, kind: str, equality: str = "") -> Column:
    def encode(value: bytes) -> bytes:
        if kind == "boolean":
            return b"true" if value == b"t" else b"false"
        return text_column("x").encode(value)

    return Column(name, type_, Kind(kind), encode, equality=equality)


TABLE = Table(
    "s",
    "t",
    (
        _column("id", "integer", "int32"),
        _column("total", "numeric(10,2)", "decimal"),
        _column("status", "text", "string", "exact"),
        _column("padded", "character(5)", "string", "padded"),
        _column("loose", "varchar(20)", "string"),
        _column("active", "boolean", "boolean"),
        _column("day", "date", "date"),
        _column("at", "timestamp(3)", "timestamp_millis"),
        _column("zoned", "timestamp with time zone", "timestamptz"),
        _column("token", "uuid", "string"),
        _column("ratio", "double precision", "float64"),
        _column("Mixed Case", "integer", "int32"),
        _column("price", "money", "decimal"),
    ),
    ("id",),
)
ROW: dict[str, bytes | None] = {
    "id": b"7", "total": b"9.50", "status": b"it's", "padded": b"ab   ", "loose": b"x", "active": b"t",
    "day": b"2024-02-29", "at": b"2024-02-29 12:00:00.25", "zoned": b"2024-02-29 12:00:00+00",
    "token": b"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "ratio": b"1.5", "Mixed Case": b"-3", "price": b"$1.00",
}  # fmt: skip


def _judged(condition: str, **values: object) -> object:
    row: Row = tuple({**ROW, **values}[column.name] for column in TABLE.columns)  # type: ignore[misc]
    return judge_of(parse(condition), TABLE)(row)


@pytest.mark.parametrize(
    "condition",
    [
        "id = 7", "id=7.0", "id <> 7.5", "id != 8", "id < 8 AND id <= 7 AND id > -1 AND id >= 7", "ID = 7",
        "total = 9.5", "total > 9", "total BETWEEN 9.5 AND 10", "total NOT BETWEEN 0 AND 9.49",
        "status = 'it''s'", "status <> 'its'", "status IN ('a', 'it''s')", "status NOT IN ('a','b')",
        "padded = 'ab'", "padded = 'ab '", "padded <> ' ab'", "loose COLLATE utf8mb4_bin = 'x '",
        'loose COLLATE "C" = \'x\'', "loose COLLATE utf8mb4_0900_bin <> 'x '",
        "active", "NOT NOT active", "active = true", "active <> FALSE", "(active)",
        "day = '2024-02-29'", "day > '2024-02-28'", "at = '2024-02-29 12:00:00.250'", "at >= '2024-02-29'",
        "at < '2024-02-29T12:00:00.251'", "zoned = '2024-02-29T12:00:00Z'", "zoned = '2024-02-29 14:00:00+02:00'",
        "token = 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'",
        '"Mixed Case" = -3', "`Mixed Case` < 0", "id IS NOT NULL", "NOT id IS NULL",
        "id = 0 OR (id = 7 AND NOT status = 'x')", "id = 1 AND id = 2 OR id = 7",
    ],
)  # fmt: skip
def test_true(condition: str) -> None:
    """What is so of the row, and its negation is not."""
    assert _judged(condition) is True
    assert _judged(f"NOT ({condition})") is False


def test_null_is_neither_true_nor_false() -> None:
    """SQL's three values: only what is true is published."""
    assert _judged("id = 7", id=None) is None
    assert _judged("NOT id = 7", id=None) is None
    assert _judged("id = 7 OR active", id=None) is True
    assert _judged("id = 7 AND active", id=None) is None
    assert _judged("id = 7 AND NOT active", id=None) is False
    assert _judged("id NOT IN (1, 2)", id=None) is None
    assert _judged("id IS NULL", id=None) is True


def test_a_value_that_was_not_sent_decides_only_where_it_must() -> None:
    """UNCHANGED stays so, unless the rest decides."""
    assert _judged("status = 'x'", status=UNCHANGED) is UNCHANGED
    assert _judged("NOT status = 'x'", status=UNCHANGED) is UNCHANGED
    assert _judged("status IS NULL", status=UNCHANGED) is UNCHANGED
    assert _judged("status = 'x' OR id = 7", status=UNCHANGED) is True
    assert _judged("status = 'x' AND id = 8", status=UNCHANGED) is False


@pytest.mark.parametrize(
    ("condition", "values"),
    [
        ("total > 99999999", {"total": b"NaN"}),  # PostgreSQL: greater than all numbers
        ("total > 99999999", {"total": b"Infinity"}),
        ("day < '0001-01-01'", {"day": b"0044-03-15 BC"}),
        ("day > '9999-12-31'", {"day": b"12024-01-01"}),
        ("day > '9999-12-31'", {"day": b"infinity"}),
        ("day < '0001-01-01'", {"day": b"-infinity"}),
        ("day < '0001-01-01'", {"day": b"0000-00-00"}),  # MySQL: before all days
        ("day < '2024-02-01'", {"day": b"2024-02-00"}),
        ("status <> 'x'", {"status": b"\xff"}),  # no text in any encoding equals no text
    ],
)
def test_odd_values_have_the_servers_order(condition: str, values: dict[str, object]) -> None:
    """Where a type has more than ordinary values."""
    assert _judged(condition, **values) is True


@pytest.mark.parametrize(
    "condition",
    [
        "", "id", "id = ", "id = 7 AND", "id LIKE 'a%'", "lower(status) = 'x'", "id = other_column", "7 = id",
        "id = 7; DROP TABLE t", "(id = 7", "id = 7)", "status = 'open", "id NOT NULL", "id IS 7", "status = 'a\\'",
        "id = 7 -- comment", "id IN ()", "id + 1 = 2", "id = 1e5", "(" * 60 + "id = 7" + ")" * 60,
    ],
)  # fmt: skip
def test_what_is_not_understood_is_refused(condition: str) -> None:
    """At once, with what is known; some of it only where the column is looked at."""
    with pytest.raises((ConfigError, OperatorError)) as caught:
        judge_of(parse(condition), TABLE)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("condition", "why"),
    [
        ("nothing = 7", "has no column nothing"),
        ("id = '7'", "without quotes"),
        ("id = true", "it is not a boolean"),
        ("active = 1", "compared by = and <> with true or false"),
        ("status < 'a'", "the order of texts"),
        ("status = 7", "write the literal as 'text'"),
        ("loose = 'x'", "takes different texts for equal"),
        ("loose COLLATE utf8mb4_general_ci = 'x'", "takes different texts for equal"),
        ("ratio = 1.5", "not compared alike"),
        ("price = 1", "not compared alike"),
        ("day = '2024-02-30'", "is not a moment"),
        ("zoned = '2024-02-29 12:00:00'", "time zone"),
        ("at = '2024-02-29 12:00:00Z'", "no time zone"),
        ("token = 'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'", "small letters"),
        ("id COLLATE utf8mb4_bin = 7", "only text has a collation"),
    ],
)
def test_what_cannot_be_judged_as_the_server_does_is_refused(condition: str, why: str) -> None:
    """With the reason, before anything is made."""
    with pytest.raises(OperatorError, match=why):
        judge_of(parse(condition), TABLE)


def test_collations_of_mysql() -> None:
    """Binary ones alone compare characters; most of them ignore spaces at the end."""
    assert equality_of("utf8mb4_0900_ai_ci") == equality_of(None) == ""
    assert equality_of("utf8mb4_bin") == equality_of("latin1_bin") == "padded"
    assert equality_of("utf8mb4_0900_bin") == equality_of("utf8mb4_nopad_bin") == "exact"
