"""Lets the page ask a connector for what a command asks it for: by the signal topic, with who asks, and a token."""

from __future__ import annotations

import hmac
import os
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import orjson

from cdc.capture.control.signals import Command
from cdc.config import registry
from cdc.model.errors import CdcError, ConfigError, OperatorError
from cdc.monitor.status import standing
from cdc.monitor.watched import Watched, WatchedConnector

VARIABLE: Final = "CDC_MONITOR_TOKEN"
_LEAST: Final = 16
_SCHEME: Final = "Bearer "
_KNOWN: Final = ("pause", "resume", "reload", "snapshot")


def read_token(file: Path | None) -> str:
    """Return the token that commands need, of a file or of the environment. Raises ConfigError."""
    if file is not None:
        try:
            token, where = file.read_text(encoding="utf-8").strip(), f"--token-file {file}"
        except (OSError, UnicodeDecodeError) as exc:
            raise ConfigError(f"--token-file {file}: cannot be read: {type(exc).__name__}") from exc
    else:
        token, where = os.environ.get(VARIABLE, "").strip(), VARIABLE
    if not token:
        raise ConfigError(
            "--allow-commands needs a token, and there is none",
            hint=f"--token-file FILE, or the environment variable {VARIABLE}; openssl rand -hex 24 draws one",
        )
    if len(token) < _LEAST or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(
            f"{where}: the token is too short, or has other characters than a header takes",
            hint=f"{_LEAST} characters or more; openssl rand -hex 24 draws one",
        )
    return token


class Refused(Exception):  # noqa: N818 - an answer, not an error
    """What was asked is not done."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


class PageCommands:
    """Carries out what the page asks for."""

    def __init__(self, watched: Sequence[Watched], token: str) -> None:
        self._connectors = {of.name: of for of in watched if isinstance(of, WatchedConnector)}
        self._token = token.encode()

    def allowed(self, authorization: str, own: str = "") -> bool:
        """Whether a request's headers have the token; the time that this takes does not tell how much of it is right.

        `own` is a header of ours: a proxy with a login before the page has the other one for itself.
        """
        given = own or (authorization.removeprefix(_SCHEME) if authorization.startswith(_SCHEME) else "")
        return hmac.compare_digest(given.strip().encode("utf-8", "replace"), self._token)

    def do(self, body: bytes, *, by: str) -> dict[str, Any]:
        """Leave the command that a request asks for. Raises Refused."""
        try:
            asked: Mapping[str, Any] = orjson.loads(body)
            name, what = asked["connector"], asked["command"]
            tables = asked.get("tables", [])
            sound = isinstance(name, str) and isinstance(tables, list) and all(isinstance(t, str) for t in tables)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise Refused(400, "no command: JSON with connector and command is taken") from None
        if not sound or what not in _KNOWN:
            raise Refused(400, f"no command: one of {', '.join(_KNOWN)}")
        connector = self._connectors.get(name)
        if connector is None:
            raise Refused(404, "there is no such connector here")
        try:
            return self._ask(connector, str(what), tuple(tables), by)
        except CdcError as exc:
            raise Refused(409, exc.message) from exc

    def _ask(self, connector: WatchedConnector, what: str, tables: tuple[str, ...], by: str) -> dict[str, Any]:
        config = connector.config
        found = standing(config)
        if found is None or found.state is None:
            raise OperatorError(
                f"connector {config.name} has never run: nothing can be asked of it", hint="cdc run CONNECTOR.yaml"
            )
        captured = found.state.tables
        for table in tables:
            if table not in captured and not config.source.captures(table):
                raise OperatorError(f"table {table} is not one that {connector.file} names")
        asked_ms = time.time_ns() // 1_000_000
        command = {
            "pause": Command(pause=True, by=by, asked_ms=asked_ms),
            "resume": Command(pause=False, by=by, asked_ms=asked_ms),
            "reload": Command(reload=True, by=by, asked_ms=asked_ms),
            "snapshot": Command(tables=tables or captured, by=by, asked_ms=asked_ms),
        }[what]
        identifier = uuid.uuid4().hex
        registry.part("sinks.topics.records.signals:send_command")(
            config.sink, config.name, identifier.encode(), command.to_bytes(identifier)
        )
        return {"id": identifier, "connector": config.name, "command": what}
