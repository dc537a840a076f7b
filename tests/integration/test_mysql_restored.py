"""A server that an older copy was restored on, and that has been written to since: it gives its numbers out again."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.integration.mysql_servers import own_server
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
