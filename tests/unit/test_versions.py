"""Versions of tables: published once, ahead of the first event, and found again."""

from __future__ import annotations

import orjson
import pytest

from cdc.change import Position, Table
from cdc.errors import OperatorError
from cdc.versions import Versions
from tests.text_tables import text_column, text_table

AT = Position(1, 2, 3)
ORDERS = text_table("orders", ["id", "note"])
WIDER = text_table("orders", ["id", "note", "more"])


class Published:
    """The schema topic."""

    def __init__(self) -> None:
        self.records: list[tuple[bytes, bytes]] = []

    def versions(self) -> Versions:
        """As a new session finds it."""
        values = [value for _, value in self.records]
        return Versions(values, connector="shop", source="memory", prefix="p", database="d")

    def add(self, versions: Versions, table: Table) -> int:
        return versions.add(table, "p.s.orders", AT, lambda key, value: self.records.append((key, value))).version

    def numbers(self) -> list[int]:
        return [orjson.loads(key)["version"] for key, _ in self.records]


def test_a_table_is_published_once() -> None:
    """The same description again, by this session or another, is no new version."""
    topic = Published()
    first = topic.versions()
    assert first.known(ORDERS) is None
    assert topic.add(first, ORDERS) == 1
    assert first.known(ORDERS) is not None
    assert topic.add(first, text_table("orders", ["id", "note"])) == 1
    assert topic.add(topic.versions(), ORDERS) == 1
    assert topic.numbers() == [1]


def test_another_shape_is_the_next_version_even_if_it_was_there_before() -> None:
    """Versions follow the log: today's shape in the snapshot, yesterday's in the log, then today's again."""
    topic = Published()
    for table in (WIDER, ORDERS, WIDER):
        topic.add(topic.versions(), table)
    assert topic.numbers() == [1, 2, 3]
    records = [orjson.loads(value) for _, value in topic.records]
    assert [len(record["columns"]) for record in records] == [3, 2, 3]
    assert {(r["connector"], r["source"], r["db"], r["topic"], r["position"]) for r in records} == {
        ("shop", "memory", "d", "p.s.orders", AT.text)
    }


def test_what_a_reader_sees_makes_a_version_and_nothing_else() -> None:
    """Type, kind, name and order are seen; whether a value may be left out is not."""
    topic = Published()
    versions = topic.versions()
    same = text_table("orders", ["id", text_column("note", wide=True)])
    retyped = text_table("orders", ["id", text_column("note", "varchar")])
    assert [topic.add(versions, t) for t in (ORDERS, same, retyped)] == [1, 1, 2]


def test_a_column_of_another_type_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    """A rewrite sends no events: the log names table, column and both types; a new column is none."""
    topic = Published()
    topic.add(topic.versions(), ORDERS)
    topic.add(topic.versions(), WIDER)
    assert not caplog.records
    topic.add(topic.versions(), text_table("orders", ["id", text_column("note", "varchar"), "more"]))
    (told,) = caplog.records
    assert "column note is varchar, it was text" in told.getMessage()
    assert "s.orders" in told.getMessage()


def test_another_key_is_refused_by_name() -> None:
    """Records under the old key would stay for ever; nothing is published."""
    topic = Published()
    topic.add(topic.versions(), ORDERS)
    before = list(topic.records)
    rekeyed = text_table("orders", ["id", "note"], key=("id", "note"))
    with pytest.raises(OperatorError, match=r"key changed: table .*\(id, note\).*\(id\)"):
        topic.add(topic.versions(), rekeyed)
    assert topic.records == before


def test_the_newest_record_counts_whatever_the_order() -> None:
    """A compacted topic with records of several versions and tables."""
    topic = Published()
    for table in (ORDERS, WIDER):
        topic.add(topic.versions(), table)
    topic.add(topic.versions(), text_table("lines", ["id"]))
    topic.records.reverse()
    assert topic.add(topic.versions(), WIDER) == 2
    assert topic.add(topic.versions(), ORDERS) == 3
