"""`make test-all`: every test at full strength, in parts; what has passed for a commit is not run again for it.

    python -m tests.everything [--only WORDS] [--fresh] [--minutes N]

It takes hours, and may be stopped at any time: the next run goes on with what has not passed for its commit, first the
parts that never ran, then the ones whose result is oldest. What came of it stands in docs/test-all.json, which is also
where the next run reads it: of each part its commit, command, date, durations, counts and the tests that failed. What
each full test took goes to tests/durations.json: the short ones are run by pushes, too (`tests/pushes.py`).

With `--minutes`, parts that took longer than what is left are passed over, and one that never ran is ended when the
time is up: it counts as not passed, and its result says for how long it ran.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET  # of our own pytest's report
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import click

from tests.servers import kafka_versions

ROOT: Final = Path(__file__).parent.parent
RESULT: Final = ROOT / "docs/test-all.json"
_RESULTS: Final = (f":!{RESULT.relative_to(ROOT)}", ":!tests/durations.json")
_PURE: Final = {"CDC_PURE": "1"}


@dataclass(frozen=True)
class Part:
    """One run of pytest."""

    name: str
    arguments: Sequence[str]
    workers: int = 3
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def command(self) -> str:
        """As it can be pasted at the project's root."""
        settings = {"CDC_TEST_ALL": "1", **self.environment}
        words = (f"{name}={value}" for name, value in settings.items())
        return " ".join((*words, f"pytest -n {self.workers}", *map(shlex.quote, self.arguments)))


_HOUSE: Final = (
    *("tests/unit", "tests/property", "tests/conformance", "tests/page"),
    *("tests/test_house.py", "tests/test_packaging.py"),
)
_MACHINE: Final = "tests/property/test_machine.py"
_SOAK: Final = "tests/faults/test_soak.py"
SOAKED: Final = (
    *("postgres18-own", "mysql-own", "mariadb-own", "postgres18-librdkafka"),
    *("triggers-postgres-own", "triggers-mysql-own", "triggers-mariadb-own"),
)
"""Each a source and a producer."""
_FLEET_SOAK: Final = "tests/faults/test_fleet_soak.py"
_APPLY_SOAK: Final = "tests/faults/test_apply_soak.py"
_FAULTS: Final = ("tests/faults", *(f"--ignore={soak}" for soak in (_SOAK, _FLEET_SOAK, _APPLY_SOAK)))
_SERVERS: Final = ("tests/cases", "tests/integration")
_KILLS: Final = ("tests/stores/test_kills.py", "tests/stores/test_end_to_end.py", "tests/stores/test_cluster.py")
_OF_KAFKA: Final = ("tests/conformance", "tests/cases", "tests/integration/test_topics_lost.py")
_SEEDS: Final = (1, 2, 3)

PARTS: Final = (
    Part("house", [*_HOUSE, f"--ignore={_MACHINE}"]),
    Part("a million model steps", [_MACHINE]),
    *(
        Part(f"laws by seed {seed}", ["tests/property", f"--ignore={_MACHINE}", f"--hypothesis-seed={seed}"])
        for seed in _SEEDS
    ),
    Part("connectors", _SERVERS),
    Part("faults", _FAULTS),
    *(Part(f"soak of {what}", [f"{_SOAK}::test_minutes_of_faults[{what}]"], workers=1) for what in SOAKED),
    Part("a fleet's soak", [_FLEET_SOAK], workers=1),  # it measures times
    Part("an apply job's soak", [_APPLY_SOAK], workers=1),  # so does this one
    *(Part(f"Kafka {v}", _OF_KAFKA, environment={"CDC_TEST_KAFKA_VERSION": v}) for v in kafka_versions.VERSIONS),
    Part("stores", ["tests/stores", *(f"--ignore={file}" for file in _KILLS)]),
    Part("stores killed", _KILLS),
    Part("an hour of fuzz", ["tests/fuzz"], workers=1),
    Part("house in Python alone", [*_HOUSE, f"--ignore={_MACHINE}"], environment=_PURE),
    Part("connectors in Python alone", _SERVERS, environment=_PURE),
    Part("faults in Python alone", _FAULTS, environment=_PURE),
    Part("stores in Python alone", ["tests/stores/test_end_to_end.py", "tests/stores/test_demo.py"], environment=_PURE),
)


@dataclass(frozen=True)
class Outcome:
    """What came of a part."""

    name: str
    commit: str
    command: str
    date: str
    seconds: int
    tests: int
    failed: Sequence[str]
    """As pytest names them."""
    skipped: int
    passed: bool
    """Whether pytest said so: there were tests, and none of them failed."""


def run(part: Part, commit: str, within_s: float = math.inf) -> Outcome:
    """Its output goes to the terminal; when the time is up it is interrupted, as by Ctrl-C."""
    begun, date = time.monotonic(), datetime.now(UTC).isoformat(timespec="seconds")
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        options = [
            f"-n{part.workers}",
            f"--junitxml={report}",
            "-q",
            *([] if part.environment else ["--write-durations"]),
        ]
        with subprocess.Popen(
            [sys.executable, "-m", "pytest", *options, *part.arguments],
            cwd=ROOT,
            env={**os.environ, "CI": "true", "CDC_TEST_ALL": "1", **part.environment},
        ) as process:
            try:
                process.wait(None if within_s == math.inf else within_s)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGINT)
        tests, failed, skipped = counts(report)
    return Outcome(
        name=part.name,
        commit=commit,
        command=part.command,
        date=date,
        seconds=round(time.monotonic() - begun),
        tests=tests,
        failed=failed,
        skipped=skipped,
        passed=process.returncode == 0 and tests > 0,
    )


def counts(report: Path) -> tuple[int, list[str], int]:
    """Tests, the names of those that failed, how many were skipped, from pytest's report."""
    if not report.exists():
        return 0, [], 0
    cases = list(ET.parse(report).getroot().iter("testcase"))
    failed = [_name(case) for case in cases if case.find("failure") is not None or case.find("error") is not None]
    return len(cases), failed, sum(case.find("skipped") is not None for case in cases)


def _name(case: ET.Element) -> str:
    return f"{case.get('classname', '')}::{case.get('name', '')}"


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def commit_under_test() -> str:
    """The newest commit of anything but the results themselves.

    Raises ClickException where what is tested is no commit: its result could not be told from another's.
    """
    changed = _git("status", "--porcelain", "--", ".", *_RESULTS).splitlines()
    if changed:
        found = f"{len(changed)} files differ from the commit, {changed[0].split()[-1]} is one"
        raise click.ClickException(f"{found}: commit first, then make test-all")
    return _git("log", "-1", "--format=%H", "--", ".", *_RESULTS)


def to_run(outcomes: Mapping[str, Outcome], commit: str) -> list[Part]:
    """The parts that have not passed for the commit: those that never ran, then the oldest result first."""
    waiting = [
        part for part in PARTS if part.name not in outcomes or not _has_passed(outcomes[part.name], part, commit)
    ]
    return sorted(waiting, key=lambda part: outcomes[part.name].date if part.name in outcomes else "")


def fits(part: Part, outcomes: Mapping[str, Outcome], left_s: float) -> bool:
    """Whether the part is worth beginning: it took no longer when it ran last, or it has never run."""
    return left_s > 0 and (part.name not in outcomes or outcomes[part.name].seconds <= left_s)


def _has_passed(outcome: Outcome, part: Part, commit: str) -> bool:
    return outcome.passed and outcome.commit == commit and outcome.command == part.command


def read_result() -> dict[str, Outcome]:
    """What is known of each part that there still is."""
    if not RESULT.exists():
        return {}
    known = {made["name"]: Outcome(**made) for made in json.loads(RESULT.read_text())["parts"]}
    return {part.name: known[part.name] for part in PARTS if part.name in known}


def write_result(commit: str, outcomes: Mapping[str, Outcome]) -> None:
    """Complete or not: what was run is told, for which commit, and what was not."""
    done = [outcomes[part.name] for part in PARTS if part.name in outcomes]
    body: dict[str, Any] = {
        "commit": commit,
        "date": datetime.now(UTC).date().isoformat(),
        "cpus": os.cpu_count(),
        "passed": len(done) == len(PARTS) and all(outcome.passed for outcome in done),
        "commits": sorted({outcome.commit for outcome in done}),
        "tests": sum(outcome.tests for outcome in done),
        "seconds": sum(outcome.seconds for outcome in done),
        "not_run": [part.name for part in PARTS if part.name not in outcomes],
        "parts": [asdict(outcome) for outcome in done],
    }
    RESULT.write_text(json.dumps(body, indent=1) + "\n")


@click.command()
@click.option("--only", metavar="WORDS", default="", help="Only parts with these words in their names.")
@click.option("--fresh", is_flag=True, help="Forget what has passed before.")
@click.option("--minutes", type=float, default=math.inf, help="Only what fits into so many minutes, oldest first.")
def main(*, only: str, fresh: bool, minutes: float) -> None:
    """Run every test at full strength, in parts; go on where the last run was stopped."""
    ends_s = time.monotonic() + 60 * minutes
    commit = commit_under_test()
    outcomes = {} if fresh else read_result()
    for part in to_run(outcomes, commit):
        left_s = ends_s - time.monotonic()
        if only not in part.name or not fits(part, outcomes, left_s):
            continue
        click.echo(f"== {part.name}: {part.command}")
        outcomes[part.name] = run(part, commit, left_s)
        write_result(commit, outcomes)
    for outcome in outcomes.values():
        verdict = "passed" if outcome.passed else f"{len(outcome.failed)} FAILED" if outcome.failed else "NOT ENDED"
        click.echo(
            f"{outcome.name:<30} {outcome.tests:>6} tests {outcome.seconds:>6} s  {outcome.commit[:9]} {verdict}"
        )
    wrong = [outcome.name for outcome in outcomes.values() if not outcome.passed]
    if wrong:
        raise click.ClickException(f"not passed: {', '.join(wrong)}; make test-all runs these again")


if __name__ == "__main__":
    main()
