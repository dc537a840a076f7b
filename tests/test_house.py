"""The house's own rules, beside everything else: format, style, layers, types."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.everything import PARTS, Outcome, counts, fits, to_run
from tests.shards import file_of, known_durations, shards

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
        named = tuple(word.partition("::")[0] for word in part.arguments if not word.startswith("--"))
        covered |= {file for file in _tests() - ignored if file.startswith(named)}
    assert covered == _tests()


def test_what_never_ran_is_run_first_then_the_oldest_result_and_what_has_passed_for_the_commit_is_not() -> None:
    def outcome(number: int, commit: str, *, passed: bool, command: str = "") -> Outcome:
        part = PARTS[number]
        date = f"2026-11-{20 - number}"
        return Outcome(part.name, commit, command or part.command, date, 1, 1, [], 0, passed=passed)

    made = [
        outcome(0, "new", passed=True),
        outcome(1, "old", passed=True),
        outcome(2, "new", passed=False),
        outcome(3, "new", passed=True, command="pytest of another time"),
    ]
    waiting = to_run({each.name: each for each in made}, "new")
    assert waiting == [*PARTS[4:], PARTS[3], PARTS[2], PARTS[1]]


def test_what_took_longer_than_the_minutes_that_are_left_is_not_begun() -> None:
    took = {PARTS[0].name: Outcome(PARTS[0].name, "old", "", "2026-11-20", 600, 1, [], 0, passed=True)}
    assert [fits(PARTS[0], took, left_s) for left_s in (float("inf"), 600, 599)] == [True, True, False]
    assert [fits(PARTS[1], took, left_s) for left_s in (1, 0)] == [True, False]


def test_the_tests_that_failed_are_named(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    assert counts(report) == (0, [], 0)
    report.write_text(
        '<testsuites><testsuite name="pytest"><testcase classname="tests.a" name="good"/>'
        '<testcase classname="tests.a" name="bad[1]"><failure/></testcase>'
        '<testcase classname="tests.b" name="broken"><error/></testcase>'
        '<testcase classname="tests.b" name="left"><skipped/></testcase></testsuite></testsuites>'
    )
    assert counts(report) == (4, ["tests.a::bad[1]", "tests.b::broken"], 1)


def test_shards_are_of_files_that_are_there_and_begin_with_the_longest() -> None:
    known = known_durations()
    assert {file_of(name) for name in known} <= _tests()
    made = shards(_tests(), known)
    assert set(made) == _tests()
    took: dict[str, float] = {}
    for file, shard in made.items():
        took[shard] = took.get(shard, 0.0) + known.get(file, 5.0)
    assert list(took.values()) == sorted(took.values(), reverse=True)
