"""Ctrl-C while the command is being loaded, and at any moment after."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from cdc.cli.ending import INTERRUPTED
from cdc.cli.main import main

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


def test_ctrl_c_while_an_error_is_shown_ends_it_as_well(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Python would print the error with it, and a traceback of both."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("cdc.cli.main.show", interrupted)
    with pytest.raises(SystemExit) as ended:
        main(["check", "none.yaml"])
    assert (ended.value.code, capsys.readouterr().err) == (INTERRUPTED, "interrupted\n")


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


def test_settings_of_python_for_a_program_of_ones_own_do_not_count() -> None:
    """Without assertions the client of Kafka reaches no broker, and help has no words; warnings ended each command."""
    unfit = {"PYTHONOPTIMIZE": "2", "PYTHONWARNINGS": "default,error::UserWarning"}
    shown = "import sys; sys.argv[1:] = ['status', '--help']; from cdc.cli.start import main; "
    told = shown + "import atexit; atexit.register(lambda: print(sys.flags.optimize, sys.warnoptions)); main()"
    done = subprocess.run(
        [sys.executable, "-c", told], env={**os.environ, **unfit}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.splitlines()[-1], done.stderr) == (0, "0 []", "")
    assert "Phase, position" in done.stdout
