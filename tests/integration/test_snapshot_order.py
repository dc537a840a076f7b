"""The order a table is read in is the order its keys have for us, whether an index gives it or a sort."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import orjson
import pytest

from cdc.config.config import ConnectorConfig, SnapshotConfig
from cdc.config.kafka_config import KafkaConfig
from cdc.config.source_config import SourceConfig
from cdc.model.change import Row, Table
from connectors.postgres.source import PostgresSource
from snapshot.handover import Progress, key_of, key_order, sort_key
from snapshot.postgres.copying import copy_statement
from snapshot.postgres.snapshotter import PostgresSnapshotter
from tests.conftest import Database
from tests.integration.connector import Connector
from tests.integration.running import eventually

ROWS = 3_000
TEXTS = "chr(33 + (x * 37) % 90) || chr(12000 + x % 7) || repeat('é', x % 5) || x"
KEYS = {
    "bigint": ("id bigint", "(x - 1500) * 1000003"),
    "uuid": ("id uuid", "md5(x::text)::uuid"),
    "text": ("id text", TEXTS),
    "C": ('id text COLLATE "C"', TEXTS),
    "varchar": ("id varchar(40)", TEXTS),
    "collated": ("id text COLLATE public.elsewhere", TEXTS),
    "char": ("id char(20)", TEXTS),
    "bytea": ("id bytea", "decode(md5(x::text), 'hex') || ''::bytea"),
    "numeric": ("id numeric", "(x - 1500) / 8.0"),
    "timestamptz": ("id timestamptz", "timestamptz '0001-01-01 00:00:00Z' + (x - 1500) * interval '1 year'"),
    "boolean, text": ("flag boolean, id text", f"x % 2 = 0, {TEXTS}"),
    "uuid, integer": ("of uuid, id integer", "md5((x / 100)::text)::uuid, x - 1500"),
}
BY_INDEX = {"bigint", "uuid", "text", "C", "varchar", "bytea", "boolean, text", "uuid, integer"}


def _config(url: str) -> ConnectorConfig:
    return ConnectorConfig(
        name="orders",
        source=SourceConfig(type="postgres", url=url, tables=("public.t",)),
        sink=KafkaConfig(bootstrap_servers="none:9092", topic_prefix="p"),
        snapshot=SnapshotConfig(workers=3, chunk_rows=500),
    )


def _fill(database: Database, kind: str) -> None:
    columns, value = KEYS[kind]
    names = ", ".join(column.split()[0] for column in columns.split(", "))
    database.execute(
        "CREATE COLLATION elsewhere (locale = 'C.UTF-8')",  # of libc, which promises no order
        f"CREATE TABLE t ({columns}, note text, PRIMARY KEY ({names}))",
        f"INSERT INTO t SELECT {value}, 'n' || x FROM generate_series(1, {ROWS}) x",
        "ANALYZE t",
    )


def _read(url: str) -> tuple[Table, list[Row], list[list[Row]], dict[str, Any]]:
    """The table; its rows; those of each piece as it was read; the last progress."""
    config = _config(url)
    with closing(PostgresSource(config)) as source, closing(PostgresSnapshotter(config)) as snapshotter:
        source.connect()
        (table,) = source.tables()
        rows: list[Row] = []
        progress: dict[str, Any] = {}
        chunks: list[list[Row]] = []
        for chunk in snapshotter.chunks([table], {}, None):
            rows += chunk.rows
            chunks.append(list(chunk.rows))
            progress = dict(chunk.progress)
    return table, rows, chunks, progress


@pytest.mark.parametrize("kind", KEYS)
def test_read_in_the_order_of_the_keys(kind: str, database: Database) -> None:
    """Cut into pieces by a sample, each in order: all rows once, and every key lies in the range it was read in."""
    _fill(database, kind)
    table, rows, chunks, progress = _read(database.url)
    assert len(chunks) == 3
    places = [[sort_key(key_order(table), key_of(table, row)) for row in chunk] for chunk in chunks]
    assert all(chunk == sorted(chunk) for chunk in places)
    assert max(len(chunk) for chunk in chunks) < ROWS / 2, "cut evenly"
    inside = sorted((chunk[0], chunk[-1]) for chunk in places)
    assert all(one[1] < other[0] for one, other in pairwise(inside))
    assert sorted(str(row[-1], "ascii") for row in rows) == sorted(f"n{x}" for x in range(1, ROWS + 1))  # type: ignore[arg-type]
    assert progress["tables"]["public.t"]["ranges"] == [{"upto": None, "view": 1}]


def test_a_partitioned_table_is_cut_as_one(database: Database) -> None:
    """By the keys of all its partitions, wherever they lie, each row once."""
    database.execute(
        "CREATE TABLE t (id bigint, at int, note text, PRIMARY KEY (id, at)) PARTITION BY LIST (at)",
        *(f"CREATE TABLE t_{n} PARTITION OF t FOR VALUES IN ({n})" for n in range(3)),
        f"INSERT INTO t SELECT x, x % 3, 'n' || x FROM generate_series(1, {ROWS}) x",
        "ANALYZE t",
    )
    table, rows, chunks, progress = _read(database.url)
    assert len(chunks) == 3
    places = [[sort_key(key_order(table), key_of(table, row)) for row in chunk] for chunk in chunks]
    assert all(chunk == sorted(chunk) for chunk in places)
    assert sorted(place for chunk in places for place in chunk) == [(x, x % 3) for x in range(1, ROWS + 1)]
    assert (len(rows), progress["tables"]["public.t"]["estimate"]) == (ROWS, ROWS)


def test_several_sessions_stand_in_one_table_at_once(database: Database) -> None:
    """Each in a range of its own, all under one view; broken off there, two more runs read the rest, each row once."""
    rows = 200_000
    database.execute(
        f"CREATE TABLE t AS SELECT generate_series(1, {rows}) AS id", "ALTER TABLE t ADD PRIMARY KEY (id)", "ANALYZE t"
    )
    config = _config(database.url)
    active = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query ~ '^COPY .SELECT'"
    found: list[bytes] = []
    progress: dict[str, Any] = {}
    for run in range(1, 4):
        with closing(PostgresSource(config)) as source, closing(PostgresSnapshotter(config)) as snapshotter:
            source.connect()
            for chunk in snapshotter.chunks(source.tables(), progress, None):
                found += [bytes(row[0]) for row in chunk.rows if isinstance(row[0], bytes)]
                progress = orjson.loads(orjson.dumps(chunk.progress))
                assert chunk.view == run
                gaps = sum(r["view"] is None for r in progress["tables"]["public.t"]["ranges"])
                if run < 3 and gaps < 3:
                    time.sleep(0.05)  # so that none ends before all have begun: the queue holds it back
                if run < 3 and gaps == 3:
                    eventually(lambda: database.rows(active) == [(3,)], "three sessions read")
                    break
        assert len(progress["views"]) == run
    assert progress["tables"]["public.t"]["done"]
    assert sorted(map(int, found)) == list(range(1, rows + 1))


@pytest.mark.parametrize("kind", KEYS)
def test_an_index_gives_the_order_where_it_can(kind: str, database: Database) -> None:
    """Without a sort for types that order by their bytes, bounds included; text of another collation is sorted."""
    _fill(database, kind)
    table, rows, _, _ = _read(database.url)
    middle = sorted((key_of(table, row) for row in rows), key=lambda key: sort_key(key_order(table), key))
    config = _config(database.url)
    with closing(PostgresSnapshotter(config)) as snapshotter, closing(database.connect()) as connection:
        _, (piece, *_) = snapshotter._plan(connection, table, Progress())
        statement = copy_statement(table, piece.relation, after=middle[500], upto=middle[900]).as_string(connection)
        query = statement.removeprefix("COPY (").removesuffix(") TO STDOUT")
        with connection.cursor() as cursor:
            cursor.execute("SET enable_sort = off; SET enable_seqscan = off; SET enable_bitmapscan = off")
            cursor.execute("EXPLAIN (FORMAT JSON) " + query)
            plan = json.dumps(cursor.fetchall())
            cursor.execute(f"SELECT count(*) FROM ({query}) q")
            assert cursor.fetchall() == [(400,)]
    assert ("Sort Key" not in plan) == (kind in BY_INDEX)
    if kind in BY_INDEX:
        assert "Index Cond" in plan


@pytest.fixture
def elsewhere(database: Database) -> Iterator[Callable[[str], Database]]:
    """Makes a database with options of its own on the same server."""
    made: list[str] = []

    def make(options: str) -> Database:
        name = f"{database.name}_{len(made)}"
        database.execute(f"CREATE DATABASE {name} TEMPLATE template0 {options}")
        made.append(name)
        return Database(database.url.rsplit("/", 1)[0] + "/" + name, name)

    yield make
    for name in made:
        database.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.mark.parametrize(
    ("options", "indexed"),
    [
        ("LC_COLLATE 'C' LC_CTYPE 'C' ENCODING 'UTF8'", {"plain", "c", "p", "u"}),
        ("LC_COLLATE 'C.UTF-8' LC_CTYPE 'C.UTF-8' ENCODING 'UTF8'", {"c", "p", "u"}),
        ("LC_COLLATE 'C' LC_CTYPE 'C' ENCODING 'LATIN1'", set()),
        ("LC_COLLATE 'C' LC_CTYPE 'C' ENCODING 'SQL_ASCII'", set()),
    ],
)
@pytest.mark.every_server
def test_which_text_orders_by_its_bytes(options: str, indexed: set[str], elsewhere: Callable[[str], Database]) -> None:
    """In UTF-8, by collation C under all its names, the column's or the database's; nowhere else is it sure."""
    there = elsewhere(options)
    columns = {"plain": "text", "c": 'text COLLATE "C"', "f": 'char(3) COLLATE "C"'}
    if "UTF8" in options:
        there.execute("CREATE COLLATION elsewhere (locale = 'C.UTF-8')")
        columns |= {"p": 'varchar COLLATE "POSIX"', "u": "text COLLATE ucs_basic", "e": "text COLLATE public.elsewhere"}
    declared = ", ".join(f"{name} {type_}" for name, type_ in columns.items())
    there.execute(f"CREATE TABLE t ({declared}, PRIMARY KEY ({', '.join(columns)}))")
    assert _indexed(there) == indexed


def test_the_builtin_provider_orders_by_bytes(postgres18: Database) -> None:
    """Its collations compare code points."""
    postgres18.execute("CREATE TABLE t (a text COLLATE pg_c_utf8, b text COLLATE pg_unicode_fast, PRIMARY KEY (a, b))")
    assert _indexed(postgres18) == {"a", "b"}


def _indexed(database: Database) -> frozenset[str]:
    config = _config(database.url)
    with closing(PostgresSource(config)) as source, closing(PostgresSnapshotter(config)) as snapshotter:
        source.connect()
        (table,) = source.tables()
        with closing(database.connect()) as connection:
            _, (piece, *_) = snapshotter._plan(connection, table, Progress())
    return piece.relation.indexed


@pytest.mark.every_server
def test_keys_of_no_known_encoding(elsewhere: Callable[[str], Database]) -> None:
    """In a SQL_ASCII database a key may be any bytes: it is read in their order, and so noted."""
    there = elsewhere("LC_COLLATE 'C' LC_CTYPE 'C' ENCODING 'SQL_ASCII'")
    _fill_with_bytes(there)
    table, rows, chunks, progress = _read(there.url)
    assert sorted(chunks[0]) == chunks[0]
    assert {row[0] for row in rows} == {b"\xe9%d" % x for x in range(1, ROWS + 1)} | {b"plain"}
    assert progress["tables"]["public.t"]["done"]
    config = _config(there.url)
    with closing(PostgresSnapshotter(config)) as snapshotter:
        chunk = next(snapshotter.chunks([table], {}, None))
        with closing(PostgresSnapshotter(config)) as resumed:
            left = [
                row
                for more in resumed.chunks([table], orjson.loads(orjson.dumps(chunk.progress)), None)
                for row in more.rows
            ]
    assert sorted([*chunk.rows, *left]) == sorted(rows)


def _fill_with_bytes(database: Database) -> None:
    value = "convert_from(decode('e9', 'hex') || x::text::bytea, 'SQL_ASCII')"
    database.execute(
        "CREATE TABLE t (id text PRIMARY KEY, note text)",
        f"INSERT INTO t SELECT {value}, {value} FROM generate_series(1, {ROWS}) x",
        "INSERT INTO t VALUES ('plain', '')",
        "ANALYZE t",
    )


def test_a_row_that_is_no_text_stops_with_its_column_named(
    elsewhere: Callable[[str], Database], kafka: str, prefix: str, tmp_path: Path
) -> None:
    """Table and column are told, no byte of the value."""
    there = elsewhere("LC_COLLATE 'C' LC_CTYPE 'C' ENCODING 'SQL_ASCII'")
    _fill_with_bytes(there)
    done = Connector(tmp_path, prefix, there.url, kafka, ["public.t"]).here("run", "FILE", "--until-caught-up")
    assert done.returncode == 1
    assert "table public.t" in done.stderr
    assert "the value of id, note cannot be written as JSON" in done.stderr
    assert "0xe9" not in done.stderr
    assert "Traceback" not in done.stderr
