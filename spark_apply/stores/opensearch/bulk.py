"""Writes documents by bulk requests: retries what passes, and finds the documents that the server can never take."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import orjson
from opensearchpy import OpenSearch
from opensearchpy.exceptions import ConnectionError as NotReached
from opensearchpy.exceptions import ConnectionTimeout, TransportError
from pyspark.sql import Row

from cdc.model.change import Position
from cdc.model.errors import OperatorError, RetryableError
from spark_apply.events.typed import KEY, OFFSET, OP, PARTITION, POSITION
from spark_apply.model.document import DOCUMENT, document_id
from spark_apply.model.store import Refused
from spark_apply.stores.opensearch.failures import (
    BLOCKED,
    CLOSED,
    PASSING,
    as_ours,
    name_of,
    opened,
    reason,
    type_of,
    waiting,
)

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


@dataclass(slots=True)
class Patience:
    """Is how often a server that takes nothing is tried: all its indexes together wait for it once, until it does."""

    tries: int = _TRIES


@dataclass(frozen=True, slots=True)
class Bulk:
    """Sends bulk requests to an index."""

    client: OpenSearch
    index: str
    patience: Patience

    def send(self, request: list[Action]) -> Iterator[tuple[str, int] | Refused]:
        """Send until every action has a final answer; yields (action, status). Waits while the server cannot.

        A request that is refused as a whole is halved, until the document alone is left that the server refuses.
        Raises RetryableError with the name of what was waited for.
        """
        wait_s, cause = _FIRST_WAIT_S, ""
        tries, self.patience.tries = self.patience.tries, 1  # until something is taken
        for last in (*[False] * (tries - 1), True):
            try:
                items = self._answered(request)
            except TransportError as exc:
                if not isinstance(exc, NotReached) and exc.status_code in (_UNFIT, _TOO_LARGE):
                    self.patience.tries = _TRIES
                    yield from self._halved(request, exc)
                    return
                error = as_ours(exc, f"index {self.index}: a bulk request failed")
                if last or isinstance(exc, ConnectionTimeout) or not isinstance(error, RetryableError):
                    raise error from exc
                items, cause = [], reason(exc)
            again = list(request) if not items else []
            for action, item in zip(request, items, strict=bool(items)):
                ((verb, answer),) = item.items()
                if _passes(answer, last=last and tries == _TRIES):
                    again.append(action)
                    cause = name_of(answer["error"])
                else:
                    self.patience.tries = _TRIES
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
        answer = self.client.bulk(body=body, index=self.index, require_alias=True, pipeline="_none")
        items: list[Mapping[str, Any]] = answer["items"]
        return items

    def _halved(self, request: list[Action], exc: TransportError) -> Iterator[tuple[str, int] | Refused]:
        if len(request) == 1:
            said = "it is too large" if exc.status_code == _TOO_LARGE else type_of(exc)
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
        if status in (_UNFIT, _TOO_LARGE, _FAILED) and kind != CLOSED:  # of the whole index, not of one document
            return Refused(action.partition, action.offset, f"OpenSearch does not take it: {kind}")
        msg = f"index {self.index} refused a document: {kind} (status {status})"
        named = "the server's log names field and reason"
        raise OperatorError(msg, hint=opened(self.index) if kind == CLOSED else named)


def _passes(answer: Mapping[str, Any], *, last: bool) -> bool:
    """Whether an action is tried again: also after a failure of the server itself, which may be due to the document."""
    error = answer.get("error")
    if error is None:
        return False
    return answer["status"] in PASSING or error.get("type") == BLOCKED or (answer["status"] == _FAILED and not last)
