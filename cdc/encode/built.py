"""Finds the modules that were compiled at installation. Without a C compiler there are none; Python does the same."""

from __future__ import annotations

import importlib
import os
from types import ModuleType
from typing import Final

PURE: Final = os.environ.get("CDC_PURE", "") not in ("", "0")
"""Leave compiled modules unused, though they are there."""


def built(module: str) -> ModuleType | None:
    """Import a compiled module; None where there is none."""
    if PURE:
        return None
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as exc:
        if exc.name != module:
            raise
        return None
