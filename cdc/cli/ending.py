"""How a command ends: with which exit code, and with which error of ours for what Python, click and Spark raise."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NoReturn

import click

from cdc.cli.terminal import LINE, painted, tell, written_out
from cdc.machine.child_processes import is_private, outward
from cdc.model.errors import CdcError, OperatorError, RetryableError
from cdc.model.hints import of_fleet, pasteable

BY_SIGNAL: Final = 128
"""A shell's exit code of what a signal has ended is this and the signal's number."""
INTERRUPTED: Final = BY_SIGNAL + signal.SIGINT
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_WHICH_FLEET: Final = ("name", "servers", "file")
"""The parameters of a fleet's commands that say which fleet."""
_CACHE: Final = "/.cache/cdc-toolkit"
_OUT_OF_REACH: Final = (
    errno.ENOENT, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG,
)  # fmt: skip


def error_of(exc: BaseException) -> CdcError | None:
    """Return the error of ours that an exception stands for; None for one that is a bug, or no error."""
    if isinstance(exc, CdcError):
        return exc
    if isinstance(exc, ModuleNotFoundError):
        from cdc.config.registry import not_installed  # noqa: PLC0415 - the command line must start fast

        return not_installed(exc)
    return _of_a_file(exc) if isinstance(exc, OSError) else _of_spark(exc)


def _of_a_file(exc: OSError) -> CdcError | None:
    """Return an error of ours for a disk that is full, or a file or folder that is out of reach; None for any other."""
    if exc.errno in _FULL:
        where = f"file {exc.filename}" if exc.filename else "stdout, or a temporary file,"
        return OperatorError(f"{where} cannot be written: {exc.strerror}", hint="df -h shows which disk is full")
    if not exc.filename and exc.errno == errno.ENOENT and "temporary" in str(exc.strerror):  # `tempfile` has found none
        from cdc.machine.temporary_files import no_room  # noqa: PLC0415 - the command line must start fast

        return no_room("what is only for a while", exc)
    if exc.filename and exc.errno in _OUT_OF_REACH:
        return OperatorError(
            f"{exc.filename} cannot be made, read or written: {exc.strerror}",
            hint="it must be within reach of this user: ls -ld of the folder that it is in"
            + ("; CDC_CACHE=/another/folder for what is fetched" if _CACHE in str(exc.filename) else ""),
        )
    return None


def _of_spark(exc: BaseException) -> CdcError | None:
    """Return what Spark raised where a command reads stores or checkpoints as an error of ours; None for any other."""
    if type(exc).__module__.partition(".")[0] not in ("pyspark", "py4j"):
        return None
    from cdc.config import registry  # noqa: PLC0415 - the command line must start fast

    error: CdcError | None = registry.part("spark_apply.spark.remedies:of_spark")(exc, "a store or a checkpoint")
    return error


def code_of_part(number: int | None, *, took_all: bool = False) -> int:
    """Return the exit code of a command that was to take all that is there, by the signal that came meanwhile.

    What comes after it in a script relies on what it was to take, and on nothing that it does after that.
    """
    return 0 if number is None or took_all else BY_SIGNAL + number


def files_of(context: click.Context) -> dict[str, Path | str]:
    """Return the files that a command was given, by what its usage calls them; several of a kind are none.

    Nor is one that nobody finds later. Of a fleet's commands there are the options, too, that say which fleet.
    """
    if is_private():
        return {}
    found: dict[str, Path | str] = {}
    for of in context.command.params:
        given = context.params.get(of.name or "")
        one = given[0] if isinstance(given, tuple) and len(given) == 1 else given
        if isinstance(one, Path) and isinstance(of.type, click.Path):
            called = (of.metavar or "").removesuffix("...")
            if called in ("", "FILE"):
                called = _called(one)
            if called.endswith((".yaml", ".json")):
                found[called] = one
    return found | _fleet_of(context)


def _fleet_of(context: click.Context) -> dict[str, str]:
    """Return what stands in place of a fleet's commands; what the environment says need not be said again."""
    said = [
        word
        for of in context.command.params
        if of.name in _WHICH_FLEET and context.get_parameter_source(of.name) is click.core.ParameterSource.COMMANDLINE
        for word in (of.opts[0], str(context.params[of.name]))
    ]
    return of_fleet(said) if context.parent is not None and context.parent.command.name == "fleet" else {}


def _called(file: Path) -> str:
    """Return what hints call a file, by what it is of; nothing where that cannot be read."""
    from cdc.config.config import describes_apply  # noqa: PLC0415 - the command line must start fast
    from cdc.config.views import describes_views  # noqa: PLC0415 - the same

    try:
        return "VIEWS.yaml" if describes_views(file) else "APPLY.yaml" if describes_apply(file) else "CONNECTOR.yaml"
    except CdcError:
        return ""


def files_given(command: click.Command, words: Sequence[str]) -> dict[str, Path | str]:
    """Return the same of a command line that has ended; nothing of one that cannot be read."""
    rest = list(words)
    try:
        parent = None
        while isinstance(command, click.Group):
            parent = click.Context(command, parent, resilient_parsing=True)
            name, below, rest = command.resolve_command(parent, rest)
            if name is None or below is None:
                return {}
            command = below
        return files_of(command.make_context(None, rest, parent, resilient_parsing=True))
    except (click.ClickException, IndexError):
        return {}


def show(exc: CdcError, files: Mapping[str, Path | str]) -> None:
    """Print an error for a person, on stderr; `files` take the places of what hints call them."""
    tell(painted("error: ", fg="red", bold=True) + written_out(outward(exc.message), but=LINE))
    hint = exc.hint or (
        "nothing is lost: start it again, it goes on where it was" if isinstance(exc, RetryableError) else None
    )
    if hint:
        tell(painted("hint:  ", fg="cyan") + written_out(pasteable(hint, files), but=LINE))


def end(code: int) -> NoReturn:
    """End with this code, whatever becomes of what stderr has not taken: a supervisor goes by the code."""
    try:
        sys.stderr.flush()
    except OSError:  # its reader is gone, its disk is full: the interpreter would end with a code of its own
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
    sys.exit(code)


def write_nothing_more() -> None:
    """Keep what is left in stdout's buffer from failing once more at the interpreter's end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
