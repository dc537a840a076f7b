"""Crashes of PostgreSQL itself, which loses what was not safe, and gives its transactions' ids again."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from cdc.config.config import ConnectorConfig
from cdc.config.kafka_config import KafkaConfig
from cdc.config.source_config import SourceConfig
from cdc.dev.stack import DevServers
from connectors.postgres.source import PostgresSource
from snapshot.postgres.logs import Log, WriteAheadLog
from snapshot.postgres.snapshotter import PostgresSnapshotter
from snapshot.triggers.postgres import ChangeTables
from tests.conftest import Database
from tests.integration.postgres_shop import ORDERS, PostgresShop

ROLLED_BACK = 20


def reading(url: str) -> ConnectorConfig:
    return ConnectorConfig(
        name="orders",
        source=SourceConfig(type="postgres", url=url, tables=("public.t",)),
        sink=KafkaConfig(bootstrap_servers="none:9092", topic_prefix="p"),
    )


def test_ids_that_a_crash_gives_again(tmp_path: Path) -> None:
    """A snapshot has seen the end of what was rolled back; its id is that of a commit afterwards, which is not lost."""
    with DevServers(tmp_path, servers=("postgres18",)) as servers:
        database = Database(servers["postgres18"].url, "postgres")
        shop = PostgresShop(database, ORDERS, "ALTER SYSTEM SET wal_writer_delay = '10s'", "SELECT pg_reload_conf()")
        shop.run()
        shop.do("INSERT INTO orders VALUES (1, 'before', 0)")
        with closing(shop.connect()) as connection, connection.cursor() as cursor:
            connection.autocommit = False
            for _ in range(ROLLED_BACK):
                cursor.execute("SELECT pg_current_xact_id()::text::int8")
                (last,) = cursor.fetchone() or (0,)
                connection.rollback()
        shop.run()
        servers["postgres18"].kill()
        servers["postgres18"].start()
        ids = [int(str(id_)) for n in range(2 * ROLLED_BACK) for (id_,) in database.rows(
            f"INSERT INTO orders VALUES ({n + 2}, 'after', 0) RETURNING pg_current_xact_id()::text"
        )]  # fmt: skip
        assert ids[0] <= last < ids[-1], "the server has given ids again"
        shop.run()
        assert shop.fold() == shop.rows()


@pytest.mark.full("the second of two crashes, of a snapshot that is gone on with; or one, of a snapshot by triggers")
@pytest.mark.parametrize("log", [WriteAheadLog, ChangeTables])
def test_what_a_later_view_has_read_is_safe(tmp_path: Path, log: Callable[[ConnectorConfig], Log]) -> None:
    """Rows of a commit that nobody waited for are not in a topic and lost where they come from."""
    with DevServers(tmp_path, servers=("postgres18",)) as servers:
        database = Database(servers["postgres18"].url, "postgres")
        database.execute("ALTER SYSTEM SET wal_writer_delay = '10s'", "SELECT pg_reload_conf()")
        database.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
        config = reading(database.url)
        with (
            closing(PostgresSource(config)) as source,
            closing(PostgresSnapshotter(config, log(config))) as snapshotter,
        ):
            source.connect()
            tables = [replace(table, marks=()) for table in source.tables()]
            with closing(database.connect()) as connection, connection.cursor() as cursor:
                cursor.execute("SET synchronous_commit = off")
                cursor.execute("INSERT INTO t VALUES (2)")
            read = {row[0] for chunk in snapshotter.chunks(tables, {}, None) for row in chunk.rows}
        servers["postgres18"].kill()
        servers["postgres18"].start()
        assert read == {str(id_).encode() for (id_,) in database.rows("SELECT id FROM t")}


def test_a_role_with_one_connection(postgres18: Database, caplog: pytest.LogCaptureFixture) -> None:
    """A later view of one table is read with as many connections as ever, where its role may have no more."""
    role = f"{postgres18.name}_one"
    postgres18.execute(
        "CREATE TABLE t (id int PRIMARY KEY)",
        "INSERT INTO t VALUES (1)",
        f"CREATE ROLE {role} LOGIN PASSWORD 'p' CONNECTION LIMIT 1",
        f"GRANT SELECT ON t TO {role}",
    )
    try:
        with closing(PostgresSource(reading(postgres18.url))) as source:
            source.connect()
            tables = source.tables()
        parts = urlsplit(postgres18.url)
        url = parts._replace(netloc=f"{role}:p@{parts.netloc.rpartition('@')[2]}").geturl()
        with closing(PostgresSnapshotter(reading(url))) as snapshotter:
            read = [row[0] for chunk in snapshotter.chunks(tables, {}, None) for row in chunk.rows]
        assert read == [b"1"]
        assert "rows that the server loses in a crash right now" in caplog.text
    finally:
        postgres18.execute(f"DROP OWNED BY {role}", f"DROP ROLE {role}")
