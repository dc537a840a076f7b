"""`cdc demo` as a process: it proves what it shows, and leaves nothing behind, wherever it is interrupted."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cdc.config import registry
from cdc.config.config import ApplyConfig
from cdc.dev.demos.demo import Demo

MARK = "CDC_TEST_DEMO"
ENDS_WITHIN_S = 120.0


class Running:
    """The demo in a process group of its own, its folders under one, every process of it marked."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.temporary, self.work = folder / "tmp", folder / "work"
        self.temporary.mkdir()
        self.work.mkdir()
        self._mark = f"{MARK}={folder}"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "cdc", "demo", *arguments],
            cwd=self.work,
            env={
                **os.environ,
                MARK: str(folder),
                "TMPDIR": str(self.temporary),
                "SPARK_LOCAL_DIRS": str(self.temporary),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.lines: list[str] = []
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.lines.append(line)

    def await_(self, reached: Callable[[], object], within_s: float = 240) -> None:
        deadline = time.monotonic() + within_s
        while not reached():
            assert self._process.poll() is None, self.stderr
            assert time.monotonic() < deadline, self.stderr
            time.sleep(0.05)

    def done(self, step: str) -> bool:
        return any(line.startswith(f"✓ {step}") for line in self.lines)

    def interrupt(self) -> None:
        """Ctrl-C, as a terminal sends it."""
        os.killpg(self._process.pid, signal.SIGINT)

    def end(self, within_s: float) -> tuple[int, str]:
        """Exit code and stdout, which a pipe holds whole."""
        code = self._process.wait(within_s)
        assert self._process.stdout is not None
        out = self._process.stdout.read()
        self._reading.join(60)
        return code, out

    @property
    def stderr(self) -> str:
        return "".join(self.lines)

    def processes(self) -> list[str]:
        """Command lines of all that inherited the mark: orphans and other sessions too."""
        return [command for _, command in self._marked()]

    def _marked(self) -> Iterator[tuple[int, str]]:
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdecimal() and self._mark.encode() in (entry / "environ").read_bytes().split(b"\0"):
                    yield int(entry.name), (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:200]
            except OSError:
                continue  # it has just ended, or is another user's

    def left(self) -> list[str]:
        """Folders that remain."""
        return [str(path) for place in (self.temporary, self.work) for path in place.iterdir() if path.is_dir()]

    def kill(self) -> None:
        for pid, _ in self._marked():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass  # it has ended
        self._process.wait()
        for stream in (self._process.stdout, self._process.stderr):
            assert stream is not None
            stream.close()


pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="/proc is missing: it tells processes")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    started: list[Running] = []

    def begin(*arguments: str) -> Running:
        started.append(Running(tmp_path, *arguments))
        return started[-1]

    yield begin
    for demo in started:
        demo.kill()


@pytest.mark.full  # test_every_block_does_what_the_page_says, test_no_false_alarm_every_difference_named_and_mended
def test_the_demo_compares_repairs_follows_views_and_leaves_nothing(
    start: Callable[..., Running],
) -> None:
    demo = start("--transactions", "100")
    code, out = demo.end(300)
    assert code == 0, demo.stderr
    assert re.search(r"Everything is equal: [\d,]+ rows compared in full, 0 differences", out)
    assert "100 transactions" in out
    first, second = out.split("$ cdc verify connector.yaml apply.yaml --table public.products")[1:]
    assert 'differs    public.products in warehouse  {"id":107}  price\n' in first
    assert 'missing    public.products in search  {"id":108}\n' in first
    assert "asked the connector for 2 rows of public.products" in first
    assert all(
        re.search(rf"public\.products +{store} +100 +100( +0){{4}}\n", second) for store in ("warehouse", "search")
    )
    assert "Found, and repaired" in second
    assert [line.split("(")[0].strip() for line in out.splitlines() if re.match(r"  [+~-] ", line)] == [
        '+ timeline {"follower":"ann","post":1,"author":"sally","words":"The mug of the year is back"}',
        '+ timeline {"follower":"george","post":1,"author":"sally","words":"The mug of the year is back"}',
        '- timeline {"follower":"george","post":1,"author":"sally","words":"The mug of the year is back"}',
        '+ searches {"id":1,"words":"oak tray","outcome":"clicked"}',
        '+ searches {"id":2,"words":"gold spoon","outcome":"not clicked"}',
        '+ alerts   {"query":1,"doc":107}',
        '- alerts   {"query":1,"doc":107}',
    ]
    assert "Proved: each view is what Spark's batch answer over the topics is." in out
    assert demo.processes() == []
    assert demo.left() == []


@pytest.mark.parametrize(
    "moment",
    ["servers", pytest.param("apply job", marks=pytest.mark.full), pytest.param("workload", marks=pytest.mark.full)],
)
def test_ctrl_c_leaves_nothing(start: Callable[..., Running], moment: str) -> None:
    """While the servers start, while Spark starts or applies the snapshot, and in the middle of business."""
    demo = start("--transactions", "100000")
    if moment == "servers":
        demo.await_(lambda: list(demo.temporary.glob("cdc-demo-*/servers/*/server.pid")))
    else:
        before = {"apply job": "connector", "workload": "apply job"}[moment]
        demo.await_(lambda: demo.done(before))
        time.sleep(1)
    demo.interrupt()
    code, out = demo.end(ENDS_WITHIN_S)
    assert (code, demo.processes(), demo.left()) == (130, [], []), demo.stderr
    assert "Traceback" not in demo.stderr
    assert demo.stderr.endswith("interrupted\n")
    assert "differences" not in out


def test_ctrl_c_in_the_last_apply_run_ends_the_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    """The apply job takes Ctrl-C as the wish to end after its batch; the demo must not go on to compare then."""

    def run_apply(_config: ApplyConfig, *, stop: threading.Event, **_more: Any) -> None:
        stop.set()

    def part(_name: str) -> Callable[..., Any]:
        return run_apply

    monkeypatch.setattr(registry, "part", part)
    demo = object.__new__(Demo)
    demo._apply, demo._apply_error, demo._apply_stop = None, None, threading.Event()
    demo.apply_config = object()  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        demo.finish_apply()
