"""The monitor on real servers: a connector that works, is paused by the page, is killed, and servers that are away."""

from __future__ import annotations

import json
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import pytest

from cdc.config.config import ConnectorConfig, load_connector
from cdc.monitor.commands import PageCommands
from cdc.monitor.figures import MonitorFigures
from cdc.monitor.monitor import Monitor
from cdc.monitor.server import PageServer
from cdc.monitor.watched import WatchedConnector
from tests.canary import WATCH
from tests.conftest import Database, MySQLDatabase
from tests.integration.connector import Connector
from tests.integration.mysql_work import connector_of
from tests.integration.running import Running, eventually
from tests.page.watched import TOKEN


class _Seen:
    """What the page would show of one connector, asked over HTTP."""

    def __init__(self, connector: Connector, config: ConnectorConfig) -> None:
        watched = WatchedConnector(connector.file, config)
        self._monitor = Monitor([watched], commands=True)
        figures = MonitorFigures([watched])
        self._server = PageServer(("127.0.0.1", 0), self._monitor, figures.registry, PageCommands([watched], TOKEN))
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._stack.enter_context(self._server)
        self._stack.enter_context(self._monitor)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def ask(self, path: str, body: bytes | None = None, **headers: str) -> str:
        request = urllib.request.Request(f"http://127.0.0.1:{self._server.port}{path}", body, headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            text: str = answer.read().decode()
        WATCH.tee("monitor", text)
        return text

    def entry(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.ask("/api/state"))["connectors"][0]
        return found

    def becomes(self, state: str, level: str) -> dict[str, Any]:
        entry: dict[str, Any] = {}

        def there() -> bool:
            entry.update(self.entry())
            return (entry["state"], entry["level"]) == (state, level)

        eventually(there, lambda: f"{state}, {level}; it is {entry}")
        return entry

    def command(self, name: str, what: str) -> None:
        body = json.dumps({"connector": name, "command": what}).encode()
        self.ask("/api/command", body, **{"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"})


def _config(connector: Connector, monkeypatch: pytest.MonkeyPatch) -> ConnectorConfig:
    monkeypatch.setenv("TEST_DATABASE_URL", connector.environment["TEST_DATABASE_URL"])
    return load_connector(connector.file)


def test_a_life_that_is_watched(
    postgres18: Database, kafka: str, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New, streaming, paused by the page, killed; and its audit says who paused it."""
    postgres18.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t SELECT generate_series(1, 50)")
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, ["public.t"])
    with _Seen(connector, _config(connector, monkeypatch)) as seen:
        seen.becomes("new", "warn")
        with Running(connector) as running:
            running.await_following()
            seen.becomes("streaming", "ok")
            # server and Kafka are asked at times of their own: what the server said may be of the snapshot still
            eventually(lambda: seen.entry()["owner"], "the server tells who follows")
            entry = seen.entry()
            assert entry["owner"]["who"].startswith(f"cdc {prefix}")
            assert entry["slot"]["active"]
            postgres18.execute("INSERT INTO t SELECT generate_series(51, 90)")
            eventually(lambda: seen.entry()["events_per_second"], "events a second are counted")
            eventually(lambda: seen.entry()["lag_seconds"] is not None, "the lag is known")
            seen.command(prefix, "pause")
            assert seen.becomes("paused", "warn")["paused_at"] is not None
            seen.command(prefix, "resume")
            seen.becomes("streaming", "ok")
            running.kill()
            entry = seen.becomes("stopped", "bad")
        assert entry["owner"] is None
        assert any(of["hint"] == f"cdc run {connector.file}" for of in entry["problems"])
        assert 'cdc_monitor_connector_running{connector="' in seen.ask("/metrics")
    acts = json.loads(connector.here("audit", "FILE", "--json").stdout)["acts"]
    assert [(act["action"], act["by"]) for act in acts] == [
        ("pause", "cdc monitor, for 127.0.0.1"),
        ("resume", "cdc monitor, for 127.0.0.1"),
    ]


@pytest.mark.full  # tests/unit/test_monitor.py
def test_what_does_not_answer_is_shown_as_that(
    postgres18: Database, kafka: str, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source away: what Kafka says is shown. Kafka away: it is said, and the page is there."""
    postgres18.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, ["public.t"])
    connector.catch_up()
    monkeypatch.setenv("TEST_DATABASE_URL", "postgresql://nobody@127.0.0.1:1/none")
    with _Seen(connector, load_connector(connector.file)) as seen:
        entry = seen.becomes("unreachable", "bad")
        assert entry["phase"] == "stream"
        assert any("the source cannot be asked since" in of["says"] for of in entry["problems"])
    away = connector.file.read_text().replace(kafka, "127.0.0.1:1")
    connector.file.write_text(away)  # in the file, which is read again where nobody answers
    with _Seen(connector, _config(connector, monkeypatch)) as seen:
        entry = seen.becomes("unknown", "bad")
        assert any("Kafka cannot be asked since" in of["says"] for of in entry["problems"])


@pytest.mark.full
def test_a_life_at_mysql(
    mysql_database: MySQLDatabase, kafka: str, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mysql_database.execute("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    connector = connector_of(tmp_path, prefix, mysql_database, kafka, "t")
    monkeypatch.setattr("cdc.monitor.status._LATE_S", 1.0)  # MariaDB does not tell every user who follows
    with _Seen(connector, _config(connector, monkeypatch)) as seen, Running(connector) as running:
        running.await_following()
        entry = seen.becomes("streaming", "ok")
        assert "binlog_expire_logs_seconds" in entry["log_left"] or "for ever" in entry["log_left"]
        running.kill()
        seen.becomes("stopped", "bad")
