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


def handler(log_format: str, place: Place) -> logging.Handler:
    """Return what writes log lines to stderr."""
    made = logging.StreamHandler(sys.stderr)
    made.setFormatter(JsonFormatter(place) if log_format == JSON else UtcFormatter())
    return made


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
