"""Topic names: one-to-one for any pair of names."""

from __future__ import annotations

import re

from hypothesis import assume, given
from hypothesis import strategies as st

from cdc.encode.table_log import log_of
from sinks.topics.names import escape, table_of, table_topic, unescape

TRICKY = st.text("_u0024e5fd.-aA", max_size=16)
NAMES = st.one_of(TRICKY, st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), max_size=12))


@given(NAMES)
def test_a_name_comes_back_from_its_topic(name: str) -> None:
    """unescape∘escape is the identity, and what is between is Kafka's alphabet."""
    assert unescape(escape(name)) == name
    assert re.fullmatch(r"[A-Za-z0-9_-]*", escape(name))


@given(NAMES, NAMES, NAMES, NAMES)
def test_two_tables_never_share_a_topic(schema: str, table: str, other_schema: str, other_table: str) -> None:
    """Different tables, different topics."""
    assume((schema, table) != (other_schema, other_table))
    assert table_topic("p", schema, table) != table_topic("p", other_schema, other_table)


@given(NAMES, NAMES, NAMES, NAMES)
def test_a_log_is_no_tables_topic(schema: str, table: str, other_schema: str, other_table: str) -> None:
    """Whatever the tables are called (a schema may be named `log`); and each log is of one table."""
    topic, other = table_topic("p", schema, table), table_topic("p", other_schema, other_table)
    assert log_of(topic) != other
    assert (log_of(topic) == log_of(other)) == (topic == other)
    assert table_of(topic) == f"{schema}.{table}"
    assert table_of(log_of(topic)) is None
