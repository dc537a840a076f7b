"""The findings of `cdc check`: one line each, with the statement or command that fixes it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from cdc.model.change import Table
from cdc.model.errors import CdcError


class Level(StrEnum):
    """How serious a finding is."""

    OK = "ok"
    WARNING = "warning"
    """A run starts; one day it may not."""
    ERROR = "error"
    """`cdc run` stops at it."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The state of one precondition."""

    level: Level
    about: str
    """What was checked: ``table public.orders``."""
    what: str
    fix: str | None = None
    """A statement or a command where there is one."""
    error: CdcError | None = field(default=None, compare=False, repr=False)
    """The error that it is made of."""


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of a source's check; `tables` and `identity` as far as they are known."""

    findings: tuple[Finding, ...]
    tables: tuple[Table, ...] = ()
    identity: Mapping[str, str] = field(default_factory=dict)


def refused(about: str, error: CdcError) -> Finding:
    """Make a finding of an error that a run would stop at."""
    return Finding(Level.ERROR, about, error.message, error.hint, error)


def left_out(about: str, error: CdcError, *, named: bool = False) -> Finding:
    """Make a finding of an error of what a pattern brings, or the file names, and a run leaves out."""
    finding = refused(about, error)
    return (
        replace(finding, level=Level.WARNING, what=f"{finding.what}; it is left out") if named else as_left_out(finding)
    )


def as_left_out(finding: Finding) -> Finding:
    """Return an error's finding as that of what a pattern brings, which a run leaves out."""
    return replace(finding, level=Level.WARNING, what=f"{finding.what}; a pattern brings it, and it is left out")


def as_left_out_for_its_topic(finding: Finding) -> Finding:
    """Return an error's finding as that of a table's topic, which a run does without until it is right."""
    return replace(finding, level=Level.WARNING, what=f"{finding.what}; its table is left out until that is right")


def probed(about: str, probe: Callable[[], Iterable[Finding]]) -> list[Finding]:
    """Collect a probe's findings; an error that ends it is one more, so that it hides no other probe's."""
    found: list[Finding] = []
    try:
        found.extend(probe())
    except CdcError as exc:
        found.append(refused(about, exc))
    return found
