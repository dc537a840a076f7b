"""Settings under which the log does not have what it must: refused at the start, and noticed in mid-stream."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from tests.conftest import MySQLDatabase
from tests.integration.connector import Connector
from tests.integration.mysql_servers import OwnServer, own_server
from tests.integration.mysql_work import connector_of, is_mysql, same
from tests.integration.running import Running

GLOBAL = {
    "binlog_format": ("STATEMENT", "MIXED"),
    "binlog_row_image": ("MINIMAL", "NOBLOB"),
    "binlog_row_metadata": ("MINIMAL",),
}
OF_MYSQL = {"binlog_row_value_options": ("PARTIAL_JSON",), "binlog_order_commits": ("OFF",)}
OF_MARIADB = {"binlog_row_metadata": ("MINIMAL", "NO_LOG")}

IMAGE = "SET GLOBAL binlog_row_image = FULL"
FORMAT = "SET GLOBAL binlog_format = ROW"
PARTIAL = "SET GLOBAL binlog_row_value_options = ''"
SESSIONS = (
    ("statement", ["binlog_format = STATEMENT"], FORMAT),
    ("mixed", ["binlog_format = MIXED"], FORMAT),
    ("minimal", ["binlog_row_image = MINIMAL"], IMAGE),
    ("noblob", ["binlog_row_image = NOBLOB"], IMAGE),
)
SESSIONS_OF_MYSQL = (
    ("partial", ["binlog_row_value_options = PARTIAL_JSON"], PARTIAL),
    ("packed", ["binlog_row_value_options = PARTIAL_JSON", "binlog_transaction_compression = ON"], PARTIAL),
)


@pytest.fixture(scope="module", params=["mysql", "mariadb"])
def own(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnServer]:
    """Its settings are nobody else's."""
    with own_server(request.param, tmp_path_factory.mktemp(request.param)) as made:
        made.database.execute("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)")
        yield made


def refused(connector: Connector, *words: str) -> None:
    """`cdc run` and `cdc check` say the same, with what to do; nothing is made."""
    run, check = connector.here("run", "FILE", "--until-caught-up"), connector.here("check", "FILE")
    for done, said in ((run, run.stderr), (check, check.stdout)):
        assert done.returncode == 1, said
        assert "Traceback" not in said
        for word in words:
            assert word in said
    topics = AdminClient({"bootstrap.servers": connector.kafka}).list_topics(timeout=60).topics
    assert not [topic for topic in topics if topic.startswith(connector.name)]


@pytest.mark.every_server  # each has settings of its own
def test_a_server_whose_log_lacks_something(own: OwnServer, kafka: str, prefix: str, tmp_path: Path) -> None:
    """Setting by setting, each with the statement that repairs it, which does."""
    settings = {**GLOBAL, **(OF_MYSQL if own.kind == "mysql" else OF_MARIADB)}
    connector = connector_of(tmp_path, prefix, own.database, kafka, "t")
    for name, values in settings.items():
        ((_, before),) = own.database.rows(f"SHOW GLOBAL VARIABLES LIKE '{name}'")
        for value in values:
            own.database.execute(f"SET GLOBAL {name} = {value}")
            try:
                set_ = "SET PERSIST" if own.kind == "mysql" else "SET GLOBAL"
                refused(connector, f"{name} is {value}", f"{set_} {name} = {before or chr(39) * 2}")
            finally:
                own.database.execute(f"SET GLOBAL {name} = '{before}'")
    connector.catch_up()
    same(connector, own.database, "t")


@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_a_server_without_a_log(kind: str, kafka: str, prefix: str, tmp_path: Path) -> None:
    with own_server(kind, tmp_path / "server", skip_log_bin="ON") as made:
        made.database.execute("CREATE TABLE t (id INT PRIMARY KEY)")
        refused(connector_of(tmp_path, prefix, made.database, kafka, "t"), "binlog off", "--log-bin")


NO_GTIDS = {"gtid_mode": "OFF", "enforce_gtid_consistency": "OFF"}
OTHER_LOGS: list[tuple[str, dict[str, str], dict[str, str], int, str]] = [
    ("mariadb", {}, {"skip_log_bin": "ON"}, 1, "binlog off"),
    ("mariadb", {}, {"log_bin": "other"}, 4, "binlog reset"),
    ("mysql", NO_GTIDS, {"log_bin": "other"}, 4, "binlog"),
]
"""Kind of server, its settings, those for a time, the exit code and message then. GTIDs of MySQL tell it for good."""


@pytest.mark.full  # of each push: tests/unit/test_pipeline.py, test_a_log_that_was_off_for_a_time
@pytest.mark.parametrize("case", OTHER_LOGS)
def test_a_log_that_was_off_or_another_for_a_time(
    kafka: str, prefix: str, tmp_path: Path, case: tuple[str, dict[str, str], dict[str, str], int, str]
) -> None:
    """A start meanwhile says so, and what was written then is read once the log is on again, or has its old name."""
    kind, settings, for_a_time, code, said = case
    with own_server(kind, tmp_path / "server", **settings) as made:
        made.database.execute("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1), (2)")
        connector = connector_of(tmp_path, prefix, made.database, kafka, "t")
        connector.catch_up()
        made.database.execute("INSERT INTO t VALUES (3)")
        made.server.kill()
        with own_server(kind, tmp_path / "server", **settings, **for_a_time) as off:
            connector.moved(off.database.url)
            off.database.execute("INSERT INTO t VALUES (4)", "DELETE FROM t WHERE id IN (1, 3)")
            for _ in range(2):
                stopped = connector.here("run", "FILE", "--until-caught-up")
                assert stopped.returncode == code, stopped.stderr
                assert said in stopped.stderr
        made.start()
        connector.moved(made.database.url)
        made.database.execute("INSERT INTO t VALUES (5)")
        assert "wrote no log for a time" in connector.catch_up()
        same(connector, made.database, "t")
        assert "wrote no log" not in connector.catch_up()


def test_columns_whose_names_are_not_logged(own: OwnServer, kafka: str, prefix: str, tmp_path: Path) -> None:
    """Where a stop is asked for, it stops before the first row that nobody could name, and the gap is closed."""
    database = own.database
    connector = connector_of(tmp_path, prefix, database, kafka, "t", source={"on_hole": "stop"})
    with Running(connector) as running:
        running.await_line("following the log")
        try:
            database.execute("SET GLOBAL binlog_row_metadata = MINIMAL", "INSERT INTO t VALUES (2)")
            assert running.ended() == 4
        finally:
            database.execute("SET GLOBAL binlog_row_metadata = FULL", "INSERT INTO t VALUES (3)")
        assert "has no names of its columns" in running.stderr
        assert "SET PERSIST binlog_row_metadata = FULL" in running.stderr
    assert connector.here("run", "FILE", "--until-caught-up").returncode == 4
    connector.close_the_gap()
    same(connector, database, "t")


def test_what_a_session_sets_for_itself(mysql_database: MySQLDatabase, kafka: str, prefix: str, tmp_path: Path) -> None:
    """A stop where that is asked for, which says where, and what to set; nothing of the transaction is published."""
    database = mysql_database
    made = []
    for name, settings, hint in SESSIONS + (SESSIONS_OF_MYSQL if is_mysql(database) else ()):
        database.execute(
            f"CREATE TABLE {name} (id INT PRIMARY KEY, v INT, d JSON, b TEXT)",
            f"INSERT INTO {name} VALUES (1, 1, JSON_OBJECT('a', REPEAT('x', 500), 'b', 1), 'text')",
        )
        stops = {"on_hole": "stop"}
        connector = connector_of(tmp_path, f"{prefix}{name}", database, kafka, name, source=stops)
        connector.catch_up()
        made.append((connector, name, hint))
        database.execute(
            "BEGIN", f"INSERT INTO {name} VALUES (2, 2, NULL, 'good')",
            f"INSERT INTO {name} VALUES (3, 3, JSON_OBJECT('a', REPEAT('x', 500), 'b', 1), 'good')", "COMMIT",
            *(f"SET SESSION {setting}" for setting in settings),
            "BEGIN", f"UPDATE {name} SET v = 9, d = JSON_SET(d, '$.b', 2) WHERE id = 3",
            f"UPDATE {name} SET v = 9, d = JSON_SET(d, '$.b', 2) WHERE id = 1", "COMMIT",
        )  # fmt: skip
        done = connector.here("run", "FILE", "--until-caught-up")
        assert done.returncode == 4, (name, done.stderr)
        assert hint in done.stderr, name
        assert "--after-gap" in done.stderr
        assert "Traceback" not in done.stderr
        assert not [e for e in connector.events(f"{database.name}.{name}") if e["op"] == "u"], name
    connector, name, _ = made[-1]
    connector.close_the_gap()
    assert connector.fold(f"{database.name}.{name}").keys() == {b'{"id":1}', b'{"id":2}', b'{"id":3}'}


def test_a_delete_that_does_not_tell_its_key(
    mysql_database: MySQLDatabase, kafka: str, prefix: str, tmp_path: Path
) -> None:
    """A row that is not whole has the columns of the primary key alone; with another key, the table is read again."""
    database = mysql_database
    database.execute(
        "CREATE TABLE a (id INT PRIMARY KEY, code INT NOT NULL UNIQUE, v INT)", "INSERT INTO a VALUES (1, 11, 1)"
    )
    of_code = {"tables": [{"table": f"{database.name}.a", "key": ["code"]}]}
    keyed, plain = (
        connector_of(tmp_path, f"{prefix}{name}", database, kafka, "a", source=source)
        for name, source in (("k", of_code), ("p", {}))
    )
    keyed.catch_up()
    plain.catch_up()
    database.execute("SET SESSION binlog_row_image = MINIMAL", "DELETE FROM a WHERE id = 1")
    plain.catch_up()
    assert plain.fold(f"{database.name}.a") == {}
    assert "is not whole" in keyed.catch_up()
    assert keyed.fold(f"{database.name}.a") == {}
    assert json.loads(keyed.here("status", "FILE", "--json").stdout)["rereads"] == 1


def test_statements_that_concern_nothing_captured_pass(
    mysql_database: MySQLDatabase, kafka: str, prefix: str, tmp_path: Path
) -> None:
    """A heartbeat in `mysql.*`, as RDS writes one every five minutes; others, where no trigger can hang on them."""
    database, other = mysql_database, f"{mysql_database.name}_other"
    user = f"'cdc_capture_{database.name}'@'%'"
    database.execute(
        "CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)",
        f"CREATE DATABASE {other}", f"CREATE TABLE {other}.o (id INT PRIMARY KEY, v INT)",
        f"CREATE TABLE {other}.p (id INT PRIMARY KEY)",
        f"CREATE TABLE mysql.{prefix}_beat (id INT PRIMARY KEY, v BIGINT)",
    )  # fmt: skip
    try:
        connector = connector_of(tmp_path, prefix, database, kafka, "t", source={"on_hole": "stop"})
        connector.catch_up()
        database.execute(f"GRANT SELECT, TRIGGER ON {other}.* TO {user}")
        beat = f"INSERT INTO mysql.{prefix}_beat (id, v) VALUES (1, 5) ON DUPLICATE KEY UPDATE v = 6"
        database.execute(
            "SET SESSION binlog_format = STATEMENT", beat, beat,
            f"INSERT INTO {other}.o VALUES (1, 1)", f"UPDATE {other}.o SET v = 2",
            "CREATE TEMPORARY TABLE x (id INT)", "INSERT INTO x VALUES (1)",
        )  # fmt: skip
        assert "in the place of rows" not in connector.catch_up()
        database.execute(
            f"CREATE TRIGGER {other}.writes AFTER INSERT ON {other}.p FOR EACH ROW "
            f"INSERT INTO {database.name}.t VALUES (NEW.id)",
            "SET SESSION binlog_format = STATEMENT", f"INSERT INTO {other}.p VALUES (7)",
        )  # fmt: skip
        done = connector.here("run", "FILE", "--until-caught-up")
        assert done.returncode == 4
        assert "a statement (INSERT) in the place of rows" in done.stderr
        connector.file.write_text(connector.file.read_text().replace('"stop"', '"reread"'))
        connector.catch_up()
        same(connector, database, "t")
        assert "read again" in connector.here("status", "FILE").stdout
    finally:
        database.execute(f"DROP TABLE mysql.{prefix}_beat", f"DROP DATABASE {other}")
