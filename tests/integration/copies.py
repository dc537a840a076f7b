"""A connector that keeps a DuckDB file, as a command and as a process that can be killed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import duckdb

from tests.conftest import Database
from tests.integration import in_process
from tests.integration.nudges import nudged
from tests.integration.running import eventually

HOME = Path(__file__).parents[2]


class Copy:
    """A connector's file, and the file that it keeps."""

    def __init__(self, folder: Path, source: dict[str, Any], name: str = "copied", **sink: Any) -> None:
        self.url, self.out, self.file = source["url"], folder / "copy.duckdb", folder / f"{name}.yaml"
        config = {"name": name, "source": source, "sink": {"type": "duckdb", "path": str(self.out), **sink}}
        self.file.write_text(json.dumps(config))
        self.environment = {**os.environ}

    def cdc(self, *words: str) -> subprocess.CompletedProcess[str]:
        with nudged(self.url):
            return in_process.cdc([str(self.file) if word == "FILE" else word for word in words], self.environment)

    def catch_up(self) -> None:
        done = self.cdc("run", "FILE", "--until-caught-up")
        assert done.returncode == 0, done.stderr

    def start(self, **more: Any) -> subprocess.Popen[str]:
        words = [sys.executable, "-m", "cdc", "run", str(self.file)]
        environment = {**self.environment, "PYTHONPATH": str(HOME)}
        return subprocess.Popen(words, cwd=HOME, env=environment, stderr=subprocess.PIPE, text=True, **more)

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        with duckdb.connect(self.out, read_only=True) as found:
            return found.execute(statement).fetchall()


def postgres(database: Database, *tables: str) -> dict[str, Any]:
    return {"type": "postgres", "url": database.url, "tables": list(tables)}


def killed(copy: Copy, at: random.Random) -> None:
    """Start it, and kill it at any time: in the snapshot, while it makes the file, in a commit, as it follows."""
    with copy.start() as running:
        size = copy.out.stat().st_size if copy.out.exists() else -1
        wal = copy.out.with_name(f"{copy.out.name}.wal")
        eventually(lambda: copy.out.exists() and (copy.out.stat().st_size > size or wal.exists()), "it has the file")
        time.sleep(at.random() / 2)
        running.send_signal(signal.SIGKILL)
