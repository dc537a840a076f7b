"""Runs a process for each of several connectors; one that fails ends no other."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType

from cdc.cli.ending import BY_SIGNAL
from cdc.fleet import with_member
from cdc.machine.child_processes import AMONG_OTHERS, SAFE_PATH
from cdc.machine.stop_signals import HangUps
from cdc.model.errors import FINAL, OperatorError

_STOP_S = 30.0
_AS_ASKED = (-signal.SIGTERM, BY_SIGNAL + signal.SIGTERM)
"""How a connector ends that was asked to while it began, or before it had taken everything."""
_LOOK_S = 0.2
_REMIND_S = 600.0

_log = logging.getLogger("cdc")


def supervise(files: tuple[Path, ...], flags: list[str], hang_ups: HangUps) -> int | None:
    """Run one process for each file until all have ended; the error's exit code is that of the first that failed.

    Returns the number of the signal that ended it, if it ended one that was to catch up and had not.

    One that a restart may help goes before those that it does not: what starts this again starts all of them, or none.

    One that fails ends no other: what is wrong with one database is no reason to stop following another. They end with
    this process (Linux): those that outlived it would go by old files, and keep slots and ports from its successor's.
    """
    children = [
        subprocess.Popen(
            [
                *(sys.executable, "-I", "-S", with_member.__file__, str(os.getpid())),
                *(sys.executable, *SAFE_PATH, "-m", "cdc", "run", str(path), *flags),
            ],
            env={**os.environ, AMONG_OTHERS: str(path)},
            start_new_session=True,  # Ctrl-C in the terminal is for us alone: asked twice, a connector ends at once
        )
        for path in files
    ]
    stopping_s: list[float] = []
    asked: list[int] = []

    def stop(number: int, _frame: FrameType | None) -> None:
        stopping_s.append(time.monotonic())
        asked.append(number)
        for child in children:
            child.terminate()

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)

    def hang_up() -> None:
        for child in children:
            child.send_signal(signal.SIGHUP)

    hang_ups.heard_by(hang_up)
    running = dict(zip(files, children, strict=True))
    failed: dict[Path, int] = {}
    told_s, cut_short = time.monotonic(), False
    while running:
        for path, child in list(running.items()):
            code = child.poll()
            if code is not None:
                del running[path]
            if asked and code in _AS_ASKED:
                cut_short = True
            elif code:
                failed[path] = code if code > 0 else BY_SIGNAL - code
                told_s = time.monotonic()
                _log.error("%s: %s", path, _failed(code, running))
        if stopping_s and time.monotonic() - stopping_s[0] > _STOP_S:
            for child in running.values():
                child.kill()
        if failed and running and time.monotonic() - told_s > _REMIND_S:
            told_s = time.monotonic()
            _log.error("%s: %s", ", ".join(map(str, failed)), _failed(None, running))
        time.sleep(_LOOK_S)
    if failed:
        error = OperatorError(f"{', '.join(map(str, failed))}: the connector ended with an error, shown above")
        error.exit_code = min(failed.values(), key=FINAL.__contains__)
        raise error
    return asked[0] if cut_short else None


def _failed(code: int | None, running: Mapping[Path, object]) -> str:
    with_code = "" if code is None else f" (exit code {code})" if code > 0 else f" (signal {-code})"
    others = f"; going on: {', '.join(map(str, running))}" if running else ""
    return f"the connector ended with an error{with_code}{others}"
