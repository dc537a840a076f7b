"""Servers on which triggers are not called for all that is written: by what their settings say."""

from __future__ import annotations

from typing import Any, cast

import pytest

from connectors.mysql import session
from connectors.mysql.catalog import server
from connectors.mysql.catalog.server import Server
from connectors.triggers.mysql import preconditions

_OK = {"log_bin": "OFF", "wsrep_on": "OFF", "binlog_format": "ROW"}
_NOBODY = cast("session.Connection", None)


def said(
    monkeypatch: pytest.MonkeyPatch, of: dict[str, str], *, replicates: bool | None = False, version: str = "8.4.0"
) -> list[Any]:
    monkeypatch.setattr(preconditions, "variables", lambda _: {**_OK, **of})
    monkeypatch.setattr(server, "replicates", lambda *_: replicates)
    found = preconditions.refusals(_NOBODY, Server(version, {}, "cdc@%"), "db:3306")
    return [None if one is None else one.message for one in found]


def test_a_server_of_its_own_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    assert said(monkeypatch, {}) == []
    one_primary = {"group_replication_group_name": "g", "group_replication_single_primary_mode": "ON"}
    assert said(monkeypatch, one_primary) == []


@pytest.mark.parametrize(
    ("of", "words"),
    [
        ({"wsrep_on": "ON", "wsrep_cluster_address": "gcomm://a,b"}, "Galera"),
        (
            {"group_replication_group_name": "g", "group_replication_single_primary_mode": "OFF"},
            "several primaries",
        ),
    ],
)
def test_who_is_sent_rows_by_others_is_refused(monkeypatch: pytest.MonkeyPatch, of: dict[str, str], words: str) -> None:
    (message,) = said(monkeypatch, of)
    assert words in message


def test_a_replica_is_refused_and_one_that_may_be_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    (message,) = said(monkeypatch, {}, replicates=True)
    assert "is a replica" in message
    assert said(monkeypatch, {}, replicates=None) == [None]


def test_an_old_server_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    (message,) = said(monkeypatch, {}, version="10.4.1-MariaDB")
    assert "mariadb 10.5.2 or newer is needed" in message


def test_statements_in_the_binlog_are_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preconditions, "variables", lambda _: {"log_bin": "ON", "binlog_format": "STATEMENT"})
    ((warning, fix),) = preconditions.warnings(_NOBODY, "db:3306")
    assert "binlog_format is STATEMENT" in warning
    assert "refuses what the connector writes" in warning
    assert "MIXED" in fix


@pytest.mark.parametrize(
    ("of", "words"),
    [
        ({"read_only": "ON", "super_read_only": "OFF"}, "read_only at db:3306"),
        ({"read_only": "1", "super_read_only": "1"}, "read_only and super_read_only at db:3306"),
        ({"read_only": "NO_LOCK_NO_ADMIN"}, "read_only at db:3306"),  # MariaDB 12
        ({"read_only": "OFF", "super_read_only": "0"}, None),
    ],
)
def test_a_server_that_takes_no_changes_is_warned_of(
    monkeypatch: pytest.MonkeyPatch, of: dict[str, str], words: str | None
) -> None:
    monkeypatch.setattr(preconditions, "variables", lambda _: {**_OK, **of})
    said = [warning.partition(":3306:")[0] + ":3306" for warning, _ in preconditions.warnings(_NOBODY, "db:3306")]
    assert said == ([words] if words else [])
    assert all(
        "unless its user is one of those" in warning for warning, _ in preconditions.warnings(_NOBODY, "db:3306")
    )
