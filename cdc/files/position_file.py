"""The file that says how far a program has come: as a connector's position topic, for a process without Kafka.

It is written whole into a file beside it, which is forced to the disk and then takes its place, so that a reader finds
the one or the other at any time. A lock beside it keeps a second process away.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import Final, Self
from weakref import WeakValueDictionary

import orjson

from cdc.model.errors import OperatorError
from cdc.model.state import State, checksum_of

_FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class Contents:
    """All that is to be known to go on."""

    state: State | None = None
    schemas: Mapping[bytes, bytes] = field(default_factory=dict)
    """The descriptions of the tables, as the schema topic would have them."""
    commands: Mapping[bytes, bytes] = field(default_factory=dict)
    """What the connector has asked of itself, as the signal topic would have it."""
    through: str = ""
    """The position of the last transaction behind `state` that is done too; empty: none is."""
    length: int = 0
    """Of a file that events are written to: how many of its bytes belong to `state`."""

    def to_bytes(self) -> bytes:
        body = {
            "format": _FORMAT,
            "state": None if self.state is None else self.state.to_bytes().decode(),
            "schemas": {key.decode(): value.decode() for key, value in self.schemas.items()},
            "commands": {key.decode(): value.decode() for key, value in self.commands.items()},
            "through": self.through,
            "length": self.length,
        }
        return orjson.dumps({**body, "checksum": checksum_of(body)}, option=orjson.OPT_INDENT_2)

    @classmethod
    def from_bytes(cls, text: bytes, *, where: str) -> Self:
        """Read what `to_bytes` has written. Raises OperatorError for anything else."""
        try:
            body = orjson.loads(text)
            checksum = body.pop("checksum")
            if body["format"] > _FORMAT:
                raise OperatorError(
                    f"{where} was written by a newer release (format {body['format']})",
                    hint="run that release or a later one",
                )
            if checksum != checksum_of(body):
                raise ValueError("checksum")
            state = body["state"]
            return cls(
                None if state is None else State.from_bytes(state.encode(), where=where),
                {key.encode(): value.encode() for key, value in body["schemas"].items()},
                {key.encode(): value.encode() for key, value in body["commands"].items()},
                body["through"],
                body["length"],
            )
        except (ValueError, KeyError, TypeError, AttributeError) as exc:
            raise OperatorError(
                f"{where} is no position file, or it is damaged; going on from anywhere else would lose or double "
                "changes",
                hint="put back the file as it was; or name another file, which begins with a new snapshot",
            ) from exc


class PositionFile:
    """Owns the file, while it is open."""

    def __init__(self, path: Path) -> None:
        """Lock it. Raises OperatorError if somebody else has it, or its folder cannot be written to.

        One of this process whose following has ended lets go of it: a transaction that is held may have kept it.
        """
        self.path = path
        self.has_ended = False
        """Nothing follows with it any more."""
        self._lock: int | None = None
        self._process = os.getpid()
        self._writing = threading.Lock()
        before = _OPEN.get(path.absolute())
        if before is not None and before.has_ended:
            before.close()
        try:
            self._lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as exc:
            raise _unwritable(path, exc) from exc
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as exc:
            self.close()
            raise OperatorError(
                f"position file {path} is in use: another program follows with it",
                hint="end that one first (Follow.close() does), or give this one a file and a name of its own",
            ) from exc
        _OPEN[path.absolute()] = self

    def read(self) -> Contents:
        """Return what it says; nothing of a file that is not there."""
        try:
            text = self.path.read_bytes()
        except FileNotFoundError:
            return Contents()
        except OSError as exc:
            raise _unwritable(self.path, exc) from exc
        return Contents.from_bytes(text, where=f"position file {self.path}")

    def write(self, contents: Contents) -> None:
        """Replace what it says. When this returns, it is on the disk."""
        with self._writing:
            self._write(contents.to_bytes())

    def _write(self, text: bytes) -> None:
        if os.getpid() != self._process:
            raise OperatorError(
                f"position file {self.path} is another process's, of which this one is a copy",
                hint="call done() in the process that follows",
            )
        if self._lock is None:
            raise OperatorError(
                f"position file {self.path} is closed: what is done cannot be noted any more",
                hint="call done() before close(), and before the file is followed with again",
            )
        beside = f"{self.path}.new"
        try:
            with open(beside, "wb") as file:  # noqa: PTH123 - its number is needed
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(beside, self.path)  # noqa: PTH105 - as above
            folder = os.open(self.path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as exc:
            raise _unwritable(self.path, exc) from exc

    def close(self) -> None:
        """Let go of it; safe to call twice. A copy of the process that has it keeps it from nobody."""
        is_ours = os.getpid() == self._process
        with self._writing if is_ours else nullcontext():  # a copy of the thread that writes is not there to end it
            lock, self._lock = self._lock, None
        if lock is not None:
            if is_ours:  # copies have the lock, too, as long as they have its file
                fcntl.flock(lock, fcntl.LOCK_UN)
            os.close(lock)

    def __del__(self) -> None:
        self.close()


_OPEN: Final[WeakValueDictionary[Path, PositionFile]] = WeakValueDictionary()
"""Those of this process."""


def _unwritable(path: Path, exc: OSError) -> OperatorError:
    quoted_folder = quote(str(path.parent))
    return OperatorError(
        f"position file {path} cannot be read or written: {exc.strerror or type(exc).__name__}",
        hint=f"this user must be able to write there: ls -ld {quoted_folder}; df -h {quoted_folder}",
    )
