"""Without what is compiled the same is done in Python: what holds of both is tested once more with it left out.

`make test-all` runs the whole suite so; here it is what is nearest to the compiled code, with few examples.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = (
    "tests/unit/test_rowcode.py",
    "tests/unit/test_envelope.py",
    "tests/unit/test_mysql_rows.py",
    "tests/unit/test_postgres_source.py",
    "tests/property/test_fast_path.py",
    "tests/property/test_mysql_rows.py",
)


def test_it_holds_in_python_alone() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--hypothesis-profile=few", *TESTS],
        cwd=ROOT,
        env={**os.environ, "CDC_PURE": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout[-5000:]
    assert " passed" in done.stdout.splitlines()[-1]


def test_it_is_python_alone() -> None:
    code = (
        "from cdc.encode.envelope import frame; assert frame.Frame is frame.PlainFrame; "
        "from connectors.postgres.pgoutput import fast_path; assert fast_path.FastPath is fast_path.PlainFastPath"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, env={**os.environ, "CDC_PURE": "1"}, check=True)
