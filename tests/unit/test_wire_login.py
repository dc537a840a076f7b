"""What a connection makes of brokers that are too old, or do not let it in."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any, Final

import pytest
from kafka.protocol.metadata import ApiVersionsResponse, MetadataRequest
from kafka.protocol.producer import AddPartitionsToTxnRequest, InitProducerIdRequest, ProduceRequest
from kafka.protocol.sasl import SaslAuthenticateResponse, SaslHandshakeResponse

from cdc.model.errors import OperatorError
from sinks.client import connection as wire
from sinks.client.connection import LostError
from tests.scripted.server import Asked, Connecting, Script, agree, connection_config, metadata

SECRET: Final = "hunter2"
LOGIN: Final[dict[str, object]] = {
    "security_protocol": "SASL_PLAINTEXT",
    "sasl_mechanism": "PLAIN",
    "sasl_plain_username": "shop",
    "sasl_plain_password": SECRET,
}
METADATA, HANDSHAKE, API_VERSIONS, AUTHENTICATE = 3, 17, 18, 36


@pytest.fixture
def connect() -> Iterator[Connecting]:
    """Connect to a broker that follows a script."""
    made = Connecting()
    yield made
    made.close()


# ---- versions ----


def _old(asked: Asked) -> None:
    kind = ApiVersionsResponse.ApiVersion
    asked.send(ApiVersionsResponse(version=3, error_code=0, api_keys=[kind(api_key=0, min_version=0, max_version=2)]))


def test_a_request_that_the_broker_does_not_know_is_the_operators(connect: Connecting) -> None:
    """It says which, and what is needed; a cluster may have no features."""
    connection, _ = connect({API_VERSIONS: _old})
    assert connection.features == {}
    assert connection.version(ProduceRequest, 11) == 2
    with pytest.raises(OperatorError, match="does not take InitProducerIdRequest") as refused:
        connection.version(InitProducerIdRequest)
    assert "2.8 or newer" in str(refused.value.hint)


def test_a_request_in_a_version_older_than_its_oldest_is_the_operators(connect: Connecting) -> None:
    """Of AddPartitionsToTxn the newer ones are not for clients."""
    connection, _ = connect({})
    with pytest.raises(OperatorError, match=r"AddPartitionsToTxnRequest as it is sent \(versions 4 to 5\)"):
        connection.version(AddPartitionsToTxnRequest, 3)


def test_a_broker_that_cannot_tell_its_versions_is_too_old(connect: Connecting) -> None:
    """It answers in the oldest version there is, with the error in it."""
    with pytest.raises(OperatorError, match=r"127\.0\.0\.1:[0-9]+ is too old") as refused:
        connect({API_VERSIONS: partial(agree, error=35, version=0)})
    assert "2.8 or newer" in str(refused.value.hint)


def test_a_broker_that_ends_the_connection_at_once_is_lost(connect: Connecting) -> None:
    """One that awaits TLS does, as does one that is just starting."""
    with pytest.raises(LostError, match=r"127\.0\.0\.1:[0-9]+: the broker has ended the connection"):
        connect({API_VERSIONS: Asked.hang_up})


# ---- logging in ----


def _shaken(asked: Asked, error: int = 0) -> None:
    asked.send(SaslHandshakeResponse(version=1, error_code=error, mechanisms=["SCRAM-SHA-512", "GSSAPI"]))


def _judged(asked: Asked, error: int = 0, lifetime_ms: int = 0) -> None:
    said = "Authentication failed" if error else None
    answer = SaslAuthenticateResponse(version=asked.version, error_code=error, error_message=said)
    answer.auth_bytes, answer.session_lifetime_ms = b"", lifetime_ms
    asked.send(answer)


def _is_not_let_in(connect: Connecting, script: Script, reason: str, **options: object) -> None:
    """It says why, and what to set; and nowhere the password."""
    with pytest.raises(OperatorError, match=f"refuses the login: {reason}") as refused:
        connect(script, {**LOGIN, **options})
    assert "sasl.username and sasl.password" in str(refused.value.hint)
    error: BaseException | None = refused.value
    while error is not None:
        assert SECRET not in f"{error} {error!r} {getattr(error, 'hint', '')}"
        error = error.__cause__


def test_a_login_is_sent_once_the_broker_has_agreed_to_it(connect: Connecting) -> None:
    """Then requests are taken."""
    script: Script = {HANDSHAKE: _shaken, AUTHENTICATE: _judged, METADATA: lambda asked: asked.send(metadata(asked))}
    connection, broker = connect(script, LOGIN)
    answer: Any = connection.ask(MetadataRequest(topics=None))
    assert answer.topics == []
    assert [asked.key for asked in broker.asked] == [API_VERSIONS, HANDSHAKE, AUTHENTICATE, METADATA]
    assert SECRET.encode() in broker.asked[2].body
    assert connection.usable


def test_a_mechanism_that_the_broker_does_not_know_is_the_operators(connect: Connecting) -> None:
    """It says which ones there are."""
    _is_not_let_in(connect, {HANDSHAKE: partial(_shaken, error=33)}, "it knows SCRAM-SHA-512, GSSAPI, not PLAIN")


def test_a_login_that_is_refused_is_the_operators(connect: Connecting) -> None:
    """In the broker's words."""
    _is_not_let_in(connect, {HANDSHAKE: _shaken, AUTHENTICATE: partial(_judged, error=58)}, "Authentication failed")


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "SCRAM-SHA-256"])
def test_a_broker_that_does_not_know_the_password_is_not_believed(connect: Connecting, mechanism: str) -> None:
    """By SCRAM it must show that it does."""
    script: Script = {HANDSHAKE: _shaken, AUTHENTICATE: _judged}
    _is_not_let_in(connect, script, f"[A-Za-z]+ in {mechanism}", sasl_mechanism=mechanism)


def test_a_broker_that_shows_the_wrong_thing_is_not_believed(
    connect: Connecting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it says of us."""
    login = SimpleNamespace(
        is_done=iter([False, True]).__next__, auth_bytes=lambda: b"x", receive=bytes, is_authenticated=lambda: False
    )
    monkeypatch.setattr(wire, "get_sasl_mechanism", lambda _: lambda **_: login)
    _is_not_let_in(connect, {HANDSHAKE: _shaken, AUTHENTICATE: _judged}, "the broker is not who it should be")


@pytest.mark.parametrize("mechanism", ["", "PLAINN", "plain "])
def test_a_mechanism_that_nobody_knows_is_the_operators(connect: Connecting, mechanism: str) -> None:
    """As is none at all."""
    _is_not_let_in(connect, {HANDSHAKE: _shaken}, ".", sasl_mechanism=mechanism)


def test_a_login_is_not_used_to_its_end(connect: Connecting) -> None:
    """The broker would end the connection in the middle of a request."""
    connection, _ = connect({HANDSHAKE: _shaken, AUTHENTICATE: partial(_judged, lifetime_ms=3_600_000)}, LOGIN)
    assert connection.usable
    connection._expires_s -= 3600 * 0.86
    assert not connection.usable


def test_a_connection_config_tells_no_secret() -> None:
    """Wherever it is printed."""
    made = connection_config(LOGIN)
    assert SECRET not in f"{made} {made!r}"
    assert made.protocol == "SASL_PLAINTEXT"


def test_an_authority_that_cannot_be_read_is_the_operators(connect: Connecting) -> None:
    """No waiting makes a file."""
    with pytest.raises(OperatorError):
        connect({}, {"security_protocol": "SSL", "ssl_cafile": "/nowhere/ca.pem"})
