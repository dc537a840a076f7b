"""The seam of derived stores: a fold of the log that can be thrown away and filled again."""

from __future__ import annotations

import datetime as dt
import difflib
import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeGuard, cast, runtime_checkable

from pyspark.sql import DataFrame, SparkSession

from cdc.config import registry
from cdc.config.config import ApplyConfig, StoreConfig
from cdc.model.errors import BugError, ConfigError
from spark_apply.model.completeness import Mark
from spark_apply.model.target_table import TargetTable

STORES: Mapping[str, str] = {
    "delta": "spark_apply.stores.delta.store:open_store",
    "iceberg": "spark_apply.stores.iceberg.store:open_store",
    "postgres": "spark_apply.stores.postgres.store:open_store",
    "opensearch": "spark_apply.stores.opensearch:open_store",
    "tantivy": "spark_apply.stores.tantivy:open_store",
}
"""A store is one file and one line here; a third party writes ``type: "package.module:callable"``."""

HISTORIES = ("iceberg", "delta", "postgres")
"""Those that take histories: of these, a batch has every event of a key."""


class Refused(NamedTuple):
    """A row that a store cannot take, whatever is tried: by where its event is, and why, without a value of it."""

    partition: int
    offset: int
    reason: str


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
    """The greatest position in it."""
    refuse: Callable[[Collection[Refused]], None] = _none_refused
    """To be told of rows the store cannot take, before it commits the others: what it raises is to go through."""


@dataclass(frozen=True, slots=True)
class Applied:
    """What a store did with a batch; None where finding out would cost a pass."""

    written: int | None = None
    deleted: int | None = None
    stale: int | None = None
    """Rows the store already had in the same or a newer state."""
    duplicate: int | None = None
    """Rows that the store knows to have been handed before, by their offsets."""


Offsets = Mapping[int, int]
"""Partition of a topic -> the first offset that is not read yet; one that is not named is read from its beginning."""


@dataclass(frozen=True, slots=True)
class Due:
    """What a live copy lacks that has taken another's place: events from these offsets on."""

    id: str
    begin: Offsets

    def to_json(self) -> str:
        return json.dumps({"id": self.id, "begin": {str(partition): at for partition, at in self.begin.items()}})

    @classmethod
    def from_json(cls, text: str) -> Due:
        found = json.loads(text)
        return cls(found["id"], {int(partition): at for partition, at in found["begin"].items()})


EVERYTHING = "~"
"""Sorts after every position."""


@dataclass(frozen=True, slots=True)
class Moment:
    """Up to where a whole store may show a table once it has a batch."""

    mark: Mark
    """What it then says of its copy."""
    limit: str
    """The position up to which source transactions are whole; `EVERYTHING` where nobody can say what is."""
    again: bool = False
    """The store is given events a second time that it did not take: neither their offsets nor their age say it did."""


class StoredRow(NamedTuple):
    """A row of a copy."""

    id: str
    """What the store finds it by."""
    document: str
    """Its JSON (`spark_apply.model.document`); a column that came later than the row may be missing."""


class Store(Protocol):
    """Copies of tables. Every write is guarded by position: any event may come again, at any time."""

    def open(self, table: TargetTable) -> str:
        """Make the table's copy, or add and widen columns of the one there is; return its identity.

        A copy made anew has a new identity: the job then reads the topics from their beginning. May be called again
        with a newer version. Raises OperatorError when the copy there is cannot hold `table`.
        """

    def apply(self, batch: Batch) -> Applied:
        """Fold a batch in. Durable when this returns; raises with nothing or a part of it done, to be done again."""

    def position(self, table: TargetTable) -> str | None:
        """The greatest position ever applied, durable with what was applied; None if none.

        Not a watermark: partitions advance apart, so lower positions may still be to come.
        """

    def mark(self, table: TargetTable) -> Mark | None:
        """What was last set for the copy that is there now; None if it has none, something is due, or it is not there.

        Needs no `open`, and no Spark where the store can be read without it.
        """

    def set_mark(self, table: TargetTable, mark: Mark) -> None:
        """Keep `mark` with the table's copy, durable, so that it goes and comes back with it (deleted, restored).

        Called when all that it speaks of has been applied.
        """

    def rows(self, table: TargetTable, ids: Collection[str] | None = None) -> Iterator[StoredRow]:
        """Every row in any order, or those with one of these ids; what is durable now.

        Also of a copy that this object has not opened, beside the job that writes it. Raises OperatorError if it is not
        there.
        """

    def id_of(self, event_key: str, document_key: str) -> str:
        """The id of a row by the JSON of its key, as events have it and as documents do."""

    def beside(self, table: TargetTable) -> Store:
        """A new, empty copy beside the live one, which no reader sees; leftovers of an earlier one are removed.

        It takes `apply`, `position` and `rows`, ends with `close` of this store, and has the live one's identity:
        what a checkpoint says of the one is true of the other. `table` is of the newest version.
        """

    def swap(self, table: TargetTable, due: Due) -> None:
        """Put the copy made by `beside` in the live one's place, with `due`, in one step.

        The other one is kept for `roll_back`, in the place of any kept before; who reads or writes it goes on with it
        until he looks again.
        """

    def previous(self, table: TargetTable) -> dt.datetime | None:
        """Until when the copy that `roll_back` puts back was the live one; None if there is none."""

    def roll_back(self, table: TargetTable, due: Due) -> None:
        """Put the previous copy back, with `due`, in one step; the live one is given up."""

    def due(self, table: TargetTable) -> Due | None:
        """What the live copy came with and has not been `caught_up` with: before all else its writer opens it anew."""

    def caught_up(self, table: TargetTable, due: Due) -> None:
        """Note that the live copy has what was due; nothing, if something else is due by now."""

    def close(self) -> None:
        """Let go; safe to call twice."""


class WholeStore(Store, Protocol):
    """A store whose readers see whole source transactions only: what is of others waits in it until they are."""

    whole: bool
    """True."""

    def fold(self, batches: Collection[Batch], moments: Mapping[str, Moment]) -> Mapping[str, Applied]:
        """Take batches in, show what lies before each table's limit, and set the marks: all in one transaction.

        `moments` by ``schema.table``, for all tables of `batches` and for any others; returns by the same. A batch has
        the newest event of each key before the table's limit, and every event from it on; of a history every one.
        """

    def hold(self, table: TargetTable) -> None:
        """Let nobody write the live copy until `swap`, or `close`: what is swapped in has all that it has."""


@runtime_checkable
class FilledStore(Store, Protocol):
    """A store whose empty copy, as `Store.beside` makes it, takes rows that nobody has looked through."""

    def fill(self, table: TargetTable, rows: DataFrame) -> None:
        """Write `rows` (as `Batch.rows` are) without deletes, in one pass over them; says no position."""

    def filled(self, table: TargetTable, position: str) -> None:
        """Note that what was filled in was right, and has this applied position."""


def is_whole(store: Store) -> TypeGuard[WholeStore]:
    """Whether a store takes whole micro-batches, by `WholeStore.fold`, and never `Store.apply`."""
    return bool(getattr(store, "whole", False))


StoreFactory = Callable[..., Store]
"""``factory(config, *, name, prefix, spark)``: `name` is the store's in the job's file, `prefix` the topics'.

`spark` is None where only `Store.mark` will be called.
"""


def open_store(config: StoreConfig, *, name: str, prefix: str, spark: SparkSession | None) -> Store:
    """Open the store that a part of the job's file describes; without `spark`, for its marks.

    Raises ConfigError for a type nobody has.
    """
    location = STORES.get(config.type, config.type)
    if ":" not in location:
        near = difflib.get_close_matches(config.type, STORES, n=1)
        msg = f"stores.{name}.type: “{config.type}” is not a store"
        raise ConfigError(msg, hint=f"did you mean {near[0]}?" if near else f"one of {', '.join(STORES)}")
    factory = cast("StoreFactory", registry.part(location))
    return factory(config, name=name, prefix=prefix, spark=spark)


def connect(config: ApplyConfig) -> tuple[SparkSession, dict[str, Store]]:
    """A session that knows the job's catalogs, and its stores, to look at: ``SELECT … FROM warehouse.…``."""
    from spark_apply.spark.session import open_session  # noqa: PLC0415 - a reader of the protocol starts no Spark

    spark = open_session(config.name, config.spark)
    prefix = config.source.topic_prefix
    stores = config.stores.items()
    return spark, {name: open_store(store, name=name, prefix=prefix, spark=spark) for name, store in stores}


def only_options(config: StoreConfig, name: str, allowed: tuple[str, ...]) -> None:
    """Refuse options a store does not have."""
    unknown = sorted(set(config.options) - set(allowed))
    if unknown:
        msg = f"stores.{name}.options.{unknown[0]}: unknown key"
        raise ConfigError(msg, hint=f"allowed here: {', '.join(allowed)}" if allowed else "this store has no options")
