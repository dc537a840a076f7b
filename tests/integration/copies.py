"""A connector that keeps a DuckDB file, as a command and as a process that can be killed."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path
from typing import Any

import duckdb

from tests.conftest import Database
from tests.integration.file_connector import FileConnector
from tests.integration.running import eventually


class Copy(FileConnector):
    """A connector's file, and the file that it keeps."""

    def __init__(self, folder: Path, source: dict[str, Any], name: str = "copied", **sink: Any) -> None:
        super().__init__(folder, source, "copy.duckdb", name, type="duckdb", **sink)

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
