"""Resolves the paths of apply.yaml: on this machine, or on any file system that Hadoop knows.

A path without a scheme belongs to Hadoop's default file system, which is this machine's unless configured otherwise.
"""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from cdc.model.errors import ConfigError

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")  # Hadoop prints file:/x for file:///x


def located(place: str) -> str:
    """Return a path as Spark takes it: a URI as it is, other paths made absolute, ``~`` too."""
    return place.rstrip("/") if _URI.match(place) else str(_absolute(place))


def has_scheme(place: str) -> bool:
    """Whether a path says which file system it is of."""
    return _URI.match(place) is not None


def local(place: str) -> Path | None:
    """Return the local path; None for a URI that only Hadoop's file systems reach."""
    if not _URI.match(place):
        return _absolute(place)
    parts = urlsplit(place)
    return Path(unquote(parts.path)) if parts.scheme == "file" and parts.netloc in ("", "localhost") else None


def _absolute(place: str) -> Path:
    try:
        return Path(place).expanduser().absolute()
    except RuntimeError as exc:
        raise ConfigError(f"{place}: there is no such user on this machine", hint="~/… is your own folder") from exc
