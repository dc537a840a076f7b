"""Resolves the paths of apply.yaml: on this machine, or on any file system that Hadoop knows.

A path without a scheme belongs to Hadoop's default file system, which is this machine's unless configured otherwise.
"""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")  # Hadoop prints file:/x for file:///x


def located(place: str) -> str:
    """Return a path as Spark takes it: a URI as it is, other paths made absolute."""
    return place.rstrip("/") if _URI.match(place) else str(Path(place).absolute())


def local(place: str) -> Path | None:
    """Return the local path; None for a URI that only Hadoop's file systems reach."""
    if not _URI.match(place):
        return Path(place).absolute()
    parts = urlsplit(place)
    return Path(unquote(parts.path)) if parts.scheme == "file" and parts.netloc in ("", "localhost") else None
