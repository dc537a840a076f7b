"""The functions of `import cdc`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cdc.library.follow import Follow, configured


def follow(
    source: str,
    *,
    tables: Sequence[str],
    position: str | Path,
    create: bool = False,
    until_caught_up: bool = False,
    name: str | None = None,
) -> Follow:
    """Follow a database's log."""
    path = Path(position)
    return Follow(configured(source, tables, path, name), path, create=create, until_caught_up=until_caught_up)
