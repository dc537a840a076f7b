"""Parsers that fail in each way that one can: a run over them must say so, or a run without findings says nothing."""

from __future__ import annotations

import ctypes
import time
from typing import Final

from tests.fuzz.targets import Target, same


def _raises(data: bytes) -> None:
    if len(data) > 2:
        {}[data[0]]


def _differs(data: bytes) -> None:
    same(data[:1], data[:2], "a control")


def _crashes(data: bytes) -> None:
    if len(data) > 2:
        ctypes.string_at(8, 1)


def _hangs(data: bytes) -> None:
    while len(data) > 2:
        time.sleep(0.1)


def _eats(data: bytes) -> None:
    if len(data) > 2:
        bytearray(1 << 36)


def _overruns(data: bytes) -> None:
    """One byte behind what was allocated: only AddressSanitizer sees it."""
    ctypes.string_at(ctypes.create_string_buffer(data, 64), 64 + (len(data) > 2))


def _refuses(data: bytes) -> None:
    if len(data) > 2:
        raise ValueError(len(data))


CONTROLS: Final = {
    "raises": Target(_raises),
    "differs": Target(_differs),
    "crashes": Target(_crashes),
    "hangs": Target(_hangs),
    "eats": Target(_eats),
    "overruns": Target(_overruns),
    "refuses": Target(_refuses, (ValueError,)),
}
EXPECTED: Final = {
    "raises": "KeyError",
    "differs": "DifferenceError",
    "crashes": "process ended",
    "hangs": "took longer",
    "eats": "MemoryError",
    "overruns": "AddressSanitizer",
    "refuses": "",
}
"""What the finding says; of the last there is none."""
SANITIZED: Final = {"overruns"}
"""Without a sanitizer there is nothing to be seen of them."""
