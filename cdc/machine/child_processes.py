"""Says how a Python process is started whose modules are those that are installed, wherever it is started."""

from __future__ import annotations

import os
from typing import Final

AMONG_OTHERS: Final = "CDC_AMONG_OTHERS"
"""The environment variable of a connector whose log goes where those of others go: each of its lines has its name.

The value is what it is called until its file is read.
"""
PRIVATE_FOLDER: Final = "CDC_PRIVATE_FOLDER"
"""The environment variable of a connector whose file is a copy that goes when it ends: in which folder that is."""
SAFE_PATH: Final = ("-P",)
"""Python's option that keeps the current folder off its path: a ``click.py`` there would be run instead."""


def is_private() -> bool:
    """Whether this connector's file is a copy that nobody finds once it has ended."""
    return PRIVATE_FOLDER in os.environ


def outward(text: str) -> str:
    """Return a message without the folder of such a file."""
    return text.replace(f"{os.environ[PRIVATE_FOLDER]}{os.sep}", "") if is_private() else text
