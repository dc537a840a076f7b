"""Crashes of PostgreSQL itself, which loses what was not safe, and gives its transactions' ids again."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from cdc.config import registry
from cdc.config.config import ConnectorConfig
from cdc.config.kafka_config import KafkaConfig
from cdc.config.source_config import SourceConfig
from cdc.dev.stack import DevServers
from cdc.model.change import Idle, TransactionBatch
from connectors.postgres.source import PostgresSource
from connectors.triggers.postgres.source import PostgresTriggers
from snapshot.postgres.snapshotter import PostgresSnapshotter
from tests.conftest import Database
from tests.integration.postgres_shop import ORDERS, PostgresShop

ROLLED_BACK = 20


def reading(url: str, by: str = "postgres") -> ConnectorConfig:
    return ConnectorConfig(
        name="orders",
        source=SourceConfig(type=by, url=url, tables=("public.t",)),
        sink=KafkaConfig(bootstrap_servers="none:9092", topic_prefix="p"),
    )


def test_ids_that_a_crash_gives_again(tmp_path: Path) -> None:
    """A snapshot has seen the end of what was rolled back; its id is that of a commit afterwards, which is not lost."""
    with DevServers(tmp_path, servers=("postgres18",)) as servers:
        database = Database(servers["postgres18"].url, "postgres")
        shop = PostgresShop(database, ORDERS, "ALTER SYSTEM SET wal_writer_delay = '10s'", "SELECT pg_reload_conf()")
        with closing(PostgresTriggers(shop.config)) as source:
            source.connect()
            at = source.hold(source.tables()).offset
            with closing(shop.connect()) as connection, connection.cursor() as cursor:
                connection.autocommit = False
                for _ in range(ROLLED_BACK):
                    cursor.execute("SELECT pg_current_xact_id()::text::int8")
                    (last,) = cursor.fetchone() or (0,)
                    connection.rollback()
            assert isinstance(next(iter(source.stream(at))), Idle)
            at, _ = source.position()
        servers["postgres18"].kill()
        servers["postgres18"].start()
        ids = [int(str(id_)) for n in range(2 * ROLLED_BACK) for (id_,) in database.rows(
            f"INSERT INTO orders VALUES ({n + 2}, 'after', 0) RETURNING pg_current_xact_id()::text"
        )]  # fmt: skip
        assert ids[0] <= last < ids[-1], "the server has given ids again"
        with closing(PostgresTriggers(shop.config)) as source:
            source.connect()
            given = next(iter(source.stream(at)))
            assert isinstance(given, TransactionBatch)
            assert [each.xid for each in given.transactions] == ids


@pytest.mark.full("views of crashes beside the round of one")
@pytest.mark.parametrize("by", ["postgres", "triggers"])
def test_what_a_view_has_read_is_safe(tmp_path: Path, by: str) -> None:
    """Rows of a commit that nobody waited for are not in a topic and lost where they come from."""
    with DevServers(tmp_path, servers=("postgres18",)) as servers:
        database = Database(servers["postgres18"].url, "postgres")
        database.execute("ALTER SYSTEM SET wal_writer_delay = '10s'", "SELECT pg_reload_conf()")
        database.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
        config = reading(database.url, by)
        with closing(registry.source(config)()) as source, closing(registry.snapshotter(config)()) as snapshotter:
            source.connect()
            tables = source.tables()
            if by == "triggers":
                assert isinstance(source, PostgresTriggers)
                source.hold(tables)
            with closing(database.connect()) as connection, connection.cursor() as cursor:
                cursor.execute("SET synchronous_commit = off")
                cursor.execute("INSERT INTO t VALUES (2)")
            read = {row[0] for chunk in snapshotter.chunks(tables, {}, None) for row in chunk.rows}
        servers["postgres18"].kill()
        servers["postgres18"].start()
        assert read == {str(id_).encode() for (id_,) in database.rows("SELECT id FROM t")}


def test_what_a_round_has_given_is_safe(tmp_path: Path) -> None:
    """A commit that nobody waited for has a smaller number than one from before it, which a crash does not take."""
    with DevServers(tmp_path, servers=("postgres18",)) as servers:
        database = Database(servers["postgres18"].url, "postgres")
        shop = PostgresShop(database, ORDERS, "ALTER SYSTEM SET wal_writer_delay = '10s'", "SELECT pg_reload_conf()")
        shop.run()
        with closing(shop.connect()) as connection, connection.cursor() as cursor:
            connection.autocommit = False
            cursor.execute("SET synchronous_commit = off")
            cursor.execute("INSERT INTO orders VALUES (1, 'nobody waits for it', 0)")
            shop.do("INSERT INTO orders VALUES (2, 'is safe', 0)")
            connection.commit()

        def crash(point: str) -> None:
            if point == "sink.commit.answer" and shop.events() and not crashed:
                crashed.append(True)
                servers["postgres18"].kill()
                servers["postgres18"].start()

        crashed: list[bool] = []
        shop.run(crash)
        assert crashed
        assert shop.fold() == shop.rows()


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
