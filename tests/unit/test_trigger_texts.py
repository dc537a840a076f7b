"""The texts of the triggers by which SQLite, MySQL and MariaDB write changes down.

What is made with another text is made again, and its table is read again: a change of one is told to users. The numbers
are of commit 516246d3. PostgreSQL's are in `test_postgres_trigger_functions`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import replace

import pytest

from connectors.triggers.mysql import triggers as mysql
from connectors.triggers.mysql.shape import Shape, ShapeColumn
from connectors.triggers.sqlite import triggers as sqlite
from connectors.triggers.sqlite.catalog import Found, Unique
from connectors.triggers.sqlite.catalog import Shape as ShapeOfSqlite

COLUMNS = (("id", "INTEGER", True), ("part", "TEXT", False), ("n", "", False))
PLAIN = Found("t", "table", ShapeOfSqlite(COLUMNS, ("id", "part")))
SHARED = replace(PLAIN, unique=(Unique("u", {"n": "NOCASE"}),), defaults={"n": "'0'"})
"""A row can be replaced by one with another key."""
SHAPE = Shape(
    "shop", "t",
    (
        ShapeColumn("id", "bigint unsigned", None, None, nullable=False, visible=True),
        ShapeColumn("s", "varchar(20)", "utf8mb4", "utf8mb4_bin", nullable=True, visible=True),
        ShapeColumn("j", "json", None, None, nullable=True, visible=True),
    ),
    ("id",), "now",
)  # fmt: skip


def number_of(texts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]


@pytest.mark.parametrize(
    ("found", "some", "number"),
    [
        (PLAIN, False, "9b1a8cd3474a333a"),
        (PLAIN, True, "396b5ef15471c20a"),
        (SHARED, False, "01f1242ccb0ef771"),
        (SHARED, True, "4049a4dcac8d0319"),
    ],
)
def test_an_upgrade_reads_no_table_of_sqlite_again(found: Found, *, some: bool, number: str) -> None:
    names = sqlite.Names("c")
    assert number_of([*sqlite.triggers(names, found, 1, some=some).values(), *sqlite.guards(names).values()]) == number


@pytest.mark.parametrize(
    ("shape", "number"),
    [(SHAPE, "0bea3209017c7ec8"), (replace(SHAPE, primary=("id",), indexed=("id", "s")), "3f9bcaf92c13c94b")],
)
def test_an_upgrade_reads_no_table_of_mysql_again(shape: Shape, number: str) -> None:
    """The second shape is of a server whose triggers are called for rows that stay as they were."""
    names = mysql.Names("c")
    made = [*mysql.triggers(names, 1, shape), *mysql.guards(names, 1)]
    assert number_of([*(of.statement for of in made), mysql.change_table(names, 1, shape)]) == number
