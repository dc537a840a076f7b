"""``cdc apply``: fold a connector's topics into derived stores."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from cdc.cli.terminal import ALIVE_S, Alive, aligned, clear_progress, instant, show_progress
from cdc.model.errors import ConfigError


@click.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--once", is_flag=True, help="Take all that is in the topics now, then end.")
@click.option("--plan", is_flag=True, help="Say what starting would do, and touch nothing.")
@click.option("--lose-history", is_flag=True, help="Go on where a history has missed versions that its log forgot.")
@click.option(
    "--reset-checkpoint", is_flag=True, help="Set the checkpoint aside and read the topics from their beginning."
)
@click.option("--json", "as_json", is_flag=True, help="Print the summary, or the plan, as one JSON object.")
def apply(file: Path, *, once: bool, plan: bool, lose_history: bool, reset_checkpoint: bool, as_json: bool) -> int:
    """Keep the derived stores of FILE (apply.yaml) equal to the source's tables.

    Reads the connector's topics from Kafka and follows them until Ctrl-C. May be stopped, killed and started again at
    any time. With --plan, exit code 1 says that it would not start.
    """
    from cdc.config.config import load_apply  # noqa: PLC0415 - the command line must start fast

    if plan and reset_checkpoint:
        msg = "--plan touches nothing"
        raise click.UsageError(f"{msg}: leave out --reset-checkpoint")
    config = load_apply(file)
    if importlib.util.find_spec("pyspark") is None:
        msg = "pyspark is not installed; the apply job runs on it"
        raise ConfigError(msg, hint="pip install 'cdc-toolkit[spark]'")
    if plan:
        found = importlib.import_module("spark_apply.job.plan").run_plan(config).as_json()
        click.echo(json.dumps(found) if as_json else "\n".join(_plan_lines(found)))
        return int(not found["starts"])
    # by name: cdc imports nothing that imports cdc
    run_apply = functools.partial(
        importlib.import_module("spark_apply.job.job").run_apply,
        config,
        once=once,
        lose_history=lose_history,
        reset_checkpoint=reset_checkpoint,
    )

    on_terminal = sys.stderr.isatty()
    if on_terminal:
        summary = run_apply(progress=show_progress).as_json()
    else:
        told = _Told(config.name)
        with Alive(told.say, every_s=ALIVE_S):
            summary = run_apply(progress=told).as_json()
    if on_terminal:
        clear_progress()
    click.echo(json.dumps(summary) if as_json else _table(summary))
    return 0


class _Told:
    """Keeps what the job has told last, and says it off a terminal now and then: nobody sees a status line there."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._last, self._at_s = "starting", time.time()

    def __call__(self, line: str) -> None:
        self._last, self._at_s = line, time.time()

    def say(self) -> None:
        """Write a line with the time in UTC."""
        told = f"running; last told at {instant(self._at_s)}: {self._last}"
        click.echo(f"{instant(time.time())} INFO    {self._name}: {told}", err=True)


def _plan_lines(plan: dict[str, Any]) -> Iterator[str]:
    for copy in plan["copies"]:
        steps = f": {', '.join(copy['steps'])}" if copy["steps"] else ""
        yield f"{copy['table']} in {copy['store']}: {copy['action']}{steps}"
        yield from (f"  {line}" for line in (copy["why"], copy["hint"]) if line)
        if copy["mode"] == "history":
            yield f"  a rebuild would lose {copy['rebuild']['what']}"
    for topic in plan["topics"]:
        begin = "at most" if topic["begin"] == "unknown" else f"from the {topic['begin']}:"
        yield f"{topic['topic']}: {begin} {topic['offsets']:,} offsets to read"
    for problem in plan["problems"]:
        yield from (problem["what"], f"  {problem['hint']}")
    if plan["checkpoint"]:
        yield f"checkpoint: {plan['checkpoint']}"
    yield "it would start" if plan["starts"] else "it would not start"


_COUNTS = ("written", "deleted", "stale", "duplicate", "quarantined")


def _table(summary: dict[str, Any]) -> str:
    rows: list[tuple[str, ...]] = [("table", "store", "events", "rows", *_COUNTS)]
    for table, stores in summary["tables"].items():
        for store, count in stores.items():
            cells = (count[name] for name in ("events", "keys", *_COUNTS))
            rows.append((table, store, *("-" if cell is None else str(cell) for cell in cells)))
    lines = aligned(rows)
    lines.append(f"{summary['batches']} batches in {summary['seconds']:.1f} s")
    if summary["behind"]:
        lines.append("a transaction was still open in the topics and is not included: run again")
    return "\n".join(lines)
