"""SIGHUP where there is no terminal: connectors read their files again, what reads none again goes on, and says so."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cdc.fleet import with_member
from tests.canary import WATCH
from tests.conftest import Database
from tests.integration.connector import Connector
from tests.integration.running import eventually
from tests.integration.test_metrics import Scraper, free_port


@contextmanager
def _running(*words: str, env: dict[str, str] | None = None) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """A command whose stderr is a pipe, and its lines; at the end it is asked to stop, and ends with 0."""
    command = (sys.executable, "-m", "cdc", *words)
    env = {**(env or os.environ), "PYTHONFAULTHANDLER": "1"}
    with subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True) as process:
        lines: list[str] = []
        hearing = threading.Thread(target=lambda: lines.extend(process.stderr or ()))
        hearing.start()
        try:
            yield process, lines
        finally:
            process.send_signal(signal.SIGTERM)
            code = _ended(process)
            hearing.join()
        WATCH.tee(words[0], "".join(lines))
        assert code == 0, lines


def _ended(process: subprocess.Popen[str]) -> int:
    """The exit code; one that does not end says where it stands, and is ended."""
    try:
        return process.wait(60)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)
        return process.wait(60)


def _told(lines: list[str], text: str) -> None:
    eventually(lambda: any(text in line for line in lines), lambda: f"{text!r} is told in {lines}")


def test_the_connectors_of_a_fleet_read_their_references_again(
    postgres18: Database, kafka: str, prefix: str, tmp_path: Path
) -> None:
    """A member ended, and its connectors with it; as a unit's exit by SIGHUP it counted as clean."""
    postgres18.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, ["public.t"])
    connector.put_right()
    where = ("--fleet", prefix, "--bootstrap-servers", kafka)
    subprocess.run(
        (sys.executable, "-m", "cdc", "fleet", "add", str(connector.file), *where),
        env=connector.environment,
        check=True,
        capture_output=True,
    )
    with _running("fleet", "run", *where, env=connector.environment) as (process, lines):
        _told(lines, "following the log")
        process.send_signal(signal.SIGHUP)
        _told(lines, "SIGHUP: 1 connectors read their references again")
        _told(lines, "its file says nothing new")
        postgres18.execute("INSERT INTO t VALUES (2)")
        eventually(lambda: len(connector.fold("public.t")) == 2, "it goes on")


def test_the_page_stays(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(
        "name: c\nsource: {type: postgres, url: 'postgresql://127.0.0.1:9/d', tables: [public.t]}\n"
        "sink: {bootstrap_servers: '127.0.0.1:9', topic_prefix: c}\n"
    )
    scraper = Scraper(free_port())
    with _running("monitor", str(file), "--listen", f"127.0.0.1:{scraper.port}") as (process, lines):
        _told(lines, "the page is at")
        process.send_signal(signal.SIGHUP)
        _told(lines, "SIGHUP: the page goes on")
        assert scraper.ask("/livez")[0] == 200


def test_a_child_that_is_starting_does_not_end() -> None:
    """One of several connectors ended if SIGHUP came before it had loaded what hears it."""
    shown = "import signal; print(signal.getsignal(signal.SIGHUP).name)"
    words = [sys.executable, with_member.__file__, str(os.getpid()), sys.executable, "-c", shown]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == "SIG_IGN\n"
