"""The snapshot of MySQL and MariaDB by triggers, where others write between the views of its sessions."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from itertools import count
from typing import Any

import pytest

from cdc.testing import Faults, Killed
from connectors.mysql import session
from connectors.mysql.catalog.catalog import Captured
from connectors.triggers.mysql.change_log import ChangeLog
from connectors.triggers.mysql.numbers import Numbers
from connectors.triggers.mysql.rounds import Pins, Round
from connectors.triggers.mysql.triggers import Names
from snapshot.mysql.snapshotter import MysqlSnapshotter
from tests.conftest import MySQLDatabase
from tests.integration import trigger_laws as laws
from tests.integration.mysql_shop import ORDERS, MysqlShop

TABLES = ("orders", "other")
RUNS = 7


def pin_and_write(shop: MysqlShop, *, killed_at: int | None = None) -> Callable[..., int]:
    """Make a round for a view, and then all kinds of changes to both tables: a view that is taken later sees them, too.

    `killed_at`: each so many views, behind the changes.
    """
    pin, views = Pins.pin, count()

    def pinned(pins: Pins, view: Any, begin: Sequence[str], change_tables: Sequence[int]) -> int:
        number = pin(pins, view, begin, change_tables)
        if "SAVEPOINT pin" not in begin:  # not of a snapshot
            return number
        at = next(views)
        for table in TABLES:
            shop.do(
                f"INSERT INTO {table} VALUES ({100 + at}, 'new', {at}); UPDATE {table} SET n = n + 1 WHERE id = 1;"
                f"UPDATE {table} SET n = n + 1 WHERE id = {100 + at // 2}; DELETE FROM {table} WHERE id = {at + 2}"
            )
        if killed_at is not None and (at + 1) % killed_at == 0:
            raise Killed("view")
        return number

    return pinned


def each_to_a_session(read: Callable[..., None]) -> Callable[..., None]:
    """Let two sessions begin to read at the same time: each has one of the tables."""
    meet = threading.Barrier(2)

    def together(*arguments: Any) -> None:
        meet.wait(60)
        read(*arguments)

    return together


def shop_of(database: MySQLDatabase) -> MysqlShop:
    shop = MysqlShop(database, ORDERS, ORDERS.replace("orders", "other"), tables=TABLES)
    shop.do(*(f"INSERT INTO {t} VALUES " + ", ".join(f"({n}, 'old', 0)" for n in range(1, 40)) for t in TABLES))
    return shop


def test_what_a_session_has_read_is_not_told_again(
    mysql_database: MySQLDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was committed between the views of two sessions is in the rows of one and behind those of the other."""
    laws.at_once(monkeypatch)
    shop = shop_of(mysql_database)
    monkeypatch.setattr(Pins, "pin", pin_and_write(shop))
    monkeypatch.setattr(MysqlSnapshotter, "_read", each_to_a_session(MysqlSnapshotter._read))
    shop.run()
    shop.run()
    laws.each_event_follows_the_one_before(shop, *TABLES)


def test_killed_again_and_again_in_the_snapshot(mysql_database: MySQLDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a round, and at a commit: the rest is read under views of its own, by two sessions each time."""
    laws.at_once(monkeypatch)
    shop, interrupted = shop_of(mysql_database), Counter[str]()
    with monkeypatch.context() as killing:
        killing.setattr(Pins, "pin", pin_and_write(shop, killed_at=3))
        for run in range(RUNS):
            try:
                shop.run(Faults(("sink.commit", min(run + 1, 3)), error=Killed))
            except Killed as exc:
                if run > 1 and shop.state().snapshot.get("views"):
                    interrupted[exc.args[0]] += 1
    assert interrupted["view"]
    assert interrupted["sink.commit"]
    shop.run()
    laws.each_event_follows_the_one_before(shop, *TABLES)


ALTERED = (
    "ALTER TABLE orders DROP COLUMN n",
    "ALTER TABLE orders RENAME COLUMN status TO state",
    "DROP TABLE orders; CREATE TABLE orders (id int PRIMARY KEY, x int); INSERT INTO orders VALUES (7, 7)",
)


def test_altered_while_its_triggers_are_made(mysql_database: MySQLDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    """Triggers that name a column, or a table, that has just gone are refused by the server: it is looked at again."""
    laws.at_once(monkeypatch)
    shop, lay, left = shop_of(mysql_database), ChangeLog._lay, list(ALTERED)

    def altered(changes: ChangeLog, one: Captured, *of: Any) -> None:
        if left and one.table.name == "orders":
            shop.do(left.pop(0))
        lay(changes, one, *of)

    monkeypatch.setattr(ChangeLog, "_lay", altered)
    shop.run()
    assert not left
    shop.do("UPDATE orders SET x = 8")
    shop.run()
    laws.each_event_follows_the_one_before(shop, *TABLES)


KEYS = {
    "a number": "id int PRIMARY KEY, part int",
    "a text and a number": "id varchar(300) COLLATE utf8mb4_bin, part int, PRIMARY KEY (id, part)",
}


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("other", [1, 2], ids=["the same row", "another row"])
def test_a_view_is_torn(key: str, other: int, mariadb: MySQLDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    """A view that sees a change of a row and not the one before is not made a round of; another one is taken.

    MariaDB's views are torn where noting its open transactions takes long. Then one is missing in what the view saw.
    """
    laws.at_once(monkeypatch)
    shop, unseen, taken = MysqlShop(mariadb, f"CREATE TABLE orders ({KEYS[key]}, n int)"), Pins._unseen, count()
    shop.do("INSERT INTO orders VALUES (1, 7, 0), (2, 7, 0)")
    shop.run()
    for changed in (1, other):
        shop.do(f"UPDATE orders SET n = n + 1 WHERE id = {changed}")

    def torn(pins: Pins, view: Any, change_tables: Sequence[int]) -> Round:
        made = unseen(pins, view, change_tables)
        if not made.shapes or next(taken):
            return made
        shape, changes = next(iter(made.shapes.items()))
        _, _, *rest = (n for first, last in made.numbers.ranges() for n in range(first, last + 1))
        return made._replace(shapes={shape: changes - 2}, numbers=Numbers(rest))

    monkeypatch.setattr(Pins, "_unseen", torn)
    shop.run()
    shop.run()
    assert next(taken) == 2
    assert [event["after"]["n"] for event in shop.events() if event["op"] == "u"] == ([1, 2] if other == 1 else [1, 1])
    laws.each_event_follows_the_one_before(shop, "orders")


def test_a_late_change_of_a_shape_that_is_gone(mariadb: MySQLDatabase) -> None:
    """Somebody has deleted its row, which is found and told elsewhere: it is no error of a program."""
    shop = MysqlShop(mariadb, "CREATE TABLE orders (id int PRIMARY KEY)")
    shop.run()
    with closing(session.connect(session.address(f"{mariadb.url}?ssl_mode=disabled"))) as connection:
        assert not Pins(connection, Names("c"))._overtaken(1, [1], Round(0, "", 0, {1: 1}, Numbers([2])))
