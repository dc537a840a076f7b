"""The house's own rules, beside everything else: format, style, layers, types."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.everything import PARTS
from tests.shards import known_durations, shards

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


def _tests() -> set[str]:
    return {str(file.relative_to(ROOT)) for file in (ROOT / "tests").rglob("test_*.py")}


def test_no_test_is_left_out_of_everything() -> None:
    """Each file belongs to a part of `make test-all` that is neither one of seeds nor in Python alone."""
    covered = set[str]()
    for part in PARTS:
        if part.environment or part.name.startswith("laws by seed"):
            continue
        ignored = {word.partition("=")[2] for word in part.arguments if word.startswith("--ignore=")}
        named = tuple(word for word in part.arguments if not word.startswith("--"))
        covered |= {file for file in _tests() - ignored if file.startswith(named)}
    assert covered == _tests()


def test_shards_are_of_files_that_are_there_and_begin_with_the_longest() -> None:
    known = known_durations()
    assert set(known) <= _tests()
    made = shards(_tests(), known)
    assert set(made) == _tests()
    took: dict[str, float] = {}
    for file, shard in made.items():
        took[shard] = took.get(shard, 0.0) + known.get(file, 5.0)
    assert list(took.values()) == sorted(took.values(), reverse=True)
