"""Fetches the tokens that brokers take as a login (SASL OAUTHBEARER) from an identity provider, by client credentials.

The options have librdkafka's names, which fetches tokens for the clients that read: RFC 6749, section 4.4.
"""

from __future__ import annotations

import base64
import json
import ssl
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any, Final

from kafka.net.sasl.oauth import AbstractTokenProvider

from cdc.machine.hosts import is_local
from cdc.model.errors import ConfigError, OperatorError, RetryableError

OPTIONS: Final = (
    "sasl.oauthbearer.method",
    "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.secret",
    "sasl.oauthbearer.token.endpoint.url",
    "sasl.oauthbearer.scope",
    "sasl.oauthbearer.extensions",
    "https.ca.location",
)
_NEEDED: Final = OPTIONS[1:4]
_WITHIN_S: Final = 10.0
_LIFETIME_USED: Final = 0.8
"""Of a token's lifetime: it must still hold when the broker looks at it."""
_SHORT_S: Final = 60.0
"""The lifetime of a token whose provider does not state it."""
_ANSWER_BYTES: Final = 1 << 20


def wanted(options: Mapping[str, str]) -> bool:
    """Whether the login is by a token."""
    return options.get("sasl.mechanism", options.get("sasl.mechanisms", "")).upper() == "OAUTHBEARER"


def in_the_clear(options: Mapping[str, str]) -> bool:
    """Whether the client's secret travels to another machine without encryption."""
    url = urllib.parse.urlsplit(options.get("sasl.oauthbearer.token.endpoint.url", ""))
    return url.scheme == "http" and not is_local(url.hostname or "", "")


class Tokens(AbstractTokenProvider):  # type: ignore[misc]  # kafka-python has no types
    """Gives a token that holds; it is fetched when the last one is about to expire.

    Raises ConfigError for options that are missing, OperatorError where the provider refuses, RetryableError where it
    does not answer.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__()
        missing = [name for name in _NEEDED if not options.get(name)]
        if missing or options.get("sasl.oauthbearer.method", "oidc").lower() != "oidc":
            what = f"{', '.join(missing)} missing" if missing else "sasl.oauthbearer.method is not oidc"
            raise ConfigError(
                f"sink.options: a login by OAUTHBEARER needs a provider of tokens: {what}",
                hint=f"set sasl.oauthbearer.method: oidc, and {', '.join(_NEEDED)}",
            )
        self._id, secret, self._url = (options[name] for name in _NEEDED)
        if not self._url.startswith(("https://", "http://")):
            raise ConfigError(
                "sink.options: sasl.oauthbearer.token.endpoint.url is no address of the web", hint="https://HOST/PATH"
            )
        self._secret = secret
        self._scope = options.get("sasl.oauthbearer.scope", "")
        pairs = filter(None, options.get("sasl.oauthbearer.extensions", "").split(","))
        self._extensions = dict(pair.strip().partition("=")[::2] for pair in pairs)
        self._authority = options.get("https.ca.location")
        self._lock = threading.Lock()
        self._token, self._holds_until_s = "", float("-inf")

    def token(self) -> str:
        with self._lock:
            if time.monotonic() >= self._holds_until_s:
                self._token, lifetime_s = self._fetched()
                self._holds_until_s = time.monotonic() + lifetime_s * _LIFETIME_USED
            return self._token

    def extensions(self) -> dict[str, str]:
        return self._extensions

    def _fetched(self) -> tuple[str, float]:
        """Return a new token, and how long it holds."""
        login = base64.b64encode(f"{urllib.parse.quote(self._id)}:{urllib.parse.quote(self._secret)}".encode()).decode()
        form = {"grant_type": "client_credentials", **({"scope": self._scope} if self._scope else {})}
        request = urllib.request.Request(  # noqa: S310 - the scheme was looked at
            self._url,
            data=urllib.parse.urlencode(form).encode(),
            headers={"Authorization": f"Basic {login}", "Accept": "application/json"},
        )
        try:
            context = ssl.create_default_context(cafile=self._authority)
            with urllib.request.urlopen(request, timeout=_WITHIN_S, context=context) as answer:  # noqa: S310 - the same
                said: Any = json.loads(answer.read(_ANSWER_BYTES))
            return str(said["access_token"]), float(said.get("expires_in") or _SHORT_S)
        except urllib.error.HTTPError as exc:
            with exc:
                if exc.code < 500 and exc.code != 429:  # noqa: PLR2004 - HTTP's own numbers
                    raise OperatorError(
                        f"the provider of tokens at {self._url} refuses: HTTP {exc.code}",
                        hint="is sink.options sasl.oauthbearer.client.id right, and its secret, and the scope?",
                    ) from None
                raise RetryableError(f"the provider of tokens at {self._url} fails: HTTP {exc.code}") from None
        except (ValueError, KeyError, TypeError) as exc:
            raise OperatorError(
                f"the provider of tokens at {self._url} gives no token",
                hint="is sasl.oauthbearer.token.endpoint.url the token endpoint (token_endpoint in the provider's "
                "/.well-known/openid-configuration)?",
            ) from exc
        except OSError as exc:
            reason = getattr(exc, "reason", None) or exc.strerror or type(exc).__name__
            raise RetryableError(f"the provider of tokens at {self._url} does not answer: {reason}") from exc
