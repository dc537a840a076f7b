"""What was compiled when this was installed. Without a C compiler it is nothing, and the same is done in Python."""

from __future__ import annotations

import importlib
import os
from types import ModuleType
from typing import Final

PURE: Final = os.environ.get("CDC_PURE", "") not in ("", "0")
"""Do without what is compiled, though it is there."""


def built(module: str) -> ModuleType | None:
    """A compiled module; None where there is none."""
    if PURE:
        return None
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as exc:
        if exc.name != module:
            raise
        return None
