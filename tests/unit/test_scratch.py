"""What jobs and members of a fleet write beside memory is their owner's alone, and goes with them."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cdc.machine.process_folder import remove_left

_JOB = "import sys; from spark_apply.spark.jvm import scratch; print(scratch.of_jvm(), flush=True); sys.stdin.read()"
_MEMBER = """
import sys
from cdc.fleet.children import Children

with Children() as children:
    print(children.folder / "member", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("code", "kind", "mark"), [(_JOB, "cdc-spark-", "jvm"), (_MEMBER, "cdc-fleet-", "member")], ids=["job", "member"]
)
def test_rows_of_a_killed_process_go_with_the_next_one(
    code: str, kind: str, mark: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody else could read them meanwhile. Those of processes that run stay, and what is not theirs."""
    jobs = [
        subprocess.Popen(
            [sys.executable, "-c", code], env={**os.environ, "TMPDIR": str(tmp_path)}, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )
        for _ in range(3)
    ]  # fmt: skip
    folders = [Path(job.stdout.readline().strip()) for job in jobs if job.stdout is not None]
    for folder in folders:
        (folder / "shuffle").write_text("rows")
        assert stat.S_IMODE(folder.parent.stat().st_mode) == 0o700
    killed, running, new = folders
    for job in (jobs[0], jobs[2]):
        job.kill()
        job.communicate()
    (tmp_path / f"{kind}other").mkdir()
    (tmp_path / f"{kind}link").symlink_to(running.parent)
    for folder in (killed, running):
        os.utime(folder.parent, (time.time() - 120,) * 2)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    remove_left(kind, mark)
    assert [folder.exists() for folder in (killed.parent, running, new)] == [False, True, True]
    assert (tmp_path / f"{kind}other").exists()
    jobs[1].communicate("")
    assert not running.parent.exists()
