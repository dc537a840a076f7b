"""Says how a Python process is started whose modules are those that are installed, wherever it is started."""

from __future__ import annotations

from typing import Final

SAFE_PATH: Final = ("-P",)
"""Python's option that keeps the current folder off its path: a ``click.py`` there would be run instead."""
