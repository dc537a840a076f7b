"""Looks at a database for `cdc check` and `cdc status`: what is the same for each kind of database."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Generic, Protocol

from cdc.config.config import ConnectorConfig
from cdc.config.findings import Checked, Finding, Level, left_out, refused
from cdc.model.change import Offset
from cdc.model.errors import OperatorError
from cdc.model.state import Phase, State
from connectors import captured_tables
from connectors.captured_tables import Leave
from connectors.triggers.change_tables import C, C_co, ChangeTables, Look, refuse_weaker_rules, unused_refusals


class Catalog(Protocol[C_co]):
    """Judges tables, too."""

    def captured(
        self, patterns: Sequence[str], keys: Mapping[str, Sequence[str]], leave: Leave = ...
    ) -> tuple[C_co, ...]:
        """As `following.Catalog` has it."""

    def refusals(
        self, patterns: Sequence[str], keys: Mapping[str, Sequence[str]]
    ) -> Iterator[tuple[str, OperatorError | None]]:
        """Give every pattern or table, and each reason why it cannot be captured; None where there is none."""


class Counted(ChangeTables[C], Protocol[C]):
    """Knows how many changes it keeps."""

    def count(self) -> int: ...

    def identity(self) -> str | None:
        """Return the id of the change tables; None: there are none, or not all."""

    def last(self) -> int:
        """Return the number of the newest thing in it."""


class Probes(ABC, Generic[C]):
    """Is one look: it holds what the probes have in common."""

    about = "change table"
    """What the findings on it are about."""

    def __init__(self, config: ConnectorConfig, state: State | None, *, known: bool) -> None:
        self._config, self._state, self._known = config, state, known
        self._captured: tuple[C, ...] = ()
        self._identity: dict[str, str] = {}

    @abstractmethod
    def _shown(self, at: Offset) -> str:
        """Return a position as people are shown it."""

    def _checked(self, findings: Sequence[Finding]) -> Checked:
        return Checked(tuple(findings), tuple(one.table for one in self._captured), self._identity)

    def _tables(self, catalog: Catalog[C]) -> Iterator[Finding]:
        of = self._config.source
        known = self._state.tables if self._state is not None else ()
        good, findings = captured_tables.sorted_out(catalog.refusals(of.tables, of.keys), of.tables, known)
        yield from findings
        self._captured = catalog.captured(good, of.keys) if good else ()
        for one in self._captured:
            yield Finding(Level.OK, f"table {one.table.qualified}", f"key ({', '.join(one.table.key)})")
            for warning in self._warnings(one):
                yield Finding(Level.WARNING, f"table {one.table.qualified}", warning, "docs/triggers.md")

    def _missing(self, rights: Callable[[Sequence[C]], Iterable[OperatorError]]) -> list[Finding]:
        """Say which rights are missing; the tables that miss one are left out where the connector has run, as by it."""
        missing = [refused("rights", error) for error in rights(self._captured)]
        if not missing or self._state is None:
            return missing
        of_each = {one.table.qualified: next(iter(rights([one])), None) for one in self._captured}
        if None not in of_each.values():
            return missing
        self._captured = tuple(one for one in self._captured if of_each[one.table.qualified] is None)
        return [left_out(f"table {of}", error, named=True) for of, error in of_each.items() if error is not None]

    def _warnings(self, one: C) -> Iterator[str]:  # noqa: ARG002 - for those who have some
        """Give what triggers cannot see of a table."""
        yield from ()

    def _log(self, changes: Counted[C], compared: Callable[[Sequence[C]], Look]) -> Iterator[Finding]:
        """`compared` looks at tables and their triggers."""
        state = self._state
        if state is None or state.phase is Phase.CREATING:
            refusals = unused_refusals(changes, self._config.name) if state is None and self._known else ()
            found = [refused(self.about, refusal) for refusal in refusals]
            yield from found or [Finding(Level.OK, self.about, f"{changes.place} will be made at the start")]
            return
        gaps = [refused("position", refusal) for refusal in changes.refusals(state.offset)]
        if gaps:
            yield from gaps
            return
        yield Finding(Level.OK, "position", f"changes can be followed from {self._shown(state.offset)}")
        yield Finding(Level.OK, self.about, f"{changes.place} holds about {changes.count()} changes")
        captured = {one.table.qualified for one in self._captured}
        try:
            refuse_weaker_rules(self._config.source, state.carried, captured, changes)
        except OperatorError as exc:
            yield refused("rules", exc)
        followed = [one for one in self._captured if one.table.qualified in state.tables]
        for name, reason in compared(followed).differences(state.carried).items():
            yield Finding(Level.WARNING, f"table {name}", f"{reason}: its rows are read again")


def described(changes: Counted[C], state: State | None, *, table: str, commit: int, clock_ms: int) -> dict[str, object]:
    """Describe change tables whose end is at a commit position; how many bytes it is ahead is not known.

    Tables that are set aside are those of which nothing is noted with the position.
    """
    made = changes.identity() is not None
    return {
        "log_end": str(changes.last() if made else 0),
        "log_end_number": commit,
        "lag_bytes": None,
        "reading": None,
        "owner": None,
        "clock_ms": clock_ms,
        "changes": {"table": table, "rows": changes.count() if made else 0, "set_aside": set_aside(state)},
    }


def set_aside(state: State | None) -> list[str]:
    """Return the tables whose triggers a connector could not make yet, because others hold a lock."""
    if state is None or state.phase is Phase.CREATING:
        return []
    return sorted({*state.tables} - state.carried.keys())
