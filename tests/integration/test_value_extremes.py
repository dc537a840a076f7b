"""Values that are easily lost, through a connector on a real server, whatever a database and its encoding prefer."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from cdc.model.errors import GapError
from tests.conftest import Database, _database
from tests.integration.connector import Connector
from tests.integration.running import same
from tests.pushes import some_each_push

VALUES: Final[tuple[tuple[str, object], ...]] = (
    ("''::text", ""),
    ("NULL::text", None),
    ("'NULL'::text", "NULL"),
    ("''::bytea", ""),
    ("NULL::bytea", None),
    ("'\\x00ff'::bytea", "AP8="),
    ("'null'::jsonb", "null"),
    ("NULL::jsonb", None),
    ('\'{"a" :1,  "a": 1.00}\'::json', '{"a" :1,  "a": 1.00}'),
    ("'{}'::int[]", []),
    ("NULL::int[]", None),
    ("'{NULL}'::text[]", [None]),
    ("'{\"NULL\"}'::text[]", ["NULL"]),
    ("'-9223372036854775808'::int8", -(2**63)),
    ("9223372036854775807::int8", 2**63 - 1),
    ("'{9223372036854775807,-9223372036854775808}'::int8[]", [2**63 - 1, -(2**63)]),
    ("'294276-12-31 23:59:59.999999'::timestamp", 9_224_318_015_999_999_999),
    ("'4714-11-24 00:00:00 BC'::timestamp", -210_866_803_200_000_000),
    ("'0044-03-15 12:00+00 BC'::timestamptz", "-0043-03-15T12:00:00Z"),
    ("'infinity'::timestamptz", "infinity"),
    ("'-infinity'::date", "-infinity"),
    ("'24:00:00'::time", 86_400_000_000),
    ("'NaN'::float8", "NaN"),
    ("'-Infinity'::float4", "-Infinity"),
    ("'NaN'::numeric", "NaN"),
    ("'Infinity'::numeric", "Infinity"),
    ("'{NaN,1}'::float8[]", ["NaN", 1]),
    ("0.1::float8", 0.1),
    ("22.2200::numeric", "22.2200"),
    ("'-1234.5'::money", "-1234.50"),
    ("ARRAY['-1234.5'::money]", ["-1234.50"]),
    ("'1 year -2 days 3:04'::interval", "P1Y-2DT3H4M"),
    ("'2024-02-29 12:00+01'::timestamptz", "2024-02-29T11:00:00Z"),
    ("'2024-02-29'::date", 19_782),
    ("daterange('2024-02-29', NULL)", "[2024-02-29,)"),
    ("ROW(1, NULL)::pair", "(1,)"),
    ("ROW(1, '')::pair", '(1,"")'),
    ("'pg_class'::regclass", "pg_class"),
)

SETTINGS: Final = {
    "DateStyle": "German, DMY",
    "IntervalStyle": "sql_standard",
    "TimeZone": "America/St_Johns",
    "extra_float_digits": "-15",
    "bytea_output": "escape",
    "lc_monetary": "C.utf8",
    "xmlbinary": "hex",
    "quote_all_identifiers": "on",
}

OF_THE_ROLE: Final = {
    **SETTINGS,
    "client_encoding": "LATIN1",
    "statement_timeout": "1ms",
    "lock_timeout": "1ms",
    "idle_in_transaction_session_timeout": "1ms",
    "idle_session_timeout": "1ms",
    "tcp_user_timeout": "1ms",
    "default_transaction_isolation": "serializable",
    "default_transaction_read_only": "on",
    "default_transaction_deferrable": "on",
    "standard_conforming_strings": "off",
    "array_nulls": "off",
    "transform_null_equals": "on",
    "xmloption": "document",
    "exit_on_error": "on",
    "row_security": "on",
    "client_min_messages": "debug5",
    "session_replication_role": "replica",
    "synchronous_commit": "remote_apply",
    "jit": "on",
    "jit_above_cost": "0",
    "enable_indexscan": "off",
    "enable_seqscan": "off",
    "enable_sort": "off",
    "parallel_setup_cost": "0",
    "min_parallel_table_scan_size": "0",
    "work_mem": "64kB",
    "logical_decoding_work_mem": "64kB",
}
OF_A_NEWER_SERVER: Final = {"transaction_timeout": "2s"}


def test_values_that_must_be_told_apart(database: Database, kafka: str, prefix: str, tmp_path: Path) -> None:
    """`r` and `c` of the same values are the same bytes, and they are exact, whatever database and role are set to.

    The role's settings would also end each of our sessions, make it read only, or let it say things while it streams.
    """
    database.execute(
        *(f"ALTER DATABASE {database.name} SET {name} = {value!r}" for name, value in SETTINGS.items()),
        f"ALTER DATABASE {database.name} SET search_path = public, pg_catalog",
    )
    assert database.rows("SELECT '\\x00'::bytea::text, '1 day'::interval::text") == [("\\000", "1 0:00:00")]
    columns = ", ".join(f"{expression} AS c{n}" for n, (expression, _) in enumerate(VALUES))
    database.execute(
        "CREATE TYPE pair AS (n int, note text)",
        f"CREATE TABLE t AS SELECT 1 AS id, {columns}",
        "ALTER TABLE t ADD PRIMARY KEY (id)",
    )
    connector = Connector(tmp_path, prefix, database.url, kafka, ["public.t"])
    role = f"cdc_capture_{database.name}"
    ((newer,),) = database.rows("SELECT count(*) FROM pg_settings WHERE name = 'transaction_timeout'")
    hostile = {**OF_THE_ROLE, **(OF_A_NEWER_SERVER if newer else {})}
    database.execute(*(f"ALTER ROLE {role} SET {name} = {value!r}" for name, value in hostile.items()))
    connector.catch_up()
    database.execute("CREATE TEMP TABLE was AS SELECT * FROM t; UPDATE was SET id = 2; INSERT INTO t SELECT * FROM was")
    connector.catch_up()
    for words in (["check", "FILE"], ["status", "FILE"], ["snapshot", "start", "FILE", "--table", "public.t"]):
        done = connector.here(*words)
        assert done.returncode == 0, done
    said = connector.catch_up()
    assert "DEBUG" not in said
    read, created, again, _ = (event["after"] for event in connector.events("public.t"))
    assert json.dumps({**read, "id": 2}) == json.dumps(created)
    assert json.dumps(read) == json.dumps(again)
    for n, (expression, expected) in enumerate(VALUES):
        assert read[f"c{n}"] == expected, expression


@pytest.fixture(params=["postgres16", "postgres18"])
def ascii_database(request: pytest.FixtureRequest, servers: Callable[[str], str], prefix: str) -> Iterator[Database]:
    """In SQL_ASCII, where any bytes are text."""
    with contextlib.contextmanager(_database)(servers(request.param)) as database:
        name = f"{database.name}_ascii"
        database.execute(f"CREATE DATABASE {name} ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0")
        try:
            yield Database(database.url.rsplit("/", 1)[0] + "/" + name, name)
        finally:
            for (slot,) in database.rows(f"SELECT slot_name FROM pg_replication_slots WHERE database = '{name}'"):
                database.execute(f"SELECT pg_drop_replication_slot('{slot}')")
            database.execute(f"DROP DATABASE {name} WITH (FORCE)")


def test_sql_ascii_database(ascii_database: Database, kafka: str, prefix: str, tmp_path: Path) -> None:
    """Text that is UTF-8 arrives, the same by snapshot and stream; bytes in a bytea may be any."""
    ascii_database.execute(
        "CREATE TABLE t (k text PRIMARY KEY, v text, b bytea, a text[])",
        "INSERT INTO t VALUES (E'\\303\\274', E'gr\\303\\274n', '\\xff00', ARRAY[E'\\342\\230\\203'])",
    )
    connector = Connector(tmp_path, prefix, ascii_database.url, kafka, ["public.t"])
    connector.catch_up()
    ascii_database.execute("UPDATE t SET v = v || v", "INSERT INTO t (k) VALUES ('x')")
    connector.catch_up()
    assert connector.fold("public.t") == {
        '{"k":"ü"}'.encode(): {"k": "ü", "v": "grüngrün", "b": "/wA=", "a": ["☃"]},
        b'{"k":"x"}': {"k": "x", "v": None, "b": None, "a": None},
    }


@pytest.mark.full  # test_a_text_that_the_server_cannot_write
def test_bytes_without_a_character(postgres18: Database, kafka: str, prefix: str, tmp_path: Path) -> None:
    """WIN1252 takes five bytes that are no letter; the log keeps such a row whatever becomes of it: a gap to close."""
    name = f"{postgres18.name}_w"
    postgres18.execute(f"CREATE DATABASE {name} ENCODING 'WIN1252' LOCALE 'C' TEMPLATE template0")
    windows = Database(postgres18.url.rsplit("/", 1)[0] + "/" + name, name)
    try:
        windows.execute("CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, 'ä€')")
        connector = Connector(tmp_path, prefix, windows.url, kafka, ["public.t"])
        connector.catch_up()
        windows.execute("SET client_encoding = 'WIN1252'; INSERT INTO t VALUES (2, E'a\\x9db')")
        windows.execute("UPDATE t SET v = 'good' WHERE id = 2")
        done = connector.here("run", "FILE", "--until-caught-up")
        assert done.returncode == GapError.exit_code, done.stderr
        assert "the server cannot send its own log" in done.stderr
        assert "\x9d" not in done.stderr
        connector.close_the_gap()
        same(connector, windows, "public.t")
        windows.execute("SET client_encoding = 'WIN1252'; INSERT INTO t VALUES (3, E'a\\x9db')")
        unread = Connector(tmp_path, f"{prefix}b", windows.url, kafka, ["public.t"])
        done = unread.here("run", "FILE", "--until-caught-up")
        assert done.returncode == 1, done.stderr
        assert "reading table public.t: a text has bytes that are no character in Unicode" in done.stderr
    finally:
        for (slot,) in postgres18.rows(f"SELECT slot_name FROM pg_replication_slots WHERE database = '{name}'"):
            postgres18.execute(f"SELECT pg_drop_replication_slot('{slot}')")
        postgres18.execute(f"DROP DATABASE {name} WITH (FORCE)")


BYTES: Final = {
    "a column": "INSERT INTO t VALUES ('k', E'can\\377ary', NULL)",
    "an array": "INSERT INTO t VALUES ('k', NULL, ARRAY[E'can\\377ary'])",
    "the key": "INSERT INTO t VALUES (E'can\\377ary', NULL, NULL)",
}


@pytest.mark.parametrize(
    "case",
    some_each_push(itertools.product(BYTES, ("snapshot", "stream")), ("a column", "stream"), ("the key", "snapshot")),
    ids=str,
)
def test_bytes_that_are_no_text(
    case: tuple[str, str], ascii_database: Database, kafka: str, prefix: str, tmp_path: Path
) -> None:
    """They stop the connector with table and column, and never with the value; nothing altered is published."""
    what, by = case
    ascii_database.execute("CREATE TABLE t (k text PRIMARY KEY, v text, a text[])")
    connector = Connector(tmp_path, prefix, ascii_database.url, kafka, ["public.t"])
    if by == "stream":
        connector.catch_up()
    ascii_database.execute(BYTES[what])
    done = connector.here("run", "FILE", "--until-caught-up")
    assert done.returncode == 1, done.stderr
    column = {"a column": "v", "an array": "a", "the key": "k"}[what]
    assert "table public.t" in done.stderr
    assert f"the value of {column} cannot be written as JSON" in done.stderr
    assert "ary" not in done.stderr
    assert "xff" not in done.stderr
    assert "Traceback" not in done.stderr
    assert connector.records("public.t") == []
