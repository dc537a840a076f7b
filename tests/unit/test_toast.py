"""Values the source left out: found wherever they were last said, never guessed."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import orjson
import pytest

from cdc.encode.envelope.table_encoder import TableEncoder
from cdc.encode.topic_contents.published_values import PublishedValues
from cdc.encode.topic_contents.toast import ToastValues
from cdc.model.change import UNCHANGED, Position, Row, Table, Value
from cdc.rules.routes import owner
from cdc.testing import Inline
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
        self.identity = "made once"
        self.read = 0
        self.offsets: list[int] = []

    def add(self, key: bytes, after: dict[str, object] | None, position: str = Position(0, 0, 0).text) -> None:
        event = {
            "op": "d" if after is None else "u",
            "after": after,
            "source": {"position": position, "schema_version": 1},
        }
        self.records.append((key, orjson.dumps(event)))

    def partition(self, _table: Table, _key: bytes) -> tuple[str, int]:
        return self.identity, 0

    def records_from(self, _table: Table, _number: int, offset: int) -> Iterator[tuple[int, bytes, bytes | None]]:
        self.read += 1
        self.offsets.append(offset)
        return iter([(at, *record) for at, record in enumerate(self.records) if at >= offset])


def carried(encoder: TableEncoder, version: int) -> Mapping[str, str]:
    """Version 2 has `doc` under the name `text`, and `more` with another type; all else is as it was."""
    if encoder.version == version:
        return {column.name: column.name for column in encoder.table.columns}
    return {"id": "id", "note": "note", "doc": "text"}


@pytest.fixture
def topic() -> Topic:
    return Topic()


@pytest.fixture
def values() -> Iterator[PublishedValues]:
    """What outlives sessions."""
    with closing(PublishedValues(Inline)) as made:
        yield made


def session(values: PublishedValues, topic: Topic, **more: Any) -> ToastValues:
    return ToastValues(values, topic, carried, **{"committed": lambda: NOW, **more})


@pytest.fixture
def toast(values: PublishedValues, topic: Topic) -> Iterator[ToastValues]:
    with closing(session(values, topic)) as made:
        yield made


def find(toast: ToastValues, encoder: TableEncoder, key: bytes, row: Row, **more: Any) -> dict[str, bytes]:
    found, asked = toast.find(encoder, key, row, **more)
    assert asked == ("ask" in more)
    return found


def _row(doc: Value, more: Value = None) -> Row:
    return (b"1", b"n", doc, more)


def test_a_value_kept_by_this_process_is_found_without_reading_the_topic(toast: ToastValues, topic: Topic) -> None:
    """The last one said, null included."""
    toast.keep(DOCS, b"k", _row(LONG, b"m"), {})
    toast.keep(DOCS, b"k", _row(b"v" * 2_100, None), {})
    found = find(toast, DOCS, b"k", _row(UNCHANGED, UNCHANGED))
    assert found == {"doc": orjson.dumps("v" * 2_100), "more": b"null"}
    assert topic.read == 0


def test_a_value_left_out_again_and_again_stays_known(toast: ToastValues) -> None:
    """What was filled in is kept with what was sent."""
    toast.keep(DOCS, b"k", _row(LONG, b"m"), {})
    for _ in range(3):
        row = _row(UNCHANGED, b"m2")
        toast.keep(DOCS, b"k", row, find(toast, DOCS, b"k", row))
    assert find(toast, DOCS, b"k", _row(UNCHANGED, UNCHANGED)) == {
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
        assert find(toast, DOCS, b"k", _row(UNCHANGED)) == {"doc": orjson.dumps("new" * 900)}
    assert topic.read == 1


def test_a_small_value_stored_apart_in_wider_times_is_found_after_a_restart(toast: ToastValues, topic: Topic) -> None:
    """A value stays TOASTed when the rest of its row shrinks: size says nothing then, and the topic has it."""
    topic.add(b"k", {"doc": "small", "more": None})
    assert find(toast, DOCS, b"k", _row(UNCHANGED)) == {"doc": b'"small"'}


def test_what_was_said_here_goes_before_the_topic(toast: ToastValues, topic: Topic) -> None:
    """Column by column: a hidden event may have said one of them only."""
    topic.add(b"k", {"doc": "topic" * 900, "more": "topic"})
    row = _row(UNCHANGED, b"log")
    toast.keep(DOCS, b"k", row, find(toast, DOCS, b"k", row, published=False))
    found = find(toast, DOCS, b"k", _row(UNCHANGED, UNCHANGED))
    assert found == {"doc": orjson.dumps("topic" * 900), "more": b'"log"'}


def test_what_the_topic_has_of_a_later_row_is_not_taken(toast: ToastValues, topic: Topic) -> None:
    """Not `published`: only what the log said counts, even if the topic was read before."""
    topic.add(b"k", {"doc": "of another row" * 900, "more": None})
    assert find(toast, DOCS, b"k", _row(UNCHANGED))
    assert find(toast, DOCS, b"k", _row(UNCHANGED), published=False) == {}


@pytest.mark.parametrize(("commit", "counts"), [(49, False), (50, True), (51, True)])
def test_from_behind_a_gap_on_the_topic_counts(
    values: PublishedValues, topic: Topic, commit: int, *, counts: bool
) -> None:
    """A row that was read again stands at the floor itself; what is before it may have changed in the gap."""
    topic.add(b"k", {"doc": "from the topic" * 200, "more": None}, position=Position(0, commit, 0).text)
    with closing(session(values, topic, floors={DOCS.table.qualified: Position(0, 50, 0).text})) as toast:
        assert bool(find(toast, DOCS, b"k", _row(UNCHANGED))) == counts


class SharedTopic(Topic):
    """Has the rows of several tables, of which each is given its own."""

    def records_from(self, table: Table, number: int, offset: int) -> Iterator[tuple[int, bytes, bytes | None]]:
        ours = owner(table.qualified)
        return ((at, key, value) for at, key, value in super().records_from(table, number, offset) if ours(key))


def test_each_table_of_a_topic_has_what_is_its_own(values: PublishedValues) -> None:
    """What is read, from where on it counts, and which dead letters it has: whichever table has asked first."""
    columns = ["id", "note", text_column("doc", toastable=True), text_column("more", toastable=True)]
    tables = [text_table(name, columns) for name in ("docs_a", "docs_b", "docs_c", "docs_d")]
    encoders = [
        TableEncoder(of, connector="m", prefix="p", database="d", version=1, topic="p.docs", names_source=True)
        for of in tables
    ]
    topic, row = SharedTopic(), _row(UNCHANGED)
    keys = [each.key(row) for each in encoders]
    for key, table in zip(keys, tables, strict=True):
        topic.add(key, {"doc": table.name * 900, "more": None}, position=Position(0, 40, 0).text)
    letter = {"schema": "s", "table": "docs_c", "position": Position(0, 41, 0).text}
    more = {"floors": {"s.docs_b": Position(0, 50, 0).text}, "letters": lambda: iter([(keys[2], orjson.dumps(letter))])}
    with closing(session(values, topic, **more)) as toast:
        found = [find(toast, each, key, row) for each, key in zip(encoders, keys, strict=True)]
    assert found == [{"doc": orjson.dumps("docs_a" * 900)}, {}, {}, {"doc": orjson.dumps("docs_d" * 900)}]


def test_a_value_nobody_knows_is_not_guessed(toast: ToastValues, topic: Topic) -> None:
    """Neither null nor another row's."""
    topic.add(b"other", {"doc": "another row's" * 900, "more": None})
    assert find(toast, DOCS, b"k", _row(UNCHANGED, UNCHANGED)) == {}


def test_what_is_unknown_stays_so_whatever_was_said_before(toast: ToastValues, topic: Topic) -> None:
    """A row that moved to a key has nothing of the row that had it before, neither from here nor from the topic."""
    topic.add(b"k", {"doc": "of the row before" * 900, "more": "topic"})
    toast.keep(DOCS, b"k", _row(LONG, b"m"), {})
    toast.keep(DOCS, b"k", _row(UNCHANGED, b"m2"), {}, unknown=frozenset({"doc"}))
    assert find(toast, DOCS, b"k", _row(UNCHANGED, UNCHANGED)) == {"more": b'"m2"'}
    toast.keep(DOCS, b"k", _row(b"now said", UNCHANGED), {"more": b'"m2"'})
    assert find(toast, DOCS, b"k", _row(UNCHANGED, UNCHANGED)) == {"doc": b'"now said"', "more": b'"m2"'}


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
    assert find(toast, RENAMED, b"k", _row(UNCHANGED, UNCHANGED)) == {"text": orjson.dumps(LONG.decode())}


def test_topics_and_keys_are_apart(toast: ToastValues) -> None:
    """The same key in two tables."""
    other = encoder(text_table("other", ["id", "note", text_column("doc", toastable=True), "more"]))
    toast.keep(DOCS, b"k", _row(LONG), {})
    toast.keep(other, b"k", _row(b"o" * 2_100), {})
    assert find(toast, DOCS, b"k", _row(UNCHANGED)) == {"doc": orjson.dumps(LONG.decode())}
    assert find(toast, DOCS, b"l", _row(UNCHANGED)) == {}


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
    assert find(toast, table, b"k", (b"1", UNCHANGED)) == {"v": orjson.dumps(text.decode())}
    assert topic.read == 0


def test_many_narrow_columns_count_with_their_headers(toast: ToastValues, topic: Topic) -> None:
    """600 columns of three bytes are a row of 2,400: one of them may be stored apart."""
    names = [f"c{n}" for n in range(600)]
    table = encoder(text_table("many", ["id", *(text_column(n, toastable=True) for n in names)]))
    toast.keep(table, b"k", (b"1", *[b"abc"] * 599, b"x" * 60), {})
    found = find(toast, table, b"k", (b"1", *[b"abc"] * 599, UNCHANGED))
    assert found == {"c599": orjson.dumps("x" * 60)}
    assert topic.read == 0


def test_rows_that_cannot_be_stored_apart_take_no_room(toast: ToastValues) -> None:
    """Small rows are not kept: memory and disk follow the large ones."""
    for n in range(100):
        toast.keep(DOCS, b"%d" % n, _row(b"small", b"too"), {})
    assert list(toast._db.rows("SELECT count(*) FROM wide")) == [(0,)]


def _published(n: int, position: Position) -> dict[str, Any]:
    return {"after": {"doc": f"{n}" * 2_100, "more": None}, "position": position.text}


def test_a_session_reads_on_where_the_one_before_it_has_got_to(values: PublishedValues, topic: Topic) -> None:
    """What was read was committed; what was open or aborted then is read again, as it is by now."""
    committed = Position(1, 50, 0)
    topic.add(b"k", **_published(1, Position(1, 10, 1)))
    topic.add(b"l", **_published(2, Position(1, 60, 1)))  # open, and then aborted
    with closing(session(values, topic, committed=lambda: committed.text)) as first:
        assert find(first, DOCS, b"k", _row(UNCHANGED)) == {"doc": orjson.dumps("1" * 2_100)}
        assert find(first, DOCS, b"l", _row(UNCHANGED)) == {}
    topic.add(b"l", **_published(3, Position(1, 60, 1)))  # its transaction again
    topic.add(b"k", **_published(4, Position(1, 70, 1)))
    with closing(session(values, topic)) as second:
        assert find(second, DOCS, b"l", _row(UNCHANGED)) == {"doc": orjson.dumps("3" * 2_100)}
        assert find(second, DOCS, b"k", _row(UNCHANGED)) == {"doc": orjson.dumps("4" * 2_100)}
    assert topic.offsets == [0, 0, 1], "twice from its beginning, and then from what was open"


def test_a_topic_that_was_made_again_is_read_from_its_beginning(values: PublishedValues, topic: Topic) -> None:
    """Nothing of the one that had its name is found."""
    topic.add(b"k", {"doc": "old" * 900, "more": None})
    with closing(session(values, topic)) as first:
        assert find(first, DOCS, b"k", _row(UNCHANGED))
    topic.records.clear()
    topic.identity = "made again"
    with closing(session(values, topic)) as second:
        assert find(second, DOCS, b"k", _row(UNCHANGED)) == {}


def test_rows_that_were_read_since_are_found_though_they_are_small(toast: ToastValues, topic: Topic) -> None:
    """A row that a window has written may have a value out of line from when it was larger."""
    topic.add(b"k", {"doc": "old" * 900, "more": None})
    assert find(toast, DOCS, b"k", _row(UNCHANGED)) == {"doc": orjson.dumps("old" * 900)}
    topic.add(b"k", {"doc": "new" * 900, "more": None})
    toast.read_again(DOCS.table.qualified)
    assert find(toast, DOCS, b"k", _row(UNCHANGED)) == {"doc": orjson.dumps("new" * 900)}


def test_the_source_is_asked_first_and_the_topic_not_read(toast: ToastValues, topic: Topic) -> None:
    """As long as it answers; what it answers for is noted, and what is known already is not asked for."""
    row = _row(UNCHANGED, b"m")
    assert find(toast, DOCS, b"k", row, ask=lambda: (b"1", b"n", b"now", b"other")) == {"doc": b'"now"'}
    toast.keep(DOCS, b"k", row, {"doc": b'"now"'})
    assert toast.find(DOCS, b"k", row, ask=lambda: pytest.fail("asked"))[0] == {"doc": b'"now"'}
    assert topic.read == 0


def test_the_topic_is_read_where_the_source_cannot_tell(toast: ToastValues, topic: Topic) -> None:
    topic.add(b"k", {"doc": "topic" * 900, "more": None})
    found, asked = toast.find(DOCS, b"k", _row(UNCHANGED), ask=lambda: None)
    assert (found, asked) == ({"doc": orjson.dumps("topic" * 900)}, False)
    assert topic.read == 1


class _Stop(Exception):  # noqa: N818 - not an error
    pass


def test_while_the_topic_is_read_the_source_is_tended_and_the_reading_outlives_the_session(topic: Topic) -> None:
    """A session that ends meanwhile does not begin it again: the next one waits for what is being read."""
    go_on, tended = threading.Event(), list[str]()
    topic.add(b"k", {"doc": "slow" * 900, "more": None})
    read = topic.records_from

    def slowly(*of: Any) -> Iterator[tuple[int, bytes, bytes | None]]:
        go_on.wait(30)
        return read(*of)

    topic.records_from = slowly  # type: ignore[method-assign]

    def stop() -> None:
        raise _Stop

    def tend() -> None:
        tended.append("")
        if len(tended) > 1:
            go_on.set()

    with closing(PublishedValues(lambda: ThreadPoolExecutor(1))) as values:
        with closing(session(values, topic, tend=stop)) as first, pytest.raises(_Stop):
            first.find(DOCS, b"k", _row(UNCHANGED))
        with closing(session(values, topic, tend=tend)) as second:
            assert find(second, DOCS, b"k", _row(UNCHANGED)) == {"doc": orjson.dumps("slow" * 900)}
    assert len(tended) > 1
    assert topic.offsets == [0, 1], "once from its beginning, then what came since"
