"""Runs MySQL or MariaDB for development and tests: what the two servers have in common.

Loopback TCP only (no Unix socket: its path may not be longer than 107 bytes), password login, every commit on disk,
whole rows with their columns' names in the binlog. The program is the machine's own if there is one on the path that is
new enough, else Debian's, unpacked into the cache. Data are kept with the kind of program they were made by.
"""

from __future__ import annotations

import re
import secrets
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Final

from cdc.dev import debs
from cdc.dev.servers.process import Launch, Settings, run_once, write_private
from cdc.model.errors import OperatorError

DATABASE: Final = "dev"
_USER: Final = "root"
_PROTOCOL: Final = 10
_HEADER_BYTES: Final = 4

_OPTIONS: Final = {
    "binlog-row-image": "FULL",
    "binlog-row-metadata": "FULL",
    "log-bin": "binlog",
    "sync-binlog": "1",
    "innodb-flush-log-at-trx-commit": "1",
    "innodb-buffer-pool-size": "64M",
    "innodb-log-buffer-size": "8M",
    "max-allowed-packet": "64M",
    "bind-address": "127.0.0.1",
    "skip-name-resolve": "ON",
    "socket": "",
    "character-set-server": "utf8mb4",
    "default-time-zone": "+00:00",
}

ADMINISTRATOR: Final = f"""\
CREATE USER '{_USER}'@'127.0.0.1' IDENTIFIED BY '{{password}}';
GRANT ALL ON *.* TO '{_USER}'@'127.0.0.1' WITH GRANT OPTION;
CREATE DATABASE {DATABASE};
"""


@dataclass(frozen=True, slots=True)
class Kind:
    """Describes one of the two servers: its program, its version text, and the package that has it."""

    title: str
    program: str
    version: re.Pattern[str]
    """Finds major and minor in what ``--version`` prints; finds nothing in what the other kind prints."""
    oldest: tuple[int, int]
    package: debs.Package


@dataclass(frozen=True, slots=True)
class Program:
    """Knows how to run a server's program, and where its files are."""

    argv: tuple[str, ...]
    path: Path
    prefix: Path
    outside: bool
    """Whether it is not where it was built for, and must be told where its files are."""

    @property
    def share(self) -> Path:
        """Messages, character sets, and the statements that make MariaDB's own tables."""
        return next(share for share in self._places("share") if share.exists() or share.name == "mysql")

    def _places(self, kind: str) -> Iterator[Path]:
        """Give where MariaDB has files of a kind since 11.8, and where both servers had them before."""
        return (self.prefix / kind / name for name in ("mariadb", "mysql"))

    @property
    def command(self) -> tuple[str, ...]:
        """The beginning of every command line; no configuration of the machine's own is read."""
        if not self.outside:
            return (*self.argv, "--no-defaults")
        return (
            *(*self.argv, "--no-defaults", f"--basedir={self.prefix}"),
            *(f"--lc-messages-dir={self.share}", f"--character-sets-dir={self.share / 'charsets'}"),
            f"--plugin-dir={next(p for p in self._places('lib') if p.exists() or p.name == 'mysql') / 'plugin'}",
        )


def find(kind: Kind, settings: Settings) -> Program:
    """Find the program to run. Raises OperatorError if there is none and none can be fetched."""
    path = shutil.which(kind.program)
    if path and settings.get("program_from") != "Debian" and (said := _version(kind, (path,))):
        settings.keep("program_from", "path")
        settings.keep("program", f"{said}, {path}")
        return Program((path,), Path(path), Path(path).resolve().parents[1], outside=False)
    fetched = debs.fetch(kind.package)
    argv = fetched.command(f"usr/sbin/{kind.program}")
    said = _version(kind, argv)
    if said is None:
        msg = f"Debian's {kind.package.name} ({kind.package.suite}) does not run here: {argv[-1]}"
        raise OperatorError(msg, hint=f"rm -r {quote(str(fetched.root))}  # it is fetched again")
    settings.keep("program_from", "Debian")
    settings.keep("program", f"{said}, Debian's {kind.package.suite}")
    return Program(argv, Path(argv[-1]), fetched.root / "usr", outside=True)


def _version(kind: Kind, argv: tuple[str, ...]) -> str | None:
    """Read title and version; None for a program that is another kind or too old."""
    done = subprocess.run([*argv, "--no-defaults", "--version"], capture_output=True, text=True, check=False)
    found = kind.version.search(done.stdout)
    if found is None or (int(found["major"]), int(found["minor"])) < kind.oldest:
        return None
    return f"{kind.title} {found[0]}"


def make_data(folder: Path, statements: str, command: Callable[[Path, Path], tuple[str, ...]], *, what: str) -> None:
    """Make the server's data; they are complete or absent, never half made.

    ``command`` is given the data's folder, which does not exist, and the file with the statements to run.
    """
    unfinished, file = folder / "data.new", folder / "setup.sql"
    shutil.rmtree(unfinished, ignore_errors=True)
    write_private(file, statements.replace("{password}", _password(Settings(folder))))
    try:
        run_once(command(unfinished, file), folder=folder, refuses_root=True, what=what)
    finally:
        file.unlink()  # settings.json holds the password
    unfinished.rename(folder / "data")


def launch(folder: Path, program: Program, options: dict[str, str]) -> Launch:
    """Make the command that starts the server whose data are in ``folder``."""
    settings = Settings(folder)
    port = settings.port("port")
    for name in ("tmp", "files"):
        (folder / name).mkdir(mode=0o700, exist_ok=True)
    pid_file = folder / "mysqld.pid"
    placed = {
        "datadir": folder / "data",
        "tmpdir": folder / "tmp",
        "secure-file-priv": folder / "files",  # what LOAD DATA may read: the server can read more than its user
        "pid-file": pid_file,
        "port": port,
        "server-id": port,  # another in every folder
    }
    arguments = (f"--{name}={value}" for name, value in {**_OPTIONS, **options, **placed}.items())
    return Launch(
        argv=(*program.command, *arguments),
        ready=lambda pid: _is_ready(pid_file, pid) and _greets(port),
        url=f"mysql://{_USER}:{_password(settings)}@127.0.0.1:{port}/{DATABASE}",
        refuses_root=True,
    )


def _password(settings: Settings) -> str:
    return settings.get("password") or settings.keep("password", secrets.token_urlsafe(18))


def _is_ready(pid_file: Path, pid: int) -> bool:
    """Whether the server has written its pid file, when it listens; a killed one leaves an old pid behind."""
    with suppress(OSError):
        return pid_file.read_text().strip() == str(pid)
    return False


def _greets(port: int) -> bool:
    """Whether it serves clients: a connection's first packet is its greeting, or an error."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        return connection.recv(_HEADER_BYTES + 1, socket.MSG_WAITALL)[_HEADER_BYTES:] == bytes([_PROTOCOL])
    return False
