"""PostgreSQL by triggers, with the whole pipeline: what happens to the database, and what the topics then hold.

The server is real, and so are its triggers; the broker is the twin.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace

import psycopg2
import pytest

import connectors.triggers.postgres.change_log
from cdc.capture.control.signals import Command
from cdc.config.findings import Level
from cdc.model.change import Offset
from cdc.model.errors import GapError, OperatorError
from connectors.triggers import check
from connectors.triggers.postgres.change_log import ChangeLog
from connectors.triggers.postgres.sequence import ROOM
from connectors.triggers.source import open_source
from tests.conftest import Database
from tests.integration import trigger_laws as laws
from tests.integration.postgres_shop import ORDERS, PostgresShop

CHANGES = "SELECT count(*)::int FROM cdc_c.changes"
ROWS = "INSERT INTO orders (id, status) VALUES (1, 'a'), (2, 'b'), (3, 'c'), (4, 'd')"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks and commands come at once."""
    laws.at_once(monkeypatch)


@pytest.fixture
def shop(postgres18: Database) -> PostgresShop:
    shop = PostgresShop(postgres18, ORDERS, ROWS)
    shop.run()
    return shop


def test_snapshot_then_changes(shop: PostgresShop) -> None:
    """Events have the whole row before and after; the change table shrinks again."""
    laws.snapshot_then_changes(shop, "postgresql")
    assert shop.select(CHANGES) <= [(2,)]


def test_one_that_commits_late_is_not_lost(shop: PostgresShop) -> None:
    """By its number alone it lies before what was read already."""
    with laws.transaction(shop, "UPDATE orders SET n = 1 WHERE id = 1") as late:
        shop.do("UPDATE orders SET n = 2 WHERE id = 2")
        shop.run()
        ((read,),) = shop.select("SELECT max(seq) FROM cdc_c.changes")
        late.connection.commit()
    behind = shop.select(f"SELECT n1 FROM cdc_c.changes_1 WHERE seq > {read}")
    assert behind == [], "who reads on behind the greatest number loses it"
    shop.run()
    assert shop.fold() == shop.rows()


def test_an_old_transaction_that_changes_a_row_last_comes_last(shop: PostgresShop) -> None:
    """By the horizon of open transactions it may be given, and the younger one not yet, which would come behind it."""

    def horizon() -> None:
        within = "SELECT n2 FROM cdc_c.changes_1 WHERE n1 = 2 AND xid < pg_snapshot_xmin(pg_current_snapshot())"
        assert shop.select(within) == [("last",)], "the horizon gives the old one alone"

    laws.an_old_transaction_that_changes_a_row_last_comes_last(shop, horizon)


def test_nothing_of_the_writing_session_decides_how_values_are_printed(postgres18: Database) -> None:
    """Snapshot and triggers give the same bytes, whatever the writer has set; names it has in front are not called."""
    shop = PostgresShop(
        postgres18,
        "CREATE TYPE mood AS ENUM ('good', 'bad'); CREATE DOMAIN cents AS numeric(9, 2)",
        "CREATE TYPE pair AS (at timestamptz, f float8); CREATE SCHEMA evil",
        "CREATE TABLE orders (id int PRIMARY KEY, at timestamptz, d date, i interval, f float8, b bytea, m money,"
        " mood mood, c cents, p pair, r tstzrange, a timestamptz[], x text, n numeric, bits bit(3), ch char(5))",
        "CREATE FUNCTION evil.nextval(regclass) RETURNS bigint LANGUAGE sql AS 'SELECT 1/0'",
        "CREATE FUNCTION evil.always(int, int) RETURNS boolean LANGUAGE sql AS 'SELECT 1/0 = 1'",
        "CREATE OPERATOR evil.= (LEFTARG = int, RIGHTARG = int, FUNCTION = evil.always)",
    )
    into = (
        "INSERT INTO orders VALUES (1, '2026-01-02 03:04:05.678+00', '2026-02-01', '1 day 2 hours', 0.1::float4, "
        "'\\x00ff', '1.50', 'bad', 1.5, ROW('2026-01-02 00:00+00', 1e-7), '[2026-01-02 00:00+00,)', "
        "'{2026-01-02 00:00+00}', 'ä', 1.50, B'101', 'ab')"
    )
    shop.do(into)
    shop.run()
    shop.do(
        "SET DateStyle = 'SQL, DMY'; SET TimeZone = 'Asia/Kolkata'; SET IntervalStyle = 'sql_standard'; "
        "SET extra_float_digits = -3; SET bytea_output = 'escape'; SET client_encoding = 'LATIN1'; "
        f"DELETE FROM orders; SET search_path = evil, public, pg_catalog; SET DateStyle = ISO; {into}"
    )
    shop.run()
    read, logged = ([e["after"] for e in shop.events() if e["op"] == op] for op in ("r", "c"))
    assert read == logged
    assert read[0]["at"] == "2026-01-02T03:04:05.678000Z"


def test_tables_that_come_are_taken_up(
    shop: PostgresShop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """While it runs."""
    shop.tables = ("public.*",)
    laws.tables_that_come_are_taken_up(shop, monkeypatch, caplog, locks=True)


OTHER = "CREATE TABLE other (id int PRIMARY KEY, n int); INSERT INTO other VALUES (1, 1), (2, 2), (3, 3)"

ALTER_OTHER = (
    "UPDATE other SET n = n + 1; DO $$ DECLARE of text; BEGIN EXECUTE format('ALTER TABLE cdc_c.changes_%s DROP "
    "COLUMN o1', (SELECT max(shape) FROM cdc_c.shapes WHERE described LIKE '%other%')); FOR of IN SELECT tgname "
    "FROM pg_trigger WHERE tgrelid = 'other'::regclass LOOP EXECUTE format('DROP TRIGGER %I ON other', of); "
    "END LOOP; END $$; UPDATE other SET n = n + 1"
)


@pytest.fixture
def two(postgres18: Database, monkeypatch: pytest.MonkeyPatch) -> PostgresShop:
    """Its locks are waited for but for a moment."""
    monkeypatch.setattr(connectors.triggers.postgres.change_log, "LOCKS_S", 0.05)
    return PostgresShop(postgres18, ORDERS, ROWS, OTHER, tables=("public.orders", "public.other"))


def test_one_that_is_locked_at_a_start_holds_up_no_other(
    two: PostgresShop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The others go on."""
    laws.one_that_is_locked_at_a_start_holds_up_no_other(two, monkeypatch, caplog, ALTER_OTHER)


@pytest.mark.full
def test_it_has_not_caught_up_before_it_has_one_that_is_locked(
    two: PostgresShop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Unless it is dropped."""
    laws.it_has_not_caught_up_before_it_has_one_that_is_locked(two, monkeypatch, caplog, ALTER_OTHER)


def test_one_that_is_captured_no_more_and_locked_holds_up_no_other(
    two: PostgresShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it has is dropped later."""
    laws.one_that_is_captured_no_more_and_locked_holds_up_no_other(two, monkeypatch)
    assert two.select("SELECT count(*)::int FROM pg_class WHERE relname = 'changes_2'") == [(0,)]


ALTERED = {
    "add": "ALTER TABLE orders ADD COLUMN note text DEFAULT 'none'; UPDATE orders SET note = 'x' WHERE id = 1",
    "rename a column": "ALTER TABLE orders RENAME COLUMN status TO state; UPDATE orders SET state = 'x' WHERE id = 1",
    "drop a column": "ALTER TABLE orders DROP COLUMN n; DELETE FROM orders WHERE id = 3",
    "retype": "ALTER TABLE orders ALTER COLUMN n TYPE text; UPDATE orders SET n = 'word' WHERE id = 3",
    "rewrite": "ALTER TABLE orders ALTER COLUMN status TYPE text USING upper(status)",
    "make again": "DROP TABLE orders; CREATE TABLE orders (n int, id int PRIMARY KEY, status text);"
    " INSERT INTO orders VALUES (9, 9, 'new')",
    "another key": "ALTER TABLE orders DROP CONSTRAINT orders_pkey, ADD PRIMARY KEY (status, id)",
    "disable": "ALTER TABLE orders DISABLE TRIGGER USER; DELETE FROM orders WHERE id = 4;"
    " ALTER TABLE orders ENABLE TRIGGER USER",
    "leave disabled": "ALTER TABLE orders DISABLE TRIGGER USER; DELETE FROM orders WHERE id = 4",
    "drop a trigger": "DO $$ BEGIN EXECUTE format('DROP TRIGGER %I ON orders', (SELECT tgname FROM pg_trigger"
    " WHERE tgname LIKE 'cdc:c:%:delete')); END $$; DELETE FROM orders WHERE id = 4",
    "replace a function": "DO $$ BEGIN EXECUTE format('CREATE OR REPLACE FUNCTION cdc_c.%I() RETURNS trigger LANGUAGE"
    " plpgsql AS ''BEGIN RETURN NULL; END''', (SELECT proname FROM pg_proc WHERE proname LIKE 'delete\\_%'));"
    " END $$; DELETE FROM orders WHERE id = 4",
    "drop the change table": "DROP TABLE cdc_c.changes_1; DELETE FROM orders WHERE id = 4",
    "delete changes": "DELETE FROM orders WHERE id = 4; ALTER TABLE cdc_c.changes DISABLE TRIGGER USER;"
    " ALTER TABLE cdc_c.changes_1 DISABLE TRIGGER USER; DELETE FROM cdc_c.changes WHERE op = 'd';"
    " ALTER TABLE cdc_c.changes_1 ENABLE TRIGGER USER; ALTER TABLE cdc_c.changes ENABLE TRIGGER USER",
    "hide rows": "ALTER TABLE orders ENABLE ROW LEVEL SECURITY",
    "truncate": "TRUNCATE orders; INSERT INTO orders VALUES (7, 'seven')",
    "rename the change table and back": "ALTER TABLE cdc_c.changes_1 RENAME TO x; UPDATE orders SET n = 5;"
    " ALTER TABLE cdc_c.x RENAME TO changes_1",
    "rename the schema and back": "ALTER SCHEMA cdc_c RENAME TO x; UPDATE orders SET n = 5;"
    " ALTER SCHEMA x RENAME TO cdc_c",
    "take the change table out and back": "ALTER TABLE cdc_c.changes_1 NO INHERIT cdc_c.changes;"
    " UPDATE orders SET n = 5; ALTER TABLE cdc_c.changes_1 INHERIT cdc_c.changes",
    "a trigger on the change table": "CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN"
    " NULL; END'; CREATE TRIGGER zz BEFORE INSERT ON cdc_c.changes_1 FOR EACH ROW EXECUTE FUNCTION nothing();"
    " UPDATE orders SET n = 5",
    "a rule on the change table": "CREATE RULE none AS ON INSERT TO cdc_c.changes_1 DO INSTEAD NOTHING;"
    " UPDATE orders SET n = 5",
    "an unlogged change table": "ALTER TABLE cdc_c.changes_1 SET UNLOGGED; UPDATE orders SET n = 5",
    "a column less in the change table": "UPDATE orders SET n = 5; ALTER TABLE cdc_c.changes_1 DROP COLUMN o2",
    "another guard": "UPDATE orders SET n = 5; CREATE OR REPLACE FUNCTION cdc_c.kept() RETURNS trigger LANGUAGE plpgsql"
    " AS 'BEGIN RETURN NULL; END'; DELETE FROM cdc_c.changes_1 WHERE seq > (SELECT min(seq) FROM cdc_c.changes_1)",
    "another shape": "CREATE OR REPLACE FUNCTION cdc_c.shape(oid) RETURNS text LANGUAGE plpgsql IMMUTABLE"
    " AS 'BEGIN RETURN NULL; END'; UPDATE orders SET n = 5",
    "a function of another name": "ALTER FUNCTION cdc_c.shape_now(oid) RENAME TO update_x; UPDATE orders SET n = 5",
    "numbers that fall": "ALTER SEQUENCE cdc_c.number INCREMENT -1; ALTER SEQUENCE cdc_c.number INCREMENT 1;"
    " UPDATE orders SET n = 5",
}


OFTEN = ("add", "drop a column", "make again", "disable", "truncate")


LIVE = tuple(how for how in ALTERED if how != "drop the change table")  # which has the last change then: a gap


@pytest.mark.parametrize(
    ("how", "live"),
    [
        *(pytest.param(how, False, marks=() if how in OFTEN else pytest.mark.full) for how in ALTERED),
        *(pytest.param(how, True, marks=pytest.mark.full) for how in LIVE),
    ],
)
def test_what_is_altered_is_followed(shop: PostgresShop, how: str, live: bool) -> None:
    """While it runs and while it does not. No statement of the application's fails meanwhile."""
    key = "status, id" if how == "another key" else "id"
    select = f"SELECT * FROM orders ORDER BY {key}"

    def folded() -> bool:
        return sorted(shop.fold(), key=lambda row: row["id"]) == sorted(shop.rows(select), key=lambda row: row["id"])

    shop.do("UPDATE orders SET status = 'old shape' WHERE id = 2")
    if live:
        with shop.running() as running:
            running.eventually(lambda: any(event["op"] == "u" for event in shop.events()))
            shop.do(ALTERED[how])
            running.eventually(lambda: folded() and not shop.state().reading)
            shop.do("DELETE FROM orders WHERE id = 1")
            running.eventually(folded)
        assert running.raised is None
    else:
        if how == "delete changes":
            shop.run()
        shop.do(ALTERED[how])
        shop.run()
        shop.do("DELETE FROM orders WHERE id = 1")
        shop.run()
    assert folded()


def test_what_could_not_be_written_down_is_noticed_even_when_all_is_as_it_was(shop: PostgresShop) -> None:
    """Columns and names that came back, a right that was taken and given back: between two looks."""
    role = f"capture_{shop.database.name}"
    shop.do("DROP SCHEMA cdc_c CASCADE", f"CREATE ROLE {role} LOGIN PASSWORD 'p'")
    shop.do(f"GRANT SELECT, TRIGGER ON orders TO {role}; GRANT CREATE ON DATABASE {shop.database.name} TO {role}")
    try:
        shop.login = f"postgresql://{role}:p@{shop.url.rpartition('@')[2]}"
        shop.ask(Command(after_gap=True, tables=()))
        shop.run()
        for n, (away, back) in enumerate(
            (
                ("ALTER TABLE orders RENAME TO sold", "ALTER TABLE sold RENAME TO orders"),
                ("ALTER TABLE orders RENAME status TO state", "ALTER TABLE orders RENAME state TO status"),
                (f"REVOKE SELECT ON orders FROM {role}", f"GRANT SELECT ON orders TO {role}"),
                ("REVOKE USAGE ON SCHEMA public FROM PUBLIC", "GRANT USAGE ON SCHEMA public TO PUBLIC"),
            )
        ):
            shop.do(away, f"UPDATE {'sold' if n == 0 else 'orders'} SET n = {n}", back)
            shop.run()
            assert shop.fold() == shop.rows(), away
    finally:
        shop.do("DROP SCHEMA IF EXISTS cdc_c CASCADE", f"DROP OWNED BY {role}; DROP ROLE {role}")


@pytest.mark.full  # those of the same name of logs
def test_a_table_that_may_not_be_read_stops_no_other(shop: PostgresShop) -> None:
    """Neither at a start nor while it is followed; with its right it is taken up, and its rows are read."""
    role = f"capture_{shop.database.name}"
    shop.do(
        "DROP SCHEMA cdc_c CASCADE; CREATE TABLE other (id int PRIMARY KEY)", f"CREATE ROLE {role} LOGIN PASSWORD 'p'"
    )
    shop.do(f"GRANT SELECT, TRIGGER ON orders, other TO {role}")
    shop.do(f"GRANT CREATE ON DATABASE {shop.database.name} TO {role}")
    away, back = f"REVOKE SELECT ON orders FROM {role}", f"GRANT SELECT ON orders TO {role}"
    no_trigger = f"REVOKE TRIGGER ON orders FROM {role}"
    try:
        shop.tables = ("public.orders", "public.other")
        shop.login = f"postgresql://{role}:p@{shop.url.rpartition('@')[2]}"
        shop.ask(Command(after_gap=True, tables=()))
        shop.run()
        shop.do(away, "UPDATE orders SET n = 7; DELETE FROM orders WHERE id = 1; INSERT INTO other VALUES (1)")
        shop.run()
        assert shop.fold("other") == [{"id": 1}]
        with shop.running() as running:
            shop.do(back)
            running.eventually(lambda: shop.fold() == shop.rows())
            shop.do(away, "UPDATE orders SET n = 8; INSERT INTO other VALUES (2)")
            running.eventually(lambda: shop.fold("other") == [{"id": 1}, {"id": 2}])
            shop.do("DELETE FROM orders WHERE id = 2", back)
            running.eventually(lambda: shop.fold() == shop.rows())
        shop.do(no_trigger, "DELETE FROM orders WHERE id = 3; INSERT INTO other VALUES (3)")
        found = check.check(shop.config, shop.state()).findings
        assert [f.about for f in found if f.level is not Level.OK and "may not make triggers" in f.what] == [
            "table public.orders"
        ]
        assert not [f for f in found if f.level is Level.ERROR]
        shop.run()
        assert len(shop.fold("other")) == 3
        shop.do(f"GRANT TRIGGER ON orders TO {role}")
        shop.run()
        assert shop.fold() == shop.rows()
    finally:
        shop.do("DROP SCHEMA IF EXISTS cdc_c CASCADE; DROP TABLE other", f"DROP OWNED BY {role}; DROP ROLE {role}")


@pytest.mark.full  # that of SQLite
def test_what_cannot_be_captured_any_more_stops_no_other(shop: PostgresShop) -> None:
    laws.what_cannot_be_captured_any_more_stops_no_other(
        shop,
        "public",
        away="ALTER TABLE orders DROP CONSTRAINT orders_pkey",
        back="ALTER TABLE orders ADD PRIMARY KEY (id)",
    )


def test_a_session_that_has_its_plans_writes_on(shop: PostgresShop) -> None:
    """Its functions were planned for the older columns; also in a transaction that keeps its snapshot."""
    with closing(shop.connect()) as connection, connection.cursor() as writer:
        for n in range(10):
            writer.execute("UPDATE orders SET n = %s WHERE id = 1", (n,))
        for statement in ("DROP COLUMN n", "ADD COLUMN n text", "RENAME COLUMN status TO state", "RENAME TO sold"):
            shop.do(f"ALTER TABLE orders {statement}")
            table = "sold" if statement == "RENAME TO sold" else "orders"
            for isolation in ("READ COMMITTED", "REPEATABLE READ"):
                writer.execute(f"BEGIN ISOLATION LEVEL {isolation}; UPDATE {table} SET id = 50 WHERE id = 1")
                writer.execute(f"UPDATE {table} SET id = 1 WHERE id = 50; COMMIT")
            if table == "orders":
                shop.run()
                writer.execute("UPDATE orders SET id = 1 WHERE id = 1")
                shop.run()
                assert shop.fold() == shop.rows()
    with pytest.raises(OperatorError, match=r"public\.orders does not exist"):
        shop.run()


def test_another_role_writes_without_a_right_to_our_schema(shop: PostgresShop) -> None:
    """Its statement does not fail, and is captured; changes are not to be deleted, not even by their owner."""
    role = f"clerk_{shop.database.name}"
    shop.do(f"CREATE ROLE {role}; GRANT SELECT, INSERT, UPDATE, DELETE ON orders TO {role}")
    try:
        shop.do(f"SET ROLE {role}; INSERT INTO orders VALUES (8, 'theirs'); UPDATE orders SET n = 8; RESET ROLE")
        shop.run()
        assert shop.fold() == shop.rows()
        with pytest.raises(psycopg2.Error, match="permission denied"):
            shop.do(f"SET ROLE {role}; SELECT FROM cdc_c.changes")
        for statement in (
            "DELETE FROM cdc_c.changes", "TRUNCATE cdc_c.changes_1", "UPDATE cdc_c.changes SET seq = 1",
            "DELETE FROM cdc_c.missed", "SET session_replication_role = replica; DELETE FROM cdc_c.changes_1",
        ):  # fmt: skip
            with pytest.raises(psycopg2.Error, match="which it may not have read"):
                shop.do(statement)
    finally:
        shop.do(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_check_says_what_is_missing(postgres18: Database) -> None:
    """To a user who owns nothing: each right, with the statement that gives it; then it captures with these alone."""
    role = f"capture_{postgres18.name}"
    shop = PostgresShop(
        postgres18,
        ORDERS,
        ROWS,
        "CREATE TABLE keyless (v text); CREATE UNLOGGED TABLE quick (id int PRIMARY KEY)",
        "CREATE TABLE late (id int PRIMARY KEY DEFERRABLE); CREATE VIEW paid AS SELECT * FROM orders",
        f"CREATE ROLE {role} LOGIN PASSWORD 'p'; GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}",
        f"REVOKE TRIGGER ON orders FROM {role}",
        tables=tuple(f"public.{name}" for name in ("orders", "keyless", "quick", "late", "paid", "order")),
    )
    try:
        host = postgres18.url.rpartition("@")[2]
        shop.login = f"postgresql://{role}:p@{host}"
        found = {(f.level, f.about): f for f in check.check(shop.config, None).findings}
        for name, said in (
            ("keyless", "no primary key"), ("quick", "unlogged"), ("late", "DEFERRABLE"), ("paid", "a view"),
            ("order", "does not exist"),
        ):  # fmt: skip
            assert said in found[Level.ERROR, f"table public.{name}"].what
        shop.tables = ("public.orders",)
        wrong = [f for f in check.check(shop.config, None).findings if f.level is Level.ERROR]
        assert [("make a schema" in f.what, "make triggers" in f.what) for f in wrong] == [(True, False), (False, True)]
        with pytest.raises(OperatorError, match="may not make a schema"):
            shop.run()
        shop.do(*(str(f.fix) for f in wrong))
        found = check.check(shop.config, None).findings
        assert [f.what for f in found if f.level is not Level.OK and "session_replication_role" not in f.what] == []
        assert Level.WARNING in {f.level for f in found}, "it is not the owner"
        shop.run()
        shop.do("UPDATE orders SET n = 5; ALTER TABLE orders ADD COLUMN more int")
        shop.run()
        assert shop.fold() == shop.rows()
    finally:
        shop.do("DROP SCHEMA IF EXISTS cdc_c CASCADE", f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_a_copy_that_takes_the_name_of_the_database_is_a_gap(shop: PostgresShop) -> None:
    """Its transactions have numbers of the server's, as those that the position has behind it; the first stays one."""
    server, first = shop.login.rpartition("/")[0], shop.database
    admin, other = Database(f"{server}/postgres", "postgres"), Database(f"{server}/{first.name}_b", f"{first.name}_b")
    admin.execute(f"CREATE DATABASE {other.name} TEMPLATE {first.name}")
    other.execute("DELETE FROM orders WHERE id = 2", "UPDATE orders SET status = 'there' WHERE id = 1")
    first.execute("UPDATE orders SET status = 'here' WHERE id = 1")
    shop.run()
    shop.run()
    admin.execute(f"DROP DATABASE {first.name} WITH (FORCE)", f"ALTER DATABASE {other.name} RENAME TO {first.name}")
    with pytest.raises(GapError):
        shop.run()
    shop.ask(Command(after_gap=True, tables=()))
    shop.run()
    assert shop.fold() == shop.rows()
    shop.do("DELETE FROM orders WHERE id = 1")
    shop.run()
    assert shop.fold() == shop.rows()


_IDENTITIES = """
SELECT relname::text FROM pg_class
WHERE relnamespace = 'cdc_c'::regnamespace AND relkind = 'r' AND relreplident = 'f' ORDER BY 1
"""


def test_a_publication_of_all_tables(postgres18: Database) -> None:
    """It has the connector's too: what was read is deleted all the same, also by one that an older version made."""
    shop = PostgresShop(postgres18, ORDERS, ROWS)
    shop.do("CREATE PUBLICATION everything FOR ALL TABLES")
    shop.run()
    shop.do("UPDATE orders SET n = 5")
    shop.run()
    assert shop.select(_IDENTITIES) == [("changes_1",), ("missed",)], "as they were made: nothing was read again"
    shop.do(
        "ALTER TABLE cdc_c.changes_1 REPLICA IDENTITY DEFAULT", "ALTER TABLE cdc_c.missed REPLICA IDENTITY DEFAULT",
        "UPDATE orders SET n = 6",
    )  # fmt: skip
    shop.run()
    assert shop.fold() == shop.rows()
    shop.run()
    assert shop.select(CHANGES) == [(1,)], "the one that the position is known by"


def test_a_publication_that_comes(shop: PostgresShop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one the log has no row that is deleted; one that comes while it runs is met by the next start."""
    assert shop.select(_IDENTITIES) == []
    forget, came = ChangeLog.forget, list[str]()

    def coming(of: ChangeLog, at: Offset) -> bool:
        if not came:
            came.append("it")
            shop.do("CREATE PUBLICATION everything FOR ALL TABLES")
        return forget(of, at)

    monkeypatch.setattr(ChangeLog, "forget", coming)
    shop.do("UPDATE orders SET n = 5")
    with shop.running() as running:
        running.eventually(lambda: shop.select(_IDENTITIES) == [("changes_1",), ("changes_2",), ("missed",)])
    assert running.raised is None
    shop.do("UPDATE orders SET n = 6")
    shop.run()
    assert shop.fold() == shop.rows()
    assert shop.select("SELECT max(shape) FROM cdc_c.shapes") == [(2,)], "its rows were read again once"


@pytest.mark.parametrize("back", [pytest.param(10, marks=pytest.mark.full), 2])
def test_numbers_that_went_back_before_a_table_is_read_again(shop: PostgresShop, back: int) -> None:
    """What was not read yet would seem to be newer than the reading, and keep rows that have gone without a change."""
    shop.do("INSERT INTO orders SELECT n, 'new' FROM generate_series(11, 20) n")
    shop.do(f"SELECT setval('cdc_c.number', (SELECT last_value - {back} FROM cdc_c.number))")
    shop.do("ALTER TABLE orders DISABLE TRIGGER USER; DELETE FROM orders WHERE id > 10")
    with pytest.raises(GapError, match="numbers went back"):
        shop.run()
    assert all(row["id"] < 10 or shop.state().reading == {} for row in shop.fold())


TAMPERED = {
    "schema dropped": ("DROP SCHEMA cdc_c CASCADE", "gone"),
    "not whole": ("DROP TABLE cdc_c.shapes", "not whole"),
    "made again": ("UPDATE cdc_c.log SET id = 'another'", "made again"),
    "change table dropped": ("DROP TABLE cdc_c.changes_1", "another database"),
    "of a dump": ("UPDATE cdc_c.log SET made = 1", "not whole"),
    "behind": ("ALTER SEQUENCE cdc_c.number RESTART WITH 1", "behind the position"),
    "numbers given twice": (
        (
            "UPDATE orders SET n = 1; SELECT setval('cdc_c.number', (SELECT last_value - 1 FROM cdc_c.number));"
            " UPDATE orders SET n = 2; UPDATE orders SET n = 3"
        ),
        "numbers went back",
    ),
    "numbers too great": ("SELECT setval('cdc_c.number', 9000000000000000000)", "numbers too great"),
    "another database": (
        "SET cdc.forgets = 'c'; UPDATE cdc_c.changes SET at = now() WHERE seq = (SELECT min(seq) FROM cdc_c.changes)",
        "another database",
    ),
}


TOO = ("schema dropped", "numbers given twice", "another database")


@pytest.mark.parametrize("how", [pytest.param(how, marks=() if how in TOO else pytest.mark.full) for how in TAMPERED])
def test_what_cannot_be_followed_is_a_verdict(shop: PostgresShop, how: str) -> None:
    """With a way out, which is followed."""
    script, said = TAMPERED[how]  # a number that was given twice shows when it is read
    laws.what_cannot_be_followed_is_a_verdict(shop, script, said, by_check=how != "numbers given twice")


@pytest.mark.parametrize("point", laws.POINTS)
def test_killed_at_any_step_each_event_comes_once(postgres18: Database, point: str) -> None:
    """And the application writes meanwhile, with a transaction that stays open across runs."""
    shop = PostgresShop(postgres18, ORDERS, "INSERT INTO orders SELECT n, 'old' FROM generate_series(1, 7) n")
    laws.killed_at_any_step(shop, point, range(1, 4), lambda time: f"id % 3 = {time} % 3")
    with laws.transaction(shop, "UPDATE orders SET status = 'late' WHERE id = 7") as late:
        laws.killed_at_any_step(shop, point, range(4, 6), lambda time: f"id % 3 = {time} % 3 AND id <> 7")
        late.connection.commit()
    laws.killed_at_any_step(shop, point, range(6, 7), lambda time: f"id % 3 = {time} % 3")
    laws.each_event_came_once(shop)


AT_ONCE = """
CREATE TABLE nine (LIKE orders INCLUDING ALL); INSERT INTO nine VALUES (90, '', 9);
ALTER TABLE orders ATTACH PARTITION nine FOR VALUES IN (9)"""


def test_partitions(postgres18: Database) -> None:
    """Rows that move, partitions that come, come with rows, are truncated by themselves, or go."""
    shop = PostgresShop(
        postgres18,
        "CREATE TABLE orders (id int, status text, n int, PRIMARY KEY (id, n)) PARTITION BY LIST (n)",
        "CREATE TABLE one PARTITION OF orders FOR VALUES IN (1)",
        "CREATE TABLE two PARTITION OF orders FOR VALUES IN (2)",
        "INSERT INTO orders VALUES (1, 'a', 1), (2, 'b', 2), (3, 'c', 2)",
    )
    shop.run()
    before = len(shop.events())
    shop.do("UPDATE orders SET n = 2 WHERE id = 1", "UPDATE two SET status = 'by itself' WHERE id = 2",
            "CREATE TABLE three PARTITION OF orders FOR VALUES IN (3)",
            "INSERT INTO three VALUES (4, 'new', 3)")  # fmt: skip
    shop.run()
    assert shop.fold() == shop.rows()
    assert len(shop.events()) == before + 4, "a partition that is new asks for nothing"
    shop.do("CREATE TABLE four (id int, status text, n int, PRIMARY KEY (id, n))", "INSERT INTO four VALUES (5, '', 4)")
    for statement in (
        "CREATE TABLE five PARTITION OF orders DEFAULT; INSERT INTO orders VALUES (50, '', 5); DROP TABLE five",
        AT_ONCE,
        "ALTER TABLE orders ATTACH PARTITION four FOR VALUES IN (4)",
        "TRUNCATE two",
        "ALTER TABLE orders DETACH PARTITION three",
        "ALTER TABLE one DISABLE TRIGGER USER; INSERT INTO orders VALUES (6, 'unseen', 1)",
    ):
        shop.do(statement)
        shop.run()
        shop.run()  # which compares what the changes have told of
        assert shop.fold() == shop.rows(), statement
    with shop.running() as running:
        shop.do("CREATE TABLE five PARTITION OF orders FOR VALUES IN (5)", "INSERT INTO orders VALUES (50, '', 5)")
        running.eventually(lambda: shop.fold() == shop.rows())
        shop.do("DROP TABLE five")
        running.eventually(lambda: shop.fold() == shop.rows())
        shop.do("CREATE TABLE five PARTITION OF orders FOR VALUES IN (5); INSERT INTO orders VALUES (51, '', 5);"
                "ALTER TABLE orders DETACH PARTITION five")  # fmt: skip
        running.eventually(lambda: shop.fold() == shop.rows())
    assert running.raised is None


def test_numbers_that_sessions_hold_in_store_are_no_order(shop: PostgresShop) -> None:
    """Somebody has given the sequence a cache: each session draws from its own, and the later change is the lower."""
    shop.do("ALTER SEQUENCE cdc_c.number CACHE 50")
    with closing(shop.connect()) as low, closing(shop.connect()) as high, low.cursor() as one, high.cursor() as other:
        one.execute("UPDATE orders SET n = 1 WHERE id = 1")
        other.execute("UPDATE orders SET status = 'early' WHERE id = 1")
        one.execute("UPDATE orders SET status = 'late' WHERE id = 1")
        shop.run()
        assert shop.fold() == shop.rows()
        other.execute("UPDATE orders SET status = 'early' WHERE id = 2")
        one.execute("UPDATE orders SET status = 'late' WHERE id = 2")
    shop.run()
    assert shop.fold() == shop.rows()


def test_two_phases_and_savepoints(shop: PostgresShop) -> None:
    """A prepared transaction is given when it is committed, a savepoint that was rolled back is not."""
    shop.do(
        "BEGIN; UPDATE orders SET n = 1; SAVEPOINT a; DELETE FROM orders; ROLLBACK TO a; SAVEPOINT b;"
        " UPDATE orders SET n = 2 WHERE id = 1; RELEASE b; COMMIT"
    )
    shop.do("BEGIN; UPDATE orders SET status = 'prepared' WHERE id = 2; PREPARE TRANSACTION 'p'")
    shop.run()
    assert all(event["after"]["status"] != "prepared" for event in shop.events())
    shop.do("COMMIT PREPARED 'p'")
    shop.run()
    assert shop.fold() == shop.rows()
    assert len({e["transaction"]["id"] for e in shop.events() if e["transaction"]}) == 2


def test_a_large_transaction_is_whole(postgres18: Database) -> None:
    """Read page by page, of two tables, in the order in which it was written."""
    other = "CREATE TABLE other (id int PRIMARY KEY, status text)"
    shop = PostgresShop(postgres18, ORDERS, other, tables=("public.orders", "public.other"))
    shop.run()
    insert = "INSERT INTO {0} (id, status) SELECT n, 'new' FROM generate_series({1}, {1} + 2999) n"
    shop.do(
        f"BEGIN; {insert.format('orders', 1)}; {insert.format('other', 1)}; {insert.format('orders', 5001)}; COMMIT"
    )
    laws.two_tables_in_the_order_of_writing(shop)


def test_what_replication_writes_is_captured(shop: PostgresShop) -> None:
    """It calls no triggers but those that are called always; also after they were switched off and on again."""
    write = "SET session_replication_role = replica; UPDATE orders SET n = {}; DELETE FROM orders WHERE id = {}"
    shop.do(write.format(7, 1))
    shop.run()
    assert shop.fold() == shop.rows()
    shop.do("ALTER TABLE orders DISABLE TRIGGER ALL; ALTER TABLE orders ENABLE TRIGGER ALL")
    shop.run()
    shop.do(write.format(8, 2))
    shop.run()
    assert shop.fold() == shop.rows()


PASSED_ON = {
    "update": "UPDATE orders SET id = id - 1",
    "delete": "WITH gone AS (DELETE FROM orders WHERE id = 1 RETURNING id) "
    "UPDATE orders o SET id = gone.id FROM gone WHERE o.id = 3",
    "insert": "MERGE INTO orders o USING (VALUES (2, 9), (5, 2)) AS n (was, id) ON o.id = n.was "
    "WHEN MATCHED THEN UPDATE SET id = n.id WHEN NOT MATCHED THEN INSERT (id, status) VALUES (n.id, 'hidden')",
}


@pytest.mark.parametrize("statement", PASSED_ON.values(), ids=PASSED_ON)
@pytest.mark.parametrize("some", [False, True])
def test_keys_that_a_statement_passes_on(postgres18: Database, statement: str, *, some: bool) -> None:
    """A row that is not published may have the key of one that was; the condition came when triggers were there."""
    shop = PostgresShop(postgres18, ORDERS, ROWS.replace("'c'", "'hidden'"))
    shop.run()
    if some:
        shop.rules = {"where": {"public.orders": "status <> 'hidden'"}}
        shop.run()
    shop.do(statement)
    shop.run()
    there = " WHERE status <> 'hidden'" if some else ""
    assert shop.fold() == shop.rows(f"SELECT * FROM orders{there} ORDER BY id")
    shop.do("UPDATE orders SET status = 'seen' WHERE id = 1")
    shop.run()
    assert shop.fold() == shop.rows(f"SELECT * FROM orders{there} ORDER BY id")


def test_who_writes_to_several_tables_is_in_no_deadlock_with_triggers_that_are_made_again(
    postgres18: Database,
) -> None:
    """Each table's are taken away and made by themselves: the application's statement waits, and does not fail."""
    other = "CREATE TABLE other (id int PRIMARY KEY, n int)"
    rows = "INSERT INTO other VALUES (1, 1)"
    shop = PostgresShop(postgres18, ORDERS, ROWS, other, rows, tables=("public.orders", "public.other"))
    shop.run()
    waits = "SELECT count(*)::int FROM pg_stat_activity WHERE application_name = 'cdc c' AND wait_event_type = 'Lock'"
    for first, second in (("orders", "other"), ("other", "orders")):
        with (
            laws.transaction(shop, f"SELECT count(*) FROM {first}") as writer,
            closing(open_source(shop.config)) as source,
            ThreadPoolExecutor(1) as thread,
        ):
            source.connect()
            held = thread.submit(source.hold, source.tables())
            while shop.select(waits) == [(0,)] and not held.done():
                time.sleep(0.01)
            writer.execute(f"UPDATE {second} SET n = 2")
            writer.connection.commit()
            held.result()


def test_connectors_side_by_side_and_taking_one_away(shop: PostgresShop) -> None:
    """What one has made goes with its schema; the other and the application do not notice."""
    with closing(open_source(replace(shop.config, name="other"))) as second:
        second.connect()
        second.hold(second.tables())
        shop.do("UPDATE orders SET n = 1")
        shop.do('DROP SCHEMA "cdc_other" CASCADE')
        shop.do("UPDATE orders SET n = 2")
    shop.run()
    assert shop.fold() == shop.rows()
    assert shop.select("SELECT DISTINCT split_part(tgname, ':', 2) FROM pg_trigger WHERE tgname LIKE 'cdc:%'") == [
        ("c",)
    ]


def test_status_and_token_and_check_of_one_that_has_run(shop: PostgresShop) -> None:
    """Where the changes end, and that a start would go on."""
    behind = laws.status_and_token_and_check_of_one_that_has_run(shop)
    assert shop.state().commit >> ROOM <= (behind >> ROOM) + 1
    laws.a_long_name_is_refused(shop)


def test_rows_too_wide_for_two_images(postgres18: Database, caplog: pytest.LogCaptureFixture) -> None:
    """The application's statement does not fail where a change's row would be too big; what is missed is read again.

    A table with too many columns for a change table is left out.
    """
    many, too_many = (", ".join(f"c{n} bigint NOT NULL DEFAULT 9" for n in range(most)) for most in (600, 900))
    shop = PostgresShop(
        postgres18, f"CREATE TABLE orders (id int PRIMARY KEY, {many})", "INSERT INTO orders (id) VALUES (1)",
        f"CREATE TABLE wide (id int PRIMARY KEY, {too_many})", tables=("public.*",),
    )  # fmt: skip
    shop.run()
    shop.do("UPDATE orders SET c1 = 2", "INSERT INTO orders (id) VALUES (2)")
    shop.run()
    shop.run()
    assert shop.fold() == shop.rows()
    assert shop.state().tables == ("public.orders",)
    shop.tables = ("public.orders", "public.wide")
    shop.run()  # it has run before: the others go on
    assert shop.state().tables == ("public.orders",)
    assert "wide has 901 columns, and a change table can be made for 797 at most" in caplog.text
