"""Finds out why no broker answers, from the client that says it best and soonest."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from cdc.machine.tls import says_cut
from cdc.model.errors import OperatorError, RetryableError
from sinks.client import oidc
from sinks.client.failures import LOGIN_HINT, TRUST_HINT

_HEARD_WITHIN_S: Final = 8.0
_LOGIN: Final = {KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED}  # noqa: SLF001 - public names of it
_TLS: Final = {KafkaError._SSL}  # noqa: SLF001

log = logging.getLogger("cdc.kafka")


def refuse_untrusted(servers: str, options: Mapping[str, str]) -> None:
    """Raise OperatorError at once for a login or a certificate that is refused; kafka-python would go on trying."""
    if oidc.wanted(options):
        oidc.Tokens(
            options
        ).token()  # who refuses is the provider, or the broker: the client tells neither from the other
    error = _complaint(servers, options) if "security.protocol" in options else None
    if error is None:
        return
    reason = error.str().split(": ", 1)[-1][:300]
    if error.code() in _LOGIN:
        raise OperatorError(
            f"Kafka at {servers} refuses the login: {reason}",
            hint=LOGIN_HINT,
        )
    raise OperatorError(
        f"Kafka at {servers}: no trusted TLS connection: {reason}",
        hint=TRUST_HINT,
    )


def unreachable(servers: str) -> RetryableError:
    """Return the error that says that no broker answers."""
    return RetryableError(f"Kafka at {servers} cannot be reached", hint="is it running, and is the address right?")


def _complaint(servers: str, options: Mapping[str, str]) -> KafkaError | None:
    """Return why no broker trusts us or is trusted; None where one answers, or nothing explains it."""
    heard: list[KafkaError] = []
    settings: dict[str, Any] = {**options, "bootstrap.servers": servers, "error_cb": heard.append}
    try:
        client = AdminClient(settings, logger=log)
    except KafkaException as exc:  # for example, the file of an authority cannot be read
        return exc.args[0] if exc.args and isinstance(exc.args[0], KafkaError) else None
    deadline = time.monotonic() + _HEARD_WITHIN_S
    while time.monotonic() < deadline:
        try:
            client.list_topics(timeout=0.5)
        except KafkaException:
            client.poll(0)
        else:
            return None
        for error in heard:
            if error.code() in _LOGIN or (error.code() in _TLS and not says_cut(error.str())):
                return error
    return None
