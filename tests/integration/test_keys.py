"""Keys that are not whole, or not unique at any time; and what publishing a table does to its application."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from connectors.postgres import session
from connectors.postgres.catalog.catalog import Catalog
from connectors.postgres.reliance import ledger
from tests.conftest import Database
from tests.integration.connector import Connector
from tests.integration.running import Running, eventually, ordered, rows, same, unbroken


def test_rows_pass_through_a_key_of_the_file(postgres18: Database, kafka: str, prefix: str, tmp_path: Path) -> None:
    """A deferrable UNIQUE as `key:`, and the key made NOT DEFERRABLE while older transactions are still to come."""
    postgres18.execute(
        "CREATE TABLE t (id int, pos int NOT NULL, v text, CONSTRAINT one UNIQUE (pos) DEFERRABLE)",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "INSERT INTO t SELECT n, n, 'v' || n FROM generate_series(1, 3) n",
    )
    table: Any = {"table": "public.t", "key": ["pos"]}
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, [table])
    assert "makes its key" not in connector.catch_up()
    postgres18.execute(
        "UPDATE t SET pos = pos + 1",
        "BEGIN; SET CONSTRAINTS ALL DEFERRED; INSERT INTO t VALUES (4, 2, 'new'); DELETE FROM t WHERE id = 1; COMMIT",
        "ALTER TABLE t DROP CONSTRAINT one, ADD UNIQUE (pos)",
    )
    connector.catch_up()  # which reads it again: from the catalog, the key may have been none for a while
    same(connector, postgres18, "public.t")
    unbroken(connector, "public.t", read_again=True)
    postgres18.execute("ALTER TABLE t ADD PRIMARY KEY (id)", "ALTER TABLE t DROP CONSTRAINT t_pkey")
    assert "read again" not in connector.catch_up(), "it is not the key"


@pytest.mark.parametrize("running", [False, True])
def test_a_key_of_the_file_that_is_not_unique_for_a_while(
    running: bool, postgres18: Database, kafka: str, prefix: str, tmp_path: Path
) -> None:
    """Rows have come and gone under one key, and the topic has deleted one that is still there: it is read again."""
    postgres18.execute(
        "CREATE TABLE t (a int PRIMARY KEY, b int NOT NULL CONSTRAINT one UNIQUE)",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "INSERT INTO t VALUES (1, 10), (2, 20)",
    )
    table: Any = {"table": "public.t", "key": ["b"]}
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, [table])
    connector.catch_up()
    changes = (
        "ALTER TABLE t DROP CONSTRAINT one",
        "UPDATE t SET b = 10 WHERE a = 2",
        "UPDATE t SET b = 20 WHERE a = 2",
        "ALTER TABLE t ADD CONSTRAINT one UNIQUE (b)",
    )
    said = "table public.t: its key was dropped and made again"
    if running:
        with Running(connector) as run:
            run.await_following()
            postgres18.execute(*changes)
            run.await_line(said)
            run.await_line("was read while the log was followed")
            eventually(lambda: len(connector.fold("public.t")) == 2, "the row that was deleted")
    else:
        postgres18.execute(*changes)
        assert said in connector.catch_up()
    same(connector, postgres18, "public.t")
    assert "read again" not in connector.catch_up()


@pytest.mark.parametrize("way", ["none", "of a partition, not told", "of a partition, deleted"])
def test_a_row_without_its_key_in_the_log(
    way: str, postgres18: Database, kafka: str, prefix: str, tmp_path: Path
) -> None:
    """It stops no table for good: while its key may not be known the others go on, and put right the table is read."""
    parts = "" if way == "none" else " PARTITION BY RANGE (id)"
    postgres18.execute(
        f"CREATE TABLE t (id int PRIMARY KEY, code int NOT NULL){parts}",
        *(["CREATE TABLE t_1 PARTITION OF t FOR VALUES FROM (0) TO (10)"] if parts else []),
        *(f"ALTER TABLE {name} REPLICA IDENTITY FULL" for name in (["t", "t_1"] if parts else ["t"])),
        "CREATE TABLE u (id int PRIMARY KEY)",
        "INSERT INTO t VALUES (1, 11), (2, 12)",
    )
    tables: list[Any] = [{"table": "public.t", "key": ["id", "code"]}, "public.u"]
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, tables)
    connector.catch_up()
    made = "CREATE TABLE t_2 PARTITION OF t FOR VALUES FROM (10) TO (20); INSERT INTO t VALUES (11, 21), (12, 22)"
    wrong, right = {
        "none": ("ALTER TABLE t ALTER code DROP NOT NULL; UPDATE t SET code = NULL WHERE id = 1", "SET NOT NULL"),
        "of a partition, not told": (f"{made}; UPDATE t SET code = 31 WHERE id = 11", "t_2 REPLICA IDENTITY FULL"),
        "of a partition, deleted": (f"{made}; DELETE FROM t WHERE id = 11", "t_2 REPLICA IDENTITY FULL"),
    }[way]
    repaired = (
        "UPDATE t SET code = 5 WHERE id = 1; ALTER TABLE t ALTER code SET NOT NULL"
        if way == "none"
        else "ALTER TABLE t_2 REPLICA IDENTITY FULL"
    )
    with Running(connector) as run:
        run.await_following()
        postgres18.execute(wrong, "INSERT INTO u VALUES (1)")
        run.await_line("the table is captured no more for now")
        assert right in run.stderr
        postgres18.execute("INSERT INTO u VALUES (2)")
        eventually(lambda: len(connector.fold("public.u")) == 2, "the other table goes on")
        run.process.send_signal(signal.SIGTERM)
        assert run.ended() == 0, run.stderr
    postgres18.execute(repaired)
    connector.catch_up()
    same(connector, postgres18, "public.t")
    # both before anybody has looked
    back = "t REPLICA IDENTITY FULL" if way == "none" else "t_2 REPLICA IDENTITY DEFAULT"
    once_more = wrong.removeprefix(f"{made}; ").replace("id = 11", "id = 12")
    postgres18.execute(f"ALTER TABLE {back}; {once_more}", repaired, "INSERT INTO u VALUES (3)")
    assert "a row without the whole of its key" in connector.catch_up()
    same(connector, postgres18, "public.t")
    same(connector, postgres18, "public.u")


def test_a_published_key_that_is_generated(postgres18: Database, kafka: str, prefix: str, tmp_path: Path) -> None:
    """Where the publication carries generated columns, they are in snapshots, in events and in keys."""
    postgres18.execute(
        "CREATE TABLE t (a int, twice int GENERATED ALWAYS AS (a * 2) STORED, v int, PRIMARY KEY (v, twice))",
        "INSERT INTO t VALUES (1, DEFAULT, 0), (2, DEFAULT, 0)",
        f"CREATE PUBLICATION cdc_{prefix} FOR TABLE ONLY t"
        " WITH (publish_via_partition_root = true, publish_generated_columns = stored)",
    )
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, ["public.t"])
    connector.catch_up()
    same(connector, postgres18, "public.t")
    postgres18.execute("INSERT INTO t VALUES (3, DEFAULT, 0)", "UPDATE t SET a = 5 WHERE a = 1")
    connector.catch_up()
    same(connector, postgres18, "public.t")
    assert all(set(json.loads(key)) == {"v", "twice"} for key in connector.fold("public.t"))


def test_the_application_goes_on(database: Database, kafka: str, prefix: str, tmp_path: Path) -> None:
    """A child without a key is not published with its parent: updates and deletes of both go on, and it is said.

    A publication that somebody made without ONLY breaks them; the check says so, with the statement that helps.
    """
    write = (
        "UPDATE parent SET v = v || '!'",
        "UPDATE child SET v = v || '!'",
        "DELETE FROM parent WHERE id = 2",
        "DELETE FROM child WHERE id = 3",
    )
    database.execute(
        "CREATE TABLE parent (id int PRIMARY KEY, v text)",
        "CREATE TABLE child () INHERITS (parent)",
        "CREATE TABLE other (id int PRIMARY KEY)",
        "INSERT INTO parent VALUES (1, 'a'), (2, 'b')",
        "INSERT INTO child VALUES (1, 'a'), (3, 'b')",
    )
    connector = Connector(tmp_path, prefix, database.url, kafka, ["public.parent"])
    said = connector.catch_up()
    assert "table public.parent: rows of public.child, which inherit from it, are not captured" in said
    database.execute(*write)
    connector.catch_up()
    assert ordered(connector.fold("public.parent").values()) == ordered(rows(database, "SELECT * FROM ONLY parent"))

    database.execute(f"ALTER PUBLICATION cdc_{prefix} ADD TABLE child")
    found = json.loads(connector.here("check", "FILE", "--json").stdout)["findings"]
    fixes = [f["fix"] for f in found if "makes updates and deletes of public.child fail" in f["message"]]
    assert fixes == [f"ALTER PUBLICATION cdc_{prefix} DROP TABLE ONLY public.child"]
    database.execute(*fixes, *write)
    connector.catch_up()
    assert ordered(connector.fold("public.parent").values()) == ordered(rows(database, "SELECT * FROM ONLY parent"))


TABLES = """
CREATE TABLE part_key (a int, twice int GENERATED ALWAYS AS (a * 2) STORED, v int, PRIMARY KEY (v, twice));
CREATE TABLE part_index (a int NOT NULL, twice int NOT NULL GENERATED ALWAYS AS (a * 2) STORED, UNIQUE (a, twice));
ALTER TABLE part_index REPLICA IDENTITY USING INDEX part_index_a_twice_key;
CREATE TABLE part_whole (v int, twice int GENERATED ALWAYS AS (v * 2) STORED, PRIMARY KEY (twice));
ALTER TABLE part_whole REPLICA IDENTITY FULL;
CREATE TABLE whole (id int PRIMARY KEY, a int, twice int GENERATED ALWAYS AS (a * 2) STORED);
ALTER TABLE whole REPLICA IDENTITY FULL;
CREATE TABLE lost (id int PRIMARY KEY, a int NOT NULL CONSTRAINT lost_a UNIQUE);
ALTER TABLE lost REPLICA IDENTITY USING INDEX lost_a;
ALTER TABLE lost DROP CONSTRAINT lost_a;
CREATE TABLE parted (id int PRIMARY KEY, a int NOT NULL) PARTITION BY RANGE (id);
CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (0) TO (10);
ALTER TABLE parted_1 REPLICA IDENTITY NOTHING;
CREATE UNLOGGED TABLE parted_2 PARTITION OF parted FOR VALUES FROM (10) TO (20);
CREATE TABLE parted_3 PARTITION OF parted FOR VALUES FROM (20) TO (30);
CREATE UNIQUE INDEX parted_3_a ON parted_3 (a);
ALTER TABLE parted_3 REPLICA IDENTITY USING INDEX parted_3_a;
CREATE TABLE above (id int NOT NULL, v text) PARTITION BY RANGE (id);
CREATE TABLE below PARTITION OF above FOR VALUES FROM (0) TO (10);
CREATE FOREIGN DATA WRAPPER nowhere;
CREATE SERVER far FOREIGN DATA WRAPPER nowhere;
CREATE TABLE postponed (id int, pos int PRIMARY KEY DEFERRABLE) PARTITION BY RANGE (pos);
CREATE TABLE postponed_1 PARTITION OF postponed FOR VALUES FROM (0) TO (10);
ALTER TABLE postponed REPLICA IDENTITY FULL;
"""
ON_18 = """
CREATE TABLE virtual (id int PRIMARY KEY, a int, v int GENERATED ALWAYS AS (a * 3) VIRTUAL);
ALTER TABLE virtual REPLICA IDENTITY FULL;
CREATE TABLE unproven (id int);
INSERT INTO unproven VALUES (NULL), (1);
ALTER TABLE unproven ADD CONSTRAINT known NOT NULL id NOT VALID;
"""
BREAKS = "once published, its updates and deletes would fail"


@pytest.mark.every_server
def test_what_is_not_whole_is_refused(database: Database, kafka: str, prefix: str, tmp_path: Path) -> None:
    """Before anything is made: no part of a key stands for it, and no update of the application is broken."""
    ((version,),) = database.rows("SELECT current_setting('server_version_num')::int")
    new = int(str(version)) >= 180000
    database.execute(*filter(str.strip, (TABLES + (ON_18 if new else "")).split(";")))
    keyed: list[Any] = [{"table": "public.above", "key": ["id"]}]
    expected = {
        "part_key": "the log does not carry twice of its key (v, twice)",
        "part_index": "the log does not carry twice of its key (a, twice)",
        "part_whole": "the log does not carry twice of its key (twice)",
        "lost": f"{BREAKS}: public.lost has no replica identity",
        "parted": f"{BREAKS}: its partition public.parted_1 has no replica identity",
        "postponed": f"{BREAKS}: its partition public.postponed_1 has no replica identity",
        "above": "the log does not carry its key (id)",
    }
    if new:
        of_it = f"{BREAKS}: the replica identity of public."
        expected["whole"] = f"{of_it}whole has twice, which is generated and not published"
        expected["virtual"] = f"{of_it}virtual has v, which is generated and not published"
        expected["unproven"] = "column id of its key (id) may be null"
        keyed.append({"table": "public.unproven", "key": ["id"]})
    names = [f"public.{name}" for name in expected if name not in {"above", "unproven"}]
    connector = Connector(tmp_path, prefix, database.url, kafka, [*names, *keyed], as_owner=True)
    found = errors(connector)
    for name, words in expected.items():
        assert any(words in message for message in found[f"table public.{name}"]), (name, found)
    database.execute("ALTER TABLE parted_1 REPLICA IDENTITY DEFAULT")
    assert any("its partition public.parted_2 is not in the log" in m for m in errors(connector)["table public.parted"])
    database.execute("ALTER TABLE parted_2 SET LOGGED")
    words = "the log does not carry its key (id) of old rows in its partition public.parted_3"
    assert any(words in message for message in errors(connector)["table public.parted"])
    database.execute("ALTER TABLE parted_3 REPLICA IDENTITY FULL", "ALTER TABLE postponed_1 REPLICA IDENTITY FULL")
    database.execute(
        "ALTER TABLE above REPLICA IDENTITY FULL",
        "ALTER TABLE below REPLICA IDENTITY FULL",
        "CREATE FOREIGN TABLE away PARTITION OF above FOR VALUES FROM (10) TO (20) SERVER far",
    )
    found = errors(connector)
    assert any("its partition public.away is a foreign table" in message for message in found["table public.above"])
    assert not {"table public.parted", "table public.postponed"} & found.keys()
    ((oid,),) = database.rows("SELECT 'above'::regclass::oid::int8")
    catalog = Catalog(session.connect(session.parameters(database.url, prefix)))
    (refusal,) = ledger.refusals(ledger.look(catalog, "none", {int(str(oid)): "public.above"}, None, {}))
    assert refusal.message in found["table public.above"], "by one that runs, too"


def errors(connector: Connector) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for finding in json.loads(connector.here("check", "FILE", "--json").stdout)["findings"]:
        if finding["level"] == "error":
            found.setdefault(finding["about"], []).append(finding["message"])
    return found


def test_an_identity_whose_columns_may_be_null(postgres18: Database, kafka: str, prefix: str, tmp_path: Path) -> None:
    """PostgreSQL 18 takes an index for it whose column is NOT NULL for new rows alone: it stops no other table."""
    postgres18.execute(
        "CREATE TABLE t (id int, v text); INSERT INTO t VALUES (1, 'x'), (NULL, 'n')",
        "ALTER TABLE t ADD CONSTRAINT whole NOT NULL id NOT VALID; CREATE UNIQUE INDEX t_id ON t (id)",
        "ALTER TABLE t REPLICA IDENTITY USING INDEX t_id; CREATE TABLE u (id int PRIMARY KEY)",
        "INSERT INTO u VALUES (1)",
    )
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, ["public.*"])
    said = connector.catch_up()
    assert "table public.t: column id of its key (id) may be null, and a key never is: it is left out; ALTER" in said
    same(connector, postgres18, "public.u")
    postgres18.execute("DELETE FROM t WHERE id IS NULL", "ALTER TABLE public.t ALTER COLUMN id SET NOT NULL")
    connector.catch_up()
    same(connector, postgres18, "public.t")
