"""DDL that rewrites a table between a snapshot's view and its reading: not MVCC-safe in PostgreSQL."""

from __future__ import annotations

from contextlib import closing

import pytest

from cdc.config import ConnectorConfig, KafkaConfig, SourceConfig
from cdc.errors import RetryableError
from connectors.postgres.source import PostgresSource
from snapshot.postgres import PostgresSnapshotter
from tests.conftest import Database


def _config(database: Database, *tables: str) -> ConnectorConfig:
    return ConnectorConfig(
        name="rewrites",
        source=SourceConfig(type="postgres", url=database.url, tables=tables),
        sink=KafkaConfig(bootstrap_servers="none:9092", topic_prefix="p"),
    )


@pytest.mark.parametrize(
    "statement",
    ["ALTER TABLE later ALTER COLUMN n TYPE bigint", "TRUNCATE later", "ALTER TABLE parted ALTER COLUMN n TYPE bigint"],
)
def test_a_table_rewritten_after_the_view_was_taken_is_not_read_as_empty(postgres18: Database, statement: str) -> None:
    """To an older view a rewritten table is empty (PostgreSQL, MVCC caveats): its rows would be lost without a word."""
    postgres18.execute(
        "CREATE TABLE first (id int PRIMARY KEY)",
        "CREATE TABLE later (id int PRIMARY KEY, n int)",
        "CREATE TABLE parted (id int PRIMARY KEY, n int) PARTITION BY RANGE (id)",
        "CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (0) TO (1000)",
        "INSERT INTO first SELECT generate_series(1, 10)",
        "INSERT INTO later SELECT i, i FROM generate_series(1, 10) i",
        "INSERT INTO parted SELECT i, i FROM generate_series(1, 10) i",
    )
    config = _config(postgres18, "public.first", "public.later", "public.parted")
    with closing(PostgresSource(config)) as source, closing(PostgresSnapshotter(config)) as snapshotter:
        source.connect()
        tables = source.tables()
        chunks = snapshotter.chunks(tables, {}, None)
        assert len(next(chunks).rows) == 10
        postgres18.execute(statement)
        with pytest.raises(RetryableError, match="was rewritten"):
            list(chunks)
