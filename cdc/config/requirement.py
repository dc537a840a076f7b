"""Refuses what a file says where it cannot be meant."""

from __future__ import annotations

from cdc.model.errors import ConfigError


def require(ok: object, what: str, hint: str | None = None) -> None:
    """Raise ConfigError with `what` is wrong and a `hint`, unless `ok`."""
    if not ok:
        raise ConfigError(what, hint=hint)
