"""A member's children: `cdc run`, each on a private copy of a file. The kernel ends them with their member."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import orjson

from cdc.fleet import with_member
from cdc.fleet.entry import Entry
from cdc.fleet.nursery import READ_BYTES
from cdc.fleet.report import Report
from cdc.machine.child_processes import SAFE_PATH
from cdc.machine.process_folder import ProcessFolder
from cdc.model.errors import BugError

_WAIT: Final = "--wait=10m"
"""A child waits so long for a database or Kafka that is not up, before it ends and is started again."""
_TAKE_OVER: Final = "--take-over-within=20s"
"""Not later: a child that was frozen as it started would fence the copy that another member has started meanwhile."""
_FORKED_S: Final = 60.0
_KILLED: Final = -int(signal.SIGKILL)


@dataclass(slots=True)
class _Child:
    pid: int
    file: Path
    pipe: int
    heard: bytes = b""
    code: int | None = None
    """Its exit code, once it has ended."""
    refused: int | None = None
    """Why the machine gives no process for it, as an `errno`."""


class Children:
    """Starts, stops and hears them; all calls come from one thread, which lives as long as the member."""

    def __init__(self, flags: Sequence[str] = (), *, metrics: bool = False) -> None:
        """`flags` are further options of `cdc run`; `metrics`: each shows its own at a socket in `folder`."""
        self._flags, self._metrics = tuple(flags), metrics
        self._folder = ProcessFolder("cdc-fleet-", "member")
        self._children: dict[str, _Child] = {}
        self._nursery: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._heard = b""
        self._ready = False
        self._open()

    @property
    def folder(self) -> Path:
        """Where their files are, and their sockets: ``NAME.sock``."""
        return self._folder.path

    def _open(self) -> socket.socket:
        """Return the way to the nursery, which is started if there is none."""
        if self._channel is None:
            ours, its = socket.socketpair()
            ours.settimeout(_FORKED_S)
            with its:
                self._nursery = subprocess.Popen(
                    [
                        *(sys.executable, "-I", "-S", with_member.__file__, str(os.getpid())),
                        *(sys.executable, *SAFE_PATH, "-m", "cdc.fleet.nursery", str(its.fileno())),
                    ],
                    stdin=subprocess.DEVNULL,
                    pass_fds=(its.fileno(),),
                    start_new_session=True,  # Ctrl-C in the terminal is for the member alone
                )
            self._channel = ours
        return self._channel

    def await_ready(self) -> None:
        """Return when starting one takes no time any more: who takes over is to be quick."""
        try:
            self._open()
            while not self._ready:
                self._receive()
        except OSError:
            self._lost()

    def start(self, entry: Entry, *, take_over: bool) -> None:
        """Start one. Raises OSError where there is no room for its file, or no descriptor or process left for it."""
        file = self.folder / f"{entry.name}.yaml"
        self._folder.keep()
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as copy:
            copy.write(entry.yaml)
        told, tells = os.pipe()
        os.set_blocking(told, False)
        flags = [_WAIT, *([_TAKE_OVER] if take_over else []), *self._flags]
        child = self._children[entry.name] = _Child(0, file, told)
        wanted = {"start": ["run", str(file), *flags], "name": entry.name, "folder": str(self.folder)}
        if self._metrics:
            wanted["socket"] = str(self.folder / f"{entry.name}.sock")
        asked = orjson.dumps(wanted) + b"\n"
        try:
            socket.send_fds(self._open(), [asked], [tells])
            while child.code is None and child.pid == 0 and child.refused is None:
                self._receive(newest=child)
        except OSError:
            self._lost()
        finally:
            os.close(tells)
        if child.refused is not None:
            self._forget(entry.name)
            raise OSError(child.refused, os.strerror(child.refused))

    def _forget(self, name: str) -> None:
        child = self._children.pop(name)
        os.close(child.pipe)
        for file in (child.file, child.file.with_suffix(".sock")):
            file.unlink(missing_ok=True)

    def _receive(self, newest: _Child | None = None) -> None:
        """Take up what the nursery says next. Raises OSError when it is gone."""
        said = self._open().recv(READ_BYTES)
        if not said:
            raise ConnectionResetError
        *lines, self._heard = (self._heard + said).split(b"\n")
        for line in lines:
            self._take(orjson.loads(line), newest)

    def _take(self, said: dict[str, int], newest: _Child | None) -> None:
        if "ready" in said:
            self._ready = True
            return
        if "started" in said or "refused" in said:
            if newest is None:
                raise BugError("a nursery has started what nobody asked for")
            newest.pid, newest.refused = said.get("started", 0), said.get("refused")
            return
        for child in self._children.values():
            if child.pid == said["ended"] and child.code is None:
                child.code = said["code"]

    def _lost(self) -> None:
        """The nursery is gone, and its children with it; the next start makes another one."""
        if self._channel is not None:
            self._channel.close()
        if self._nursery is not None:
            self._nursery.kill()
            self._nursery.wait()
        self._channel, self._nursery, self._heard, self._ready = None, None, b"", False
        for child in self._children.values():
            if child.code is None:
                child.code = _KILLED

    def stop(self, name: str) -> None:
        self._signal(name, signal.SIGTERM)

    def hang_up(self, name: str) -> None:
        self._signal(name, signal.SIGHUP)

    def kill(self, name: str) -> None:
        self._signal(name, signal.SIGKILL)

    def _signal(self, name: str, number: signal.Signals) -> None:
        try:
            asked = {"signal": int(number), "pid": self._children[name].pid}
            self._open().sendall(orjson.dumps(asked) + b"\n")
        except OSError:
            self._lost()

    def reports(self) -> Iterator[tuple[str, Report]]:
        """Give what they have said since the last call; never waits."""
        for name, child in self._children.items():
            for report in _hear(child):
                yield name, report

    def ended(self) -> list[tuple[str, int]]:
        """Return those that have ended since the last call, with an exit code; that of a signal is negative."""
        self._hear_ends()
        found = []
        for name, child in list(self._children.items()):
            if child.code is not None:
                found.append((name, child.code))
                self._forget(name)
        return found

    def _hear_ends(self) -> None:
        if self._channel is None:
            return
        try:
            self._channel.setblocking(False)  # noqa: FBT003 - the socket's own word
            with suppress(BlockingIOError):
                while True:
                    self._receive()
        except OSError:
            self._lost()
        else:
            self._channel.settimeout(_FORKED_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._lost()
        for child in self._children.values():
            os.close(child.pipe)
        self._folder.remove()


def _hear(child: _Child) -> Iterator[Report]:
    with suppress(BlockingIOError):
        while said := os.read(child.pipe, READ_BYTES):
            child.heard += said
    *lines, child.heard = child.heard.split(b"\n")
    for line in lines:
        report = Report.from_line(line)
        if report is not None:
            yield report
