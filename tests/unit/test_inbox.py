"""`cdc.inbox` refuses what would not be exactly once, before anything is read."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import cdc
from cdc.library.inbox.marks import Mark, Marks

NOWHERE = "127.0.0.1:1"


def _opened(own: Any, **more: Any) -> cdc.Inbox:
    return cdc.inbox(**{"name": "mailer", "connection": own, "kafka": NOWHERE, "topics": ["a"], **more})


@pytest.fixture
def connection(tmp_path: Path) -> Any:
    with closing(sqlite3.connect(tmp_path / "a.db")) as found:
        yield found


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"name": ""}, "“” is no name"),
        ({"name": "a b"}, "“a b” is no name"),
        ({"topics": []}, "topics are named one by one"),
        ({"topics": "^a.*"}, "topics are named one by one"),
        ({"kafka": {}}, "kafka has no bootstrap.servers"),
        ({"kafka": {"bootstrap.servers": NOWHERE, "group.id": "a"}}, "group.id cannot be set"),
        ({"kafka": {"bootstrap.servers": NOWHERE, "isolation.level": "x"}}, "isolation.level cannot be set"),
        ({"kafka": {"bootstrap.servers": NOWHERE, "no.such": "x"}}, "No such configuration property"),
        ({"connection": SimpleNamespace()}, "types.SimpleNamespace is no connection that is known"),
    ],
)
def test_what_makes_no_sense(more: dict[str, Any], said: str, connection: sqlite3.Connection) -> None:
    with pytest.raises(cdc.ConfigError, match=said) as error:
        _opened(connection, **more)
    assert error.value.hint


def _autocommitting(module: str, **more: object) -> Any:
    return type("Connection", (), {"__module__": module, **more})()


@pytest.mark.parametrize(
    "other",
    [
        _autocommitting("psycopg2.extensions", autocommit=True),
        _autocommitting("psycopg", autocommit=True),
        _autocommitting("pymysql.connections", get_autocommit=lambda _: True),
    ],
    ids=["psycopg2", "psycopg", "pymysql"],
)
def test_autocommit(other: Any) -> None:
    """Effects and mark would be two transactions."""
    with pytest.raises(cdc.ConfigError, match="the connection is in autocommit"):
        _opened(other)


def test_a_transaction_that_is_open(connection: sqlite3.Connection) -> None:
    """It would be committed with the batch: at the start, and before every batch."""
    with closing(_opened(connection)) as inbox:
        connection.execute("CREATE TABLE t (n int)")
        connection.execute("INSERT INTO t VALUES (1)")
        with pytest.raises(cdc.ConfigError, match="a transaction is open"), inbox.batch():
            pass
        with pytest.raises(cdc.ConfigError, match="a transaction is open"):
            _opened(connection)
        connection.rollback()
        with inbox.batch(wait_s=0) as messages:
            assert messages == ()
            connection.execute("INSERT INTO t VALUES (2)")
            with pytest.raises(cdc.ConfigError, match="a batch is open already"), inbox.batch():
                pass
        assert connection.execute("SELECT n FROM t").fetchall() == [(2,)]
        with pytest.raises(cdc.ConfigError, match="most: 0 is out of range"), inbox.batch(0):
            pass


def test_marks(connection: sqlite3.Connection) -> None:
    """Each inbox has its own; one that is there is not begun again; nothing is kept of a transaction that failed."""
    mine, other = Marks(connection, "mine"), Marks(connection, "other")
    assert mine.begin({("t", 0): Mark("id", 3)}) == {("t", 0): Mark("id", 3)}
    assert mine.begin({("t", 0): Mark("id", 9), ("t", 1): Mark("id", 0)}) == {
        ("t", 0): Mark("id", 3), ("t", 1): Mark("id", 0),
    }  # fmt: skip
    mine.lock([("t", 0)])
    mine.move({("t", 0): 7})
    mine.roll_back()
    assert mine.lock([("t", 0), ("u", 0)]) == {("t", 0): Mark("id", 3)}
    mine.move({("t", 0): 8})
    mine.commit()
    assert other.begin({("t", 0): Mark("id", 1)}) == {("t", 0): Mark("id", 1)}
    assert mine.lock([("t", 0)]) == {("t", 0): Mark("id", 8)}


@pytest.mark.parametrize(
    "form", [sqlite3.Row, lambda cursor, row: dict(zip([c[0] for c in cursor.description], row, strict=True))]
)
def test_rows_may_have_any_form(form: Callable[..., Any], connection: sqlite3.Connection) -> None:
    """As the application has set it: its driver's dictionaries are read too."""
    connection.row_factory = form
    assert Marks(connection, "mine").begin({("t", 0): Mark("id", 3)}) == {("t", 0): Mark("id", 3)}
