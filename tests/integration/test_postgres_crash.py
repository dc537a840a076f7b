"""Crashes of PostgreSQL itself, which loses what was not safe, and gives its transactions' ids again."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from cdc.config import registry
from cdc.config.config import ConnectorConfig
from cdc.config.kafka_config import KafkaConfig
from cdc.config.source_config import SourceConfig
from cdc.dev.stack import DevServers
from cdc.model.change import Idle, TransactionBatch
from connectors.triggers.postgres.source import PostgresTriggers
from tests.conftest import Database
from tests.integration.postgres_shop import ORDERS, PostgresShop

ROLLED_BACK = 20


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
        config = ConnectorConfig(
            name="orders",
            source=SourceConfig(type=by, url=database.url, tables=("public.t",)),
            sink=KafkaConfig(bootstrap_servers="none:9092", topic_prefix="p"),
        )
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
