"""The rows that topics hold: found in what was written since, then in the topic, which is read once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest

from cdc.encode.topic_contents.published_values import PublishedValues
from cdc.encode.topic_contents.topic_rows import TopicRows
from cdc.model.change import Position
from cdc.testing import Inline
from tests.text_tables import encoder, text_table
from tests.unit.test_toast import Topic, carried

DOCS = encoder(text_table("docs", ["id", "note", "doc", "more"]))
TWO = encoder(text_table("docs", ["id", "text", "new", "note"]), version=2)
NOW = Position(1, 100, 1).text


def _rows(values: PublishedValues, topic: Topic, **more: Any) -> TopicRows:
    return TopicRows(values, topic, carried, **{"committed": lambda: NOW, **more})


def test_what_was_written_since_hides_what_the_topic_had() -> None:
    """Behind the position that is known to be committed nothing counts; a row that was deleted is none."""
    topic = Topic()
    for key in (b"a", b"b", b"c"):
        topic.add(key, {"id": "1", "note": "n", "doc": "d", "more": None})
    topic.add(b"b", None)
    topic.add(b"c", {"id": "1", "note": "later", "doc": "d", "more": None}, Position(1, 100, 2).text)
    with closing(PublishedValues(Inline)) as values, closing(_rows(values, topic)) as rows:
        assert rows.find(DOCS, b"a") == b'{"id":"1","note":"n","doc":"d","more":null}'
        assert rows.find(DOCS, b"b") is None
        assert rows.find(DOCS, b"c") == b'{"id":"1","note":"n","doc":"d","more":null}'
        assert rows.find(DOCS, b"unknown") is None
        rows.note(DOCS, b"a", b'{"id":"2"}')
        assert rows.find(DOCS, b"a") == b'{"id":"2"}'
        rows.note(DOCS, b"a", b"null")
        assert rows.find(DOCS, b"a") is None
    assert topic.read == 1


@pytest.mark.parametrize("written_since", [False, True])
def test_columns_are_found_by_their_names_of_now(written_since: bool) -> None:
    """And one that is new, or whose values no longer hold, is left out."""
    topic = Topic()
    topic.add(b"a", {"id": "1", "note": "n", "doc": "d", "more": "m"})
    with closing(PublishedValues(Inline)) as values, closing(_rows(values, topic)) as rows:
        if written_since:
            rows.note(DOCS, b"a", b'{"id":"1","note":"n","doc":"e","more":"m"}')
        doc = b"e" if written_since else b"d"
        assert rows.find(TWO, b"a") == b'{"id":"1","text":"%b","note":"n"}' % doc


def test_the_source_is_tended_while_the_topic_is_read() -> None:
    """A session that ends meanwhile does not begin the reading again."""
    topic, go_on, tended = Topic(), threading.Event(), list[str]()
    topic.add(b"a", {"id": "1", "note": "n", "doc": "d", "more": None})
    read = topic.records_from

    def slowly(*of: Any) -> Iterator[tuple[int, bytes, bytes | None]]:
        go_on.wait(30)
        return read(*of)

    topic.records_from = slowly  # type: ignore[method-assign]

    def stop() -> None:
        raise InterruptedError

    def tend() -> None:
        tended.append("")
        if len(tended) > 1:
            go_on.set()

    with closing(PublishedValues(lambda: ThreadPoolExecutor(1))) as values:
        with closing(_rows(values, topic, tend=stop)) as first, pytest.raises(InterruptedError):
            first.find(DOCS, b"a")
        with closing(_rows(values, topic, tend=tend)) as second:
            assert second.find(DOCS, b"a") is not None
    assert len(tended) > 1
    assert topic.offsets == [0, 1]
