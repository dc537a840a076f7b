"""Runs MySQL for development and tests: GTIDs on, the X protocol and the performance schema off. See ``mysqld.py``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from cdc.dev import debs
from cdc.dev.servers import mysqld
from cdc.dev.servers.process import Launch, Settings

_KIND: Final = mysqld.Kind(
    title="MySQL",
    program="mysqld",
    version=re.compile(r"(?<=Ver )(?!\S*MariaDB)(?P<major>\d+)\.(?P<minor>\d+)\S*"),
    oldest=(8, 4),
    package=debs.WANTED["mysql"],
)

_OPTIONS: Final = {
    "gtid-mode": "ON",
    "enforce-gtid-consistency": "ON",
    "innodb-redo-log-capacity": "128M",
    "mysqlx": "OFF",
    "performance-schema": "OFF",
}

_NAMES: Final = "lower-case-table-names"
_STATEMENTS: Final = mysqld.ADMINISTRATOR + "DROP USER 'root'@'localhost';\n"


def prepare(folder: Path, *, options: Mapping[str, str] = MappingProxyType({})) -> Launch:
    """Make the data on the first call. `options` of the server come before ours."""
    program = mysqld.find(_KIND, Settings(folder))

    def initialise(data: Path, statements: Path) -> tuple[str, ...]:
        doing = ("--initialize-insecure", f"--datadir={data}", f"--init-file={statements}")
        names = options.get(_NAMES)  # which cannot be changed later
        return (*program.command, *doing, *((f"--{_NAMES}={names}",) if names else ()))

    if not (folder / "data").exists():
        mysqld.make_data(folder, _STATEMENTS, initialise, what="mysqld --initialize")
    return mysqld.launch(folder, program, {**_OPTIONS, **options})
