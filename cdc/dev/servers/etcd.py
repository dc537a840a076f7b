"""Runs etcd for development and tests: one member, on loopback, without TLS, its data on disk.

The program is the machine's own if there is one on the path that is new enough, else Debian's, unpacked into the cache.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from types import MappingProxyType
from typing import Final

from cdc.dev import debs
from cdc.dev.servers.process import Launch, Settings, answers
from cdc.model.errors import OperatorError

_VERSION: Final = re.compile(r"etcd Version: (?P<major>\d+)\.(?P<minor>\d+)\.(?P<patch>\d+)")
_OLDEST: Final = (3, 5, 13)


def prepare(folder: Path, *, options: Mapping[str, str] = MappingProxyType({})) -> Launch:
    """Make the command that starts the server whose data are in `folder`. `options` come before ours."""
    settings = Settings(folder)
    port, peers = settings.port("port"), settings.port("peer_port")
    here, there = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{peers}"
    placed = {
        "name": "dev",
        "data-dir": str(folder / "data"),
        "listen-client-urls": here,
        "advertise-client-urls": here,
        "listen-peer-urls": there,
        "initial-advertise-peer-urls": there,
        "initial-cluster": f"dev={there}",
        "heartbeat-interval": "20",  # its one member need not wait for others before it leads
        "election-timeout": "200",
        "log-level": "warn",
        **options,
    }
    return Launch(
        argv=(*_program(settings), *(f"--{name}={value}" for name, value in placed.items())),
        ready=lambda _pid: answers(port, "/health"),
        url=f"etcd://127.0.0.1:{port}",
    )


def _program(settings: Settings) -> tuple[str, ...]:
    """Find the program. Raises OperatorError if there is none and none can be fetched."""
    path = shutil.which("etcd")
    if path and settings.get("program_from") != "Debian" and (said := _version((path,))):
        settings.keep("program_from", "path")
        settings.keep("program", f"{said}, {path}")
        return (path,)
    package = debs.WANTED["etcd"]
    fetched = debs.fetch(package)
    argv = fetched.command("usr/bin/etcd")
    said = _version(argv)
    if said is None:
        msg = f"Debian's {package.name} ({package.suite}) does not run here: {argv[-1]}"
        raise OperatorError(msg, hint=f"rm -r {quote(str(fetched.root))}  # it is fetched again")
    settings.keep("program_from", "Debian")
    settings.keep("program", f"{said}, Debian's {package.suite}")
    return argv


def _version(argv: tuple[str, ...]) -> str | None:
    """Read the version; None for a program that is something else or too old."""
    done = subprocess.run([*argv, "--version"], capture_output=True, text=True, check=False)
    found = _VERSION.search(done.stdout)
    if found is None or tuple(int(part) for part in found.groups()) < _OLDEST:
        return None
    return f"etcd {'.'.join(found.groups())}"
