"""Runs MariaDB for development and tests. See ``mysqld.py``.

Its own tables are made by the statements it ships, as ``mariadb-install-db`` does, which knows no other loader.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from cdc.dev import debs
from cdc.dev.servers import mysqld
from cdc.dev.servers.process import Launch, Settings
from cdc.model.errors import OperatorError

_VERSION: Final = re.compile(r"(?<=Ver )(?P<major>\d+)\.(?P<minor>\d+)\S*(?=-MariaDB)")
_KINDS: Final = {
    name: mysqld.Kind("MariaDB", "mariadbd", version=_VERSION, oldest=oldest, package=debs.WANTED[name])
    for name, oldest in (("mariadb", (10, 6)), ("mariadb11", (11, 4)))
}
"""By the name under which `cdc dev` knows a server."""

_OPTIONS: Final = {"binlog-format": "ROW", "innodb-log-file-size": "64M"}

_PARTS: Final = (
    *("*_system_tables.sql", "*_performance_tables.sql", "*_system_tables_data.sql"),
    *("maria_add_gis_sp_bootstrap.sql", "*_sys_schema.sql"),
)
"""Under `share/mysql`; the first word of their names changed with MariaDB 11."""

# The user mariadb.sys, which cannot log in, owns views.
_OWN_USERS: Final = """\
DELETE FROM mysql.global_priv WHERE User <> 'mariadb.sys';
DELETE FROM mysql.proxies_priv;
FLUSH PRIVILEGES;
"""

_BOOTSTRAP: Final = 'mkdir -m 700 "$1" && exec < "$2" && shift 2 && exec "$@"'


def prepare(folder: Path, *, name: str = "mariadb", options: Mapping[str, str] = MappingProxyType({})) -> Launch:
    """Make the data on the first call. `name` is one of `cdc dev`; `options` of the server come before ours."""
    program = mysqld.find(_KINDS[name], Settings(folder))

    def bootstrap(data: Path, statements: Path) -> tuple[str, ...]:
        shell = ("/bin/sh", "-c", _BOOTSTRAP, "sh", str(data), str(statements))
        return (*shell, *program.command, "--bootstrap", f"--datadir={data}", "--skip-name-resolve")

    if not (folder / "data").exists():
        own = "".join(_shipped(program.share, part) for part in _PARTS)
        statements = f"CREATE DATABASE mysql;\nUSE mysql;\n{own}\n{_OWN_USERS}{mysqld.ADMINISTRATOR}"
        mysqld.make_data(folder, statements, bootstrap, what="mariadbd --bootstrap")
    return mysqld.launch(folder, program, {**_OPTIONS, **options})


def _shipped(share: Path, pattern: str) -> str:
    found = sorted(share.glob(pattern))
    if not found:
        raise OperatorError(
            f"MariaDB's own tables cannot be made: there is no {pattern} in {share}",
            hint="reinstall MariaDB's server; or take mariadbd off the path, and Debian's is fetched",
        )
    return found[0].read_text()
