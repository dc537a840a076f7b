"""How commands that run for long log: lines for people, or JSON for machines (`--log-format`)."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from typing import Final

import click

from cdc.cli.ending import INTERRUPTED, error_of, files_of
from cdc.cli.terminal import UtcFormatter, instant, named, tell
from cdc.machine.child_processes import AMONG_OTHERS, outward
from cdc.model.hints import pasteable
from cdc.telemetry.json_log import JsonFormatter, Place, line

TEXT: Final = "text"
JSON: Final = "json"

LOG_FORMAT: Final = click.option(
    "--log-format",
    type=click.Choice([TEXT, JSON]),
    default=TEXT,
    show_default=True,
    envvar="CDC_LOG_FORMAT",
    help="Lines for people, or one JSON object a line; also by the environment variable CDC_LOG_FORMAT.",
)


def log_to_stderr(log_format: str, place: Place, *, verbose: bool = False) -> logging.Handler:
    """Begin to log to stderr; return what writes the lines."""
    made = logging.StreamHandler(sys.stderr)
    form = JsonFormatter(place) if log_format == JSON else UtcFormatter(lambda: _called(place))
    made.setFormatter(_WithFiles(form))
    made.addFilter(_worth_a_line)
    if log_format == JSON:  # what Python would print in lines of its own
        logging.captureWarnings(capture=True)
        threading.excepthook = _of_a_thread
    logging.basicConfig(level=logging.DEBUG if verbose else logging.INFO, handlers=[made])
    for client in ("kafka", "cdc.kafka"):  # their errors are reported in one line of ours
        logging.getLogger(client).setLevel(logging.WARNING if verbose else logging.CRITICAL)
    return made


def _called(place: Place) -> str:
    """Return the connector's name if its lines are among those of others, else nothing."""
    called = os.environ.get(AMONG_OTHERS, "")
    return str(place.of().get("connector", called)) if called else ""


def _of_a_thread(of: threading.ExceptHookArgs) -> None:
    if of.exc_value is not None:
        logging.getLogger("cdc").error("a thread has ended: %s", of.exc_type.__name__, exc_info=of.exc_value)


def _worth_a_line(record: logging.LogRecord) -> bool:
    """Whether a line is ours, or a warning: what libraries do in between (an HTTP client names URLs) is nobody's."""
    return record.levelno >= logging.WARNING or record.name.partition(".")[0] == "cdc"


class _WithFiles(logging.Formatter):
    """Puts the command's files into the hints that a line has."""

    def __init__(self, inner: logging.Formatter) -> None:
        super().__init__()
        self._inner = inner
        context = click.get_current_context(silent=True)
        self._files = files_of(context) if context is not None else {}

    def format(self, record: logging.LogRecord) -> str:
        said = record.getMessage()
        shown = outward(pasteable(said, self._files))
        if shown != said:
            record = copy(record)
            record.msg, record.args = shown, ()
        return self._inner.format(record)


@contextmanager
def errors_logged(log_format: str, place: Place) -> Iterator[None]:
    """Write what ends a command in the log's format, and end with its exit code; as text `main` shows it."""
    try:
        yield
    except (click.exceptions.Exit, BrokenPipeError):
        raise
    except (Exception, KeyboardInterrupt) as exc:
        name = _called(place)
        if log_format != JSON and not name:
            raise
        code, level, message, more = _told(exc)
        if log_format == JSON:
            tell(line(time.time(), level, message, place, **more))
        else:
            said = [message, *(f"{what}: {more[what]}" for what in ("hint", "exception") if what in more)]
            for each in said:
                tell(f"{instant(time.time())} {level.upper():<7} {named(each, name)}")
        click.get_current_context().exit(code)


def _told(exc: BaseException) -> tuple[int, str, str, dict[str, str]]:
    """Return exit code, level, message and what else is to be said of what ends a command."""
    if isinstance(exc, (KeyboardInterrupt, click.Abort)):
        return INTERRUPTED, "warning", "interrupted", {}
    if isinstance(exc, click.ClickException):
        return exc.exit_code, "error", exc.format_message(), {"kind": type(exc).__name__}
    error = error_of(exc)
    if error is None:  # a bug, with what finds it
        frames = "".join(traceback.format_exception(exc))
        return 1, "error", f"this must not happen: {type(exc).__name__}", {
            "kind": type(exc).__name__, "exception": frames,
        }  # fmt: skip
    files = files_of(click.get_current_context())
    more = {"kind": type(error).__name__, **({} if error.hint is None else {"hint": pasteable(error.hint, files)})}
    return error.exit_code, "error", outward(error.message), more
