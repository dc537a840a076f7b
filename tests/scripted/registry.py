"""A schema registry that does as a test says: Confluent's REST API, in memory, on loopback."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit


class ScriptedRegistry:
    """Keeps schemas; `refuses`, `login`, `status` and `slow_s` say how it fails."""

    def __init__(self) -> None:
        self.schemas: dict[int, dict[str, Any]] = {}
        self.subjects: dict[str, list[int]] = {}
        self.requests: list[str] = []
        self.refuses: str | None = None
        """Reason for which it takes no further schema of a subject."""
        self.levels = {"": "BACKWARD"}
        """Compatibility by subject; of all others without a name."""
        self.mode = "READWRITE"
        self.forbids: set[str] = set()
        """What the login may not ask: the first part of a path."""
        self.login: str | None = None
        """``user:password`` that it wants."""
        self.status: int | None = None
        """An HTTP status that it answers everything with."""
        self.says: Any = "as the test says"
        """What it says then: a message, or the whole answer."""
        self.slow_s = 0.0
        self.port = 0
        self._server: ThreadingHTTPServer | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None: ...

            def do_GET(self) -> None:
                self.answer(None)

            def do_POST(self) -> None:
                self.answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

            def answer(self, body: Any) -> None:
                status, told = registry.answer(self.command, self.path, body, self.headers.get("Authorization"))
                data = told if isinstance(told, bytes) else json.dumps(told).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                with suppress(ConnectionError):  # who asked may have gone
                    self.wfile.write(data)

        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def answer(self, command: str, path: str, body: Any, login: str | None) -> tuple[int, Any]:
        self.requests.append(f"{command} {path.partition('?')[0]}")
        time.sleep(self.slow_s)
        if self.status is not None:
            told = {"error_code": self.status * 100, "message": self.says}
            return self.status, told if isinstance(self.says, str) else self.says
        if self.login is not None and login != "Basic " + base64.b64encode(self.login.encode()).decode():
            return 401, {"error_code": 401, "message": "Unauthorized"}
        parts = [unquote(part) for part in urlsplit(path).path.strip("/").split("/")]
        if parts[0] in self.forbids:
            return 403, {"error_code": 40301, "message": "User is denied operation"}
        if parts[:2] == ["schemas", "ids"]:
            found = self.schemas.get(int(parts[2]))
            return (200, found) if found else (404, {"error_code": 40403, "message": "Schema not found"})
        if parts[0] == "mode":
            missing = {"error_code": 40409, "message": "Subject does not have subject-level mode configured"}
            return (404, missing) if len(parts) > 1 else (200, {"mode": self.mode})
        if parts[0] == "compatibility":
            return 200, {"is_compatible": self.refuses is None}
        if parts[0] == "config":
            level = self.levels.get(parts[1] if len(parts) > 1 else "")
            missing = {"error_code": 40408, "message": "Subject does not have subject-level compatibility configured"}
            return (200, {"compatibilityLevel": level}) if level else (404, missing)
        if len(parts) == 1:
            return 200, sorted(self.subjects)
        subject, ids = parts[1], self.subjects.get(parts[1], [])
        if command == "GET":
            if not ids:
                return 404, {"error_code": 40401, "message": f"Subject '{subject}' not found."}
            return 200, self.told(subject, ids[-1])
        known = next((number for number in ids if self.schemas[number] == self.schema(body)), None)
        if len(parts) == 2:
            if known is None:
                return 404, {"error_code": 40403, "message": "Schema not found"}
            return 200, self.told(subject, known)
        if known is None and self.mode == "READONLY":
            return 422, {"error_code": 42205, "message": "Subject is in read-only mode"}
        if known is None and ids and self.refuses is not None:
            return 409, {"error_code": 409, "message": self.refuses}
        return 200, {"id": known or self.keep(subject, self.schema(body))}

    def keep(self, subject: str, schema: dict[str, Any]) -> int:
        number = next((n for n, of in self.schemas.items() if of == schema), max(self.schemas, default=0) + 1)
        self.schemas[number] = schema
        self.subjects.setdefault(subject, []).append(number)
        return number

    def told(self, subject: str, number: int) -> dict[str, Any]:
        version = self.subjects[subject].index(number) + 1
        return {"subject": subject, "version": version, "id": number, **self.schemas[number]}

    @staticmethod
    def schema(body: Any) -> dict[str, Any]:
        type_ = body.get("schemaType", "AVRO")
        return {"schema": body["schema"], **({"schemaType": type_} if type_ != "AVRO" else {})}


@contextmanager
def scripted_registry() -> Iterator[ScriptedRegistry]:
    """Run one on a free port."""
    registry = ScriptedRegistry()
    registry.start()
    try:
        yield registry
    finally:
        registry.stop()
