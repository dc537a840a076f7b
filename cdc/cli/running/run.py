"""`cdc run` runs one connector in this process, or a process for each of more than one."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType

import click
import orjson

from cdc.capture.pipeline import Parts, Pipeline, Settings
from cdc.cli.ending import code_of_part
from cdc.cli.logs import JSON, LOG_FORMAT, TEXT, errors_logged, log_to_stderr
from cdc.cli.running.monitored import Followed, monitored_connector
from cdc.cli.running.run_progress import RunProgress
from cdc.cli.running.supervise import supervise
from cdc.cli.terminal import ALIVE_S, Alive, instant, seconds_of, tell
from cdc.config import registry
from cdc.config.config import ConnectorConfig
from cdc.config.file_connector import BEGIN_AGAIN, load_any
from cdc.config.reread import reread
from cdc.files.topicless_sink import UNSENT
from cdc.fleet.report import Reporter
from cdc.formats.wires import wires_of
from cdc.machine.memory import keep_freed
from cdc.machine.stop_signals import HangUps
from cdc.model.errors import CdcError, ConfigError, GapError, StartNeededError
from cdc.model.hints import without_topics
from cdc.model.interfaces import Source
from cdc.model.meter import Meter
from cdc.rules.capture_rules import CaptureRules
from cdc.rules.flat import Formats
from cdc.rules.routes import Routes
from cdc.telemetry.json_log import Place, line

_GC_OBJECTS = 50_000

_log = logging.getLogger("cdc")


class _Run(click.Command):
    """Lets `--wait` stand with a time behind it or without: what follows and is no time is a file."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words = list(args)
        for at, word in enumerate(words):
            if word == "--wait" and seconds_of("".join(words[at + 1 : at + 2])) is None:
                words[at] = f"--wait={_FOR_EVER}"
        return super().parse_args(ctx, words)


def _waiting(_context: click.Context, _parameter: click.Parameter, value: str | None) -> float | None:
    if value is None:
        return None
    found = float("inf") if value == _FOR_EVER else seconds_of(value)
    if found is None:
        raise click.BadParameter(f"“{value}” is no time; write 30s, 5m or 1h, or nothing for as long as it takes")
    return found


def _within(_context: click.Context, _parameter: click.Parameter, value: str | None) -> float | None:
    found = None if value is None else seconds_of(value)
    if value is not None and found is None:
        raise click.BadParameter(f"“{value}” is no time; write 20s or 1m")
    return found


def _take_over(within_s: float) -> str:
    return "--take-over" if within_s == float("inf") else f"--take-over-within={within_s:.3f}s"


_FOR_EVER = "forever"
_STARTS_AGAIN = (
    "nothing is lost: started again, as systemd and Kubernetes do by themselves, it goes by the file as it is"
)


@click.command(cls=_Run)
@click.argument("files", nargs=-1, required=True, metavar="CONNECTOR.yaml...", type=click.Path(path_type=Path))
@click.option("--until-caught-up", is_flag=True, help="End when all that was committed at the start is in Kafka.")
@click.option(
    "--wait",
    "wait_s",
    metavar="[TIME]",
    callback=_waiting,
    help="Wait at the first start for a database or Kafka that is not up yet: for 30s, 5m, 1h, or as long as it takes.",
)
@click.option(
    "--take-over",
    is_flag=True,
    help="Fence another copy of the connector at once; without it a copy stands by while another one follows.",
)
@click.option(
    "--take-over-within",
    "take_over_within_s",
    metavar="TIME",
    callback=_within,
    help="The same, but only for so long after the start (20s): for what starts copies by itself, as a fleet does.",
)
@click.option("-v", "--verbose", is_flag=True, help="Log each commit.")
@LOG_FORMAT
def run(
    files: tuple[Path, ...],
    *,
    until_caught_up: bool,
    wait_s: float | None,
    take_over: bool,
    take_over_within_s: float | None,
    verbose: bool,
    log_format: str,
) -> int:
    """Capture: snapshot, then follow the log until stopped.

    Of several files each connector is a process of its own: when one ends with an error, the others go on.
    """
    place = Place()
    with errors_logged(log_format, place), HangUps() as hang_ups:
        how = _How(until_caught_up, wait_s, float("inf") if take_over else take_over_within_s, verbose, log_format)
        reporter = Reporter(os.environ)
        try:
            number = _run(files, how, place, reporter, hang_ups)
        except CdcError as exc:
            reporter.error(exc)
            raise
    return code_of_part(number if until_caught_up else None)


@dataclass(frozen=True, slots=True)
class _How:
    """The options of a run."""

    until_caught_up: bool
    wait_s: float | None
    take_over_s: float | None
    """For how long after the start another copy is fenced at once; None: it is waited for."""
    verbose: bool
    log_format: str

    def flags(self) -> list[str]:
        """Write them for a process of one file."""
        wait_s = self.wait_s
        return [
            *(["--until-caught-up"] if self.until_caught_up else []),
            *([] if wait_s is None else [f"--wait={_FOR_EVER if wait_s == float('inf') else f'{wait_s:.3f}s'}"]),
            *([] if self.take_over_s is None else [_take_over(self.take_over_s)]),
            *(["--verbose"] if self.verbose else []),
            *([] if self.log_format == TEXT else [f"--log-format={self.log_format}"]),
        ]


def _run(files: tuple[Path, ...], how: _How, place: Place, reporter: Reporter, hang_ups: HangUps) -> int | None:
    """Return the number of the signal that ended it before it had caught up, if one did."""
    configs = [load_any(path) for path in files]
    for what, given in (
        ("their connector", [config.name for config in configs]),
        ("the address of their metrics", [config.metrics.listen for config in configs if config.metrics.listen]),
    ):
        doubled = {one for one in given if given.count(one) > 1}
        if doubled:
            raise click.UsageError(f"two files name {what} {', '.join(sorted(doubled))}")
    to = log_to_stderr(how.log_format, place, verbose=how.verbose)
    if len(files) > 1:
        return supervise(files, how.flags(), hang_ups)
    place.is_of(connector=configs[0].name)
    followed = Followed(configs[0])
    with monitored_connector(followed, os.environ) as meter:
        return _follow(files[0], followed, how, place=place, to=to, meter=reporter.over(meter), hang_ups=hang_ups)


def _parts(config: ConnectorConfig, how: _How, followed: Followed) -> Parts:
    formats = Formats.of_sink(config.sink)
    settings = Settings(
        connector=config.name,
        prefix=config.sink.prefix,
        chunk_rows=config.snapshot.chunk_rows,
        rows_per_second=config.snapshot.max_rows_per_second,
        logs=config.logs,
        config=config.binding,
        idle_position_s=config.sink.idle_position_s,
        wait_s=how.wait_s,
        by_pattern=lambda table: not config.names(table),
        take_over=how.take_over_s is not None,
        take_over_within_s=how.take_over_s or 0.0,
        rules=CaptureRules.of_source(config.source),
        outbox=config.source.outbox,
        formats=formats,
        routes=Routes.of_sink(config.sink, formats.text),
        wires=wires_of(config.sink),
        key_headers="key_change" in config.sink.headers,
        cloud_events="cloudevents" in config.sink.headers,
        before_of_topic=config.sink.before == "topic",
        unsent=None if config.into is None else orjson.dumps(UNSENT),
    )
    open_source = registry.source(config)

    def begin(without: Collection[str] = ()) -> Source:
        followed.config = config
        return registry.source(config.without(without))() if without else open_source()

    return Parts(settings, begin, registry.snapshotter(config), leaving_out=lambda tables: lambda: begin(tables))


def _pipeline(file: Path, followed: Followed, how: _How, shown: RunProgress, meter: Meter) -> Pipeline:
    config = followed.config
    parts = _parts(config, how, followed)

    def read_again() -> Parts | None:
        try:
            now = reread(file, config)
        except ConfigError as exc:
            if isinstance(exc, StartNeededError) and pipeline.has_only_stood_by:
                said = f"{exc.message}, and the copy that was at work may go by it"
                raise StartNeededError(said, hint=_STARTS_AGAIN) from exc
            hint = f"; {exc.hint}" if exc.hint else ""
            _log.error("the file is not taken up, the connector goes on as before: %s%s", exc.message, hint)
            return None
        if now == followed.config:
            _log.info("connector %s: its file says nothing new", config.name)
            return None
        return _parts(now, how, followed)

    def left_in_kafka(what: str) -> Callable[..., None]:
        """What another command reads of this one; a file has no place for it."""
        if config.into is not None:
            return lambda _: None
        return partial(registry.part(f"sinks.topics.records.positions:{what}"), config.sink, config.name)

    pipeline = Pipeline(
        parts.settings,
        open_source=parts.open_source,
        leaving_out=parts.leaving_out,
        open_snapshotter=parts.open_snapshotter,
        sink=registry.sink(config.sink, config.name, logs=config.logs)
        if config.into is None
        else registry.file_sink(config.into, config.name),
        observe=shown,
        failed=left_in_kafka("leave_error"),
        left_out=left_in_kafka("leave_left_out"),
        meter=meter,
        reread=read_again,
    )
    return pipeline


class _Stopping:
    """Ends the connector after the transaction in hand when it is asked to; at once when it is asked again."""

    def __init__(self, name: str, pipeline: Pipeline, shown: RunProgress, log_format: str, place: Place) -> None:
        self._name, self._pipeline, self._shown, self._log_format = name, pipeline, shown, log_format
        self._place = place
        self.number: int | None = None
        """Of the signal that asked first."""

    def hear(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._stop)

    def _stop(self, number: int, _frame: FrameType | None) -> None:
        if self.number is not None:  # the position makes that safe
            raise KeyboardInterrupt
        self._shown.stopping, self.number = True, number
        self._pipeline.stop()
        said, now = "stopping after the transaction in hand; once more to stop at once", time.time()
        if self._log_format == JSON:
            tell(line(now, "info", f"{self._name}: {said}", self._place))
        else:  # in a log among the lines of others
            tell(f"\r\x1b[K{said}" if sys.stderr.isatty() else f"{instant(now)} INFO    {self._name}: {said}")


def _follow(
    file: Path,
    followed: Followed,
    how: _How,
    *,
    place: Place,
    to: logging.Handler,
    meter: Meter,
    hang_ups: HangUps,
) -> int | None:
    keep_freed()
    name, into = followed.config.name, followed.config.into
    live = sys.stderr.isatty() and not how.verbose and how.log_format == TEXT
    shown = RunProgress(name, live=live, place=place)
    pipeline = _pipeline(file, followed, how, shown, meter)
    stopping = _Stopping(name, pipeline, shown, how.log_format, place)
    # the objects of a row live for a moment and are in no cycles: a collection at every 700 finds nothing
    gc.freeze()
    gc.set_threshold(_GC_OBJECTS, 10, 10)
    stopping.hear()
    hang_ups.heard_by(pipeline.reload)
    alive = Alive(shown.alive, every_s=ALIVE_S)
    to.addFilter(alive.heard)
    with alive:
        try:
            pipeline.run(until_caught_up=how.until_caught_up)
        except CdcError as exc:
            if into is not None:
                exc.hint = without_topics(exc.hint, BEGIN_AGAIN, of_gap=isinstance(exc, GapError))
            raise
    shown.done()
    return None if pipeline.caught_up else stopping.number
