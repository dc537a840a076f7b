"""Reads the marks of derived stores from outside; starts no Spark unless a store needs it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Self

from cdc.config.apply_config import ApplySource
from cdc.config.config import ApplyConfig
from cdc.config.views import VIEW_SCHEMA
from cdc.model.change import Position
from cdc.model.errors import CdcError, ConfigError, OperatorError
from cdc.model.state import State
from cdc.model.state_records import StateReader
from spark_apply.events.kafka.records import committed_records
from spark_apply.events.kafka.schema_topic import schema_versions
from spark_apply.events.kafka.topic_identity import difference, identities
from spark_apply.events.kafka.topics import existing_topics, position_topic
from spark_apply.events.selection import fitting
from spark_apply.model.completeness import Complete, Mark, kept_up, lowest
from spark_apply.model.store import Store, open_store
from spark_apply.model.target_table import TargetTable

ORIGIN = "origin"
"""What the identity in a view job's position calls the connector that its positions are of."""

_LOOK_S, _ASK_S = 0.05, 1.0
"""How often marks are looked at; and how often, where they are not there, connectors are asked whether tables go on."""


@dataclass(frozen=True, slots=True)
class StoreProgress:
    """How far one store has applied one connector."""

    complete: Complete | None
    """Up to where all tables together are complete."""
    tables: Sequence[str]
    incomplete: Sequence[str] = field(default=())
    """Tables without a position: not applied to their end yet, or being read at the source."""
    remade: Sequence[str] = field(default=())
    """Those of them whose copy is of another topic than there is now: deleted and made again, or on another cluster."""
    refused: Mapping[str, CdcError] = field(default_factory=dict)
    """Why there can be no copy of a table as file and table are now, or why its copy does not say how far it is."""
    marks: Sequence[tuple[TargetTable, Mark | None]] = field(default=(), repr=False)
    """What the copies say of themselves."""
    ended: Sequence[str] = ()
    """Tables that do not go on, if a position that is waited for is reached by all others."""


class Reader:
    """Reads the progress of the stores of apply.yaml. Raises CdcError when Kafka or a store does not answer."""

    def __init__(self, config: ApplyConfig) -> None:
        self._config = config
        self._open: dict[str, Store] = {}
        self._followed: dict[str, dict[str, list[TargetTable]]] = {name: {} for name in config.stores}
        versions = schema_versions(config.source)
        self._unusable: dict[str, dict[str, dict[str, CdcError]]] = {name: {} for name in config.stores}
        roots: dict[str, str] = {}
        judged = fitting(config, versions)
        for table in sorted(judged.errors):  # the job sets it aside
            for store in judged.settings[table].stores:
                self._unusable[store].setdefault(versions[table][-1].connector, {})[table] = judged.errors[table]
        for table, made in judged.made.items():
            connector = made.connector
            if made.schema == VIEW_SCHEMA:
                connector = roots.setdefault(connector, origin_of(config.source, connector))
            for store in judged.settings[table].stores:
                self._followed[store].setdefault(connector, []).append(made)
        followed = (table for of in self._followed.values() for tables in of.values() for table in tables)
        self._topics = identities(config.source, [table.topic for table in followed])

    def stores(self) -> dict[str, list[str]]:
        """Return by store the connectors whose tables it follows; a view's is the one that its tables come from."""
        both = {store: {*connectors, *self._unusable[store]} for store, connectors in self._followed.items()}
        return {store: sorted(connectors) for store, connectors in both.items() if connectors}

    def read(self, store: str, connector: str) -> StoreProgress:
        """Return how far a store has applied a connector now. Raises the first error if none of its copies tells."""
        tables, unusable = self._followed[store].get(connector, []), self._unusable[store].get(connector, {})
        refused = {**unusable}
        found = [self._mark(self._store(store), table, refused) for table in tables]
        if tables and len(refused) == len(tables) + len(unusable):
            raise refused[tables[0].qualified]
        others = [mark is not None and self._of_another(table, mark) for table, mark in zip(tables, found, strict=True)]
        marks = [None if other else mark for mark, other in zip(found, others, strict=True)]
        remade = [table.qualified for table, other in zip(tables, others, strict=True) if other]
        silent = [table.qualified for table, mark in zip(tables, marks, strict=True) if not (mark and mark.complete)]
        complete = None if unusable else lowest(marks)
        names = [*(table.qualified for table in tables), *unusable]
        told = list(zip(tables, marks, strict=True))
        return StoreProgress(complete, names, [*silent, *unusable], remade, refused, told)

    def await_position(
        self, connector: str, position: str, stores: Sequence[str], *, timeout_s: float
    ) -> dict[str, StoreProgress]:
        """Return {} when all `stores` hold everything before `position`, or those that do not at the time-out.

        They are returned before that where all that is waited for are tables that do not go on (`StoreProgress.ended`).
        Positions of two epochs are not compared: after a fail-over it is unknown whether the transaction was carried
        over. Raises ConfigError for a store that follows no table of `connector`.
        """
        following = self.stores()
        for store in stores:
            if connector not in following.get(store, ()):
                there = sorted({name for names in following.values() for name in names})
                msg = f"store {store} follows no table of connector {connector}"
                raise ConfigError(msg, hint=f"known here: {', '.join(there) or 'none'}")
        until = time.monotonic() + timeout_s
        asks_at = min(until, time.monotonic() + _ASK_S)
        waiting = list(stores)
        while True:
            found = {store: self.read(store, connector) for store in waiting}
            waiting = [store for store, at in found.items() if not _reached(at.complete, position)]
            if waiting and time.monotonic() >= asks_at:
                found |= {name: replace(found[name], ended=self._ended(found[name], position)) for name in waiting}
                asks_at += _ASK_S
            if all(found[name].ended for name in waiting) or time.monotonic() >= until:
                return {store: found[store] for store in waiting}
            time.sleep(_LOOK_S)

    def _ended(self, at: StoreProgress, position: str) -> Sequence[str]:
        """Return the tables that keep a store from a position, if none of them goes on.

        Of a connector whose state cannot be read, as without the right to its topic, they may.
        """
        late = [table for table, mark in at.marks if not _reached(mark.complete if mark else None, position)]
        try:
            states = {of: last_state(self._config.source, of) for of in {table.connector for table in late}}
        except CdcError:
            return ()
        goes_on = {of: kept_up(state) for of, state in states.items() if state is not None}
        ended = [table.qualified for table in late if table.qualified not in goes_on.get(table.connector, at.tables)]
        return ended if len(ended) == len(late) and len(at.marks) == len(at.tables) else ()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _exc: BaseException | None, _at: TracebackType | None
    ) -> None:
        for store in self._open.values():
            store.close()

    def _of_another(self, table: TargetTable, mark: Mark) -> bool:
        return difference(mark.topic, self._topics.get(table.topic, "")) is not None

    @staticmethod
    def _mark(store: Store, table: TargetTable, refused: dict[str, CdcError]) -> Mark | None:
        """Return what a copy says of itself; of one that cannot be read `refused` has why. A server is away for all."""
        try:
            return store.mark(table)
        except OperatorError as exc:
            refused[table.qualified] = exc
            return None

    def _store(self, name: str) -> Store:
        if name not in self._open:
            prefix = self._config.source.topic_prefix
            self._open[name] = open_store(self._config.stores[name], name=name, prefix=prefix, spark=None)
        return self._open[name]


def origin_of(source: ApplySource, connector: str) -> str:
    """Return the connector that a view job's positions are of, over other view jobs; another connector's own name."""
    state = last_state(source, connector)
    return state.identity.get(ORIGIN, connector) if state is not None else connector


def last_state(source: ApplySource, connector: str) -> State | None:
    """Return what a connector, or a view job, published last of where it stands."""
    topic, states = position_topic(source.topic_prefix, connector), StateReader(connector)
    if topic in existing_topics(source, [topic]):
        for message in committed_records(source, topic, 1):
            states.hear(message.key(), message.value())
    return states.state(where=f"topic {topic}")


def _reached(complete: Complete | None, position: str) -> bool:
    if complete is None:
        return False
    there, wanted = Position.parse(complete.position), Position.parse(position)
    return there.epoch == wanted.epoch and there >= wanted
