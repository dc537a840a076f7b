"""What a rule hides stays hidden, whatever its column and its table are called meanwhile: by the text of DDL."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from cdc.config.published.column_rules import ColumnRules
from cdc.config.source_config import SourceConfig
from cdc.model.change import Table
from cdc.model.errors import OperatorError
from cdc.model.table_schema import Description
from cdc.rules.capture_rules import stand_in
from connectors.mysql.binlog import table_map
from connectors.mysql.binlog.events import TableColumn
from connectors.mysql.catalog.catalog import Captured
from connectors.mysql.rows.relations import Followed
from connectors.mysql.statements.judgement import judge
from connectors.mysql.values import mapping
from tests.unit.test_mysql_followed import AT, ID, told

_MODES = {"ansi": 1 << 2}
EMAIL, OLD, NOTE = (
    TableColumn(name, table_map.VARCHAR, 80, nullable=True, charset="utf8mb4") for name in ("email", "old", "note")
)


def _captured(name: str, *columns: TableColumn) -> Captured:
    return Captured(Table("d", name, tuple(map(mapping.column, columns)), ("id",), ("1",)), columns, 0)


def _followed(rules: dict[str, ColumnRules], tables: Sequence[str] = ("d.t",)) -> Followed:
    config = SourceConfig(type="mysql", url="mysql://x", tables=tuple(tables), columns=rules)
    return Followed(config, (_captured("t", ID, EMAIL, NOTE),))


def _follow(of: Followed, *statements: str, database: str = "d", server: str = "9.1.0", mode: int = 0) -> None:
    catalog: Any = SimpleNamespace(
        find=lambda _schema, name, _keys: _captured(name, ID, EMAIL, OLD, NOTE), exists=lambda *_: True
    )
    for statement in statements:
        list(of.of_statement(judge(statement, database, server, mode), AT, lambda: catalog))


HIDE = {"d.t": ColumnRules(exclude=("email",))}


@pytest.mark.parametrize(
    "statements",
    [
        ("ALTER TABLE t RENAME COLUMN email TO old", "ALTER TABLE t ADD COLUMN email TEXT"),
        ("ALTER TABLE t RENAME COLUMN `EMAIL` TO `old`, ADD email TEXT FIRST",),
        ("ALTER TABLE t CHANGE email old VARCHAR(9) AFTER id, ADD COLUMN (x INT, email TEXT)",),
        ("ALTER TABLE t CHANGE COLUMN `email` `old` TEXT",),
        ("ALTER TABLE t RENAME COLUMN email TO note, RENAME COLUMN note TO email",),
        ("ALTER TABLE t ADD x DECIMAL(5, 2) DEFAULT (1 + 2), COMMENT 'a, b', RENAME COLUMN email TO old",),
        ("ALTER TABLE t RENAME COLUMN email TO x", "ALTER TABLE t RENAME COLUMN x TO old"),
        ("ALTER TABLE t DROP COLUMN note, RENAME COLUMN email TO note",),
        ("ALTER TABLE /* email */ `d`.`t` /*!80000 RENAME COLUMN email TO old */",),
        ("CREATE TABLE _t_gho LIKE t", "ALTER TABLE _t_gho CHANGE email old TEXT, ADD email TEXT",
         "RENAME TABLE t TO _t_del, _t_gho TO t"),
        ("CREATE TABLE n (LIKE d.t)", "ALTER TABLE n CHANGE email old TEXT, ADD email TEXT, RENAME TO m",
         "RENAME TABLE t TO gone", "ALTER TABLE m RENAME AS t"),
        ("RENAME TABLE t TO a", "ALTER TABLE a RENAME COLUMN email TO old", "RENAME TABLE a TO t"),
        ("ALTER TABLE t RENAME COLUMN email TO old, RENAME TO a", "RENAME TABLE a TO t"),
        ("RENAME TABLE t TO a", "ALTER TABLE a RENAME COLUMN email TO old", "CREATE TABLE IF NOT EXISTS a (id INT)",
         "RENAME TABLE a TO t"),
    ],
)  # fmt: skip
def test_what_is_hidden_gets_no_other_name(statements: Sequence[str]) -> None:
    """Whatever the catalog shows by then: there the column of the rule has its name again."""
    of = _followed(HIDE)
    with pytest.raises(OperatorError, match=r"source.columns: table d.t: .* (old|note|x) has, or may have"):
        _follow(of, *statements)


@pytest.mark.parametrize(
    ("server", "statement", "database", "mode"),
    [
        ("10.11.6-MariaDB", "ALTER TABLE IF EXISTS t WAIT 5 RENAME COLUMN IF EXISTS email TO old", "d", 0),
        ("10.11.6-MariaDB", "ALTER ONLINE TABLE t NOWAIT CHANGE COLUMN IF EXISTS email old TEXT", "d", 0),
        ("10.11.6-MariaDB", "SET STATEMENT lock_wait_timeout = 1 FOR ALTER TABLE t CHANGE email old TEXT", "d", 0),
        ("10.11.6-MariaDB", "/*M! ALTER TABLE t CHANGE email old TEXT */", "d", 0),
        ("10.11.6-MariaDB", "ALTER TABLE t CHANGE COLUMN t.email t.old TEXT", "d", 0),
        ("10.11.6-MariaDB", "ALTER TABLE t DROP COLUMN email.note, CHANGE `d`.`t`.`email` old TEXT", "d", 0),
        ("9.1.0", "ALTER TABLE d.t CHANGE email old TEXT", "elsewhere", 0),
        ("9.1.0", 'ALTER TABLE "d"."t" CHANGE "email" "old" TEXT', "elsewhere", _MODES["ansi"]),
    ],
)
def test_dialects(server: str, statement: str, database: str, mode: int) -> None:
    """Of both servers, of other default databases, of other quotes."""
    of = _followed(HIDE)
    with pytest.raises(OperatorError, match=r"d.t: .* old has, or may have"):
        _follow(of, statement, database=database, server=server, mode=mode)


@pytest.mark.parametrize(
    "statements",
    [
        ("ALTER TABLE t ADD COLUMN old TEXT, ADD INDEX (email), MODIFY email TEXT, ALTER COLUMN email SET DEFAULT 1",),
        ("ALTER TABLE t RENAME COLUMN note TO old", "ALTER TABLE t RENAME INDEX email TO old"),
        ("ALTER TABLE t DROP COLUMN email, ADD COLUMN old TEXT", "ALTER TABLE t ADD COLUMN email TEXT"),
        ("CREATE TABLE _t_gho LIKE t", "ALTER TABLE _t_gho ADD (old TEXT, KEY (old))",
         "RENAME TABLE t TO _t_del, _t_gho TO t"),
        ("DROP TABLE t", "CREATE TABLE t (id INT PRIMARY KEY, old TEXT, email TEXT)"),
        ("ALTER TABLE t DROP t.note, ADD COLUMN d.t.old TEXT",),
        ("ALTER TABLE t ADD .old TEXT",),
        ("ALTER TABLE t ADD COLUMN (x DECIMAL(5, 2), t.old TEXT, KEY (old))",),
        ("ALTER TABLE elsewhere.t RENAME COLUMN email TO old, ADD COLUMN x INT", "ALTER TABLE t ADD old TEXT"),
    ],
)  # fmt: skip
def test_what_moves_nothing_hidden_stops_nothing(statements: Sequence[str]) -> None:
    """Rows with the new columns are read."""
    of = _followed(HIDE)
    _follow(of, *statements)
    assert of.table(told(ID, EMAIL, OLD), AT) is not None


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE t ADD period TEXT, ADD vector TEXT, ADD system TEXT, DROP system",
        "ALTER TABLE t ADD period VARCHAR (9) FIRST, ADD vector VARCHAR (9)",
        "ALTER TABLE t ADD (period TEXT, vector ENUM ('a'), KEY (period))",
        "ALTER TABLE t ADD VECTOR (note), ADD VECTOR x (note), ADD (period TEXT, vector TEXT)",
    ],
)
def test_columns_that_are_called_like_words_of_the_grammar(statement: str) -> None:
    """MySQL takes both without quotes, MariaDB 10.11 the second: rows that have them are read."""
    of = _followed(HIDE)
    _follow(of, statement)
    added = [
        TableColumn(name, table_map.VARCHAR, 80, nullable=True, charset="utf8mb4") for name in ("period", "vector")
    ]
    assert of.table(told(ID, EMAIL, *added), AT) is not None


@pytest.mark.parametrize(
    "clause",
    ["ADD PERIOD FOR SYSTEM_TIME (period, vector)", "ADD SYSTEM VERSIONING", "ADD VECTOR INDEX vector (period)",
     "ADD VECTOR vector (period)", "ADD VECTOR `vector` (`period`)", "ADD VECTOR KEY IF NOT EXISTS period (vector)"],
)  # fmt: skip
def test_what_adds_no_column_of_such_a_name(clause: str) -> None:
    of = _followed(HIDE)
    _follow(of, f"ALTER TABLE t {clause}", server="11.8.2-MariaDB")
    for name in ("period", "vector"):
        with pytest.raises(OperatorError, match=f"d.t has {name} in the log at"):
            of.table(told(ID, EMAIL, EMAIL._replace(name=name)), AT)


def test_the_hint_leads_on() -> None:
    """With the new name in the rule, beside the old one, the same statements pass; also where columns are listed."""
    for rule in (ColumnRules(exclude=("email", "old")), ColumnRules(include=("note",))):
        of = _followed({"d.t": rule})
        _follow(of, "ALTER TABLE t RENAME COLUMN email TO old", "ALTER TABLE t ADD COLUMN email TEXT")
        assert of.table(told(ID, EMAIL, OLD), AT) is not None


def test_a_table_of_another_name_that_is_captured_too() -> None:
    """A rule of one table does not cover it under the name it has now, nor a table that is made like it."""
    every = ("d.*",)
    for statement in ("RENAME TABLE t TO archive", "CREATE TABLE archive LIKE t"):
        of = _followed(HIDE, every)
        with pytest.raises(OperatorError, match=r"table d.archive: .* email has, or may have"):
            _follow(of, statement)
        of = _followed({"d.*": ColumnRules(mask=("email",))}, every)
        _follow(of, statement)
    _follow(_followed(HIDE, ("d.t", "d.other")), "CREATE TABLE archive LIKE t")


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE t EXCHANGE PARTITION p WITH TABLE archive",
        "ALTER TABLE archive EXCHANGE PARTITION p WITH TABLE t",
        "ALTER TABLE t CONVERT PARTITION p TO TABLE archive",
        "ALTER TABLE archive CONVERT TABLE t TO PARTITION p VALUES LESS THAN (9)",
    ],
)
def test_rows_that_go_to_another_table_that_is_captured_too(statement: str) -> None:
    """As a partition, or as what was one: they do not go where the rule is not."""
    for rules, tables, refused in (
        (HIDE, ("d.*",), True),
        ({"d.*": ColumnRules(mask=("email",))}, ("d.*",), False),
        (HIDE, ("d.t", "d.other"), False),
    ):
        of = _followed(rules, tables)
        with (
            pytest.raises(OperatorError, match=r"d\.archive(: by the statement| now, which source\.tables names)")
            if refused
            else nullcontext()
        ):
            _follow(of, statement, server="11.4.2-MariaDB")


def test_rows_that_go_where_more_is_hidden() -> None:
    """Nothing goes the other way but by EXCHANGE."""
    for statement, refused in (
        ("ALTER TABLE archive CONVERT TABLE t TO PARTITION p VALUES LESS THAN (9)", False),
        ("ALTER TABLE t CONVERT PARTITION p TO TABLE archive", False),
        ("ALTER TABLE archive EXCHANGE PARTITION p WITH TABLE t", True),
        ("ALTER TABLE t EXCHANGE PARTITION p WITH TABLE archive", True),
    ):
        rules = {"d.archive": HIDE["d.t"]}
        of = _followed(rules, ("d.*",))
        with pytest.raises(OperatorError, match=r"rows of d\.archive are in d\.t now") if refused else nullcontext():
            _follow(of, statement, server="11.4.2-MariaDB")
        _follow(_followed({**rules, **HIDE}, ("d.*",)), statement, server="11.4.2-MariaDB")  # as the hint says


@pytest.mark.parametrize(
    "statements",
    [
        (),
        ("CREATE TABLE n (id INT PRIMARY KEY, old TEXT, email TEXT)", "RENAME TABLE t TO gone, n TO t"),
        ("DROP TABLE t", "CREATE TABLE t SELECT id, email AS old, NULL AS email FROM s"),
    ],
)
def test_columns_of_which_the_log_does_not_tell_where_they_come_from(statements: Sequence[str]) -> None:
    """DDL without a log, a table that nobody has seen being made from this one, a query: no row is read of it."""
    of = _followed(HIDE)
    _follow(of, *statements)
    with pytest.raises(OperatorError, match=r"d.t has old in the log at .*, which nobody knows"):
        of.table(told(ID, EMAIL, OLD), AT)


def test_a_rule_that_lists_columns_is_of_the_tables_name_too() -> None:
    """Under a captured name that has none, all columns would be published; so would rows that `where` leaves out."""
    for more in ({"columns": {"d.t": ColumnRules(include=("note",))}}, {"where": {"d.t": "id < 9"}}):
        config = SourceConfig(type="mysql", url="mysql://x", tables=("d.*",), **more)  # type: ignore[arg-type]
        of = Followed(config, (_captured("t", ID, EMAIL, NOTE),))
        with pytest.raises(OperatorError, match=r"table renamed: d\.t is d\.archive now"):
            _follow(of, "RENAME TABLE t TO archive")


def test_a_statement_that_is_not_understood() -> None:
    """Stops where a table has something to hide, and nowhere else."""
    for rules in (HIDE, {"d.u": ColumnRules(exclude=("email",))}):
        of = _followed(rules, ("d.t", "d.u"))
        if rules is HIDE:
            with pytest.raises(OperatorError, match="cannot be read to its end"):
                _follow(of, "ALTER TABLE t RENAME COLUMN TO")
        else:
            _follow(of, "ALTER TABLE t RENAME COLUMN TO")


def test_after_a_restart() -> None:
    """What the topics have told is known, also of columns that have only a stand-in there."""
    of = _followed(HIDE)
    of.recall({("d", "t"): [Description((("id", "int"), (stand_in("d.t", "email"), "text")), ("id",), ())]})
    with pytest.raises(OperatorError, match="has old in the log"):
        of.table(told(ID, EMAIL, OLD), AT)
    assert of.table(told(ID, EMAIL), AT) is not None
    plain = _followed({"d.*": ColumnRules(exclude=("other",))}, ("d.*",))
    plain.recall({("d", "t"): [Description((("id", "int"),), ("id",), ())]})
    assert plain.table(told(ID, OLD), AT) is not None, "a rule of many tables whose columns this one has not"


def test_a_table_of_two_rules_that_nobody_captures() -> None:
    """Is no concern of the connector's."""
    of = _followed({**HIDE, "d.a*": ColumnRules(exclude=("x",)), "d.*b": ColumnRules(exclude=("y",))}, ("d.t",))
    _follow(of, "CREATE TABLE ab (id INT PRIMARY KEY)", "RENAME TABLE ab TO a2b", "CREATE TABLE axb LIKE t")


def test_every_table_that_a_long_statement_drops() -> None:
    """DDL is read to its end."""
    names = ", ".join(f"`x{n}`" for n in range(20_000))
    said = judge(f"DROP TABLE IF EXISTS {names}, d.t", "d")
    assert ("d", "t") in said.tables  # type: ignore[union-attr]
