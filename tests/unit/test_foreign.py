"""Records of a table's topic that no connector has written are no events, whatever they are."""

from __future__ import annotations

import threading

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.encode.topic_contents.foreign import FOREIGN, event_of, names_a_row, tell
from cdc.encode.topic_contents.stale_keys import stale_keys
from tests.text_tables import text_table

OURS = {
    "op": "u",
    "after": {"id": 1},
    "source": {"position": "00000001.0000000000000001.00000001", "schema_version": 1},
}
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["op", "source", "after"]), inner),
)


def test_a_key_under_which_nothing_stands_any_more_is_not_deleted_again() -> None:
    """What nobody can read was deleted before: each later reading would write as many deletes as the table has rows."""
    table, key = text_table("t", ["id"]), b'{"id":"1"}'
    gone = orjson.dumps({**OURS, "op": "d", "after": None})
    for records, stale in (
        ([(key, FOREIGN)], [key]),
        ([(key, FOREIGN), (key, gone), (key, None)], []),
        ([(key, FOREIGN), (key, None)], []),
        ([(key, FOREIGN), (key, None), (key, FOREIGN)], [key]),
    ):
        with stale_keys(lambda _, of=records: iter(of), table, "p.t", since="1", closed=threading.Event()) as found:  # type: ignore[misc]
            assert list(found) == stale


def test_what_the_registry_does_not_explain_is_told_so(caplog: pytest.LogCaptureFixture) -> None:
    """It may be a connector's own, of a registry that is lost."""
    for topic, value in (("lost", FOREIGN), ("unknown", b"\0\0\0\0\5abc"), ("other", b"abc")):
        tell(topic, "s.t", value)
        tell(topic, "s.t", value)
    assert ["registry" in record.message for record in caplog.records] == [True, True, False]


def test_an_event_of_ours_is_read() -> None:
    assert event_of(orjson.dumps(OURS)) == OURS
    assert event_of(orjson.dumps({**OURS, "op": "d", "after": None})) is not None


@given(_JSON.map(orjson.dumps) | st.binary(max_size=20))
def test_a_record_that_no_connector_has_written_is_no_event(value: bytes) -> None:
    """Debezium's records, texts, numbers and bytes are none; nothing is raised."""
    assert event_of(value) is None


@pytest.mark.parametrize("source", [{"position": 5}, {"position": "x", "schema_version": 1}, {}, None, "text"])
def test_a_record_with_another_source_is_no_event(source: object) -> None:
    assert event_of(orjson.dumps({**OURS, "source": source})) is None


def test_a_foreign_key_is_a_rows_only_in_the_form_of_the_tables_keys() -> None:
    assert names_a_row(b'{"id":1}', ("id",))
    assert [names_a_row(key, ("id",)) for key in (b"1", b"text", b"\xff", b'{"other":1}', b"[]")] == [False] * 5
