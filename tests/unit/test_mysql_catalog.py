"""What the catalog of MySQL and MariaDB says, and when it is asked again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pymysql
import pytest

from cdc.model.errors import ChangedError, OperatorError
from connectors.mysql.catalog import catalog
from connectors.mysql.catalog.catalog import Catalog


def _row(engine: str, kind: str = "BASE TABLE") -> list[str]:
    return ["d", "t", kind, engine, "0", "YES" if engine else "NO", "", "", "0"]


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


@pytest.mark.parametrize(("code", "told"), [(1146, None), (1049, None), (1142, True), (1054, False)])
def test_which_columns_may_be_read_of_a_table_that_is_gone(
    monkeypatch: pytest.MonkeyPatch, code: int, told: bool | None
) -> None:
    """It is not one whose columns are hidden: in the midst of DDL that stopped the connector, or left columns out."""

    def rows(*_: Any) -> list[Any]:
        raise OperatorError("refused") from pymysql.ProgrammingError(code, "refused")

    monkeypatch.setattr(catalog.session, "rows", rows)
    assert Catalog(None).restricted("d", "t") is told  # type: ignore[arg-type]


@pytest.mark.parametrize(("code", "gone"), [(1146, True), (1049, True), (1142, False)])
def test_a_table_that_goes_while_its_foreign_keys_are_asked_for(
    monkeypatch: pytest.MonkeyPatch, *, code: int, gone: bool
) -> None:
    """It is looked at again: a connector by triggers ended, as if the right to read the table were missing."""

    def texts(_connection: object, _what: str, statement: str, *_: object) -> list[list[str]]:
        if statement.startswith("SHOW CREATE TABLE"):
            raise OperatorError("refused") from pymysql.ProgrammingError(code, "refused")
        return [_row("InnoDB")]

    monkeypatch.setattr(catalog.session, "texts", texts)
    found = Catalog(None, by_triggers=True)  # type: ignore[arg-type]
    with pytest.raises(ChangedError if gone else OperatorError, match="dropped while" if gone else "may not be read"):
        found.find("d", "t", {})
    assert found.foreign_keys(("d", "t")) is None


@pytest.mark.parametrize(("lately", "left"), [("1", []), ("0", ["d.t"])])
def test_a_key_that_is_dropped_once_the_look_has_begun(
    monkeypatch: pytest.MonkeyPatch, lately: str, left: list[str]
) -> None:
    """A statement that makes it again is waited for, as of a table that the list showed as just altered."""
    keys = iter([[], [["id"]]])
    lists = iter(["0", lately, "0"])

    def texts(_connection: object, _what: str, statement: str, *_: object) -> list[list[str]]:
        if statement == catalog._NAMES:
            return [["d", "t"]]
        if "information_schema.TABLES" in statement:
            return [[*_row("InnoDB")[:-1], next(lists)]]
        return next(keys) if "information_schema.STATISTICS" in statement else [["0"]]

    column = (b"id", b"int", None, b"NO", b"", None, b"", None)
    monkeypatch.setattr(catalog.session, "texts", texts)
    monkeypatch.setattr(catalog.session, "rows", lambda *_: [column])
    monkeypatch.setattr(Catalog, "restricted", lambda *_: False)
    monkeypatch.setattr(catalog, "_SETTLE_S", 0.0)
    out: list[str] = []
    captured = Catalog(None).captured(["d.t"], leave=lambda found, _: out.append(found.qualified))  # type: ignore[arg-type]
    assert ([one.table.key for one in captured], out) == ([("id",)] if not left else [], left)


def test_a_database_whose_name_is_like_one_of_the_server_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """MariaDB 10.11 has no table of a database SYS for a condition that leaves out sys, so nobody but us compares."""
    named = [["sys", "version"], ["SYS", "users"], ["mysql", "user"]]
    asked: list[str] = []
    monkeypatch.setattr(catalog.session, "texts", lambda _, __, statement: asked.append(statement) or named)
    assert Catalog(None)._names() == [["SYS", "users"]]  # type: ignore[arg-type]
    assert all("WHERE" not in statement for statement in asked)


def test_a_table_that_goes_while_it_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    """Is looked at again: that its key is hidden is not said of it."""
    column = (b"id", b"int", None, b"NO", b"", None, b"", None)
    monkeypatch.setattr(catalog.session, "rows", lambda *_: [column])
    monkeypatch.setattr(catalog.session, "texts", lambda *_: [])
    found = Catalog(None)  # type: ignore[arg-type]
    monkeypatch.setattr(found, "restricted", lambda *_: None)
    with pytest.raises(ChangedError, match="was altered, renamed or dropped while the catalog was read"):
        found.describe(catalog.Found("d", "t", "BASE TABLE", "InnoDB", 0, transactional=True, made_at=""), ())
