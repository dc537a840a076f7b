"""Asks a server every 15 s, on a thread and connections of its own: a source's what `cdc status` asks, or a group's."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final, Generic, Self, TypeVar

from cdc.model.errors import CdcError

EVERY_S: Final = 15.0

_T = TypeVar("_T")
log = logging.getLogger("cdc")


class ServerWatch(Generic[_T]):
    """Tells `heard` what `ask` gives; None where the server does not answer. Use as a context manager."""

    def __init__(self, ask: Callable[[], _T], heard: Callable[[_T | None], None]) -> None:
        self._ask, self._heard = ask, heard
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cdc-server-watch", daemon=True)

    def _run(self) -> None:
        while True:
            try:
                self._heard(self._ask())
            except CdcError as exc:
                log.debug("the server cannot be looked at for metrics: %s", exc.message)
                self._heard(None)
            except Exception as exc:  # noqa: BLE001 - a source of third parties; figures must not end a connector
                log.debug("the server cannot be looked at for metrics: %s", type(exc).__name__)
                self._heard(None)
            if self._over.wait(EVERY_S):
                return

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()  # the thread may be waiting for a server: nobody waits for it
