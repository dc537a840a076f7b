"""Finds out why no broker answers, from the client that says it best and soonest."""

from __future__ import annotations

import difflib
import functools
import logging
import re
import sys
import time
from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from cdc.machine.tls import says_cut
from cdc.model.errors import ConfigError, OperatorError, RetryableError
from sinks.client import oidc
from sinks.client.failures import LOGIN_HINT, TRUST_HINT
from sinks.client.options import KNOWN

_SILENT: Final = logging.getLogger("cdc.kafka.unheard")
_SILENT.disabled = True
_HEARD_WITHIN_S: Final = 8.0
_LOGIN: Final = {KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED}  # noqa: SLF001 - public names of it
_TLS: Final = {KafkaError._SSL}  # noqa: SLF001

_OUTSIDE: Final = re.compile(r'property "([^"]+)" value \S+ is outside allowed range (-?\d+)\.\.(-?\d+)')
_OTHER_NAMES: Final = {
    "queue.buffering.max.ms": "linger.ms",
    "compression.codec": "compression.type",
    "message.send.max.retries": "retries",
    "message.timeout.ms": "delivery.timeout.ms",
    "request.required.acks": "acks",
    "max.in.flight.requests.per.connection": "max.in.flight",
}
_WRONG: Final = re.compile(r'(No such|Invalid value).*configuration property:? "([^"]*)"')
_PROTOCOLS: Final = "security.protocol is PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL"
_NO_TLS: Final = "connecting to a PLAINTEXT broker listener"

log = logging.getLogger("cdc.kafka")


def refuse_untrusted(servers: str, options: Mapping[str, str]) -> None:
    """Raise OperatorError at once for a login or a certificate that is refused; kafka-python would go on trying.

    Raises ConfigError for an option that is none: a client that does not know it would go on without encryption.
    """
    _refuse_wrong(tuple(sorted(options.items())))
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
    if sys.flags.optimize:
        return RetryableError(
            f"Kafka at {servers} cannot be reached by a Python without assertions: its client does not work so",
            hint="take python -O, or PYTHONOPTIMIZE, away",
        )
    return RetryableError(
        f"Kafka at {servers} cannot be reached",
        hint="is it running, and is the address right? A listener with TLS or a login closes connections that come "
        "without: sink.options: security.protocol",
    )


@functools.cache
def _refuse_wrong(options: tuple[tuple[str, str], ...]) -> None:
    """Raise ConfigError for options that Kafka's client does not take. It is asked once: each client has threads."""
    try:
        AdminClient({name: value for name, value in options if name not in oidc.OPTIONS}, logger=_SILENT)
    except TypeError:  # what a client is given by Python alone: a function to be called
        raise ConfigError(
            "options: one of them has a value that it cannot have", hint="a function cannot be set in a file"
        ) from None
    except KafkaException as exc:
        error = exc.args[0] if exc.args else None
        told = error.str() if isinstance(error, KafkaError) else ""
        if (range_ := _OUTSIDE.search(told)) is not None:
            name = _as_given(range_[1], dict(options))
            raise ConfigError(
                f"options: {name} has a value that it cannot have", hint=f"{name}: from {range_[2]} to {range_[3]}"
            ) from None
        wrong = _WRONG.search(told)
        if wrong is None:  # for example, the file of an authority cannot be read
            return
        name = _as_given(wrong[2], dict(options))
        if wrong[1] == "No such":
            near = difflib.get_close_matches(name.replace("_", "."), KNOWN, n=1)
            hint = f"did you mean {near[0]}?" if near else f"leave it out; of those that count: {', '.join(KNOWN)}"
            raise ConfigError(f"options: “{name}” is no property of Kafka's clients", hint=hint) from None
        hint = _PROTOCOLS if name == "security.protocol" else f"librdkafka's CONFIGURATION.md has the values of {name}"
        raise ConfigError(f"options: {name} has a value that it cannot have", hint=hint) from None


def _as_given(name: str, options: Mapping[str, str]) -> str:
    """Return a property by the name that the file has for it: the client tells of it by another one."""
    other = _OTHER_NAMES.get(name, name)
    return other if name not in options and other in options else name


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
    without_tls = [error for error in heard if _NO_TLS in error.str()]
    if without_tls and all(error in without_tls or error.code() not in _TLS for error in heard):
        raise RetryableError(
            f"Kafka at {servers} cannot be reached: it closes each connection as TLS begins",
            hint="a listener without TLS does that: the address of its TLS listener, or another security.protocol",
        )
    return None
