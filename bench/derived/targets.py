"""Shows the apply job's figures beside their targets: a table for people, and the same as JSON. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

CHANGES: Final = "sustained apply"
DOCUMENTS: Final = "documents"
P50, P99 = "freshness, p50", "freshness, p99"
REBUILD: Final = "rebuild : reading and parsing"
VERIFY: Final = "verify"
PLANTED: Final = "verify, of 3 planted, found and named"
ALARMS: Final = "verify under load, false alarms"

BARS: Final[dict[tuple[str, str], float]] = {
    (CHANGES, "postgres"): 40_000,
    (CHANGES, "iceberg"): 50_000,
    (CHANGES, "delta"): 25_000,
    (DOCUMENTS, "opensearch"): 5_000,
    (DOCUMENTS, "tantivy"): 20_000,
    (P50, "postgres"): 1.0,
    (P99, "postgres"): 3.0,
    (P50, "opensearch"): 1.0,
    (P99, "opensearch"): 3.0,
    (P50, "iceberg"): 3.0,
    (P50, "delta"): 6.0,
    (REBUILD, "iceberg"): 0.6,
    (PLANTED, "postgres"): 3,
    (ALARMS, "postgres"): 0,
}
"""The targets at full size."""

_UNITS: Final = {
    CHANGES: "changes/s",
    DOCUMENTS: "documents/s",
    P50: "s",
    P99: "s",
    REBUILD: "",
    VERIFY: "rows/s",
    PLANTED: "",
    ALARMS: "",
}
_AT_MOST: Final = (P50, P99, ALARMS)


@dataclass(frozen=True, slots=True)
class Figure:
    """One measurement of one store."""

    what: str
    store: str
    value: float
    of: str
    """What was measured, in words."""

    @property
    def bar(self) -> float | None:
        return BARS.get((self.what, self.store))

    @property
    def reached(self) -> bool | None:
        """Whether the target is reached; None without a target."""
        if self.bar is None:
            return None
        return self.value <= self.bar if self.what in _AT_MOST else self.value >= self.bar

    def as_json(self) -> dict[str, Any]:
        """Return JSON with stable keys."""
        return {**asdict(self), "unit": _UNITS[self.what], "bar": self.bar, "reached": self.reached}


def percentile(values: Iterable[float], share: float) -> float:
    """Return the least value that at least this share of all do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def table(figures: Sequence[Figure]) -> str:
    """Format the figures, in their order."""
    rows = [("", "store", "measured", "asked for", "", "of")]
    for one in figures:
        unit = _UNITS[one.what]
        sign = "≤" if one.what in _AT_MOST else "≥"
        asked = "–" if one.bar is None else f"{sign} {_number(one.bar)}"
        verdict = {None: "", True: "reached", False: "MISSED"}[one.reached]
        rows.append((one.what, one.store, f"{_number(one.value)} {unit}".rstrip(), asked, verdict, one.of))
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"
