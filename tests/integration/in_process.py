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
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.dict(os.environ, environment, clear=True),
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
    return subprocess.CompletedProcess(["cdc", *words], code, out.getvalue(), err.getvalue())


@contextlib.contextmanager
def _as_it_was() -> Iterator[None]:
    """What `cdc run` sets for a process of its own, taken back."""
    loggers = [logging.getLogger(name) for name in (None, "cdc", "kafka", "cdc.kafka")]
    levels = [logger.level for logger in loggers]
    root = loggers[0]
    handlers, root.handlers = root.handlers, []
    numbers = (signal.SIGINT, signal.SIGTERM)
    signals = [signal.getsignal(number) for number in numbers]
    threshold, frozen = gc.get_threshold(), gc.get_freeze_count()
    try:
        with mock.patch("cdc.cli.run.keep_freed"):
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
