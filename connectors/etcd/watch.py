"""Watches prefixes on one stream, and knows how far all of them have been told.

Each prefix has a watcher of its own: a user may read no more than these. A watcher sends the events of its keys in the
order of revisions, those of one revision in one answer, or in fragments that follow each other. Watchers are not in
step, and one that has nothing to send says nothing. So a transaction is complete, and may be given, when

* every watcher has sent something of this revision or of a later one; or
* the server, asked for its progress, has named this revision or a later one: it does so once all watchers of the
  stream are in step, and behind the events that it had sent until then (`gateway.OLDEST`).

A watcher that lags behind reads history. etcd cancels it where that was compacted. But there are releases whose
compaction takes the deletes of its own revision with it, and a watcher that begins just there is not told of them
(https://github.com/etcd-io/etcd/issues/18089 and 19179). Therefore nothing is given before the last revision that was
given has been found still readable: what is behind that was not compacted then.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from cdc.model.errors import GapError, OperatorError, RetryableError
from connectors.etcd.backlog import Backlog
from connectors.etcd.duplex import Duplex
from connectors.etcd.gateway import CLOSE_THE_GAP, GO_ON, Gateway
from connectors.etcd.messages import Header, number, written
from connectors.etcd.messages import end_of as end_of_prefix
from connectors.etcd.place import compacted
from connectors.etcd.tables import Captured

SILENT_S: Final = 10.0
"""How long a server that is asked may say nothing."""
_ALL: Final = -1
"""The id of a watcher by which the server means all of the stream."""


class Watch:
    """Follows from behind a revision; for one thread."""

    def __init__(self, gateway: Gateway, captured: Sequence[Captured], revision: int, backlog: Backlog) -> None:
        self._stream = Duplex(gateway, "/v3/watch")
        self._backlog, self._begun_at = backlog, revision
        self._told = [revision] * len(captured)
        """Up to where each watcher has sent all, without what it is in the middle of."""
        self._named = revision
        """What the server has named, asked for its progress."""
        self._asked_s = self._heard_s = time.monotonic()
        self._moved: tuple[int, int] = (revision, 0)
        self._moved_s = self._heard_s
        for at, one in enumerate(captured):
            create = {
                "key": written(one.first),
                "range_end": written(end_of_prefix(one.prefix)),
                "start_revision": revision + 1,
                "prev_kv": True,
                "fragment": True,
                "watch_id": at + 1,
            }
            self._stream.send({"create_request": create})

    @property
    def confirmed(self) -> int:
        """The revision up to which the backlog has everything."""
        return max(self._named, min(self._told))

    def ask(self, every_s: float) -> None:
        """Ask the server for its progress, unless that was done just now."""
        now_s = time.monotonic()
        if now_s - self._asked_s >= every_s:
            self._stream.send({"progress_request": {}})
            self._asked_s = now_s

    def require_progress(self, head: int) -> None:
        """Raise RetryableError if the member does not get to where the cluster is: it is cut off from the others."""
        now_s, moved = time.monotonic(), (self.confirmed, self._backlog.count)
        if moved != self._moved or self.confirmed >= head:
            self._moved, self._moved_s = moved, now_s
        elif now_s - self._moved_s > SILENT_S:
            raise RetryableError(
                f"watching: etcd at {self._stream.endpoint} stays at revision {self.confirmed}, and the cluster is at "
                f"{head}", hint=GO_ON,
            )  # fmt: skip

    def read(self, wait_s: float) -> bool:
        """Take what comes within a time into the backlog; return whether anything came. Raises if the watch ends."""
        answers = self._stream.receive(wait_s)
        now_s = time.monotonic()
        if answers:
            self._heard_s = now_s
        elif now_s - self._heard_s > SILENT_S:
            raise RetryableError(f"watching: etcd at {self._stream.endpoint} does not answer any more", hint=GO_ON)
        for answer in answers:
            self._take(answer)
        return bool(answers)

    def _take(self, answer: Mapping[str, Any]) -> None:
        if answer.get("canceled"):
            raise self._ended(answer)
        watcher = number(answer, "watch_id")
        if watcher == _ALL:
            self._named = max(self._named, Header.of(answer).revision)
            return
        at = watcher - 1
        if answer.get("created") or not 0 <= at < len(self._told):
            return
        revision = told = self._told[at]
        for event in answer.get("events", []):
            revision = number(event.get("kv", {}), "mod_revision")
            if revision <= told:  # it is sent a second time
                continue
            if revision <= self._named:
                raise GapError(
                    f"history out of order: etcd at {self._stream.endpoint} has sent revision {revision} after it had "
                    f"said that all up to {self._named} was sent",
                    hint=CLOSE_THE_GAP,
                )
            self._backlog.add(revision, at, event)
        if not answer.get("fragment"):
            self._told[at] = max(told, revision)

    def _ended(self, answer: Mapping[str, Any]) -> Exception:
        if number(answer, "compact_revision"):
            return compacted(self._begun_at)
        said = str(answer.get("cancel_reason") or "it gave no reason").rpartition("desc = ")[2]
        what = f"watching: etcd at {self._stream.endpoint} has ended the watch: {said}"
        if "permission denied" in said:
            return OperatorError(
                what, hint="etcdctl role grant-permission ROLE read PREFIX --prefix=true, for each of source.tables"
            )
        return RetryableError(what, hint=GO_ON)

    def close(self) -> None:
        self._stream.close()
