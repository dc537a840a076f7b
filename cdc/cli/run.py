"""`cdc run` runs one connector in this process, or a process for each of more than one."""

from __future__ import annotations

import gc
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType

import click
import orjson

from cdc.capture.memory import keep_freed
from cdc.capture.pipeline import Parts, Pipeline, Report, Settings
from cdc.capture.snapshot_progress import SnapshotProgress, duration, snapshot_progress, tables_being_read
from cdc.cli.logs import JSON, LOG_FORMAT, TEXT, errors_logged, log_to_stderr
from cdc.cli.monitored import monitored_connector
from cdc.cli.terminal import ALIVE_S, Alive, clear_progress, instant, seconds_of, show_progress
from cdc.config import registry
from cdc.config.child_processes import SAFE_PATH
from cdc.config.config import ConnectorConfig
from cdc.config.file_connector import load_any
from cdc.config.reread import reread
from cdc.files.topicless_sink import UNSENT
from cdc.fleet.report import Reporter
from cdc.formats.wires import RegisteredWires
from cdc.model.errors import CdcError, ConfigError, OperatorError
from cdc.model.meter import Meter
from cdc.model.state import Phase
from cdc.monitoring.json_log import Place
from cdc.rules.capture_rules import CaptureRules
from cdc.rules.flat import Formats

_STOP_S = 30.0
_GC_OBJECTS = 50_000


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
) -> None:
    """Capture: snapshot, then follow the log until stopped.

    Of several files each connector is a process of its own: when one ends with an error, the others go on.
    """
    place = Place()
    with errors_logged(log_format, place):
        how = _How(until_caught_up, wait_s, float("inf") if take_over else take_over_within_s, verbose, log_format)
        reporter = Reporter(os.environ)
        try:
            _run(files, how, place, reporter)
        except CdcError as exc:
            reporter.error(exc)
            raise


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


def _run(files: tuple[Path, ...], how: _How, place: Place, reporter: Reporter) -> None:
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
        _supervise(files, how.flags())
        return
    place.is_of(connector=configs[0].name)
    with monitored_connector(configs[0]) as meter:
        _follow(files[0], configs[0], how, place=place, to=to, meter=reporter.over(meter))


def _parts(config: ConnectorConfig, how: _How) -> Parts:
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
        take_over=how.take_over_s is not None,
        take_over_within_s=how.take_over_s or 0.0,
        rules=CaptureRules.of_source(config.source),
        outbox=config.source.outbox,
        formats=formats,
        wires=None
        if formats.plain
        else RegisteredWires(
            formats,
            registry=registry.part("sinks.client.schema_registry:open_registry")(config.sink),
            subjects=config.sink.registry.subjects if config.sink.registry is not None else "topic",
        ),
        key_headers="key_change" in config.sink.headers,
        unsent=None if config.into is None else orjson.dumps(UNSENT),
    )
    return Parts(settings, registry.source(config), registry.snapshotter(config))


def _follow(file: Path, config: ConnectorConfig, how: _How, *, place: Place, to: logging.Handler, meter: Meter) -> None:
    keep_freed()
    shown = _Shown(config.name, live=sys.stderr.isatty() and not how.verbose and how.log_format == TEXT, place=place)
    parts = _parts(config, how)

    def read_again() -> Parts | None:
        try:
            return _parts(reread(file, config), how)
        except ConfigError as exc:
            _log.error("the file is not taken up, the connector goes on as before: %s", exc.message)
            return None

    pipeline = Pipeline(
        parts.settings,
        open_source=parts.open_source,
        open_snapshotter=parts.open_snapshotter,
        sink=registry.sink(config.sink, config.name, logs=config.logs)
        if config.into is None
        else registry.file_sink(config.into, config.name),
        observe=shown,
        failed=partial(registry.part("sinks.topics.positions:leave_error"), config.sink, config.name)
        if config.into is None
        else lambda _: None,
        meter=meter,
        reread=read_again,
    )

    def stop(_number: int, _frame: FrameType | None) -> None:
        if shown.stopping:  # asked twice: at once; the position makes that safe
            raise KeyboardInterrupt
        shown.stopping = True
        said = "stopping after the transaction in hand; once more to stop at once"
        if how.log_format == JSON:
            shown.say(logging.INFO, said)
        else:
            click.echo(said, err=True)
        pipeline.stop()

    # the objects of a row live for a moment and are in no cycles: a collection at every 700 finds nothing
    gc.freeze()
    gc.set_threshold(_GC_OBJECTS, 10, 10)
    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    if not sys.stderr.isatty():  # where there is a terminal it says that this one is closed
        signal.signal(signal.SIGHUP, lambda *_: pipeline.reload())
    alive = Alive(shown.alive, every_s=ALIVE_S)
    to.addFilter(alive.heard)
    with alive:
        pipeline.run(until_caught_up=how.until_caught_up)
    shown.done()


class _Shown:
    """Shows a run to a person: a line when a phase begins and every 10 s; on a terminal, a status line too."""

    def __init__(self, name: str, *, live: bool, place: Place | None = None) -> None:
        self._name = name
        self._place = place or Place(connector=name)
        self._live = live
        self._phase: Phase | None = None
        self._at_s = self._drawn_s = time.monotonic()
        self._events = 0
        self._report: Report | None = None
        self._reported_s = time.monotonic()
        self.stopping = False
        self._log = logging.getLogger("cdc")

    def __call__(self, report: Report) -> None:
        now = self._reported_s = time.monotonic()
        self._report = report
        self._place.stands_at(report.state.offset)
        if report.phase is not self._phase:
            self._phase = report.phase
            self.say(logging.INFO, _PHASES[report.phase])
        elif now - self._at_s >= _SAID_EVERY_S and report.events > self._events:
            self.say(logging.INFO, self._progress(report, now))
        else:
            self._log.debug("%s: committed at %s, %d events", self._name, report.state.offset, report.events)
            self._draw(report, now)
            return
        self._at_s, self._events = now, report.events

    def alive(self) -> None:
        """Say that it lives, and what it does; called on another thread when nothing else was said for a minute."""
        report, silent_s = self._report, time.monotonic() - self._reported_s
        if report is None:
            self.say(logging.INFO, f"alive; no position committed for {duration(silent_s)}, since the start")
        elif silent_s > _SILENT_S:
            where = f"the last one is {report.state.offset}"
            self.say(logging.INFO, f"alive; no position committed for {duration(silent_s)}: {where}")
        else:
            state = report.state
            upto = f", all that was committed up to {instant(state.source_ms / 1000)} is in Kafka"
            known = upto if report.phase is Phase.STREAM and state.source_ms else ""
            if state.paused_ms:
                self.say(
                    logging.INFO, f"alive; paused since {instant(state.paused_ms / 1000)}, at {state.offset}{known}"
                )
                return
            self.say(logging.INFO, f"alive; {report.events:,} events so far, at {state.offset}{known}")

    def _progress(self, report: Report, now: float) -> str:
        rate = (report.events - self._events) / max(now - self._at_s, 0.001)
        reading = report.phase is Phase.SNAPSHOT and report.tables
        what = _reading(snapshot_progress(report.state.snapshot, _now_ms())) if reading else f"at {report.state.offset}"
        again = [
            at for at in tables_being_read(report.state, _now_ms()).items() if at[1].phase in ("reading", "deleting")
        ]
        for name, at in again:
            left = "" if at.eta_s is None else f", about {duration(at.eta_s)} left"
            what += f"; {at.phase} {name}: {at.rows:,} rows{left}"
        return f"{report.events:,} events, {rate:,.0f}/s, {what}"

    def _draw(self, report: Report, now: float) -> None:
        if self._live and now - self._drawn_s >= _DRAWN_EVERY_S:
            self._drawn_s = now
            line = f"{self._name}: {self._progress(report, now)}"[: shutil.get_terminal_size().columns - 1]
            show_progress(line)  # a line that wraps could not be drawn over

    def say(self, level: int, text: str) -> None:
        """Log a line about the connector."""
        if self._live:
            clear_progress()
        self._log.log(level, "%s: %s", self._name, text)

    def done(self) -> None:
        self.say(logging.INFO, f"{'stopped' if self.stopping else 'caught up'}, position committed")


def _reading(found: SnapshotProgress) -> str:
    """Write ``reading public.t 1,200 rows of about 4,000, 3 of 5 tables done, about 12 s left``."""
    part = [name for name, table in found.tables.items() if table.rows and not table.done]
    words = []
    for name in part[:_NAMED]:
        table = found.tables[name]
        of = "" if table.estimate is None else f" of about {max(table.estimate, table.rows):,}"
        words.append(f"reading {name} {table.rows:,} rows{of}")
    done = sum(table.done for table in found.tables.values())
    words.append(f"{done} of {len(found.tables)} tables done")
    if found.eta_s is not None:
        words.append(f"about {duration(found.eta_s)} left")
    return ", ".join(words)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


_NAMED = 3
_SILENT_S = 30.0
"""A connector with nothing to read commits its position every 10 s."""
_SAID_EVERY_S = 10.0
_DRAWN_EVERY_S = 0.25
_PHASES = {
    Phase.CREATING: "making publication and slot",
    Phase.SNAPSHOT: "reading the tables",
    Phase.STREAM: "following the log",
}


def _supervise(files: tuple[Path, ...], flags: list[str]) -> None:
    """Run one process for each file until all have ended; the error's exit code is that of the first that failed.

    One that fails ends no other: what is wrong with one database is no reason to stop following another.
    """
    children = [
        subprocess.Popen(
            [sys.executable, *SAFE_PATH, "-m", "cdc", "run", str(path), *flags],
            start_new_session=True,  # Ctrl-C in the terminal is for us alone: asked twice, a connector ends at once
        )
        for path in files
    ]
    stopping_s: list[float] = []

    def stop(_number: int, _frame: FrameType | None) -> None:
        stopping_s.append(time.monotonic())
        for child in children:
            child.terminate()

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)

    def hang_up(_number: int, _frame: FrameType | None) -> None:
        for child in children:
            child.send_signal(signal.SIGHUP)

    if not sys.stderr.isatty():
        signal.signal(signal.SIGHUP, hang_up)
    running = dict(zip(files, children, strict=True))
    failed: dict[Path, int] = {}
    told_s = time.monotonic()
    while running:
        for path, child in list(running.items()):
            code = child.poll()
            if code is not None:
                del running[path]
            if code:
                failed[path] = code if code > 0 else _BY_SIGNAL - code
                told_s = time.monotonic()
                _log.error("%s: %s", path, _failed(code, running))
        if stopping_s and time.monotonic() - stopping_s[0] > _STOP_S:
            for child in running.values():
                child.kill()
        if failed and running and time.monotonic() - told_s > _REMIND_S:
            told_s = time.monotonic()
            _log.error("%s: %s", ", ".join(map(str, failed)), _failed(None, running))
        time.sleep(_LOOK_S)
    if failed:
        error = OperatorError(f"{', '.join(map(str, failed))}: the connector ended with an error, shown above")
        error.exit_code = next(iter(failed.values()))
        raise error


def _failed(code: int | None, running: Mapping[Path, object]) -> str:
    with_code = "" if code is None else f" (exit code {code})" if code > 0 else f" (signal {-code})"
    others = f"; going on: {', '.join(map(str, running))}" if running else ""
    return f"the connector ended with an error{with_code}{others}"


_BY_SIGNAL = 128
"""A shell's exit code of what a signal ended is this and the signal's number."""
_LOOK_S = 0.2
_REMIND_S = 600.0
_log = logging.getLogger("cdc")
