"""Serves the page: a few files of its own, the state as JSON, metrics; and commands, where that is allowed.

Nothing is fetched from anywhere else, and the headers have browsers enforce that. On an address of this machine alone
only that machine's names are answered for: a page of another site could else be made to point its name here and read.
"""

from __future__ import annotations

import time
from functools import partial
from http import HTTPStatus
from importlib import resources
from typing import Any, Final

import orjson
from prometheus_client import CollectorRegistry

from cdc.machine.hosts import is_local_name
from cdc.monitor.commands import PageCommands, Refused
from cdc.monitor.monitor import Monitor
from cdc.telemetry.listening import Answering, Listening

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_FILES: Final = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/uplot.js": ("uplot.js", "text/javascript; charset=utf-8"),
    "/uplot.css": ("uplot.css", "text/css; charset=utf-8"),
}
_JSON: Final = "application/json"
_OWN_HEADER: Final = "X-CDC-Token"
_LARGEST: Final = 65_536
_WRONG_TOKEN_S: Final = 1.0
"""So long a wrong token waits for its answer: it is not guessed."""


class PageServer(Listening):
    """Listens from its making on, answers inside its `with`."""

    def __init__(
        self,
        address: tuple[str, int],
        monitor: Monitor,
        registry: CollectorRegistry,
        commands: PageCommands | None,
    ) -> None:
        """Raise OperatorError for an address that cannot be listened on. Without `commands` everything is read-only."""
        page = resources.files("cdc.monitor").joinpath("page")
        files = {path: (page.joinpath(name).read_bytes(), kind) for path, (name, kind) in _FILES.items()}
        super().__init__(
            address,
            partial(_Answer, files, monitor, registry, commands, is_local_name(address[0])),
            option="--listen",
            warning="monitor: every address of this machine answers at port {port}, to everybody who reaches it: names "
            "of tables, positions and errors, no values of rows"
            + ("; and tokens of commands come without encryption" if commands is not None else ""),
        )


class _Answer(Answering):
    """Knows the paths."""

    METHODS = "GET, HEAD, POST"
    ALWAYS = (
        ("Content-Security-Policy", POLICY),
        ("X-Content-Type-Options", "nosniff"),
        ("Referrer-Policy", "no-referrer"),
        ("Cross-Origin-Resource-Policy", "same-origin"),
    )

    def __init__(
        self,
        files: dict[str, tuple[bytes, str]],
        monitor: Monitor,
        registry: CollectorRegistry,
        commands: PageCommands | None,
        here: bool,  # noqa: FBT001 - the library calls it
        *more: Any,  # noqa: ANN401 - the standard library's
    ) -> None:
        self._files, self._monitor, self._registry = files, monitor, registry
        self._commands, self._here = commands, here
        super().__init__(*more)

    def do_GET(self) -> None:  # noqa: N802 - the standard library's
        path = self.path.partition("?")[0]
        if not self._is_meant():
            self.say(HTTPStatus.MISDIRECTED_REQUEST, b"another host's name\n")
        elif path in self._files:
            self.say(HTTPStatus.OK, *self._files[path])
        elif path == "/api/state":
            self.say(HTTPStatus.OK, self._monitor.state(), _JSON)
        elif path == "/api/series":
            self.say(HTTPStatus.OK, self._monitor.series(), _JSON)
        elif path == "/metrics":
            self.say_metrics(self._registry)
        elif path == "/livez":
            self.say(HTTPStatus.OK, b"alive\n")
        else:
            self.say(HTTPStatus.NOT_FOUND, b"/, /api/state, /api/series, /metrics and /livez are here\n")

    do_HEAD = do_GET  # noqa: N815 - the same

    def do_POST(self) -> None:  # noqa: N802 - the standard library's
        if not self._is_meant():
            self.say(HTTPStatus.MISDIRECTED_REQUEST, b"another host's name\n")
        elif self.path != "/api/command":
            self.say(HTTPStatus.NOT_FOUND, b"/api/command is here\n")
        elif self._commands is None:
            self._tell(HTTPStatus.FORBIDDEN, "this monitor only shows: cdc monitor --allow-commands")
        elif not self._commands.allowed(self.headers.get("Authorization", ""), self.headers.get(_OWN_HEADER, "")):
            time.sleep(_WRONG_TOKEN_S)
            self._tell(HTTPStatus.UNAUTHORIZED, "the token is not the one of --token-file")
        elif self.headers.get_content_type() != _JSON:
            self._tell(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "JSON is taken")
        else:
            self._command(self._commands)

    def _command(self, commands: PageCommands) -> None:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > _LARGEST:
            self._tell(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "a command is small")
            return
        try:
            done = commands.do(self.rfile.read(int(length)), by=f"cdc monitor, for {self.client_address[0]}")
        except Refused as exc:
            self._tell(HTTPStatus(exc.status), exc.message)
        else:
            self.say(HTTPStatus.ACCEPTED, orjson.dumps(done), _JSON)

    def _is_meant(self) -> bool:
        """Whether a request names a host that this address may be reached by."""
        if not self._here:
            return True
        name = self.headers.get("Host", "")
        host = name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0]
        return is_local_name(host)

    def _tell(self, status: HTTPStatus, message: str) -> None:
        self.say(status, orjson.dumps({"error": message}), _JSON)
