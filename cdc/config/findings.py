"""What `cdc check` finds: one line each, with the statement or command that mends it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from cdc.model.change import Table
from cdc.model.errors import CdcError


class Level(StrEnum):
    """How much it matters."""

    OK = "ok"
    WARNING = "warning"
    """It runs; one day it may not."""
    ERROR = "error"
    """`cdc run` stops at it."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One precondition."""

    level: Level
    about: str
    """What was looked at: ``table public.orders``."""
    what: str
    fix: str | None = None
    """A statement or a command where there is one."""


@dataclass(frozen=True, slots=True)
class Checked:
    """What a source's check found; `tables` and `identity` as far as they could be told."""

    findings: tuple[Finding, ...]
    tables: tuple[Table, ...] = ()
    identity: Mapping[str, str] = field(default_factory=dict)


def refused(about: str, error: CdcError) -> Finding:
    """What a run would stop at."""
    return Finding(Level.ERROR, about, error.message, error.hint)


def probed(about: str, probe: Callable[[], Iterable[Finding]]) -> list[Finding]:
    """What a probe finds; an error that ends it is one finding more, so that it hides no other probe's."""
    found: list[Finding] = []
    try:
        found.extend(probe())
    except CdcError as exc:
        found.append(refused(about, exc))
    return found
