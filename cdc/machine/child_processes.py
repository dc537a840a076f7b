"""Says how a Python process is started whose modules are those that are installed, wherever it is started."""

from __future__ import annotations

from typing import Final

AMONG_OTHERS: Final = "CDC_AMONG_OTHERS"
"""The environment variable of a connector whose log goes where those of others go: each of its lines has its name.

The value is what it is called until its file is read.
"""
SAFE_PATH: Final = ("-P",)
"""Python's option that keeps the current folder off its path: a ``click.py`` there would be run instead."""
