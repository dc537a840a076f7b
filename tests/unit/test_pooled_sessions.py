"""A pooler that gives each transaction another session is told before a session is changed, or a lock is left there."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Self

import psycopg2
import pytest

from cdc.model.errors import OperatorError
from spark_apply.stores.postgres.session.server import Server

URL = "postgresql://app:secret@127.0.0.1:6432/warehouse"


class Pooler:
    """Hands out the session that was given back last, as PgBouncer does; `mode` says when one is given back."""

    def __init__(self, mode: str) -> None:
        self.mode, self.free, self.said = mode, [3, 2, 1], list[str]()

    def connect(self, **_parameters: object) -> Client:
        return Client(self)


class Client:
    """A client of it, and its cursor."""

    def __init__(self, pooler: Pooler) -> None:
        self._pooler = pooler
        self._session: int | None = None
        self.closed = 0

    @property
    def info(self) -> Any:
        return SimpleNamespace(backend_pid=self._held() if self._pooler.mode == "none" else 4711)

    def get_parameter_status(self, _name: str) -> str:
        return "on"

    def cursor(self) -> Client:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        """It keeps its transaction: what is read of it by then is over."""

    def execute(self, statement: Any, _values: object = None) -> None:
        self._held()
        self._pooler.said.append(statement if isinstance(statement, str) else "settings")

    def fetchall(self) -> list[tuple[Any, ...]]:
        return [(self._held(),)]

    def rollback(self) -> None:
        if self._pooler.mode == "transaction" and self._session is not None:
            self._pooler.free.append(self._session)
            self._session = None

    def close(self) -> None:
        self.closed = 1

    def _held(self) -> int:
        if self._session is None:
            self._session = self._pooler.free.pop()
        return self._session


@pytest.mark.parametrize(("mode", "asked"), [("none", 1), ("session", 11)])
def test_a_session_that_is_kept_is_taken(mode: str, asked: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Directly at the server at the price of one question; behind a pooler of a few, and not for each connection."""
    pooler = Pooler(mode)
    monkeypatch.setattr(psycopg2, "connect", pooler.connect)
    server = Server(URL, "stores.copy")
    for number in (1, 2):
        server._connect()
        assert pooler.said.count("settings") == number
        assert len(pooler.said) == asked + number


def test_one_that_goes_to_others_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pooler = Pooler("transaction")
    monkeypatch.setattr(psycopg2, "connect", pooler.connect)
    with pytest.raises(OperatorError, match="a pooler in between gives each transaction another session") as told:
        Server(URL, "stores.copy")._connect()
    assert "settings" not in pooler.said
    assert "session mode" in (told.value.hint or "")
    assert "secret" not in str(told.value)
    Server(URL, "store", by_transaction=True)._connect()
    assert "settings" in pooler.said
