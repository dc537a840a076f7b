"""Puts together once a second what is known of all that is watched: who asks is given what was put together last."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Self

import orjson

from cdc import __version__
from cdc.model.hints import in_hints
from cdc.monitor.watched import Watched

EVERY_S: Final = 1.0
KINDS: Final = ("connectors", "stores", "views")

log = logging.getLogger("cdc")


def as_json(value: object) -> bytes:
    """Write JSON of any text: the name of a file may be bytes that are no UTF-8."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(value).encode()


class Monitor:
    """Watches. Use as a context manager."""

    def __init__(self, watched: Sequence[Watched], refused: Sequence[dict[str, Any]] = (), *, commands: bool) -> None:
        """`refused` are the files that cannot be read, and why; `commands`: whether the page may ask for something."""
        self.watched, self._refused, self._commands = list(watched), list(refused), commands
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cdc-monitor", daemon=True)
        self._state = b""
        self.put_together()

    def put_together(self) -> None:
        """Make what `/api/state` answers. What cannot be shown is named, and the others are shown."""
        found: dict[str, list[Any]] = {kind: [] for kind in KINDS}
        for one in self.watched:
            try:
                found[one.kind].append(orjson.Fragment(as_json(in_hints(one.entry(), {one.called: Path(one.file)}))))
            except Exception as exc:  # noqa: BLE001 - contained: the others are shown
                log.debug("%s cannot be shown: %s", one.name, type(exc).__name__)
                problem = {"level": "bad", "says": f"it cannot be shown: {type(exc).__name__}", "hint": None}
                shown = {"name": one.name, "state": "unknown", "level": "bad", "problems": [problem]}
                found[one.kind].append(orjson.Fragment(as_json(shown)))
        state = {
            "at_ms": time.time_ns() // 1_000_000,
            "version": __version__,
            "commands": self._commands,
            **found,
            "files": [orjson.Fragment(as_json(one)) for one in self._refused],
        }
        self._state = orjson.dumps(state)

    def state(self) -> bytes:
        """Return the JSON of `/api/state`."""
        return self._state

    def series(self) -> bytes:
        """Return the JSON of `/api/series`: the points of all plots."""
        return orjson.dumps({kind: {of.name: of.series() for of in self.watched if of.kind == kind} for kind in KINDS})

    def _run(self) -> None:
        while not self._over.wait(EVERY_S):
            self.put_together()

    def __enter__(self) -> Self:
        for one in self.watched:
            for look in one.looks():
                look.start()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for one in self.watched:
            for look in one.looks():
                look.stop()
        self._thread.join()
