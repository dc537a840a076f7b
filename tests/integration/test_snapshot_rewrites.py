"""DDL that rewrites a table between a snapshot's view and its reading: not MVCC-safe in PostgreSQL."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from cdc.config.config import ConnectorConfig, SnapshotConfig
from cdc.config.kafka_config import KafkaConfig
from cdc.config.source_config import SourceConfig
from cdc.model.errors import ChangedError, RetryableError
from connectors.postgres.source import PostgresSource
from snapshot.postgres import snapshotter as snapshotter_module
from snapshot.postgres.snapshotter import PostgresSnapshotter
from tests.conftest import Database


def _config(database: Database, *tables: str, workers: int) -> ConnectorConfig:
    return ConnectorConfig(
        name="rewrites",
        source=SourceConfig(type="postgres", url=database.url, tables=tables),
        sink=KafkaConfig(bootstrap_servers="none:9092", topic_prefix="p"),
        snapshot=SnapshotConfig(workers=workers),
    )


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    "statement",
    ["ALTER TABLE later ALTER COLUMN n TYPE bigint", "TRUNCATE later", "ALTER TABLE parted ALTER COLUMN n TYPE bigint"],
)
def test_a_table_rewritten_after_the_view_was_taken_is_not_read_as_empty(
    postgres18: Database, statement: str, workers: int
) -> None:
    """To an older view a rewritten table is empty (PostgreSQL, MVCC caveats): its rows would be lost without a word.

    Each session sees to it itself; none has read as far as these tables, nor keeps a lock on them.
    """
    postgres18.execute(
        *(f"CREATE TABLE first_{n} AS SELECT generate_series(1, 30000) AS id" for n in range(workers)),
        *(f"ALTER TABLE first_{n} ADD PRIMARY KEY (id)" for n in range(workers)),
        "CREATE TABLE later (id int PRIMARY KEY, n int)",
        "CREATE TABLE parted (id int PRIMARY KEY, n int) PARTITION BY RANGE (id)",
        "CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (0) TO (1000)",
        "INSERT INTO later SELECT i, i FROM generate_series(1, 10) i",
        "INSERT INTO parted SELECT i, i FROM generate_series(1, 10) i",
    )
    config = _config(postgres18, "public.first*", "public.later", "public.parted", workers=workers)
    with closing(PostgresSource(config)) as source, closing(PostgresSnapshotter(config)) as snapshotter:
        source.connect()
        tables = source.tables()
        chunks = snapshotter.chunks(tables, {}, None)
        assert len(next(chunks).rows) == 2000
        postgres18.execute("SET lock_timeout = '20s'; " + statement)
        with pytest.raises(RetryableError, match="was rewritten"):
            list(chunks)


@pytest.mark.parametrize("when", ["before its view", "planned", "read"])
@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE later DROP COLUMN n",
        "ALTER TABLE later RENAME id TO k",
        "ALTER TABLE later RENAME TO other",
        "ALTER TABLE later SET SCHEMA apart",
        "DROP TABLE later",
        "DROP TABLE parted",
        "ALTER SCHEMA apart RENAME TO other",
    ],
)
def test_names_that_mean_nothing_any_more_are_looked_at_again(
    postgres18: Database, monkeypatch: pytest.MonkeyPatch, statement: str, when: str
) -> None:
    """They were looked at before and are read now: the next session looks again, nobody need act."""
    postgres18.execute(
        "CREATE TABLE first AS SELECT generate_series(1, 30000) AS id",
        "ALTER TABLE first ADD PRIMARY KEY (id)",
        "CREATE SCHEMA apart",
        "CREATE TABLE apart.later_too (id int PRIMARY KEY)",
        "CREATE TABLE later (id int PRIMARY KEY, n int)",
        "INSERT INTO later SELECT x, x FROM generate_series(1, 3000) x",
        "CREATE TABLE parted (id int PRIMARY KEY, n int) PARTITION BY RANGE (id)",
        "CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (0) TO (1000)",
        "ANALYZE later",
    )
    config = _config(postgres18, "public.*", "apart.*", workers=1)
    config = replace(config, snapshot=SnapshotConfig(workers=1, chunk_rows=1000))
    planned = snapshotter_module.plan_statement

    def plan(*of: Any) -> Any:
        monkeypatch.setattr(snapshotter_module, "plan_statement", planned)
        postgres18.execute(statement)
        return planned(*of)

    if when == "planned":
        monkeypatch.setattr(snapshotter_module, "plan_statement", plan)
    with closing(PostgresSource(config)) as source, closing(PostgresSnapshotter(config)) as snapshotter:
        source.connect()
        tables = sorted(source.tables(), key=lambda table: table.name != "first")
        if when == "before its view":
            postgres18.execute(statement)
        with pytest.raises(RetryableError, match="was altered or dropped after its snapshot began"):  # noqa: PT012
            chunks = snapshotter.chunks(tables, {}, None)
            next(chunks)
            if when == "read":
                postgres18.execute(f"SET lock_timeout = '20s'; {statement}")
            list(chunks)


@pytest.mark.parametrize("before_its_view", [False, True])
@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE later RENAME TO x; ALTER TABLE other RENAME TO later; ALTER TABLE x RENAME TO other",
        "ALTER TABLE later RENAME n TO x; ALTER TABLE later RENAME m TO n; ALTER TABLE later RENAME x TO m",
        "SET timezone = 'UTC'; ALTER TABLE later ALTER at TYPE timestamptz",
        "ALTER TABLE parted RENAME n TO x; ALTER TABLE parted RENAME m TO n; ALTER TABLE parted RENAME x TO m",
    ],
    ids=["tables", "columns", "type", "partitioned"],
)
def test_what_names_mean_is_what_they_meant(
    postgres18: Database,
    statement: str,
    before_its_view: bool,
) -> None:
    """Rows are read by names: while these are another table's or column's, they would be taken for the table's own."""
    columns = "(id int PRIMARY KEY, n int, m int, at timestamp)"
    postgres18.execute(
        "CREATE TABLE first AS SELECT generate_series(1, 30000) AS id",
        "ALTER TABLE first ADD PRIMARY KEY (id)",
        f"BEGIN; CREATE TABLE later {columns}; CREATE TABLE other {columns}; COMMIT",
        f"CREATE TABLE parted {columns} PARTITION BY RANGE (id)",
        "CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (0) TO (1000)",
        "INSERT INTO later VALUES (1, 2, 3, now()); INSERT INTO parted VALUES (1, 2, 3, now())",
    )
    config = _config(postgres18, "public.*", workers=1)
    with closing(PostgresSource(config)) as source, closing(PostgresSnapshotter(config)) as snapshotter:
        source.connect()
        if before_its_view:
            postgres18.execute(statement)
        chunks = snapshotter.chunks(source.tables(), {}, None)
        with pytest.raises(RetryableError, match="was altered"):  # noqa: PT012
            next(chunks)
            postgres18.execute(f"SET lock_timeout = '20s'; {statement}")
            list(chunks)


def test_a_window_is_of_a_table_as_it_was_compared(postgres18: Database) -> None:
    """Between two looks at the catalog names may be another column's for a moment, which no later look would see."""
    postgres18.execute("CREATE TABLE t (id int PRIMARY KEY, n int, m int)", "INSERT INTO t VALUES (1, 2, 3)")
    config = _config(postgres18, "public.t", workers=1)
    with closing(PostgresSource(config)) as source, closing(PostgresSnapshotter(config)) as snapshotter:
        source.connect()
        (table,) = source.tables()
        postgres18.execute("TRUNCATE t; INSERT INTO t VALUES (1, 4, 5)", "VACUUM FULL t")
        window = snapshotter.window(table, None, 10, key="", first=False)
        assert window is not None
        assert window.rows == [(b"1", b"4", b"5")]
        postgres18.execute("ALTER TABLE t RENAME n TO x; ALTER TABLE t RENAME m TO n; ALTER TABLE t RENAME x TO m")
        with pytest.raises(ChangedError, match="was altered before it was read"):
            snapshotter.window(table, None, 10, key="", first=False)
        with pytest.raises(ChangedError, match="was altered before it was read"):
            snapshotter.rows(table, [(b"1",)], first=False)


def test_a_window_is_of_no_twin_of_a_table(postgres18: Database) -> None:
    """One transaction has made both, as a restore does: nothing but their numbers tells them apart."""
    postgres18.execute("BEGIN; CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE u (id int PRIMARY KEY); COMMIT")
    postgres18.execute("INSERT INTO t VALUES (1)", "INSERT INTO u VALUES (666)")
    config = _config(postgres18, "public.t", workers=1)
    with closing(PostgresSource(config)) as source, closing(PostgresSnapshotter(config)) as snapshotter:
        source.connect()
        (table,) = source.tables()
        postgres18.execute("ALTER TABLE t RENAME TO x; ALTER TABLE u RENAME TO t; ALTER TABLE x RENAME TO u")
        with pytest.raises(ChangedError, match="was altered before it was read"):
            snapshotter.window(table, None, 10, key="", first=False)


def test_a_table_that_was_rewritten_before_its_view_is_read(postgres18: Database) -> None:
    """A job that truncates it now and then would keep a snapshot from its beginning."""
    postgres18.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    config = _config(postgres18, "public.t", workers=1)
    with closing(PostgresSource(config)) as source, closing(PostgresSnapshotter(config)) as snapshotter:
        source.connect()
        postgres18.execute("TRUNCATE t", "INSERT INTO t VALUES (2)", "VACUUM FULL t")
        assert [chunk.rows for chunk in snapshotter.chunks(source.tables(), {}, None) if chunk.rows] == [[(b"2",)]]


def test_a_table_is_locked_only_while_it_is_read(postgres18: Database) -> None:
    """DDL on one that is done, or not begun, does not wait for the others; what was read of it stays right."""
    postgres18.execute(
        "CREATE TABLE a (id int PRIMARY KEY)",
        "INSERT INTO a VALUES (1)",
        "CREATE TABLE b AS SELECT generate_series(1, 30000) AS id",
        "ALTER TABLE b ADD PRIMARY KEY (id)",
        "CREATE TABLE c (id int PRIMARY KEY)",
    )
    config = _config(postgres18, "public.*", workers=1)
    with closing(PostgresSource(config)) as source, closing(PostgresSnapshotter(config)) as snapshotter:
        source.connect()
        chunks = snapshotter.chunks(source.tables(), {}, None)
        read = [next(chunks).table.name for _ in range(2)]
        locked = "SELECT relation::regclass::text FROM pg_locks WHERE relation::regclass::text ~ '^[abc]$'"
        assert (read, postgres18.rows(f"{locked} AND mode = 'AccessShareLock'")) == (["a", "b"], [("b",)])
        postgres18.execute("SET lock_timeout = '20s'; TRUNCATE a; ALTER TABLE c ADD COLUMN n int")
        assert sum(len(chunk.rows) for chunk in chunks) == 28_000
