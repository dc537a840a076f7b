"""Keeps notes about indexes, in an index of their own: what is applied, up to where it is complete, what is due.

A note is kept under the unique id of the index that it speaks of: it is lost with that index.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from opensearchpy import OpenSearch
from opensearchpy.exceptions import ConflictError, NotFoundError

from cdc.model.errors import OperatorError
from spark_apply.model.store import Due
from spark_apply.stores.opensearch.failures import translated
from spark_apply.stores.opensearch.indexes import ASKED_WITHIN_S, alone

Note = Mapping[str, str]
POSITION, COMPLETE, DUE, CAUGHT_UP, REPLACED = "", "complete", "due", "caught-up", "replaced"
"""The kinds of notes that are kept about an index."""

_READY_WITHIN_S = 5.0
_FIRST_WAIT_S = 0.1
_NO_INDEX, _NOT_READY = "index_not_found_exception", "no_shard_available_action_exception"


class Notes:
    """The notes about a store's indexes."""

    def __init__(self, client: OpenSearch, index: str) -> None:
        """`index` is the one that they are kept in."""
        self._client = client
        self.index = index
        self._read: dict[str, tuple[int, int] | None] = {}
        """By a note's id, the write that has made it as it was read last; None: there was none."""

    def write(self, index: str, kind: str, note: Note) -> None:
        """Write a note about an index."""
        with translated("the applied position cannot be written"):
            number = self.uuid(index)
            self._client.index(index=self.index, id=_note_id(number, kind), body=note)

    def replace(self, index: str, kind: str, note: Note) -> bool:
        """Write a note in the place of the one that was read last; False: it is another one by now."""
        with translated("the applied position cannot be written"):
            number = _note_id(self.uuid(index), kind)
            written = self._read.get(number)
            over = (
                {"op_type": "create"} if written is None else {"if_seq_no": written[0], "if_primary_term": written[1]}
            )
            try:
                self._client.index(index=self.index, id=number, body=note, **over)
            except ConflictError:
                return False
            return True

    def read(self, index: str, *kinds: str) -> list[Note | None]:
        """Read the last note of each kind about an index; None where note or index do not exist."""
        with translated("the applied position cannot be read"):
            try:
                number = self.uuid(index)
            except NotFoundError:
                return [None for _ in kinds]
            return self._got([_note_id(number, kind) for kind in kinds])

    def uuid(self, index: str) -> str:
        """Return the id that the server has given to an index, or to that of an alias: no other ever has it."""
        _, about = alone(
            index, self._client.indices.get_settings(index=index, name="index.uuid", request_timeout=ASKED_WITHIN_S)
        )
        return str(about["settings"]["index"]["uuid"])

    def _got(self, ids: Sequence[str]) -> list[Note | None]:
        """Fetch notes; waits until an index that was just created is ready."""
        until = time.monotonic() + _READY_WITHIN_S
        while True:
            answers = self._client.mget(index=self.index, body={"ids": ids})["docs"]
            failed = {answer["error"]["type"] for answer in answers if "error" in answer} - {_NO_INDEX}
            if not failed:
                self._read |= {
                    answer["_id"]: (answer["_seq_no"], answer["_primary_term"]) if answer.get("found") else None
                    for answer in answers
                }
                return [answer["_source"] if answer.get("found") else None for answer in answers]
            if failed != {_NOT_READY} or time.monotonic() > until:
                msg = f"index {self.index}: the applied position cannot be read ({', '.join(sorted(failed))})"
                hint = f"curl <url>/_cat/shards/{self.index}?v says why; go on when its primary is STARTED"
                raise OperatorError(msg, hint=hint)
            time.sleep(_FIRST_WAIT_S)


def due_of(owed: Note | None, done: Note | None) -> Due | None:
    """Return the catch-up that these notes say is due."""
    due = None if owed is None else Due.from_json(owed["due"])
    return None if due is None or (done is not None and done["id"] == due.id) else due


def _note_id(number: str, kind: str) -> str:
    return ".".join(filter(None, (number, kind)))
