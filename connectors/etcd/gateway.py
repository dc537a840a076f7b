"""Asks a cluster by its JSON gateway: one endpoint after the other, logged in where that is asked for.

All reads here are linearizable: a member that is cut off from the others does not answer them.
"""

from __future__ import annotations

import http
import http.client
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NoReturn

import orjson

from cdc.machine.keep_alive import keep_alive
from cdc.machine.tls import was_cut
from cdc.model.errors import CdcError, GapError, LoginError, OperatorError, RetryableError
from connectors.etcd.address import Address, Endpoint, tls
from connectors.etcd.messages import Header, KeyValue, end_of, first_of, number, written

TIMEOUT_S: Final = 5.0
GO_ON: Final = "nothing is lost: the connector goes on where it was; if it comes again, look into the members' logs"
CLOSE_THE_GAP: Final = (
    "what happened since is not in Kafka: cdc snapshot start CONNECTOR.yaml --after-gap, then run it: it follows the "
    "cluster from now on, and reads every table again"
)
OLDEST: Final = {(3, 4): 31, (3, 5): 13}
"""Older patch releases may answer how far a watch has got before they have sent all up to there."""
_PAST: Final = (3, 4)
_RANGE: Final = "/v3/kv/range"
_INVALID, _DEADLINE, _DENIED, _PRECONDITION, _OUT_OF_RANGE, _UNAVAILABLE, _LOGIN = 3, 4, 7, 9, 11, 14, 16
"""Codes of gRPC: https://grpc.io/docs/guides/status-codes/"""
_PASSING: Final = frozenset({1, 2, _DEADLINE, 8, 10, 13, _UNAVAILABLE})
_LOGIN_IS_OLD: Final = ("invalid auth token", "revision of auth store is old", "user name is empty")


class CompactedError(GapError):
    """The cluster does not have this revision any more."""


class FutureError(GapError):
    """The cluster has not reached this revision."""


@dataclass(frozen=True, slots=True)
class Page:
    """Is a part of a range of keys, in their order."""

    header: Header
    found: Sequence[KeyValue]
    count: int
    """How many keys the whole range has."""
    is_last: bool


class Gateway:
    """Is a session with a cluster. `close` may be called on any thread, the rest on one at a time."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._tls = tls(address)
        self._at = 0
        self._connection: http.client.HTTPConnection | None = None
        self._token: str | None = None
        self._closed = threading.Event()

    @property
    def endpoint(self) -> Endpoint:
        """The endpoint that has answered last."""
        return self.address.endpoints[self._at]

    def now(self, prefix: bytes) -> Header:
        """Return how far the cluster is; all that was answered before lies up to there."""
        return Header.of(
            self.call(_RANGE, {"key": written(first_of(prefix)), "keys_only": True}, "reading the revision")
        )

    def get(self, key: bytes, *, revision: int) -> tuple[Header, KeyValue | None]:
        """Return a key as it is, or was at a revision. Raises CompactedError, FutureError."""
        answer = self.call(_RANGE, {"key": written(key), "revision": revision}, "reading a key")
        found = answer.get("kvs", [])
        return Header.of(answer), KeyValue.of(found[0]) if found else None

    def page(self, prefix: bytes, *, revision: int, limit: int, after: bytes | None = None) -> Page:
        """Return the first keys of a prefix behind `after`, at a revision; 0: now."""
        begin = first_of(prefix) if after is None else after + b"\0"
        asked = {"key": written(begin), "range_end": written(end_of(prefix)), "revision": revision, "limit": limit}
        answer = self.call(_RANGE, asked, "reading keys")
        found = [KeyValue.of(each) for each in answer.get("kvs", [])]
        return Page(Header.of(answer), found, number(answer, "count"), is_last=not answer.get("more", False))

    def since(self, prefix: bytes, *, revision: int, modified: int) -> Page:
        """Return a key of a prefix, at a revision, that was written behind another one; and how many there are."""
        asked: dict[str, Any] = {
            "key": written(first_of(prefix)), "range_end": written(end_of(prefix)), "revision": revision, "limit": 1,
            "keys_only": True, "min_mod_revision": modified + 1,
        }  # fmt: skip
        if modified >= revision:  # none can be: the server need not look at each
            asked = {**asked, "count_only": True}
            del asked["min_mod_revision"]
        answer = self.call(_RANGE, asked, "comparing keys")
        found = [KeyValue.of(each) for each in answer.get("kvs", [])]
        return Page(Header.of(answer), found, number(answer, "count"), is_last=True)

    def version(self) -> str:
        """Return the version of the member that answers."""
        return str(self._ask("GET", "/version", None, "reading the version").get("etcdserver", ""))

    def call(self, path: str, asked: Mapping[str, Any], doing: str) -> dict[str, Any]:
        """Ask, on another endpoint where one does not answer. Raises what `refusal` makes of a refusal."""
        return self._ask("POST", path, asked, doing)

    def token(self) -> str:
        """Return what requests are allowed by; empty: nothing is needed. Logs in the first time."""
        if self._token is None:
            login = {"name": self.address.user, "password": self.address.password}
            self._token = ""
            if self.address.user:
                try:
                    answer = self._ask("POST", "/v3/auth/authenticate", login, "logging in")
                    self._token = str(answer.get("token", ""))
                except BaseException:
                    self._token = None
                    raise
        return self._token

    def close(self) -> None:
        """Close the connection, also under a request. Safe to call twice."""
        self._closed.set()
        self._drop()

    def connect(self, endpoint: Endpoint) -> socket.socket:
        """Open a connection of its own. Raises RetryableError, OperatorError."""
        try:
            return self._open(endpoint)
        except OSError as exc:
            raise unreachable(exc, endpoint, "connecting") from exc

    def _open(self, endpoint: Endpoint) -> socket.socket:
        plain = socket.create_connection((endpoint.host, endpoint.port), TIMEOUT_S)
        keep_alive(plain)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._tls is None:
            return plain
        try:
            return self._tls.wrap_socket(plain, server_hostname=endpoint.host)
        except BaseException:
            plain.close()
            raise

    def _ask(self, method: str, path: str, asked: Mapping[str, Any] | None, doing: str) -> dict[str, Any]:
        failed: CdcError | None = None
        for _ in self.address.endpoints:
            try:
                return self._ask_here(method, path, asked, doing)
            except RetryableError as exc:
                failed = exc
                self._drop()
                if self._closed.is_set():
                    break
                self._at = (self._at + 1) % len(self.address.endpoints)
        if failed is None:
            raise RetryableError(f"{doing}: there is no endpoint")
        raise failed

    def _ask_here(self, method: str, path: str, asked: Mapping[str, Any] | None, doing: str) -> dict[str, Any]:
        with_login = asked is not None and not path.startswith("/v3/auth/")
        status, answer = self._exchange(method, path, asked, doing, self.token() if with_login else "")
        if with_login and self.address.user and status != http.HTTPStatus.OK and is_old_login(answer):
            self._token = None  # it has expired, rights were changed since, or logins are asked for only now
            status, answer = self._exchange(method, path, asked, doing, self.token())
        if status == http.HTTPStatus.OK:
            return answer
        if path.startswith("/v3/auth/") and answer.get("code") == _PRECONDITION:
            return {}  # the cluster asks nobody to log in
        raise refusal(answer, doing, self.endpoint, self.address.user)

    def _exchange(
        self, method: str, path: str, asked: Mapping[str, Any] | None, doing: str, token: str
    ) -> tuple[int, dict[str, Any]]:
        """Ask once; again, on a new connection, where the one that was kept has been closed meanwhile."""
        body = None if asked is None else orjson.dumps(asked)
        headers = {"Content-Type": "application/json", **({"Authorization": token} if token else {})}
        for fresh in (False, True):
            if self._closed.is_set():
                raise RetryableError(f"{doing}: the connection is closed", hint=GO_ON)
            kept = self._connection
            try:
                connection = kept if kept is not None else self._kept()
                connection.request(method, path, body, headers)
                with connection.getresponse() as answer:
                    return answer.status, _read(answer, doing, self.endpoint)
            except (OSError, http.client.HTTPException, AttributeError, ValueError) as exc:
                self._drop()
                if fresh or kept is None or isinstance(exc, TimeoutError):
                    raise unreachable(exc, self.endpoint, doing, plain=self._tls is None) from exc
        raise RetryableError(f"{doing}: etcd at {self.endpoint} does not answer", hint=GO_ON)

    def _kept(self) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection(self.endpoint.host, self.endpoint.port, timeout=TIMEOUT_S)
        connection.sock = self._open(self.endpoint)
        self._connection = connection
        return connection

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        with suppress(OSError, AttributeError):
            connection.sock.shutdown(socket.SHUT_RDWR)  # for who reads it on another thread
        connection.close()


def _read(answer: http.client.HTTPResponse, doing: str, endpoint: Endpoint) -> dict[str, Any]:
    body = answer.read()
    try:
        found = orjson.loads(body)
    except ValueError as exc:
        if answer.status >= http.HTTPStatus.INTERNAL_SERVER_ERROR:
            raise RetryableError(f"{doing}: etcd at {endpoint} answers {answer.status}", hint=GO_ON) from exc
        _no_gateway(doing, endpoint, exc)
    if not isinstance(found, dict):
        _no_gateway(doing, endpoint, None)
    return found


def _no_gateway(doing: str, endpoint: Endpoint, cause: Exception | None) -> NoReturn:
    raise OperatorError(
        f"{doing}: {endpoint} does not answer as etcd's JSON gateway does",
        hint="is it the clients' address of etcd 3.4 or newer? The gateway must not be off (--enable-grpc-gateway)",
    ) from cause


def is_old_login(answer: Mapping[str, Any]) -> bool:
    """Whether a refusal means that a login has expired."""
    return any(words in str(answer.get("message", "")) for words in _LOGIN_IS_OLD)


def refusal(answer: Mapping[str, Any], doing: str, endpoint: Endpoint, user: str) -> CdcError:
    """Return what a refusal of etcd's means. Its messages hold no key and no value."""
    said, code = str(answer.get("message", "it gave no reason")), answer.get("code", answer.get("grpc_code"))
    what = f"{doing}: etcd at {endpoint}: {said}"
    if "has been compacted" in said:
        return CompactedError(what, hint=CLOSE_THE_GAP)
    if "future revision" in said:
        return FutureError(what, hint=CLOSE_THE_GAP)
    if code == _DENIED:
        who = user or "ROLE"
        return OperatorError(
            what,
            hint=f"etcdctl role grant-permission {who} read PREFIX --prefix=true, for each prefix of source.tables",
        )
    if code == _LOGIN or "user name is empty" in said:
        return OperatorError(what, hint="source.url: etcd://user:${PASSWORD}@host:2379")
    if code == _INVALID and "authentication failed" in said:
        return LoginError(what, hint="user and password of source.url: etcdctl user get USER --detail")
    if code in _PASSING:
        return RetryableError(what, hint=GO_ON)
    return OperatorError(what, hint="cdc check CONNECTOR.yaml says what the cluster allows; the members' logs say more")


def unreachable(exc: Exception, endpoint: Endpoint, doing: str, *, plain: bool = False) -> CdcError:
    """Return what a connection's error means. `plain`: it was not encrypted."""
    if isinstance(exc, ssl.SSLError) and not was_cut(exc):
        reason = getattr(exc, "verify_message", None) or exc.reason or "TLS was refused"
        if exc.reason == "WRONG_VERSION_NUMBER":
            reason = "it does not speak TLS"
        return OperatorError(
            f"{doing}: etcd at {endpoint}: {reason}",
            hint="source.url: …?ssl_ca=/path/of/ca.pem, or ssl_mode=disabled where the network is trusted",
        )
    reason = "it does not answer" if isinstance(exc, TimeoutError) else getattr(exc, "strerror", None)
    hung_up = plain and isinstance(exc, (ConnectionResetError, http.client.RemoteDisconnected))
    if hung_up:  # so does a member that waits for TLS
        reason = "it closes the connection"
    return RetryableError(
        f"{doing}: etcd at {endpoint}: {reason or type(exc).__name__}",
        hint=f"{GO_ON}; if it speaks TLS: source.url: …?ssl_mode=verify_identity" if hung_up else GO_ON,
    )


def refuse_version(version: str) -> Iterator[OperatorError]:
    """Give why a member of this version cannot be followed."""
    parts = [int(part) for part in version.partition("-")[0].split(".") if part.isdecimal()]
    line, patch = tuple(parts[:2]), parts[2] if len(parts) > 2 else 0  # noqa: PLR2004 - major, minor, patch
    if line < _PAST or patch < OLDEST.get((line[0], line[1]), 0):
        yield OperatorError(
            f"etcd is {version or 'of an unknown version'}, and 3.4.31, 3.5.13, 3.6 or newer is needed: older ones may "
            "say that a watch has sent all before it has",
            hint="upgrade the members: https://etcd.io/docs/v3.5/upgrades/",
        )
