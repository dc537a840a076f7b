"""A connector reads its file again while it runs, on real servers: a table is added; a wrong file changes nothing."""

from __future__ import annotations

import contextlib
import json
import signal
from pathlib import Path
from typing import Any

import pytest

from cdc.model.errors import RetryableError
from tests.canary import CANARY
from tests.conftest import Database, MySQLDatabase
from tests.integration.connector import Connector
from tests.integration.mysql_work import connector_of
from tests.integration.running import Running, eventually


def _write(connector: Connector, **changes: Any) -> None:
    file = json.loads(connector.file.read_text())
    for key, value in changes.items():
        file[key] = {**file.get(key, {}), **value} if isinstance(value, dict) else value
    connector.file.write_text(json.dumps(file))
    connector.put_right()  # the owner publishes, and grants


def _rows(connector: Connector, table: str) -> int:
    """How many the topic has; none before there is one."""
    with contextlib.suppress(RetryableError):
        return len(connector.fold(table))
    return 0


def _added(connector: Connector, database: Database | MySQLDatabase, schema: str) -> None:
    with Running(connector) as running:
        running.await_following()
        _write(connector, source={"tables": [f"{schema}.t", f"{schema}.u"]}, snapshot={"max_rows_per_second": 1000})
        assert connector.here("reload", "FILE").returncode == 0
        running.await_line("its file is read again")
        eventually(lambda: _rows(connector, f"{schema}.u") == 1, "the new table is read")
        database.execute("INSERT INTO u VALUES (2)", "INSERT INTO t VALUES (2)")
        for name in "tu":
            eventually(lambda n=name: len(connector.fold(f"{schema}.{n}")) == 2, f"{name} is followed")  # type: ignore[misc]
        assert "trying again" not in running.stderr
        running.process.send_signal(signal.SIGTERM)
        assert running.ended() == 0


def test_a_table_is_added_while_the_connector_runs(
    postgres18: Database, kafka: str, prefix: str, tmp_path: Path
) -> None:
    for name in "tu":
        postgres18.execute(f"CREATE TABLE {name} (id int PRIMARY KEY)", f"INSERT INTO {name} VALUES (1)")
    _added(Connector(tmp_path, prefix, postgres18.url, kafka, ["public.t"]), postgres18, "public")


def test_a_copy_that_has_stood_by_goes_on_by_the_file_as_it_is(
    postgres18: Database, kafka: str, prefix: str, tmp_path: Path
) -> None:
    """`cdc reload` reaches the copy at work alone: the other one took the table out again when it took over.

    Values are encrypted, before and behind both: the file that is read again has keys of its own.
    """
    for name in "tu":
        postgres18.execute(
            f"CREATE TABLE {name} (id int PRIMARY KEY, s text DEFAULT 's')", f"INSERT INTO {name} VALUES (1)"
        )
    encrypted = {"columns": {"public.t": {"encrypt": {"columns": ["s"]}}}, "master_key": "m" * 32}
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, ["public.t"], source=encrypted)
    with Running(connector) as first:
        first.await_following()
        with Running(connector) as second:
            second.await_line("stands by")
            _write(connector, source={"tables": ["public.t", "public.u"]})
            assert connector.here("reload", "FILE").returncode == 0
            eventually(lambda: _rows(connector, "public.u") == 1, "the new table is read")
            first.kill()
            second.await_following()
            postgres18.execute("INSERT INTO u VALUES (2)", "INSERT INTO t VALUES (2)")
            for name in "tu":
                eventually(lambda n=name: len(connector.fold(f"public.{n}")) == 2, f"{name} is followed")  # type: ignore[misc]
            assert "was captured before" not in second.stderr


def test_a_copy_that_has_stood_by_does_not_go_on_by_a_file_that_needs_a_start(
    postgres18: Database, kafka: str, prefix: str, tmp_path: Path
) -> None:
    """The copy that was at work may have been started by it: this one published the column that it leaves out."""
    postgres18.execute("CREATE TABLE t (id int PRIMARY KEY, s text)")
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, ["public.t"])
    with Running(connector) as first:
        first.await_following()
        with Running(connector) as second:
            second.await_line("stands by")
            _write(connector, source={"columns": {"public.t": {"exclude": ["s"]}}})
            first.kill()
            postgres18.execute("INSERT INTO t VALUES (1, 'secret')")
            assert second.ended() == 1
            assert "source.columns cannot be changed while the connector runs" in second.stderr
    connector.catch_up()
    assert [*connector.fold("public.t").values()] == [{"id": 1}]


@pytest.mark.full
def test_a_table_is_added_at_mysql(mysql_database: MySQLDatabase, kafka: str, prefix: str, tmp_path: Path) -> None:
    for name in "tu":
        mysql_database.execute(f"CREATE TABLE {name} (id INT PRIMARY KEY)", f"INSERT INTO {name} VALUES (1)")
    _added(connector_of(tmp_path, prefix, mysql_database, kafka, "t"), mysql_database, mysql_database.name)


def test_a_file_that_is_refused_changes_nothing(postgres18: Database, kafka: str, prefix: str, tmp_path: Path) -> None:
    """By SIGHUP: one that is no YAML, one that changes the sink, one that names a table that is not there."""
    postgres18.execute("CREATE TABLE t (id int PRIMARY KEY)")
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, ["public.t"])
    good = connector.file.read_text()
    with Running(connector) as running:
        running.await_following()
        wrong = (
            ("{", "the file is not taken up"),
            (
                good.replace('"partitions": 3', '"partitions": 4'),
                "sink.partitions cannot be changed while the connector runs",
            ),
            (good.replace('"public.t"', '"public.t", "public.gone"'), "the file as it is now is refused"),
        )
        for number, (text, told) in enumerate(wrong, 1):
            connector.file.write_text(text)
            running.process.send_signal(signal.SIGHUP)
            running.await_line(told)
            postgres18.execute(f"INSERT INTO t VALUES ({number})")
            eventually(lambda n=number: len(connector.fold("public.t")) == n, "it goes on")  # type: ignore[misc]
        connector.file.write_text(good)
        running.process.send_signal(signal.SIGTERM)
        assert running.ended() == 0
    shown = connector.here("audit", "FILE").stdout
    assert shown.count("by: SIGHUP") == len(wrong)


def _rotated(
    connector: Connector,
    table: str,
    database: Database | MySQLDatabase,
    secret: Path,
    *,
    change: str,
    sessions: str,
    end: str,
) -> None:
    """Twice the password is another one at the server and in the file of the secret; then at the server alone."""
    login = connector.environment["TEST_DATABASE_URL"]
    secret.write_text(login)
    _write(connector, source={"url": f"${{file:{secret}}}"})
    with Running(connector) as running:
        running.await_following()
        for number in (1, 2, 3):
            database.execute(change.format(f"{CANARY}{number}"))
            if number < 3:
                secret.write_text(login.replace(f":{CANARY}@", f":{CANARY}{number}@"))
            for (session,) in database.rows(sessions):
                with contextlib.suppress(Exception):  # it has ended by itself
                    database.execute(end.format(session))
            database.execute(f"INSERT INTO t VALUES ({number})")
            if number < 3:
                eventually(lambda n=number: _rows(connector, table) == n, "it goes on with the new one")  # type: ignore[misc]
        assert running.ended() == 1
        assert "refuses" in running.stderr
        assert running.stderr.count("its file is read again") == 2


def test_a_password_that_is_rotated_is_read_again(
    postgres18: Database, kafka: str, prefix: str, tmp_path: Path
) -> None:
    """The secret's file has the new one; each new connection is refused with the one that was read at the start."""
    postgres18.execute("CREATE TABLE t (id int PRIMARY KEY)")
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, ["public.t"])
    role = f"cdc_capture_{postgres18.name}"
    _rotated(
        connector, "public.t", postgres18, tmp_path / "url", change=f"ALTER ROLE {role} PASSWORD '{{}}'",
        sessions=f"SELECT pid FROM pg_stat_activity WHERE usename = '{role}'", end="SELECT pg_terminate_backend({})",
    )  # fmt: skip


@pytest.mark.full
def test_a_password_that_is_rotated_at_mysql(
    mysql_database: MySQLDatabase, kafka: str, prefix: str, tmp_path: Path
) -> None:
    mysql_database.execute("CREATE TABLE t (id INT PRIMARY KEY)")
    connector = connector_of(tmp_path, prefix, mysql_database, kafka, "t")
    user = f"cdc_capture_{mysql_database.name}"
    _rotated(
        connector, f"{mysql_database.name}.t", mysql_database, tmp_path / "url",
        change=f"ALTER USER '{user}'@'%' IDENTIFIED BY '{{}}'",
        sessions=f"SELECT id FROM information_schema.processlist WHERE user = '{user}'", end="KILL {}",
    )  # fmt: skip
