"""Shows progress on stderr, logs in UTC, says now and then that a process lives, and formats tables of text."""

from __future__ import annotations

import logging
import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Self

import click

from cdc.model.hints import pasteable

LINE: Final = "\n"
WARNING: Final = "warning: "
ALIVE_S: Final = 60.0
"""A process that has said nothing for so long says that it lives."""
_LOOK_S: Final = 1.0

JSON_OPTION: Final = click.option("--json", "as_json", is_flag=True, help="One JSON object; its keys are stable.")
_STEERING: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
"""What no terminal and no reader of lines is to be given by a name: a database lets who makes a table choose it."""
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)?")
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, None: 1.0}


def tell(text: str, *, nl: bool = True) -> None:
    """Write on stderr, if anybody reads it: work that runs for long does not end because its reader has gone.

    A pipe's reader is ended by the same Ctrl-C, a log's disk is full, a terminal is closed; and within a signal's
    handler the stream may be in the middle of another line.
    """
    with suppress(OSError, RuntimeError):
        click.echo(text, err=True, nl=nl)


def written_out(text: str, *, but: str = "") -> str:
    """Write out the characters that steer a terminal or begin a line, which names may have, as Python does."""
    return _STEERING.sub(lambda of: of[0] if of[0] in but else of[0].encode("unicode_escape").decode(), text)


def say(text: str, *, err: bool = False) -> None:
    """Write a line for people, which may have names."""
    click.echo(written_out(text), err=err)


def painted(text: str, *, fg: str | None = None, bold: bool = False, dim: bool = False) -> str:
    """Colour a text for a terminal that takes it, unless the user wants none (https://no-color.org)."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return text
    return click.style(text, fg=fg, bold=bold or None, dim=dim or None)


def show_progress(line: str) -> None:
    """Draw a status line on the terminal, over the one before. What does not fit is cut off: a wrapped line stays."""
    try:  # stdout may go elsewhere
        width = int(os.environ.get("COLUMNS") or 0) or os.get_terminal_size(sys.stderr.fileno()).columns
    except (OSError, ValueError):
        width = shutil.get_terminal_size().columns
    tell(f"\r\x1b[K{written_out(line)[: width - 1]}", nl=False)


def progress_shown(files: Mapping[str, Path], *, live: bool) -> Callable[[str], None]:
    """Return what shows lines of progress: a status line on a terminal (`live`). A warning stays, and has its own.

    `files` are the command's own, by what hints call them.
    """

    def show(line: str) -> None:
        if line.startswith(WARNING):
            if live:
                clear_progress()
            tell(written_out(pasteable(line, files)))
        elif live:
            show_progress(line)

    return show


def clear_progress() -> None:
    """Remove the status line."""
    tell("\r\x1b[K", nl=False)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Format rows of cells as lines with aligned columns; the first row may be the headings."""
    rows = [[written_out(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def place_of(offset: Mapping[str, object]) -> str:
    """Write a position for people: without `last`, the hash by which the next session knows its log again."""
    return " ".join(f"{what} {value}" for what, value in offset.items() if what != "last") or "none"


def seconds_of(text: str) -> float | None:
    """Read a time (``500ms``, ``5s``, ``2m``, ``1h``, seconds without a unit); None: it is none."""
    found = _DURATION.fullmatch(text)
    return None if found is None else float(found[1]) * _SECONDS[found[2]]


def instant(at_s: float) -> str:
    """Write a time since 1970 in UTC, with its zone; as it is, where somebody has written what no calendar has."""
    try:
        return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return f"{at_s:.3f} s since 1970"


def named(message: str, name: str) -> str:
    """Write a message as that of a connector, unless it begins so."""
    return message if not name or message.startswith(f"{name}: ") else f"{name}: {message}"


class ByLevel(logging.Formatter):
    """What a command that keeps no log is told: ``warning: …``, ``error: …``."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's
        return f"{record.levelname.lower()}: {written_out(record.message)}"


class UtcFormatter(logging.Formatter):
    """Begins each line with the time in UTC, with its zone: lines of machines in several zones can be compared.

    Where a process logs among others, what it is called goes before each message that does not begin with it.
    """

    def __init__(self, called: Callable[[], str] = lambda: "") -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s")
        self._called = called

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's
        record.message = written_out(named(record.message, self._called()))
        return super().formatMessage(record)

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: ARG002, N802 - logging's
        return instant(record.created)


class Alive:
    """Calls `say` on a thread of its own whenever nothing was said for a while. Use as a context manager."""

    def __init__(self, say: Callable[[], None], *, every_s: float = ALIVE_S) -> None:
        self._say = say
        self._every_s = every_s
        self._said_s = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cdc-alive", daemon=True)

    def heard(self, _record: logging.LogRecord) -> bool:
        """Note that something was said; may be a handler's filter, which lets everything pass."""
        self._said_s = time.monotonic()
        return True

    def _run(self) -> None:
        while not self._over.wait(min(_LOOK_S, self._every_s)):
            if time.monotonic() - self._said_s >= self._every_s:
                self._said_s = time.monotonic()
                self._say()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
