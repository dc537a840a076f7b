"""Reads what libpq's connection service file says, which decides like a URL where a connection goes.

libpq reads it only while it connects (https://www.postgresql.org/docs/current/libpq-pgservice.html), which is too late
to know whether the host is this machine.
"""

from __future__ import annotations

import configparser
import os
from pathlib import Path

from cdc.model.errors import ConfigError


def service_parameters(name: str) -> dict[str, str]:
    """Return the parameters of a service. Raises ConfigError where no file has it."""
    asked = os.environ.get("PGSERVICEFILE")
    files = [Path(asked) if asked else Path.home() / ".pg_service.conf"]
    if "PGSYSCONFDIR" in os.environ:
        files.append(Path(os.environ["PGSYSCONFDIR"]) / "pg_service.conf")
    for file in files:
        read = configparser.RawConfigParser(delimiters=("=",), comment_prefixes=("#",), strict=False)
        try:
            read.read_string(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            continue
        except (OSError, ValueError, configparser.Error):
            raise ConfigError(f"source.url: the service file {file} cannot be read") from None
        if read.has_section(name):
            return dict(read.items(name))
    raise ConfigError(
        f"source.url: service {name} is in no service file",
        hint=f"looked into {', '.join(map(str, files))}; set PGSERVICEFILE, or write the host into source.url",
    )
