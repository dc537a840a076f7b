"""MySQL and MariaDB by triggers, with the whole pipeline: what happens to the database, and what the topics then hold.

The servers are real, and so are their triggers; the broker is the twin.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace

import pymysql
import pytest

import cdc.capture.pipeline
import connectors.triggers.mysql.change_log
import connectors.triggers.mysql.source
from cdc.capture.control.signals import Command
from cdc.config.findings import Level
from cdc.model.errors import OperatorError
from cdc.testing import Faults, Killed
from connectors.triggers import check
from connectors.triggers.source import open_source
from tests.conftest import MySQLDatabase
from tests.integration import trigger_laws as laws
from tests.integration.mysql_shop import ORDERS, ROWS, MysqlShop


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks and commands come at once."""
    laws.at_once(monkeypatch)


@pytest.fixture
def shop(mysql_database: MySQLDatabase) -> MysqlShop:
    shop = MysqlShop(mysql_database, ORDERS, ROWS)
    shop.run()
    return shop


def test_snapshot_then_changes(shop: MysqlShop) -> None:
    """Events have the whole row before and after; the change table shrinks again."""
    laws.snapshot_then_changes(shop, "mysql")
    assert shop.changes() == 0


def test_one_that_commits_late_is_not_lost(shop: MysqlShop) -> None:
    """By its number alone it lies before what was read already."""
    with laws.transaction(shop, "UPDATE orders SET n = 1 WHERE id = 1") as late:
        shop.do("UPDATE orders SET n = 2 WHERE id = 2")
        shop.run()
        read = max(int(event["source"]["change"]) for event in shop.events() if event["op"] == "u")
        late.connection.commit()
    behind = shop.select(f"SELECT c3 FROM cdc_c.changes_{shop.newest} WHERE seq > {read}")
    assert behind == [], "who reads on behind the greatest number loses it"
    shop.run()
    assert shop.fold() == shop.rows()


def test_an_old_transaction_that_changes_a_row_last_comes_last(shop: MysqlShop) -> None:
    """The younger one has committed between its two statements, and one between them is open."""
    laws.an_old_transaction_that_changes_a_row_last_comes_last(shop, lambda: None)


def test_updates_that_cross_keep_their_images(shop: MysqlShop) -> None:
    """Of two sessions, the numbers of an update's images lie between those of another's."""
    with laws.transaction(shop) as one, laws.transaction(shop) as other:
        for n in range(50):
            one.execute(f"UPDATE orders SET n = {n} WHERE id = 1")
            other.execute(f"UPDATE orders SET n = {n} WHERE id = 2")
        one.connection.commit()
        other.connection.commit()
    shop.run()
    updates = [event for event in shop.events() if event["op"] == "u"]
    assert len(updates) == 100
    assert all(event["before"]["id"] == event["after"]["id"] for event in updates)
    assert shop.fold() == shop.rows()


def test_nothing_of_the_writing_session_decides_how_values_are_printed(mysql_database: MySQLDatabase) -> None:
    """Snapshot and triggers give the same bytes, whatever the writer has set."""
    shop = MysqlShop(
        mysql_database,
        "CREATE TABLE orders (id int PRIMARY KEY, at timestamp(6) NULL, d date, dt datetime(3), t time(6), f float,"
        " e enum('good', 'bad'), s set('x', 'y'), x varchar(20) CHARACTER SET latin1, u varchar(20), n decimal(9, 3),"
        " b bit(5), y year, j json, g int AS (n * 2), v varchar(2000))",
    )
    into = (
        "INSERT INTO orders (id, at, d, dt, t, f, e, s, x, u, n, b, y, j, v) VALUES (1, '2026-01-02 03:04:05.678{}',"
        " '0000-00-00', '2026-02-01 00:00:00.5', '-26:01:02.5', 0.1, {}, 'x,y', 'a', _utf8mb4 x'C3A4E282AC', 1.5,"
        " b'101', 2026, '{{\"a\": 1}}', REPEAT('v', 900))"
    )
    with closing(shop.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SET sql_mode = ''")
        cursor.execute("SET time_zone = '+00:00'")
        cursor.execute(into.format("", "0"))
    shop.run()
    with closing(shop.connect()) as connection, connection.cursor() as cursor:
        for statement in ("SET sql_mode = 'ANSI_QUOTES,PAD_CHAR_TO_FULL_LENGTH,NO_BACKSLASH_ESCAPES'",
                          "SET time_zone = '+05:30', lc_time_names = 'de_DE'", "SET NAMES latin1",
                          "SET insert_id = 3, timestamp = 1, auto_increment_increment = 7, div_precision_increment = 0",
                          "DELETE FROM orders"):  # fmt: skip
            cursor.execute(statement)
        cursor.execute(into.format("", "0").replace("03:04:05.678", "08:34:05.678"))
        cursor.execute("SELECT LAST_INSERT_ID()")
        assert cursor.fetchall() == ((0,),)
    shop.run()
    read, logged = ([e["after"] for e in shop.events() if e["op"] == op] for op in ("r", "c"))
    assert read == logged
    assert read[0]["at"] == "2026-01-02T03:04:05.678000Z"


_ZONE = (
    "INSERT INTO mysql.time_zone VALUES (777, 'N')",
    "INSERT INTO mysql.time_zone_name VALUES ('Its/Summer', 777)",
    "INSERT INTO mysql.time_zone_transition_type VALUES (777, 0, 3600, 0, 'CET'), (777, 1, 7200, 1, 'CEST')",
    "INSERT INTO mysql.time_zone_transition VALUES (777, 1711846800, 1), (777, 1729990800, 0)",
)
_NO_ZONE = tuple(
    f"DELETE FROM mysql.time_zone{part} WHERE Time_zone_id = 777"
    for part in ("", "_name", "_transition", "_transition_type")
)


def test_an_hour_that_comes_twice_in_the_writing_sessions_zone(mysql_database: MySQLDatabase) -> None:
    """Both are the instants they were; so are days that there are not, which a mode of the trigger might look at."""
    shop = MysqlShop(mysql_database, "CREATE TABLE orders (id int PRIMARY KEY, at timestamp(6) NULL, d date, n int)")
    shop.do(*_NO_ZONE, *_ZONE)
    try:
        with closing(shop.connect()) as connection, connection.cursor() as cursor:
            cursor.execute("SET time_zone = '+00:00', sql_mode = 'ALLOW_INVALID_DATES'")
            cursor.execute("INSERT INTO orders VALUES (1, '2024-10-27 00:30:00.5', '2024-02-31', 0)")
            cursor.execute("INSERT INTO orders VALUES (2, '2024-10-27 01:30:00', '2024-00-00', 0)")
            shop.run()
            cursor.execute("SET time_zone = 'Its/Summer'")
            cursor.execute("UPDATE orders SET n = 1")
        shop.run()
        read, before = (
            [e[image] for e in shop.events() if e["op"] == op] for op, image in (("r", "after"), ("u", "before"))
        )
        assert [row["at"][:13] for row in read] == ["2024-10-27T00", "2024-10-27T01"]
        assert before == read
    finally:
        shop.do(*_NO_ZONE)


@pytest.mark.full  # test_postgres_triggers.py
def test_tables_that_come_are_taken_up(
    shop: MysqlShop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """While it runs."""
    shop.tables = (f"{shop.schema}.*",)
    laws.tables_that_come_are_taken_up(shop, monkeypatch, caplog, locks=True)


@pytest.mark.full  # each look waits for a second
def test_an_alter_that_waits_holds_up_nobody(shop: MysqlShop, monkeypatch: pytest.MonkeyPatch) -> None:
    """MySQL shows nobody InnoDB's tables while somebody waits for one of them, be it captured or not."""
    monkeypatch.setattr(cdc.capture.pipeline, "GIVE_UP_S", 0.0)
    shop.do("CREATE TABLE another (id int PRIMARY KEY)")
    waiting = "SELECT COUNT(*) > 0 FROM information_schema.PROCESSLIST WHERE STATE LIKE 'Waiting for table metadata%'"
    with ThreadPoolExecutor(1) as other, laws.transaction(shop, "SELECT * FROM another") as holder:
        for n in range(2):  # and a start meanwhile
            with shop.running() as running:
                shop.do(f"UPDATE orders SET n = {n}")
                running.eventually(lambda: shop.fold() == shop.rows())
                if n == 0:
                    done = other.submit(shop.do, "ALTER TABLE another ADD COLUMN n int")
                    running.eventually(lambda: shop.select(waiting) == [(1,)])
                shop.do("UPDATE orders SET n = 7", "DELETE FROM orders ORDER BY id LIMIT 1")
                running.eventually(lambda: shop.fold() == shop.rows())
            assert running.raised is None
        assert not done.done()
        holder.connection.rollback()
        done.result()
    shop.run()
    assert shop.fold() == shop.rows()


def test_what_was_read_is_deleted_beside_a_transaction_that_is_open(
    shop: MysqlShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not waited for, though most rows of the change table are deleted, and its own lie between them."""
    monkeypatch.setattr(connectors.triggers.mysql.change_log, "ROWS_S", 1)
    monkeypatch.setattr(cdc.capture.pipeline, "GIVE_UP_S", 0.0)
    with laws.transaction(shop, "INSERT INTO orders VALUES (100, 'open', 1)") as cursor:
        for _ in range(3):
            shop.do(*(f"UPDATE orders SET n = COALESCE(n, 0) + 1 WHERE id = {i}" for i in (1, 2, 3) * 4))
            shop.run()
            cursor.execute("UPDATE orders SET n = n + 1 WHERE id = 100")
            assert shop.fold() == shop.rows()
        assert shop.changes() == 0, "of what is committed"
        cursor.connection.commit()
    shop.run()
    assert shop.fold() == shop.rows()


ALTER_OTHER = "ALTER TABLE other DROP COLUMN m; UPDATE other SET n = n + 1; ALTER TABLE other ADD COLUMN m int"


@pytest.fixture
def two(mysql_database: MySQLDatabase, monkeypatch: pytest.MonkeyPatch) -> MysqlShop:
    """Its locks are waited for but for a second, which is the shortest."""
    monkeypatch.setattr(
        connectors.triggers.mysql.source, "_PATIENCE", {"wait_timeout": "120", "lock_wait_timeout": "1"}
    )
    other = "CREATE TABLE other (id int PRIMARY KEY, n int, m int); INSERT INTO other VALUES (1,1,1), (2,2,2), (3,3,3)"
    return MysqlShop(mysql_database, ORDERS, ROWS, other, tables=("orders", "other"))


@pytest.mark.full  # test_postgres_triggers.py
def test_one_that_is_locked_at_a_start_holds_up_no_other(
    two: MysqlShop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The others go on; what is a miss of it is nobody else's."""
    laws.one_that_is_locked_at_a_start_holds_up_no_other(two, monkeypatch, caplog, ALTER_OTHER)


@pytest.mark.full  # test_postgres_triggers.py
def test_it_has_not_caught_up_before_it_has_one_that_is_locked(
    two: MysqlShop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Unless it is dropped."""
    laws.it_has_not_caught_up_before_it_has_one_that_is_locked(two, monkeypatch, caplog, ALTER_OTHER)


@pytest.mark.full  # test_postgres_triggers.py
def test_one_that_is_captured_no_more_and_locked_holds_up_no_other(
    two: MysqlShop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its triggers are dropped later."""
    laws.one_that_is_captured_no_more_and_locked_holds_up_no_other(two, monkeypatch)
    assert "has no use for stay" in caplog.text
    assert two.select("SELECT COUNT(*) FROM information_schema.TRIGGERS WHERE EVENT_OBJECT_TABLE = 'other'") == [(0,)]


ALTERED = {
    "add": "ALTER TABLE orders ADD COLUMN note varchar(9) DEFAULT 'none'; UPDATE orders SET note = 'x' WHERE id = 1",
    "rename a column": "ALTER TABLE orders RENAME COLUMN status TO state; UPDATE orders SET state = 'x' WHERE id = 1",
    "drop a column": "ALTER TABLE orders DROP COLUMN n; DELETE FROM orders WHERE id = 3",
    "retype": "ALTER TABLE orders MODIFY n varchar(20); UPDATE orders SET n = 'word' WHERE id = 3",
    "widen": "ALTER TABLE orders MODIFY n bigint; UPDATE orders SET n = 5000000000 WHERE id = 3",
    "swap names": "ALTER TABLE orders RENAME COLUMN status TO x, RENAME COLUMN n TO status; "
    "UPDATE orders SET status = 7",
    "make again": "DROP TABLE orders; CREATE TABLE orders (n int, id int PRIMARY KEY, status varchar(9));"
    " INSERT INTO orders VALUES (9, 9, 'new')",
    "another key": "ALTER TABLE orders DROP PRIMARY KEY, ADD PRIMARY KEY (status, id)",
    "drop a trigger": "DROP TRIGGER `cdc:c:{0}:delete`; DELETE FROM orders WHERE id = 4",
    "another trigger": "DROP TRIGGER `cdc:c:{0}:delete`; CREATE TRIGGER `cdc:c:{0}:delete` AFTER DELETE ON orders"
    " FOR EACH ROW SET @x = 1; DELETE FROM orders WHERE id = 4",
    "drop the change table": "DROP TABLE cdc_c.changes_{0}; DELETE FROM orders WHERE id = 4",
    "empty the change table": "DELETE FROM orders WHERE id = 4; TRUNCATE cdc_c.changes_{0}",
    "alter the change table": "ALTER TABLE cdc_c.changes_{0} DROP COLUMN c2; DELETE FROM orders WHERE id = 4",
    "delete changes": "DELETE FROM orders WHERE id = 4; DROP TRIGGER cdc_c.`kept:{0}:delete`;"
    " DELETE FROM cdc_c.changes_{0}",
    "rename the change table and back": "RENAME TABLE cdc_c.changes_{0} TO cdc_c.x; UPDATE orders SET n = 5;"
    " RENAME TABLE cdc_c.x TO cdc_c.changes_{0}",
    "a trigger on the change table": "CREATE TRIGGER cdc_c.forges BEFORE INSERT ON cdc_c.changes_{0} FOR EACH ROW"
    " SET NEW.c2 = 'forged'; UPDATE orders SET n = 5 WHERE id > 2",
    "truncate": "TRUNCATE orders; INSERT INTO orders VALUES (7, 'seven', NULL)",
    "swap": "CREATE TABLE new LIKE orders; INSERT INTO new VALUES (5, 'five', 5);"
    " RENAME TABLE orders TO old, new TO orders; DELETE FROM old WHERE id = 1; INSERT INTO old VALUES (8, 'old', 0)",
    "exchange": "CREATE TABLE p (id int PRIMARY KEY, status varchar(20) NOT NULL, n int) PARTITION BY RANGE (id)"
    " (PARTITION p0 VALUES LESS THAN (100)); INSERT INTO p VALUES (50, 'fifty', 1);"
    " ALTER TABLE p EXCHANGE PARTITION p0 WITH TABLE orders",
}
OFTEN = ("swap", "truncate", "a trigger on the change table", "rename the change table and back")


@pytest.mark.parametrize(
    ("how", "live"),
    [
        *(pytest.param(how, False, marks=() if how in OFTEN else pytest.mark.full) for how in ALTERED),
        *(pytest.param(how, True, marks=pytest.mark.full) for how in ALTERED),
    ],
)
def test_what_is_altered_is_followed(shop: MysqlShop, how: str, live: bool) -> None:
    """While it runs and while it does not. No statement of the application's fails meanwhile."""

    def folded() -> bool:
        return shop.fold() == sorted(shop.rows("SELECT * FROM orders"), key=lambda row: row["id"])

    shop.do("UPDATE orders SET status = 'old shape' WHERE id = 2")
    if live:
        with shop.running() as running:
            running.eventually(lambda: any(event["op"] == "u" for event in shop.events()))
            shop.do(ALTERED[how].format(shop.newest))
            running.eventually(lambda: folded() and not shop.state().reading)
            shop.do("DELETE FROM orders WHERE id = 1")
            running.eventually(folded)
        assert running.raised is None
    else:
        shop.do(ALTERED[how].format(shop.newest))
        shop.run()
        assert folded()
        shop.do("DELETE FROM orders WHERE id = 1")
        if how == "swap":
            shop.do("INSERT INTO old VALUES (9, 'nobody follows it', 0)")
        shop.run()
    assert folded()


def test_what_could_not_be_written_down_is_noticed_even_when_all_is_as_it_was(shop: MysqlShop) -> None:
    """Columns and names that came back, between two looks."""
    for n, (away, back) in enumerate(
        (
            ("ALTER TABLE orders RENAME COLUMN status TO state", "ALTER TABLE orders RENAME COLUMN state TO status"),
            ("ALTER TABLE orders MODIFY n varchar(9)", "ALTER TABLE orders MODIFY n int"),
        )
    ):
        shop.do(away, f"UPDATE orders SET n = {n}", back)
        shop.run()
        assert shop.fold() == shop.rows(), away


@pytest.mark.full  # that of SQLite
def test_what_cannot_be_captured_any_more_stops_no_other(shop: MysqlShop) -> None:
    laws.what_cannot_be_captured_any_more_stops_no_other(
        shop,
        shop.schema,
        away="ALTER TABLE orders DROP PRIMARY KEY",
        back="ALTER TABLE orders ADD PRIMARY KEY (id)",
    )


def test_renamed(shop: MysqlShop) -> None:
    """A table that is named and has another name stops the run, in whose hint the way out is."""
    shop.do("RENAME TABLE orders TO sold", "UPDATE sold SET n = 1")
    with pytest.raises(OperatorError, match="there is no table"):
        shop.run()
    shop.do("RENAME TABLE sold TO orders")
    shop.run()
    assert shop.fold() == shop.rows()


def test_another_user_writes_without_a_right_to_our_tables(shop: MysqlShop) -> None:
    """Its statement does not fail, and is captured; changes are not to be deleted, not even by an administrator."""
    user = f"cdc_capture_{shop.database.name}"
    shop.do(
        f"CREATE USER {user}@'%' IDENTIFIED BY 'p'", f"GRANT SELECT, INSERT, UPDATE, DELETE ON orders TO {user}@'%'"
    )
    with closing(shop.database.connect(user=user, password="p")) as theirs, theirs.cursor() as cursor:
        cursor.execute("INSERT INTO orders VALUES (8, 'theirs', 0)")
        cursor.execute("UPDATE orders SET n = 8")
        with pytest.raises(pymysql.Error, match="denied"):
            cursor.execute(f"SELECT * FROM cdc_c.changes_{shop.newest}")
    for statement in ("DELETE FROM cdc_c.changes_{0}", "UPDATE cdc_c.changes_{0} SET seq = 1"):
        with pytest.raises(pymysql.Error, match="which it may not have read"):
            shop.do(statement.format(shop.newest))
    shop.run()
    assert shop.fold() == shop.rows()


def test_check_says_what_is_missing(mysql_database: MySQLDatabase) -> None:
    """To a user who owns nothing: each right, with the statement that gives it; then it captures with these alone."""
    user = f"cdc_capture_{mysql_database.name}"
    shop = MysqlShop(
        mysql_database,
        ORDERS,
        ROWS,
        "CREATE TABLE keyless (v int); CREATE TABLE isam (id int PRIMARY KEY) ENGINE=MyISAM",
        "CREATE TABLE parted (id int PRIMARY KEY) PARTITION BY HASH (id) PARTITIONS 2",
        "CREATE TABLE child (id int PRIMARY KEY, p int, CONSTRAINT goes_along FOREIGN KEY (p) REFERENCES orders (id)"
        " ON DELETE CASCADE)",
        "CREATE VIEW paid AS SELECT * FROM orders; CREATE TABLE `schön` (id int PRIMARY KEY)",
        f"CREATE USER {user}@'%' IDENTIFIED BY 'p'; GRANT SELECT ON {mysql_database.name}.* TO {user}@'%'",
        tables=("orders", "keyless", "isam", "parted", "child", "paid", "schön", "order"),
    )
    head, _, host = mysql_database.url.rpartition("@")
    shop.login = f"mysql://{user}:p@{host}"
    del head
    found = {(f.level, f.about): f for f in check.check(shop.config, None).findings}
    for name, said in (
        ("keyless", "no primary key"), ("isam", "no transactions"), ("parted", "is partitioned"),
        ("child", "goes_along"), ("paid", "a view"), ("schön", "ASCII"), ("order", "no table"),
    ):  # fmt: skip
        assert said in found[Level.ERROR, f"table {shop.schema}.{name}"].what
    shop.tables = (f"{shop.schema}.child",)
    with pytest.raises(OperatorError, match="goes_along"):
        shop.run()
    shop.tables = (f"{shop.schema}.orders",)
    wrong = [f for f in check.check(shop.config, None).findings if f.level is Level.ERROR]
    told = ("the database cdc_c", "log_bin_trust", "make triggers on it", "TRUNCATE")
    said = [tuple(word in f.what for word in told) for f in wrong]
    assert said == [
        (True, False, False, False), (False, True, False, False), (False, False, True, False),
        (False, False, False, True),
    ]  # fmt: skip
    with pytest.raises(OperatorError, match="may not make the database"):
        shop.run()
    try:
        shop.do(*(str(f.fix).partition(" (and")[0] for f in wrong))
        assert Level.ERROR not in {f.level for f in check.check(shop.config, None).findings}
        shop.run()
        shop.do("UPDATE orders SET n = 5; ALTER TABLE orders ADD COLUMN more int")
        shop.run()
        assert shop.fold() == shop.rows()
    finally:
        shop.do("SET GLOBAL log_bin_trust_function_creators = OFF", "DROP TABLE child", "DROP TABLE orders",
                "DROP DATABASE cdc_c")  # fmt: skip


def test_what_an_older_version_made_is_gone_on_with(shop: MysqlShop) -> None:
    """It made no table of misses, and triggers without one: they are made again, and nothing is a gap."""
    laws.what_an_older_version_made_is_gone_on_with(shop, "DROP TABLE cdc_c.missed")


@pytest.mark.full  # test_mysql_session.py
def test_a_server_that_takes_no_changes_for_a_while(shop: MysqlShop, caplog: pytest.LogCaptureFixture) -> None:
    """At a fail-over, or in maintenance: the connector, whose own tables are there, waits until it does again."""
    ((version,),) = shop.select("SELECT VERSION()")
    mariadb = "MariaDB" in version
    user, host = f"u_{shop.schema}", shop.login.rpartition("@")[2]
    rights = "SELECT, TRIGGER, PROCESS, CREATE, DROP, INSERT, UPDATE, DELETE" if mariadb else "ALL"
    shop.do(f"CREATE USER {user} IDENTIFIED BY 'p'; GRANT {rights} ON *.* TO {user}",
            "SET GLOBAL log_bin_trust_function_creators = ON")  # fmt: skip
    shop.login = f"mysql://{user}:p@{host}"
    shop.run()
    try:
        with shop.running() as running:
            shop.do("UPDATE orders SET n = 1", f"SET GLOBAL {'read_only' if mariadb else 'super_read_only'} = ON")
            running.eventually(lambda: "read-only" in caplog.text)
            found = check.check(shop.config, None).findings
            assert [f.level for f in found if "read_only" in f.what] == [Level.WARNING]
            shop.do("SET GLOBAL read_only = OFF", "UPDATE orders SET n = 2")  # MySQL: the other one with it
            running.eventually(lambda: shop.fold() == shop.rows())
        assert running.raised is None
    finally:
        shop.do("SET GLOBAL read_only = OFF", "SET GLOBAL log_bin_trust_function_creators = OFF", f"DROP USER {user}")


KEYED = {False: "sql_require_primary_key", True: "innodb_force_primary_key"}
"""By whether the server is MariaDB."""


def test_a_server_that_takes_no_table_without_a_primary_key(mysql_database: MySQLDatabase) -> None:
    """Nor of the connector's own, as managed servers are set; and misses are written down there."""
    ((version,),) = mysql_database.rows("SELECT VERSION()")
    setting = KEYED["MariaDB" in version]
    shop = MysqlShop(mysql_database, ORDERS, ROWS)
    shop.do(f"SET GLOBAL {setting} = ON")
    try:
        shop.run()
        shop.do(f"RENAME TABLE cdc_c.changes_{shop.newest} TO cdc_c.aside", "UPDATE orders SET n = 7")
        shop.do(f"RENAME TABLE cdc_c.aside TO cdc_c.changes_{shop.newest}")
        assert len(shop.select("SELECT shape FROM cdc_c.missed")) == len(shop.rows())
        shop.run()
        assert shop.fold() == shop.rows()
    finally:
        shop.do(f"SET GLOBAL {setting} = OFF")


TAMPERED = {
    "database dropped": ("DROP DATABASE cdc_c", "gone"),
    "not whole": ("DROP TABLE cdc_c.shapes", "not whole"),
    "made again": ("UPDATE cdc_c.log SET id = 'another'", "made again"),
    "behind": ("UPDATE cdc_c.log SET round = 0", "behind the position"),
    "another database": ("UPDATE cdc_c.rounds SET token = 'another'", "another database"),
    "rounds deleted": ("DELETE FROM cdc_c.rounds", "another database"),
    "rounds counted ahead": ("UPDATE cdc_c.log SET round = round + 5", "rounds"),
    "shapes altered": ("UPDATE cdc_c.shapes SET described = '{}'", "table shapes"),
    "a clock that went back": ("UPDATE cdc_c.rounds SET greatest = 18446744073709551615", "numbers went back"),
}
TOO = ("database dropped", "rounds counted ahead", "another database")


@pytest.mark.parametrize("how", [pytest.param(how, marks=() if how in TOO else pytest.mark.full) for how in TAMPERED])
def test_what_cannot_be_followed_is_a_verdict(shop: MysqlShop, how: str) -> None:
    """With a way out, which is followed."""
    laws.what_cannot_be_followed_is_a_verdict(shop, *TAMPERED[how])


def test_an_older_copy_of_a_database_whose_first_snapshot_is_half_read(mysql_database: MySQLDatabase) -> None:
    """Rows were read under a later round than the one behind which the log is to be read."""
    shop = MysqlShop(mysql_database, ORDERS, *(f"INSERT INTO orders VALUES ({n}, 'old', 0)" for n in range(1, 21)))

    def some_rows() -> None:
        with pytest.raises(Killed):
            shop.run(Faults(("sink.commit", 3), error=Killed))

    some_rows()
    ((had,),) = shop.select("SELECT round FROM cdc_c.log")
    shop.do("UPDATE orders SET status = 'late'")
    some_rows()
    assert "late" in {row["status"] for row in shop.fold()}
    shop.do(f"DELETE FROM cdc_c.rounds WHERE round > {had}", f"UPDATE cdc_c.log SET round = {had}")
    laws.a_gap_is_to_be_closed(shop, "another database")


@pytest.mark.parametrize("point", laws.POINTS)
def test_killed_at_any_step_each_event_comes_once(mysql_database: MySQLDatabase, point: str) -> None:
    """And the application writes meanwhile, with a transaction that stays open across runs."""
    shop = MysqlShop(mysql_database, ORDERS)
    shop.do(*(f"INSERT INTO orders VALUES ({n}, 'old', 0)" for n in range(1, 8)))
    laws.killed_at_any_step(shop, point, range(1, 4), lambda time: f"id IN ({time % 3 + 1}, {time % 3 + 4})")
    with laws.transaction(shop, "UPDATE orders SET status = 'late' WHERE id = 7") as late:
        laws.killed_at_any_step(shop, point, range(4, 6), lambda time: f"id IN (6, {time % 3 + 1})")
        late.connection.commit()
    laws.killed_at_any_step(shop, point, range(6, 7), lambda time: f"id IN ({time % 3 + 1}, {time % 3 + 4})")
    laws.each_event_came_once(shop)


def test_prepared_by_xa_and_savepoints(shop: MysqlShop) -> None:
    """A prepared transaction is given when it is committed, a savepoint that was rolled back is not."""
    shop.do(
        "BEGIN; UPDATE orders SET n = 1; SAVEPOINT a; DELETE FROM orders; ROLLBACK TO a; SAVEPOINT b;"
        " UPDATE orders SET n = 2 WHERE id = 1; RELEASE SAVEPOINT b; COMMIT"
    )
    name = shop.database.name
    with closing(shop.connect()) as connection, connection.cursor() as cursor:
        cursor.execute(f"XA START '{name}'")
        cursor.execute("UPDATE orders SET status = 'prepared' WHERE id = 2")
        cursor.execute(f"XA END '{name}'")
        cursor.execute(f"XA PREPARE '{name}'")
        shop.run()
        assert all(event["after"]["status"] != "prepared" for event in shop.events())
        cursor.execute(f"XA COMMIT '{name}'")
    shop.run()
    assert shop.fold() == shop.rows()


def test_a_large_round_is_read_page_by_page(mysql_database: MySQLDatabase) -> None:
    """Of two tables, in the order in which it was written."""
    other = "CREATE TABLE other (id int PRIMARY KEY, status varchar(20))"
    shop = MysqlShop(mysql_database, ORDERS, other, tables=("orders", "other"))
    shop.run()

    def insert(table: str, first: int) -> str:
        rows = ", ".join(f"({n}, 'new')" for n in range(first, first + 3_000))
        return f"INSERT INTO {table} (id, status) VALUES {rows}"

    shop.do("BEGIN", insert("orders", 1), insert("other", 1), insert("orders", 5_001), "COMMIT")
    laws.two_tables_in_the_order_of_writing(shop)


def test_statements_of_all_kinds(shop: MysqlShop) -> None:
    """REPLACE, ON DUPLICATE KEY UPDATE, of several tables, with triggers of the application's own around ours."""
    shop.do("CREATE TABLE more (id int PRIMARY KEY, s varchar(20))", "INSERT INTO more VALUES (1, 'x'), (2, 'y')")
    shop.do("CREATE TRIGGER upper_case BEFORE UPDATE ON orders FOR EACH ROW SET NEW.status = UPPER(NEW.status)")
    shop.do("CREATE TRIGGER after_ours AFTER UPDATE ON orders FOR EACH ROW SET @seen = NEW.id")
    shop.do("REPLACE INTO orders VALUES (1, 'replaced', 1), (6, 'new', 6)",
            "INSERT INTO orders VALUES (2, 'x', 1) ON DUPLICATE KEY UPDATE status = 'again', id = 20",
            "UPDATE orders JOIN more USING (id) SET status = s, n = n + 1",
            "INSERT IGNORE INTO orders VALUES (1, 'ignored', 0), (7, 'seven', 7)",
            "DELETE orders, more FROM orders JOIN more USING (id) WHERE id = 1")  # fmt: skip
    shop.run()
    assert shop.fold() == shop.rows()
    assert [row["status"] for row in shop.fold() if row["id"] == 20] == ["AGAIN"]


IGNORED = (
    "UPDATE IGNORE t SET id = 3", "UPDATE IGNORE t SET a = 3", "UPDATE IGNORE t SET p = 77",
    "UPDATE IGNORE t SET k = 'é'", "UPDATE IGNORE t JOIN p ON p.id = t.id SET t.id = 3",
    "UPDATE IGNORE t SET id = id + 1",
    "INSERT IGNORE INTO t (id, a) VALUES (1, 50), (9, 9) ON DUPLICATE KEY UPDATE a = 3",
    "UPDATE t SET k = UPPER(k)", "UPDATE t SET id = id + 100, k = NULL", "UPDATE t SET a = NULL, v = 8",
)  # fmt: skip


@pytest.mark.every_server
def test_rows_that_a_statement_leaves_as_they_were(mysql_database: MySQLDatabase) -> None:
    """MariaDB calls triggers for those, too, that an UPDATE IGNORE passes over."""
    shop = MysqlShop(
        mysql_database,
        *("CREATE TABLE p (id int PRIMARY KEY)", "INSERT INTO p VALUES (1), (2), (3)"),
        "CREATE TABLE t (id int PRIMARY KEY, a int UNIQUE, k varchar(9) UNIQUE, v int, p int DEFAULT 1, "
        "FOREIGN KEY (p) REFERENCES p (id))",
        "INSERT INTO t (id, a, k) VALUES (1, 1, 'a'), (2, 2, 'é'), (3, 3, 'x')",
        tables=("t",),
    )
    shop.run()
    for statement in IGNORED:
        shop.do(statement)
        shop.run()
        assert shop.fold("t") == shop.rows("SELECT * FROM t ORDER BY id"), statement
    with closing(shop.connect()) as connection, connection.cursor() as cursor:
        connection.begin()
        cursor.execute("SELECT * FROM t")
        shop.do("INSERT INTO t (id) VALUES (50), (51)")  # the view of the transaction has none of them
        cursor.execute("UPDATE IGNORE t SET id = 50 WHERE id = 51")
        connection.commit()
        cursor.execute("LOCK TABLES t WRITE")
        cursor.execute("UPDATE IGNORE t SET id = 50 WHERE id > 50 ORDER BY id DESC")
    shop.run()
    assert shop.fold("t") == shop.rows("SELECT * FROM t ORDER BY id")


def test_a_name_with_a_quote_in_it(mysql_database: MySQLDatabase) -> None:
    """MySQL's catalog garbles it where it says what a trigger does: the triggers are as they were made all the same."""
    made = "CREATE TABLE orders (id int PRIMARY KEY, `a``b'\"c` int)"
    shop = MysqlShop(mysql_database, made, "INSERT INTO orders VALUES (1, 1)")
    with shop.running() as running:
        running.eventually(lambda: shop.fold() != [])
        shop.do("UPDATE orders SET `a``b'\"c` = 2")
        running.eventually(lambda: shop.fold() == shop.rows())
    assert [event["op"] for event in shop.events()] == ["r", "u"]
    name = f"`{shop.schema}`.`cdc:c:{shop.newest}:update`"
    shop.do(f"DROP TRIGGER {name}",
            f"CREATE TRIGGER {name} AFTER UPDATE ON orders FOR EACH ROW SET @seen = NEW.`a``b'\"c`",
            "UPDATE orders SET id = 7")  # fmt: skip
    shop.run()
    assert shop.fold() == shop.rows()


def test_rows_as_wide_as_the_server_allows(mysql_database: MySQLDatabase) -> None:
    """The change table has both images, a number and more, and yet the same bounds."""
    shop = MysqlShop(
        mysql_database,
        "CREATE TABLE orders (id int PRIMARY KEY, a varchar(8000), b varchar(8000)) CHARACTER SET utf8mb4",
        "CREATE TABLE wide (id int PRIMARY KEY, " + ", ".join(f"c{n} int" for n in range(900)) + ")",
        "INSERT INTO orders VALUES (1, REPEAT('ä', 8000), 'b')",
        tables=("orders", "wide"),
    )
    shop.run()
    shop.do("UPDATE orders SET b = REPEAT('€', 8000)", "INSERT INTO wide (id, c899) VALUES (1, 5)")
    shop.run()
    assert shop.fold() == shop.rows()
    assert shop.fold("wide") == shop.rows("SELECT * FROM wide")


def test_what_no_change_table_can_have(mysql_database: MySQLDatabase) -> None:
    """More columns beside its own, or rows that fill a page's half: left out where a pattern brings such a table.

    While it runs, too; the others are captured. So is one that the file of a connector that has run names.
    """
    columns = ", ".join(f"c{n} tinyint" for n in range(1_014))
    shop = MysqlShop(mysql_database, ORDERS, ROWS, f"CREATE TABLE wide (id int PRIMARY KEY, {columns})", tables=("*",))
    full = _as_wide_as_can_be(shop)
    shop.run()
    assert shop.fold() == shop.rows()
    assert shop.state().tables == (f"{shop.schema}.orders",)
    shop.do("CREATE TABLE later LIKE filled", "UPDATE orders SET n = 5", "ALTER TABLE filled COMMENT 'another'")
    shop.run()
    shop.run()
    assert shop.fold() == shop.rows()
    assert shop.state().tables == (f"{shop.schema}.orders",)
    shop.do(f"ALTER TABLE later DROP COLUMN c{full - 1}, DROP COLUMN c{full - 2}")
    with shop.running() as running:
        running.eventually(lambda: f"{shop.schema}.later" in shop.state().tables)
    assert running.raised is None
    shop.tables = (f"{shop.schema}.orders", f"{shop.schema}.filled")
    shop.run()
    assert shop.state().tables == (f"{shop.schema}.orders",)


def _as_wide_as_can_be(shop: MysqlShop) -> int:
    """Make a table whose rows take all that the server allows; return how many columns it has beside its key."""
    fits, too_many = 100, 600
    while too_many - fits > 1:
        many = (fits + too_many) // 2
        columns = ", ".join(f"c{n} text" for n in range(many))
        try:
            shop.do(f"CREATE TABLE filled_{many} (id int PRIMARY KEY, {columns})")
        except pymysql.Error:
            too_many = many
        else:
            shop.do(f"DROP TABLE IF EXISTS filled_{fits}")
            fits = many
    shop.do(f"RENAME TABLE filled_{fits} TO filled")
    return fits


def test_connectors_side_by_side_and_taking_one_away(shop: MysqlShop) -> None:
    """Its database may go before its triggers: the application does not notice."""
    shop.do("DROP DATABASE IF EXISTS cdc_other")
    with closing(open_source(replace(shop.config, name="other"))) as second:
        second.connect()
        second.hold(second.tables())
        shop.do("UPDATE orders SET n = 1", "DROP DATABASE cdc_other", "UPDATE orders SET n = 2")
    named = f"SELECT TRIGGER_NAME FROM information_schema.TRIGGERS WHERE TRIGGER_SCHEMA = '{shop.schema}'"
    theirs = [name for (name,) in shop.select(named) if name.startswith("cdc:other:")]
    assert len(theirs) == 3
    shop.do(*(f"DROP TRIGGER `{name}`" for name in theirs))
    shop.run()
    assert shop.fold() == shop.rows()


def test_triggers_that_are_left_of_older_change_tables_write_to_none_of_the_new(shop: MysqlShop) -> None:
    """Of a table that is not captured any more, in a database that nobody looks into."""
    away = f"{shop.schema}_away"
    shop.do(f"CREATE DATABASE {away}", f"CREATE TABLE {away}.orders LIKE orders")
    try:
        shop.tables = (f"{away}.orders",)
        shop.ask(Command(after_gap=True, tables=()))
        shop.do("DROP DATABASE cdc_c")
        shop.run()
        shop.tables = (f"{shop.schema}.orders",)
        shop.do("DROP DATABASE cdc_c")
        shop.ask(Command(after_gap=True, tables=()))
        shop.run()
        shop.do(f"INSERT INTO {away}.orders VALUES (77, 'not captured', 0)")
        shop.run()
        assert shop.fold() == shop.rows()
    finally:
        shop.do(f"DROP DATABASE {away}")


def test_a_pattern_takes_no_tables_of_ours(shop: MysqlShop) -> None:
    """Change tables of whichever connector are not captured."""
    shop.tables = (f"{shop.schema}.*", "cdc_c.*", f"!{shop.schema}.none")
    found = check.check(shop.config, None).findings
    assert any(f.level is Level.ERROR and "there is no table cdc_c.*" in f.what for f in found)


def test_status_and_token_and_check_of_one_that_has_run(shop: MysqlShop) -> None:
    """Where the changes end, and that a start would go on."""
    laws.status_and_token_and_check_of_one_that_has_run(shop)
    laws.a_long_name_is_refused(shop)
