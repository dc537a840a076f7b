"""What a soak found: a table for people, JSON for machines."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LAWS = ("lost", "doubled", "torn", "order_breaks")


@dataclass
class Report:
    """Figures of one run; `violations` are in words."""

    seconds: float = 0
    seed: int = 0
    source: str = ""
    faults: Counter[str] = field(default_factory=Counter)
    not_reached: Counter[str] = field(default_factory=Counter)
    """Faults that waited for something that did not come; not counted."""
    lost: int = 0
    doubled: int = 0
    torn: int = 0
    order_breaks: int = 0
    slot_samples: int = 0
    slot_ahead: int = 0
    live_rounds: int = 0
    """Times at which a polling reader held everything up to a published position against the laws."""
    false_alarms: int = 0
    stuck: int = 0
    recoveries_s: list[float] = field(default_factory=list)
    transactions: int = 0
    events: int = 0
    restarts: int = 0
    peak_rss_mb: float = 0
    snapshot_views: int = 0
    workload: dict[str, int] = field(default_factory=dict)
    ends: list[str] = field(default_factory=list)
    played: list[dict[str, Any]] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return not (any(getattr(self, law) for law in LAWS) or self.slot_ahead or self.violations)

    @property
    def recovery(self) -> dict[str, float]:
        """Percentiles, in seconds."""
        times = sorted(self.recoveries_s)
        if not times:
            return {"p50": 0.0, "p95": 0.0, "max": 0.0}
        return {
            name: times[min(len(times) - 1, int(len(times) * q))]
            for name, q in (("p50", 0.5), ("p95", 0.95), ("max", 1))
        }

    def to_json(self) -> str:
        body = {
            **vars(self),
            "faults": dict(self.faults),
            "not_reached": dict(self.not_reached),
            "recovery_s": self.recovery,
            "good": self.good,
        }
        return json.dumps(body, indent=1) + "\n"

    def keep(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.to_json())

    def table(self) -> str:
        """Two columns."""
        p = self.recovery
        times = f"p50 {p['p50']:.1f} s, p95 {p['p95']:.1f} s, max {p['max']:.1f} s (of {len(self.recoveries_s)})"
        lines: list[tuple[str, object]] = [
            ("seconds", f"{self.seconds:.0f}"),
            ("seed", self.seed),
            ("source", self.source),
            ("faults", self.faults.total()),
            *((f"  {kind}", number) for kind, number in sorted(self.faults.items())),
            ("not reached", f"{self.not_reached.total()} {', '.join(self.not_reached)}"),
            ("transactions", self.transactions),
            ("events", self.events),
            ("restarts", self.restarts),
            ("views of the snapshot", self.snapshot_views),
            ("rounds of the live reader", self.live_rounds),
            ("peak RSS of the connector", f"{self.peak_rss_mb:.0f} MB"),
            ("recovery after SIGKILL", times),
            ("lost", self.lost),
            ("doubled", self.doubled),
            ("torn", self.torn),
            ("order breaks", self.order_breaks),
            *([("slot ahead", f"{self.slot_ahead} of {self.slot_samples} samples")] if self.slot_samples else []),
            ("false alarms", self.false_alarms),
            ("stuck", self.stuck),
        ]
        width = max(len(name) for name, _ in lines)
        table = "\n".join(f"{name:<{width}}  {value}" for name, value in lines)
        ends = Counter(end.partition(": ")[2] for end in self.ends)
        table += "".join(f"\n  ended by itself {number} × {end}" for end, number in ends.items())
        said = "".join(f"\n  VIOLATION {line}" for line in self.violations)
        return f"{table}{said}\n{'nothing lost, doubled or torn' if self.good else 'FAILED'}\n"
