"""The `cdc` command's first lines: Ctrl-C ends it without a traceback, also before its parts are loaded."""

from __future__ import annotations

import signal

TYPE_CHECKING = False  # that of `typing` takes as long to load as Python to start
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

_LOADING = "<frozen importlib."


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line: the entry point of the console script, for a process of its own.

    While there is nothing to put in order, SIGINT does what it does to any program: it ends this one at once and
    without a word. Where it is ignored (`nohup`, a shell's background job), it stays so.
    """
    heard = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if heard:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from cdc.cli.main import main as run  # noqa: PLC0415 - after the signal

    if heard:
        signal.signal(signal.SIGINT, _interrupt)
    try:
        run(arguments)
    finally:
        if heard:
            signal.signal(signal.SIGINT, signal.SIG_DFL)


def _interrupt(_number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt; within an import, end the process.

    An import can lose the exception: what raises while Python frees a module's lock is printed and forgotten, and a
    compiled module makes an ImportError of it. Commands import before they begin.
    """
    while frame is not None:
        if frame.f_code.co_filename.startswith(_LOADING):
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            signal.raise_signal(signal.SIGINT)
        frame = frame.f_back
    raise KeyboardInterrupt
