"""Rows, phrase by phrase: values stored out of line, of every type, and what partitions do; on PostgreSQL 16 and 18."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import Database
from tests.integration.connector import Connector
from tests.integration.running import ordered, rows, same, unbroken
from tests.integration.stories import SWAP, WIDE, Told, story, toasted

# --- Every type that can be stored out of line ------------------------------------------------------------------------

BITS = "translate(w || w, '23456789abcdef', '01010101010101')"
POINTS = "(SELECT string_agg(format('(%s,%s)', x, -x), ',') FROM generate_series(1, 400) x)"
TOASTABLE: dict[str, tuple[str, str]] = {
    # type, and a value of more than 2,000 bytes made of w: 12,800 hexadecimal digits
    "body": ("text", "w"),
    "code": ("varchar(20000)", "w"),
    "padded": ("char(9000)", "left(w, 8000)"),
    "raw": ("bytea", "decode(w, 'hex')"),
    "js": ("json", 'format(\'{"b" : [1,  "%s"], "b": 1.00}\', w)::json'),
    "jsb": ("jsonb", "jsonb_build_object('b', w, 'a', 1.50)"),
    "number": ("numeric", "('9' || translate(w, 'abcdef', '123456') || '.50')::numeric"),
    "bits": ("bit varying", f"{BITS}::varbit"),
    "fixed_bits": ("bit(25600)", f"{BITS}::bit(25600)"),
    "route": ("path", f"('[' || {POINTS} || ']')::path"),
    "area": ("polygon", f"('(' || {POINTS} || ')')::polygon"),
    "words": ("tsvector", "array_to_tsvector((SELECT array_agg(md5(w || x)) FROM generate_series(1, 200) x))"),
    "query": ("jsonpath", "('$.\"' || w || '\"')::jsonpath"),
    "texts": ("text[]", "ARRAY[w, NULL, 'NULL', '', ',']"),
    "grid": ("int[]", "(SELECT array_agg(ARRAY[x, NULL, -x]) FROM generate_series(1, 800) x)"),
    "stamps": (
        "timestamptz[]",
        "(SELECT array_agg('2024-01-01 00:00+00'::timestamptz + x * '1 s'::interval) FROM generate_series(1, 800) x)",
    ),
    "moods": ("mood[]", "array_fill('sad'::mood, ARRAY[800])"),
    "pair": ("pair", "ROW(7, w)::pair"),
    "pairs": ("pair[]", "ARRAY[ROW(7, w)::pair, NULL, ROW(NULL, '')::pair]"),
    "span": ("textrange", "textrange('0' || w, 'z' || w)"),
    "spans": ("nummultirange", "(SELECT range_agg(numrange(x + 0.25, x + 0.5)) FROM generate_series(1, 400) x)"),
    "title": ("title", "w"),
    "document": ("document", "jsonb_build_object('b', w)"),
    "titles": ("titles", "ARRAY[w, NULL]"),
    "place": ("hstore", '(\'"a"=>"\' || w || \'", "b"=>NULL\')::hstore'),
    "vec": ("vector(2000)", "(SELECT array_agg(x / 4.0) FROM generate_series(1, 2000) x)::vector"),
    "page": ("xml", "w"),
}
COLUMNS = ", ".join(f"{name} {type_ if type_ != 'xml' else 'text'}" for name, (type_, _) in TOASTABLE.items())
EXTERNAL = ", ".join(f"ALTER COLUMN {name} SET STORAGE EXTERNAL" for name in TOASTABLE)


def row_of_all(table: str, number: int) -> str:
    values = ", ".join(expression for _, expression in TOASTABLE.values())
    return f"INSERT INTO {table} SELECT {number}, 0, {values} FROM (SELECT {WIDE.format(number)} AS w) AS made"


def both(*statements: str) -> list[str]:
    """Of `t`, whose log leaves values out, and of `whole`, whose log has them all."""
    return [statement.replace(" t ", f" {table} ") for table in ("t", "whole") for statement in statements]


MOVES = (
    "UPDATE t SET n = n + 1",
    "UPDATE t SET id = id + 10 WHERE id % 10 = 1",
    "UPDATE t SET n = n + 1 WHERE id > 10",
    SWAP.format(2, 3),
)


@story(
    "CREATE TYPE mood AS ENUM ('sad')",
    "CREATE TYPE pair AS (n int, note text)",
    'CREATE TYPE textrange AS RANGE (subtype = text, collation = "C")',
    "CREATE DOMAIN title AS text",
    "CREATE DOMAIN document AS jsonb",
    "CREATE DOMAIN titles AS text[]",
    # these builds have no hstore: a type of its name that takes its text as it is
    """
    CREATE TYPE hstore;
    CREATE FUNCTION hstore_in(cstring) RETURNS hstore LANGUAGE internal IMMUTABLE STRICT AS 'textin';
    CREATE FUNCTION hstore_out(hstore) RETURNS cstring LANGUAGE internal IMMUTABLE STRICT AS 'textout';
    CREATE TYPE hstore (INPUT = hstore_in, OUTPUT = hstore_out, STORAGE = extended)
    """,
    "CREATE EXTENSION vector",
    f"CREATE TABLE t (id int PRIMARY KEY, n int, {COLUMNS})",
    f"ALTER TABLE t {EXTERNAL}",
    "CREATE TABLE whole (LIKE t INCLUDING INDEXES INCLUDING STORAGE)",
    "ALTER TABLE whole REPLICA IDENTITY FULL",
    *(row_of_all(table, number) for table in ("t", "whole") for number in (1, 2, 3)),
    # nor libxml, which only reading xml's text needs: what was stored as text is xml from here on
    "UPDATE pg_attribute SET atttypid = 'xml'::regtype WHERE attname = 'page'"
    " AND attrelid IN ('t'::regclass, 'whole'::regclass)",
    stream=both(*MOVES),
    restarted=both(*MOVES),
)
def test_unchanged_toast_of_every_type(told: Told) -> None:
    """Updates, key changes and swaps leave out each value stored out of line; rows are whole, over a restart too."""
    assert toasted(told) == 3 * len(TOASTABLE)
    events = told.events()
    for event in events:
        if event["after"] is not None:
            assert list(event["after"]) == ["id", "n", *TOASTABLE]
            assert None not in event["after"].values()
    assert [e["op"] for e in events] == [e["op"] for e in told.events("whole")]
    assert told.folded() == told.folded("whole")
    assert {row["id"] for row in told.folded()} == {row["id"] for row in told.source("SELECT id FROM t")}
    kinds = {c["name"]: (c["type"].removeprefix(f"{told.schema}."), c["kind"]) for c in told.versions()[-1]["columns"]}
    assert kinds["page"] == ("xml", "string")
    assert kinds["place"] == ("hstore", "json")
    assert json.loads(told.folded()[0]["place"])["b"] is None


def test_every_toastable_built_in_type_is_tried(postgres18: Database) -> None:
    """What the server may store out of line: a type that a later one brings fails here."""
    ours = {type_.partition("(")[0] for type_, _ in TOASTABLE.values()} | {"character varying", "character"}
    found = postgres18.rows(
        "SELECT format_type(t.oid, NULL) FROM pg_type t WHERE t.typnamespace = 'pg_catalog'::regnamespace"
        " AND t.typtype = 'b' AND t.typstorage <> 'p' AND t.typcategory <> 'A'"
        " AND t.typinput::text !~ '^(pg_|gts|brin)'"
    )
    small = {"inet", "cidr", "refcursor", "txid_snapshot", "pg_snapshot", "tsquery", "bpchar", '"bit"'}
    assert {str(name) for (name,) in found} - small <= ours | {"bit"}


def test_wide_state_is_rebuilt_after_the_loss_of_the_machine(
    database: Database, kafka: str, prefix: str, tmp_path: Path
) -> None:
    """Nothing on the connector's disk is needed: on another machine, values left out come from the topic."""
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, n int, body text)",
        "ALTER TABLE t ALTER COLUMN body SET STORAGE EXTERNAL",
        f"INSERT INTO t SELECT x, 0, {WIDE.format('')} || x FROM generate_series(1, 20) x",
    )
    for machine in range(3):
        folder = tmp_path / f"machine{machine}"
        (folder / "tmp").mkdir(parents=True)
        connector = Connector(folder, prefix, database.url, kafka, ["public.t"])
        connector.environment |= {
            "TMPDIR": str(folder / "tmp"),
            "SQLITE_TMPDIR": str(folder / "tmp"),
            "HOME": str(folder),
        }
        connector.catch_up(process=True)
        same(connector, database, "public.t")
        unbroken(connector, "public.t")
        assert list((folder / "tmp").iterdir()) == []
        database.execute("UPDATE t SET n = n + 1", "UPDATE t SET id = id + 100 WHERE id % 10 = 3")
    assert all(row["n"] == 2 for row in connector.fold("public.t").values())


# --- TRUNCATE ---------------------------------------------------------------------------------------------------------


@story(
    *(f"CREATE TABLE {t} (id int PRIMARY KEY, v text)" for t in ("t", "u")),
    "CREATE TABLE child (id int PRIMARY KEY, t int REFERENCES t)",
    "CREATE TABLE parted (id int PRIMARY KEY) PARTITION BY HASH (id)",
    *(f"CREATE TABLE p_{n} PARTITION OF parted FOR VALUES WITH (MODULUS 2, REMAINDER {n})" for n in (0, 1)),
    *(f"INSERT INTO {t} SELECT n, 'old' FROM generate_series(1, 300) n" for t in ("t", "u")),
    "INSERT INTO child SELECT n, n FROM generate_series(51, 300) n",
    "INSERT INTO parted SELECT generate_series(1, 300)",
    stream=[
        """
        BEGIN;
        UPDATE t SET id = id + 1000 WHERE id <= 50;
        TRUNCATE t, u, parted CASCADE;
        INSERT INTO t SELECT n, 'new' FROM generate_series(200, 400) n;
        INSERT INTO child VALUES (1, 200);
        INSERT INTO parted SELECT generate_series(290, 310);
        COMMIT
        """,
    ],
    restarted=["BEGIN; TRUNCATE parted; INSERT INTO parted VALUES (1), (300); COMMIT"],
)
def test_truncate_of_several_with_inserts_after_it(told: Told) -> None:
    """Over all partitions of the topics, a reader ends with the rows that came after it, and with no other."""
    for table in ("t", "u", "child", "parted"):
        assert told.folded(table) == told.source(f"SELECT * FROM {table}")
        assert len({r.partition for r in told.records(table)}) > 1
    first = {e["transaction"]["id"] for t in ("t", "u", "child") for e in told.events(t) if e["transaction"]}
    assert len(first) == 1, "one source transaction"


# --- Partitions -------------------------------------------------------------------------------------------------------


@story(
    "CREATE TABLE t (id int, day int, v text, PRIMARY KEY (id, day)) PARTITION BY LIST (day)",
    "CREATE TABLE t_1 PARTITION OF t FOR VALUES IN (1)",
    "CREATE TABLE t_2 PARTITION OF t FOR VALUES IN (2)",
    "INSERT INTO t VALUES (1, 1, 'a'), (2, 2, 'a')",
    stream=[
        "ALTER TABLE t DETACH PARTITION t_2",
        "UPDATE t SET v = 'b'",
        "CREATE TABLE t_3 (v text, day int NOT NULL, id int NOT NULL)",
        "ALTER TABLE t ATTACH PARTITION t_3 FOR VALUES IN (3)",
        "INSERT INTO t VALUES (3, 3, 'b')",
        "UPDATE t SET day = 3 WHERE id = 1",
        "ALTER TABLE t ATTACH PARTITION t_2 FOR VALUES IN (2)",
        "UPDATE t SET v = 'c'",
    ],
    restarted=["UPDATE t SET v = 'd' WHERE id <> 2", "DELETE FROM t WHERE id = 3"],
)
def test_partitions_attached_and_detached(told: Told) -> None:
    """What is written to a partition while it is one is an event of the root; attached in any order of its columns."""
    assert told.folded() == told.source()
    # What goes and comes with a partition is read again, beside these:
    assert [(op, after) for op, _, after in told.moves() if op in "cu"] == [
        ("u", {"id": 1, "day": 1, "v": "b"}),
        ("c", {"id": 3, "day": 3, "v": "b"}),
        ("c", {"id": 1, "day": 3, "v": "b"}),
        *(("u", {"id": i, "day": d, "v": "c"}) for i, d in ((2, 2), (3, 3), (1, 3))),
        ("u", {"id": 3, "day": 3, "v": "d"}),
        ("u", {"id": 1, "day": 3, "v": "d"}),
    ]


# --- Keys that the configuration gives --------------------------------------------------------------------------------


LOGS = (
    "CREATE TABLE logs (host text NOT NULL, no int NOT NULL, v text)",
    "ALTER TABLE logs REPLICA IDENTITY FULL",
    "INSERT INTO logs SELECT 'h' || n % 3, n, 'v' FROM generate_series(1, 50) n",
)


def test_a_table_without_a_primary_key_by_columns(database: Database, kafka: str, prefix: str, tmp_path: Path) -> None:
    """`key: [no, host]`: rows are keyed by them in this order, by snapshot and stream, through changes of the key."""
    database.execute(*LOGS)
    table = {"table": "public.logs", "key": ["no", "host"]}
    connector = Connector(tmp_path, prefix, database.url, kafka, [table])  # type: ignore[list-item]
    said = connector.catch_up(process=True)  # which says it once
    assert said.count("nothing makes its key (no, host) unique") == 1
    checked = connector.cdc("check", "FILE", "--json")
    found = {of["about"]: of["message"] for of in json.loads(checked.stdout)["findings"] if of["level"] == "warning"}
    assert (checked.stderr, found["table public.logs"].partition(":")[0]) == (
        "",
        "nothing makes its key (no, host) unique",
    )
    database.execute(
        "UPDATE logs SET v = 'w' WHERE no < 10",
        "UPDATE logs SET host = 'moved' WHERE no = 5",
        "DELETE FROM logs WHERE no > 40",
        "BEGIN; TRUNCATE logs; INSERT INTO logs VALUES ('h', 1, 'again'); COMMIT",
        "INSERT INTO logs VALUES ('h', 2, NULL)",
    )
    connector.catch_up()
    same(connector, database, "public.logs")
    assert all(list(r.key) == ["no", "host"] for r in connector.records("public.logs"))
    unbroken(connector, "public.logs")


def test_another_key_than_the_primary_key(postgres18: Database, kafka: str, prefix: str, tmp_path: Path) -> None:
    """Chosen by the configuration, also for a running connector: then the rows are asked for again."""
    postgres18.execute(
        "CREATE TABLE t (id int PRIMARY KEY, email text NOT NULL UNIQUE, v int)",
        "INSERT INTO t VALUES (1, 'a@b', 0), (2, 'c@d', 0)",
    )
    Connector(tmp_path, prefix, postgres18.url, kafka, ["public.t"]).catch_up()
    table = {"table": "public.t", "key": ["email"]}
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, [table])  # type: ignore[list-item]
    refused = connector.here("run", "FILE", "--until-caught-up")
    assert refused.returncode == 1
    assert "ALTER TABLE public.t REPLICA IDENTITY FULL" in refused.stderr
    postgres18.execute(
        "UPDATE t SET v = 1",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "UPDATE t SET v = 2",
        "UPDATE t SET email = 'e@f' WHERE id = 2",
    )
    said = connector.catch_up()
    assert "its key is now (email), it was (id)" in said
    by_email = [row for key, row in connector.fold("public.t").items() if b"email" in key]
    assert ordered(by_email) == ordered(rows(postgres18, "SELECT * FROM t"))


def test_the_columns_of_an_identity_index_by_name(
    postgres18: Database, kafka: str, prefix: str, tmp_path: Path
) -> None:
    """Then the log has what is needed without REPLICA IDENTITY FULL, and the order is the configuration's."""
    postgres18.execute(
        "CREATE TABLE t (a int NOT NULL, b int NOT NULL, v int, UNIQUE (a, b))",
        "ALTER TABLE t REPLICA IDENTITY USING INDEX t_a_b_key",
        "INSERT INTO t VALUES (1, 2, 0), (3, 4, 0)",
    )
    table = {"table": "public.t", "key": ["b", "a"]}
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, [table])  # type: ignore[list-item]
    assert "unique" not in connector.catch_up()
    postgres18.execute("UPDATE t SET b = 5 WHERE a = 1", "DELETE FROM t WHERE a = 3")
    connector.catch_up()
    assert connector.fold("public.t") == {b'{"b":5,"a":1}': {"a": 1, "b": 5, "v": 0}}


@pytest.mark.parametrize(
    "case",
    [
        ("logs", ["host", "no"], ("may be null", "host SET NOT NULL; ALTER TABLE public.logs REPLICA IDENTITY FULL")),
        ("logs", ["no"], ("does not carry its key (no)", "ALTER TABLE public.logs REPLICA IDENTITY FULL")),
        pytest.param(("logs", ["nr"], ("names nr, which is not a column", "did you mean no?")), marks=pytest.mark.full),
        pytest.param(
            ("parted", ["no"], ("does not carry its key (no)", "ALTER TABLE public.parted_1 REPLICA IDENTITY FULL")),
            marks=pytest.mark.full,
        ),
        pytest.param(
            (
                "logs",
                None,
                ("has no primary key", "tables: [{table: public.logs, key: [no, host]}]", "ADD PRIMARY KEY"),
            ),
            marks=pytest.mark.full,
        ),
    ],
)
def test_keys_that_cannot_be_followed_are_refused(
    case: tuple[str, list[str] | None, tuple[str, ...]],
    postgres18: Database,
    kafka: str,
    prefix: str,
    tmp_path: Path,
) -> None:
    """With all statements that repair it, before anything is made."""
    table, key, words = case
    postgres18.execute(
        "CREATE TABLE logs (no int NOT NULL, host text)",
        "CREATE TABLE parted (no int NOT NULL) PARTITION BY RANGE (no)",
        "CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (0) TO (10)",
        "ALTER TABLE parted REPLICA IDENTITY FULL",
    )
    item = {"table": f"public.{table}", "key": key} if key else f"public.{table}"
    done = Connector(tmp_path, prefix, postgres18.url, kafka, [item]).here("run", "FILE", "--until-caught-up")  # type: ignore[list-item]
    assert done.returncode == 1
    for word in words:
        assert word in done.stderr
    assert postgres18.rows(f"SELECT FROM pg_replication_slots WHERE slot_name = 'cdc_{prefix}'") == []


def test_a_null_key_is_never_written(postgres18: Database, kafka: str, prefix: str, tmp_path: Path) -> None:
    """A column was nullable for a time: such a row is not published, and the table is read as it is by now."""
    postgres18.execute(*LOGS)
    table = {"table": "public.logs", "key": ["no"]}
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, [table])  # type: ignore[list-item]
    connector.catch_up()
    postgres18.execute(
        "ALTER TABLE logs ALTER COLUMN no DROP NOT NULL",
        "INSERT INTO logs VALUES ('h', NULL, 'secret'), ('h', NULL, 'secret')",
        "DELETE FROM logs WHERE no IS NULL",
        "ALTER TABLE logs ALTER COLUMN no SET NOT NULL",
    )
    said = connector.catch_up()
    assert said.count("table public.logs: the log has a row without the whole of its key") == 1
    assert "secret" not in said
    assert all(r.key["no"] is not None for r in connector.records("public.logs"))
    same(connector, postgres18, "public.logs")


def test_the_log_stops_carrying_the_key(postgres18: Database, kafka: str, prefix: str, tmp_path: Path) -> None:
    """REPLICA IDENTITY FULL taken away while it runs: it stops instead of guessing, and goes on when it is back."""
    postgres18.execute(
        "CREATE TABLE t (id int PRIMARY KEY, email text NOT NULL UNIQUE)",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "INSERT INTO t VALUES (1, 'a@b')",
    )
    table = {"table": "public.t", "key": ["email"]}
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, [table])  # type: ignore[list-item]
    connector.catch_up()
    postgres18.execute("ALTER TABLE t REPLICA IDENTITY DEFAULT", "UPDATE t SET email = 'c@d'")
    done = connector.here("run", "FILE", "--until-caught-up")
    assert done.returncode == 1
    assert "ALTER TABLE public.t REPLICA IDENTITY FULL" in done.stderr
    postgres18.execute("ALTER TABLE t REPLICA IDENTITY FULL", "UPDATE t SET email = 'e@f'")
    said = connector.catch_up()
    assert "its rows are read again" in said
    assert connector.fold("public.t")[b'{"email":"e@f"}'] == {"id": 1, "email": "e@f"}
