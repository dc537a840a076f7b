"""How commands that run for long log: lines for people, or JSON for machines (`--log-format`)."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import click

from cdc.cli.terminal import UtcFormatter
from cdc.model.errors import CdcError
from cdc.monitoring.json_log import JsonFormatter, Place, line

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
    made.setFormatter(JsonFormatter(place) if log_format == JSON else UtcFormatter())
    made.addFilter(_worth_a_line)
    logging.basicConfig(level=logging.DEBUG if verbose else logging.INFO, handlers=[made])
    for client in ("kafka", "cdc.kafka"):  # their errors are reported in one line of ours
        logging.getLogger(client).setLevel(logging.WARNING if verbose else logging.CRITICAL)
    return made


def _worth_a_line(record: logging.LogRecord) -> bool:
    """Whether a line is ours, or a warning: what libraries do in between (an HTTP client names URLs) is nobody's."""
    return record.levelno >= logging.WARNING or record.name.partition(".")[0] == "cdc"


@contextmanager
def errors_logged(log_format: str, place: Place) -> Iterator[None]:
    """Write the error that ends a command in the log's format, and end with its exit code; as text `main` shows it."""
    try:
        yield
    except CdcError as exc:
        if log_format != JSON:
            raise
        more = {"kind": type(exc).__name__, **({} if exc.hint is None else {"hint": exc.hint})}
        click.echo(line(time.time(), "error", exc.message, place, **more), err=True)
        click.get_current_context().exit(exc.exit_code)
