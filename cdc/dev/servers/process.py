"""Controls one server on this machine: start, wait, stop, kill, pause. All that is known of it is in its folder.

    <folder>/settings.json   ports, passwords, the url: made once, so that a restart gets the same (mode 0600)
    <folder>/server.pid      pid and start time, so that a re-used pid is never taken for the server
    <folder>/server.log      the server's own output, appended to

The folder is the only state: an object in another process, or a later one, finds the same server.
"""

from __future__ import annotations

import http
import http.client
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import closing, suppress
from dataclasses import dataclass, field
from shlex import quote
from typing import TYPE_CHECKING, NoReturn

from cdc.dev.servers import launch
from cdc.model.errors import OperatorError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_POLL_EVERY_S = 0.02
_DIES_WITHIN_S = 3.0
_LOG_LINES_SHOWN = 15
_PORTS = (20000, 32000)  # below what kernels hand to outgoing connections, which could take a stopped server's port
_given: set[int] = set()
"""Ports that this process has found."""
_UNPRIVILEGED_USER = "nobody"


@dataclass(frozen=True, slots=True)
class Launch:
    """Tells how to start a prepared server; each server's own module makes one."""

    argv: tuple[str, ...]
    ready: Callable[[int], bool]
    """Whether the server with this pid answers."""
    url: str = field(repr=False)
    env: tuple[tuple[str, str], ...] = ()
    stop_signal: signal.Signals = signal.SIGTERM
    ready_within_s: float = 90.0
    refuses_root: bool = False


class Settings:
    """Keeps what is decided once for a server beside its data: ports, passwords."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "settings.json"
        self._values: dict[str, str] = json.loads(self._path.read_text()) if self._path.exists() else {}

    def get(self, key: str) -> str | None:
        """Return the value kept before, if any."""
        return self._values.get(key)

    def keep(self, key: str, value: str) -> str:
        """Write before use: a kill between the two must not lose the value."""
        if self._values.get(key) != value:
            self._values[key] = value
            write_private(self._path, json.dumps(self._values, indent=1) + "\n")
        return value

    def port(self, key: str) -> int:
        """Return the port kept before, or keep a free one."""
        kept = self.get(key)
        while kept is None or (key not in self._values and kept in self._values.values()):
            kept = str(free_port())
        return int(self.keep(key, kept))


class Server:
    """A named server in a folder; ``prepare`` makes its data on the first start and says how to launch it."""

    def __init__(self, name: str, folder: Path, prepare: Callable[[Path], Launch]) -> None:
        self.name = name
        self._folder = folder.absolute()
        self._prepare = prepare
        self._cancelled = threading.Event()

    def __repr__(self) -> str:
        return f"Server({self.name!r}, {str(self._folder)!r}, pid={self.pid})"

    @property
    def url(self) -> str:
        """Where clients connect, with the throw-away password where the server wants one; kept over restarts."""
        url = Settings(self._folder).get("url")
        if url is None:
            msg = f"{self.name} has never been started in {self._folder}"
            raise OperatorError(msg, hint=f"cdc dev up {self.name} --dir {quote(str(self._folder.parent))}")
        return url

    @property
    def log(self) -> Path:
        """The server's own output."""
        return self._folder / "server.log"

    @property
    def pid(self) -> int | None:
        """The server's pid while the process that was started is there; a later one of the same pid is not it."""
        with suppress(FileNotFoundError):
            pid, _, start = (self._folder / "server.pid").read_text().strip().partition(" ")
            if pid.isdecimal() and start and launch.started_at(int(pid)) == start:
                return int(pid)
        return None

    @property
    def running(self) -> bool:
        """Whether the process is there, answering or not."""
        return self.pid is not None

    def start(self, *, die_with_parent: bool = True) -> str:
        """Start and wait until it answers; a running server is kept as it is. Returns the url."""
        if self.running:
            return self.url
        self._folder.mkdir(parents=True, exist_ok=True)
        prepared = self._prepare(self._folder)
        Settings(self._folder).keep("url", prepared.url)
        (self._folder / "server.pid").unlink(missing_ok=True)
        child = self._spawn(prepared, die_with_parent=die_with_parent)
        # Reaps it whenever it ends, and keeps the Popen from being collected (and complaining) before that.
        threading.Thread(target=child.wait, name=f"reap-{self.name}", daemon=True).start()
        try:
            self._wait_ready(prepared, child)
        except BaseException:
            self.kill()
            child.kill()  # if it was so early that there is no pid file yet
            raise
        return prepared.url

    def cancel(self) -> None:
        """Make a ``start`` that waits in another thread give up."""
        self._cancelled.set()

    def stop(self, *, timeout_s: float = 10.0) -> None:
        """Ask it to end, then kill it: a client that stays connected must not keep it alive."""
        pid = self.pid
        if pid is None:
            return
        stop_signal = Settings(self._folder).get("stop_signal") or signal.SIGTERM
        family = launch.family(pid)
        launch.send([pid], signal.Signals(int(stop_signal)))
        launch.send(family, signal.SIGCONT)
        if not self._gone_within(timeout_s):
            self.kill()
        (self._folder / "server.pid").unlink(missing_ok=True)

    def kill(self) -> None:
        """Send SIGKILL to the server and all its processes at once; return when they are gone."""
        pid = self.pid
        if pid is None:
            return
        family = launch.family(pid)
        launch.send(family, signal.SIGKILL)
        deadline = time.monotonic() + _DIES_WITHIN_S
        while _exists(pid) or any(launch.started_at(member) for member in family):
            if time.monotonic() > deadline:
                if not self.running:
                    return  # a zombie whose parent does not reap it
                msg = f"{self.name} (pid {pid}) does not die"
                raise OperatorError(msg, hint=f"ps -o pid,stat,wchan -p {pid}")
            time.sleep(_POLL_EVERY_S)

    def pause(self) -> None:
        """Send SIGSTOP to the server and all its processes: connections stay open and nothing answers."""
        if pid := self.pid:
            launch.send(launch.family(pid), signal.SIGSTOP)

    def resume(self) -> None:
        """Send SIGCONT to the paused processes."""
        if pid := self.pid:
            launch.send(launch.family(pid), signal.SIGCONT)

    def _spawn(self, prepared: Launch, *, die_with_parent: bool) -> subprocess.Popen[bytes]:
        Settings(self._folder).keep("stop_signal", str(int(prepared.stop_signal)))
        owner = os.getpid() if die_with_parent else 0
        user = _UNPRIVILEGED_USER if prepared.refuses_root and os.geteuid() == 0 else None
        with self.log.open("ab") as log:
            return subprocess.Popen(
                launch_argv(self._folder / "server.pid", owner, prepared.stop_signal, user, prepared.argv),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                env=os.environ | dict(prepared.env),
                start_new_session=True,  # Ctrl-C in the terminal is for us, not for the server
            )

    def _wait_ready(self, prepared: Launch, child: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + prepared.ready_within_s
        while not ((pid := self.pid) and prepared.ready(pid)):
            if child.returncode is not None:
                self._fail(f"ended with exit code {child.returncode}")
            if time.monotonic() > deadline:
                self._fail(f"does not answer after {prepared.ready_within_s:.0f} s")
            if self._cancelled.wait(_POLL_EVERY_S):
                self._fail("was told to give up starting")

    def _fail(self, what: str) -> NoReturn:
        lines = self.log.read_text(errors="replace").splitlines()[-_LOG_LINES_SHOWN:]
        shown = "\n".join(f"  | {line}" for line in lines)
        msg = f"{self.name} {what}; the end of {self.log}:\n{shown}"
        raise OperatorError(msg, hint=f"less {quote(str(self.log))}")

    def _gone_within(self, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while self.running:
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_EVERY_S)
        return True


def launch_argv(
    pid_file: Path, owner: int, stop_signal: signal.Signals, user: str | None, argv: tuple[str, ...]
) -> list[str]:
    """Make the command line of ``launch.py``."""
    script = [sys.executable, "-I", "-S", launch.__file__]
    return [*script, str(pid_file), str(owner), str(int(stop_signal)), user or "-", *argv]


def run_once(argv: tuple[str, ...], *, folder: Path, refuses_root: bool, what: str) -> None:
    """Run a server's set-up program to its end, as the user the server will run as."""
    user = _UNPRIVILEGED_USER if refuses_root and os.geteuid() == 0 else None
    command = launch_argv(folder / "setup.pid", 0, signal.SIGTERM, user, argv)
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    (folder / "setup.pid").unlink(missing_ok=True)
    if done.returncode:
        shown = "\n".join(f"  | {line}" for line in (done.stdout + done.stderr).splitlines()[-_LOG_LINES_SHOWN:])
        msg = f"{what} failed with exit code {done.returncode}:\n{shown}"
        raise OperatorError(msg, hint="cdc dev up --dir /var/tmp/cdc-dev  # if the folder is what is refused")


def write_private(path: Path, text: str) -> None:
    """Replace a file at once, readable by its owner only from its first byte."""
    unfinished = path.with_name(path.name + ".new")
    unfinished.unlink(missing_ok=True)
    with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    unfinished.replace(path)


def answers(port: int, path: str) -> bool:
    """Whether a server on this machine answers a path by HTTP with 200."""
    with (
        suppress(OSError, http.client.HTTPException),
        closing(http.client.HTTPConnection("127.0.0.1", port, timeout=5)) as connection,
    ):
        connection.request("GET", path)
        with connection.getresponse() as answer:
            return answer.status == http.HTTPStatus.OK
    return False


def free_port() -> int:
    """Find a loopback port that nobody listens on, outside the range from which kernels give out ports.

    None is given twice: a server may want several before it listens on the first of them.
    """
    for port in random.SystemRandom().sample(range(*_PORTS), k=200):  # not by a seed that another process has too
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError):
                probe.bind(("127.0.0.1", port))
                if port not in _given:
                    _given.add(port)
                    return port
    msg = f"no free port on 127.0.0.1 between {_PORTS[0]} and {_PORTS[1]}"
    raise OperatorError(msg, hint="ss -ltn")


def _exists(pid: int) -> bool:
    """Whether the pid is taken, also by a zombie: PostgreSQL takes a lock file with its pid for a live server's."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
