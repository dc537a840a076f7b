"""What jobs write beside memory is their owner's alone, and goes with them."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from spark_apply.spark.jvm import scratch

_JOB = "import sys; from spark_apply.spark.jvm import scratch; print(scratch.of_jvm(), flush=True); sys.stdin.read()"


def test_rows_of_a_killed_job_go_with_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else could read them meanwhile. Those of jobs that run stay, and what is not a job's."""
    jobs = [
        subprocess.Popen(
            [sys.executable, "-c", _JOB], env={**os.environ, "TMPDIR": str(tmp_path)}, text=True,
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
    (tmp_path / "cdc-spark-other").mkdir()
    (tmp_path / "cdc-spark-link").symlink_to(running.parent)
    for folder in (killed, running):
        os.utime(folder.parent, (time.time() - 120,) * 2)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    scratch.remove_left()
    assert [folder.exists() for folder in (killed.parent, running, new)] == [False, True, True]
    assert (tmp_path / "cdc-spark-other").exists()
    jobs[1].communicate("")
    assert not running.parent.exists()
