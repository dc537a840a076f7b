"""MySQL and MariaDB servers for tests, started in a second: their data are copied, and nothing waits for the disk.

To make a server's data takes ten seconds or so. It is done once for each kind, and what starts has a copy. Processes
are killed in tests, the machine never is.
"""

from __future__ import annotations

import atexit
import functools
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from cdc.dev.servers import mariadb, mysql
from cdc.dev.servers.process import Launch, Settings

_PREPARE: Final = {
    "mysql": mysql.prepare,
    "mariadb": mariadb.prepare,
    "mariadb11": functools.partial(mariadb.prepare, name="mariadb11"),
}
KINDS: Final = tuple(_PREPARE)

_HASTY: Final = {"sync-binlog": "0", "innodb-flush-log-at-trx-commit": "2", "innodb-flush-method": "nosync"}


@functools.cache
def made(kind: str) -> Path:
    """The folder of a server that never ran. Raises CdcError where its program cannot be had."""
    folder = Path(tempfile.mkdtemp(prefix=f"{kind}-"))
    folder.chmod(0o755)  # the server has another user than the tests may have
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    _PREPARE[kind](folder)
    return folder


def prepare(kind: str, folder: Path, options: Mapping[str, str] = MappingProxyType({})) -> Launch:
    """As `cdc dev` prepares one, from a copy of data that were made before."""
    fresh = kind == "mysql" and "lower-case-table-names" in options  # which is for the data's whole life
    if not (folder / "data").exists() and not fresh:
        model, new = made(kind), folder / "data.new"
        subprocess.run(["cp", "-a", str(model / "data"), str(new)], check=True)
        (new / "auto.cnf").unlink(missing_ok=True)  # else it were the same server as the other copies
        mine, others = Settings(folder), Settings(model)
        for key in ("password", "program_from", "program"):
            mine.keep(key, others.get(key) or "")
        new.rename(folder / "data")
    return _PREPARE[kind](folder, options={**_HASTY, **options})
