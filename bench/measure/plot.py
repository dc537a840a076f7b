"""Draws the file of `bench.capture.streams --json FILE`: `python -m bench.measure.plot FILE PICTURE.png`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl

from bench.measure.report import OURS, PEER

mpl.use("Agg")

from matplotlib import pyplot as plt

FIGURES: Final = (
    ("events_per_s", "events a second"),
    ("capture_us", "CPU of the capturing process, µs an event"),
    ("peak_mb", "peak memory, MB"),
)
PROGRAMS: Final = ((OURS, "#1f77b4"), (PEER, "#b0b0b0"))


def draw(report: dict[str, Any], picture: Path) -> None:
    """Draw a row of bars for each case, and a column for each figure."""
    cases = report["cases"]
    figure, axes = plt.subplots(1, len(FIGURES), figsize=(5 * len(FIGURES), 1.2 + 0.9 * len(cases)), sharey=True)
    for axis, (name, title) in zip(axes, FIGURES, strict=True):
        for shift, (program, color) in zip((-0.2, 0.2), PROGRAMS, strict=True):
            values = [case["medians"].get(program, {}).get(name, 0) for case in cases]
            bars = axis.barh([at + shift for at in range(len(cases))], values, height=0.38, color=color, label=program)
            axis.bar_label(bars, [f"{value:,.0f}" if value >= 100 else f"{value:.1f}" for value in values], padding=3)
        axis.set_title(title)
        axis.margins(x=0.25)
        axis.set_xticks([])  # the bars say it
        axis.spines[["top", "right", "bottom"]].set_visible(False)
    axes[0].set_yticks(
        range(len(cases)), [case["case"].replace(": ", ":\n").replace(", the log", "") for case in cases]
    )
    axes[0].invert_yaxis()
    axes[0].legend(loc="lower right")
    figure.tight_layout()
    figure.savefig(picture, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("report", type=Path)
    parser.add_argument("picture", type=Path)
    given = parser.parse_args()
    draw(json.loads(given.report.read_text()), given.picture)


if __name__ == "__main__":
    main()
