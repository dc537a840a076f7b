"""Settings and answers of Kafka's clients: those here, and those that Spark has in the JVM."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from confluent_kafka import KafkaError, KafkaException

from cdc.config.apply_config import ApplySource
from cdc.model.errors import ConfigError, OperatorError

ANSWER_WITHIN_S = 10.0
FETCH_WAIT_MS = 20
"""What is read is known to be there: waiting for more would only delay the end of each batch."""

_RECONNECT_MS = 10
_LED_WITHIN_S = 10.0
_NO_LEADER = {
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.OFFSET_NOT_AVAILABLE,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
}

_FORBIDDEN = {KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED}
_LOGINS = {
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.UNSUPPORTED_SASL_MECHANISM,
    KafkaError.ILLEGAL_SASL_STATE,
    KafkaError._AUTHENTICATION,  # noqa: SLF001 - the client's own
}
_UNTRUSTED, _UNFIT = KafkaError._SSL, KafkaError._INVALID_ARG  # noqa: SLF001
NO_GROUP = KafkaError.GROUP_AUTHORIZATION_FAILED
"""A reader that is given its partitions takes no part in the group that the client wants named, and needs no right to
it: records come all the same."""

_Answer = TypeVar("_Answer")

_JVM_NAMES = {"sasl.mechanisms": "sasl.mechanism", "ssl.ca.location": "ssl.truststore.location"}
_JVM_SHARED = ("security.protocol", "sasl.mechanism", "client.id", "client.rack", "metadata.max.age.ms")
OPTIONS = (*_JVM_SHARED, *_JVM_NAMES, "sasl.username", "sasl.password")
"""The client properties that an apply job accepts."""


def client_settings(source: ApplySource) -> dict[str, str | int | float | bool]:
    """Return the settings of every Kafka client here. They live shortly, so the reconnect backoff is short."""
    soon = {"reconnect.backoff.ms": _RECONNECT_MS}
    return {**soon, **source.options, "bootstrap.servers": source.bootstrap_servers, "log_level": 0}


class UnansweredError(OperatorError):
    """Kafka gives no answer to a question: it concerns no table, and no copy is set aside for it."""


class NoAnswerError(UnansweredError):
    """No broker answers, or nobody leads a partition: it may pass."""


class ForbiddenError(UnansweredError):
    """This user may not ask, or cannot log in: it does not pass by itself."""


def unreachable(source: ApplySource, exc: KafkaException) -> UnansweredError:
    """Translate the client's error; a right or a login that is refused is an answer, and does not pass."""
    error = exc.args[0] if exc.args and isinstance(exc.args[0], KafkaError) else None
    reason = type(exc).__name__ if error is None else error.name()
    if error is not None and error.code() in _FORBIDDEN:
        return ForbiddenError(
            f"Kafka at {source.bootstrap_servers} refuses the user of source.options what the job asks for ({reason})",
            hint="docs/operations.md, “Rights in Kafka”, has what it needs; kafka-acls.sh --list shows what it has",
        )
    if error is not None and error.code() in _LOGINS:
        msg = f"Kafka at {source.bootstrap_servers} refuses the login ({reason})"
        return ForbiddenError(msg, hint="correct source.options: sasl.username, sasl.password, sasl.mechanisms")
    if error is not None and error.code() == _UNTRUSTED:
        msg = f"Kafka at {source.bootstrap_servers}: no trusted TLS connection ({reason})"
        return NoAnswerError(msg, hint="if it does not pass: source.options, security.protocol and ssl.ca.location")
    if error is not None and error.code() == _UNFIT:
        msg = f"Kafka at {source.bootstrap_servers} cannot be asked: its client does not take source.options ({reason})"
        return ForbiddenError(msg, hint="docs/apply-reference.md has the properties that are taken")
    if error is not None and error.code() in _NO_LEADER:
        return leaderless(f"Kafka at {source.bootstrap_servers}: a partition has no leader ({reason})")
    msg = f"Kafka at {source.bootstrap_servers} does not answer ({reason})"
    hint = (
        "is the broker up, and source.bootstrap_servers right? If both are, this machine must reach the addresses of "
        "its advertised.listeners, too. cdc dev up kafka starts one here"
    )
    return NoAnswerError(msg, hint=hint)


def leaderless(message: str) -> NoAnswerError:
    """Return the error of a cluster that answers, but for partitions that no broker leads."""
    hint = "kafka-topics.sh --describe --unavailable-partitions lists them, with the brokers that have them: start one"
    return NoAnswerError(message, hint=hint)


def ask_leader(ask: Callable[[], _Answer]) -> _Answer:
    """Ask a broker about partitions. Raises KafkaException.

    A partition without a leader (it was just created, or its leader failed) is waited for, up to 10 s.
    """
    until = time.monotonic() + _LED_WITHIN_S
    while True:
        try:
            return ask()
        except KafkaException as exc:
            if exc.args[0].code() not in _NO_LEADER or time.monotonic() > until:
                raise
        time.sleep(0.05)


def jvm_options(options: Mapping[str, str]) -> dict[str, str]:
    """Translate client properties of librdkafka to the JVM client's. Raises ConfigError for one without counterpart."""
    named = {_JVM_NAMES.get(name, name): value for name, value in options.items()}
    unknown = sorted(set(named) - {*_JVM_SHARED, "ssl.truststore.location", "sasl.username", "sasl.password"})
    if unknown:
        msg = f"source.options.{unknown[0]}: the apply job cannot hand this to Spark's Kafka client"
        raise ConfigError(msg, hint=f"allowed here: {', '.join(sorted(OPTIONS))}")
    found = {name: value for name, value in named.items() if name in _JVM_SHARED}
    if "ssl.truststore.location" in named:
        found |= {"ssl.truststore.location": named["ssl.truststore.location"], "ssl.truststore.type": "PEM"}
    if "sasl.username" in named:
        login = "scram.ScramLoginModule" if "SCRAM" in named.get("sasl.mechanism", "") else "plain.PlainLoginModule"
        user, password = (_quoted(named.get(name, "")) for name in ("sasl.username", "sasl.password"))
        found["sasl.jaas.config"] = (
            f"org.apache.kafka.common.security.{login} required username={user} password={password};"
        )
    return found


def _quoted(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
