"""Crashes of PostgreSQL itself, which loses what was not safe, and gives its transactions' ids again."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from cdc.config.config import ConnectorConfig
from cdc.config.kafka_config import KafkaConfig
from cdc.config.source_config import SourceConfig
from cdc.dev.stack import DevServers
from connectors.postgres.source import PostgresSource
from snapshot.postgres.snapshotter import PostgresSnapshotter
from tests.conftest import Database
from tests.integration.postgres_shop import ORDERS, PostgresShop

ROLLED_BACK = 20


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


@pytest.mark.full("the second of two crashes, of a snapshot that is gone on with")
def test_what_a_later_view_has_read_is_safe(tmp_path: Path) -> None:
    """Rows of a commit that nobody waited for are not in a topic and lost where they come from."""
    with DevServers(tmp_path, servers=("postgres18",)) as servers:
        database = Database(servers["postgres18"].url, "postgres")
        database.execute("ALTER SYSTEM SET wal_writer_delay = '10s'", "SELECT pg_reload_conf()")
        database.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
        config = ConnectorConfig(
            name="orders",
            source=SourceConfig(type="postgres", url=database.url, tables=("public.t",)),
            sink=KafkaConfig(bootstrap_servers="none:9092", topic_prefix="p"),
        )
        with closing(PostgresSource(config)) as source, closing(PostgresSnapshotter(config)) as snapshotter:
            source.connect()
            tables = source.tables()
            with closing(database.connect()) as connection, connection.cursor() as cursor:
                cursor.execute("SET synchronous_commit = off")
                cursor.execute("INSERT INTO t VALUES (2)")
            read = {row[0] for chunk in snapshotter.chunks(tables, {}, None) for row in chunk.rows}
        servers["postgres18"].kill()
        servers["postgres18"].start()
        assert read == {str(id_).encode() for (id_,) in database.rows("SELECT id FROM t")}
