"""An apply job shows metrics and health, which agree with `cdc status`, and logs JSON that holds no value of a row."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cdc.telemetry import metrics
from tests.canary import WATCH
from tests.conftest import Database
from tests.integration.connector import Connector
from tests.integration.running import Running, eventually
from tests.integration.test_metrics import VALUE, Scraper, free_port

pytest_plugins = ["tests.spark.fixtures"]


def test_what_a_job_shows(postgres18: Database, kafka: str, prefix: str, tmp_path: Path) -> None:
    """Freshness that grows with a paused connector, events by outcome, an event in quarantine; the log as JSON."""
    postgres18.execute("CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, 'x')")
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, ["public.t"])
    scraper, file = Scraper(free_port()), tmp_path / "apply.yaml"
    job = {
        "name": "copies",
        "source": {"bootstrap_servers": kafka, "topic_prefix": prefix},
        "stores": {"search": {"type": "tantivy", "path": str(tmp_path / "search")}},
        "tables": {"public.t": {"stores": ["search"]}},
        "checkpoint": str(tmp_path / "checkpoint"),
        "metrics": {"listen": f"127.0.0.1:{scraper.port}"},
    }
    file.write_text(json.dumps(job))
    with Running(connector) as running:
        running.await_following()
        command = (sys.executable, "-m", "cdc", "apply", str(file))
        env = {**os.environ, "PYTHONPATH": str(Path.cwd()), "CDC_LOG_FORMAT": "json"}
        pipes: Any = {"stderr": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with subprocess.Popen(command, env=env, start_new_session=True, **pipes) as process:
            lines: list[str] = []
            assert process.stderr is not None
            hearing = threading.Thread(target=lambda: lines.extend(process.stderr or ()))
            hearing.start()
            try:
                eventually(lambda: any("metrics and health at" in each for each in lines), "it listens", within_s=120)
                assert scraper.ask("/startupz")[0] in (200, 503)
                eventually(lambda: scraper.ask("/readyz")[0] == 200, "it follows", within_s=120)
                os.killpg(process.pid, signal.SIGHUP)  # Spark's JVM has it, too: by a terminal, or systemctl kill
                _shown(connector, scraper, postgres18, file)
            finally:
                process.send_signal(signal.SIGTERM)
                code = process.wait(120)
                hearing.join()
            WATCH.tee("apply", "".join(lines))
            assert code == 0, lines
    assert VALUE not in "".join(lines)
    ours = [json.loads(each) for each in lines if each.startswith("{")]
    assert all({"time", "level", "message", "apply", "connector"} <= each.keys() for each in ours)
    assert {each["connector"] for each in ours} == {prefix}
    assert all(each["time"].endswith("+00:00") for each in ours)
    assert [each["message"] for each in ours[:1]] == [f"metrics and health at http://127.0.0.1:{scraper.port}"]
    assert any("following the topics" in each["message"] for each in ours)
    assert any(each["message"].startswith("SIGHUP: the job goes on") for each in ours)


def _shown(connector: Connector, scraper: Scraper, database: Database, file: Path) -> None:
    database.execute(f"INSERT INTO t VALUES (2, '{VALUE}')", "DELETE FROM t WHERE id = 1")
    eventually(lambda: (scraper.get("cdc_apply_events_total", table="public.t") or 0) >= 3, "events are applied")
    told = {family.name for family in text_string_to_metric_families(scraper.ask("/metrics")[1])}
    assert told == {m.name.removesuffix("_total") if m.kind == "counter" else m.name for m in metrics.APPLY}
    eventually(lambda: (scraper.get("cdc_apply_freshness_seconds", store="search") or 99) < 15, "it is fresh")
    scraper.until("cdc_apply_tables", 1, store="search")
    scraper.until("cdc_apply_incomplete_tables", 0, store="search")
    scraper.until("cdc_apply_deletes_retention_seconds", 7 * 86_400, store="search")
    assert (scraper.get("cdc_apply_deletes_headroom_seconds", store="search") or 0) > 7 * 86_400 - 60
    scraper.until("cdc_apply_quarantined_events", 0, store="search")
    assert (scraper.get("cdc_apply_batches_total") or 0) >= 1
    assert scraper.get("cdc_apply_batch_duration_seconds_count") == scraper.get("cdc_apply_batches_total")
    assert scraper.get("cdc_apply_rows_total", outcome="quarantined") == 0
    assert scraper.ask("/livez")[0] == 200
    found = _freshness(connector, file)
    shown = scraper.get("cdc_apply_freshness_seconds", store="search")
    assert shown is not None
    assert abs(shown - found) <= 11.5, "an idle connector's position is as old as that"


def _freshness(connector: Connector, file: Path) -> float:
    stores: dict[str, Any] = json.loads(connector.here("status", str(file), "--json").stdout)["stores"]
    return float(stores["search"][connector.name]["freshness_seconds"])


@pytest.mark.parametrize("command", ["run", "apply"])
def test_an_address_that_is_taken_ends_it_before_anything_is_done(command: str, tmp_path: Path) -> None:
    """No server is asked: there is none."""
    file = tmp_path / "file.yaml"
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        metrics_ = {"metrics": {"listen": f"127.0.0.1:{taken.getsockname()[1]}"}}
        connector = {
            "source": {"type": "postgres", "url": "postgresql://127.0.0.1:9/d", "tables": ["public.t"]},
            "sink": {"bootstrap_servers": "127.0.0.1:9"},
        }
        job = {
            "source": {"bootstrap_servers": "127.0.0.1:9", "topic_prefix": "c"},
            "stores": {"search": {"type": "tantivy", "path": str(tmp_path / "search")}},
            "tables": {"public.t": {"stores": ["search"]}},
            "checkpoint": str(tmp_path / "checkpoint"),
        }
        file.write_text(json.dumps({"name": "c", **(connector if command == "run" else job), **metrics_}))
        done = subprocess.run(
            [sys.executable, "-m", "cdc", command, str(file)], capture_output=True, text=True, check=False, timeout=60
        )
    assert done.returncode == 1
    assert "another process listens there" in done.stderr
    assert "hint:" in done.stderr
    assert not (tmp_path / "checkpoint").exists()


@pytest.mark.parametrize("command", ["run", "apply"])
def test_an_error_is_a_line_of_the_log(command: str, tmp_path: Path) -> None:
    """With its hint and class; exit codes are as they were."""
    file = tmp_path / "wrong.yaml"
    file.write_text("name: c\n")
    done = subprocess.run(
        [sys.executable, "-m", "cdc", command, str(file), "--log-format", "json"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    found = json.loads(line)
    assert (found["level"], found["kind"]) == ("error", "ConfigError")
    assert found["message"].startswith(f"{file}:1: ")
