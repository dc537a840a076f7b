"""Runs servers of one folder: started in parallel, found again by a later command, stopped together."""

from __future__ import annotations

import fcntl
import json
import signal
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Self

from cdc.dev.servers import etcd, kafka, mariadb, mysql, opensearch, postgres
from cdc.dev.servers.process import Launch, Server, Settings, write_private
from cdc.model.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import FrameType, TracebackType

# A further server is one line here and one file with its `prepare`.
SERVERS: dict[str, Callable[[Path], Launch]] = {
    "etcd": etcd.prepare,
    "kafka": kafka.prepare,
    "mariadb": mariadb.prepare,
    "mariadb11": partial(mariadb.prepare, name="mariadb11"),
    "mysql": mysql.prepare,
    "opensearch": opensearch.prepare,
    "postgres16": partial(postgres.prepare, major=16),
    "postgres18": partial(postgres.prepare, major=18),
    "registry": kafka.prepare_registry,
}
ALIASES = {"postgres": "postgres18"}
DEFAULT_SERVERS = ("postgres", "kafka")
DEFAULT_DIRECTORY = Path(".cdc-dev")
_STOP_WITHIN_S = 5.0
_EXIT_ON_SIGTERM = 128 + signal.SIGTERM


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """The urls of started servers; None for those that were not requested. Urls hold throw-away passwords."""

    postgres16_url: str | None = field(default=None, repr=False)
    postgres18_url: str | None = field(default=None, repr=False)
    kafka: str | None = None
    """Bootstrap servers, ``host:port``."""
    opensearch_url: str | None = None
    registry_url: str | None = None
    mysql_url: str | None = field(default=None, repr=False)
    mariadb_url: str | None = field(default=None, repr=False)
    mariadb11_url: str | None = field(default=None, repr=False)
    etcd_url: str | None = None

    @property
    def postgres_url(self) -> str | None:
        """The url of the newest PostgreSQL that was started."""
        return self.postgres18_url or self.postgres16_url


class DevServers:
    """Controls the servers of one folder. As a context manager it stops what it started, on Ctrl-C and SIGTERM too.

    ``dev["kafka"]`` is the single server, for tests that kill, freeze and restart it.
    """

    def __init__(self, directory: Path, *, servers: Sequence[str] = DEFAULT_SERVERS, foreground: bool = True) -> None:
        self._directory = directory.absolute()
        self._foreground = foreground
        self._servers = {name: Server(name, self._directory / name, SERVERS[name]) for name in canonical(servers)}
        self._started: list[Server] = []
        self._previous_handler: Callable[[int, FrameType | None], object] | int | None = None

    def __getitem__(self, name: str) -> Server:
        """Return the server of this name or alias."""
        return self._servers[ALIASES.get(name, name)]

    def start(self, *, progress: Callable[[str], None] = lambda _: None) -> Servers:
        """Start what does not run yet. If one fails, those started by this call are stopped and its error is raised."""
        self._directory.mkdir(parents=True, exist_ok=True)
        with _locked(self._directory):
            missing = [server for server in self._servers.values() if not server.running]
            self._started += missing
            try:
                _in_parallel(partial(self._start_one, progress=progress), missing)
            except BaseException:  # Ctrl-C is one
                self._stop_started()
                raise
            _write_state(self._directory)
        return self.urls

    @property
    def urls(self) -> Servers:
        """The urls of the servers that were requested."""
        found = {name: server.url for name, server in self._servers.items()}
        return Servers(
            postgres16_url=found.get("postgres16"),
            postgres18_url=found.get("postgres18"),
            kafka=found.get("kafka"),
            opensearch_url=found.get("opensearch"),
            registry_url=found.get("registry"),
            mysql_url=found.get("mysql"),
            mariadb_url=found.get("mariadb"),
            mariadb11_url=found.get("mariadb11"),
            etcd_url=found.get("etcd"),
        )

    def stop(self) -> None:
        """Stop what this object started, in parallel; data stays."""
        with _locked(self._directory):
            self._stop_started()
            _write_state(self._directory)

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            self._previous_handler = signal.signal(signal.SIGTERM, _exit_on_signal)
        try:
            self.start()
        except BaseException:
            self._restore_handler()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.stop()
        finally:
            self._restore_handler()

    def _start_one(self, server: Server, *, progress: Callable[[str], None]) -> None:
        progress(f"{server.name}: starting")
        server.start(die_with_parent=self._foreground)
        progress(f"{server.name}: ready")

    def _stop_started(self) -> None:
        _in_parallel(partial(Server.stop, timeout_s=_STOP_WITHIN_S), self._started)
        self._started.clear()

    def _restore_handler(self) -> None:
        if self._previous_handler is not None:
            signal.signal(signal.SIGTERM, self._previous_handler)
            self._previous_handler = None


def up(
    directory: Path = DEFAULT_DIRECTORY,
    *,
    servers: Sequence[str] = DEFAULT_SERVERS,
    foreground: bool = False,
    progress: Callable[[str], None] = lambda _: None,
) -> Servers:
    """Start the servers and return; in the foreground they end with this process, else they run on until ``down``."""
    return DevServers(directory, servers=servers, foreground=foreground).start(progress=progress)


def down(directory: Path = DEFAULT_DIRECTORY) -> tuple[str, ...]:
    """Stop all servers of the folder and return the names of those that ran; data, ports and passwords stay."""
    if not directory.is_dir():
        return ()
    with _locked(directory):
        running = [server for server in _known(directory) if server.running]
        _in_parallel(partial(Server.stop, timeout_s=_STOP_WITHIN_S), running)
        _write_state(directory)
    return tuple(server.name for server in running)


def status(directory: Path = DEFAULT_DIRECTORY) -> dict[str, str | None]:
    """List all servers ever started in the folder: the url of a running one, None for a stopped one."""
    return {server.name: server.url if server.running else None for server in _known(directory)}


def programs(directory: Path = DEFAULT_DIRECTORY) -> dict[str, str]:
    """Tell which program a server runs, where there is a choice."""
    kept = {server.name: Settings(directory / server.name).get("program") for server in _known(directory)}
    return {name: program for name, program in kept.items() if program}


def canonical(names: Sequence[str]) -> tuple[str, ...]:
    """Replace aliases by names, each once, in order."""
    found = dict.fromkeys(ALIASES.get(name, name) for name in names)
    if unknown := [name for name in found if name not in SERVERS]:
        known = ", ".join(sorted({*SERVERS, *ALIASES}))
        msg = f"unknown server {', '.join(unknown)}; there are: {known}"
        raise ConfigError(msg, hint="cdc dev up postgres kafka")
    return tuple(found)


def _known(directory: Path) -> list[Server]:
    return [
        Server(name, directory / name, prepare)
        for name, prepare in SERVERS.items()
        if (directory / name / "settings.json").exists()
    ]


def _write_state(directory: Path) -> None:
    servers = {
        server.name: {"pid": server.pid, "url": server.url if server.running else None} for server in _known(directory)
    }
    write_private(directory / "state.json", json.dumps({"servers": servers}, indent=1) + "\n")


def _in_parallel(act: Callable[[Server], None], servers: Sequence[Server]) -> None:
    """Act on all servers in parallel; the first error is raised after all have ended."""
    if not servers:
        return
    with ThreadPoolExecutor(max_workers=len(servers), thread_name_prefix="cdc-dev") as pool:
        running = [pool.submit(act, server) for server in servers]
        try:
            wait(running)
        except BaseException:
            for server in servers:
                server.cancel()
            raise
    for each in running:
        each.result()


def _exit_on_signal(_signum: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(_EXIT_ON_SIGTERM)


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Let in one ``up`` or ``down`` at a time in a folder."""
    with (directory / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
