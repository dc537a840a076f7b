"""All connections of a connector reach the server that its first one has reached."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cdc.model.errors import RetryableError
from connectors import one_server

WHERE = "db.example:5432/shop"


@pytest.fixture(autouse=True)
def left() -> Iterator[None]:
    yield
    one_server.forget(WHERE)


def test_another_server_is_refused_while_a_source_follows_one() -> None:
    one_server.require(WHERE, "one", "PostgreSQL")  # as `cdc verify` reads rows, with no source beside it
    one_server.note(WHERE, "one")
    one_server.require(WHERE, "one", "PostgreSQL")
    one_server.require("other.example:5432/shop", "two", "PostgreSQL")
    with pytest.raises(RetryableError, match=r"db\.example:5432/shop: a connection has reached another") as no:
        one_server.require(WHERE, "two", "PostgreSQL")
    assert "the primary" in (no.value.hint or "")


def test_the_next_session_follows_another_one_and_none_is_left_behind() -> None:
    """As after a fail-over, or a start of the server; and a command in the same process later on."""
    one_server.note(WHERE, "one")
    one_server.note(WHERE, "two")
    one_server.require(WHERE, "two", "MySQL")
    one_server.forget(WHERE)
    one_server.require(WHERE, "one", "MySQL")
