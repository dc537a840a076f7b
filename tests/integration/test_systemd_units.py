"""systemd itself reads the units: nothing is wrong in them, and little of the machine is exposed by them."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from cdc.dev.debs import Package, fetch
from cdc.model.errors import CdcError
from tests.conftest import unavailable

UNITS = Path(__file__).parents[2] / "deploy" / "systemd"
PROGRAMS = ("opt/cdc/.venv/bin/cdc", "bin/kill")
BELOW = 2.0
"""Of ten; the networks they need are a good part of it. systemd's own word for less than 5 is OK."""


@pytest.fixture(scope="module")
def analyze() -> tuple[str, ...]:
    """The machine's, else Debian's, unpacked into the cache."""
    if shutil.which("systemd-analyze"):
        return ("systemd-analyze",)
    try:
        root = fetch(Package("systemd", "bookworm"))
    except CdcError as exc:
        unavailable("systemd-analyze", exc.message)
        raise
    words = list(root.command("usr/bin/systemd-analyze"))
    own = next(root.root.glob("usr/lib/*/systemd/libsystemd-shared*"))  # not where its loader looks
    words[words.index("--library-path") + 1] += f":{own.parent}"
    return tuple(words)


@pytest.fixture
def machine(tmp_path: Path) -> Callable[[Path, str], str]:
    """Install a unit on a machine that has the programs and nothing else; return the name it is started by."""
    for program in PROGRAMS:
        file = tmp_path / program
        file.parent.mkdir(parents=True)
        file.touch(mode=0o755)

    def install(unit: Path, text: str) -> str:
        folder = tmp_path / "etc/systemd/system"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / unit.name).write_text(text)
        return unit.name.replace("@.", "@shop.")

    return install


@pytest.mark.parametrize("unit", sorted(UNITS.iterdir()), ids=lambda unit: unit.name)
def test_systemd_reads_a_unit(
    analyze: tuple[str, ...], machine: Callable[[Path, str], str], tmp_path: Path, unit: Path
) -> None:
    """And sees what is wrong in one where a line is not known, and what is exposed where a wall is left out."""

    def verify(text: str) -> tuple[int, str]:
        name = machine(unit, text)
        words = [*analyze, "verify", f"--root={tmp_path}", "--recursive-errors=no", name]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    def secure(text: str, below: float) -> int:
        name = machine(unit, text)
        words = [*analyze, "security", "--offline=true", f"--root={tmp_path}", f"--threshold={below * 10:.0f}", name]
        return subprocess.run(words, capture_output=True, check=False).returncode

    good = unit.read_text()
    assert verify(good) == (0, "")
    assert secure(good, BELOW) == 0
    assert "'RestartSecs'" in verify(good.replace("RestartSec=", "RestartSecs="))[1]
    assert secure(good.replace("CapabilityBoundingSet=\n", ""), BELOW) == 1
