"""PostgreSQL 16 and 18 into Kafka: what a reader of the topics sees is what the tables hold.

Most laws share one connector (`stories`). What needs a connector, a database or a moment of its own follows below.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from sinks.topics.names import table_topic
from sinks.topics.records.read_back import read_to_end
from tests.conftest import FULL, Database
from tests.integration.connector import Connector, Record
from tests.integration.running import Row, eventually, filled, ordered, rows, same, unbroken, writing
from tests.integration.stories import SWAP, WIDE, Told, story, toasted

ODD_TABLE = 't"; drop table x;--'


# --- Rows -------------------------------------------------------------------------------------------------------------


@story(
    "CREATE TABLE t (id int PRIMARY KEY, v text)",
    "INSERT INTO t VALUES (1, 'a'), (2, 'b'), (3, NULL)",
    stream=["INSERT INTO t VALUES (4, 'd')", "UPDATE t SET v = 'A' WHERE id = 1", "DELETE FROM t WHERE id = 2"],
    restarted=["UPDATE t SET v = NULL WHERE id = 4", "INSERT INTO t VALUES (2, 'again')"],
)
def test_insert_update_delete(told: Told) -> None:
    """The snapshot gives `r` of each row, then each statement its event, once, in order, over a restart."""
    events = told.events()
    assert told.moves() == [
        ("r", None, {"id": 1, "v": "a"}),
        ("r", None, {"id": 2, "v": "b"}),
        ("r", None, {"id": 3, "v": None}),
        ("c", None, {"id": 4, "v": "d"}),
        ("u", None, {"id": 1, "v": "A"}),
        ("d", {"id": 2}, None),
        ("u", None, {"id": 4, "v": None}),
        ("c", None, {"id": 2, "v": "again"}),
    ]
    assert [e["source"]["snapshot"] for e in events] == ["true"] * 3 + ["false"] * 5
    assert [e["transaction"] for e in events[:3]] == [None] * 3
    assert [e["transaction"]["total_order"] for e in events[3:]] == [1] * 5
    assert len({e["transaction"]["id"] for e in events[3:]}) == 5
    assert told.folded() == told.source()


@story(
    "CREATE TABLE t (id int PRIMARY KEY, v text)",
    "INSERT INTO t VALUES (1, 'one'), (2, 'two')",
    stream=["UPDATE t SET id = 3, v = 'three' WHERE id = 1", "UPDATE t SET id = 2 WHERE id = 2"],
)
def test_key_change(told: Told) -> None:
    """A key change is `d` of the old key, its tombstone and `c` of the new one; a key set to itself is none."""
    assert told.moves()[2:] == [
        ("d", {"id": 1}, None),
        ("c", None, {"id": 3, "v": "three"}),
        ("u", None, {"id": 2, "v": "two"}),
    ]
    assert [r.value and r.value["op"] for r in told.records() if r.key == {"id": 1}] == ["r", "d", None]
    assert told.folded() == told.source()


@story(
    "CREATE TABLE t (id int PRIMARY KEY, v text)",
    "INSERT INTO t VALUES (1, 'one'), (2, 'two'), (5, 'five')",
    stream=[
        SWAP.format(1, 2),
        "BEGIN; DELETE FROM t WHERE id = 5; INSERT INTO t VALUES (5, 'a'); UPDATE t SET v = 'b' WHERE id = 5; COMMIT",
        "BEGIN; INSERT INTO t VALUES (6, 'short'); DELETE FROM t WHERE id = 6; COMMIT",
    ],
)
def test_swaps_and_reinserts_in_one_transaction(told: Told) -> None:
    """Two rows swap keys, one is deleted and re-inserted, one comes and goes: each step is there, the end is right."""
    events = [e for e in told.events() if e["op"] != "r"]
    steps = [(e["op"], (e["after"] or e["before"])["id"]) for e in events]
    assert steps == [
        ("d", 1), ("c", -1), ("d", 2), ("c", 1), ("d", -1), ("c", 2),
        ("d", 5), ("c", 5), ("u", 5),
        ("c", 6), ("d", 6),
    ]  # fmt: skip
    assert [e["transaction"]["total_order"] for e in events] == [1, 2, 3, 4, 5, 6, 1, 2, 3, 1, 2]
    assert len({e["transaction"]["id"] for e in events}) == 3
    assert told.folded() == told.source() == [{"id": 1, "v": "two"}, {"id": 2, "v": "one"}, {"id": 5, "v": "b"}]


@story(
    "CREATE TABLE t (a int, v text, b text, PRIMARY KEY (b, a))",
    "INSERT INTO t VALUES (1, 'v', 'x'), (2, 'v', 'x'), (1, 'v', 'y')",
    stream=["UPDATE t SET v = 'w' WHERE a = 1", "UPDATE t SET a = 3 WHERE a = 2", "DELETE FROM t WHERE b = 'y'"],
    restarted=["UPDATE t SET v = 'z' WHERE a = 1"],
)
def test_composite_key(told: Told) -> None:
    """The key has the key's columns in the key's order, not the table's, in snapshot and stream alike."""
    assert {r.raw_key for r in told.records()} == {
        b'{"b":"x","a":1}', b'{"b":"x","a":2}', b'{"b":"y","a":1}', b'{"b":"x","a":3}',
    }  # fmt: skip
    assert told.folded() == told.source()
    assert [v["key"] for v in told.versions()] == [["b", "a"]]


@story(
    """
    DO $$ BEGIN
        CREATE COLLATION odd (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
    EXCEPTION WHEN feature_not_supported THEN
        CREATE COLLATION odd (provider = libc, locale = 'C.UTF-8');
    END $$
    """,
    "CREATE TABLE t (k text COLLATE odd PRIMARY KEY, v int)",
    """
    INSERT INTO t SELECT k, row_number() OVER () FROM unnest(ARRAY[
        'z', 'Y', 'ä', 'ß', '', ' ',
        E'\\t', E'\\\\', '\\N', '"', E'\\x01', 'Ω', '日本', '😀', E'a\\nb', '{"a":1}', '%s',
        repeat('k', 2000)
    ]) AS k
    """,
    'CREATE TABLE u (k varchar(20) COLLATE "C" PRIMARY KEY, c char(3) NOT NULL, n int)',
    "INSERT INTO u VALUES ('b', 'x', 1), ('B', '', 1), ('a ', 'y', 1), ('a', 'z', 1)",
    stream=[
        "UPDATE t SET v = -v",
        "UPDATE u SET n = 2",
        "UPDATE t SET k = 'Z' WHERE k = 'z'",
        "DELETE FROM t WHERE k = ' '",
    ],
)
def test_text_keys(told: Told) -> None:
    """A text key of any characters and collation is the same bytes in snapshot and stream: nothing is left twice."""
    assert told.folded() == told.source()
    assert told.folded("u") == told.source("SELECT * FROM u")
    read = {r.raw_key for r in told.records() if r.value and r.value["op"] == "r"}
    updated = {r.raw_key for r in told.records() if r.value and r.value["op"] == "u"}
    assert read == updated
    assert len(read) == 18


@story(
    "CREATE TABLE t (k uuid PRIMARY KEY, v int)",
    "INSERT INTO t SELECT md5(n::text)::uuid, n FROM generate_series(1, 50) n",
    "CREATE TABLE u (at timestamptz, b bytea, d numeric(6,2), f boolean, v int, PRIMARY KEY (at, b, d, f))",
    "INSERT INTO u VALUES ('2024-02-29 12:00+01', '\\x00ff', 1.50, true, 1), ('2024-02-29 12:00+02', '', -1, false, 1)",
    stream=["UPDATE t SET v = v + 1 WHERE v % 3 = 0", "DELETE FROM t WHERE v % 5 = 0", "UPDATE u SET v = 2"],
)
def test_keys_of_other_types(told: Told) -> None:
    """uuid, timestamptz, bytea, numeric and boolean keys identify a row in snapshot and stream alike."""
    assert told.folded() == told.source("SELECT k::text, v FROM t")
    assert {r.raw_key for r in told.records("u")} == {
        b'{"at":"2024-02-29T11:00:00Z","b":"AP8=","d":"1.50","f":true}',
        b'{"at":"2024-02-29T10:00:00Z","b":"","d":"-1.00","f":false}',
    }
    assert [row["v"] for row in told.folded("u")] == [2, 2]


@story(
    'CREATE TABLE "t""; drop table x;--" ("id" int, "we""ird \'" text, "a.b" int, "Ünï ☃" text, "select" bool,'
    ' "%s" int, "{0}" int, PRIMARY KEY ("id", "a.b"))',
    "CREATE TABLE x (id int PRIMARY KEY)",
    'CREATE TABLE "Größe.*日本" (id int PRIMARY KEY)',
    "INSERT INTO \"t\"\"; drop table x;--\" VALUES (1, 'q', 2, 'ü', true, 3, 4)",
    'INSERT INTO "Größe.*日本" VALUES (1)',
    stream=[
        'UPDATE "t""; drop table x;--" SET "we""ird \'" = \'r\'',
        'UPDATE "t""; drop table x;--" SET "a.b" = 3',
        'UPDATE "Größe.*日本" SET id = 2',
    ],
)
def test_names_that_need_quotes(told: Told) -> None:
    """A table named like an injection is captured as any other, with columns as odd, and nothing was dropped."""
    assert told.records(ODD_TABLE)[0].topic == table_topic(told.connector.name, told.schema, ODD_TABLE)
    assert told.folded(ODD_TABLE) == told.source('SELECT * FROM "t""; drop table x;--"')
    assert told.folded(ODD_TABLE)[0] == {
        "id": 1, "we\"ird '": "r", "a.b": 3, "Ünï ☃": "ü", "select": True, "%s": 3, "{0}": 4,
    }  # fmt: skip
    assert told.folded("Größe.*日本") == [{"id": 2}]
    assert told.events(ODD_TABLE)[0]["source"]["table"] == ODD_TABLE
    assert told.source("SELECT * FROM x") == []


# --- Replica identity -------------------------------------------------------------------------------------------------


@story(
    "CREATE TABLE by_key (id int PRIMARY KEY, u int NOT NULL, v text)",
    "CREATE TABLE whole (LIKE by_key INCLUDING INDEXES)",
    "ALTER TABLE whole REPLICA IDENTITY FULL",
    "CREATE TABLE by_index (LIKE by_key INCLUDING INDEXES)",
    "CREATE UNIQUE INDEX by_u ON by_index (u)",
    "ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_u",
    "CREATE TABLE keyless (u int NOT NULL UNIQUE, v text)",
    "ALTER TABLE keyless REPLICA IDENTITY USING INDEX keyless_u_key",
    *(f"INSERT INTO {t} VALUES (1, 10, 'a'), (2, 20, 'b')" for t in ("by_key", "whole", "by_index")),
    "INSERT INTO keyless VALUES (10, 'a'), (20, 'b')",
    stream=[
        *(f"UPDATE {t} SET v = 'A' WHERE u = 10" for t in ("by_key", "whole", "by_index", "keyless")),
        *(f"UPDATE {t} SET u = 11 WHERE u = 10" for t in ("by_key", "whole", "by_index", "keyless")),
        *(f"DELETE FROM {t} WHERE u = 20" for t in ("by_key", "whole", "by_index", "keyless")),
    ],
)
def test_replica_identities(told: Told) -> None:
    """`before` is what the identity gives; the topic's key is the identity's columns, under FULL the primary key."""
    assert told.moves("by_key")[2:] == [
        ("u", None, {"id": 1, "u": 10, "v": "A"}),
        ("u", None, {"id": 1, "u": 11, "v": "A"}),
        ("d", {"id": 2}, None),
    ]
    assert told.moves("whole")[2:] == [
        ("u", {"id": 1, "u": 10, "v": "a"}, {"id": 1, "u": 10, "v": "A"}),
        ("u", {"id": 1, "u": 10, "v": "A"}, {"id": 1, "u": 11, "v": "A"}),
        ("d", {"id": 2, "u": 20, "v": "b"}, None),
    ]
    assert told.moves("by_index")[2:] == [
        ("u", None, {"id": 1, "u": 10, "v": "A"}),
        ("d", {"u": 10}, None),
        ("c", None, {"id": 1, "u": 11, "v": "A"}),
        ("d", {"u": 20}, None),
    ]
    assert told.moves("keyless")[2:] == [
        ("u", None, {"u": 10, "v": "A"}),
        ("d", {"u": 10}, None),
        ("c", None, {"u": 11, "v": "A"}),
        ("d", {"u": 20}, None),
    ]
    keys = {t: {tuple(r.key) for r in told.records(t)} for t in ("by_key", "whole", "by_index", "keyless")}
    assert keys == {"by_key": {("id",)}, "whole": {("id",)}, "by_index": {("u",)}, "keyless": {("u",)}}
    for table in keys:
        assert told.folded(table) == told.source(f"SELECT * FROM {table}")


# --- TOAST ------------------------------------------------------------------------------------------------------------


WIDE_COLUMNS = ("body", "raw", "doc", "words", "counts")


def wide_table() -> tuple[str, ...]:
    return (
        "CREATE TABLE t (id int PRIMARY KEY, n int, body text, raw bytea, doc jsonb, words text[], counts bigint[])",
        *(f"ALTER TABLE t ALTER COLUMN {column} SET STORAGE EXTERNAL" for column in WIDE_COLUMNS),
    )


def wide_row(number: int) -> str:
    text = WIDE.format(number)
    return f"""
        INSERT INTO t SELECT {number}, 0, {text}, decode({text}, 'hex'), jsonb_build_object('b', {text}, 'a', '{{}}'),
            (SELECT array_agg(md5(({number} + x)::text)) FROM generate_series(1, 400) x) || '{{NULL, "NULL", ","}}',
            (SELECT array_agg({number} * x) FROM generate_series(1, 2000) x)
    """


def assert_wide_rows_equal(told: Told) -> None:
    select = "SELECT id, n, body, encode(raw, 'hex') AS raw, doc::text, words, counts FROM t"
    found = [{**row, "raw": b64decode(row["raw"]).hex()} for row in told.folded()]
    assert ordered(found) == told.source(select)


@story(
    *wide_table(),
    wide_row(1),
    wide_row(2),
    wide_row(3),
    stream=[
        "UPDATE t SET n = 1",
        wide_row(4),
        "UPDATE t SET n = 2 WHERE id = 4",
        "UPDATE t SET n = 3, body = 'short' WHERE id = 3",
        "UPDATE t SET n = 4 WHERE id = 3",
        f"BEGIN; {wide_row(5)}; UPDATE t SET n = 5 WHERE id = 5; UPDATE t SET body = NULL WHERE id = 5; COMMIT",
    ],
    restarted=["UPDATE t SET n = n + 10", "UPDATE t SET body = doc ->> 'b' WHERE id = 3", "UPDATE t SET n = n + 10"],
)
def test_unchanged_toast(told: Told) -> None:
    """An update that leaves out-of-line values alone gives whole rows: of the snapshot, the stream, an earlier run."""
    assert toasted(told) >= 5 * 4
    for event in told.events():
        assert set(event["after"]) == {"id", "n", *WIDE_COLUMNS}
    by_key: dict[int, Row] = {}
    for event in told.events():
        row = event["after"]
        if row["id"] in (1, 2, 4):
            unchanged = {name: row[name] for name in WIDE_COLUMNS}
            assert by_key.setdefault(row["id"], unchanged) == unchanged
    assert_wide_rows_equal(told)


@story(
    *wide_table(),
    wide_row(1),
    wide_row(2),
    wide_row(3),
    stream=[
        "UPDATE t SET id = 10 WHERE id = 1",
        "UPDATE t SET n = 1 WHERE id = 10",
        SWAP.format(2, 3),
    ],
    restarted=[
        "UPDATE t SET id = 11 WHERE id = 10",
        SWAP.format(2, 3),
        "UPDATE t SET n = n + 1",
    ],
)
def test_unchanged_toast_through_key_changes(told: Told) -> None:
    """Out-of-line values follow their row to a new key and through a swap, also when an earlier run published them."""
    assert toasted(told) >= 3 * 5
    assert_wide_rows_equal(told)


@story(
    "CREATE TABLE t (id int PRIMARY KEY, n int, words text[])",
    "ALTER TABLE t ALTER COLUMN words SET STORAGE EXTERNAL",
    stream=[
        *(
            f"INSERT INTO t SELECT {i}, 0, array_agg(chr(97 + (x * x) % 26)) FROM generate_series(1, 400) x; "
            f"UPDATE t SET n = 1 WHERE id = {i}"
            for i in range(3)
        ),
        *(f"UPDATE t SET n = 2 WHERE id = {i}" for i in range(3)),
    ],
)
def test_unchanged_toast_of_short_text(told: Told) -> None:
    """An array takes more room stored than printed: 800 bytes of text may be out of line, and are not forgotten."""
    assert toasted(told) == 3
    assert told.folded() == told.source()


@story(
    "CREATE TABLE t (id int PRIMARY KEY, n int, body text)",
    "ALTER TABLE t ALTER COLUMN body SET STORAGE EXTERNAL",
    f"INSERT INTO t VALUES (1, 0, {WIDE.format('first')})",
    stream=[
        "UPDATE t SET n = 1",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        f"UPDATE t SET body = {WIDE.format('second')}",
        "UPDATE t SET n = 2",
        "ALTER TABLE t REPLICA IDENTITY DEFAULT",
        "UPDATE t SET n = 3",
    ],
)
def test_unchanged_toast_after_the_identity_was_full(told: Told) -> None:
    """A value published while the identity was FULL is known when it is DEFAULT again: no older one comes back."""
    assert toasted(told) >= 1
    assert told.folded() == told.source()


@story(
    "CREATE TABLE t (id int PRIMARY KEY, n int, body text) PARTITION BY RANGE (id)",
    "CREATE TABLE t_1 PARTITION OF t FOR VALUES FROM (0) TO (10)",
    "CREATE TABLE t_2 PARTITION OF t FOR VALUES FROM (10) TO (20)",
    "ALTER TABLE t ALTER COLUMN body SET STORAGE EXTERNAL",
    "ALTER TABLE t_1 ALTER COLUMN body SET STORAGE EXTERNAL",
    "ALTER TABLE t REPLICA IDENTITY FULL",  # which leaves the partitions as they are
    "ALTER TABLE t_2 REPLICA IDENTITY FULL",
    f"INSERT INTO t VALUES (1, 0, {WIDE.format('one')}), (11, 0, {WIDE.format('eleven')})",
    stream=["UPDATE t SET n = 1", "UPDATE t SET id = id + 1"],
    restarted=["UPDATE t SET n = 2", "DELETE FROM t WHERE id = 12"],
)
def test_identity_of_a_partition(told: Told) -> None:
    """The log has what each partition's identity gives, whatever the root's is: values left out are filled in."""
    assert toasted(told, "t_1") >= 1
    assert told.folded() == told.source()


# --- TRUNCATE ---------------------------------------------------------------------------------------------------------


@story(
    "CREATE TABLE t (id int PRIMARY KEY, v text)",
    "CREATE TABLE u (LIKE t INCLUDING ALL)",
    "CREATE TABLE parent (LIKE t INCLUDING ALL)",
    "CREATE TABLE child (id int PRIMARY KEY, parent int REFERENCES parent)",
    "INSERT INTO t SELECT n, 'old' FROM generate_series(1, 20) n",
    "INSERT INTO u SELECT n, 'old' FROM generate_series(1, 20) n",
    "INSERT INTO parent VALUES (1, 'p'), (2, 'q')",
    "INSERT INTO child VALUES (1, 1), (2, 2)",
    stream=[
        "INSERT INTO t VALUES (21, 'streamed')",
        "DELETE FROM t WHERE id = 20",
        """
        BEGIN;
        INSERT INTO t VALUES (20, 'before'), (22, 'before');
        UPDATE t SET v = 'changed' WHERE id = 1;
        DELETE FROM t WHERE id = 2;
        TRUNCATE t;
        INSERT INTO t VALUES (1, 'after'), (22, 'after'), (23, 'after');
        COMMIT
        """,
        "INSERT INTO u VALUES (100, 'new')",
        "TRUNCATE u, parent CASCADE",
        "INSERT INTO parent VALUES (1, 'again')",
        "BEGIN; TRUNCATE u; INSERT INTO u VALUES (7, 'x'); TRUNCATE u; INSERT INTO u VALUES (8, 'y'); COMMIT",
        "BEGIN; TRUNCATE t; ROLLBACK",
    ],
    restarted=["TRUNCATE parent, child; INSERT INTO parent VALUES (5, 'last')", "INSERT INTO child VALUES (5, 5)"],
)
def test_truncate(told: Told) -> None:
    """TRUNCATE deletes every key the topic holds at that point, those of its own transaction too, and no later one."""
    for table in ("t", "u", "parent", "child"):
        assert told.folded(table) == told.source(f"SELECT * FROM {table}")
    assert told.folded() == [{"id": 1, "v": "after"}, {"id": 22, "v": "after"}, {"id": 23, "v": "after"}]
    steps = [(e["op"], (e["after"] or e["before"])["id"]) for e in told.events()[22:]]
    assert steps == [
        ("c", 20), ("c", 22), ("u", 1), ("d", 2),
        *(("d", i) for i in sorted([*(i for i in range(1, 23) if i != 2)], key=lambda i: f'{{"id":{i}}}')),
        ("c", 1), ("c", 22), ("c", 23),
    ]  # fmt: skip
    assert [(e["op"], (e["after"] or e["before"])["id"]) for e in told.events("child")[2:]] == [
        ("d", 1),
        ("d", 2),
        ("c", 5),
    ]


# --- Partitions -------------------------------------------------------------------------------------------------------


@story(
    "CREATE TABLE t (id int, day date, v text, PRIMARY KEY (day, id)) PARTITION BY RANGE (day)",
    "CREATE TABLE t_jan PARTITION OF t FOR VALUES FROM ('2024-01-01') TO ('2024-02-01') PARTITION BY HASH (id)",
    "CREATE TABLE t_jan_0 PARTITION OF t_jan FOR VALUES WITH (MODULUS 2, REMAINDER 0)",
    "CREATE TABLE t_jan_1 PARTITION OF t_jan FOR VALUES WITH (MODULUS 2, REMAINDER 1)",
    "CREATE TABLE t_feb (v text, day date NOT NULL, gone int, id int NOT NULL, PRIMARY KEY (day, id))",
    "ALTER TABLE t_feb DROP COLUMN gone",
    "ALTER TABLE t ATTACH PARTITION t_feb FOR VALUES FROM ('2024-02-01') TO ('2024-03-01')",
    "INSERT INTO t SELECT n, '2024-01-01'::date + n, 'old' FROM generate_series(1, 50) n",
    stream=[
        "UPDATE t SET v = 'new' WHERE id % 3 = 0",
        "UPDATE t SET day = day + 31 WHERE id = 1",  # a move to another partition
        "DELETE FROM t WHERE id % 7 = 0",
        "CREATE TABLE t_mar PARTITION OF t FOR VALUES FROM ('2024-03-01') TO ('2024-04-01')",
        "INSERT INTO t VALUES (100, '2024-03-05', 'march')",
        "INSERT INTO t_jan VALUES (101, '2024-01-31', 'by its partition')",
        "TRUNCATE t_feb",
    ],
    restarted=["UPDATE t SET v = v || '!'", "DROP TABLE t_jan"],
)
def test_partitioned_table(told: Told) -> None:
    """Partitions, nested and of another column order, are events of their root alone; new ones are followed too."""
    assert {e["source"]["table"] for e in told.events()} == {"t"}
    assert told.moves().count(("c", None, {"id": 100, "day": 19787, "v": "march"})) == 1
    # neither TRUNCATE nor DROP of one partition has row events under the root: its rows are read again
    left = told.source("SELECT id, day - '1970-01-01'::date AS day, v FROM t")
    assert told.folded() == left


# --- Columns change ---------------------------------------------------------------------------------------------------


@story(
    "CREATE TABLE t (id int PRIMARY KEY, a int, b varchar(5))",
    "INSERT INTO t VALUES (1, 1, 'b')",
    stream=[
        "INSERT INTO t VALUES (2, 2, 'b')",
        "ALTER TABLE t ADD COLUMN c int DEFAULT 7",
        "INSERT INTO t VALUES (3, 3, 'b', 3)",
        "UPDATE t SET a = 10 WHERE id = 1",
        "ALTER TABLE t DROP COLUMN a",
        "INSERT INTO t VALUES (4, 'b', 4)",
        "ALTER TABLE t RENAME COLUMN b TO bb",
        "INSERT INTO t VALUES (5, 'b', 5)",
        """
        BEGIN; INSERT INTO t VALUES (6, 'old', 6); ALTER TABLE t ALTER COLUMN bb TYPE text;
        INSERT INTO t VALUES (7, 'longer than five', 7); COMMIT
        """,
        "ALTER TABLE t ALTER COLUMN c TYPE text USING 'c' || c",
        "UPDATE t SET bb = 'all'",
        "ALTER TABLE t ADD COLUMN nothing_written_since int",
    ],
    restarted=["UPDATE t SET nothing_written_since = 1 WHERE id = 1"],
)
def test_columns_come_and_go(told: Told) -> None:
    """Each event has the columns of its own time and names the version of the schema topic that describes them."""
    described = {v["version"]: {c["name"]: c["type"] for c in v["columns"]} for v in told.versions()}
    b = "character varying(5)"
    assert described == {
        1: {"id": "integer", "a": "integer", "b": b},
        2: {"id": "integer", "a": "integer", "b": b, "c": "integer"},
        3: {"id": "integer", "b": b, "c": "integer"},
        4: {"id": "integer", "bb": b, "c": "integer"},
        5: {"id": "integer", "bb": "text", "c": "integer"},
        6: {"id": "integer", "bb": "text", "c": "text"},
        7: {"id": "integer", "bb": "text", "c": "text", "nothing_written_since": "integer"},
    }
    events = told.events()
    for event in events:
        assert list(event["after"]) == list(described[event["source"]["schema_version"]])
    first_told = [e for e in events if e["op"] in "cr" and e["source"]["snapshot"] != "incremental"]
    versions = {e["after"]["id"]: e["source"]["schema_version"] for e in first_told}
    assert versions == {1: 1, 2: 1, 3: 2, 4: 3, 5: 4, 6: 4, 7: 5}
    first = {
        version: min(e["source"]["position"] for e in events if e["source"]["schema_version"] == version)
        for version in described
    }
    assert {v["version"]: v["position"] for v in told.versions()} == first
    last = told.source("SELECT * FROM t WHERE id = 1")
    assert [row for row in told.folded() if row["id"] == 1] == last


@story(
    "CREATE TABLE t (id int PRIMARY KEY, a int, twice int GENERATED ALWAYS AS (a * 2) STORED, z text)",
    "INSERT INTO t (id, a, z) VALUES (1, 1, 'z')",
    """
    DO $$ BEGIN
        IF current_setting('server_version_num')::int >= 180000 THEN
            EXECUTE 'ALTER TABLE t ADD COLUMN v int GENERATED ALWAYS AS (a * 3) VIRTUAL';
        END IF;
    END $$
    """,
    stream=["INSERT INTO t (id, a, z) VALUES (2, 2, 'z')", "UPDATE t SET a = 5", "DELETE FROM t WHERE id = 1"],
)
def test_generated_columns(told: Told) -> None:
    """Generated columns, stored or virtual, are in no event and no schema; the rest is whole and in its place."""
    assert told.folded() == told.source("SELECT id, a, z FROM t")
    assert [[c["name"] for c in v["columns"]] for v in told.versions()] == [["id", "a", "z"]]


@story(
    "CREATE TYPE mood AS ENUM ('sad', 'ok')",
    "CREATE TABLE t (id int PRIMARY KEY, m mood, ms mood[])",
    "INSERT INTO t VALUES (1, 'ok', '{sad,ok}')",
    stream=[
        "ALTER TYPE mood ADD VALUE 'very, \"happy\"'",
        "INSERT INTO t VALUES (2, 'very, \"happy\"', ARRAY['very, \"happy\"', 'ok']::mood[])",
        "ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'",
        "INSERT INTO t VALUES (3, 'blue', '{}')",
    ],
)
def test_enum_grown(told: Told) -> None:
    """Labels added and renamed in the stream arrive as the server prints them; the schema needs no new version.

    A label that was renamed is another text in older rows too: they are read again.
    """
    assert [e["after"] for e in told.events()][:3] == [
        {"id": 1, "m": "ok", "ms": ["sad", "ok"]},
        {"id": 2, "m": 'very, "happy"', "ms": ['very, "happy"', "ok"]},
        {"id": 3, "m": "blue", "ms": []},
    ]
    assert len(told.versions()) == 1


@story(
    "CREATE TYPE point3 AS (x int, y int)",
    "CREATE TABLE t (id int PRIMARY KEY)",
    stream=[
        "CREATE TYPE late AS ENUM ('a', 'b')",
        "CREATE DOMAIN price AS numeric(8,2)",
        "ALTER TABLE t ADD COLUMN l late, ADD COLUMN p price, ADD COLUMN c point3",
        "INSERT INTO t VALUES (1, 'a', 1.5, (1, 2))",
    ],
)
def test_types_made_in_the_stream(told: Told) -> None:
    """A type that did not exist at the start is looked up when its first row comes."""
    assert told.folded() == [{"id": 1, "l": "a", "p": "1.50", "c": "(1,2)"}]
    assert [c["kind"] for c in told.versions()[-1]["columns"]] == ["int32", "string", "decimal", "string"]


# --- Transactions -----------------------------------------------------------------------------------------------------


@story(
    "CREATE TABLE empty (id int PRIMARY KEY)",
    "CREATE TABLE t (id int PRIMARY KEY)",
    "CREATE UNLOGGED TABLE unlogged (id int PRIMARY KEY)",
    "CREATE VIEW seen AS SELECT * FROM t",
    stream=[
        "BEGIN; COMMIT",
        "BEGIN; INSERT INTO t VALUES (1); ROLLBACK",
        "BEGIN; INSERT INTO unlogged VALUES (1); CREATE TEMP TABLE tt AS SELECT 1; COMMIT",
        """
        BEGIN; INSERT INTO t VALUES (2); SAVEPOINT a; INSERT INTO t VALUES (3); ROLLBACK TO a;
        INSERT INTO t VALUES (4); SAVEPOINT b; INSERT INTO t VALUES (5); RELEASE b;
        SAVEPOINT c; DELETE FROM t; ROLLBACK TO c; COMMIT
        """,
        "SELECT pg_logical_emit_message(true, 'p', 'm'), pg_logical_emit_message(false, 'p', 'm')",
    ],
)
def test_what_was_rolled_back_is_not_there(told: Told) -> None:
    """Rolled-back transactions and savepoints, empty transactions, messages and uncaptured tables leave no record."""
    assert [(e["op"], e["after"]["id"], e["transaction"]["total_order"]) for e in told.events()] == [
        ("c", 2, 1),
        ("c", 4, 2),
        ("c", 5, 3),
    ]
    assert told.records("empty") == []
    assert [v["version"] for v in told.versions("empty")] == [1]
    topics = Consumer({"bootstrap.servers": told.connector.kafka, "group.id": "t"}).list_topics(timeout=60).topics
    ours = {t for t in topics if t.startswith(f"{told.connector.name}.{told.schema.replace('_', '_')}.")}
    assert ours == {table_topic(told.connector.name, told.schema, t) for t in ("empty", "t")}


# --- Laws of every story ----------------------------------------------------------------------------------------------


def captured_tables(run: tuple[Database, Connector]) -> list[tuple[str, str]]:
    database, connector = run
    found = database.rows(
        f"SELECT schemaname, tablename FROM pg_publication_tables WHERE pubname = 'cdc_{connector.name}'"
    )
    return [(str(schema), str(table)) for schema, table in found]


def test_a_tombstone_after_every_delete(run: tuple[Database, Connector]) -> None:
    """In every topic: after each `d` the key's next record is its tombstone, and there is no other tombstone."""
    _, connector = run
    deletes = 0
    for schema, table in captured_tables(run):
        by_key: dict[bytes, list[Record]] = {}
        for record in connector.records(f"{schema}.{table}"):
            by_key.setdefault(record.raw_key, []).append(record)
        for records in by_key.values():
            assert len({r.partition for r in records}) == 1
            for record, following in zip(records, [*records[1:], None], strict=True):
                if record.value is not None and record.value["op"] == "d":
                    deletes += 1
                    assert following is not None
                    assert following.value is None
                elif following is not None:
                    assert following.value is not None
            assert records[0].value is not None
    assert deletes > 80


def test_positions_rise_by_key_and_are_unique(run: tuple[Database, Connector]) -> None:
    """For one key positions strictly increase in the topic's order; events of the stream never share a position."""
    _, connector = run
    streamed: list[tuple[str, str]] = []
    for schema, table in captured_tables(run):
        last: dict[bytes, str] = {}
        for record in connector.records(f"{schema}.{table}"):
            if record.value is None:
                continue
            position = record.value["source"]["position"]
            assert last.get(record.raw_key, "") < position
            last[record.raw_key] = position
            streamed += [(position, record.value["op"])] if record.value["op"] != "r" else []
    twice = Counter(position for position, _ in streamed)
    # A table that is read again gets the deletes of what is gone under the position of its window, as its rows are.
    assert {op for position, op in streamed if twice[position] > 1} <= {"d"}


def test_a_transactions_events_are_numbered(run: tuple[Database, Connector]) -> None:
    """Over all tables the events of a transaction are numbered 1, 2, 3 … without a hole, and by table likewise."""
    _, connector = run
    numbers: dict[str, list[int]] = {}
    by_table: dict[tuple[str, str, str], list[int]] = {}
    for schema, table in captured_tables(run):
        for event in connector.events(f"{schema}.{table}"):
            if event["transaction"] is not None:
                id_ = event["transaction"]["id"]
                numbers.setdefault(id_, []).append(event["transaction"]["total_order"])
                by_table.setdefault((id_, schema, table), []).append(event["transaction"]["data_collection_order"])
    assert len(numbers) > 80
    for found in [*numbers.values(), *by_table.values()]:
        assert sorted(found) == list(range(1, len(found) + 1))


def test_events_name_a_version_that_describes_them(run: tuple[Database, Connector]) -> None:
    """Every event's columns and key are those of the schema version it names, which stands for one description only."""
    _, connector = run
    topic = f"{connector.name}.schema"
    described: dict[tuple[str, str, int], Row] = {}
    for message in read_to_end(connector.kafka, {}, topic, "read_committed"):
        value = json.loads(message.value() or b"")
        at = (value["schema"], value["table"], value["version"])
        assert at not in described
        assert json.loads(message.key() or b"") == dict(zip(("schema", "table", "version"), at, strict=True))
        described[at] = value
    for schema, table in captured_tables(run):
        for record in connector.records(f"{schema}.{table}"):
            if record.value is None:
                continue
            version = described[schema, table, record.value["source"]["schema_version"]]
            assert list(record.key) == version["key"]
            assert version["topic"] == record.topic
            if record.value["after"] is not None:
                assert list(record.value["after"]) == [c["name"] for c in version["columns"]]


# --- Runs of their own ------------------------------------------------------------------------------------------------


def test_snapshot_then_stream_without_a_gap(database: Database, kafka: str, prefix: str, tmp_path: Path) -> None:
    """With transactions committing all through the snapshot, every change is there once: in its row or after it."""
    filled(database, "public.t", keys=6000)
    connector = Connector(tmp_path, prefix, database.url, kafka, ["public.t"], snapshot={"chunk_rows": 500})
    with writing(database, "public.t", keys=6000):
        connector.catch_up()
        read = sum(1 for e in connector.events("public.t") if e["op"] == "r")
        connector.catch_up()
    connector.catch_up()
    assert read >= 5900
    same(connector, database, "public.t")
    unbroken(connector, "public.t")


@pytest.mark.full  # test_the_others_stream_on
def test_table_added_between_runs(database: Database, kafka: str, prefix: str, tmp_path: Path) -> None:
    """A table named later is read while transactions go on, then followed; the others miss nothing meanwhile."""
    filled(database, "public.old", keys=6000)
    filled(database, "public.added", keys=6000)
    Connector(tmp_path, prefix, database.url, kafka, ["public.old"]).catch_up()
    connector = Connector(tmp_path, prefix, database.url, kafka, ["public.old", "public.added"])
    with writing(database, "public.added", keys=6000), writing(database, "public.old", keys=6000):
        connector.catch_up()
        connector.catch_up()
    connector.catch_up()
    for table in ("public.old", "public.added"):
        same(connector, database, table)
        unbroken(connector, table, read_again=table == "public.added")
        read = sum(1 for e in connector.events(table) if e["op"] == "r")
        assert 5000 <= read <= 6100, "each table is read once"


def test_table_added_to_the_publication_by_hand(database: Database, kafka: str, prefix: str, tmp_path: Path) -> None:
    """Where the owner has published the new table already, a transaction older than that is waited for all the same."""
    database.execute("CREATE TABLE old (id int PRIMARY KEY)", "CREATE TABLE added (id int PRIMARY KEY)")
    Connector(tmp_path, prefix, database.url, kafka, ["public.old"]).catch_up()
    connection = database.connect()
    connection.autocommit = False
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO added VALUES (1)")
        database.execute(f"ALTER PUBLICATION cdc_{prefix} ADD TABLE added")
        connector = Connector(tmp_path, prefix, database.url, kafka, ["public.old", "public.added"])
        process = connector.start("--until-caught-up")
        waiting = (
            f"SELECT FROM pg_stat_activity WHERE application_name = 'cdc {prefix} windows'"
            " AND query ~ 'pg_snapshot_xmin'"
        )
        eventually(lambda: process.poll() is not None or database.rows(waiting), "waiting for older transactions")
        assert process.poll() is None, "it ended without the rows of a transaction that was open"
        connection.commit()
    connection.close()
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 0, stderr
    connector.catch_up()
    assert list(connector.fold("public.added").values()) == [{"id": 1}]


def test_large_transaction_is_one_kafka_transaction(
    database: Database, kafka: str, prefix: str, tmp_path: Path
) -> None:
    """Many rows of one source transaction become visible at once: each partition has them and one commit marker."""
    count = 200_000 if FULL else 50_000
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    connector = Connector(tmp_path, prefix, database.url, kafka, ["public.t"])
    connector.catch_up()
    database.execute(f"INSERT INTO t SELECT n, 'row ' || n FROM generate_series(1, {count}) n")
    connector.catch_up()
    topic = table_topic(prefix, "public", "t")
    offsets: dict[int, list[int]] = {}
    ids = set()
    for message in read_to_end(kafka, {}, topic, "read_committed"):
        offsets.setdefault(message.partition() or 0, []).append(message.offset() or 0)
        event = json.loads(message.value() or b"")
        ids.add(event["transaction"]["id"])
        assert event["after"]["v"] == f"row {event['after']['id']}"
    assert sum(map(len, offsets.values())) == count
    assert len(ids) == 1
    consumer = Consumer({"bootstrap.servers": kafka, "group.id": "t"})
    for partition, found in offsets.items():
        _, end = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=60)
        assert found == list(range(len(found)))
        assert end == len(found) + 1
    consumer.close()


def test_latin1_database(database: Database, kafka: str, prefix: str, tmp_path: Path) -> None:
    """In a LATIN1 database names, keys and values are UTF-8 in the topic, the same by snapshot and by stream."""
    name = f"{database.name}_l1"
    database.execute(f"CREATE DATABASE {name} ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    latin = Database(database.url.rsplit("/", 1)[0] + "/" + name, name)
    try:
        latin.execute(
            'CREATE TABLE "Straße" ("größe" text PRIMARY KEY, v text)',
            'INSERT INTO "Straße" SELECT chr(n), repeat(chr(n), 3) FROM generate_series(161, 255) n',
        )
        connector = Connector(tmp_path, prefix, latin.url, kafka, ["public.Straße"])
        connector.catch_up()
        latin.execute("UPDATE \"Straße\" SET v = v || 'ÿ'", 'DELETE FROM "Straße" WHERE "größe" = \'é\'')
        connector.catch_up()
        assert len(connector.fold("public.Straße")) == 94
        found = ordered(connector.fold("public.Straße").values())
        assert found == ordered(rows(latin, 'SELECT * FROM "Straße"'))
        read = {r.raw_key for r in connector.records("public.Straße") if r.value and r.value["op"] == "r"}
        updated = {r.raw_key for r in connector.records("public.Straße") if r.value and r.value["op"] == "u"}
        assert read == updated
        latin.execute(f"SELECT pg_drop_replication_slot('cdc_{prefix}')")
    finally:
        database.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.mark.full  # test_a_pattern_brings_what_can_be_captured
def test_patterns(database: Database, kafka: str, prefix: str, tmp_path: Path) -> None:
    """`*` is any run of characters and `?` any one, also in the schema; views and unlogged tables are left out."""
    tables = ("orders", "orders_2024", "order_", "s1.a", "s1.bb", "s22.a")
    database.execute(
        "CREATE SCHEMA s1",
        "CREATE SCHEMA s22",
        *(f"CREATE TABLE {t} (id int PRIMARY KEY)" for t in tables),
        *(f"INSERT INTO {t} VALUES (1)" for t in tables),
        "CREATE VIEW orders_view AS SELECT 1 AS id",
        "CREATE UNLOGGED TABLE orders_tmp (id int)",
    )
    connector = Connector(tmp_path, prefix, database.url, kafka, ["public.orders*", "s?.?"])
    connector.catch_up()
    published = database.rows(
        f"SELECT schemaname || '.' || tablename FROM pg_publication_tables WHERE pubname = 'cdc_{prefix}'"
    )
    assert {t for (t,) in published} == {"public.orders", "public.orders_2024", "s1.a"}
    for table in ("public.orders", "public.orders_2024", "s1.a"):
        assert list(connector.fold(table).values()) == [{"id": 1}]


@pytest.mark.full  # test_ctrl_c_ends_several_cleanly
def test_two_connectors_in_one_command(postgres18: Database, kafka: str, prefix: str, tmp_path: Path) -> None:
    """`cdc run a.yaml b.yaml --until-caught-up` runs each in a process of its own and ends 0 when both are done."""
    postgres18.execute("CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE b (id int PRIMARY KEY)")
    postgres18.execute("INSERT INTO a VALUES (1)", "INSERT INTO b VALUES (2)")
    a = Connector(tmp_path, f"{prefix}a", postgres18.url, kafka, ["public.a"])
    b = Connector(tmp_path, f"{prefix}b", postgres18.url, kafka, ["public.b"])
    b.put_right()
    done = a.cdc("run", "FILE", str(b.file), "--until-caught-up")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert list(a.fold("public.a").values()) == [{"id": 1}]
    assert list(b.fold("public.b").values()) == [{"id": 2}]
