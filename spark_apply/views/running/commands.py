"""What a view job is asked for while it runs: to compute views by a definition, and to publish what then differs.

A command stands in the job's signal topic under a key of its own until the job, or one that is started later, has
published what it asks for: the tombstone is in that transaction. A job that runs takes it within a second, and says so.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Final, Self

from cdc.config import registry
from cdc.config.views import ViewsConfig
from cdc.machine.flag import Flag
from cdc.model.audit import Act, asked_by, name_of, time_of
from cdc.model.errors import CdcError
from spark_apply.events.kafka.topics import existing_topics
from spark_apply.views.planning.definitions import Text
from spark_apply.views.publishing.status import sink_config

_KIND: Final = "views"
_LOOK_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Command:
    """To publish views by these definitions."""

    key: bytes
    views: Mapping[str, Text]
    taken: bool = False
    """A job has seen it, and will do it."""
    failed: str | None = None
    """Why it was not done."""
    by: str | None = None
    """Who has asked for it."""
    asked_ms: int | None = None
    """When."""

    def to_bytes(self) -> bytes:
        body: dict[str, object] = {"kind": _KIND, "views": self.views, "taken": self.taken, "failed": self.failed}
        if self.by is not None:
            body |= {"by": self.by, "asked_ms": self.asked_ms}
        return json.dumps(body).encode()

    @classmethod
    def parse(cls, key: bytes, value: bytes) -> Command | None:
        """Return a command; None for what is none."""
        try:
            body = json.loads(value)
        except ValueError:
            return None
        if not isinstance(body, dict) or body.get("kind") != _KIND or not key.isascii():
            return None
        views, failed = body.get("views"), body.get("failed")
        if not isinstance(views, dict) or not all(isinstance(of, dict) for of in views.values()):
            return None
        return cls(
            *(key, views, bool(body.get("taken")), str(failed) if failed is not None else None),
            by=name_of(body.get("by")), asked_ms=time_of(body.get("asked_ms")),
        )  # fmt: skip

    def act(self) -> Act:
        """Return what the audit keeps of it: names, no text of a view."""
        about = {"views": sorted(self.views)}
        return Act(action="view rebuild", by=self.by, asked_ms=self.asked_ms, id=self.key.decode(), about=about)


def new_command(views: Mapping[str, Text]) -> Command:
    """Return a command that nobody has given yet."""
    return Command(uuid.uuid4().hex.encode(), views, by=asked_by(), asked_ms=time.time_ns() // 1_000_000)


class Commands:
    """The commands of a view job, as they stand. Not thread-safe."""

    def __init__(self, config: ViewsConfig) -> None:
        self._sink, self._job = sink_config(config), config.name
        topic = registry.part("sinks.topics.names:signal_topic")(self._sink.prefix, config.name)
        self._heard: Any = None
        if topic in existing_topics(config.source, [topic]):
            part = registry.part("sinks.topics.records.signals:Commands")
            self._heard = part(self._sink.bootstrap_servers, self._sink.options, topic)

    @property
    def is_there(self) -> bool:
        """Whether the topic exists: the job makes it at its first start."""
        return self._heard is not None

    def standing(self) -> list[Command]:
        """Return those that are not done, oldest first, also those that failed."""
        waiting = self._heard.waiting() if self._heard is not None else []
        return [found for key, value in waiting if (found := Command.parse(key, value)) is not None]

    def waiting(self) -> list[Command]:
        """Return those that are to be done."""
        return [command for command in self.standing() if command.failed is None]

    def write(self, command: Command) -> None:
        """Leave a command, or what has become of it."""
        self._write(command.key, command.to_bytes())

    def withdraw(self, command: Command) -> None:
        """Take a command away."""
        self._write(command.key, None)

    def _write(self, key: bytes, value: bytes | None) -> None:
        registry.part("sinks.topics.records.signals:send_command")(self._sink, self._job, key, value)

    def close(self) -> None:
        if self._heard is not None:
            self._heard.close()


class Turn(Flag):
    """Ends one run of the job: for good (`set`), or to go on at once by other definitions (`turn`)."""

    def __init__(self) -> None:
        super().__init__()
        self.for_good = False

    def set(self) -> None:
        self.for_good = True
        super().set()

    def turn(self) -> None:
        super().set()


class Watch:
    """Looks for commands while the job runs, in a thread of its own, and ends the run for new ones."""

    def __init__(self, config: ViewsConfig, known: frozenset[bytes], turn: Turn, stop: threading.Event) -> None:
        self._config, self._known, self._turn, self._stop = config, known, turn, stop
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="view-commands", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        commands: Commands | None = None
        try:
            while not self._over.wait(_LOOK_S):
                if self._stop.is_set():
                    self._turn.set()
                try:
                    commands = commands or self._opened()
                    if commands is not None and self._take(commands):
                        self._turn.turn()
                except CdcError:  # a broker is away: the job itself says so, where it matters
                    continue
        finally:
            if commands is not None:
                commands.close()

    def _opened(self) -> Commands | None:
        """Return the commands once the topic is there: the job itself makes it."""
        found = Commands(self._config)
        return found if found.is_there else None

    def _take(self, commands: Commands) -> bool:
        new = [command for command in commands.waiting() if command.key not in self._known]
        for command in new:
            if not command.taken:
                commands.write(replace(command, taken=True))
        return bool(new)


def waiting(config: ViewsConfig) -> list[Command]:
    """Return the commands that are to be done."""
    with closing(Commands(config)) as commands:
        return commands.waiting()


def leave(config: ViewsConfig, command: Command) -> None:
    """Give a command; return when it is there."""
    with closing(Commands(config)) as commands:
        commands.write(command)


def note_failed(config: ViewsConfig, commands: Sequence[Command], why: str) -> None:
    """Say why commands were not done."""
    with closing(Commands(config)) as of:
        for command in commands:
            of.write(replace(command, taken=True, failed=why))
