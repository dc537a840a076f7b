"""Listens on one address, for clients of which none can make another wait: on threads, few at a time, each for a while.

A client is given a few seconds in all, and few are answered at a time. Where there is no room for one more, the one
that has been asking for longest without having said what for makes room: so probes are answered beside slow clients.
"""

from __future__ import annotations

import errno
import logging
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar, Final, Self

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from cdc.machine.sockets import short_name
from cdc.model.errors import OperatorError
from cdc.telemetry.merged import merged

WITHIN_S: Final = 10.0
"""So long a client may take, from its connection to the end of the answer."""
MOST_CLIENTS: Final = 16
_SLOW_S: Final = 0.5
"""A client that asks at all has asked by then, as a rule."""
_ROOM_S: Final = 0.5
_TOLD_AGAIN_S: Final = 60.0
TEXT: Final = "text/plain; charset=utf-8"
_OPENMETRICS: Final = "application/openmetrics-text; version=1.0.0"

log = logging.getLogger("cdc")


def _wants_openmetrics(accept: str) -> bool:
    """Whether a client names it, and likes no text better: `q` says how much, without it as much as can be."""
    weights = dict.fromkeys((_OPENMETRICS.partition(";")[0], "text/plain"), 0.0)
    for asked in accept.lower().split(","):
        name, *parameters = (part.strip() for part in asked.split(";"))
        given = next((part.removeprefix("q=") for part in parameters if part.startswith("q=")), "1")
        if name in weights:
            with suppress(ValueError):  # what is no number asks for nothing
                weights[name] = max(weights[name], float(given))
    openmetrics, text = weights.values()
    return openmetrics > 0 and openmetrics >= text


class Listening:
    """Listens from its making on, answers inside its `with`."""

    def __init__(
        self,
        address: tuple[str, int] | Path,
        answer: Callable[..., Any],
        *,
        option: str,
        warning: str,
        tick: Callable[[], None] = lambda: None,
    ) -> None:
        """`answer` makes a handler, `tick` is called every half second. A path is that of a socket, which is replaced.

        Raises OperatorError, which names the `option`, for an address that cannot be listened on. One that is every
        address of the machine is warned of.
        """
        try:
            make = _at_path if isinstance(address, Path) else _at_address
            self._server, at = make(address, answer, tick)
        except OSError as exc:
            raise _not_listening(option, address, exc) from exc
        if at[0] in ("0.0.0.0", "::"):  # noqa: S104 - it is asked for, and warned of
            log.warning("%s", warning.format(port=self.port))
        self._thread = threading.Thread(target=self._server.serve_forever, name="cdc-listening", daemon=True)

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _not_listening(option: str, address: tuple[str, int] | Path, exc: OSError) -> OperatorError:
    reason = exc.strerror or "the address cannot be used"
    if isinstance(address, Path):
        return OperatorError(f"{option}: {address} cannot be listened on: {reason}", hint="is the folder still there?")
    host, port = address
    at = f"{option}: {host}:{port}"
    if exc.errno == errno.EADDRINUSE:
        return OperatorError(f"{at}: another process listens there", hint=f"ss -ltnp 'sport = :{port}' says which")
    if exc.errno in (errno.EACCES, errno.EPERM):
        return OperatorError(f"{at}: this user may not listen there", hint="take a port above 1023")
    return OperatorError(f"{at} cannot be listened on: {reason}", hint="an address of this machine: ip address")


def _server(family: int) -> type[_Server]:
    return _Server6 if family == socket.AF_INET6 else _Server


class _Server(ThreadingHTTPServer):
    """Answers at most so many clients at a time, each for at most so long."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 32
    allow_reuse_address = True

    def __init__(self, at: Any, answer: Any, tick: Callable[[], None]) -> None:  # noqa: ANN401 - as the standard library has them
        self._tick = tick
        self._until: dict[socket.socket, float] = {}
        self._unheard: dict[socket.socket, float] = {}
        """Since when those are there whose request is not known yet, the oldest first."""
        self._slots = threading.Semaphore(MOST_CLIENTS)
        self._told_s = float("-inf")
        super().__init__(at, answer)

    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - the same
        if not self._slots.acquire(blocking=False) and not (
            self._makes_room() and self._slots.acquire(timeout=_ROOM_S)
        ):
            self.shutdown_request(request)
            return
        self._unheard[request] = time.monotonic()
        self._until[request] = time.monotonic() + WITHIN_S
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # the machine gives no more threads
            self._forget(request)
            self._slots.release()
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - the same
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._forget(request)
            self._slots.release()

    def heard(self, request: socket.socket) -> None:
        """Note that a client has said what it asks for: it is answered, and makes no room."""
        self._unheard.pop(request, None)

    def _forget(self, request: socket.socket) -> None:
        self._until.pop(request, None)
        self._unheard.pop(request, None)

    def _makes_room(self) -> bool:
        """Cut off the client that is slowest to ask; return whether there was one."""
        slow = [one for one, since in list(self._unheard.items()) if time.monotonic() - since > _SLOW_S]
        for request in slow[:1]:
            with suppress(OSError):
                request.shutdown(socket.SHUT_RDWR)
        return bool(slow)

    def service_actions(self) -> None:
        """Cut those off that take too long; called every half second."""
        self._tick()
        now = time.monotonic()
        for request, until in list(self._until.items()):
            if now > until:
                with suppress(OSError):  # its thread has just closed it
                    request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401, ARG002 - the same
        """Say nothing of clients that hang up, and of what is a bug of ours that it is one, once a minute."""
        exc = sys.exc_info()[1]
        if exc is None or isinstance(exc, OSError):
            log.debug("a client was not answered")
        elif time.monotonic() >= self._told_s + _TOLD_AGAIN_S:
            self._told_s = time.monotonic()
            log.error("a client was not answered: %s; please report this", type(exc).__name__, exc_info=exc)


class _Server6(_Server):
    address_family = socket.AF_INET6


class _AtPath(_Server):
    """Listens on a socket of the file system, for other processes of this user."""

    address_family = getattr(socket, "AF_UNIX", socket.AF_INET)
    allow_reuse_address = False

    def server_bind(self) -> None:
        self.socket.bind(self.server_address)
        self.server_name, self.server_port = "", 0


def _at_address(address: Any, answer: Any, tick: Callable[[], None]) -> tuple[_Server, Any]:  # noqa: ANN401 - as above
    host, port = address
    family, *_, at = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    return _server(family)(at, answer, tick), at


def _at_path(path: Any, answer: Any, tick: Callable[[], None]) -> tuple[_Server, Any]:  # noqa: ANN401 - the same
    path.unlink(missing_ok=True)
    with short_name(path) as name:
        return _AtPath(name, answer, tick), (str(path),)


class Answering(BaseHTTPRequestHandler):
    """Answers one request, then closes; repeats nothing of it, and logs nothing."""

    timeout = WITHIN_S
    server_version = "cdc"
    sys_version = ""
    METHODS: ClassVar[str] = "GET, HEAD"
    ALWAYS: ClassVar[tuple[tuple[str, str], ...]] = ()
    """Headers of every answer."""

    def parse_request(self) -> bool:
        understood = super().parse_request()  # with its headers, which may be slow in coming
        self.server.heard(self.connection)  # type: ignore[attr-defined] # it is a `_Server`
        return understood

    def say(self, status: HTTPStatus, body: bytes, kind: str = TEXT) -> None:
        self.send_response(status)
        more = (("Allow", self.METHODS),) if status is HTTPStatus.METHOD_NOT_ALLOWED else ()
        length = ("Content-Length", str(len(body)))
        for name, value in (("Content-Type", kind), length, ("Cache-Control", "no-store"), *more, *self.ALWAYS):
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def say_metrics(self, registry: CollectorRegistry, others: Callable[[str], Sequence[bytes]] | None = None) -> None:
        """Answer with metrics, in the text that the client asks for; those of `others`, asked for it first, among them.

        `others` is given what to `Accept`.
        """
        accept = _OPENMETRICS if _wants_openmetrics(self.headers.get("Accept", "")) else ""
        encode, kind = choose_encoder(accept)
        theirs = others(accept) if others is not None else ()
        own = encode(registry)
        self.say(HTTPStatus.OK, merged([own, *theirs]) if theirs else own, kind)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:  # noqa: ARG002
        """Answer a request that is no HTTP, or of another method."""
        unknown = code == HTTPStatus.NOT_IMPLEMENTED
        status = HTTPStatus.METHOD_NOT_ALLOWED if unknown else HTTPStatus(code)
        self.close_connection = True
        self.request_version = "HTTP/1.0"  # else what looks like HTTP/0.9 gets no status line
        if not hasattr(self, "command") or self.command is None:
            self.command = ""
        self.say(status, f"{self.METHODS} are answered here\n".encode() if unknown else status.phrase.encode() + b"\n")

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002, ANN401 - the standard library's
        """Log nothing: a request every few seconds is no news."""
