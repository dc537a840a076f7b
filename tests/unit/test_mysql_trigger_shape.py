"""What type a change table has for a column: the table's own."""

from __future__ import annotations

import pytest

from connectors.triggers.mysql.shape import ShapeColumn


@pytest.mark.parametrize(
    ("declared", "stored"),
    [
        ("int(5) unsigned zerofill", "int(5) unsigned zerofill"),
        ("enum('/* a */','b')", "enum('/* a */','b')"),
        ("set('a/*','*/b')", "set('a/*','*/b')"),
        ("text /*M!100301 COMPRESSED*/", "text"),
        ("varchar(3000) /*M!100301 COMPRESSED*/", "text"),
        ("datetime(3) /* mariadb-5.3 */", "datetime(3)"),
    ],
)
def test_the_type_that_a_change_table_has(declared: str, stored: str) -> None:
    """Without what MariaDB says behind it; labels are not touched."""
    column = ShapeColumn("c", declared, None, None, nullable=False, visible=True)
    assert column.stored == f"{stored} NULL DEFAULT NULL"
