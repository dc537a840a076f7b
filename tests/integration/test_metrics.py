"""Metrics and health of a connector on real servers agree with `cdc status`, and hold no secret and no value."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.canary import WATCH
from tests.conftest import Database, MySQLDatabase
from tests.integration.connector import Connector
from tests.integration.mysql_work import connector_of
from tests.integration.running import Running, eventually, standing
from tests.sockets import listening

VALUE = "a-value-of-a-row-4711"


def free_port() -> int:
    with closing(socket.socket()) as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Scraper:
    """Asks the address of one process; all answers are looked through for the secret."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.answers = ""

    def ask(self, path: str) -> tuple[int, str]:
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)) as connection:
            connection.request("GET", path)
            answer = connection.getresponse()
            text = answer.read().decode()
        WATCH.tee(f"metrics{path.replace('/', '-')}", text)
        assert VALUE not in text
        return answer.status, text

    def get(self, name: str, **labels: str) -> float | None:
        """A sample with at least these labels, summed over the others."""
        found = [
            sample.value
            for family in text_string_to_metric_families(self.ask("/metrics")[1])
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        ]
        return sum(found) if found else None

    def until(self, name: str, value: float, **labels: str) -> None:
        def now() -> float | None:
            return self.get(name, **labels)

        eventually(lambda: now() == value, lambda: f"{name} {labels} is {value}: {now()}")


def _status(connector: Connector) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(connector.here("status", "FILE", "--json").stdout)
    return found


def _shown(connector: Connector, port: int, database: Database | MySQLDatabase, topic: str, backlog_s: float) -> None:
    scraper = Scraper(port)
    with Running(connector) as running:
        running.await_following()
        assert [scraper.ask(path)[0] for path in ("/livez", "/readyz", "/startupz")] == [200, 200, 200]
        database.execute(f"INSERT INTO t VALUES (2, '{VALUE}'), (3, '{VALUE}')", "UPDATE t SET v = 'z' WHERE id = 1",
                         "DELETE FROM t WHERE id = 3")  # fmt: skip
        scraper.until("cdc_source_events_total", 2, table=topic, op="c")
        for op in ("u", "d", "r"):
            scraper.until("cdc_source_events_total", 1, table=topic, op=op)
        assert scraper.get("cdc_source_transactions_total") == 3
        assert scraper.get("cdc_source_delay_seconds_count") == 3
        assert scraper.get("cdc_connector_state", state="streaming") == 1
        lags = []
        for n in range(24):  # idle, and then with others at work beside it
            if n >= 12:
                database.execute(f"INSERT INTO other VALUES ({n})")
            time.sleep(0.2)
            lags.append(scraper.get("cdc_source_lag_seconds"))
        assert max(lag if lag is not None else 99 for lag in lags) <= 2, lags
        assert connector.here("pause", "FILE", "--json").returncode == 0
        scraper.until("cdc_connector_state", 1, state="paused")
        assert scraper.ask("/readyz") == (503, "paused\n")
        assert scraper.ask("/livez")[0] == 200
        begun_s = time.monotonic()
        while time.monotonic() - begun_s < backlog_s:
            database.execute(f"UPDATE t SET v = 'y{time.monotonic()}' WHERE id = 1")
            time.sleep(0.3)
        lag, waited_s = scraper.get("cdc_source_lag_seconds"), time.monotonic() - begun_s
        assert lag is not None
        told = _status(connector)["lag_seconds"] - (time.monotonic() - begun_s - waited_s)
        assert waited_s * 0.9 <= lag <= waited_s * 1.1 + 2.5  # it was idle for up to 2 s before
        assert abs(lag - told) <= max(1.5, 0.1 * waited_s)
        assert connector.here("resume", "FILE").returncode == 0
        scraper.until("cdc_connector_state", 1, state="streaming")
        eventually(lambda: (scraper.get("cdc_source_lag_seconds") or 99) <= 2, "it catches up")
        assert (scraper.get("cdc_connector_sessions_total") or 0) >= 2
        assert (scraper.get("cdc_sink_epochs_total") or 0) >= 2
        assert scraper.get("cdc_source_reachable") == 1
        # A second process with the same file: the port is taken, and nothing else is touched.
        sequence = standing(connector).sequence
        done = connector.cdc("run", "FILE", "--until-caught-up")
        assert done.returncode == 1
        assert f"metrics.listen: 127.0.0.1:{port}: another process listens there" in done.stderr
        assert running.process.poll() is None
        assert standing(connector).sequence <= sequence + 40


def test_what_a_connector_shows(postgres18: Database, kafka: str, prefix: str, tmp_path: Path) -> None:
    postgres18.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, 'x')", "CREATE TABLE other (id int)"
    )
    port = free_port()
    connector = Connector(
        tmp_path, prefix, postgres18.url, kafka, ["public.t"], metrics={"listen": f"127.0.0.1:{port}"}
    )
    _shown(connector, port, postgres18, "public.t", 6)
    with Running(connector, "--log-format", "json", "--verbose") as running:
        running.await_following()
        scraper = Scraper(port)
        scraper.until("cdc_slot_active", 1)
        postgres18.execute(f"INSERT INTO t VALUES (7, '{VALUE}')")
        running.await_line("1 events")
        scraper.until("cdc_slot_state", 1, state="reserved")
        assert (scraper.get("cdc_slot_retained_bytes") or 0) > 0
        assert scraper.get("cdc_slot_safe_bytes") is None  # nothing limits it
        running.process.send_signal(signal.SIGTERM)
        assert running.ended() == 0
    logged = [json.loads(line) for line in running.lines]  # each line is an object
    assert {line["connector"] for line in logged} == {prefix}
    assert all(line["time"].endswith("+00:00") for line in logged)
    assert set(logged[-1]["position"]) == {"lsn", "last"}
    assert logged[-1]["message"].startswith(f"{prefix}: stopped, position committed; ")
    assert any("stopping after the transaction in hand" in line["message"] for line in logged)
    assert VALUE not in running.stderr


@pytest.mark.full  # test_what_a_connector_shows, and test_offsets for what is MySQL's
def test_what_a_connector_shows_at_mysql(
    mysql_database: MySQLDatabase, kafka: str, prefix: str, tmp_path: Path
) -> None:
    mysql_database.execute(
        "CREATE TABLE t (id INT PRIMARY KEY, v TEXT)", "INSERT INTO t VALUES (1, 'x')", "CREATE TABLE other (id int)"
    )
    port = free_port()
    connector = connector_of(tmp_path, prefix, mysql_database, kafka, "t", metrics={"listen": f"127.0.0.1:{port}"})
    _shown(connector, port, mysql_database, f"{mysql_database.name}.t", 6)


@pytest.mark.full
def test_a_minute_of_backlog_is_a_minute(postgres18: Database, kafka: str, prefix: str, tmp_path: Path) -> None:
    postgres18.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, 'x')", "CREATE TABLE other (id int)"
    )
    port = free_port()
    connector = Connector(
        tmp_path, prefix, postgres18.url, kafka, ["public.t"], metrics={"listen": f"127.0.0.1:{port}"}
    )
    _shown(connector, port, postgres18, "public.t", 60)


def test_a_connector_without_an_address_listens_nowhere(
    postgres18: Database, kafka: str, prefix: str, tmp_path: Path
) -> None:
    postgres18.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with Running(Connector(tmp_path, prefix, postgres18.url, kafka, ["public.t"])) as running:
        running.await_following()
        assert listening(running.process.pid) == set()
