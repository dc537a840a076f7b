"""A table that the file leaves out keeps its rules, whatever it is called when a pattern brings it: by text of DDL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from cdc.config.published.column_rules import ColumnRules
from cdc.config.source_config import SourceConfig
from cdc.model.errors import OperatorError
from connectors.mysql.catalog.catalog import Catalog, Found
from connectors.mysql.rows.relations import Followed
from connectors.mysql.statements.judgement import judge
from tests.unit.test_mysql_followed import AT, ID
from tests.unit.test_mysql_hidden_columns import EMAIL, NOTE, _captured

HIDE = ColumnRules(exclude=("email",))
LEFT_OUT = ("d.*", "!d.x", "!d.z*")


def _session(
    carried: Mapping[str, str],
    *statements: str,
    captured: Sequence[str] = ("t",),
    tables: Sequence[str] = LEFT_OUT,
    rules: Mapping[str, ColumnRules] | None = None,
    where: Mapping[str, str] | None = None,
) -> Mapping[str, str]:
    """What a session keeps that goes on from what was kept, and follows these statements."""
    columns = {"d.x": HIDE} if rules is None else dict(rules)
    config = SourceConfig(type="mysql", url="mysql://x", tables=tuple(tables), columns=columns, where=dict(where or {}))
    of = Followed(config, [_captured(name, ID, EMAIL, NOTE) for name in captured])
    of.kept.begin(carried)
    catalog: Any = SimpleNamespace(find=lambda _schema, name, _keys: _captured(name, ID), exists=lambda *_: True)
    for statement in statements:
        list(of.of_statement(judge(statement, "d", "11.4.2-MariaDB", 0), AT, lambda: catalog))
    return of.kept.carried


COMES_BACK = [
    ("RENAME TABLE x TO y",),
    ("ALTER TABLE x RENAME TO y",),
    ("RENAME TABLE x TO z, z TO y",),
    ("RENAME TABLE x TO z", "ALTER TABLE z ADD COLUMN n INT", "RENAME TABLE z TO z2, z2 TO y"),
    ("CREATE TABLE n LIKE x", "RENAME TABLE x TO y, n TO x"),
    ("RENAME TABLE x TO z", "CREATE TABLE IF NOT EXISTS z (id INT)", "RENAME TABLE z TO y"),
    ("RENAME TABLE x TO z", "CREATE TABLE IF NOT EXISTS z LIKE w", "RENAME TABLE z TO y"),
    ("ALTER TABLE z1 EXCHANGE PARTITION p WITH TABLE x", "RENAME TABLE z1 TO y"),
    ("ALTER TABLE x CONVERT PARTITION p TO TABLE z1", "RENAME TABLE z1 TO y"),
    ("ALTER TABLE z1 CONVERT TABLE x TO PARTITION p VALUES LESS THAN (9)", "RENAME TABLE z1 TO y"),
]


@pytest.mark.parametrize("statements", COMES_BACK)
@pytest.mark.parametrize("sessions", ["one", "each"])
def test_a_table_that_was_left_out_comes_back_by_another_name(statements: Sequence[str], sessions: str) -> None:
    """It is refused until it has the rules of its old name; kept until then, also while it is left out for that."""
    carried: Mapping[str, str] = {}
    for some in [statements] if sessions == "one" else [[one] for one in statements]:
        carried = _session(carried, *some)
    for _ in range(2):
        with pytest.raises(OperatorError, match=r"d\.x, or rows of it, is d\.y now, which source\.tables names"):
            _session(carried, captured=("t", "y"))
        carried = _session(carried, "RENAME TABLE t TO z9, z9 TO t", tables=(*LEFT_OUT, "!d.y"))
    ruled = {"d.x": HIDE, "d.y": HIDE}
    assert not any("y" in name for name in _session(carried, captured=("t", "y"), rules=ruled))


def test_a_log_that_is_behind_the_catalog() -> None:
    """The session has found the table under its new name, and the log tells of the old one."""
    for statement in (
        "RENAME TABLE x TO y",
        "RENAME TABLE x TO z, z TO y",
        "ALTER TABLE y EXCHANGE PARTITION p WITH TABLE x",
    ):
        with pytest.raises(OperatorError, match=r"d\.x (is|are in) d\.y now"):
            _session({}, statement, captured=("t", "y"))


def test_names_in_other_letters() -> None:
    """Where the server takes them for the same, so does a rule."""
    config = SourceConfig(type="mysql", url="mysql://x", tables=("D.*", "!D.X"), columns={"D.X": HIDE})
    gone: Any = SimpleNamespace(exists=lambda *_: False)
    for folds in (True, False):
        of = Followed(config, [_captured("t", ID)], folds=folds)
        list(of.of_statement(judge("RENAME TABLE x TO y", "d", "9.1.0", 0), AT, lambda: gone))
        assert list(of.kept.carried) == (["=d.y"] if folds else [])


@pytest.mark.parametrize(
    "statements",
    [
        ("RENAME TABLE x TO z", "DROP TABLE z", "CREATE TABLE z (id INT)", "RENAME TABLE z TO y"),
        ("RENAME TABLE x TO z", "CREATE OR REPLACE TABLE z (id INT)", "RENAME TABLE z TO y"),
        ("RENAME TABLE x TO z, z TO x",),
        ("RENAME TABLE x TO z", "DROP DATABASE d"),
        ("RENAME TABLE w TO y",),
        ("CREATE TEMPORARY TABLE x (id INT)", "ALTER TABLE x RENAME TO y"),
    ],
)
def test_another_table_has_no_rules_of_it(statements: Sequence[str]) -> None:
    assert _session({}, *statements) == {}


def test_rows_that_a_condition_leaves_out() -> None:
    """They are kept out under another name, too; and of two tables that change their names each has its own."""
    where = {"d.x": "id < 9"}
    carried = _session({}, "RENAME TABLE x TO y", rules={}, where=where)
    with pytest.raises(OperatorError, match=r"d\.x, or rows of it, is d\.y now"):
        _session(carried, captured=("t", "y"), rules={}, where=where)
    swapped = _session(
        {}, "RENAME TABLE x TO z1, z TO x, z1 TO z", rules={"d.x": HIDE, "d.z": ColumnRules(mask=("note",))}
    )
    assert sorted(swapped) == ["=d.x", "=d.z"]


def test_what_is_kept_is_what_rules_hide_alone() -> None:
    """A position does not grow by renames that mean nothing."""
    names = [f"RENAME TABLE z{number} TO z{number + 1}" for number in range(20)]
    assert _session({}, *names) == {}
    assert _session({}, "RENAME TABLE x TO z0", *names) == {"=d.z20": '["d","z20",["d.x"]]'}
    assert _session({}, "RENAME TABLE x TO z0", *names, rules={}) == {}


def test_a_table_is_left_out_that_the_file_names_in_other_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run leaves it out by the name that the server has for it."""
    found = [Found("shop", name, "BASE TABLE", "InnoDB", 1, True, "", False, False) for name in ("orders", "t")]
    monkeypatch.setattr(Catalog, "folds", True)
    monkeypatch.setattr(Catalog, "_named_by", lambda *_: found)
    no_connection: Any = None
    assert Catalog(no_connection).brought(("Shop.Orders", "shop.t", "!shop.orders")) == ["shop.t"]
    matched = Catalog(no_connection)._matched(("Shop.Orders", "shop.t", "!shop.orders"))
    assert list(matched) == [found[1]]
