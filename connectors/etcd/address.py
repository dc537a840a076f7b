"""Reads the URL of an etcd cluster: endpoints, who logs in, TLS."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qsl, unquote

from cdc.machine.hosts import is_local_name
from cdc.model.errors import ConfigError, OperatorError

SCHEME: Final = "etcd://"
MODES: Final = ("verify_identity", "verify_ca", "required", "disabled")
OPTIONS: Final = frozenset({"ssl_mode", "ssl_ca", "ssl_cert", "ssl_key"})
_PORT: Final = 2379
_LAST_PORT: Final = 65_535
_HINT: Final = "url: etcd://user:${PASSWORD}@host1:2379,host2:2379"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Is where one member listens for clients."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Address:
    """Says where a cluster is, and who logs in; no secret in its repr."""

    endpoints: tuple[Endpoint, ...]
    user: str
    password: str = field(repr=False)
    ssl_mode: str = "disabled"
    ssl_ca: str | None = None
    ssl_cert: str | None = None
    ssl_key: str | None = None

    @property
    def named(self) -> str:
        """Return the endpoints for messages."""
        return ", ".join(map(str, self.endpoints))


def address(url: str) -> Address:
    """Read a URL. Raises ConfigError, which never repeats the URL."""
    if not url.startswith(SCHEME):
        raise ConfigError("source.url is not the URL of an etcd cluster", hint=_HINT)
    rest, _, query = url.removeprefix(SCHEME).partition("?")
    login, at, hosts = rest.rstrip("/").rpartition("@")
    user, _, password = login.partition(":")
    try:
        endpoints = tuple(_endpoint(part) for part in hosts.split(","))
        given = dict(parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query)))
    except ValueError:
        endpoints, given = (), {}
    if not endpoints or "/" in hosts or "@" in login or (at and not user):
        raise ConfigError(
            "source.url cannot be parsed",
            hint="percent-encode /, @, : and % in user and password: etcd://user:p%40ss@host1:2379,host2:2379; "
            "a port is 1 to 65535; IPv6 in brackets: [::1]:2379",
        )
    unknown = sorted(given.keys() - OPTIONS)
    if unknown:
        raise ConfigError(
            f"source.url has options that are not known: {', '.join(unknown)}",
            hint=f"known: {', '.join(sorted(OPTIONS))}",
        )
    plain = all(is_local_name(each.host) for each in endpoints) and not given
    mode = given.get("ssl_mode", "disabled" if plain else "verify_identity").lower().replace("-", "_")
    if mode not in MODES:
        raise ConfigError(f"source.url: ssl_mode={mode} is not known", hint=f"one of {', '.join(MODES)}")
    return Address(
        endpoints, unquote(user), unquote(password), mode, given.get("ssl_ca"), given.get("ssl_cert"),
        given.get("ssl_key"),
    )  # fmt: skip


def _endpoint(text: str) -> Endpoint:
    has_port = text.count(":") == 1 or "]:" in text
    host, _, port = text.rpartition(":") if has_port else (text, "", "")
    if ":" in host and not host.startswith("["):
        raise ValueError("an address of IPv6 whose end cannot be told from a port")
    host = host.removeprefix("[").removesuffix("]")
    number = int(port) if port else _PORT
    if not host or not 0 < number <= _LAST_PORT:
        raise ValueError("no host, or no port")
    return Endpoint(host, number)


def weakness(at: Address) -> str | None:
    """Return what connections that leave this machine leave unchecked; None where all is checked or local."""
    if all(is_local_name(each.host) for each in at.endpoints):
        return None
    return {
        "verify_identity": None,
        "verify_ca": "ssl_mode=verify_ca does not check that the certificate is this host's",
        "required": "ssl_mode=required does not check who answers",
        "disabled": "ssl_mode=disabled sends password and rows unencrypted",
    }[at.ssl_mode]


def tls(at: Address) -> ssl.SSLContext | None:
    """Make what connections are encrypted with; None: nothing. Raises OperatorError for files that cannot be used."""
    if at.ssl_mode == "disabled":
        return None
    try:
        context = ssl.create_default_context(cafile=at.ssl_ca)
        if at.ssl_mode != "verify_identity":
            context.check_hostname = False
        if at.ssl_mode == "required":
            context.verify_mode = ssl.CERT_NONE
        if at.ssl_cert is not None:
            context.load_cert_chain(at.ssl_cert, at.ssl_key)
    except (OSError, ssl.SSLError) as exc:
        reason = getattr(exc, "reason", None) or exc.strerror or type(exc).__name__
        raise OperatorError(
            f"source.url: the files of ssl_ca, ssl_cert and ssl_key cannot be used: {reason}",
            hint="they must be PEM files that the connector's user can read: ls -l",
        ) from exc
    context.set_alpn_protocols(["http/1.1"])  # by HTTP/2 no answer could be asked for while others come
    return context
