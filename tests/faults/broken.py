"""`cdc run` with a guarantee taken out: what the oracles must notice. For the negative controls.

    python -m tests.faults.broken [KIND...] POINT N [FLAGS OF cdc run] CONNECTOR.yaml

Kinds: `no-verdict`: the slot is not looked at before the log is followed. `early-acknowledge`: the source hears of a
position before it is committed. `torn`: a source transaction is committed in pieces. POINT as in crashing.py; N 0:
no crash.
"""

from __future__ import annotations

import sys
from typing import Any, Final

from cdc.cli.main import main
from cdc.model.state import Phase
from connectors.postgres.slot import slot
from tests.faults.crashing import Wrapped, crash_at, wrap

_PIECE: Final = 7


class HastySink(Wrapped):
    """Acknowledges, then commits."""

    sources: Final[list[Any]] = []

    def commit(self, state: Any) -> None:
        if state.phase is Phase.STREAM and self.sources:
            self.sources[-1].acknowledge(state.offset)
        self._part.commit(state)


class SeenSource(Wrapped):
    """A source the HastySink knows of, once it streams."""

    def stream(self, *arguments: Any) -> Any:
        HastySink.sources.append(self._part)
        return self._part.stream(*arguments)


class TearingSink(Wrapped):
    """Commits in the midst of source transactions, under the position before them."""

    def fence(self) -> Any:
        self._state = self._part.fence()
        self._written = 0
        return self._state

    def write(self, *arguments: Any) -> None:
        self._part.write(*arguments)
        self._written += 1
        if self._written % _PIECE == 0:
            self._part.commit(self._state)

    def commit(self, state: Any) -> None:
        self._part.commit(state)
        self._state = state


def no_verdict() -> None:
    """Every slot will do."""
    slot.slot_refusals = lambda *_: iter(())


def unseen(_point: str) -> None:
    """No crash here."""


def early_acknowledge() -> None:
    """Acknowledge before the commit."""
    wrap(lambda p: SeenSource(p, unseen), lambda p: p, lambda p: HastySink(p, unseen))


def torn() -> None:
    """Commit in pieces."""
    wrap(lambda p: p, lambda p: p, lambda p: TearingSink(p, unseen))


_KINDS: Final = {
    "no-verdict": no_verdict,
    "early-acknowledge": early_acknowledge,
    "torn": torn,
}

if __name__ == "__main__":
    arguments = sys.argv[1:]
    broken = []
    while arguments[0] in _KINDS:
        broken.append(_KINDS[arguments.pop(0)])
    point, times, *flags = arguments
    if int(times):
        crash_at(point, int(times))
    for take_out in broken:  # outside the crash point, so that it comes first
        take_out()
    main(["run", *flags])
