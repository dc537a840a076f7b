"""Packages that only some of the library needs."""

from __future__ import annotations

import importlib

from cdc.model.errors import ConfigError


def require(package: str) -> None:
    """Raise ConfigError if a package is missing."""
    try:
        importlib.import_module(package)
    except ImportError as exc:
        raise ConfigError(
            f"this needs {package}, which is not installed in this environment", hint=f"pip install {package}"
        ) from exc
