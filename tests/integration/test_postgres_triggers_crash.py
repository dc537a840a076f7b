"""PostgreSQL by triggers over a crash of the server, which gives ids again that nothing safe has had."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from cdc.dev.stack import DevServers
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
        ids = [int(id_) for n in range(2 * ROLLED_BACK) for (id_,) in database.rows(
            f"INSERT INTO orders VALUES ({n + 2}, 'after', 0) RETURNING pg_current_xact_id()::text"
        )]  # fmt: skip
        assert ids[0] <= last < ids[-1], "the server has given ids again"
        shop.run()
        assert shop.fold() == shop.rows()
