"""What derived stores say of themselves, read from outside: no Spark is started unless a store cannot do without."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from cdc.config.config import ApplyConfig
from cdc.model.change import Position
from cdc.model.errors import ConfigError
from spark_apply.events import kafka_source
from spark_apply.events.projection import planned
from spark_apply.model.completeness import Complete, lowest
from spark_apply.model.store import Store, open_store
from spark_apply.model.target_table import TargetTable, choose

_LOOK_S = 0.05


@dataclass(frozen=True, slots=True)
class Found:
    """One store and one connector."""

    complete: Complete | None
    """What all tables together are complete up to."""
    tables: Sequence[str]
    incomplete: Sequence[str] = field(default=())
    """Tables that say nothing: not applied to their end yet, or being read at the source."""


class Reader:
    """The stores of a job's file. Raises CdcError when Kafka or a store does not answer."""

    def __init__(self, config: ApplyConfig) -> None:
        self._config = config
        self._open: dict[str, Store] = {}
        self._followed: dict[str, dict[str, list[TargetTable]]] = {name: {} for name in config.stores}
        versions = kafka_source.schema_versions(config.source)
        for table, settings in sorted(choose(config.tables, versions).items()):
            made = planned(versions[table], settings)
            for store in settings.stores:
                self._followed[store].setdefault(made.connector, []).append(made)

    def stores(self) -> dict[str, list[str]]:
        """The connectors whose tables each store follows."""
        return {store: sorted(connectors) for store, connectors in self._followed.items() if connectors}

    def read(self, store: str, connector: str) -> Found:
        """What a store holds of a connector now."""
        tables = self._followed[store][connector]
        marks = [self._store(store).mark(table) for table in tables]
        silent = [table.qualified for table, mark in zip(tables, marks, strict=True) if not (mark and mark.complete)]
        return Found(lowest(marks), [table.qualified for table in tables], silent)

    def await_position(
        self, connector: str, position: str, stores: Sequence[str], *, timeout_s: float
    ) -> dict[str, Found]:
        """Return when all `stores` hold what lies before `position`, or, at the time-out, those that do not.

        A position of another epoch is comparable with none: after a fail-over nobody can tell whether what it stands
        for came over. Raises ConfigError for a store that follows no table of `connector`.
        """
        following = self.stores()
        for store in stores:
            if connector not in following.get(store, ()):
                there = sorted({name for names in following.values() for name in names})
                msg = f"store {store} follows no table of connector {connector}"
                raise ConfigError(msg, hint=f"known here: {', '.join(there) or 'none'}")
        until = time.monotonic() + timeout_s
        waiting = list(stores)
        while True:
            found = {store: self.read(store, connector) for store in waiting}
            waiting = [store for store, at in found.items() if not _reached(at.complete, position)]
            if not waiting or time.monotonic() >= until:
                return {store: found[store] for store in waiting}
            time.sleep(_LOOK_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _exc: BaseException | None, _at: TracebackType | None
    ) -> None:
        for store in self._open.values():
            store.close()

    def _store(self, name: str) -> Store:
        if name not in self._open:
            prefix = self._config.source.topic_prefix
            self._open[name] = open_store(self._config.stores[name], name=name, prefix=prefix, spark=None)
        return self._open[name]


def _reached(complete: Complete | None, position: str) -> bool:
    if complete is None:
        return False
    there, wanted = Position.parse(complete.position), Position.parse(position)
    return there.epoch == wanted.epoch and there >= wanted
