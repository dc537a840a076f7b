"""A connector whose section of docs/operations.md is followed: each command of it is run as it stands there."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Protocol

from tests.integration.connector import Connector
from tests.integration.running import eventually

PAGE: Final = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
STATEMENT: Final = re.compile(r"(SELECT|ALTER SYSTEM|SET GLOBAL) ")


class Server(Protocol):
    """Whose owner runs the statements."""

    url: str

    def execute(self, *statements: str) -> None: ...
    def rows(self, statement: str) -> list[tuple[Any, ...]]: ...


def told(alert: str) -> list[str]:
    """The commands and statements of a section, in its order."""
    section = PAGE.partition(f"\n#### {alert}\n")[2].partition("\n#")[0]
    found = dict.fromkeys(re.findall(r"`([^`]+)`", section))
    return [each for each in found if re.match(r"cdc .*\.yaml", each) or STATEMENT.match(each)]


class Shop:
    """A connector whose files are called as the page calls them, in the current folder."""

    def __init__(self, folder: Path, name: str, database: Server, kafka: str, **more: Any) -> None:
        self.database, self.kafka, self.name, self.folder = database, kafka, name, folder
        mysql = database.url.startswith("mysql:")
        self.table = f"{getattr(database, 'name', '')}.orders" if mysql else "public.orders"
        self.connector = Connector(folder, name, database.url, kafka, [self.table], **more)
        self.connector.file = self.connector.file.rename(folder / "connector.yaml")
        self._left: list[str] = []

    @contextmanager
    def alert(self, name: str) -> Iterator[None]:
        """Follow the section of an alert: all that it has must be run inside the block."""
        self._left = told(name)
        assert self._left, name
        yield
        assert self._left == [], f"{name}: not run"

    def take(self, command: str) -> list[str]:
        """The words of a command of the section, which counts as run."""
        assert command in self._left, f"not in the section, or run already: {command}; it has {self._left}"
        self._left.remove(command)
        return [self.name if word == "shop" else word for word in shlex.split(command)[1:]]

    def says(self, command: str, *, code: int = 0) -> str:
        """Run a command of the section to its end; what it prints."""
        done = self.connector.here(*self.take(command))
        assert done.returncode == code, (command, done.returncode, done.stderr)
        return done.stdout + done.stderr

    def until(self, command: str, shown: str) -> None:
        """Run one that does not end by itself until it prints this, and then end it."""
        with self.running(*self.take(command)) as lines:
            eventually(lambda: any(shown in line for line in lines), lambda: f"{command} says {shown!r}: {lines}")

    @contextmanager
    def running(self, *words: str) -> Iterator[list[str]]:
        """Any command, as a process; the lines that it has printed so far."""
        process = subprocess.Popen(
            [sys.executable, "-m", "cdc", *words],
            env=self.connector.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.folder,
        )
        lines: list[str] = []
        stdout = process.stdout
        assert stdout is not None
        hearing = threading.Thread(target=lambda: lines.extend(iter(stdout.readline, "")), daemon=True)
        hearing.start()
        try:
            yield lines
        finally:
            process.send_signal(signal.SIGINT if words[0] == "tail" else signal.SIGTERM)
            process.wait(60)
            hearing.join()
            stdout.close()

    def asks(self, statement: str) -> list[tuple[Any, ...]]:
        """Run the statements that a piece of the section has; the rows of the last that gives some."""
        assert statement in self._left, f"{statement}; it has {self._left}"
        self._left.remove(statement)
        rows: list[tuple[Any, ...]] = []
        for each in statement.split("; "):
            if each.startswith("SELECT"):
                rows = self.database.rows(each)
            else:
                self.database.execute(each)
        return rows
