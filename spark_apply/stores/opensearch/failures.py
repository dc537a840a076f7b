"""Tells what failed at the server, in words without values, and whether it passes by itself."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from opensearchpy.exceptions import ConnectionError as NotReached
from opensearchpy.exceptions import OpenSearchException, RequestError, SSLError, TransportError

from cdc.model.errors import CdcError, OperatorError, RetryableError
from spark_apply.spark.failures import StoreAwayError

PASSING: Final = frozenset({429, 502, 503, 504})
FORBIDDEN: Final = 403
_NOT_ALLOWED: Final = frozenset({401, FORBIDDEN})
_WORDS: Final = 300
BLOCKED = "cluster_block_exception"
CLOSED: Final = "index_closed_exception"
_CAUSE: Final = re.compile(r"/\d+/([a-z /(),()-]+)")
"""The server's words for a block: ``index [x] blocked by: [TOO_MANY_REQUESTS/12/disk usage exceeded …];``."""
_BLOCKED: Final = re.compile(r"index \[([^\]]+)\] blocked by")
_SET_BY_HAND: Final = {
    "index read-only (api)": "index.blocks.read_only",
    "index write (api)": "index.blocks.write",
    "index read (api)": "index.blocks.read",
    "index metadata (api)": "index.blocks.metadata",
    "cluster read-only (api)": "cluster.blocks.read_only",
    "cluster read-only / allow delete (api)": "cluster.blocks.read_only_allow_delete",
}
"""Settings by the server's words for their blocks, of which it lifts none by itself."""
_NAMES: Final = {
    "unavailable_shards_exception": "a primary shard is not active (the index is red)",
    "no_shard_available_action_exception": "no shard of the index is available",
    "es_rejected_execution_exception": "the server has too many requests",
    "rejected_execution_exception": "the server has too many requests",
    "circuit_breaking_exception": "the server has too little memory",
    "process_cluster_event_timeout_exception": "the cluster manager does not answer in time",
    "cluster_manager_not_discovered_exception": "the cluster has no manager",
    "master_not_discovered_exception": "the cluster has no manager",
}


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Translate the driver's exceptions to ours; no request of the block has a document."""
    try:
        yield
    except OpenSearchException as exc:
        raise as_ours(exc, what, words=True) from exc


@contextmanager
def ignore_existing() -> Iterator[None]:
    """Go on if another process has created the index meanwhile."""
    try:
        yield
    except RequestError as exc:
        if exc.error != "resource_already_exists_exception":
            raise


def name_of(error: Mapping[str, Any]) -> str:
    """Name what an error waits for, in words without values."""
    kind = str(error.get("type", "error"))
    said = _CAUSE.search(str(error.get("reason", ""))) if kind == BLOCKED else None
    return said[1].strip() if said else _NAMES.get(kind, kind)


def waiting(what: str, cause: str, index: str) -> RetryableError:
    """Return the error of a server that may take the same later."""
    if cause in _SET_BY_HAND:
        look = _lifted(_SET_BY_HAND[cause], index)
    elif "disk" in cause or "read-only" in cause:
        look = "curl '<url>/_cat/allocation?v' shows the disks. With room on them, OpenSearch lifts the block by itself"
    else:
        look = f"curl '<url>/_cluster/health/{index}?pretty' and '<url>/_cluster/allocation/explain?pretty' say why"
    return RetryableError(f"{what}: {cause}", hint=f"{look}; nothing is lost, it goes on where it was")


def _lifted(setting: str, index: str) -> str:
    """Return the hint for a block that somebody has set, as for a clone, a migration or a test.

    While a cluster is blocked, it takes a request that changes this one setting, and no other.
    """
    of_index, none = setting.startswith("index."), f'{{"{setting}": null}}'
    at, body = (f"{index}/_settings", none) if of_index else ("_cluster/settings", f'{{"persistent": {none}}}')
    return (
        f"somebody has set {setting}: when it is needed no more, curl -X PUT '<url>/{at}' -H 'Content-Type: "
        f"application/json' -d '{body}' lifts it{'' if of_index else ' (or transient in the place of persistent)'}"
    )


def opened(index: str) -> str:
    """Return the hint for an index that somebody has closed."""
    return f"curl -X POST '<url>/{index}/_open'  # somebody has closed it; then it goes on by itself"


def as_ours(exc: OpenSearchException, what: str, index: str = "", *, words: bool = False) -> CdcError:
    """Return an exception of the driver as one of ours: what passes is retryable.

    `words`: the request has no document in it, so that the server's words have no value of one.
    """
    if isinstance(exc, NotReached) and not isinstance(exc, SSLError):
        hint = (
            "is OpenSearch up, is its url right, and is it reached from here? Nothing is lost, it goes on where it was"
        )
        return StoreAwayError(f"{what}: OpenSearch does not answer ({reason(exc)})", hint=hint)
    if isinstance(exc, TransportError) and (exc.status_code in PASSING or type_of(exc) == BLOCKED):
        return waiting(what, reason(exc), index or _blocked(exc) or "_all")
    if isinstance(exc, TransportError) and type_of(exc) == CLOSED and index:
        return OperatorError(f"{what} ({reason(exc)})", hint=opened(index))
    refused = isinstance(exc, TransportError) and exc.status_code in _NOT_ALLOWED
    said = f": {_words_of(exc)}" if words and isinstance(exc, RequestError) else ""
    return OperatorError(f"{what} ({reason(exc)}){said}", hint="are username and password right?" if refused else None)


def _words_of(exc: RequestError) -> str:
    """Return the server's words for why it refuses a request: a limit, a template, a mapping."""
    info: Any = exc.info if isinstance(exc.info, dict) else {}
    error = info.get("error")
    return " ".join(str(error.get("reason")).split())[:_WORDS] if isinstance(error, dict) else "no reason is given"


def _blocked(exc: TransportError) -> str | None:
    """Return the name of the index that is blocked."""
    found = _BLOCKED.search(str(exc.info))
    return found[1] if found else None


def reason(exc: OpenSearchException) -> str:
    """Tell what failed, without the document or the url that may be in the driver's text."""
    if not isinstance(exc, TransportError) or isinstance(exc, NotReached):
        return type(exc).__name__
    info: Any = exc.info if isinstance(exc.info, dict) else {}
    error = info.get("error") if isinstance(info.get("error"), dict) else {}
    if error.get("type") == BLOCKED or error.get("type") in _NAMES:
        return name_of(error)
    return f"status {exc.status_code}, {type_of(exc)}"


def type_of(exc: TransportError) -> str:
    """Return the error's type, which is a name; the driver gives a whole text where the answer is no JSON."""
    return str(exc.error) if re.fullmatch(r"\w+", str(exc.error)) else "an error without a name"
