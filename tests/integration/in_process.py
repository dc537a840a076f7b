"""The `cdc` command in this process: what it prints and how it ends are those of `python -m cdc`, without its start.

For tests that want what a command does. Where a signal, a kill, the process's memory or the command line itself is the
point, a process is started. What a run leaves behind in a process that ends with it is put back here: environment,
loggers, signal handlers, the garbage collector's settings.
"""

from __future__ import annotations

import contextlib
import gc
import io
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Final
from unittest import mock

from cdc.cli.main import main

_READ_ONCE: Final = ("CDC_PURE", "HOME", "LANG", "LC_ALL", "MALLOC_ARENA_MAX", "PYTHONPATH", "TMPDIR", "TZ")
"""As modules are imported, the interpreter starts, or a temporary file is first made."""


def cdc(words: Sequence[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """`cdc WORDS…` with this environment, as far as a command reads it: not what is read once in a process."""
    for name in _READ_ONCE:
        ours, theirs = os.environ.get(name, ""), environment.get(name, "")
        assert ours == theirs, f"{name} is {theirs!r} for a process of its own, and {ours!r} here"
    out, err = _Printed(), _Printed()
    with (
        environ(environment),
        mock.patch.object(sys, "argv", ["cdc", *words]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        _as_it_was(),
    ):
        try:
            main()
            code = 0
        except SystemExit as exc:
            code = exc.code if isinstance(exc.code, int) else int(exc.code is not None)
    return subprocess.CompletedProcess(["cdc", *words], code, out.text(), err.text())


class _Printed(io.TextIOWrapper):
    """As a process's stdout, with the `buffer` of its bytes."""

    def __init__(self) -> None:
        self._bytes = io.BytesIO()
        super().__init__(self._bytes, encoding="utf-8", write_through=True)

    def text(self) -> str:
        return self._bytes.getvalue().decode()


@contextlib.contextmanager
def environ(environment: Mapping[str, str]) -> Iterator[None]:
    """This environment inside the block. Only what differs is touched: C code of another thread may be reading it."""
    before = dict(os.environ)
    _become(environment)
    try:
        yield
    finally:
        _become(before)


def _become(environment: Mapping[str, str]) -> None:
    for name in os.environ.keys() - environment.keys():
        del os.environ[name]
    for name, value in environment.items():
        if os.environ.get(name) != value:
            os.environ[name] = value


@contextlib.contextmanager
def _as_it_was() -> Iterator[None]:
    """What `cdc run` sets for a process of its own, taken back."""
    loggers = [logging.getLogger(name) for name in (None, "cdc", "kafka", "cdc.kafka")]
    levels = [logger.level for logger in loggers]
    root = loggers[0]
    handlers, root.handlers = root.handlers, []
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    signals = [signal.getsignal(number) for number in numbers]
    threshold, frozen = gc.get_threshold(), gc.get_freeze_count()
    try:
        with mock.patch("cdc.cli.running.run.keep_freed"):
            yield
    finally:
        gc.set_threshold(*threshold)
        if not frozen:
            gc.unfreeze()
        for number, handler in zip(numbers, signals, strict=True):
            signal.signal(number, handler)
        root.handlers = handlers
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
