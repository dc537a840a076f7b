"""The statements that read MySQL's tables, and what a view surely saw."""

from __future__ import annotations

import pytest

from cdc.model.change import Table
from connectors.mysql.binlog.positions import GtidSet
from connectors.mysql.values import mapping
from snapshot.mysql.selects import (
    Relation,
    chunk_statement,
    interpolated,
    keys_statement,
    lock_statement,
    row_statement,
    window_statement,
)
from snapshot.mysql.visibility import BinlogView

TOLD = (
    mapping.from_catalog("id", "bigint unsigned", None, nullable=False),
    mapping.from_catalog("na`me", "varchar(20)", "utf8mb4", nullable=False),
    mapping.from_catalog("at", "datetime(3)", None, nullable=False),
    mapping.from_catalog("e", "enum('a','b')", "utf8mb4", nullable=False),
)
COLUMNS = tuple(mapping.column(one) for one in TOLD)
HERE = Relation(TOLD)
TEXT = "CAST(CONVERT(`na``me` USING utf8mb4) AS BINARY)"


def keyed(*key: str) -> Table:
    return Table("d", "t", COLUMNS, key)


def test_a_key_of_an_integer_is_read_by_its_index() -> None:
    made = chunk_statement(keyed("id"), HERE, after=(b"7",), upto=(b"18446744073709551615",))
    assert made.endswith(" FROM `d`.`t` WHERE `id` > 7 AND `id` <= 18446744073709551615 ORDER BY `id`")


def test_texts_are_read_by_their_bytes_and_nothing_in_them_is_sql() -> None:
    made = chunk_statement(keyed("na`me"), HERE, after=(b"a'; --",), upto=None)
    assert made.endswith(f" WHERE {TEXT} > x'61273b202d2d' ORDER BY {TEXT}")


def test_a_key_of_several_columns_is_spelled_out() -> None:
    made = chunk_statement(
        keyed("id", "at"), HERE, after=(b"1", b"2024-01-02 03:04:05.678"), upto=(b"9", b"2025-01-01")
    )
    assert "(`id` > 1) OR (`id` = 1 AND `at` > '2024-01-02 03:04:05.678')" in made
    assert "(`id` < 9) OR (`id` = 9 AND `at` <= '2025-01-01')" in made


def test_windows_use_the_keys_own_order() -> None:
    made = window_statement(keyed("na`me"), HERE, after=(b"\xc3\xa9",), rows=10)
    assert made.endswith(" WHERE `na``me` > _utf8mb4 x'c3a9' ORDER BY `na``me` LIMIT 10")
    assert window_statement(keyed("id"), HERE, after=None, rows=5).endswith(" FROM `d`.`t` ORDER BY `id` LIMIT 5")
    assert "`e`" in window_statement(keyed("e"), HERE, after=None, rows=5)


def test_one_row_and_the_lock() -> None:
    assert row_statement(keyed("id"), HERE, (b"5",)).endswith("WHERE `id` = 5")
    assert lock_statement([keyed("id")]) == "LOCK TABLES `d`.`t` READ"


def test_rows_by_their_keys() -> None:
    keys = [(b"1", b"\xc3\xa9"), (b"2", b"' OR 1=1")]
    made = keys_statement(keyed("id", "na`me"), HERE, keys)
    assert made.endswith(" WHERE (`id`, `na``me`) IN ((1, _utf8mb4 x'c3a9'), (2, _utf8mb4 x'27204f5220313d31'))")


def test_a_key_that_is_no_number_never_becomes_sql() -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        chunk_statement(keyed("id"), HERE, after=(b"1 OR 1=1",), upto=None)
    with pytest.raises(ValueError, match="no date and no time"):
        keys_statement(keyed("at"), HERE, [(b"' OR 1=1",)])


def test_a_day_that_there_is_not_is_compared_as_a_text() -> None:
    """MySQL refuses it as a literal, whatever sql_mode it was written under."""
    at, text = b"2024-02-31 01:00:00.000", "CAST(`at` AS BINARY)"
    literal = f"x'{at.hex()}'"
    assert window_statement(keyed("at"), HERE, after=(at,), rows=5).endswith(
        f" WHERE {text} > {literal} ORDER BY `at` LIMIT 5"
    )
    assert f"({text} < {literal}) OR ({text} = {literal} AND `id` <= 9)" in chunk_statement(
        keyed("at", "id"), HERE, after=None, upto=(at, b"9")
    )
    assert row_statement(keyed("at"), HERE, (at,)).endswith(f" WHERE {text} = {literal}")


def test_cuts_lie_between_the_ends() -> None:
    assert list(interpolated(-10, 10, 4)) == [(b"-5",), (b"0",), (b"5",)]
    assert list(interpolated(1, 2, 3)) == [(b"1",), (b"1",)]


def test_a_view_sees_what_it_surely_saw() -> None:
    """By GTID or by binlog position; what the other kind names was not seen for sure."""
    uuid = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
    by_set, by_place = BinlogView(None, GtidSet.parse(f"{uuid}:1-5")), BinlogView(1 << 32 | 500, None)
    assert by_set.sees(f"{uuid}:5")
    assert not by_set.sees(f"{uuid}:6")
    assert not by_set.sees(3)
    assert by_place.sees(1 << 32 | 499)
    assert not by_place.sees(1 << 32 | 500)
    assert not by_place.sees(f"{uuid}:5")
    for view in (by_set, by_place):
        assert BinlogView.parse(view.text).text == view.text
