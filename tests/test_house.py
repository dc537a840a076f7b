"""The house's own rules, beside everything else: format, style, layers, types."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent


@pytest.mark.parametrize(
    "command",
    ["ruff format --check .", "ruff check .", "lint-imports", "mypy"],
    ids=lambda command: command.split(maxsplit=1)[0] + ("-format" if "format" in command else ""),
)
def test_nothing_is_found(command: str) -> None:
    """What `make lint` and `make type` say."""
    program, *words = command.split()
    done = subprocess.run([BIN / program, *words], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
