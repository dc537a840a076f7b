"""What the server does not log, and what it does not show: filters, and columns that may not be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import MySQLDatabase
from tests.integration.mysql_servers import own_server
from tests.integration.mysql_work import connector_of, same
from tests.integration.running import Running, eventually
from tests.integration.test_mysql_refusals import refused

SECRET = "whisper"


@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
@pytest.mark.parametrize("filters", ["binlog_ignore_db=unlogged", "binlog_do_db=dev"])
def test_a_database_that_is_not_logged(kind: str, filters: str, kafka: str, prefix: str, tmp_path: Path) -> None:
    """It is refused by name; of the others it is said which statements are not logged."""
    setting, _, value = filters.partition("=")
    with own_server(kind, tmp_path / "server", **{setting: value}) as made:
        made.database.execute(
            "CREATE DATABASE unlogged", "CREATE TABLE unlogged.t (id INT PRIMARY KEY)",
            "CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)",
        )  # fmt: skip
        lost = connector_of(tmp_path, f"{prefix}a", made.database, kafka, source={"tables": ["*.t"]})
        made.database.execute("GRANT SELECT ON unlogged.* TO 'cdc_capture_dev'@'%'")
        refused(lost, f"{setting} leaves database unlogged out of the log", "source.tables")
        kept = connector_of(tmp_path, f"{prefix}b", made.database, kafka, "t")
        assert f"{setting} is set: ALTER, TRUNCATE" in kept.catch_up()
        assert f"{setting} is set: ALTER, TRUNCATE" in kept.here("check", "FILE").stdout
        same(kept, made.database, "t")


def test_columns_that_may_not_be_read(mysql_database: MySQLDatabase, kafka: str, prefix: str, tmp_path: Path) -> None:
    """The log has them, and no event: not after they were dropped either. A grant is followed in the log."""
    database = mysql_database
    user = f"'cdc_capture_{database.name}'@'%'"
    database.execute(
        f"CREATE TABLE t (id INT PRIMARY KEY, v INT, secret VARCHAR(9), later VARCHAR(9) DEFAULT '{SECRET}')",
        f"INSERT INTO t (id, v, secret) VALUES (1, 1, '{SECRET}')",
        "CREATE TABLE k (a INT, b INT, v INT, PRIMARY KEY (a, b))", "INSERT INTO k VALUES (1, 1, 1)",
    )  # fmt: skip
    connector = connector_of(tmp_path, prefix, database, kafka, "t")
    keyed = connector_of(tmp_path, f"{prefix}k", database, kafka, "k")
    database.execute(
        f"REVOKE SELECT ON {database.name}.* FROM {user}",
        f"GRANT SELECT (id, v) ON {database.name}.t TO {user}", f"GRANT SELECT (a, v) ON {database.name}.k TO {user}",
    )  # fmt: skip
    topic = f"{database.name}.t"

    def columns() -> set[str]:
        return {name for row in connector.fold(topic).values() for name in row}

    checked = connector.here("check", "FILE")
    assert checked.returncode == 0, checked.stdout
    assert "may not read all of its columns" in checked.stdout
    with Running(connector) as running:
        running.await_following()
        database.execute(
            f"INSERT INTO t VALUES (2, 2, '{SECRET}', NULL)", f"UPDATE t SET secret = '{SECRET}!' WHERE id = 1"
        )
        eventually(lambda: len(connector.fold(topic)) == 2, "both rows are there")
        database.execute("INSERT INTO t VALUES (3, 3, NULL, NULL)")
        eventually(lambda: len(connector.fold(topic)) == 3, "and a third")
        assert columns() == {"id", "v"}
        assert not any(SECRET.encode() in (record.raw_value or b"") for record in connector.records(topic))
        database.execute(f"GRANT SELECT (later) ON {database.name}.t TO {user}")
        eventually(lambda: columns() == {"id", "v", "later"}, "what may be read now is read, also of older rows")
        database.execute(f"REVOKE SELECT (later) ON {database.name}.t FROM {user}")
        eventually(lambda: columns() == {"id", "v"}, "and is taken out of them again")
        assert running.process.poll() is None, running.stderr
    database.execute(
        f"INSERT INTO t VALUES (4, 4, '{SECRET}', NULL)", "ALTER TABLE t DROP COLUMN secret, DROP COLUMN later"
    )
    connector.catch_up()
    same(connector, database, "t")
    assert not any(b"secret" in (record.raw_value or b"") for record in connector.records(topic))

    done = keyed.here("run", "FILE", "--until-caught-up")
    if done.returncode == 0:  # MariaDB's catalog says nothing of that column; its log does
        database.execute("INSERT INTO k VALUES (1, 2, 2)")
        done = keyed.here("run", "FILE", "--until-caught-up")
    assert done.returncode == 1
    assert "its primary key has columns that the connector's user may not read" in done.stderr
