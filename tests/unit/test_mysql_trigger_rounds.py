"""Rounds of MySQL and MariaDB by triggers: how a later view is compared."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from connectors.triggers.mysql import rounds
from connectors.triggers.mysql.numbers import Numbers
from connectors.triggers.mysql.shape import Shape

LATE = 5_000


@pytest.mark.parametrize("key", [b"7", b"of no other change"])
def test_many_changes_that_a_view_has_not_seen_are_looked_through_once(
    monkeypatch: pytest.MonkeyPatch, key: bytes
) -> None:
    """As of a large transaction that ends between two views: not once for each change, nor for some at a time."""
    asked = list[str]()

    def streamed(_: object, statement: str) -> Iterator[tuple[bytes, ...]]:
        asked.append(statement)
        yield from ((b"%d" % number, b"%d" % number) for number in range(1, LATE + 1))
        yield b"%d" % (LATE + 1), key

    def ask(_: object, __: str, statement: str) -> list[tuple[bytes, ...]]:
        asked.append(statement)
        return []

    monkeypatch.setattr(rounds, "_streamed", streamed)
    monkeypatch.setattr(Shape, "from_json", lambda _: SimpleNamespace(key_stored=("n1",)))
    monkeypatch.setattr("connectors.mysql.session.texts", lambda *_: [("{}",)])
    monkeypatch.setattr("connectors.mysql.session.rows", ask)
    pins = object.__new__(rounds.Pins)
    names: Any = SimpleNamespace(of=str, change_table=str)
    pins._names, pins._locking = names, names
    made = rounds.Round(0, "", 0, {1: 1}, Numbers([LATE + 1]))
    assert pins._overtaken(1, range(1, LATE + 1), made) is (key == b"7")
    assert len(asked) == 1
