"""Defines the seam of derived stores. A store holds a fold of the log: it can be filled again from the topics."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeGuard, cast, runtime_checkable

from pyspark.sql import DataFrame, SparkSession

from cdc.config import registry
from cdc.config.apply_config import StoreConfig
from cdc.config.config import ApplyConfig
from cdc.model.errors import BugError, CdcError, ConfigError, OperatorError
from cdc.model.suggestion import did_you_mean
from spark_apply.model.completeness import Mark
from spark_apply.model.target_table import TargetTable
from spark_apply.spark.paths import has_scheme

STORES: Mapping[str, str] = {
    "delta": "spark_apply.stores.delta.store:open_store",
    "iceberg": "spark_apply.stores.iceberg.store:open_store",
    "postgres": "spark_apply.stores.postgres.store:open_store",
    "opensearch": "spark_apply.stores.opensearch.store:open_store",
    "tantivy": "spark_apply.stores.tantivy.store:open_store",
}
"""A new store is one file and one line here; a third party writes ``type: "package.module:callable"``."""

HISTORIES = ("iceberg", "delta", "postgres")
"""The types of stores that can keep a history. Their batch of a history holds every event of a key."""


class Refused(NamedTuple):
    """A row that a store can never take: where its event lies, and why, without a value of it."""

    partition: int
    offset: int
    reason: str


class CopyError(OperatorError):
    """Some tables of a store that takes several at once cannot go on; the others could."""

    def __init__(self, errors: Mapping[str, CdcError]) -> None:
        """`errors` has all of them, by ``schema.table``: what is found out one by one is waited for by the others."""
        first = next(iter(errors.values()))
        super().__init__(first.message, hint=first.hint)
        self.errors = errors


def _none_refused(refused: Collection[Refused]) -> None:
    msg = f"a store refused {len(refused)} rows that nobody has a place for"
    raise BugError(msg)


@dataclass(frozen=True, slots=True)
class Batch:
    """The newest events of one table out of one micro-batch, or all of them (`TargetTable.history`)."""

    table: TargetTable
    rows: DataFrame
    """As `spark_apply.events.typed` gives them, without misfits; persisted. One row for each key; of a history, all
    events."""
    keys: int
    position: str
    """The greatest position in the batch."""
    refuse: Callable[[Collection[Refused]], None] = _none_refused
    """The store calls it with the rows it cannot take, before it commits the others, and lets its exceptions pass."""


@dataclass(frozen=True, slots=True)
class Applied:
    """What a store did with a batch; None where counting would cost a pass over the data."""

    written: int | None = None
    deleted: int | None = None
    stale: int | None = None
    """Rows the store already had in the same or a newer state."""
    duplicate: int | None = None
    """Rows that the store has had before, as their offsets tell."""


Offsets = Mapping[int, int]
"""By partition, the first offset that is not read yet; a partition that is missing is read from its beginning."""


@dataclass(frozen=True, slots=True)
class Due:
    """The catch-up that a swapped-in copy still needs: the events from these offsets on."""

    id: str
    begin: Offsets
    topic: str = ""
    """The identity of the topic that the offsets are of; empty if it is not known."""
    live_until_ms: int = 0
    """Of a copy that was put back: when it was replaced; it had its topic then."""

    def to_json(self) -> str:
        begin = {str(partition): at for partition, at in self.begin.items()}
        about = {"id": self.id, "begin": begin, "topic": self.topic, "live_until_ms": self.live_until_ms}
        return json.dumps(about)

    @classmethod
    def from_json(cls, text: str) -> Due:
        """Read what `to_json` has written. Raises OperatorError for anything else: then nobody knows what is due."""
        try:
            found = json.loads(text)
            begin = {int(partition): int(at) for partition, at in found["begin"].items()}
            return cls(str(found["id"]), begin, str(found.get("topic", "")), int(found.get("live_until_ms", 0)))
        except (ValueError, KeyError, TypeError, AttributeError) as exc:
            raise OperatorError(
                "the note of what is due to a copy since its rebuild is damaged",
                hint="cdc rebuild APPLY.yaml --table SCHEMA.TABLE makes the copy again, with another note",
            ) from exc


EVERYTHING = "~"
"""A limit that sorts after every position."""


@dataclass(frozen=True, slots=True)
class Visibility:
    """Up to where a `WholeStore` may show a table once it has a batch."""

    mark: Mark
    """The mark that the store then sets."""
    limit: str
    """Source transactions are whole up to this position; `EVERYTHING` where the connector publishes no position."""
    refuse: Callable[[Collection[Refused]], None] = _none_refused
    """As `Batch.refuse`; also for rows that waited in the store, which are in no batch."""
    again: bool = False
    """The events are a retry of what the store refused: neither old offsets nor old positions mean it has them."""
    gone: str = ""
    """Why nothing more comes of the table, so that no other one waits for it; empty: it may."""
    reading: bool = False
    """The source's table is being read again: what is there of it may have no values in columns that are new."""


class StoredRow(NamedTuple):
    """A row of a copy, as the store gives it back."""

    id: str
    """What the store finds it by."""
    document: str
    """Its JSON (`spark_apply.model.document`); a column that came later than the row may be missing."""


class Store(Protocol):
    """Keeps copies of tables. Every write is guarded by position: any event may come again, at any time."""

    def open(self, table: TargetTable) -> str:
        """Create the table's copy, or add and widen columns of the existing one; return its identity.

        A new copy has a new identity, which makes the job read the topics from their beginning, and the mark `NEW`: one
        that has rows and no mark is taken to be of an unknown time. May be called again with a newer version of the
        table. Raises OperatorError when the existing copy cannot hold `table`.
        """

    def apply(self, batch: Batch) -> Applied:
        """Fold a batch in; durable when this returns. After an exception the whole batch is applied again."""

    def position(self, table: TargetTable) -> str | None:
        """Return the greatest position ever applied, durable with what was applied; None if none.

        This is not a watermark: partitions advance independently, so lower positions may still come.
        """

    def mark(self, table: TargetTable) -> Mark | None:
        """Return the mark of the existing copy; None without a copy, without a mark, or while a catch-up is due.

        Needs no `open`, and no Spark where the store can be read without it.
        """

    def set_mark(self, table: TargetTable, mark: Mark) -> None:
        """Write `mark` durably into the table's copy, so that it is deleted and restored together with the rows.

        Called when everything that the mark covers has been applied.
        """

    def rows(self, table: TargetTable, ids: Collection[str] | None = None) -> Iterator[StoredRow]:
        """Yield every durable row in any order, or the rows with these ids.

        Also works for a copy that this object has not opened, while a job writes it. Raises OperatorError without a
        copy.
        """

    def id_of(self, event_key: str, document_key: str) -> str:
        """Return the id of a row, from its key as JSON: as events have it, and as documents have it."""

    def beside(self, table: TargetTable) -> Store:
        """Create an empty copy beside the live one, which no reader sees; remove what an earlier one has left.

        It supports `apply`, `position` and `rows`, is closed with this store, and has the live copy's identity, so the
        checkpoint of the live copy stays valid for it. `table` is of the newest version; where `open` refuses the live
        copy for the types of its columns, this one has those of `table`.
        """

    def swap(self, table: TargetTable, due: Due) -> None:
        """Replace the live copy with the one made by `beside`, and set `due`, atomically.

        The replaced copy is kept for `roll_back`; the one kept before it is dropped. Open readers and writers go on
        with the replaced copy until they open the table again.
        """

    def previous(self, table: TargetTable) -> dt.datetime | None:
        """Return when the copy that `roll_back` would put back was replaced; None if there is none."""

    def roll_back(self, table: TargetTable, due: Due) -> None:
        """Put the previous copy back and set `due`, atomically; the live copy is dropped."""

    def due(self, table: TargetTable) -> Due | None:
        """Return the catch-up that the live copy still needs; its writer first opens the copy again."""

    def caught_up(self, table: TargetTable, due: Due) -> None:
        """Note that the live copy has caught up with `due`; do nothing if another catch-up is due by now."""

    def close(self) -> None:
        """Release all resources; safe to call twice."""


class WholeStore(Store, Protocol):
    """A store whose readers see whole source transactions only; events of the others wait in it."""

    whole: bool
    """True."""

    def fold(self, batches: Collection[Batch], visibility: Mapping[str, Visibility]) -> Mapping[str, Applied]:
        """Take batches in, show what lies before each table's limit, and set the marks, in one transaction.

        `visibility` has an entry by ``schema.table`` for each table of `batches`, and maybe for others; the result has
        the same keys. A batch holds the newest event of each key before the table's limit, and every event from it on;
        a batch of a history holds every event. Raises CopyError for all tables that keep the others from being folded.
        """

    def hold(self, table: TargetTable) -> None:
        """Lock the live copy against writers until `swap` or `close`, so that the new copy misses no event."""


@runtime_checkable
class FilledStore(Store, Protocol):
    """A store whose empty copy, as `Store.beside` makes it, can be filled in one pass with unchecked rows."""

    def fill(self, table: TargetTable, rows: DataFrame) -> None:
        """Write `rows` (as `Batch.rows` are) without deletes, in one pass over them; write no position."""

    def filled(self, table: TargetTable, position: str) -> None:
        """Write the applied position, once the rows have turned out to be valid."""


@runtime_checkable
class RereadStore(Protocol):
    """A store that is not asked for its rows, and can be made again from the topics by itself."""

    way_out: str
    """What to do where a topic is another one than was read."""

    def read_again(self) -> None:
        """Have this start read all topics from their beginnings: what they have no more goes. Called before `open`."""


@runtime_checkable
class JoiningStore(Protocol):
    """A store that brings its tables together, and so must know of one that is left out for now."""

    def leave_out(self, table: str, why: str) -> None:
        """Go on without a table, by its qualified name, until a batch shows as much of it as of the others."""


@dataclass(slots=True)
class Patience:
    """How long a server that has answered may not answer, before its copies are set aside."""

    seconds: float


@runtime_checkable
class WaitingStore(Protocol):
    """A store that waits for its server; what else its job writes stands still as long."""

    patience: Patience


@runtime_checkable
class FedStore(Protocol):
    """A `WholeStore` that goes on by more than its tables: by what it reads itself, or tries again."""

    def has_more(self) -> bool:
        """Whether it is to be folded though nothing has come of its tables; asked each second, between two batches."""


def is_whole(store: Store) -> TypeGuard[WholeStore]:
    """Whether a store takes whole micro-batches, by `WholeStore.fold`, and never `Store.apply`."""
    return bool(getattr(store, "whole", False))


def has_rows(store: Store, table: TargetTable) -> bool:
    """Whether a copy, which is there, has rows."""
    return any(True for _ in store.rows(table))


def can_expire(store: Store) -> bool:
    """Whether other engines may expire what a store knows of its copies, as Iceberg's snapshots, by an attribute."""
    return bool(getattr(store, "expires", False))


def every_event_of(store: Store) -> Collection[str]:
    """Return the tables, as ``schema.table``, of which a store needs every event, as histories do.

    A `WholeStore` may have an attribute of this name; without one it needs the newest event of each key.
    """
    found: Collection[str] = getattr(store, "every_event_of", ())
    return found


StoreFactory = Callable[..., Store]
"""``factory(config, *, name, prefix, spark)``: `name` is the store's in apply.yaml, `prefix` that of the topics.

`spark` is None where only `Store.mark` will be called.
"""


def open_store(config: StoreConfig, *, name: str, prefix: str, spark: SparkSession | None) -> Store:
    """Open the store that a part of apply.yaml describes; without `spark`, for its marks alone.

    Raises ConfigError for an unknown type.
    """
    return _factory(config, name)(config, name=name, prefix=prefix, spark=spark)


def require_stores(config: ApplyConfig) -> None:
    """Raise ConfigError for a store that can never be opened as apply.yaml is: before Spark, which takes seconds.

    A lake in a catalog, or on a file system of Hadoop's, is left to Spark. A third party's store is not built here: it
    may be a live one that an option hands over, as of a job of views, and must not be closed.
    """
    for name, store in config.stores.items():
        factory, ours = _factory(store, name), store.type in STORES
        if ours and "catalog" not in store.options and (store.path is None or not has_scheme(store.path)):
            factory(store, name=name, prefix=config.source.topic_prefix, spark=None).close()


def _factory(config: StoreConfig, name: str) -> StoreFactory:
    location = STORES.get(config.type, config.type)
    if ":" not in location:
        msg = f"stores.{name}.type: “{config.type}” is not a store"
        raise ConfigError(msg, hint=did_you_mean(config.type, STORES, f"one of {', '.join(STORES)}"))
    return cast("StoreFactory", registry.part(location))


def connect(config: ApplyConfig) -> tuple[SparkSession, dict[str, Store]]:
    """Open a Spark session with the job's catalogs, and its stores, to read: ``SELECT … FROM warehouse.…``."""
    from spark_apply.spark.session import open_session  # noqa: PLC0415 - a reader of the protocol starts no Spark

    spark = open_session(config.name, config.spark)
    prefix = config.source.topic_prefix
    stores = config.stores.items()
    return spark, {name: open_store(store, name=name, prefix=prefix, spark=spark) for name, store in stores}


def only_options(config: StoreConfig, name: str, allowed: tuple[str, ...]) -> None:
    """Refuse options that a store does not have."""
    unknown = sorted(set(config.options) - set(allowed))
    if unknown:
        msg = f"stores.{name}.options.{unknown[0]}: unknown key"
        raise ConfigError(msg, hint=f"allowed here: {', '.join(allowed)}" if allowed else "this store has no options")
