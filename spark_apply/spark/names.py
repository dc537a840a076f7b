"""Maps source names to names elsewhere, one-to-one: a character that is not allowed becomes ``_uXXXX``."""

from __future__ import annotations

import re

_FOLDER_ESCAPED = re.compile(r"_(?=u[0-9a-f]{4})|[^A-Za-z0-9_ $@+-]")
_INDEX_ESCAPED = re.compile(r"_(?=u[0-9a-f]{4})|[^a-z0-9_-]")


def quoted(name: str) -> str:
    """Quote a name for Spark's SQL and `col`."""
    return "`" + name.replace("`", "``") + "`"


def folder_name(name: str) -> str:
    """Return a folder name; ASCII, because Java names files in the locale's charset."""
    return _FOLDER_ESCAPED.sub(_escaped, name)


def index_name(name: str) -> str:
    """Return a part of a search index's name: lower case, no dot."""
    return _INDEX_ESCAPED.sub(_escaped, name)


def _escaped(match: re.Match[str]) -> str:
    units = match.group().encode("utf-16-be")
    return "".join(f"_u{units[i : i + 2].hex()}" for i in range(0, len(units), 2))
