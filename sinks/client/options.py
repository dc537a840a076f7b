"""Client options by librdkafka's names: carried over to kafka-python, and what they leave unchecked."""

from __future__ import annotations

import difflib
import functools
import logging
from collections.abc import Mapping
from typing import Any, Final

from cdc.config.kafka_config import brokers_of
from cdc.machine.hosts import is_local
from cdc.model.errors import ConfigError
from sinks.client import oidc

_CLIENT: Final = {
    "security.protocol": "security_protocol",
    "sasl.mechanism": "sasl_mechanism",
    "sasl.mechanisms": "sasl_mechanism",
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
    "ssl.ca.location": "ssl_cafile",
    "ssl.certificate.location": "ssl_certfile",
    "ssl.key.location": "ssl_keyfile",
    "ssl.key.password": "ssl_password",
    "ssl.endpoint.identification.algorithm": "ssl_check_hostname",
}
KNOWN: Final = (*_CLIENT, *oidc.OPTIONS)
"""Options of security, which all of our clients heed."""
_HOST_CHECKED: Final = "https"
_ONE_SIDED: Final = ("ssl.", "sasl.", "security.", "enable.ssl.")
"""Options of security: one that only one of the two clients knows is refused."""
QUICK: Final = {
    # A client's first connection waits for this long, as if an earlier one had just failed: 100 ms by default.
    "reconnect.backoff.ms": "5",
    # So long does a broker hold the answer that says "this is the end", which each partition's reading ends with.
    "fetch.wait.max.ms": "10",
}
"""For clients that live for one question: most of a short topic's reading is waiting, otherwise."""

log = logging.getLogger("cdc")


def python_client(bootstrap_servers: str, options: Mapping[str, str]) -> dict[str, Any]:
    """Translate librdkafka's options to kafka-python's. Raises ConfigError for one it has no name for."""
    unknown = sorted(o for o in options if o.startswith(_ONE_SIDED) and o not in _CLIENT and o not in oidc.OPTIONS)
    if unknown:
        near = difflib.get_close_matches(unknown[0], KNOWN, n=1)
        raise ConfigError(
            f"sink.options: {', '.join(unknown)} is not known here",
            hint=f"did you mean {near[0]}?" if near else f"known: {', '.join(KNOWN)}",
        )
    mapped: dict[str, Any] = {_CLIENT[name]: value for name, value in options.items() if name in _CLIENT}
    mapped["ssl_check_hostname"] = mapped.get("ssl_check_hostname", _HOST_CHECKED) == _HOST_CHECKED
    if oidc.wanted(options):
        mapped["sasl_oauth_token_provider"] = oidc.Tokens(options)
    tell_of_weakness(bootstrap_servers, weakness(options, bootstrap_servers))
    return {"bootstrap_servers": brokers_of(bootstrap_servers), **mapped}


def weakness(options: Mapping[str, str], bootstrap_servers: str = "localhost") -> str | None:
    """Return what connections with these options leave unchecked; None where nothing is left out, or all stay here."""
    encrypted = options.get("security.protocol", "").upper().endswith("SSL")
    if encrypted and options.get("ssl.endpoint.identification.algorithm", _HOST_CHECKED) != _HOST_CHECKED:
        return "the broker's certificate is not checked to be that host's (ssl.endpoint.identification.algorithm)"
    if oidc.wanted(options) and oidc.in_the_clear(options):
        return "sasl.oauthbearer.token.endpoint.url is http: the client's secret is sent without encryption"
    if options.get("security.protocol", "").upper() == "SASL_PLAINTEXT":
        return "security.protocol=SASL_PLAINTEXT logs in without encryption and without knowing who answers"
    servers = brokers_of(bootstrap_servers)
    hosts = ",".join(server.rpartition(":")[0].strip("[]") or server for server in servers)
    if not encrypted and not is_local(hosts, ""):
        return (
            "security.protocol=PLAINTEXT sends rows to another host without encryption and without knowing who answers"
        )
    return None


@functools.cache
def tell_of_weakness(bootstrap_servers: str, weak: str | None) -> None:
    """Log once for each cluster what its connections do not check."""
    if weak is not None:
        log.warning("Kafka at %s: %s", bootstrap_servers, weak)
