"""Ctrl-C while the command is being loaded, and at any moment after."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

_COMMAND = """
from cdc.cli.start import main
print("begins", flush=True)
main(["check", "none.yaml"])
"""
_MOMENTS = 16
_BEGUN_S = 0.005


def test_ctrl_c_ends_it_without_a_traceback() -> None:
    """What comes before the command's first line is Python's own beginning, of some hundredths of a second."""
    began_s = time.monotonic()
    subprocess.run([sys.executable, "-c", _COMMAND], capture_output=True, check=False)
    whole_s = time.monotonic() - began_s
    for moment in range(_MOMENTS):
        with subprocess.Popen(
            [sys.executable, "-c", _COMMAND], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as started:
            assert started.stdout is not None
            started.stdout.readline()
            time.sleep(_BEGUN_S + whole_s * moment / _MOMENTS)
            started.send_signal(signal.SIGINT)
            _, told = started.communicate(timeout=60)
        assert "Traceback" not in told
        assert "Exception ignored" not in told
        assert started.returncode in (-signal.SIGINT, 130) or "none.yaml" in told, told


def test_who_is_not_to_hear_it_does_not() -> None:
    """As under `nohup`, or behind a shell's `&`."""
    with subprocess.Popen(
        ["sh", "-c", 'trap "" INT; exec "$@"', "sh", sys.executable, "-c", _COMMAND],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as started:  # fmt: skip
        assert started.stdout is not None
        started.stdout.readline()
        started.send_signal(signal.SIGINT)
        _, told = started.communicate(timeout=60)
    assert "none.yaml" in told
    assert started.returncode == 2
