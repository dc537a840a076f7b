"""Topic names as Kafka and the contract want them."""

from __future__ import annotations

import re

import pytest

from cdc.model.errors import ConfigError
from sinks.topics.names import LONGEST, escape, position_topic, schema_topic, table_topic, unescape


@pytest.mark.parametrize(
    ("name", "escaped"),
    [
        ("orders", "orders"),
        ("order_lines-2", "order_lines-2"),
        ("a.b", "a_u002eb"),
        ("Ünï", "_u00dcn_u00ef"),
        ("_u00dc", "_u005fu00dc"),
        ("__u002e", "__u005fu002e"),
        ("_u00é", "_u00_u00e9"),
        ("😀", "_ud83d_ude00"),
        ("", ""),
    ],
)
def test_a_name_is_escaped_as_the_contract_says(name: str, escaped: str) -> None:
    """``_uXXXX`` for each UTF-16 code unit Kafka has no character for; an underscore only where misread."""
    assert escape(name) == escaped
    assert unescape(escaped) == name


def test_topics_of_a_connector_are_apart() -> None:
    """A table's topic has two dots, the others one."""
    names = {
        table_topic("p", "schema", "t"),
        table_topic("p", "s", "schema"),
        schema_topic("p"),
        position_topic("p", "c"),
    }
    assert names == {"p.schema.t", "p.s.schema", "p.schema", "p.position-c"}
    assert table_topic("p", "a.b", "c") != table_topic("p", "a", "b.c")


def test_a_name_too_long_for_kafka_is_refused() -> None:
    """Never cut: two tables would share a topic."""
    assert len(table_topic("p", "s", "t" * (LONGEST - 4))) == LONGEST
    with pytest.raises(ConfigError, match=re.escape(f"Kafka takes {LONGEST}")) as caught:
        table_topic("p", "s", "t" * (LONGEST - 3))
    assert f'"!s.{"t" * (LONGEST - 3)}"' in str(caught.value.hint), (
        "one new table is no reason to read all tables again"
    )
