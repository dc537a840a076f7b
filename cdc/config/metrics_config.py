"""Where a process shows its figures: `metrics` of either file."""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final

from cdc.model.errors import ConfigError

_LISTEN: Final = re.compile(r"(?:\[([0-9A-Fa-f:.%]+)\]|([A-Za-z0-9._-]+)):([0-9]{1,5})")
_MOST_PORT: Final = 65_535
_HINT: Final = "listen: 127.0.0.1:9187, or [::1]:9187"


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsConfig:
    """The address of /metrics, /livez, /readyz and /startupz; None: there is none."""

    listen: str | None = None
    """``host:port``; 0.0.0.0 or [::] is every address of the machine."""

    def __post_init__(self) -> None:
        if self.listen is None:
            return
        found = _LISTEN.fullmatch(self.listen)
        if found is None:
            raise ConfigError(f"listen: “{self.listen}” is no address", hint=_HINT)
        if not 0 < int(found[3]) <= _MOST_PORT:
            raise ConfigError(f"listen: {found[3]} is no port", hint=f"1 to {_MOST_PORT}")
        if found[1] is not None:
            try:
                ip_address(found[1])
            except ValueError as exc:
                raise ConfigError(f"listen: “{self.listen}” is no address", hint=_HINT) from exc

    @property
    def address(self) -> tuple[str, int] | None:
        """Host and port."""
        found = _LISTEN.fullmatch(self.listen or "")
        return (found[1] or found[2], int(found[3])) if found else None
