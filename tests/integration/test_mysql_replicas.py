"""The server_id a connector registers with: looked at while it runs, and given to another one by mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import MySQLDatabase
from tests.integration.mysql_work import connector_of, is_mysql, same
from tests.integration.running import Running, eventually

NUMBER = 7_777_777


def test_looking_at_a_connector_that_runs(
    mysql_database: MySQLDatabase, kafka: str, prefix: str, tmp_path: Path
) -> None:
    """`cdc check` and `cdc status` ask for the log as well, and take the connection away from nobody."""
    database = mysql_database
    database.execute("CREATE TABLE a (id INT PRIMARY KEY)", "INSERT INTO a VALUES (1)")
    connector = connector_of(tmp_path, prefix, database, kafka, "a")
    with Running(connector) as running:
        running.await_line("following the log")
        for n in range(2, 4):
            for command in ("check", "status"):
                done = connector.here(command, "FILE")
                assert done.returncode == 0, done.stdout + done.stderr
            database.execute(f"INSERT INTO a VALUES ({n})")
            eventually(lambda n=n: len(connector.fold(f"{database.name}.a")) == n, "it goes on")
        assert "trying again" not in running.stderr
        assert running.process.poll() is None


@pytest.mark.every_server
def test_another_connector_with_the_same_number(
    mysql_database: MySQLDatabase, kafka: str, prefix: str, tmp_path: Path
) -> None:
    """MySQL serves both, whose UUIDs differ; MariaDB sends the first away, which says so and names itself."""
    database = mysql_database
    database.execute("CREATE TABLE a (id INT PRIMARY KEY)", "INSERT INTO a VALUES (1)")
    one, two = (
        connector_of(tmp_path, f"{prefix}{name}", database, kafka, "a", source={"server_id": NUMBER})
        for name in ("one", "two")
    )
    if not is_mysql(database):  # else nobody may see who is registered
        database.execute(f"GRANT REPLICATION MASTER ADMIN ON *.* TO cdc_capture_{database.name}@'%'")
    with Running(one) as first:
        first.await_line("following the log")
        checked = two.here("check", "FILE")
        assert f"{NUMBER} is that of replica cdc-{one.name} as well" in checked.stdout
        assert checked.returncode == (0 if is_mysql(database) else 1), checked.stdout
        assert first.process.poll() is None
        with Running(two) as second:
            second.await_line("following the log")
            database.execute("INSERT INTO a VALUES (2)")
            eventually(lambda: len(two.fold(f"{database.name}.a")) == 2, "the second follows")
            if is_mysql(database):
                eventually(lambda: len(one.fold(f"{database.name}.a")) == 2, "the first follows too")
            else:
                assert first.ended() == 1
                assert "duplicate server_id: another replica has connected to" in first.stderr
                assert f"{NUMBER}, which is the server_id of connector {one.name}" in first.stderr
                assert "SHOW REPLICA HOSTS" in first.stderr
    one.catch_up()
    same(one, database, "a")
