"""Tables that change under a connector: keys, names, columns and values that DDL rewrote without a row event.

The topic follows; where no event says what the rows are now, the table's rows are asked for again, with the reason.
"""

from __future__ import annotations

import itertools
import json
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest

from sinks.topics.names import table_topic
from tests.conftest import Database
from tests.integration.connector import Connector
from tests.integration.running import Running, eventually, ordered, rows, same, standing
from tests.integration.stories import WIDE, schemas
from tests.pushes import some_each_push

AGAIN = "its rows are read again"


def restarted(connector: Connector, database: Database, *statements: str) -> str:
    """Run, change something while it is stopped, run again; what it said then."""
    connector.catch_up()
    database.execute(*statements)
    return connector.catch_up()


def asked(stderr: str) -> list[str]:
    """Why rows were asked for again."""
    return [line.split("table ", 1)[1].removesuffix(f": {AGAIN}") for line in stderr.splitlines() if AGAIN in line]


def after(connector: Connector, table: str = "public.t") -> list[tuple[str, bytes]]:
    """Operation and key of each event of the log, in order; what was read again is left out."""
    found = [r for r in connector.records(table) if r.value is not None and r.value["transaction"] is not None]
    found.sort(key=lambda r: r.value["source"]["position"] if r.value else "")
    return [(r.value["op"], r.raw_key) for r in found if r.value]


# --- Keys -------------------------------------------------------------------------------------------------------------


@pytest.mark.full  # the next one renames it twice
def test_key_column_renamed_before_its_rows_were_read(
    postgres18: Database, kafka: str, prefix: str, tmp_path: Path
) -> None:
    """Rows are keyed as at their time: a rename that came after them does not reach back. Then they are read again."""
    postgres18.execute("CREATE TABLE t (a int, b int, v int, PRIMARY KEY (b, a))", "INSERT INTO t VALUES (1, 2, 0)")
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, ["public.t"])
    restarted(connector, postgres18, "UPDATE t SET v = 1", "ALTER TABLE t RENAME COLUMN a TO aa")
    assert after(connector) == [("u", b'{"b":2,"a":1}')]
    assert connector.fold("public.t") == {b'{"b":2,"aa":1}': {"aa": 1, "b": 2, "v": 1}}


@pytest.mark.parametrize("full", some_each_push([False, True], False), ids=["default", "full"])
def test_key_column_renamed_twice_before_its_rows_were_read(
    full: bool, postgres18: Database, kafka: str, prefix: str, tmp_path: Path
) -> None:
    """Nor does the catalog know the name between the two; the key's order is that of the column's first name."""
    postgres18.execute(
        "CREATE TABLE t (a int, b int, v int, PRIMARY KEY (b, a))",
        f"ALTER TABLE t REPLICA IDENTITY {'FULL' if full else 'DEFAULT'}",
        "INSERT INTO t VALUES (1, 2, 0)",
    )
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, ["public.t"])
    restarted(
        connector,
        postgres18,
        "UPDATE t SET v = 1",
        "ALTER TABLE t RENAME COLUMN a TO between",
        "UPDATE t SET v = 2",
        "ALTER TABLE t RENAME COLUMN between TO now",
        "UPDATE t SET v = 3",
    )
    assert after(connector) == [
        ("u", b'{"b":2,"a":1}'),
        ("u", b'{"b":2,"between":1}'),
        ("u", b'{"b":2,"now":1}'),
    ]


def test_key_column_renamed_under_identity_full(postgres18: Database, kafka: str, prefix: str, tmp_path: Path) -> None:
    """With REPLICA IDENTITY FULL too, rows from before the rename of a key column can be read after it."""
    postgres18.execute(
        "CREATE TABLE t (a int PRIMARY KEY, v int)",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "INSERT INTO t VALUES (1, 0)",
    )
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, ["public.t"])
    restarted(connector, postgres18, "UPDATE t SET v = 1", "ALTER TABLE t RENAME COLUMN a TO aa")
    assert after(connector) == [("u", b'{"a":1}')]
    assert connector.fold("public.t") == {b'{"aa":1}': {"aa": 1, "v": 1}}


MOVE = "ALTER TABLE t DROP CONSTRAINT t_pkey; ALTER TABLE t ADD PRIMARY KEY"
REPLACED_KEYS = {
    "another column": ((), f"BEGIN; {MOVE} (b); COMMIT", b'{"b":110}', "its key is now (b), it was (a)"),
    "another name": ((), "ALTER TABLE t RENAME COLUMN a TO b2", b'{"b2":1}', "its key is now (b2), it was (a)"),
    "one more": ((), f"BEGIN; {MOVE} (b, a); COMMIT", b'{"b":110,"a":1}', "its key is now (b, a), it was (a)"),
    "under FULL": (
        ("ALTER TABLE t REPLICA IDENTITY FULL",),
        f"BEGIN; {MOVE} (b); COMMIT",
        b'{"b":110}',
        "its key is now (b), it was (a)",
    ),
    "an index": (
        ("CREATE UNIQUE INDEX u ON t (b)",),
        "ALTER TABLE t REPLICA IDENTITY USING INDEX u",
        b'{"b":110}',
        "its key is now (b), it was (a)",
    ),
}


@pytest.mark.parametrize(
    "case",
    some_each_push(
        itertools.product(REPLACED_KEYS, (True, False)),
        ("another column", True),
        ("under FULL", False),
        ("another name", True),
    ),
    ids=str,
)
def test_key_replaced(case: tuple[str, bool], postgres18: Database, kafka: str, prefix: str, tmp_path: Path) -> None:
    """Events go on under the new key, and the rows are asked for again, so that no record stays under the old one."""
    before, statement, key, reason = REPLACED_KEYS[case[0]]
    postgres18.execute(
        "CREATE TABLE t (a int PRIMARY KEY, b int NOT NULL, v int)", *before, "INSERT INTO t VALUES (1, 10), (2, 20)"
    )
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, ["public.t"])
    change = (statement, "UPDATE t SET b = b + 100 WHERE b = 10")
    if not case[1]:
        said = restarted(connector, postgres18, *change)
    else:
        connector.catch_up()
        with Running(connector) as run:
            run.await_following()
            postgres18.execute("UPDATE t SET v = 1")
            eventually(lambda: len(after(connector)) == 2, "the updates under the old key")
            postgres18.execute(*change)
            run.await_line(AGAIN)
            eventually(lambda: key in connector.fold("public.t"), "a record under the new key")
            said = run.stderr
    assert f"public.t: {reason}" in asked(said)
    newest = connector.fold("public.t")[key]
    assert [newest] == [row for row in rows(postgres18, "SELECT * FROM t") if row["b"] == 110]
    described = schemas(connector, "public", "t")
    assert [v["key"] for v in described] == [["a"], list(json.loads(key))]
    # and the change is told once: the next start has nothing to say of it
    assert asked(connector.catch_up()) == []


@pytest.mark.parametrize(
    "when",
    some_each_push(
        ["stopped", "behind rows of the old key", "while idle", "the key alone, while idle"],
        "behind rows of the old key",
        "the key alone, while idle",
    ),
)
def test_key_replaced_where_nothing_is_written(
    when: str, database: Database, kafka: str, prefix: str, tmp_path: Path
) -> None:
    """No event says so: rows are read again where all that the log may have under the old key is written."""
    database.execute("CREATE TABLE t (a int PRIMARY KEY, b int NOT NULL)", "INSERT INTO t VALUES (1, 10), (2, 20)")
    connector = Connector(tmp_path, prefix, database.url, kafka, ["public.t"])
    altered = [f"BEGIN; {MOVE} (b); COMMIT"]
    if "alone" not in when:
        altered.append("ALTER TABLE t ADD COLUMN d int NOT NULL DEFAULT 5")
    connector.catch_up()
    if "while idle" in when:
        with Running(connector) as run:
            run.await_following()
            database.execute(*altered)
            run.await_line(AGAIN)
            eventually(lambda: b'{"b":10}' in connector.fold("public.t"), "a record under the new key")
            eventually(lambda: b'{"a":1}' not in connector.fold("public.t"), "none under the old one")
            said = run.stderr
    else:
        written = (
            "UPDATE t SET b = 30 WHERE a = 1",
            "INSERT INTO t VALUES (3, 5), (4, 6)",
            "DELETE FROM t WHERE a = 3",
        )
        database.execute(*(written if when != "stopped" else ()), *altered)
        said = connector.catch_up()
    assert asked(said) == ["public.t: its key is now (b), it was (a)"]
    same(connector, database, "public.t")
    assert asked(connector.catch_up()) == []


def test_another_key_by_the_file_where_nothing_is_written(
    postgres18: Database, kafka: str, prefix: str, tmp_path: Path
) -> None:
    """Nor does the server's log say that."""
    postgres18.execute("CREATE TABLE t (a int PRIMARY KEY, b int NOT NULL UNIQUE)", "INSERT INTO t VALUES (1, 10)")
    postgres18.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    first = Connector(tmp_path, prefix, postgres18.url, kafka, ["public.t"])
    first.catch_up()
    table: Any = {"table": "public.t", "key": ["b"]}
    second = Connector(tmp_path, prefix, postgres18.url, kafka, [table])
    assert asked(second.catch_up()) == ["public.t: its key is now (b), it was (a)"]
    assert second.fold("public.t") == {b'{"b":10}': {"a": 1, "b": 10}}
    assert asked(second.catch_up()) == []


def test_rows_written_while_there_is_no_key(postgres18: Database, kafka: str, prefix: str, tmp_path: Path) -> None:
    """Between the old key and the new one rows can still be added: they are followed under the old one."""
    postgres18.execute("CREATE TABLE t (a int PRIMARY KEY, b int NOT NULL)", "INSERT INTO t VALUES (1, 10)")
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, ["public.t"])
    restarted(
        connector,
        postgres18,
        "ALTER TABLE t DROP CONSTRAINT t_pkey",
        "INSERT INTO t VALUES (2, 20)",
        "ALTER TABLE t ADD COLUMN c int",
        "INSERT INTO t VALUES (3, 30)",
        "ALTER TABLE t ADD PRIMARY KEY (b)",
        "INSERT INTO t VALUES (4, 40)",
    )
    assert after(connector) == [("c", b'{"a":2}'), ("c", b'{"b":30}'), ("c", b'{"b":40}')]


# --- Names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seen", some_each_push(["by a row", "while idle", "at the start"], "while idle"))
def test_table_renamed(seen: str, database: Database, kafka: str, prefix: str, tmp_path: Path) -> None:
    """It stops with what to do, and has lost nothing: under the new name the table is read whole, and followed."""
    database.execute("CREATE TABLE orders (id int PRIMARY KEY, v text)", "INSERT INTO orders VALUES (1, 'a'), (2, 'b')")
    connector = Connector(tmp_path, prefix, database.url, kafka, ["public.orders"])
    connector.catch_up()
    rename = ("UPDATE orders SET v = 'last' WHERE id = 1", "ALTER TABLE orders RENAME TO purchases")
    if seen == "at the start":
        database.execute(*rename)
        done = connector.here("run", "FILE", "--until-caught-up")
        assert (done.returncode, done.stdout) == (1, "")
        assert "table public.orders does not exist" in done.stderr
    else:
        with Running(connector) as run:
            run.await_following()
            database.execute(*rename, *(["DELETE FROM purchases WHERE id = 2"] if seen == "by a row" else []))
            assert run.ended() == 4
            assert "table renamed: public.orders is public.purchases now" in run.stderr
            assert "in source.tables write public.purchases in place of public.orders" in run.stderr
        assert standing(connector).tables == ("public.orders",)
    database.execute("INSERT INTO purchases VALUES (3, 'c')")
    renamed = Connector(tmp_path, prefix, database.url, kafka, ["public.purchases"])
    renamed.catch_up()
    database.execute("UPDATE purchases SET v = 'd' WHERE id = 3")
    renamed.catch_up()
    same(renamed, database, "public.purchases")
    assert {r.topic for r in renamed.records("public.purchases")} == {table_topic(prefix, "public", "purchases")}


def test_table_renamed_within_a_pattern(database: Database, kafka: str, prefix: str, tmp_path: Path) -> None:
    """Where the configuration names the new name too, it goes on by itself in a topic of that name."""
    database.execute("CREATE TABLE o_1 (id int PRIMARY KEY, v text)", "INSERT INTO o_1 VALUES (1, 'a'), (2, 'b')")
    connector = Connector(tmp_path, prefix, database.url, kafka, ["public.o_*"])
    connector.catch_up()
    with Running(connector) as run:
        run.await_following()
        database.execute(
            "UPDATE o_1 SET v = 'last' WHERE id = 1",
            "ALTER TABLE o_1 RENAME TO o_2",
            "DELETE FROM o_2 WHERE id = 2",
            "INSERT INTO o_2 VALUES (3, 'c')",
        )
        run.await_line("table renamed: public.o_1 is public.o_2 now: it is taken up under that name")
        eventually(lambda: standing(connector).tables == ("public.o_2",), "the table under its new name")
    connector.catch_up()
    same(connector, database, "public.o_2")


def test_table_renamed_out_of_a_pattern(postgres18: Database, kafka: str, prefix: str, tmp_path: Path) -> None:
    """A restart does not pass over what stopped it: each start says so, until the file says what is meant."""
    postgres18.execute(
        "CREATE TABLE o_1 (id int PRIMARY KEY, v text)",
        "CREATE TABLE o_2 (id int PRIMARY KEY, v text)",
        "INSERT INTO o_1 VALUES (1, 'a')",
    )
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, ["public.o_*"])
    connector.catch_up()
    postgres18.execute("ALTER TABLE o_1 RENAME TO archive", "INSERT INTO archive VALUES (2, 'b')")
    for _ in range(2):
        done = connector.here("run", "FILE", "--until-caught-up")
        assert done.returncode == 4
        assert "table renamed: public.o_1 is public.archive now, which source.tables does not name" in done.stderr
    left_out = Connector(tmp_path, prefix, postgres18.url, kafka, ["public.o_*", "!public.o_1"])
    assert "o_1" not in left_out.catch_up()
    taken = Connector(tmp_path, prefix, postgres18.url, kafka, ["public.o_*", "public.archive"])
    taken.catch_up()
    same(taken, postgres18, "public.archive")


SWAP = "BEGIN; ALTER TABLE orders RENAME TO orders_old; ALTER TABLE fresh RENAME TO orders; COMMIT"


@pytest.mark.full  # cases of names that are taken from another, and of tables that are made again
def test_tables_swapped(postgres18: Database, kafka: str, prefix: str, tmp_path: Path) -> None:
    """A table that takes another's name is not taken for it: it stops, and at the next start its rows are read."""
    postgres18.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, v text)",
        "CREATE TABLE fresh (id int PRIMARY KEY, v text)",
        "INSERT INTO orders VALUES (1, 'old')",
        "INSERT INTO fresh VALUES (2, 'new')",
    )
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, ["public.orders"])
    connector.catch_up()
    with Running(connector) as run:
        run.await_following()
        postgres18.execute(SWAP, "INSERT INTO orders VALUES (3, 'new')")  # not in the log: the other one was published
        assert run.ended() == 4
        assert "table renamed: public.orders is public.orders_old now" in run.stderr
        assert f"ALTER PUBLICATION cdc_{prefix} ADD TABLE ONLY public.orders" in run.stderr
    (reason,) = asked(connector.catch_up())
    assert reason.startswith("public.orders: its rows were rewritten without events, or another table has taken")
    assert ordered(connector.fold("public.orders").values()) == rows(postgres18, "SELECT * FROM orders ORDER BY id")


@pytest.mark.parametrize("rows_come", some_each_push([True, False], False))
def test_table_made_anew_in_a_publication_of_all(
    rows_come: bool, postgres18: Database, kafka: str, prefix: str, tmp_path: Path
) -> None:
    """The topic holds rows of the table before it: they are asked for again, whether a row comes or not."""
    create = "CREATE TABLE t (id int PRIMARY KEY, v text)"
    postgres18.execute(
        create,
        "INSERT INTO t VALUES (1, 'old')",
        f"CREATE PUBLICATION cdc_{prefix} FOR ALL TABLES WITH (publish_via_partition_root = true)",
    )
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, ["public.t"])
    said = restarted(
        connector,
        postgres18,
        "DROP TABLE t",
        create,
        *(["INSERT INTO t VALUES (2, 'new')"] if rows_come else []),
    )
    assert set(asked(said)) == {"public.t: its rows were rewritten without events, or another table has taken its name"}


# --- Columns and values -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", some_each_push(["stopped", "in the stream"], "in the stream"))
def test_wide_column_rewritten(how: str, database: Database, kafka: str, prefix: str, tmp_path: Path) -> None:
    """A rewrite of out-of-line values (ALTER TYPE … USING) leaves no event: what was known before is not used.

    What the events do not say is asked of the source: also for rows that change keys, or are gone by then.
    """
    body = WIDE.replace("'{0}'", "k::text")
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, n int, body text)",
        "ALTER TABLE t ALTER COLUMN body SET STORAGE EXTERNAL",
        f"INSERT INTO t SELECT k, 0, {body} FROM generate_series(1, 6) k",
    )
    connector = Connector(tmp_path, prefix, database.url, kafka, ["public.t"])
    connector.catch_up()
    rewrite = (
        "UPDATE t SET n = 1",
        "ALTER TABLE t ALTER COLUMN body TYPE bytea USING decode(body, 'hex')",
        "UPDATE t SET n = 2 WHERE id < 6",
        "UPDATE t SET id = -1 WHERE id = 1; UPDATE t SET id = 1 WHERE id = 2; UPDATE t SET id = 2 WHERE id = -1",
        "UPDATE t SET id = 10 WHERE id = 3",
        "DELETE FROM t WHERE id = 4",
        "UPDATE t SET n = 3 WHERE id = 10",
    )
    if how == "stopped":
        database.execute(*rewrite)
        said = connector.catch_up()
    else:
        with Running(connector) as run:
            run.await_following()
            database.execute(*rewrite)
            run.await_line(AGAIN)
            eventually(lambda: any(r["n"] == 3 for r in connector.fold("public.t").values()), "the last update")
            said = run.stderr
    assert any("its rows were rewritten without events" in reason for reason in asked(said))
    touched = [row for row in connector.fold("public.t").values() if row["id"] != 6]
    found = ordered({**row, "body": b64decode(row["body"]).hex()} for row in touched)
    assert found == ordered(rows(database, "SELECT id, n, encode(body, 'hex') AS body FROM t WHERE id <> 6"))
    assert [len(row["body"]) for row in found] == [12_800] * 4
    assert len({row["body"] for row in found}) == 4


def test_a_partitioned_table_rewritten_is_noticed(database: Database, kafka: str, prefix: str, tmp_path: Path) -> None:
    """By the files of its partitions, of which one more or less is no reason."""
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
        "CREATE TABLE t_1 PARTITION OF t FOR VALUES FROM (0) TO (10)",
        "INSERT INTO t VALUES (1, 'a')",
    )
    connector = Connector(tmp_path, prefix, database.url, kafka, ["public.t"])
    said = restarted(
        connector,
        database,
        "CREATE TABLE t_2 PARTITION OF t FOR VALUES FROM (10) TO (20)",
        "INSERT INTO t VALUES (11, 'b')",
    )
    assert asked(said) == []
    database.execute("ALTER TABLE t ALTER COLUMN v TYPE text USING upper(v)")
    assert len(asked(connector.catch_up())) == 1


@pytest.mark.full  # test_tables_that_cannot_be_captured_for_a_moment_are_waited_for
@pytest.mark.parametrize("tables", [["public.t", "public.u"], ["public.*"]], ids=str)
def test_a_dump_restored_while_it_runs(
    tables: list[str], postgres18: Database, kafka: str, prefix: str, tmp_path: Path
) -> None:
    """Tables are dropped, and made again without their keys, which come last: until then it waits for them."""
    made = ("CREATE TABLE t (id int NOT NULL, v text)", "CREATE TABLE u (id int NOT NULL, v text)")
    keys = ("ALTER TABLE t ADD PRIMARY KEY (id)", "ALTER TABLE u ADD PRIMARY KEY (id)")
    postgres18.execute(*made, *keys, "INSERT INTO t VALUES (1, 'x'), (2, 'y')", "INSERT INTO u VALUES (1, 'x')")
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, tables, as_owner=True)
    with Running(connector) as run:
        run.await_following()
        postgres18.execute(f"DROP TABLE t, u; {made[0]}; INSERT INTO t VALUES (2, 'z'), (3, '')")
        run.await_line(
            "u does not exist; trying" if "public.u" in tables else "its rows cannot be told apart in a topic; trying"
        )
        postgres18.execute(made[1], *keys)
        run.await_line("table public.t was read while the log was followed: 2 rows, 1 keys deleted")
        run.await_line("table public.u was read while the log was followed: 0 rows, 1 keys deleted")
        same(connector, postgres18, "public.t")


def test_ddl_that_nobody_writes_after(postgres18: Database, kafka: str, prefix: str, tmp_path: Path) -> None:
    """The log has nothing of it before the next row: it is noticed while the connector runs, without one."""
    postgres18.execute(
        *(f"CREATE TABLE {t} (id int PRIMARY KEY, v text)" for t in "abc"),
        *(f"INSERT INTO {t} VALUES (1, 'x'), (2, 'y')" for t in "abc"),
        "CREATE TABLE d (id int PRIMARY KEY, v int, w int GENERATED ALWAYS AS (v * 2) STORED)",
        "INSERT INTO d VALUES (1, 1), (2, 2)",
        f"CREATE PUBLICATION cdc_{prefix} FOR TABLE a, b, c, d"
        " WITH (publish_via_partition_root = true, publish_generated_columns = stored)",
    )
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, [f"public.{t}" for t in "abcd"])
    with Running(connector) as run:
        run.await_following()

        def are_there() -> bool:
            return all(
                ordered(connector.fold(f"public.{t}").values()) == ordered(rows(postgres18, f"SELECT * FROM {t}"))
                for t in "abcd"
            )

        for statements in (
            ["ALTER TABLE d ALTER COLUMN w SET EXPRESSION AS (v * 5)"],  # by itself: a look finds all there is
            [
                "ALTER TABLE a ALTER COLUMN v TYPE text USING upper(v)",
                "ALTER TABLE b ADD COLUMN w int DEFAULT 7",
                "ALTER TABLE c RENAME COLUMN v TO w",
            ],
        ):
            postgres18.execute(*statements)
            eventually(are_there, "each topic is its table")
        assert run.process.poll() is None, run.stderr


@pytest.mark.full  # test_ddl_that_nobody_writes_after
def test_a_table_becomes_a_partition_and_nobody_writes(
    postgres18: Database, kafka: str, prefix: str, tmp_path: Path
) -> None:
    """The publication carries it by its root alone from then on, which is no sign that somebody took it out."""
    postgres18.execute(
        "CREATE TABLE pa (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
        "CREATE TABLE pa_1 PARTITION OF pa FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE pb (id int PRIMARY KEY, v text)",
        "INSERT INTO pa VALUES (1, 'a')",
        "INSERT INTO pb VALUES (11, 'b')",
    )
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, ["public.p*"])
    with Running(connector) as run:
        run.await_following()
        postgres18.execute("ALTER TABLE pa ATTACH PARTITION pb FOR VALUES FROM (10) TO (20)")

        def are_there() -> bool:
            found = ordered(connector.fold("public.pa").values())
            return found == ordered(rows(postgres18, "SELECT * FROM pa"))

        eventually(are_there, "the topic is the table")
        postgres18.execute("INSERT INTO pa VALUES (12, 'c')")
        eventually(are_there, "what is written then is there, too")
        assert run.process.poll() is None, run.stderr
