"""Which tables rows are taken along in, by what SHOW CREATE TABLE and the log say."""

from __future__ import annotations

import pytest

from cdc.model.change import Op
from connectors.mysql.binlog import table_map
from connectors.mysql.binlog.events import PartialUpdateRows, Rows, TableColumn, TableMap
from connectors.mysql.catalog.foreign_keys import ForeignKey, written_in
from connectors.mysql.rows.cascades import Cascades
from tests.encoders.mysql import header, image

T, U, P = ("d", "t"), ("d", "u"), ("o", "p")
MADE = """CREATE TABLE `t` (
  `id` int NOT NULL COMMENT 'FOREIGN KEY (`x`) REFERENCES `y` (`z`) ON DELETE CASCADE',
  CONSTRAINT `a` FOREIGN KEY (`x`, `y)`) REFERENCES `o`.`p` (`Id`, `c``d`) ON DELETE CASCADE ON UPDATE SET NULL,
  CONSTRAINT `b` FOREIGN KEY (`x`) REFERENCES `u` (`id`) ON UPDATE CASCADE,
  CONSTRAINT `c` FOREIGN KEY (`x`) REFERENCES `v` (`id`) ON DELETE RESTRICT,
  CONSTRAINT `d` FOREIGN KEY (`x`) REFERENCES `w` (`id`)
) ENGINE=InnoDB"""
ID = TableColumn("ID", table_map.LONG, 0, nullable=False, unsigned=False)
N = TableColumn("n", table_map.LONG, 0, nullable=True, unsigned=False)
TOLD = TableMap(header(19), 7, 1, *P, (ID, N), ((0, 0),))


def key(child: tuple[str, str], parent: tuple[str, str], actions: str = "ON DELETE CASCADE") -> ForeignKey:
    return ForeignKey("c", child, parent, ("id",), "DELETE" in actions, "UPDATE" in actions, actions)


def row(*values: int) -> bytes:
    return image([value.to_bytes(4, "little") for value in values], padding=True)


def deleted(flags: int = 1) -> Rows:
    return Rows(header(32), Op.DELETE, 7, flags, 2, b"\3", b"", row(1, 1))


def updated(*body: bytes, before: bytes = b"\3", after: bytes = b"\3") -> Rows:
    return Rows(header(31), Op.UPDATE, 7, 1, 2, before, after, b"".join(body))


def test_the_keys_that_write_are_read_of_a_definition() -> None:
    first, second = written_in(MADE, T)
    assert (first.name, first.parent, first.referenced) == ("a", P, ("Id", "c`d"))
    assert (first.on_delete, first.on_update) == (True, True)
    assert (second.parent, second.on_delete, second.on_update) == (U, False, True)
    assert second.actions == "ON UPDATE CASCADE"


def test_what_a_deleted_row_takes_along() -> None:
    """Also through a table that is not captured, and what hangs on the child; in a circle, too."""
    middle = ("d", "middle")
    keys = {T: [key(T, middle)], middle: [key(middle, P)], U: [key(U, T), key(U, U)], P: [key(P, U, "ON UPDATE")]}
    of = Cascades([T, U], keys.get)
    assert of.reached(deleted(), TOLD, P) == {T, U}
    assert of.reached(deleted(), TOLD, T) == {T, U}
    assert of.reached(deleted(), TOLD, ("d", "other")) == frozenset()
    assert {P, middle, T, U} == {name for name in (P, middle, T, U, ("d", "other")) if name in of}


def test_a_parent_that_gets_another_name() -> None:
    """What hangs on it is asked again: the definition of the child has the new name."""
    new, keys = ("d", "new"), {T: [key(T, P)]}
    of = Cascades([T], keys.get)
    keys[T] = [key(T, new)]
    assert of.altered({P, new})
    assert of.reached(deleted(), TOLD, new) == {T}


@pytest.mark.parametrize(("names", "database"), [({P}, None), ({("d", "middle")}, None), (set(), "o")])
def test_ddl_before_which_rows_may_have_gone(names: set[tuple[str, str]], database: str | None) -> None:
    """The foreign keys were looked at behind it: they do not tell of those that it took away."""
    middle = ("d", "middle")
    keys = {T: [key(T, middle)], middle: [key(middle, P)]}
    of = Cascades([T, U], keys.get, log_end=lambda: 100)
    assert of.parted(names, database, 99) == {T}
    assert of.parted(names, database, 100) == frozenset(), "they were looked at before it"
    assert of.parted({U}, "e", 99) == frozenset(), "nothing hangs on these"


def test_what_takes_nothing_along() -> None:
    of = Cascades([T], {T: [key(T, P)]}.get)
    assert of.reached(deleted(flags=3), TOLD, P) == frozenset(), "foreign_key_checks = 0"
    assert of.reached(updated(row(1, 1), row(2, 1)), TOLD, P) == frozenset(), "the key has no ON UPDATE"
    assert of.reached(Rows(header(30), Op.CREATE, 7, 1, 2, b"", b"\3", row(1, 1)), TOLD, P) == frozenset()
    assert not Cascades([T], lambda _: None)


@pytest.mark.parametrize(
    ("event", "told", "takes"),
    [
        (updated(row(1, 1), row(2, 1)), TOLD, True),
        (updated(row(1, 1), row(1, 2)), TOLD, False),
        (updated(row(1, 1), row(1, 2), row(3, 1), row(4, 1)), TOLD, True),
        (updated(row(1), row(2), before=b"\1", after=b"\2"), TOLD, False),
        (updated(row(1), row(2), before=b"\1", after=b"\1"), TOLD, True),
        (updated(row(1, 1), row(1, 2)), TOLD._replace(columns=(ID._replace(name=None), N)), True),
        (updated(row(1, 1)), TOLD, True),
        (PartialUpdateRows(header(39), 7, 1, 2, b"\3", b"\3", b""), TOLD, True),
    ],
    ids=["key", "another", "second row", "minimal, another", "minimal, key", "no names", "no rows", "parts"],
)
def test_an_update_takes_along_where_a_referenced_column_changes(event: Rows, told: TableMap, takes: bool) -> None:
    of = Cascades([T], {T: [key(T, P, "ON UPDATE CASCADE")]}.get)
    assert of.reached(event, told, P) == ({T} if takes else frozenset())


def test_ddl_is_looked_at_where_it_concerns_what_hangs_together() -> None:
    keys = {T: [key(T, P)]}
    of = Cascades([T], keys.get)
    assert not of.altered({("d", "other")})
    assert not of.altered({T})
    keys[T] = [key(T, U)]
    assert of.altered({T})
    assert (U in of, P in of) == (True, False)
    keys[U] = [key(U, P)]
    assert of.altered({U})
    assert P in of


END = TableColumn("row_end", table_map.TIMESTAMP2, 6, nullable=False)
FOR_EVER, ENDED = bytes.fromhex("7fffffff0f423f"), bytes.fromhex("650000000003e8")


@pytest.mark.parametrize(
    ("end", "n", "keyed", "taken"),
    [(ENDED, 1, True, {T}), (FOR_EVER, 2, True, set()), (ENDED, 1, False, set())],
    ids=["ended", "another value", "no versions"],
)
def test_a_row_that_gets_an_end_is_a_deleted_one(end: bytes, n: int, *, keyed: bool, taken: set[object]) -> None:
    """So are deletes of a table WITH SYSTEM VERSIONING in the log, and the end is a part of its key."""
    told = TableMap(header(19), 7, 1, *P, (ID, N, END), ((0, 0), (2, 0)) if keyed else ((0, 0),))
    one, other = (1).to_bytes(4, "little"), n.to_bytes(4, "little")
    body = image([one, one, FOR_EVER], padding=True) + image([one, other, end], padding=True)
    event = Rows(header(31), Op.UPDATE, 7, 1, 3, b"\7", b"\7", body)
    assert Cascades([T], {T: [key(T, P)]}.get).reached(event, told, P) == taken
