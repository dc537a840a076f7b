"""Answers /metrics, /livez, /readyz and /startupz on one address, on threads that the loop never waits for.

A client is given a few seconds in all, and few are answered at a time: a slow or hostile one costs a thread that
sleeps, and others an answer, but not the loop. Answers hold figures and words of ours alone: no row's value, no secret.
"""

from __future__ import annotations

from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any, Final

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from cdc.monitoring.health import Health, Verdict
from cdc.monitoring.listening import WITHIN_S, Listening

_TEXT: Final = "text/plain; charset=utf-8"
_OPENMETRICS: Final = "application/openmetrics-text; version=1.0.0"
_ALLOWED: Final = "GET, HEAD"


class MetricsServer(Listening):
    """Listens from its making on, answers inside its `with`."""

    def __init__(self, address: tuple[str, int], registry: CollectorRegistry, health: Health) -> None:
        """Raise OperatorError for an address that cannot be listened on."""
        super().__init__(
            address,
            partial(_Answer, registry, health),
            option="metrics.listen",
            warning="metrics: every address of this machine answers at port {port}, to everybody who reaches it: names "
            "of tables and errors, no values of rows",
            tick=health.looks,
        )


class _Answer(BaseHTTPRequestHandler):
    """Answers one request, then closes."""

    timeout = WITHIN_S
    server_version = "cdc"
    sys_version = ""

    def __init__(self, registry: CollectorRegistry, health: Health, *more: Any) -> None:  # noqa: ANN401 - the same
        self._registry, self._health = registry, health
        super().__init__(*more)

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/metrics":
            asked = self.headers.get("Accept", "")
            encode, kind = choose_encoder(_OPENMETRICS if _OPENMETRICS.partition(";")[0] in asked else "")
            self._say(HTTPStatus.OK, encode(self._registry), kind)
        elif path in ("/livez", "/readyz", "/startupz"):
            health = self._health
            judge = {"/livez": health.live, "/readyz": health.ready, "/startupz": health.started}[path]
            self._judge(judge())
        else:
            self._say(HTTPStatus.NOT_FOUND, b"/metrics, /livez, /readyz and /startupz are here\n")

    do_HEAD = do_GET  # noqa: N815 - the same

    def _judge(self, verdict: Verdict) -> None:
        status = HTTPStatus.OK if verdict.ok else HTTPStatus.SERVICE_UNAVAILABLE
        self._say(status, f"{verdict.said}\n".encode())

    def _say(self, status: HTTPStatus, body: bytes, kind: str = _TEXT) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        if status is HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", _ALLOWED)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:  # noqa: ARG002
        """Answer a request that is no HTTP, or of another method, without repeating anything of it."""
        unknown = code == HTTPStatus.NOT_IMPLEMENTED
        status = HTTPStatus.METHOD_NOT_ALLOWED if unknown else HTTPStatus(code)
        self.close_connection = True
        self.request_version = "HTTP/1.0"  # else what looks like HTTP/0.9 gets no status line
        if not hasattr(self, "command") or self.command is None:
            self.command = ""
        self._say(status, b"GET and HEAD are answered here\n" if unknown else status.phrase.encode() + b"\n")

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002, ANN401 - the standard library's
        """Log nothing: a scrape every few seconds is no news."""
