"""Says what is known of each place in which a deleted row may have left its values. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Verdict = Literal["gone", "will be gone", "kept", "cannot be proved"]
"""`gone`: looked at, and not found. `will be gone`: by itself, at `by_ms`. `kept`: until somebody does `what`."""


@dataclass(frozen=True, slots=True)
class Place:
    """One place. No value of a row and no key is in it."""

    place: str
    verdict: Verdict
    what: str
    """What was found, or is to be done."""
    by_ms: int | None = None
    """When it will be gone, milliseconds since 1970; None where nothing is waited for."""

    def as_json(self) -> dict[str, Any]:
        """Return the stable JSON of ``cdc erase --json``."""
        return asdict(self)
