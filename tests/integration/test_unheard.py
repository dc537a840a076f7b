"""A connector whose stderr takes nothing goes on, stops when asked, and ends with its own exit code."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cdc.model.errors import RetryableError
from tests.conftest import Database
from tests.integration.connector import Connector
from tests.integration.running import eventually


def _rows(connector: Connector) -> int:
    """How many the topic has; none before there is one."""
    with contextlib.suppress(RetryableError):
        return len(connector.fold("public.t"))
    return 0


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_nobody_reads_its_log(log_format: str, postgres18: Database, kafka: str, prefix: str, tmp_path: Path) -> None:
    """`cdc run … 2>&1 | tee log`, and Ctrl-C: tee has gone first. The signal was lost, and the next one interrupted it.

    Then a log on a disk that is full.
    """
    postgres18.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (0)")
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, ["public.t"])
    connector.put_right()
    read, write = os.pipe()
    with Path("/dev/full").open("wb") as full, os.fdopen(write, "wb") as pipe:
        for number, stderr in enumerate((pipe, full), 1):
            words = [sys.executable, "-m", "cdc", "run", str(connector.file), "--log-format", log_format]
            process = subprocess.Popen(words, env=connector.environment, stdout=subprocess.DEVNULL, stderr=stderr)
            try:
                if number == 1:
                    os.close(read)
                postgres18.execute(f"INSERT INTO t VALUES ({number})")
                eventually(lambda n=number: _rows(connector) == n + 1, "it follows")  # type: ignore[misc]
                process.send_signal(signal.SIGTERM)
                assert process.wait(60) == 0
            finally:
                process.kill()
                process.wait()
