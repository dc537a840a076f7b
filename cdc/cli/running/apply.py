"""``cdc apply`` folds a connector's topics into derived stores."""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click

from cdc.cli.ending import code_of_part, files_of
from cdc.cli.logs import JSON, LOG_FORMAT, errors_logged
from cdc.cli.noted import note
from cdc.cli.terminal import (
    ALIVE_S,
    WARNING,
    Alive,
    aligned,
    clear_progress,
    instant,
    show_progress,
    tell,
    written_out,
)
from cdc.machine.flag import Flag
from cdc.machine.stop_signals import HangUps, stopping
from cdc.model.hints import APPLY, in_hints, pasteable
from cdc.telemetry.json_log import Place, line

_BATCH = "batch "
"""How lines of the job begin."""
_HUNG_UP = "SIGHUP: the job goes on; its file is read at its start alone, so start it again to take changes up"


@click.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--once", is_flag=True, help="Take all that is in the topics now, then end.")
@click.option("--plan", is_flag=True, help="Say what starting would do, and touch nothing.")
@click.option("--lose-history", is_flag=True, help="Go on where a history has missed versions that its log forgot.")
@click.option(
    "--reset-checkpoint", is_flag=True, help="Set the checkpoint aside and read the topics from their beginning."
)
@click.option("--json", "as_json", is_flag=True, help="Print the summary, or the plan, as one JSON object.")
@LOG_FORMAT
def apply(
    file: Path,
    *,
    once: bool,
    plan: bool,
    lose_history: bool,
    reset_checkpoint: bool,
    as_json: bool,
    log_format: str,
) -> int:
    """Keep the derived stores of FILE (apply.yaml) equal to the source's tables.

    Reads the connector's topics from Kafka and follows them until Ctrl-C. May be stopped, killed and started again at
    any time. SIGHUP changes nothing: FILE is read at the start. With --plan, exit code 1 says that it would not
    start, or set a table aside.
    """
    place = Place()
    stop = Flag()
    with (
        nullcontext() if plan else errors_logged(log_format, place),
        nullcontext() if plan else stopping(stop),  # before anything slow is imported
        HangUps() as hang_ups,
    ):
        from cdc.cli.running.monitored import monitored_job  # noqa: PLC0415 - the command line must start fast
        from cdc.config.config import load_apply  # noqa: PLC0415 - the same

        if plan and reset_checkpoint:
            msg = "--plan touches nothing"
            raise click.UsageError(f"{msg}: leave out --reset-checkpoint")
        config = load_apply(file)
        place.is_of(apply=config.name, connector=config.source.topic_prefix)
        # by name: cdc imports nothing that imports cdc
        if plan:
            made = importlib.import_module("spark_apply.job.plan").run_plan(config).as_json()
            found = in_hints(made, {APPLY: file})
            click.echo(json.dumps(found) if as_json else "\n".join(map(written_out, _plan_lines(found))))
            return int(not found["starts"])
        if reset_checkpoint:
            note(config, "checkpoint reset", {}, "asked for as the job starts")
        as_lines = log_format == JSON
        told = Told(config.name, live=sys.stderr.isatty() and not as_lines, place=place if as_lines else None)
        hang_ups.heard_by(told.hung_up)
        with Alive(told.say, every_s=ALIVE_S), monitored_job(config, place, told) as meter:
            run_apply = importlib.import_module("spark_apply.job.job").run_apply
            how = {"once": once, "lose_history": lose_history, "reset_checkpoint": reset_checkpoint, "meter": meter}
            run = run_apply(config, **how, progress=told, stop=stop)
        told.done()
    summary = run.as_json()
    click.echo(json.dumps(summary) if as_json else table_of_counts(summary))
    return int(bool(summary["aside"])) or code_of_part(stop.signal if once else None, took_all=run.took_all)


class Told:
    """Shows what the job tells. On a terminal it is a status line; warnings stay.

    Off a terminal everything but batches is a line of its own, with the time in UTC; of batches the last one is shown
    once a minute.
    """

    def __init__(self, name: str, *, live: bool = False, place: Place | None = None) -> None:
        """`place`: lines are JSON, and have it."""
        self._name = name
        context = click.get_current_context(silent=True)
        self._files = files_of(context) if context is not None else {}
        self._place = place
        self._live = live
        self._last, self._at_s = "starting", time.time()
        self._shown = False

    def __call__(self, text: str) -> None:
        text = pasteable(text, self._files)
        self._last, self._at_s, self._shown = text, time.time(), False
        warning = text.startswith(WARNING)
        if self._live:
            if warning:
                clear_progress()
                tell(written_out(text))
            else:
                show_progress(text)
        elif warning or not text.startswith(_BATCH):
            self._write(text.removeprefix(WARNING), "WARNING" if warning else "INFO")
            self._shown = True

    def say(self) -> None:
        """Write what was told last: since nothing else was said for a minute."""
        if self._live:
            return
        told = self._last
        if self._shown:
            told = f"running; last told at {instant(self._at_s)}: {told}"
        self._write(told, "INFO")
        self._shown = True

    def hung_up(self) -> None:
        """Say what SIGHUP does; from a signal handler, which may have come amid another line."""
        threading.Thread(target=self._write, args=(_HUNG_UP, "INFO"), daemon=True).start()

    def done(self) -> None:
        """Remove the status line."""
        if self._live:
            clear_progress()

    def _write(self, text: str, level: str) -> None:
        if self._place is not None:
            tell(line(time.time(), level, text, self._place))
        else:
            tell(f"{instant(time.time())} {level:<7} {self._name}: {written_out(text)}")


def _plan_lines(plan: dict[str, Any]) -> Iterator[str]:
    for copy in plan["copies"]:
        does = [] if copy["action"] == "make" else [copy["action"]]  # which its step says
        yield f"{copy['table']} in {copy['store']}: {': '.join(filter(None, [*does, ', '.join(copy['steps'])]))}"
        yield from (f"  {line}" for line in (copy["why"], copy["hint"]) if line)
        if copy["mode"] == "history" and copy["rebuild"]:
            yield f"  a rebuild would lose {copy['rebuild']['what']}"
    for topic in plan["topics"]:
        begin = "at most" if topic["begin"] == "unknown" else f"from the {topic['begin']}:"
        yield f"{topic['topic']}: {begin} {topic['offsets']:,} offsets to read"
    for problem in plan["problems"]:
        yield from (problem["what"], f"  {problem['hint']}")
    if plan["checkpoint"]:
        yield f"checkpoint: {plan['checkpoint']}"
    if plan["starts"]:
        yield "it would start"
    elif plan["problems"] or all(copy["action"] == "refused" for copy in plan["copies"]):
        yield "it would not start"
    else:
        yield "it would start, and set aside what is refused"


_COUNTS = ("written", "deleted", "stale", "duplicate", "quarantined")


def table_of_counts(summary: dict[str, Any]) -> str:
    """Format what a job has done, for people."""
    rows: list[tuple[str, ...]] = [("table", "store", "events", "rows", *_COUNTS)]
    for table, stores in summary["tables"].items():
        for store, count in stores.items():
            cells = (count[name] for name in ("events", "keys", *_COUNTS))
            rows.append((table, store, *("-" if cell is None else str(cell) for cell in cells)))
    lines = aligned(rows)
    lines.append(f"batches: {summary['batches']}, in {summary['seconds']:.1f} s")
    for table, stores in summary["aside"].items():
        lines += [written_out(f"{table} in {store} is set aside: {reason}") for store, reason in stores.items()]
    if summary["behind"]:
        lines.append("a transaction was still open in the topics and is not included: run again")
    return "\n".join(lines)
