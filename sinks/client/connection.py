"""Connects to one broker (TLS, login, versions); then it sends requests, each answered before the next is sent.

Messages and logins are kafka-python's; the socket is ours, since a commit must not wait for an event loop.
"""

from __future__ import annotations

import io
import logging
import select
import socket
import ssl
import struct
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from kafka.errors import KafkaError as ClientError
from kafka.net.sasl import get_sasl_mechanism
from kafka.protocol.metadata import ApiVersionsRequest
from kafka.protocol.producer import ProduceResponse
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

from cdc.machine.keep_alive import keep_alive
from cdc.machine.tls import was_cut
from cdc.model.errors import OperatorError
from sinks.client import produce_request
from sinks.client.failures import LOGIN_HINT, TRUST_HINT
from sinks.client.produce_request import ErrorCodes, TopicBatches

_LARGEST_ANSWER: Final = 100_000_000
LOOK_S: Final = 10.0
"""How long to wait for a connection, and for what a broker answers from memory."""
_LIFETIME_USED: Final = 0.85
"""After this part of a login's lifetime there is a new connection, between two requests."""
_API_VERSIONS: Final = 3
_SOFTWARE: Final = "cdc-toolkit"
_THROTTLED_MOST_S: Final = 60.0
_THROTTLE_TOLD_S: Final = 0.5
_QUOTA_TOLD_EVERY_S: Final = 60.0
_CHUNK_BYTES: Final = 64 * 1024
"""How much is sent at once; it may be a little more."""


log = logging.getLogger("cdc")


class LostError(Exception):
    """The connection is lost, or an answer did not come in time: whether a request was carried out is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionConfig:
    """Says how brokers are reached, by kafka-python's names, as `sinks.client.options.python_client` gives them."""

    client_id: str
    answer_s: float
    """How long to wait for an answer."""
    options: Mapping[str, Any] = field(repr=False)

    @property
    def protocol(self) -> str:
        """Return PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL."""
        return str(self.options.get("security_protocol", "PLAINTEXT")).upper()

    def trust(self) -> ssl.SSLContext:
        """Return which certificates are trusted. Raises OSError for a file that cannot be read."""
        context = ssl.create_default_context(cafile=self.options.get("ssl_cafile"))
        context.check_hostname = bool(self.options.get("ssl_check_hostname", True))
        if self.options.get("ssl_certfile"):
            context.load_cert_chain(
                self.options["ssl_certfile"], self.options.get("ssl_keyfile"), self.options.get("ssl_password")
            )
        return context


class Connection:
    """Is connected and logged in. Raises LostError where nobody answers, OperatorError where one is not trusted."""

    def __init__(self, host: str, port: int, config: ConnectionConfig) -> None:
        self.where = f"{host}:{port}"
        self._config = config
        self.answer_s = min(LOOK_S, config.answer_s)
        self._correlation_id = 0
        self._awaited: Any = None
        self._expires_s = float("inf")
        self._throttled_until_s = 0.0
        self.features: Mapping[str, int] = {}
        """The cluster's finalized features, by name."""
        self._versions: dict[int, tuple[int, int]] = {}
        try:
            self._socket = socket.create_connection((host, port), timeout=self.answer_s)
        except (OSError, ValueError) as exc:  # ValueError: a host that no name can be
            raise LostError(f"{self.where}: {getattr(exc, 'strerror', None) or exc}") from exc
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            keep_alive(self._socket)
            if config.protocol.endswith("SSL"):
                self._encrypt(host)
            self._agree()
            if config.protocol.startswith("SASL"):
                self._log_in(host)
        except OSError as exc:
            self.close()
            raise LostError(f"{self.where}: {exc.strerror or exc}") from exc
        except BaseException:
            self.close()
            raise
        self.answer_s = config.answer_s

    @property
    def usable(self) -> bool:
        """Tell whether the next request may be sent: it is connected, as far as one can tell, and its login holds."""
        return (
            time.monotonic() < self._expires_s and not self.readable()
        )  # what comes without a request is the end of the connection

    def version(self, request: Any, most: int | None = None) -> int:  # noqa: ANN401 - a message's class
        """Return the newest version that both know. Raises OperatorError where there is none."""
        oldest, newest = self._versions.get(request.API_KEY, (0, -1))
        found = min(newest, request.max_version if most is None else most)
        if found < oldest:
            raise OperatorError(
                f"Kafka at {self.where} does not take {request.__name__} as it is sent (versions {oldest} to {newest})",
                hint="brokers of 2.8 or newer are needed",
            )
        return found

    def ask(self, request: Any) -> Any:  # noqa: ANN401 - a message
        """Send a message and wait for its answer."""
        if request.API_VERSION is None:
            request.API_VERSION = self.version(type(request))
        request.with_header(correlation_id=self._next_id(), client_id=self._config.client_id)
        self._send([request.encode(framed=True, header=True)])
        kind = request.header.get_response_class()
        self._awaited = kind, lambda answer: kind.decode(io.BytesIO(answer))
        answer = self._answer()
        self._throttled(getattr(answer, "throttle_time_ms", 0) or 0)
        return answer

    def _next_id(self) -> int:
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        return self._correlation_id

    def produce(self, version: int, sent: TopicBatches, *, transactional_id: str, timeout_ms: int) -> None:
        """Send batches; `produced` gives what comes back."""
        pieces = produce_request.request(
            version,
            sent,
            correlation_id=self._next_id(),
            client_id=self._config.client_id,
            transactional_id=transactional_id,
            timeout_ms=timeout_ms,
        )
        self._send(pieces)
        self._awaited = ProduceResponse[version], partial(answered, version)

    def readable(self) -> bool:
        """Tell whether something has come."""
        if isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
            return True
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(0))

    def produced(self) -> ErrorCodes:
        """Wait for the answer to `produce`."""
        found: ErrorCodes
        found, throttle_ms = self._answer()
        self._throttled(throttle_ms)
        return found

    def _throttled(self, throttle_ms: int) -> None:
        """Send nothing for so long, as the broker asks for where a quota is used up: it would not read it (KIP-219).

        An answer to what is sent sooner would come late, and be taken for one that does not come.
        """
        if throttle_ms <= 0:
            return
        wait_s = min(throttle_ms / 1000, _THROTTLED_MOST_S)
        self._throttled_until_s = time.monotonic() + wait_s
        tell_of_quota(self.where, self._config.client_id, wait_s)

    def _answer(self) -> Any:  # noqa: ANN401 - a message
        """Wait for the answer to what was sent last."""
        (kind, decode), self._awaited = self._awaited, None
        deadline = time.monotonic() + self.answer_s
        size = int.from_bytes(self._read(4, deadline), signed=True)
        if not 0 < size <= _LARGEST_ANSWER:
            raise LostError(f"{self.where}: no answer of Kafka's")
        body = io.BytesIO(self._read(size, deadline))
        try:
            if kind.parse_header(body).correlation_id != self._correlation_id:
                raise LostError(f"{self.where}: an answer to another request")
            return decode(body.read())
        except (ValueError, LookupError, TypeError, AttributeError, OverflowError, struct.error) as exc:
            raise LostError(f"{self.where}: an answer that cannot be read") from exc

    def close(self) -> None:
        """Close the socket; safe to call twice."""
        with suppress(OSError):
            self._socket.close()

    def _send(self, pieces: Sequence[bytes]) -> None:
        while (left_s := self._throttled_until_s - time.monotonic()) > 0:
            time.sleep(left_s)
        self._socket.settimeout(self.answer_s)
        try:
            for part in _chunks(pieces):
                self._socket.sendall(part)
        except OSError as exc:
            raise LostError(f"{self.where}: {exc.strerror or exc}") from exc

    def _read(self, size: int, deadline: float) -> bytes:
        found = bytearray()
        while len(found) < size:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise LostError(f"{self.where}: no answer within {self.answer_s:g} s")
            self._socket.settimeout(left_s)
            try:
                part = self._socket.recv(size - len(found))
            except OSError as exc:
                raise LostError(f"{self.where}: {exc.strerror or exc}") from exc
            if not part:
                raise LostError(f"{self.where}: the broker has ended the connection")
            found += part
        return bytes(found)

    def _encrypt(self, host: str) -> None:
        try:
            trust = self._config.trust()
        except (OSError, ValueError) as exc:
            raise self._not_trusted(str(exc)) from exc
        try:
            self._socket = trust.wrap_socket(self._socket, server_hostname=host)
        except ssl.SSLError as exc:
            if was_cut(exc):
                raise LostError(f"{self.where}: the connection ended during the TLS handshake") from exc
            raise self._not_trusted(exc.reason or str(exc)) from exc
        except OSError as exc:
            raise LostError(f"{self.where}: {exc.strerror or exc}") from exc

    def _not_trusted(self, reason: str) -> OperatorError:
        return OperatorError(
            f"Kafka at {self.where}: no trusted TLS connection: {reason}",
            hint=TRUST_HINT,
        )

    def _agree(self) -> None:
        """Ask which versions of requests the broker takes."""
        asked = ApiVersionsRequest(
            version=_API_VERSIONS, client_software_name=_SOFTWARE, client_software_version=_SOFTWARE
        )
        answer = self.ask(asked)
        self._versions = {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys}
        if answer.error_code:
            raise OperatorError(f"Kafka at {self.where} is too old", hint="brokers of 2.8 or newer are needed")
        self.features = {each.name: each.max_version_level for each in answer.finalized_features or ()}

    def _log_in(self, host: str) -> None:
        mechanism = str(self._config.options.get("sasl_mechanism", ""))
        try:
            login = get_sasl_mechanism(mechanism)(host=host, **{**self._config.options, "sasl_mechanism": mechanism})
            answer = self.ask(SaslHandshakeRequest(mechanism=mechanism, version=1))
            if answer.error_code:
                raise self._not_let_in(f"it knows {', '.join(answer.mechanisms)}, not {mechanism}")
            while not login.is_done():
                answer = self.ask(SaslAuthenticateRequest(login.auth_bytes()))
                if answer.error_code:
                    raise self._not_let_in(answer.error_message or f"error {answer.error_code}")
                login.receive(answer.auth_bytes)
            if not login.is_authenticated():
                raise self._not_let_in("the broker is not who it should be")
        except (KeyError, ValueError, AssertionError, ClientError) as exc:
            raise self._not_let_in(f"{type(exc).__name__} in {mechanism}") from exc
        lifetime_ms = getattr(answer, "session_lifetime_ms", 0)
        if lifetime_ms:
            self._expires_s = time.monotonic() + lifetime_ms / 1000 * _LIFETIME_USED

    def _not_let_in(self, reason: str) -> OperatorError:
        return OperatorError(
            f"Kafka at {self.where} refuses the login: {reason}",
            hint=LOGIN_HINT,
        )


def _chunks(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Join pieces to larger chunks. A large piece is a chunk by itself: it is not copied, and never are all at once."""
    small: list[bytes] = []
    size = 0
    for piece in pieces:
        large = len(piece) >= _CHUNK_BYTES
        if small and (large or size >= _CHUNK_BYTES):
            yield b"".join(small)
            small, size = [], 0
        if large:
            yield piece
        else:
            small.append(piece)
            size += len(piece)
    if small:
        yield b"".join(small)


def answered(version: int, answer: bytes) -> tuple[ErrorCodes, int]:
    """Return the codes of an answer to `produce`, without its header, and for how many ms to send nothing."""
    usual = produce_request.codes(version, answer)
    if usual is not None:
        return usual, produce_request.throttle_ms(answer)
    made = ProduceResponse[version].decode(io.BytesIO(answer))
    codes = [
        (topic.name, [(each.index, each.error_code) for each in topic.partition_responses]) for topic in made.responses
    ]
    return codes, int(made.throttle_time_ms or 0)


_told_of_quota_s: dict[str, float] = {}


def tell_of_quota(where: str, client_id: str, wait_s: float) -> None:
    """Say now and then that a broker slows the connector down."""
    now = time.monotonic()
    if wait_s >= _THROTTLE_TOLD_S and now - _told_of_quota_s.get(where, float("-inf")) >= _QUOTA_TOLD_EVERY_S:
        _told_of_quota_s[where] = now
        log.warning(
            "Kafka at %s: a quota is used up: sending waits for %.1f s; its quotas of the user or of client.id %s: "
            "kafka-configs.sh --bootstrap-server %s --describe --entity-type users --entity-type clients",
            where, wait_s, client_id, where,
        )  # fmt: skip
