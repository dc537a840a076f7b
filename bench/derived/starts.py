"""Measures the time to Spark's first answer, with the class archive and without, alternating.

    python -m bench.derived.starts [runs]

Seconds of wall time from the start of Python, medians.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from typing import Final

from spark_apply.spark.build_class_archive import make

_ASKS: Final = """
from pathlib import Path
from spark_apply.spark import class_archive
from spark_apply.spark import session
if not {archive}: class_archive.archive = lambda: Path("nowhere")
session.open_session("start").range(10).groupBy("id").count().collect()
"""


def seconds(*, archive: bool) -> float:
    begun = time.monotonic()
    subprocess.run([sys.executable, "-c", _ASKS.format(archive=archive)], check=True)
    return time.monotonic() - begun


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    make()
    print(f"load {os.getloadavg()[0]:.1f} at the start, medians of {runs}")
    found = [(seconds(archive=True), seconds(archive=False)) for _ in range(runs)]
    there, without = (statistics.median(times) for times in zip(*found, strict=True))
    print(f"  with the archive     {there:>5.1f} s")
    print(f"  without              {without:>5.1f} s")
    print(f"  with : without       {there / without:>6.2f}")


if __name__ == "__main__":
    main()
