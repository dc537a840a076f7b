"""Turns runs into medians, ratios, and a table for people. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

OURS: Final = "cdc"
PEER: Final = "Debezium"
COLD: Final = "Debezium, JVM new"
RAW: Final = "reading alone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run of one program over one backlog."""

    case: str
    program: str
    events: int
    """The events after the first visible ones; seconds and CPU are of these."""
    seconds: float
    """From the first visible event to the last."""
    capture_cpu_s: float
    database_cpu_s: float
    broker_cpu_s: float | None
    """None if nothing was written to a broker."""
    first_s: float | None = None
    """From the start to the first visible event."""
    whole_s: float | None = None
    """From the start to the last."""
    peak_mb: float | None = None
    event_bytes: float | None = None
    repeated: int | None = None
    """The number of duplicate records."""

    @property
    def rate(self) -> float:
        """Return the events a second."""
        return self.events / self.seconds

    def us(self, cpu_s: float | None) -> float | None:
        """Return the CPU of an event in µs."""
        return None if cpu_s is None else cpu_s / self.events * 1e6


@dataclass(frozen=True, slots=True)
class _Shown:
    name: str
    title: tuple[str, str]
    width: int
    form: str
    of: Callable[[Run], float | None]
    ratio: bool = True


_COLUMNS: Final = (
    _Shown("events_per_s", ("", "events/s"), 10, ",.0f", lambda run: run.rate),
    _Shown("capture_us", ("CPU µs/event:", "capture"), 15, ".1f", lambda run: run.us(run.capture_cpu_s)),
    _Shown("database_us", ("", "database"), 9, ".1f", lambda run: run.us(run.database_cpu_s)),
    _Shown("broker_us", ("", "broker"), 7, ".1f", lambda run: run.us(run.broker_cpu_s)),
    _Shown("peak_mb", ("peak", "MB"), 7, ",.0f", lambda run: run.peak_mb),
    _Shown("first_s", ("start to", "first, s"), 9, ".1f", lambda run: run.first_s),
    _Shown("whole_s", ("start to", "last, s"), 9, ".1f", lambda run: run.whole_s),
    _Shown("event_bytes", ("bytes/", "event"), 7, ",.0f", lambda run: run.event_bytes),
)
_NAME_WIDTH: Final = 28


def medians(runs: Sequence[Run]) -> dict[str, float]:
    """Return the medians by figure, without figures that some run does not have."""
    found = {}
    for column in _COLUMNS:
        values = [value for run in runs if (value := column.of(run)) is not None]
        if values and len(values) == len(runs):
            found[column.name] = statistics.median(values)
    return found


def grouped(runs: Iterable[Run]) -> dict[str, dict[str, list[Run]]]:
    """Group runs by case and program, in the order they came."""
    found: dict[str, dict[str, list[Run]]] = {}
    for run in runs:
        found.setdefault(run.case, {}).setdefault(run.program, []).append(run)
    return found


def ratios(programs: dict[str, list[Run]]) -> dict[str, float]:
    """Return the ratios of our medians to the peer's."""
    if OURS not in programs or PEER not in programs:
        return {}
    ours, peers = medians(programs[OURS]), medians(programs[PEER])
    return {name: ours[name] / peers[name] for name in ours if peers.get(name)}


def table(runs: Iterable[Run]) -> str:
    """Format one block for each case."""
    return "\n\n".join("\n".join(_block(case, programs)) for case, programs in grouped(runs).items())


def _block(case: str, programs: dict[str, list[Run]]) -> Iterable[str]:
    yield case
    for line in (0, 1):
        yield (" " * _NAME_WIDTH + "".join(f"{c.title[line]:>{c.width}}" for c in _COLUMNS)).rstrip()
    for program in sorted(programs, key=(OURS, PEER, COLD, RAW).index):
        runs = programs[program]
        name = program if len(runs) > 1 else f"{program} (1 run)"
        yield _line(name, {c.name: format(v, c.form) for c in _COLUMNS if (v := medians(runs).get(c.name)) is not None})
    if found := ratios(programs):
        yield _line(f"{OURS} : {PEER}", {name: f"{value:.2f}" for name, value in found.items()})


def _line(name: str, cells: dict[str, str]) -> str:
    return f"  {name:<{_NAME_WIDTH - 2}}" + "".join(f"{cells.get(c.name, '–'):>{c.width}}" for c in _COLUMNS)


def as_json(runs: Sequence[Run], about: dict[str, Any]) -> dict[str, Any]:
    """Return all runs, medians and ratios as JSON with stable names."""
    cases = [
        {
            "case": case,
            "medians": {program: medians(of) for program, of in programs.items()},
            "ratios": ratios(programs),
        }
        for case, programs in grouped(runs).items()
    ]
    return {**about, "cases": cases, "runs": [asdict(run) for run in runs]}
