"""Writes documents by bulk requests: retries what passes, and finds the documents that the server can never take."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import orjson
from opensearchpy import OpenSearch
from opensearchpy.exceptions import ConnectionError as NotReached
from opensearchpy.exceptions import OpenSearchException, SSLError, TransportError
from pyspark.sql import Row

from cdc.model.change import Position
from cdc.model.errors import CdcError, OperatorError, RetryableError
from spark_apply.events.typed import KEY, OFFSET, OP, PARTITION, POSITION
from spark_apply.model.document import DOCUMENT, document_id
from spark_apply.model.store import Refused

COMMIT_BITS, EPOCH_BITS = 52, 11
SENT = (KEY, POSITION, OP, DOCUMENT, PARTITION, OFFSET)
STALE, MISSING = 409, 404

_REQUEST_BYTES = 4 << 20
_REQUEST_ACTIONS = 2_000
_TRIES = 8
_FIRST_WAIT_S = 0.1
_SILENT_S = 0.5
"""Longer waits are told."""
_UNFIT, _TOO_LARGE, _FAILED = 400, 413, 500
_PASSING: Final = frozenset({429, 502, 503, 504})
_CLOSED = "index_closed_exception"
"""An error of the whole index, not of one document."""
_BLOCKED = "cluster_block_exception"
_CAUSE: Final = re.compile(r"/\d+/([a-z /(),()-]+)")
"""The server's words for a block: ``index [x] blocked by: [TOO_MANY_REQUESTS/12/disk usage exceeded …];``."""
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


log: Final = logging.getLogger("cdc.apply")


class Action(NamedTuple):
    """Two lines of a bulk request, and the place of their event in the topic."""

    about: bytes
    document: bytes
    """Empty for a delete."""
    partition: int
    offset: int


def version(position: str) -> int:
    """Return the external version of an event: epoch and commit position, without its number in the transaction."""
    parsed = Position.parse(position)
    if parsed.epoch >> EPOCH_BITS or parsed.commit >> COMMIT_BITS:
        msg = f"position {position} is beyond what an index version can hold"
        raise OperatorError(msg, hint="use another store type for this table")
    return parsed.epoch << COMMIT_BITS | parsed.commit


def requests(rows: Iterable[Row]) -> Iterator[list[Action]]:
    """Divide rows with the columns `SENT` into bulk requests."""
    request: list[Action] = []
    size_bytes = 0
    for key, position, op, document, partition, offset in rows:
        about = {"_id": document_id(key), "version": version(position), "version_type": "external_gte"}
        line = orjson.dumps({"delete" if op == "d" else "index": about})
        body = b"" if op == "d" else document.encode()
        if request and (len(request) >= _REQUEST_ACTIONS or size_bytes + len(body) > _REQUEST_BYTES):
            yield request
            request, size_bytes = [], 0
        request.append(Action(line, body, partition, offset))
        size_bytes += len(line) + len(body)
    if request:
        yield request


@dataclass(frozen=True, slots=True)
class Bulk:
    """Sends bulk requests to an index."""

    client: OpenSearch
    index: str

    def send(self, request: list[Action]) -> Iterator[tuple[str, int] | Refused]:
        """Send until every action has a final answer; yields (action, status). Waits while the server cannot.

        A request that is refused as a whole is halved, until the document alone is left that the server refuses.
        Raises RetryableError with the name of what was waited for.
        """
        wait_s, cause = _FIRST_WAIT_S, ""
        for last in (*[False] * (_TRIES - 1), True):
            try:
                items = self._answered(request)
            except TransportError as exc:
                if not isinstance(exc, NotReached) and exc.status_code in (_UNFIT, _TOO_LARGE):
                    yield from self._halved(request, exc)
                    return
                error = translated(exc, f"index {self.index}: a bulk request failed")
                if last or not isinstance(error, RetryableError):
                    raise error from exc
                items, cause = [], reason(exc)
            again = list(request) if not items else []
            for action, item in zip(request, items, strict=bool(items)):
                ((verb, answer),) = item.items()
                if _passes(answer, last=last):
                    again.append(action)
                    cause = _name(answer["error"])
                else:
                    yield self._outcome(action, verb, answer)
            if not again:
                return
            request = again
            if not last:
                if wait_s > _SILENT_S >= wait_s / 2:
                    log.warning("index %s: waiting, %s", self.index, cause)
                time.sleep(wait_s)
                wait_s *= 2
        raise waiting(f"index {self.index}: {len(request):,} documents wait", cause, self.index)

    def _answered(self, request: list[Action]) -> list[Mapping[str, Any]]:
        body = b"".join(line + b"\n" for action in request for line in (action.about, action.document) if line)
        items: list[Mapping[str, Any]] = self.client.bulk(body=body, index=self.index, require_alias=True)["items"]
        return items

    def _halved(self, request: list[Action], exc: TransportError) -> Iterator[tuple[str, int] | Refused]:
        if len(request) == 1:
            said = "it is too large" if exc.status_code == _TOO_LARGE else _type(exc)
            yield Refused(request[0].partition, request[0].offset, f"OpenSearch does not take it: {said}")
            return
        middle = len(request) // 2
        for half in (request[:middle], request[middle:]):
            yield from self.send(half)

    def _outcome(self, action: Action, verb: str, answer: Mapping[str, Any]) -> tuple[str, int] | Refused:
        status, error = answer["status"], answer.get("error")
        if error is None or status == STALE:
            return verb, status
        kind = error.get("type", "error")
        if status in (_UNFIT, _TOO_LARGE, _FAILED) and kind != _CLOSED:
            return Refused(action.partition, action.offset, f"OpenSearch does not take it: {kind}")
        msg = f"index {self.index} refused a document: {kind} (status {status})"
        raise OperatorError(msg, hint="the server's log names field and reason")


def _passes(answer: Mapping[str, Any], *, last: bool) -> bool:
    """Whether an action is tried again: also after a failure of the server itself, which may be due to the document."""
    error = answer.get("error")
    if error is None:
        return False
    return answer["status"] in _PASSING or error.get("type") == _BLOCKED or (answer["status"] == _FAILED and not last)


def _name(error: Mapping[str, Any]) -> str:
    """Name what an error waits for, in words without values."""
    kind = str(error.get("type", "error"))
    said = _CAUSE.search(str(error.get("reason", ""))) if kind == _BLOCKED else None
    return said[1].strip() if said else _NAMES.get(kind, kind)


def waiting(what: str, cause: str, index: str) -> RetryableError:
    """Return the error of a server that may take the same later."""
    if "disk" in cause or "read-only" in cause:
        look = "curl '<url>/_cat/allocation?v' shows the disks. With room on them, OpenSearch lifts the block by itself"
    else:
        look = f"curl '<url>/_cluster/health/{index}?pretty' and '<url>/_cluster/allocation/explain?pretty' say why"
    return RetryableError(f"{what}: {cause}", hint=f"{look}; nothing is lost, it goes on where it was")


def translated(exc: OpenSearchException, what: str, index: str = "") -> CdcError:
    """Return an exception of the driver as one of ours: what passes is retryable."""
    if isinstance(exc, NotReached) and not isinstance(exc, SSLError):
        hint = "is OpenSearch up, and is it reached from here? Nothing is lost, it goes on where it was"
        return RetryableError(f"{what} ({reason(exc)})", hint=hint)
    if isinstance(exc, TransportError) and (exc.status_code in _PASSING or _type(exc) == _BLOCKED):
        return waiting(what, reason(exc), index or "_all")
    return OperatorError(f"{what} ({reason(exc)})")


def reason(exc: OpenSearchException) -> str:
    """Tell what failed, without the document or the url that may be in the driver's text."""
    if not isinstance(exc, TransportError) or isinstance(exc, NotReached):
        return type(exc).__name__
    info: Any = exc.info if isinstance(exc.info, dict) else {}
    error = info.get("error") if isinstance(info.get("error"), dict) else {}
    if error.get("type") == _BLOCKED or error.get("type") in _NAMES:
        return _name(error)
    return f"status {exc.status_code}, {_type(exc)}"


def _type(exc: TransportError) -> str:
    """Return the error's type, which is a name; the driver gives a whole text where the answer is no JSON."""
    return str(exc.error) if re.fullmatch(r"\w+", str(exc.error)) else "an error without a name"
