"""The `cdc` command names its subcommands, loads the one that is called, and turns errors into exit codes."""

from __future__ import annotations

import difflib
import importlib
import io
import logging
import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise

import click

from cdc import __version__
from cdc.cli.ending import INTERRUPTED, end, error_of, files_given, show, write_nothing_more
from cdc.cli.examples import show_examples
from cdc.cli.terminal import ByLevel, tell

_COMMANDS = {  # the room and the file of each
    "check": ("inspecting.check", "Ask database and Kafka for all that a run needs; make nothing."),
    "run": ("running.run", "Capture: snapshot, then follow the log."),
    "fleet": ("running.fleet", "Run connectors on any number of machines that take over from one another."),
    "apply": ("running.apply", "Fold the topics into tables and search indexes (Spark)."),
    "view": ("running.view", "Keep views up to date: joins, aggregates, deadlines, as topics of their own (Spark)."),
    "rebuild": ("repairing.rebuild", "Build tables and search indexes again from the topics, and swap them in."),
    "replay": ("running.replay", "Run a copy of an apply job from a time on, beside the live one (Spark)."),
    "snapshot": ("repairing.snapshot", "Read tables again while their connector follows the log."),
    "pause": ("running.pause", "Hold a connector: its place in the log is kept, and nothing is read."),
    "resume": ("running.pause", "Let a held connector go on."),
    "reload": ("running.pause", "Have a connector read its file again while it runs."),
    "tail": ("inspecting.tail", "Print a connector's events, one JSON line each."),
    "explain": ("inspecting.explain", "Why derived stores hold what they hold of a key."),
    "status": ("inspecting.status", "Where a connector stands, or how fresh derived stores are."),
    "consumers": ("inspecting.consumers", "How consumer groups on a connector's topics do: lag, age, status."),
    "offsets": ("repairing.offsets", "Show, export and import where a connector or an apply job stands."),
    "audit": ("inspecting.audit", "Who has asked a connector for what, and at which position."),
    "monitor": ("inspecting.monitor", "Serve one page of connectors, stores, consumers and views, running or not."),
    "token": ("inspecting.token", "The position of what was just written, to wait for."),
    "wait": ("inspecting.wait", "Until derived stores hold what a token stands for."),
    "quarantine": ("repairing.quarantine", "Events that derived stores could not take, and taking them again."),
    "verify": ("inspecting.verify", "Compare derived stores with the source, row by row, while both are written."),
    "erase": ("repairing.erase", "Make all traces of a deleted row go, and say of each place whether they are gone."),
    "dev": ("trying.dev", "Servers for a laptop and for tests, without containers."),
    "demo": ("trying.demo", "See it work: a shop, its events, its derived stores."),
}


_FORMAT = "--log-format"


class _Lazy(click.Group):
    """Imports a command when it is called, so that `cdc --help` starts at once."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in _COMMANDS and not ctx.resilient_parsing:  # as it is for a shell's completion
            near = difflib.get_close_matches(args[0].lower(), _COMMANDS, n=1)
            ctx.fail(f"No such command '{args[0]}'." + (f" Did you mean '{near[0]}'?" if near else ""))
        return super().resolve_command(ctx, args)

    def list_commands(self, _ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, _ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module = importlib.import_module(f"cdc.cli.{_COMMANDS[cmd_name][0]}")
        command: click.Command = getattr(module, cmd_name)
        show_examples(command, cmd_name)
        return command

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in _COMMANDS.items()])


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="cdc")
def cdc() -> None:
    """Change data capture: a database's log to compacted Kafka topics, exactly once; topics to derived stores.

    Data goes to stdout, everything else to stderr. Exit codes: 0 done, 1 failed, 2 wrong use, 3 fenced, 4 a verdict.
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line: the entry point of the console script."""
    _write_any_name()
    for client in ("kafka", "cdc.kafka"):  # each of their errors ends as one of ours
        logging.getLogger(client).setLevel(logging.CRITICAL)
    if logging.lastResort is not None:  # what a command that keeps no log is told
        logging.lastResort.setFormatter(ByLevel())
    try:
        _run(arguments)
    except (click.Abort, KeyboardInterrupt):  # also while what is wrong is being said
        tell("interrupted")
        end(INTERRUPTED)


def _run(arguments: Sequence[str] | None) -> None:
    """Run a command, say what is wrong, and end."""
    try:
        code = cdc.main(arguments, standalone_mode=False)
    except click.ClickException as exc:
        _show(exc, sys.argv[1:] if arguments is None else arguments)
        end(exc.exit_code)
    except click.Abort:
        raise
    except BrokenPipeError:  # `cdc tail … | head`
        write_nothing_more()
        end(1)
    except Exception as exc:
        error = error_of(exc)
        if error is None:
            raise
        if isinstance(exc, OSError):
            write_nothing_more()
        show(error, files_given(cdc, sys.argv[1:] if arguments is None else arguments))
        end(error.exit_code)
    end(code if isinstance(code, int) else 0)


def _show(exc: click.ClickException, arguments: Sequence[str]) -> None:
    """Say what is wrong with a command line, in the format of the log that it asks for."""
    context = exc.ctx if isinstance(exc, click.UsageError) else None
    asked = [each.partition("=")[2] or after for each, after in pairwise([*arguments, ""]) if each.startswith(_FORMAT)]
    logs = context is not None and any(of.name == "log_format" for of in context.command.params)
    if logs and (asked[-1] if asked else os.environ.get("CDC_LOG_FORMAT")) == "json":
        json_log = importlib.import_module("cdc.telemetry.json_log")
        told = exc.format_message()
        tell(json_log.line(time.time(), "error", told, json_log.Place(), kind=type(exc).__name__))
        return
    with suppress(OSError):
        exc.show()


def _write_any_name() -> None:
    """Let stdout take names of every alphabet: files and pipes get UTF-8, as JSON is; a terminal what it can show.

    Where a standard stream was closed (`>&-`), nothing that is opened later must take its number.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    sys.stdin = sys.stdin or open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - it lives as we do
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - as above
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - as above
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding=None if sys.stdout.isatty() else "utf-8", errors="backslashreplace")
