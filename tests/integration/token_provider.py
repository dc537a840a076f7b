"""A provider of tokens as Kafka takes them: client credentials over HTTP, tokens without a signature."""

from __future__ import annotations

import base64
import json
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote


class TokenProvider(ThreadingHTTPServer):
    """Listens until it is shut down."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int]) -> None:
        super().__init__(address, _Handler)
        self.asked: set[tuple[str, str, str]] = set()
        """Client, secret and scope of each request."""
        self.status = 200
        self.lifetime_s = 300
        """0: the answer holds no token."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/token"


class _Handler(BaseHTTPRequestHandler):
    server: TokenProvider

    def do_POST(self) -> None:
        form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        login = base64.b64decode(self.headers["Authorization"].removeprefix("Basic ")).decode()
        client, _, secret = login.partition(":")
        self.server.asked.add((unquote(client), unquote(secret), "".join(form.get("scope", []))))
        self.send_response(self.server.status)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(self._answer()).encode())

    def _answer(self) -> dict[str, Any]:
        lifetime_s, now_s = self.server.lifetime_s, int(time.time())
        if self.server.status != 200 or not lifetime_s:
            return {"error": "invalid_client"}
        claims = {"sub": "cdc", "iat": now_s, "exp": now_s + lifetime_s, "scope": "kafka"}
        token = ".".join((_part({"alg": "none"}), _part(claims), ""))
        return {"access_token": token, "token_type": "Bearer", "expires_in": lifetime_s}

    def log_message(self, *_: object) -> None:
        """Nothing is printed."""


def _part(of: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(of).encode()).decode().rstrip("=")
