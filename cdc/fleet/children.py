"""A member's children: `cdc run`, each on a private copy of a file. The kernel ends them with their member."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from cdc.config.child_processes import SAFE_PATH
from cdc.fleet import with_member
from cdc.fleet.entry import Entry
from cdc.fleet.report import REPORT_FD, Report

_WAIT: Final = "--wait=10m"
"""A child waits so long for a database or Kafka that is not up, before it ends and is started again."""
_READ_BYTES: Final = 65_536


@dataclass(slots=True)
class _Child:
    process: subprocess.Popen[bytes]
    file: Path
    pipe: int
    heard: bytes = b""


class Children:
    """Starts, stops and hears them; all calls come from one thread, which lives as long as the member."""

    def __init__(self, flags: Sequence[str] = ()) -> None:
        """`flags` are further options of `cdc run`."""
        self._flags = tuple(flags)
        self._folder = Path(tempfile.mkdtemp(prefix="cdc-fleet-"))  # for its owner's eyes alone
        self._children: dict[str, _Child] = {}

    def start(self, entry: Entry, *, take_over: bool) -> None:
        file = self._folder / f"{entry.name}.yaml"
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as copy:
            copy.write(entry.yaml)
        told, tells = os.pipe()
        os.set_blocking(told, False)
        flags = [_WAIT, *(["--take-over"] if take_over else []), *self._flags]
        try:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-I", "-S", with_member.__file__, str(os.getpid())),
                    *(sys.executable, *SAFE_PATH, "-m", "cdc", "run", str(file), *flags),
                ],
                stdin=subprocess.DEVNULL,
                env={**os.environ, REPORT_FD: str(tells)},
                pass_fds=(tells,),
                start_new_session=True,  # Ctrl-C in the terminal is for the member alone
            )
        finally:
            os.close(tells)
        self._children[entry.name] = _Child(process, file, told)

    def stop(self, name: str) -> None:
        self._children[name].process.terminate()

    def kill(self, name: str) -> None:
        self._children[name].process.kill()

    def reports(self) -> Iterator[tuple[str, Report]]:
        """Give what they have said since the last call; never waits."""
        for name, child in self._children.items():
            for report in _hear(child):
                yield name, report

    def ended(self) -> list[tuple[str, int]]:
        """Return those that have ended since the last call, with an exit code; that of a signal is negative."""
        found = []
        for name, child in list(self._children.items()):
            code = child.process.poll()
            if code is not None:
                found.append((name, code))
                del self._children[name]
                os.close(child.pipe)
                child.file.unlink(missing_ok=True)
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for child in self._children.values():
            child.process.send_signal(signal.SIGKILL)
        for child in self._children.values():
            child.process.wait()
            os.close(child.pipe)
        shutil.rmtree(self._folder, ignore_errors=True)


def _hear(child: _Child) -> Iterator[Report]:
    with suppress(BlockingIOError):
        while said := os.read(child.pipe, _READ_BYTES):
            child.heard += said
    *lines, child.heard = child.heard.split(b"\n")
    for line in lines:
        report = Report.from_line(line)
        if report is not None:
            yield report
