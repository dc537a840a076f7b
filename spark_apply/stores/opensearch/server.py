"""Connects to an OpenSearch server."""

from __future__ import annotations

import functools
import logging
from typing import Any, Final
from urllib.parse import urlsplit

from opensearchpy import OpenSearch

from cdc.config.apply_config import StoreConfig
from cdc.machine.hosts import is_local
from cdc.model.errors import ConfigError

OPTIONS: Final = ("username", "password", "ca_certs", "verify_certs")
"""What a connection may be given."""

log: Final = logging.getLogger("cdc.apply")


def connected(config: StoreConfig, name: str, prefix: str) -> OpenSearch:
    """Return a client of the server at the url of `config`, which is asked first when a copy is opened or read.

    What does not answer concerns no other store. Raises ConfigError for what can never be a server's.
    """
    if config.url is None:
        raise ConfigError(f"stores.{name}: url is missing", hint="url: http://127.0.0.1:9200")
    url = urlsplit(config.url)
    if url.scheme not in ("http", "https") or not url.hostname:
        raise ConfigError(
            f"stores.{name}.url does not begin with http:// or https://", hint="url: http://127.0.0.1:9200"
        )
    if prefix[0] in "-_":
        msg = f"stores.{name}: an index cannot be named after topic_prefix “{prefix}”"
        raise ConfigError(msg, hint="a prefix that begins with a letter or a digit")
    if url.scheme == "http" and not is_local(url.hostname or "", ""):
        _warn(name)
    options: dict[str, Any] = {option: value for option, value in config.options.items() if option in OPTIONS}
    if "username" in options:
        options["http_auth"] = (str(options.pop("username")), str(options.pop("password", "")))
    client = OpenSearch(config.url, timeout=60, max_retries=0, **options)
    logging.getLogger("opensearch").setLevel(logging.CRITICAL)  # it prints requests; failures are raised as ours
    return client


@functools.cache
def _warn(name: str) -> None:
    """Warn once: a command may connect several times."""
    log.warning("OpenSearch of stores.%s: http sends password and rows to another host unencrypted; use https", name)
