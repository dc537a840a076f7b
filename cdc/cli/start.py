"""The `cdc` command's first lines: Ctrl-C ends it without a traceback, also before its parts are loaded."""

from __future__ import annotations

import os
import signal
import sys

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
    if arguments is None:
        _as_python_is()
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


def _as_python_is() -> None:
    """Start the process again where the environment has Python leave out assertions, or die of warnings.

    Both are settings for a program of one's own. Libraries that we stand on do not work so: a client of Kafka without
    its assertions reaches no broker.
    """
    actions = [option.partition(":")[0] for option in os.environ.get("PYTHONWARNINGS", "").split(",")]
    unfit = {
        "PYTHONOPTIMIZE": bool(sys.flags.optimize),
        "PYTHONWARNINGS": any(action and "error".startswith(action) for action in actions),
    }
    taken = [name for name, wrong in unfit.items() if wrong and os.environ.pop(name, None) is not None]
    if taken and sys.executable:
        os.execv(sys.executable, sys.orig_argv)  # noqa: S606 - ourselves, as we were called


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
