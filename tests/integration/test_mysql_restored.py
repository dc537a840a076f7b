"""A server that an older copy was restored on, and that has been written to since: it gives its numbers out again."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from cdc.capture.control.signals import Command
from cdc.capture.pipeline import Pipeline
from cdc.capture.settings import Settings
from cdc.config.config import ConnectorConfig
from cdc.model.errors import GapError
from cdc.testing import Faults, Killed, MemorySink, nothing
from connectors.mysql.source import MysqlSource
from snapshot.mysql.snapshotter import open_snapshotter
from tests.integration.mysql_servers import own_server
from tests.integration.mysql_shop import ORDERS, MysqlShop
from tests.integration.mysql_work import connector_of, same


@pytest.mark.full  # what `test_a_reset` shows of a log that is reset
@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_an_older_copy_that_has_grown_past_the_position(kind: str, kafka: str, prefix: str, tmp_path: Path) -> None:
    """Its files have the same names, its transactions the same GTIDs: what Kafka has last is another one there."""
    with own_server(kind, tmp_path) as own:
        database, data = own.database, tmp_path / "data"
        database.execute("CREATE TABLE a (id INT PRIMARY KEY, v INT)", "INSERT INTO a VALUES (1, 1), (2, 2)")
        connector = connector_of(tmp_path, prefix, database, kafka)
        connector.catch_up()
        own.server.stop()
        subprocess.run(["cp", "-a", str(data), str(tmp_path / "copy")], check=True)
        own.start()
        database.execute("INSERT INTO a VALUES (3, 3)", "UPDATE a SET v = 4", "DELETE FROM a WHERE id = 1")
        connector.catch_up()
        own.server.stop()
        shutil.rmtree(data)
        (tmp_path / "copy").rename(data)
        own.start()
        database.execute(*(f"INSERT INTO a VALUES ({n}, 7)" for n in range(10, 300)))

        run, check = connector.here("run", "FILE", "--until-caught-up"), connector.here("check", "FILE")
        assert (run.returncode, check.returncode) == (4, 1), run.stderr + check.stdout
        verdict = {"mysql": "binlog rewritten: transaction ", "mariadb": "binlog reset: "}[kind]
        assert verdict in run.stderr
        assert verdict in check.stdout
        connector.close_the_gap()
        same(connector, database, "a")
        database.execute("UPDATE a SET v = 9 WHERE id = 2")
        connector.catch_up()
        same(connector, database, "a")


class LogShop(MysqlShop):
    """Follows the binlog."""

    @property
    def config(self) -> ConnectorConfig:
        made = super().config
        return replace(made, source=replace(made.source, type="mysql"))

    def pipeline(self, at: Callable[[str], None] = nothing) -> Pipeline:
        config = self.config
        return Pipeline(
            Settings(connector="c", prefix="p", chunk_rows=3, config=config.binding),
            open_source=lambda: MysqlSource(config),
            open_snapshotter=lambda: open_snapshotter(config),
            sink=MemorySink(self.kafka, "c", "p", at=at),
        )


@pytest.mark.full("the law is held without servers by test_a_copy_of_before_rows_that_a_first_snapshot_has_read")
@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_an_older_copy_that_was_taken_amid_a_first_snapshot(kind: str, tmp_path: Path) -> None:
    """Rows were read since, which it does not have, behind the place from which the log is to be followed."""
    with own_server(kind, tmp_path) as own:
        data = tmp_path / "data"
        shop = LogShop(own.database, ORDERS, *(f"INSERT INTO orders VALUES ({n}, 'old', 0)" for n in range(1, 21)))

        def some_rows() -> None:
            with pytest.raises(Killed):
                shop.run(Faults(("sink.commit", 3), error=Killed))

        some_rows()
        own.server.stop()
        subprocess.run(["cp", "-a", str(data), str(tmp_path / "copy")], check=True)
        own.start()
        shop.do("UPDATE orders SET status = 'late'")
        some_rows()
        assert "late" in {row["status"] for row in shop.fold()}
        own.server.stop()
        shutil.rmtree(data)
        (tmp_path / "copy").rename(data)
        own.start()
        with pytest.raises(GapError, match="binlog reset: the first snapshot has read rows"):
            shop.run()
        shop.ask(Command(after_gap=True, tables=()))
        shop.run()
        assert shop.fold() == shop.rows()
