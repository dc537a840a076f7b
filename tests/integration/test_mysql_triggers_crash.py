"""MySQL and MariaDB by triggers over a crash of the server, which takes back commits that it has not flushed."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc.dev.stack import DevServers
from snapshot.triggers.mysql import ChangeTables
from tests.conftest import MySQLDatabase
from tests.integration.mysql_shop import ORDERS, ROWS, MysqlShop


@pytest.mark.parametrize("kind", ["mysql", pytest.param("mariadb", marks=pytest.mark.full("the second server"))])
def test_what_a_first_snapshot_has_read_is_safe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """A row that is committed and not flushed is in no topic once a crash has taken it away."""
    take_views = ChangeTables.take_views
    with DevServers(tmp_path, servers=(kind,)) as servers:
        shop = MysqlShop(MySQLDatabase(servers[kind].url, "dev"), ORDERS, ROWS)
        done: list[str] = []

        def late(self: ChangeTables, *args: object, **more: object) -> object:
            if not done:
                done.append("written")
                shop.do("SET GLOBAL innodb_flush_log_at_trx_commit = 0; SET GLOBAL innodb_flush_log_at_timeout = 5")
                shop.do("INSERT INTO orders VALUES (100, 'nobody waits for it', 0)")
            return take_views(self, *args, **more)  # type: ignore[arg-type]

        def crash(point: str) -> None:
            if point == "sink.commit.answer" and shop.events() and "crashed" not in done:
                done.append("crashed")
                servers[kind].kill()
                servers[kind].start()

        monkeypatch.setattr(ChangeTables, "take_views", late)
        shop.run(crash)
        assert done == ["written", "crashed"]
        assert shop.fold() == [
            {"id": id_, "status": status, "n": n} for id_, status, n in shop.select("SELECT * FROM orders ORDER BY id")
        ]
