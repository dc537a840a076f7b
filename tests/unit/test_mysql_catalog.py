"""What the catalog of MySQL and MariaDB says, and when it is asked again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from connectors.mysql.catalog import catalog
from connectors.mysql.catalog.catalog import Catalog


def _row(engine: str, kind: str = "BASE TABLE") -> list[str]:
    return ["d", "t", kind, engine, "0", "YES" if engine else "NO", "", "0"]


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "_PAUSE_S", 0.0)


def _exists(monkeypatch: pytest.MonkeyPatch, answers: Iterator[list[list[str]]]) -> tuple[str, int]:
    """The engine that a table is found to have, and how many answers were needed."""
    asked = 0

    def texts(*_: Any) -> list[list[str]]:
        nonlocal asked
        asked += 1
        return next(answers)

    monkeypatch.setattr(catalog.session, "texts", texts)
    (found,) = Catalog(None)._tables("d", "t")  # type: ignore[arg-type]
    return found.engine, asked


def test_a_table_that_could_not_be_opened_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connector was stopped by a look in the midst of an ALTER TABLE: of no engine, and so without transactions."""
    assert _exists(monkeypatch, iter([[_row("")], [_row("")], [_row("InnoDB")]])) == ("InnoDB", 3)


def test_one_that_never_can_be_is_told_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "_OPENED_S", -1.0)
    assert _exists(monkeypatch, iter([[_row("")]])) == ("", 1)
    monkeypatch.setattr(catalog, "_OPENED_S", 3600.0)
    assert _exists(monkeypatch, iter([[_row("", "VIEW")]])) == ("", 1), "a view has none"
