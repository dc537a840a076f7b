"""Memory that a connector has freed is there for what it allocates next."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

_PAGES_CLEARED = """
import resource
from cdc.machine.memory import keep_freed

def cleared():
    begun = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        [bytearray(100_000) for _ in range(100)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - begun

before = cleared()
keep_freed()
cleared()
print(before, cleared())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other libraries have no such setting")
def test_what_was_freed_is_not_cleared_anew() -> None:
    """As batches come and go; by default the kernel clears each page each time."""
    said = subprocess.run([sys.executable, "-c", _PAGES_CLEARED], capture_output=True, text=True, check=True).stdout
    before, after = map(int, said.split())
    assert after < before / 10
