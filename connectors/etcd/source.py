"""etcd as a `Source`: it watches prefixes from a revision on."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYetError
from typing import Final, TypeVar

from cdc.config.config import ConnectorConfig
from cdc.model.change import Change, Coordinates, Idle, Message, Offset, Table, Transaction, TransactionBatch
from cdc.model.errors import BugError, raise_first
from cdc.model.interfaces import Start
from cdc.model.state import State
from cdc.model.table_schema import Description
from connectors.etcd.address import address, weakness
from connectors.etcd.backlog import Backlog, Whole
from connectors.etcd.gateway import CompactedError, Gateway, refuse_version
from connectors.etcd.messages import Event, Header
from connectors.etcd.place import Place, compacted, made_by, refusals, taken
from connectors.etcd.tables import WHERE, captured, change, differences
from connectors.etcd.watch import Watch

log = logging.getLogger("cdc")

_WAIT_S: Final = 0.05
"""How long something new is waited for at once."""
_IDLE_S: Final = 0.5
"""How often an idle server is asked how far it is."""
_ALIVE_S: Final = 5.0
"""How often a cluster is asked whether this member still belongs to it, and whether all prefixes may be read."""
_SMALL: Final = 1_000
_LIGHT: Final = 4 << 20
"""So many rows, or bytes, are given in a list."""

_T = TypeVar("_T")


class EtcdSource:
    """Follows one cluster."""

    name = "etcd"
    places: tuple[str, ...] = ("revision",)
    database = ""

    def __init__(self, config: ConnectorConfig) -> None:
        self._address = address(config.source.url)
        of = config.source
        self._captured = captured({name: prefix for name, prefix in of.prefixes.items() if of.captures(name)})
        self._gateway: Gateway | None = None
        self._place: Place | None = None
        self._head = 0
        """The newest revision that was heard of."""
        self._asking: Gateway | None = None
        self._watch: Watch | None = None
        self._backlog: Backlog | None = None
        self._worker: ThreadPoolExecutor | None = None
        self._stale: dict[str, str] = {}

    def connect(self) -> Mapping[str, str]:
        gateway = self._gateway = Gateway(self._address)
        raise_first(refuse_version(gateway.version()))
        for one in self._captured:  # whether this user may read all of them
            header = gateway.page(one.prefix, revision=0, limit=1).header
        if (weak := weakness(self._address)) is not None:
            log.warning("etcd at %s: %s", self._address.named, weak)
        return {"cluster": header.cluster}

    def tables(self) -> tuple[Table, ...]:
        return tuple(one.table for one in self._captured)

    def unused(self) -> None:
        """Do nothing: etcd holds no history for anybody."""

    def verify(self, state: State) -> tuple[Offset, int] | None:
        raise_first(refusals(self._connected(), Place.of(state.offset), self._captured, state.carried.values()))
        self._stale = differences(state.carried, self._captured)
        return None

    def hold(self, tables: Sequence[Table]) -> Start:  # noqa: ARG002 - history is that of all keys
        self._place = taken(self._connected(), self._captured)
        self._stale = {}
        return Start(self._place.offset(), self._place.commit, str(self._place.revision))

    def extend(self, tables: Sequence[Table]) -> None:
        """Do nothing: history is that of all keys, and the next `stream` watches these too."""

    def carried(self) -> Mapping[str, str]:
        return {one.table.qualified: one.stands for one in self._captured}

    def stale(self) -> Mapping[str, str]:
        return self._stale

    def recall(self, described: Mapping[tuple[str, str], Sequence[Description]]) -> None:
        """Do nothing: a key's columns are always the same."""

    def tend(self) -> None:
        """Do nothing: etcd holds no history for anybody."""

    def current(self) -> int:
        return self._connected().now(self._captured[0].prefix).revision + 1

    def stream(self, offset: Offset) -> Iterator[Transaction | TransactionBatch | Message | Idle]:
        self._place = place = Place.of(offset)
        self._backlog = backlog = Backlog()
        self._asking = asking = Gateway(self._address)
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="cdc-etcd")
        yield from self._while(lambda: place.counted(asking, self._captured), self._begin)
        yield from self._while(lambda: asking.now(self._captured[0].prefix), self._heard)
        yield from self._while(asking.version, lambda version: raise_first(refuse_version(version)))
        watch = self._watch = Watch(asking, self._captured, place.revision, backlog)
        alive_s = idle_s = time.monotonic()
        due = True
        """Whether something was given since the last Idle."""
        while True:
            came = watch.read(_WAIT_S)
            behind = watch.confirmed > self._following().revision
            looks = time.monotonic() - alive_s > _ALIVE_S
            if behind or looks:
                yield from self._while(self._still_there, self._heard)
            if looks:
                yield from self._while(self._still_allowed, self._heard)
                alive_s = time.monotonic()
            if behind:
                yield from self._give(watch.confirmed)
            watch.require_progress(self._head)
            watch.ask(_IDLE_S if backlog.is_empty and watch.confirmed >= self._head else _WAIT_S)
            due = due or behind
            if (due and not came) or time.monotonic() - idle_s > _IDLE_S:
                yield Idle()
                due, idle_s = False, time.monotonic()

    def _while(self, ask: Callable[[], _T], take: Callable[[_T], None]) -> Iterator[Idle]:
        """Ask on another thread, so that a server that does not answer keeps nobody from stopping this one."""
        if self._worker is None:
            raise BugError("the source is not followed")
        answer = self._worker.submit(ask)
        while True:
            try:
                take(answer.result(_IDLE_S))
            except NotYetError:
                if answer.done():
                    raise
                yield Idle()
            else:
                return

    def _still_there(self) -> Header:
        """Return how far the cluster is. Raises GapError if what follows the position may have been compacted."""
        if self._asking is None:
            raise BugError("the source is not followed")
        place = self._following()
        try:
            header, _ = self._asking.get(self._captured[0].first, revision=place.revision)
        except CompactedError as exc:
            raise compacted(place.revision) from exc
        return header

    def _still_allowed(self) -> Header:
        """Return how far the cluster is. Raises OperatorError if a right was withdrawn: a watch goes on without it."""
        if self._asking is None:
            raise BugError("the source is not followed")
        return [self._asking.now(one.prefix) for one in self._captured][-1]

    def _begin(self, place: Place) -> None:
        self._place = place

    def _heard(self, header: Header) -> None:
        self._head = max(self._head, header.revision)
        place = self._following()
        self._place = place.at(place.revision, header)

    def _give(self, upto: int) -> Iterator[Transaction | TransactionBatch]:
        """Give the transactions up to a revision, and move the position there."""
        if self._backlog is None:
            raise BugError("the source is not followed")
        now_ms = time.time_ns() // 1_000_000
        small: list[Transaction] = []
        rows = size = 0
        place = self._following()
        for whole in self._backlog.upto(upto):
            if small and (rows + whole.rows > _SMALL or size + whole.size > _LIGHT):
                self._place = place
                yield TransactionBatch(small)
                small, rows, size = [], 0, 0
            if whole.rows > _SMALL or whole.size > _LIGHT:
                yield _transaction(whole.revision, now_ms, self._changes(whole))
                place = self._following()
                if place.revision < whole.revision:
                    raise BugError("a transaction was left before its end")
                continue
            changes, place = self._read(whole, place)
            small.append(_transaction(whole.revision, now_ms, changes))
            rows, size = rows + whole.rows, size + whole.size
        self._place = place.at(upto)
        if small:
            yield TransactionBatch(small)

    def _read(self, whole: Whole, place: Place) -> tuple[list[Change], Place]:
        events = [(at, Event.of(given)) for at, given in whole.events]
        changes = [change(event, self._captured[at].table, whole.revision) for at, event in events]
        made = sum(made_by(event) for _, event in events)
        return changes, place.behind(whole.revision, events[-1][1], made)

    def _changes(self, whole: Whole) -> Iterator[Change]:
        """Read a transaction's events one by one, and move the position when the last has come."""
        event: Event | None = None
        made = 0
        for at, given in whole.events:
            event = Event.of(given)
            made += made_by(event)
            yield change(event, self._captured[at].table, whole.revision)
        if event is not None:
            self._place = self._following().behind(whole.revision, event, made)

    def position(self) -> tuple[Offset, int]:
        if self._place is None:
            return {}, 0
        return self._place.offset(), self._place.commit

    def acknowledge(self, offset: Offset) -> None:
        """Do nothing: history is compacted by the cluster's own rule."""

    def coordinates(self, commit: int) -> tuple[bytes, Coordinates]:
        return WHERE, commit - 1

    def lag_bytes(self) -> int | None:
        return 0 if self._place is not None and 0 < self._head <= self._place.revision else None

    def close(self) -> None:
        for part in (self._watch, self._asking, self._gateway, self._backlog):
            if part is not None:
                part.close()
        if self._worker is not None:
            self._worker.shutdown(wait=False, cancel_futures=True)
        self._watch = self._asking = self._gateway = self._backlog = self._worker = None

    def _connected(self) -> Gateway:
        if self._gateway is None:
            raise BugError("the source is not connected")
        return self._gateway

    def _following(self) -> Place:
        if self._place is None:
            raise BugError("there is no position yet")
        return self._place


def _transaction(revision: int, at_ms: int, changes: Iterator[Change] | list[Change]) -> Transaction:
    return Transaction(str(revision), revision, revision, at_ms, changes, WHERE)


def open_source(config: ConnectorConfig) -> EtcdSource:
    """Make the source, for the registry. Connects to nothing yet."""
    return EtcdSource(config)
