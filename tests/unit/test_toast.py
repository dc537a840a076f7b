"""Values the source left out: found wherever they were last said, never guessed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import orjson
import pytest

from cdc.encode.envelope import TableEncoder
from cdc.encode.toast import ToastValues
from cdc.model.change import UNCHANGED, Position, Row, Table, Value
from tests.text_tables import encoder, text_column, text_table

LONG = b"w" * 2_100
NOW = Position(1, 100, 1).text
DOCS = encoder(
    text_table("docs", ["id", "note", text_column("doc", toastable=True), text_column("more", toastable=True)])
)


class Topic:
    """What the table's topic holds, committed or not; counts how often it is read."""

    def __init__(self) -> None:
        self.records: list[tuple[bytes, bytes | None]] = []
        self.read = 0

    def add(self, key: bytes, after: dict[str, object] | None, position: str = Position(0, 0, 0).text) -> None:
        event = {
            "op": "d" if after is None else "u",
            "after": after,
            "source": {"position": position, "schema_version": 1},
        }
        self.records.append((key, orjson.dumps(event)))

    def __call__(self, _table: Table) -> Iterator[tuple[bytes, bytes | None]]:
        self.read += 1
        return iter(list(self.records))


def carried(encoder: TableEncoder, version: int) -> Mapping[str, str]:
    """Version 2 has `doc` under the name `text`, and `more` with another type; all else is as it was."""
    if encoder.version == version:
        return {column.name: column.name for column in encoder.table.columns}
    return {"id": "id", "note": "note", "doc": "text"}


@pytest.fixture
def topic() -> Topic:
    return Topic()


@pytest.fixture
def toast(topic: Topic) -> Iterator[ToastValues]:
    made = ToastValues(topic, carried)
    yield made
    made.close()


def _row(doc: Value, more: Value = None) -> Row:
    return (b"1", b"n", doc, more)


def test_a_value_kept_by_this_process_is_found_without_reading_the_topic(toast: ToastValues, topic: Topic) -> None:
    """The last one said, null included."""
    toast.keep(DOCS, b"k", _row(LONG, b"m"), {})
    toast.keep(DOCS, b"k", _row(b"v" * 2_100, None), {})
    found = toast.find(DOCS, b"k", _row(UNCHANGED, UNCHANGED), NOW)
    assert found == {"doc": orjson.dumps("v" * 2_100), "more": b"null"}
    assert topic.read == 0


def test_a_value_left_out_again_and_again_stays_known(toast: ToastValues) -> None:
    """What was filled in is kept with what was sent."""
    toast.keep(DOCS, b"k", _row(LONG, b"m"), {})
    for _ in range(3):
        row = _row(UNCHANGED, b"m2")
        toast.keep(DOCS, b"k", row, toast.find(DOCS, b"k", row, NOW))
    assert toast.find(DOCS, b"k", _row(UNCHANGED, UNCHANGED), NOW) == {
        "doc": orjson.dumps(LONG.decode()),
        "more": b'"m2"',
    }


def test_a_value_published_before_is_read_from_the_topic_once(toast: ToastValues, topic: Topic) -> None:
    """Of each key the last record that is not of an aborted later transaction; deletes leave what was."""
    topic.add(b"k", {"doc": "old" * 900, "more": None})
    topic.add(b"k", {"doc": "new" * 900, "more": None})
    topic.records.append((b"k", None))
    topic.add(b"k", None)
    topic.add(b"k", {"doc": "aborted" * 900, "more": None}, position=NOW)
    for _ in range(2):
        assert toast.find(DOCS, b"k", _row(UNCHANGED), NOW) == {"doc": orjson.dumps("new" * 900)}
    assert topic.read == 1


def test_a_small_value_stored_apart_in_wider_times_is_found_after_a_restart(toast: ToastValues, topic: Topic) -> None:
    """A value stays TOASTed when the rest of its row shrinks: size says nothing then, and the topic has it."""
    topic.add(b"k", {"doc": "small", "more": None})
    assert toast.find(DOCS, b"k", _row(UNCHANGED), NOW) == {"doc": b'"small"'}


def test_what_was_said_here_goes_before_the_topic(toast: ToastValues, topic: Topic) -> None:
    """Column by column: a hidden event may have said one of them only."""
    topic.add(b"k", {"doc": "topic" * 900, "more": "topic"})
    row = _row(UNCHANGED, b"log")
    toast.keep(DOCS, b"k", row, toast.find(DOCS, b"k", row, NOW, published=False))
    found = toast.find(DOCS, b"k", _row(UNCHANGED, UNCHANGED), NOW)
    assert found == {"doc": orjson.dumps("topic" * 900), "more": b'"log"'}


def test_what_the_topic_has_of_a_later_row_is_not_taken(toast: ToastValues, topic: Topic) -> None:
    """Not `published`: only what the log said counts, even if the topic was read before."""
    topic.add(b"k", {"doc": "of another row" * 900, "more": None})
    assert toast.find(DOCS, b"k", _row(UNCHANGED), NOW)
    assert toast.find(DOCS, b"k", _row(UNCHANGED), NOW, published=False) == {}


def test_a_value_nobody_knows_is_not_guessed(toast: ToastValues, topic: Topic) -> None:
    """Neither null nor another row's."""
    topic.add(b"other", {"doc": "another row's" * 900, "more": None})
    assert toast.find(DOCS, b"k", _row(UNCHANGED, UNCHANGED), NOW) == {}


def test_what_is_unknown_stays_so_whatever_was_said_before(toast: ToastValues, topic: Topic) -> None:
    """A row that moved to a key has nothing of the row that had it before, neither from here nor from the topic."""
    topic.add(b"k", {"doc": "of the row before" * 900, "more": "topic"})
    toast.keep(DOCS, b"k", _row(LONG, b"m"), {})
    toast.keep(DOCS, b"k", _row(UNCHANGED, b"m2"), {}, unknown=frozenset({"doc"}))
    assert toast.find(DOCS, b"k", _row(UNCHANGED, UNCHANGED), NOW) == {"more": b'"m2"'}
    toast.keep(DOCS, b"k", _row(b"now said", UNCHANGED), {"more": b'"m2"'})
    assert toast.find(DOCS, b"k", _row(UNCHANGED, UNCHANGED), NOW) == {"doc": b'"now said"', "more": b'"m2"'}


RENAMED = encoder(
    text_table("docs", ["id", "note", text_column("text", toastable=True), text_column("more", toastable=True)]),
    version=2,
)


@pytest.mark.parametrize("published", [True, False], ids=["by the topic", "by the log"])
def test_a_value_follows_its_column_to_a_new_name(toast: ToastValues, topic: Topic, published: bool) -> None:
    """And only the columns do that the versions say may: `more` was retyped, its value is of another time."""
    if published:
        topic.add(b"k", {"doc": LONG.decode(), "more": "old"})
    else:
        toast.keep(DOCS, b"k", _row(LONG, b"old"), {})
    assert toast.find(RENAMED, b"k", _row(UNCHANGED, UNCHANGED), NOW) == {"text": orjson.dumps(LONG.decode())}


def test_topics_and_keys_are_apart(toast: ToastValues) -> None:
    """The same key in two tables."""
    other = encoder(text_table("other", ["id", "note", text_column("doc", toastable=True), "more"]))
    toast.keep(DOCS, b"k", _row(LONG), {})
    toast.keep(other, b"k", _row(b"o" * 2_100), {})
    assert toast.find(DOCS, b"k", _row(UNCHANGED), NOW) == {"doc": orjson.dumps(LONG.decode())}
    assert toast.find(DOCS, b"l", _row(UNCHANGED), NOW) == {}


@pytest.mark.parametrize(
    ("type_", "text"),
    [
        ("text[]", b"{" + b",".join([b"a"] * 300) + b"}"),  # 600 bytes as text, 8 an element as stored
        ("character varying(9)[]", b"{" + b",".join([b"b"] * 300) + b"}"),
        ("jsonb", b"[" + b",".join([b"[]"] * 200) + b"]"),
        ("bigint[]", b"{" + b",".join([b"1"] * 300) + b"}"),
        ("text", b"t" * 1_990),
        ("json", b"[" + b"1," * 990 + b"1]"),
    ],
)
def test_a_value_that_grows_when_stored_is_kept(toast: ToastValues, topic: Topic, type_: str, text: bytes) -> None:
    """Whatever PostgreSQL may store apart is kept, also where its text is shorter than what is stored."""
    table = encoder(text_table("grown", ["id", text_column("v", type_, toastable=True)]))
    toast.keep(table, b"k", (b"1", text), {})
    assert toast.find(table, b"k", (b"1", UNCHANGED), NOW) == {"v": orjson.dumps(text.decode())}
    assert topic.read == 0


def test_many_narrow_columns_count_with_their_headers(toast: ToastValues, topic: Topic) -> None:
    """600 columns of three bytes are a row of 2,400: one of them may be stored apart."""
    names = [f"c{n}" for n in range(600)]
    table = encoder(text_table("many", ["id", *(text_column(n, toastable=True) for n in names)]))
    toast.keep(table, b"k", (b"1", *[b"abc"] * 599, b"x" * 60), {})
    found = toast.find(table, b"k", (b"1", *[b"abc"] * 599, UNCHANGED), NOW)
    assert found == {"c599": orjson.dumps("x" * 60)}
    assert topic.read == 0


def test_rows_that_cannot_be_stored_apart_take_no_room(toast: ToastValues) -> None:
    """Small rows are not kept: memory and disk follow the large ones."""
    for n in range(100):
        toast.keep(DOCS, b"%d" % n, _row(b"small", b"too"), {})
    assert list(toast._db.rows("SELECT count(*) FROM wide")) == [(0,)]
