"""The connector under fault: its file, the copy of it that should be running, and every end that a copy came to."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.faults.oracles import PARTITIONS

NAME: Final = "soak"
VERDICTS: Final = (
    "slot missing",
    "slot taken",
    "slot lost",
    "slot ahead",
    "slot re-made",
    "another source",
    "another server",
    "binlog purged",
    "binlog reset",
    "server behind",
    "no longer carries",
    "holds records already",
    "change tables missing",
    "change tables made again",
    "database behind",
    "another database",
    "rounds deleted",
    "numbers went back",
    "is damaged",
    "Traceback",
    "please report",
)
"""What no fault of the harness justifies."""

OPTIONS: Final = {
    "message.timeout.ms": "6000",
    "socket.timeout.ms": "4000",
    "reconnect.backoff.max.ms": "1000",
}
"""So that a broker can be away for longer than the delivery timeout again and again; the client's own are minutes."""


@dataclass
class Copy:
    """One process."""

    process: subprocess.Popen[bytes]
    log: Path
    started_at_s: float
    peak_kb: int = 0

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        if self.alive:
            self.process.send_signal(number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.process.wait(30)

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def measure(self) -> None:
        """Keep the peak of its resident memory."""
        try:
            status = Path(f"/proc/{self.process.pid}/status").read_text()
        except OSError:
            return
        for line in status.splitlines():
            if line.startswith("VmHWM:"):
                self.peak_kb = max(self.peak_kb, int(line.split()[1]))


@dataclass
class Connector:
    """Starts copies; `copy` is the one that counts."""

    folder: Path
    captured: Mapping[str, Any]
    """The file's `source`, but for its url."""
    url: str = field(repr=False)
    kafka: str
    chunk_rows: int = 2_000
    name: str = NAME
    producer: str = "own"
    copies: list[Copy] = field(default_factory=list)
    alarms: list[str] = field(default_factory=list)
    """Verdicts and tracebacks that copies ended with."""
    ends: list[str] = field(default_factory=list)
    """Last words of copies that nobody had killed."""
    _judged: set[int] = field(default_factory=set)
    _justified: Sequence[str] = ()

    def __post_init__(self) -> None:
        self.lock = threading.RLock()
        self.folder.mkdir(parents=True, exist_ok=True)
        config = {
            "name": self.name,
            "source": {**self.captured, "url": "${TEST_DATABASE_URL}"},
            "sink": {
                "type": "kafka",
                "bootstrap_servers": self.kafka,
                "producer": self.producer,
                "partitions": PARTITIONS,
                "options": OPTIONS,
            },
            "snapshot": {"chunk_rows": self.chunk_rows},
        }
        self.file = self.folder / "connector.yaml"
        self.file.write_text(json.dumps(config))  # JSON is YAML

    @property
    def copy(self) -> Copy:
        return self.copies[-1]

    def start(self, *flags: str, module: Sequence[str] = ("cdc", "run")) -> Copy:
        """A new copy that counts from now on: `module` with its own arguments, then `cdc run`'s."""
        log = self.folder / f"{len(self.copies):03d}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", *module, *flags, str(self.file)],
                env={**os.environ, "TEST_DATABASE_URL": self.url},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        copy = Copy(process, log, time.time())
        self.copies.append(copy)
        return copy

    def look(self, command: str) -> int:
        """Run another command on the file; its exit code."""
        done = subprocess.run(
            [sys.executable, "-m", "cdc", command, str(self.file)],
            env={**os.environ, "TEST_DATABASE_URL": self.url}, stdin=subprocess.DEVNULL, capture_output=True,
            timeout=120, check=False,
        )  # fmt: skip
        return done.returncode

    def crashing(self, point: str, times: int) -> Copy:
        """A new copy that kills itself at a named point, passed so many times."""
        return self.start(module=("tests.faults.crashing", point, str(times)))

    def revive(self) -> bool:
        """Start a copy if the one that counts has ended; True if it had."""
        with self.lock:
            if self.copy.alive:
                return False
            self.judge(self.copy)
            time.sleep(0.2)
            self.start()
            return True

    @contextmanager
    def justified(self, verdicts: Sequence[str]) -> Iterator[None]:
        """In the block these verdicts are true, and no alarm."""
        self._justified = verdicts
        try:
            yield
        finally:
            self._justified = ()

    def judge(self, copy: Copy) -> None:
        """Note how a copy ended by itself."""
        code = copy.process.wait(30)
        if copy.process.pid in self._judged or code == -signal.SIGKILL:
            return
        self._judged.add(copy.process.pid)
        said = copy.said()
        last = [line for line in said.splitlines() if line.startswith("error:")] or said.splitlines()[-1:]
        words = f"{copy.log.name}: exit {code}: {' '.join(last)[:300]}"
        self.ends.append(words)
        if any(verdict in said for verdict in VERDICTS if verdict not in self._justified):
            self.alarms.append(words)

    def stop(self) -> int:
        """Ask the copy that counts to end; its exit code."""
        self.copy.signal(signal.SIGTERM)
        try:
            return self.copy.process.wait(60)
        except subprocess.TimeoutExpired:
            self.copy.kill()
            return -1

    def close(self) -> None:
        for copy in self.copies:
            if copy.alive:
                copy.signal(signal.SIGCONT)
                copy.kill()
