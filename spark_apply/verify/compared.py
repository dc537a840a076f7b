"""What a comparison reads, and what it finds of one copy."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import orjson
from pyspark.sql import SparkSession

from cdc.capture.snapshots.published_rows import PublishedRow, PublishedTables
from cdc.config.apply_config import ApplySource
from cdc.model.change import Table
from cdc.model.state import Key, State
from spark_apply.events.projected import SourceImage, documents
from spark_apply.events.quarantine import Entry
from spark_apply.events.set_aside import SetAside
from spark_apply.model.store import Store
from spark_apply.model.target_table import TargetTable
from spark_apply.verify.canonical_row import CanonicalForm, Values


@dataclass(frozen=True, slots=True)
class Difference:
    """A key whose rows differ between source and store."""

    key: str
    """JSON of the key columns, as documents have them."""
    text: Key | None
    """The key in the source's own terms; None where it cannot be derived."""
    columns: tuple[str, ...] = ()
    """The columns that differ, where both sides have the row."""


@dataclass(slots=True)
class ComparedCopy:
    """The result of comparing one table's copy in one store."""

    table: str
    store: str
    rows: int = 0
    """Of the source."""
    differing: list[Difference] = field(default_factory=list)
    missing: list[Difference] = field(default_factory=list)
    """Rows that the store does not have."""
    extra: list[Difference] = field(default_factory=list)
    """Rows of the store whose key the source does not have, or that are more than one of a key."""
    undecided: list[str] = field(default_factory=list)
    """Keys that changed each time they were read, or that the source cannot be asked for."""
    unchecked: int = 0
    """Keys that differed at first and were not read again, because there are too many of them."""
    unwritable: int = 0
    """Rows of the source whose keys cannot be written as JSON."""
    unsettled: int = 0
    """Rows of the source that were not found equal."""
    quarantined: list[str] = field(default_factory=list)
    """Of the keys that differ, those with an event in quarantine."""
    not_compared: str | None = None
    """Why the copy was not compared: there can be none as table and file are now, it cannot be read, is set aside."""
    hint: str | None = None
    """What helps against that."""

    @property
    def differences(self) -> list[Difference]:
        return [*self.differing, *self.missing, *self.extra]

    @property
    def agrees(self) -> bool:
        return not (self.differences or self.unchecked or self.unwritable or self.not_compared)

    def as_json(self) -> dict[str, object]:
        """Return the stable JSON of ``cdc verify --json``."""
        return {
            "table": self.table,
            "store": self.store,
            "rows": self.rows,
            "equal": self.rows - self.unsettled,
            "differing": [{"key": orjson.loads(one.key), "columns": list(one.columns)} for one in self.differing],
            "missing": [orjson.loads(one.key) for one in self.missing],
            "extra": [orjson.loads(one.key) for one in self.extra],
            "undecided": [orjson.loads(key) for key in self.undecided],
            "quarantined": [orjson.loads(key) for key in self.quarantined],
            "unchecked": self.unchecked,
            "unwritable": self.unwritable,
            "not_compared": self.not_compared,
            "hint": self.hint,
        }


@dataclass(frozen=True, slots=True)
class Context:
    """What a comparison reads besides rows: topics, the connector's position, what a job could not apply."""

    topics: ApplySource
    published: PublishedTables
    standing: Callable[[], State]
    """The connector's position."""
    tell: Callable[[str], None]
    quarantined: Callable[[], Collection[Entry]]
    set_aside: Callable[[], Mapping[bytes, SetAside]] = dict


@dataclass(frozen=True, slots=True)
class ComparedTable:
    """A table, and all that its rows are compared by."""

    table: Table
    target: TargetTable
    form: CanonicalForm
    stores: Mapping[str, Store]
    spark: SparkSession

    def values(self, rows: Sequence[PublishedRow]) -> list[Values | None]:
        """Return what copies hold of each row, in order; None for a row that they leave out or that cannot be written.

        Spark computes expressions, by the same plan as in the job.
        """
        projection = self.target.projection
        if projection is None or (projection.where is None and not projection.computed):
            return [None if row.after is None else self.form.of_event(row.after) for row in rows]
        whole = [(number, row.after) for number, row in enumerate(rows) if row.after is not None]
        version = self.target.version
        images = (SourceImage(rows[number].event_key.decode(), after.decode(), version) for number, after in whole)
        found: list[Values | None] = [None] * len(rows)
        for (number, _), document in zip(whole, documents(self.spark, self.target, images), strict=True):
            found[number] = None if document is None else self.form.of_document(document)
        return found
