"""Says what the Kafka clients' exceptions mean to us: what passes is retried, what a person must change is named."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import confluent_kafka
from confluent_kafka import KafkaException
from kafka.errors import AuthorizationError, KafkaConfigurationError
from kafka.errors import KafkaError as ClientError

from cdc.machine.tls import says_cut
from cdc.model.errors import CdcError, OperatorError, RetryableError

DRIVER_ERRORS: Final = (
    KafkaException, ClientError, BufferError, OSError, ValueError, SystemError, RuntimeError, AssertionError,
    LookupError, TypeError, AttributeError,
)  # fmt: skip
"""All that the two clients raise; the last ones for an answer that is not Kafka's."""

_Codes = confluent_kafka.KafkaError
_FORBIDDEN: Final = frozenset(
    {
        _Codes.TOPIC_AUTHORIZATION_FAILED, _Codes.GROUP_AUTHORIZATION_FAILED, _Codes.CLUSTER_AUTHORIZATION_FAILED,
        _Codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, _Codes.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
    }
)  # fmt: skip
NO_GROUP: Final = _Codes.GROUP_AUTHORIZATION_FAILED
"""A reader that is given its partitions takes no part in the group that the client wants named, and needs no right to
it: records come all the same."""
_LOGIN: Final = frozenset(
    {
        _Codes._AUTHENTICATION, _Codes.SASL_AUTHENTICATION_FAILED, _Codes.UNSUPPORTED_SASL_MECHANISM,  # noqa: SLF001 - public names
        _Codes.ILLEGAL_SASL_STATE, _Codes.DELEGATION_TOKEN_EXPIRED,
    }
)  # fmt: skip
_SETTINGS: Final = frozenset(
    {
        _Codes.TOPIC_EXCEPTION, _Codes.INVALID_PARTITIONS, _Codes.INVALID_REPLICATION_FACTOR, _Codes.INVALID_CONFIG,
        _Codes.POLICY_VIOLATION, _Codes.UNSUPPORTED_VERSION, _Codes.SECURITY_DISABLED, _Codes._INVALID_ARG,  # noqa: SLF001
        _Codes._UNSUPPORTED_FEATURE, _Codes._NOT_IMPLEMENTED,  # noqa: SLF001
    }
)  # fmt: skip
_SSL: Final = _Codes._SSL  # noqa: SLF001
LOGIN_HINT: Final = (
    "set sink.options sasl.mechanism, sasl.username and sasl.password (through ${NAME} or ${file:/path})"
)
TRUST_HINT: Final = (
    "sink.options: {ssl.ca.location: /path/to/ca.pem}; bootstrap_servers must name a host of the certificate: "
    "openssl s_client -connect HOST:PORT -showcerts"
)
_GRANT_HINT: Final = (
    "grant the connector's user what is missing: kafka-acls.sh --add; cdc check CONNECTOR.yaml lists it"
)
_GO_ON: Final = "nothing is lost: is the broker up? cdc check CONNECTOR.yaml asks it for all that a run needs"


def translate(exc: Exception, servers: str, doing: str, *, at_start: Collection[int] = ()) -> CdcError:
    """Return what a client's exception means; codes of `at_start` are waited for before a first run, too."""
    code, reason = _code_and_reason(exc)
    what = f"Kafka at {servers}: {doing} failed: {reason}"
    if code in _FORBIDDEN or isinstance(exc, AuthorizationError):
        return OperatorError(what, hint=_GRANT_HINT)
    if code in _LOGIN:
        return OperatorError(what, hint=LOGIN_HINT)
    if code == _SSL and not says_cut(reason):
        return OperatorError(what, hint=TRUST_HINT)
    if code in _SETTINGS or isinstance(exc, KafkaConfigurationError):
        return OperatorError(what, hint="cdc check CONNECTOR.yaml asks the brokers for all that a run needs")
    return RetryableError(what, hint=_GO_ON, at_start=code in at_start)


def _code_and_reason(exc: Exception) -> tuple[int | None, str]:
    """Return Kafka's number, if there is one, and words without a value: those of foreign exceptions may have one."""
    if isinstance(exc, KafkaException):
        error = exc.args[0] if exc.args else None
        if isinstance(error, confluent_kafka.KafkaError):
            return error.code(), error.str()
        return None, str(error or type(exc).__name__)
    if isinstance(exc, ClientError):
        return getattr(exc, "errno", None), type(exc).__name__
    if isinstance(exc, OSError):
        return None, exc.strerror or type(exc).__name__
    return None, type(exc).__name__
