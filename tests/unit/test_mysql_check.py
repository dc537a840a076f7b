"""What `cdc check` says of a MySQL or MariaDB, without a server."""

from __future__ import annotations

from typing import Any

import pymysql
import pytest

from cdc.config.config import ConnectorConfig
from cdc.config.kafka_config import KafkaConfig
from cdc.config.source_config import SourceConfig
from cdc.model.errors import OperatorError
from connectors.mysql import check, session
from connectors.mysql.catalog import filters, server

CONFIG = ConnectorConfig(
    name="c",
    source=SourceConfig(type="mysql", url="mysql://localhost", tables=("d.t",)),
    sink=KafkaConfig(bootstrap_servers="localhost:1", topic_prefix="c"),
)
EXPIRES = {"version": "8.4.3", "binlog_expire_logs_seconds": "2592000"}
AT_RDS = {**EXPIRES, "basedir": "/rdsdbbin/mysql-8.4.3.R1/"}


def looked(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], hours: str | None) -> Any:
    """A look at a server with these variables; `hours`: what RDS is told; None: it may not be read."""

    def texts(_connection: object, _doing: str, statement: str) -> list[list[str]]:
        if "rds_configuration" in statement:
            if hours is None:
                raise OperatorError("SELECT command denied")
            return [[hours]]
        return [["u@h"]] if "CURRENT_USER" in statement else [[*pair] for pair in variables.items()]

    monkeypatch.setattr(session, "texts", texts)
    made = check._Check(CONFIG, None)
    made._server = server.look(None)  # type: ignore[arg-type]
    return made


@pytest.mark.parametrize(
    ("variables", "hours", "kept_s", "found"),
    [
        (EXPIRES, None, 2592000, [("is kept for 30 days", None)]),
        (AT_RDS, None, 2592000, [("how long Amazon keeps the binlog is not told", "CALL mysql.rds_set_configuration")]),
        (AT_RDS, "", 0, [("is kept for 0.0 days", "CALL mysql.rds_set_configuration")]),
        (AT_RDS, "168", 604800, [("is kept for 7 days", None)]),
        (
            {"version": "11.8.3-MariaDB", "max_binlog_total_size": "1073741824"},
            *(None, None),
            [("is kept for ever", None), ("more than 1,073,741,824 bytes", "max_binlog_total_size")],
        ),
    ],
)
def test_how_long_the_log_is_kept(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], hours: str | None, kept_s: int | None, found: Any
) -> None:
    """Amazon removes it as soon as it can, unless it is told otherwise, and whatever the variables say."""
    made = looked(monkeypatch, variables, hours)
    assert made._server.expires_s == kept_s
    for (said, fix), finding in zip(found, made._retention(None), strict=True):
        assert said in finding.what
        assert (fix or "") in (finding.fix or "")
        assert (finding.fix is None) is (fix is None)


@pytest.mark.parametrize(("version", "word"), [("9.7.0", "replica"), ("8.0.20", "slave"), ("11.8.3-MariaDB", "slave")])
def test_a_replica_that_has_stopped(monkeypatch: pytest.MonkeyPatch, version: str, word: str) -> None:
    """The connector has all that the replica has, and no lag tells that its source is ahead."""
    made = looked(monkeypatch, {"version": version}, None)
    state = {f"{word}_io_running": "Yes", f"{word}_sql_running": "Yes"}
    monkeypatch.setattr(filters, "replication", lambda *_: [state])
    assert not list(made._replica(None))
    state[f"{word}_sql_running"] = "No"
    (found,) = made._replica(None)
    assert f"{word.capitalize()}_SQL_Running: No" in found.what
    assert f"START {word.upper()}" in found.fix
    state["channel_name"] = "group_replication_recovery"
    assert not list(made._replica(None)), "which stops when a member has joined its group"


@pytest.mark.parametrize(
    ("version", "idle", "fix"),
    [
        ("9.7.0", [["a-b", "NONE"], ["c", "NONE"]], "SET DEFAULT ROLE ALL TO 'u'@'h'"),
        ("11.8.3-MariaDB", [["a-b", ""], ["c", ""]], "SET DEFAULT ROLE `a-b` FOR 'u'@'h'; GRANT `c` TO `a-b`"),
        ("11.8.3-MariaDB", [["c", "a-b"]], "GRANT `c` TO `a-b`"),
    ],
)
def test_roles_that_are_in_no_session(
    monkeypatch: pytest.MonkeyPatch, version: str, idle: list[list[str]], fix: str
) -> None:
    """MariaDB has one role in a session: another default would take its place."""
    made = looked(monkeypatch, {"version": version}, None)
    monkeypatch.setattr(session, "texts", lambda *_: idle)
    (found,) = made._roles(None)
    assert found.fix == fix
    monkeypatch.setattr(session, "texts", lambda *_: [])
    assert not list(made._roles(None))


@pytest.mark.parametrize(("shown", "right"), [("8.4.3", "REPLICATION CLIENT"), ("11.8.1-MariaDB", "BINLOG MONITOR")])
def test_a_user_without_rights_is_told_of_all_at_once(monkeypatch: pytest.MonkeyPatch, shown: str, right: str) -> None:
    """To be sent the log needs a second right, which was told of once the first was there."""

    def texts(*_: object) -> list[list[str]]:
        cause = pymysql.OperationalError(1227, "Access denied; you need the SUPER privilege")
        raise session.translate(cause, "reading the log's end") from cause

    monkeypatch.setattr(session, "texts", texts)
    with pytest.raises(OperatorError, match="may not ask where the log stands") as caught:
        server.status(None, server.Server(shown, {}, "u@%"))  # type: ignore[arg-type]
    assert caught.value.hint == f"GRANT REPLICATION SLAVE, {right} ON *.* TO 'u'@'%'"
