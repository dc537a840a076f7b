"""`cdc monitor` serves one page that shows connectors, stores, consumers and views, whether they run or not."""

from __future__ import annotations

import logging
import queue
import signal
from pathlib import Path
from typing import Any

import click

from cdc.cli.logs import LOG_FORMAT, errors_logged, log_to_stderr
from cdc.config.config import describes_apply, load_apply, load_connector
from cdc.config.metrics_config import MetricsConfig
from cdc.config.views import describes_views, load_views
from cdc.machine.stop_signals import HangUps
from cdc.model.errors import CdcError, ConfigError
from cdc.monitor.commands import PageCommands, read_token
from cdc.monitor.figures import MonitorFigures
from cdc.monitor.monitor import Monitor
from cdc.monitor.server import PageServer
from cdc.monitor.watched import Watched, WatchedConnector, WatchedJob, WatchedViews
from cdc.telemetry.json_log import Place

_AT_FULL_PACE = 20
"""Of more files servers and Kafka are asked less often, so that what is asked in all does not grow."""

log = logging.getLogger("cdc")


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path(path_type=Path))
@click.option("--listen", default="127.0.0.1:9188", show_default=True, metavar="HOST:PORT", help="Where the page is.")
@click.option("--allow-commands", is_flag=True, help="Offer pause, resume, reload and snapshot, to who has the token.")
@click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    help="The file that has the token of commands; without it the environment variable CDC_MONITOR_TOKEN has.",
)
@LOG_FORMAT
def monitor(
    files: tuple[Path, ...], *, listen: str, allow_commands: bool, token_file: Path | None, log_format: str
) -> None:
    """Serve one page of the connectors, apply jobs and view jobs of these files, until Ctrl-C.

    It asks Kafka, the sources' servers and the stores, so it shows those that do not run as well. It changes nothing,
    unless commands are allowed, and goes on at SIGHUP. A file that cannot be read, or is of what another one is of, is
    shown as that and hides no other. Beside the page there are /api/state (JSON), /metrics (consumer groups,
    verification) and /livez.
    """
    place = Place()
    with errors_logged(log_format, place), HangUps() as hang_ups:
        log_to_stderr(log_format, place)
        address = MetricsConfig(listen=listen).address
        if address is None:
            raise ConfigError(f"--listen: “{listen}” is no address", hint="--listen 127.0.0.1:9188")
        if token_file is not None and not allow_commands:
            raise click.UsageError("--token-file means nothing without --allow-commands")
        watched, refused = _watched(files)
        commands = PageCommands(watched, read_token(token_file)) if allow_commands else None
        watching = Monitor(watched, refused, commands=commands is not None)
        server = PageServer(address, watching, MonitorFigures(watched).registry, commands)
        with server, watching:
            log.info("the page is at http://%s%s", listen, " (commands are allowed)" if allow_commands else "")
            asked: queue.SimpleQueue[int] = queue.SimpleQueue()
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, lambda number, _: asked.put(number))
            hang_ups.heard_by(lambda: asked.put(signal.SIGHUP))
            while asked.get() == signal.SIGHUP:
                log.info(
                    "SIGHUP: the page goes on; it has read its files at its start: start it again to take changes up"
                )


def _watched(files: tuple[Path, ...]) -> tuple[list[Watched], list[dict[str, Any]]]:
    """Return what the files are of, and those that cannot be read. Raises ConfigError if none can."""
    watched: list[Watched] = []
    refused: list[dict[str, Any]] = []
    first: CdcError | None = None
    for file in files:
        try:
            one = _of(file, pace=max(1.0, len(files) / _AT_FULL_PACE))
        except CdcError as exc:
            first = first or exc
            refused.append(_refused(file, "bad", exc))
            continue
        there = next((of for of in watched if (of.kind, of.name) == (one.kind, one.name)), None)
        if there is None:
            watched.append(one)
        else:
            refused.append(_refused(file, "warn", _doubled(one, there)))
    if not watched and first is not None:
        raise first
    return watched, refused


def _doubled(one: Watched, there: Watched) -> CdcError:
    return ConfigError(
        f"two files are of {one.name}: {there.file}, by which it is shown, and {one.file}",
        hint=f"leave one of them out; another {one.name}, of other brokers, needs a page of its own (--listen)",
    )


def _refused(file: Path, level: str, why: CdcError) -> dict[str, Any]:
    log.warning("%s is not watched: %s", file, why.message)
    return {"file": str(file), "level": level, "message": why.message, "hint": why.hint}


def _of(file: Path, *, pace: float) -> Watched:
    if describes_views(file):
        return WatchedViews(file, load_views(file))
    if describes_apply(file):
        return WatchedJob(file, load_apply(file))
    return WatchedConnector(file, load_connector(file), pace=pace)
