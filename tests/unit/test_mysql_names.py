"""Names as servers compare them, and columns that are a table's own in the log."""

from __future__ import annotations

import pytest

from cdc.config.source_config import SourceConfig
from cdc.model.change import Op
from connectors.mysql.binlog import events, table_map
from connectors.mysql.binlog.events import TableColumn
from connectors.mysql.binlog.positions import BinlogPosition
from connectors.mysql.catalog.names import as_compared, folded
from connectors.mysql.rows.own_columns import OwnColumns, Shown, compare
from connectors.mysql.rows.relations import Followed
from tests.encoders.mysql import header
from tests.unit.test_mysql_followed import ID, NOTE, captured, told

ENDLESS, ENDED = b"2038-01-19 03:14:07.999999", b"2024-01-01 00:00:00.000000"


def versioned(*columns: str) -> events.TableMap:
    ends = [TableColumn(name, table_map.TIMESTAMP2, 6, nullable=False) for name in columns]
    return events.TableMap(header(19), 7, 1, "d", "t", (ID, *ends), ((0, 0), (len(ends), 0)))


@pytest.mark.parametrize(
    ("name", "small"), [("Orders", "orders"), ("É", "é"), ("İ", "i"), ("ẞ", "ẞ"), ("Ⴀ", "Ⴀ"), ("Ǆ", "ǆ"), ("ς", "ς")]
)
def test_small_letters_are_the_servers(name: str, small: str) -> None:
    assert folded(name) == small
    assert as_compared(name, folds=False) == name


def test_a_log_that_has_names_as_they_were_given() -> None:
    """lower_case_table_names = 2."""
    config = SourceConfig(type="mysql", url="mysql://x", tables=("D.T",))
    of = Followed(config, (captured(ID),), folds=True)
    map_ = told(ID)._replace(schema="D", table="T")
    assert of.wanted(map_)
    found = of.table(map_, BinlogPosition("b.000001", 4))
    assert found is not None
    assert found[0].qualified == "d.t"


def test_columns_of_a_versioned_table() -> None:
    """By themselves or by name: rows without an end are the table's, and what gets an end is deleted."""
    hidden = compare(versioned("row_start", "row_end"), Shown(frozenset({"id"})), lambda: False, mariadb=True)
    assert hidden == OwnColumns((0,), 2)
    named = compare(versioned("s", "e"), Shown(frozenset({"id", "s", "e"}), "e"), lambda: False, mariadb=True)
    assert named == OwnColumns((0, 1, 2), 2)
    own = compare(versioned("row_start", "row_end"), Shown(frozenset({"id", "row_start", "row_end"})), lambda: False,
                  mariadb=True)  # fmt: skip
    assert own is None, "columns of its own that are called so"
    live, gone = (b"1", b"x", ENDLESS), (b"1", b"x", ENDED)
    assert hidden.change(Op.CREATE, None, live) == (Op.CREATE, None, (b"1",))
    assert hidden.change(Op.CREATE, None, gone) is None
    assert hidden.change(Op.UPDATE, live, live) == (Op.UPDATE, (b"1",), (b"1",))
    assert hidden.change(Op.UPDATE, live, gone) == (Op.DELETE, (b"1",), None)
    assert hidden.change(Op.UPDATE, gone, gone) is None
    assert hidden.change(Op.DELETE, gone, None) is None
    assert hidden.change(Op.DELETE, live, None) == (Op.DELETE, (b"1",), None)


def test_columns_that_are_left_out() -> None:
    """Hidden ones always; others that the catalog does not show, where the user may not read all of them."""
    hashed = TableColumn("DB_ROW_HASH_1", table_map.LONGLONG, 0, nullable=True, unsigned=True)
    shown = Shown(frozenset({"id"}))
    assert compare(told(ID, hashed), shown, lambda: False, mariadb=True) == OwnColumns((0,))
    assert compare(told(ID, NOTE), shown, lambda: False, mariadb=True) is None, "dropped since"
    assert compare(told(ID, NOTE), shown, lambda: True, mariadb=False) == OwnColumns((0,), None, ("note",))
    assert compare(told(ID), Shown(frozenset({"id", "note"})), lambda: True, mariadb=False) is None
