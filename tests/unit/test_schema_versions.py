"""Versions of tables: published once, ahead of the first event, and found again."""

from __future__ import annotations

import dataclasses
import threading

import orjson
import pytest

from cdc.encode.schema_versions import SchemaVersions
from cdc.model.change import Position, Table
from cdc.model.wire import Wire
from tests.text_tables import text_column, text_table

AT = Position(1, 2, 3)
ORDERS = text_table("orders", ["id", "note"])
WIDER = text_table("orders", ["id", "note", "more"])


class Published:
    """The schema topic."""

    def __init__(self) -> None:
        self.records: list[tuple[bytes, bytes]] = []
        self.asked: list[str] = []

    def versions(self) -> SchemaVersions:
        """As a new session finds it."""
        values = [value for _, value in self.records]
        return SchemaVersions(values, connector="shop", source="memory", prefix="p", database="d")

    def add(self, versions: SchemaVersions, table: Table) -> int:
        return versions.add(
            table,
            "p.s.orders",
            AT,
            lambda key, value: self.records.append((key, value)),
            lambda table, reason: self.asked.append(f"{table.qualified}: {reason}"),
        ).version

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
    same = text_table("orders", ["id", text_column("note", toastable=True)])
    retyped = text_table("orders", ["id", text_column("note", "varchar")])
    assert [topic.add(versions, t) for t in (ORDERS, same, retyped)] == [1, 1, 2]


# --- What changed without events --------------------------------------------------------------------------------------

MARKED = dataclasses.replace(ORDERS, marks=("file 1", "columns 1"))

UNSAID: dict[str, tuple[Table, Table, str]] = {
    "retyped": (ORDERS, text_table("orders", ["id", text_column("note", "varchar")]), "note is varchar, it was text"),
    "narrowed": (
        text_table("orders", ["id", text_column("note", "character varying(9)")]),
        text_table("orders", ["id", text_column("note", "character varying(8)")]),
        "note is character varying(8)",
    ),
    "another scale": (
        text_table("orders", ["id", text_column("note", "numeric(9,2)")]),
        text_table("orders", ["id", text_column("note", "numeric(9,3)")]),
        "note is numeric(9,3)",
    ),
    "renamed": (ORDERS, text_table("orders", ["id", "remark"]), "column remark had another name"),
    "another key": (ORDERS, text_table("orders", ["id", "note"], key=("id", "note")), "now (id, note), it was (id)"),
    "key renamed": (ORDERS, text_table("orders", ["no", "note"], key=("no",)), "its key is now (no)"),
    "rewritten": (MARKED, dataclasses.replace(ORDERS, marks=("file 2", "columns 2")), "rewritten without events"),
    "a default": (
        ORDERS,
        text_table("orders", ["id", "note", dataclasses.replace(text_column("more"), filled=True)]),
        "column more was added with a default",
    ),
}


@pytest.mark.parametrize("case", UNSAID)
def test_what_no_event_tells_asks_for_the_rows_again(case: str) -> None:
    """A new version, and once: the next session has it from the topic. The table and the reason are named."""
    before, now, reason = UNSAID[case]
    topic = Published()
    topic.add(topic.versions(), before)
    topic.add(topic.versions(), now)
    (asked,) = topic.asked
    assert asked.startswith("s.orders: ")
    assert reason in asked
    assert topic.add(topic.versions(), now) == 2
    assert len(topic.asked) == 1


SAID: dict[str, tuple[Table, Table]] = {
    "a column more": (ORDERS, WIDER),
    "a column less": (WIDER, ORDERS),
    "a wider type": (
        text_table("orders", ["id", text_column("note", "character varying(8)")]),
        text_table("orders", ["id", text_column("note", "character varying(9)")]),
    ),
    "text": (text_table("orders", ["id", text_column("note", "character varying(8)")]), ORDERS),
    "more digits": (
        text_table("orders", ["id", text_column("note", "numeric(9,2)")]),
        text_table("orders", ["id", text_column("note", "numeric(10,2)")]),
    ),
    "any digits": (
        text_table("orders", ["id", text_column("note", "numeric(9,2)")]),
        text_table("orders", ["id", text_column("note", "numeric")]),
    ),
    "another file": (MARKED, dataclasses.replace(ORDERS, marks=("file 2", "columns 1"))),
    "columns touched": (MARKED, dataclasses.replace(ORDERS, marks=("file 1", "columns 2"))),
    "retyped in place": (
        MARKED,
        dataclasses.replace(
            text_table("orders", ["id", text_column("note", "varchar")]), marks=("file 1", "columns 2")
        ),
    ),
    "nothing known of before": (ORDERS, MARKED),
}


@pytest.mark.parametrize("case", SAID)
def test_what_leaves_the_values_alone_asks_for_nothing(case: str) -> None:
    """To read a table again is dear: TRUNCATE, VACUUM FULL, a wider type are no reason."""
    before, now = SAID[case]
    topic = Published()
    topic.add(topic.versions(), before)
    assert topic.versions().rewritten(now) is None
    topic.add(topic.versions(), now)
    assert topic.asked == []


def test_a_rewrite_is_known_before_any_row_comes() -> None:
    """At the start, by the table's marks alone; of a table never described nothing is known."""
    topic = Published()
    rewritten = dataclasses.replace(ORDERS, marks=("file 2", "columns 2"))
    assert topic.versions().rewritten(rewritten) is None
    topic.add(topic.versions(), MARKED)
    assert "rewritten without events" in (topic.versions().rewritten(rewritten) or "")
    topic.add(topic.versions(), rewritten)
    assert topic.versions().rewritten(rewritten) is None


# --- What a version's values are worth later --------------------------------------------------------------------------


def _carried(*tables: Table) -> dict[str, str]:
    """From the first version to the last."""
    topic = Published()
    for table in tables:
        topic.add(topic.versions(), table)
    versions = topic.versions()
    last = versions.add(tables[-1], "p.s.orders", AT, lambda *_: None, lambda *_: None)
    return dict(versions.carried(last, 1))


def _body(*names: str, type_: str = "text") -> Table:
    return text_table("orders", ["id", *(text_column(name, type_) for name in names)])


CARRIED: dict[str, tuple[tuple[Table, ...], dict[str, str]]] = {
    "renamed": ((_body("a", "b"), _body("a", "c")), {"id": "id", "a": "a", "b": "c"}),
    "renamed twice": ((_body("a"), _body("b"), _body("c")), {"id": "id", "a": "c"}),
    "renamed away and back": ((_body("a"), _body("b"), _body("a")), {"id": "id", "a": "a"}),
    "retyped": ((_body("a"), _body("a", type_="bytea")), {"id": "id"}),
    "retyped there and back": ((_body("a"), _body("a", type_="bytea"), _body("a")), {"id": "id"}),
    "widened": ((_body("a", type_="character varying(9)"), _body("a")), {"id": "id", "a": "a"}),
    "dropped before it": ((_body("a", "b"), _body("b")), {"id": "id", "b": "b"}),
    "dropped and renamed": ((_body("a", "b"), _body("c")), {"id": "id", "a": "c"}),
    "crosswise": ((_body("a", "b"), _body("b", "a")), {}),
    "rewritten": (
        (MARKED, dataclasses.replace(ORDERS, marks=("file 2", "columns 2"))),
        {},
    ),
    "gone and come": ((_body("a"), _body(), _body("a")), {"id": "id"}),
}


@pytest.mark.parametrize("case", CARRIED)
def test_values_are_carried_over_where_they_are_sure(case: str) -> None:
    """A rename keeps a column's values, a change of type or a rewrite does not, and what is unsure is forgotten."""
    tables, expected = CARRIED[case]
    assert _carried(*tables) == expected


def test_the_newest_record_counts_whatever_the_order() -> None:
    """A compacted topic with records of several versions and tables."""
    topic = Published()
    for table in (ORDERS, WIDER):
        topic.add(topic.versions(), table)
    topic.add(topic.versions(), text_table("lines", ["id"]))
    topic.records.reverse()
    assert topic.add(topic.versions(), WIDER) == 2
    assert topic.add(topic.versions(), ORDERS) == 3


class SlowRegistry:
    """Gives plain JSON, once it was waited for."""

    def __init__(self) -> None:
        self.answered = threading.Event()

    def begin(self, source: str, database: str, places: tuple[str, ...]) -> None:
        del source, database, places

    def of(self, table: Table, topic: str, numbers: object = None) -> Wire | None:
        del table, topic
        assert self.answered.wait(30)
        return None


def test_the_source_is_tended_while_a_registry_is_slow() -> None:
    """It answers only when the source was tended; a session that is to end does not wait for it."""
    slow, topic = SlowRegistry(), Published()
    versions = SchemaVersions(
        [], connector="shop", source="memory", prefix="p", database="d", wires=slow, tend=slow.answered.set
    )
    assert topic.add(versions, ORDERS) == 1

    def end() -> None:
        raise InterruptedError

    slow.answered.clear()
    ending = SchemaVersions([], connector="shop", source="memory", prefix="p", database="d", wires=slow, tend=end)
    with pytest.raises(InterruptedError):
        topic.add(ending, WIDER)
    slow.answered.set()
