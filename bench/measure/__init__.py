"""Measures and reports: meters, medians, tables, a plot, and what every benchmark needs to start programs.

In: runs. Out: figures.
Every benchmark may import it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

PROJECT: Final = Path(__file__).resolve().parents[2]
"""The folder of this repository, where programs are started."""


def tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
