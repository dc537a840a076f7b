"""etcd's snapshot: pages of keys in their order, all at one revision, which is the view.

A view has seen exactly the transactions up to its revision (`snapshot.handover`). Nothing is held for it. Where the
cluster compacts it away meanwhile, the history from the beginning of the snapshot on is gone too, and so it is a gap:
what closes that (`--after-gap`) reads by windows while the watch is followed, which needs no old history.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

from cdc.config.config import ConnectorConfig
from cdc.model.change import Row, Table, Xid
from cdc.model.errors import BugError, RetryableError
from cdc.model.interfaces import Chunk, Handover, Window
from cdc.model.state import Key
from connectors.etcd.address import address
from connectors.etcd.gateway import CompactedError, Gateway, Page
from connectors.etcd.place import compacted
from connectors.etcd.tables import Captured, captured, row
from snapshot.handover import Progress, RangeHandover, key_of

_FIRST_ROWS: Final = 16
"""So many are asked for as long as it is not known how large they are."""
_PAGE: Final = 4 << 20
"""About so many bytes a page has, which the server and this process hold at once."""
_CLOSE_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class RevisionView:
    """A view that saw all transactions up to a revision."""

    revision: int

    @classmethod
    def parse(cls, text: str) -> RevisionView:
        return cls(int(text))

    def sees(self, xid: Xid) -> bool:
        """Whether the view saw the transaction of this revision."""
        if isinstance(xid, str):
            raise BugError("etcd's transactions have numbers")
        return xid <= self.revision


class EtcdSnapshotter:
    """Reads one cluster."""

    def __init__(self, config: ConnectorConfig) -> None:
        self._address = address(config.source.url)
        self._captured = {one.table.qualified: one for one in captured(config.source.prefixes)}
        self._chunk_rows = config.snapshot.chunk_rows
        self._reading: Gateway | None = None
        self._in_use = threading.Lock()
        self._closed = threading.Event()
        self._window: Gateway | None = None

    def chunks(self, tables: Sequence[Table], progress: Mapping[str, object], view: str | None) -> Iterator[Chunk]:
        done = Progress.from_json(progress)
        remaining = [table for table in tables if not done.of(table).done]
        if not remaining:
            return
        gateway = self._reading = Gateway(self._address)
        number, seen = 0, RevisionView.parse(view) if view is not None else None
        if seen is None:
            seen = RevisionView(gateway.now(self._captured[remaining[0].qualified].prefix).revision)
            number = len(done.views) + 1
            done = replace(done, views={**done.views, number: (str(seen.revision), seen.revision + 1)})
        done = replace(done, started_at_ms=_now_ms(), rows_before=sum(at.rows for at in done.tables.values()))
        for table in remaining:
            for after, upto in list(done.of(table).gaps()):
                for page, reached in self._range(gateway, self._captured[table.qualified], after, upto, seen):
                    rows = [row(each) for each in page.found]
                    at = done.of(table)
                    at = replace(at, estimate=max(at.estimate, at.rows + page.count))
                    done = done.with_table(table, at.read(after=after, upto=reached, view=number, rows=len(rows)))
                    after = reached  # noqa: PLW2901 - it is what is read so far
                    yield Chunk(table, rows, done.to_json(), number, _now_ms())
        self._end()

    def _range(
        self, gateway: Gateway, of: Captured, after: Key | None, upto: Key | None, seen: RevisionView
    ) -> Iterator[tuple[Page, Key | None]]:
        """Read a range in pages, each with the key that it reaches."""
        limit, last = min(_FIRST_ROWS, self._chunk_rows), after[0] if after is not None else None
        while True:
            try:
                page = gateway.page(of.prefix, revision=seen.revision, limit=limit, after=last)
            except CompactedError as exc:
                raise compacted(seen.revision) from exc
            found = [each for each in page.found if upto is None or each.key <= upto[0]]
            if page.is_last or len(found) < len(page.found):
                yield replace(page, found=found), upto
                return
            last = found[-1].key
            yield page, (last,)
            limit = min(self._chunk_rows, _limit(page))

    def handover(self, tables: Sequence[Table], progress: Mapping[str, object]) -> Handover | None:
        made = RangeHandover(tables, Progress.from_json(progress), RevisionView.parse)
        return None if made.hides_nothing else made

    def window(self, table: Table, after: Key | None, rows: int, *, key: str, first: bool) -> Window | None:  # noqa: ARG002 - every view sees all before it
        of = self._captured.get(table.qualified)
        if of is None:
            return None
        behind = after[0] if after is not None and of.table.key_order == key else None
        with self._session() as gateway:
            read: list[Row] = []
            revision, count, is_last, limit = 0, 0, False, min(_FIRST_ROWS, rows)
            while not is_last and len(read) < rows:
                page = _at(gateway, of, revision, limit, behind)
                if not revision:
                    revision, count = page.header.revision, page.count
                read += [row(each) for each in page.found]
                is_last = page.is_last
                behind = page.found[-1].key if page.found else behind
                limit = min(rows - len(read), _limit(page))
        reached = None if is_last or not read else key_of(of.table, read[-1])
        return Window(
            table=of.table,
            rows=read,
            after=reached,
            sees=RevisionView(revision).sees,
            end=revision + 1,
            estimate=count if after is None else None,
            read_at_ms=_now_ms(),
        )

    def rows(self, table: Table, keys: Sequence[Key], *, first: bool) -> Window | None:  # noqa: ARG002 - as above
        of = self._captured.get(table.qualified)
        if of is None or of.table.key_as_text != table.key_as_text:
            return None
        with self._session() as gateway:
            revision = gateway.now(of.prefix).revision
            found = [_one(gateway, of, key[0], revision) for key in keys]
        read = [each for each in found if each is not None]
        return Window(of.table, read, None, RevisionView(revision).sees, revision + 1, None, _now_ms())

    def row(self, table: Table, key: Sequence[bytes]) -> Row | None:
        of = self._captured.get(table.qualified)
        if of is None or of.table != table:
            return None
        gateway = Gateway(self._address)
        try:
            return _one(gateway, of, key[0], 0)
        finally:
            gateway.close()

    @contextmanager
    def _session(self) -> Iterator[Gateway]:
        with self._in_use:
            if self._closed.is_set():
                raise RetryableError("reading was ended")
            gateway = self._window = Gateway(self._address)
            try:
                yield gateway
            finally:
                self._window = None
                gateway.close()

    def close(self) -> None:
        self._closed.set()
        self._end()
        window = self._window
        if window is not None:
            window.close()
        if self._in_use.acquire(timeout=_CLOSE_S):
            self._in_use.release()

    def _end(self) -> None:
        gateway, self._reading = self._reading, None
        if gateway is not None:
            gateway.close()


def _limit(page: Page) -> int:
    """Return how many keys make a page of a good size, if they are as large as those of this one."""
    size = sum(len(each.key) + len(each.value) for each in page.found)
    return max(1, min(4 * len(page.found), _PAGE * len(page.found) // max(1, size)))


def _at(gateway: Gateway, of: Captured, revision: int, limit: int, after: bytes | None) -> Page:
    try:
        return gateway.page(of.prefix, revision=revision, limit=limit, after=after)
    except CompactedError as exc:
        raise RetryableError(f"reading table {of.table.qualified}: the cluster has compacted its view away") from exc


def _one(gateway: Gateway, of: Captured, key: bytes, revision: int) -> Row | None:
    if not key.startswith(of.prefix):
        return None
    try:
        _, found = gateway.get(key, revision=revision)
    except CompactedError as exc:
        raise RetryableError(f"reading table {of.table.qualified}: the cluster has compacted its view away") from exc
    return row(found) if found is not None else None


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def open_snapshotter(config: ConnectorConfig) -> EtcdSnapshotter:
    """Make the snapshotter, for the registry. It does not connect yet."""
    return EtcdSnapshotter(config)
