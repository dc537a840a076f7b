"""Fuzz every parser and every compiled module: `python -m tests.fuzz --seconds 600 [--target NAME] [--sanitize]`.

Each target runs in a process of its own, with a limit of memory, and of time for one input. Before them run parsers
with planted faults: where one is not found, nothing else is tried. Exits 1 if there was any finding; the inputs are in
`--folder`, and belong into `tests/fuzz/corpus/<target>/` once they are understood.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from tests.fuzz import build
from tests.fuzz.controls import CONTROLS, EXPECTED, SANITIZED
from tests.fuzz.one import MEMORY_BYTES, SHARED, save
from tests.fuzz.targets import TARGETS

CORPUS: Final = Path(__file__).parent / "corpus"
INPUT_S: Final = 20.0
"""What one input may take."""
_START_S: Final = 600.0
"""What all before the first input may, on a machine that has other things to do."""
_MOST_RUNS: Final = 5
"""How often a target that an input has ended is started again."""
_STATUS: Final = re.compile(r"cov: (\d+) ft: (\d+) corp: (\d+)/")


@dataclass
class Told:
    """What came of one target."""

    target: str
    executions: int = 0
    edges: int = 0
    features: int = 0
    corpus: int = 0
    seconds: float = 0.0
    findings: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Settings:
    seconds: float
    seed: int
    folder: Path
    input_s: float
    plain: bool
    compiled: Path | None

    def environment(self) -> dict[str, str]:
        """Of a target's process."""
        made = {**build.environment(), "PYTHONPATH": str(build.ROOT)}
        if self.compiled is not None:
            made |= build.sanitized(guided=not self.plain)
            made["ASAN_OPTIONS"] += f":hard_rss_limit_mb={MEMORY_BYTES >> 20}:max_allocation_size_mb=2048"
        return made


def fuzz(target: str, settings: Settings) -> Told:
    """Run it until its time is up, from the beginning again where an input has ended it.

    What the run before has found is tried first: it is a finding again, or was repaired.
    """
    told = Told(target)
    folder = settings.folder / target
    (folder / "corpus").mkdir(parents=True, exist_ok=True)
    for old in folder.glob("found-*"):
        if old.suffix:
            old.unlink()
        else:
            old.rename(folder / "corpus" / old.name)
    begun_s = time.monotonic()
    for number in range(_MOST_RUNS):
        left_s = settings.seconds - (time.monotonic() - begun_s if number else 0)
        if left_s < 1 and number:
            break
        told.executions += _run(target, folder, settings, left_s, settings.seed + number)
        log = (folder / "log").read_text(errors="replace")
        for found in _STATUS.finditer(log):
            told.edges, told.features, told.corpus = map(int, found.groups())
        if not _ended(folder, log):
            break
    told.seconds = round(time.monotonic() - begun_s, 1)
    told.findings = [
        f"{file.stem}: {file.read_text().splitlines()[0][:200]}" for file in sorted(folder.glob("found-*.txt"))
    ]
    return told


def _ended(folder: Path, log: str) -> bool:
    """Whether an input has ended it before its time: it is saved, with what the process said."""
    code = (folder / "code").read_text()
    if code == "0":
        return False
    current = folder / "current"
    raw = current.read_bytes() if current.exists() else SHARED.pack(0, 0)
    count, size = SHARED.unpack_from(raw)
    said = next((line for line in log.splitlines() if "ERROR: " in line or "runtime error" in line), "")
    save(folder, raw[SHARED.size : SHARED.size + size], f"{code}, at input {count} {said}".strip(), log[-6000:])
    return True


def _run(target: str, folder: Path, settings: Settings, seconds: float, seed: int) -> int:
    """Inputs that were tried. How it ended stands in `code`: 0, where its time was up."""
    current = folder / "current"
    current.unlink(missing_ok=True)
    command = [
        sys.executable, "-m", "tests.fuzz.one", target, "--seconds", str(seconds), "--seed", str(seed), "--folder",
        str(folder), "--corpus", str(CORPUS / target), *(["--plain"] if settings.plain else []),
        *(["--compiled", str(settings.compiled)] if settings.compiled else []),
    ]  # fmt: skip
    count, moved_s, ended = 0, time.monotonic(), ""
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=build.ROOT, env=settings.environment(), stdout=log, stderr=log)
        while process.poll() is None:
            time.sleep(0.05)
            found = SHARED.unpack(current.read_bytes()[: SHARED.size])[0] if _filled(current) else 0
            if found != count:
                count, moved_s = found, time.monotonic()
            elif time.monotonic() - moved_s > (settings.input_s if count else _START_S):
                process.kill()
                process.wait()
                ended = f"an input took longer than {settings.input_s:.0f} s" if count else "it did not start"
        if not ended and process.returncode:
            ended = f"the process ended with {process.returncode}"
    (folder / "code").write_text(ended or "0")
    return SHARED.unpack(current.read_bytes()[: SHARED.size])[0] if _filled(current) else 0


def _filled(current: Path) -> bool:
    return current.exists() and current.stat().st_size >= SHARED.size


def report(all_told: Sequence[Told]) -> Iterator[str]:
    """A table, then the findings."""
    yield f"{'target':<20}{'executions':>12}{'edges':>8}{'features':>10}{'corpus':>8}{'seconds':>9}{'findings':>10}"
    for told in all_told:
        yield (
            f"{told.target:<20}{told.executions:>12,}{told.edges:>8}{told.features:>10}{told.corpus:>8}"
            f"{told.seconds:>9.1f}{len(told.findings):>10}"
        )
    total = sum(told.executions for told in all_told)
    seconds = sum(told.seconds for told in all_told)
    findings = [f"{told.target}: {finding}" for told in all_told for finding in told.findings]
    yield f"{total:,} executions in {seconds:,.0f} s, {len(findings)} findings"
    yield from findings


def missed(settings: Settings) -> Iterator[str]:
    """Planted faults that a run like this one does not find, and what it says of the control that has none."""
    for name, expected in EXPECTED.items():
        if name in SANITIZED and settings.compiled is None:
            continue
        input_s = 2.0 if name == "hangs" else settings.input_s
        with tempfile.TemporaryDirectory() as folder:
            found = fuzz(name, replace(settings, seconds=1.0, input_s=input_s, folder=Path(folder))).findings
        if not (any(expected in finding for finding in found) if expected else not found):
            yield f"{name}: expected {expected or 'nothing'}, found {found or 'nothing'}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600, help="for all targets together (600)")
    parser.add_argument("--target", action="append", choices=[*TARGETS, *CONTROLS], help="only this; more than once")
    parser.add_argument("--sanitize", action="store_true", help="compiled modules under AddressSanitizer and UBSan")
    parser.add_argument("--plain", action="store_true", help="without atheris, though it is there")
    parser.add_argument("--jobs", type=int, default=1, help="targets at once (1)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--input-seconds", type=float, default=INPUT_S, help="that one input may take (20)")
    parser.add_argument("--folder", type=Path, default=Path(".cdc-fuzz"), help="where findings are left")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    targets = options.target or list(TARGETS)
    plain = options.plain or find_spec("atheris") is None
    sanitize = options.sanitize and build.has_sanitizers()
    how = [
        f"inputs are {'changed at random, as atheris is not used' if plain else 'guided by coverage, by atheris'}",
        f"compiled modules are {'built with AddressSanitizer and UBSan' if sanitize else 'as installed'}",
        *(["gcc is not here with the sanitizers that were asked for"] if options.sanitize and not sanitize else []),
        f"seed {options.seed}",
    ]
    print("; ".join(how), flush=True)
    with tempfile.TemporaryDirectory() as made:
        if sanitize:
            build.build(Path(made))
        settings = Settings(
            options.seconds / len(targets), options.seed, options.folder.resolve(), options.input_seconds, plain,
            Path(made) if sanitize else None,
        )  # fmt: skip
        if wrong := list(missed(settings)):
            print("Planted faults were not found:", *wrong, sep="\n")
            return 1
        with ThreadPoolExecutor(options.jobs) as pool:
            all_told = list(pool.map(lambda target: fuzz(target, settings), targets))
    print("\n".join(report(all_told)))
    if options.json:
        options.json.write_text(json.dumps([asdict(told) for told in all_told], indent=1) + "\n")
    return 1 if any(told.findings for told in all_told) else 0


if __name__ == "__main__":
    os.environ.pop("CDC_PURE", None)
    sys.exit(main())
