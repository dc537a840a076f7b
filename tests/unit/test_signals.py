"""What a signal asks for is heard whenever it comes, and holds nothing up."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from pathlib import Path

from cdc.machine.flag import Flag

HOME = Path(__file__).parents[2]
STORM = """
import signal, sys
from cdc.machine.flag import Flag
flag, heard = Flag(), []
def hear(*_):
    heard.append(1)
    flag.set()
signal.signal(signal.SIGALRM, hear)
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
while len(heard) < 500:
    flag.clear()
    flag.wait(0.0001)
    flag.is_set()
signal.setitimer(signal.ITIMER_REAL, 0)
flag.set()
print(flag.wait())
"""


def test_a_storm_of_signals_holds_nothing_up() -> None:
    """A handler that raises a `threading.Event` stops its own thread for ever, where that was within the event's lock.

    A connector that got 300 SIGHUPs stood still, and not even SIGTERM ended it.
    """
    done = subprocess.run([sys.executable, "-c", STORM], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


def test_what_handlers_raise_is_a_flag() -> None:
    """Wherever a signal is heard, or something says that a signal handler may call it."""
    heard = re.compile(r"signal\.signal\(|\bstopping\(|heard_by\(|from a signal handler")
    files = [file for part in ("cdc", "spark_apply") for file in (HOME / part).rglob("*.py")]
    texts = {str(file.relative_to(HOME)): file.read_text() for file in files}
    assert [name for name, text in texts.items() if heard.search(text) and "threading.Event()" in text] == []
    assert sum("Flag()" in text for text in texts.values()) > 4


def test_a_flag_is_an_event() -> None:
    """It wakes all who wait, at once; what is lowered is waited for again."""
    flag, woken = Flag(), list[bool]()
    waiting = [threading.Thread(target=lambda: woken.append(flag.wait(30))) for _ in range(3)]
    for thread in waiting:
        thread.start()
    flag.set()
    for thread in waiting:
        thread.join(30)
    assert woken == [True, True, True]
    assert flag.wait(0)
    flag.clear()
    begun_s = time.monotonic()
    assert not flag.wait(0.05)
    assert time.monotonic() - begun_s >= 0.05
    assert not flag.is_set()
