"""Answers /metrics, /livez, /readyz and /startupz on one address, on threads that the loop never waits for.

A client is given a few seconds in all, and few are answered at a time: a slow or hostile one costs a thread that
sleeps, and others an answer, but not the loop. Answers hold figures and words of ours alone: no row's value, no secret.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, TypeAlias

from prometheus_client import CollectorRegistry

from cdc.telemetry.health import Health, Verdict
from cdc.telemetry.listening import Answering, Listening

_JUDGES: Final[dict[str, Callable[[Health], Verdict]]] = {
    "/livez": lambda health: health.live(),
    "/readyz": lambda health: health.ready(),
    "/startupz": lambda health: health.started(),
}
Others: TypeAlias = Callable[[str], Sequence[bytes]]
"""Gives the texts of other processes' metrics, in the format that it is told to accept."""
PATHS: Final = ("/metrics", *_JUDGES)


class MetricsServer(Listening):
    """Listens from its making on, answers inside its `with`."""

    def __init__(
        self,
        address: tuple[str, int] | Path,
        registry: CollectorRegistry,
        health: Health,
        *,
        others: Others | None = None,
    ) -> None:
        """Raise OperatorError for an address that cannot be listened on."""
        super().__init__(
            address,
            partial(_Answer, registry, health, others),
            option="metrics.listen",
            warning="metrics: every address of this machine answers at port {port}, to everybody who reaches it: names "
            "of tables and errors, no values of rows",
            tick=health.looks,
        )


class _Answer(Answering):
    """Knows the paths."""

    def __init__(self, registry: CollectorRegistry, health: Health, others: Others | None, *more: Any) -> None:  # noqa: ANN401 - the same
        self._registry, self._health, self._others = registry, health, others
        super().__init__(*more)

    def do_GET(self) -> None:  # noqa: N802 - the standard library's
        path = self.path.partition("?")[0]
        if path == "/metrics":
            self.say_metrics(self._registry, self._others)
        elif path in _JUDGES:
            self._judge(_JUDGES[path](self._health))
        else:
            self.say(HTTPStatus.NOT_FOUND, b"/metrics, /livez, /readyz and /startupz are here\n")

    do_HEAD = do_GET  # noqa: N815 - the same

    def _judge(self, verdict: Verdict) -> None:
        status = HTTPStatus.OK if verdict.ok else HTTPStatus.SERVICE_UNAVAILABLE
        self.say(status, f"{verdict.said}\n".encode())
