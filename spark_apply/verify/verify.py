"""Compares the copies of tables with what their source holds, while both are being written.

All rows are compared first. A key that differs may only have changed between the two reads, so it is read again, in an
order that leaves one explanation:

1. Note the end offsets T1 of the table's topic.
2. Read the key's row at the source, under a view that has seen every transaction of which the topic has events below
   T1, and maybe more. `end` is a commit position behind everything that the view has seen.
3. Wait until the connector has committed every transaction below `end`, then until the store holds and shows the
   whole topic up to its end as it is by then.
4. Read the key's row in the store.
5. Note the end offsets T2 of the topic. A key with an event between T1 and T2 is *touched*: if its rows differ, it is
   read again. A key without one is decided.

Why a decided key that differs is wrong
=======================================
Take a key without events between T1 and T2. A change that the view has seen has its event in the topic by step 3, so
below T2, so below T1. A change that the view has not seen has no event below T1 (step 2), so none below T2. The events
of the key below T1 are therefore exactly those of the changes that the view has seen. The store reads nothing but the
topic: at step 4 it holds all events below T1 (step 3), and none of this key from behind T1. Both sides are made of the
same changes. Where they differ, one of them is wrong; there is no false alarm, however much is written meanwhile.

A key that is touched in each of `ROUNDS` rounds is reported as undecided, not as a difference. A damaged key that
nobody writes is decided in the first round.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import orjson
from pyspark.sql import SparkSession

from cdc.capture.snapshots.published_rows import PublishedRow, PublishedTables
from cdc.config.apply_config import ApplySource
from cdc.config.config import ApplyConfig
from cdc.model.change import Table
from cdc.model.errors import ConfigError, OperatorError
from cdc.model.state import Key, Phase, State, key_from_json, key_to_json
from spark_apply.events import kafka_source
from spark_apply.events.expressions import resolved
from spark_apply.events.projected import SourceImage, documents
from spark_apply.events.projection import projected_table
from spark_apply.events.quarantine import Entry, read_entries
from spark_apply.model.completeness import position_of
from spark_apply.model.store import Store, is_whole, open_store
from spark_apply.model.suggestion import did_you_mean
from spark_apply.model.target_table import TargetTable, choose
from spark_apply.spark.session import open_session
from spark_apply.verify.canonical_row import CanonicalForm, Values
from spark_apply.verify.differences import Candidate, CopiedRow, RowComparison, SourceRow
from spark_apply.verify.key_text import key_text

AT_ONCE = 5_000
"""So many keys are read again together."""
ROUNDS = 6
NAMED = 10_000
"""After so many differences of one copy, no more are looked for: a rebuild is due, not a repair."""
STILL_S = 300.0
"""So long connector or job may make no progress while they are waited for; a large batch is one step."""
_LOOK_S = 0.2
_TOLD_ROWS = 100_000

Progress = Callable[[str], None]


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

    @property
    def differences(self) -> list[Difference]:
        return [*self.differing, *self.missing, *self.extra]

    @property
    def agrees(self) -> bool:
        return not (self.differences or self.unchecked or self.unwritable)

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
        }


@dataclass(frozen=True, slots=True)
class _Context:
    """What a comparison reads besides rows: topics, the connector's position, the quarantine."""

    topics: ApplySource
    published: PublishedTables
    standing: Callable[[], State]
    """The connector's position."""
    tell: Progress
    quarantined: Callable[[], Collection[Entry]]


@dataclass(frozen=True, slots=True)
class _ComparedTable:
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


def verify(
    config: ApplyConfig,
    published: PublishedTables,
    standing: Callable[[], State],
    *,
    table: str | None = None,
    store: str | None = None,
    progress: Progress | None = None,
) -> list[ComparedCopy]:
    """Compare all copies that `config` keeps of the tables of `published`, or only those of `table`, or in `store`.

    `standing` reads the connector's position. Raises ConfigError for an unknown table or store, and OperatorError when
    connector or job make no progress while rows differ.
    """
    tell = progress or (lambda _line: None)
    context = _Context(config.source, published, standing, tell, lambda: read_entries(config).values())
    chosen = _choose(config, published, table, store)
    tell("starting Spark")
    spark = open_session(config.name, config.spark)
    names = sorted({follower for _, followers, _ in chosen.values() for follower in followers})
    prefix = config.source.topic_prefix
    stores = {name: open_store(config.stores[name], name=name, prefix=prefix, spark=spark) for name in names}
    copies: list[ComparedCopy] = []
    try:
        for name, (shape, followers, texts) in chosen.items():
            here = published.tables[name]
            if shape.source_key != here.key:
                raise OperatorError(
                    f"{name}: its key is ({', '.join(here.key)}), "
                    f"that of its copies is ({', '.join(shape.source_key)})",
                    hint="a derived table cannot follow that in place: give the stores a new path or index",
                )
            made = resolved(shape, spark)
            form = CanonicalForm(made, {column.name: column.kind for column in here.columns}, texts=texts)
            compared = _ComparedTable(here, made, form, {follower: stores[follower] for follower in followers}, spark)
            copies += _compare(context, compared)
    finally:
        for opened in stores.values():
            opened.close()
    return copies


_Chosen = dict[str, tuple[TargetTable, tuple[str, ...], tuple[str, ...]]]
"""By table: the table that its copies hold, the stores that have one, and the columns kept as text."""


def _choose(config: ApplyConfig, published: PublishedTables, table: str | None, store: str | None) -> _Chosen:
    versions = kafka_source.schema_versions(config.source)
    known = choose(config.tables, versions)
    if table is not None:
        _require(table, known, "table", f"the apply job {config.name} keeps no copy of it")
        _require(table, published.tables, "table", "this connector does not capture it")
    if store is not None:
        _require(store, config.stores, "store", f"the apply job {config.name} has no such store")
    chosen: _Chosen = {}
    for name, settings in sorted(known.items()):
        stores = tuple(one for one in settings.stores if store in (None, one))
        if name in published.tables and table in (None, name) and stores:
            made = projected_table(versions[name], settings)
            chosen[name] = (made, stores, tuple(settings.types))
    if not chosen:
        raise ConfigError(
            f"the apply job {config.name} keeps no copy of any table of this connector"
            + (f" in store {store}" if store else ""),
            hint=f"captured: {', '.join(published.tables) or 'none'}; copied: {', '.join(known)}",
        )
    return chosen


def _require(name: str, known: Iterable[str], what: str, why: str) -> None:
    there = sorted(known)
    if name not in there:
        hint = did_you_mean(name, there, f"{what}s: {', '.join(there) or 'none'}")
        raise ConfigError(f"{what} {name}: {why}", hint=hint)


def _compare(context: _Context, of: _ComparedTable) -> Iterator[ComparedCopy]:
    name, form, tell = of.table.qualified, of.form, context.tell
    with RowComparison() as differences:
        rows = unwritable = 0
        for part in context.published.read(name):
            rows += differences.add_source(_source_rows(of, part.rows))
            unwritable += part.unwritable
            tell(f"{name}: {rows:,} rows of the source read")
        for store_name, store in of.stores.items():
            differences.begin_copy()
            differences.add_copy(_counted(_copied(form, store, of.target), tell, f"{name}: rows of {store_name} read"))
            copy = ComparedCopy(name, store_name, rows, unwritable=unwritable)
            again = _Recheck(context, of, store_name)
            candidates = differences.candidates()
            while batch := list(islice(candidates, AT_ONCE)):
                if len(copy.differences) >= NAMED:
                    copy.unchecked += len(batch)
                    copy.unsettled += sum(candidate.text is not None for candidate in batch)
                else:
                    again.recheck(copy, batch)
            copy.quarantined += _quarantined(context, copy)
            yield copy


def _quarantined(context: _Context, copy: ComparedCopy) -> list[str]:
    held = context.quarantined() if copy.differences else ()
    bad = {entry.key for entry in held if (entry.table, entry.store) == (copy.table, copy.store)}
    if not bad:
        return []
    known = ((one.key, one.text) for one in copy.differences if one.text is not None)
    return [key for key, text in known if context.published.event_key(copy.table, text).decode() in bad]


def _source_rows(of: _ComparedTable, rows: Sequence[PublishedRow]) -> Iterator[SourceRow]:
    form = of.form
    for row, values in zip(rows, of.values(rows), strict=True):
        text = orjson.dumps(key_to_json(row.key)).decode()
        if row.after is None:
            yield SourceRow(form.key_of(form.of_event(row.event_key)), b"", text)
        elif values is not None:
            yield SourceRow(form.key_of(values), form.digest(values), text)


def _copied(form: CanonicalForm, store: Store, table: TargetTable) -> Iterator[CopiedRow]:
    for row in store.rows(table):
        values = form.of_document(row.document)
        yield CopiedRow(form.key_of(values), form.digest(values), row.id)


def _counted(rows: Iterator[CopiedRow], tell: Progress, what: str) -> Iterator[CopiedRow]:
    for number, row in enumerate(rows, 1):
        if number % _TOLD_ROWS == 0:
            tell(f"{number:,} {what}")
        yield row


class _Recheck:
    """Reads again the keys that differed at first."""

    def __init__(self, context: _Context, of: _ComparedTable, store: str) -> None:
        self._context, self._of = context, of
        self._name, self._store = store, of.stores[store]

    def recheck(self, copy: ComparedCopy, candidates: Sequence[Candidate]) -> None:
        """Decide each candidate and add it to `copy`."""
        form, table = self._of.form, self._of.table
        texts = {one.key: self._text(one) for one in candidates}
        left = {one.key: one for one in candidates if texts[one.key] is not None}
        copy.undecided += [key for key, text in texts.items() if text is None]
        for number in range(ROUNDS):
            if not left:
                break
            self._context.tell(f"{table.qualified}: {len(left):,} rows looked at again in {self._name} ({number + 1})")
            for key, (here, values, there) in self._both(left, texts):
                one = left.pop(key)
                if here is None and not there:
                    continue
                if len(there) == 1 and values is not None and form.digest(values) == form.digest(there[0]):
                    continue
                copy.unsettled += one.text is not None
                if here is None or len(there) > 1:
                    copy.extra.append(Difference(key, texts[key]))
                elif not there:
                    copy.missing.append(Difference(key, texts[key], here.unwritable))
                else:
                    columns = here.unwritable if values is None else form.differing(values, there[0])
                    copy.differing.append(Difference(key, texts[key], columns))
        copy.undecided += left
        copy.unsettled += sum(one.text is not None for one in left.values())

    def _text(self, one: Candidate) -> Key | None:
        if one.text is not None:
            return key_from_json(orjson.loads(one.text))
        return key_text(self._of.table, self._of.form, orjson.loads(one.key))

    def _both(
        self, left: Mapping[str, Candidate], texts: Mapping[str, Key | None]
    ) -> Iterator[tuple[str, tuple[PublishedRow | None, Values | None, list[Values]]]]:
        """Read both sides once (steps 1 to 5); yield the keys that are equal or decided, with both sides' rows."""
        form, name, made = self._of.form, self._of.table.qualified, self._of.target
        topics, published = self._context.topics, self._context.published
        asked = {key: text for key in left if (text := texts[key]) is not None}
        event_keys = {published.event_key(name, text): key for key, text in asked.items()}
        begins = kafka_source.committed_ends(topics, made.topic)
        here: dict[str, tuple[PublishedRow, Values | None]] = {}
        end = 0
        for part in published.find(name, list(asked.values())):
            for row, shaped in zip(part.rows, self._of.values(part.rows), strict=True):
                if row.after is None or shaped is not None:  # else copies have no such row
                    here[event_keys[row.event_key]] = row, shaped
            end = max(end, part.end)
        self._await(end)
        ids = {id_ for one in left.values() for id_ in one.ids}
        ids |= {self._store.id_of(event_key.decode(), key) for event_key, key in event_keys.items()}
        there: dict[str, list[Values]] = {}
        for stored in self._store.rows(made, ids):
            values = form.of_document(stored.document)
            there.setdefault(form.key_of(values), []).append(values)
        ends = kafka_source.committed_ends(topics, made.topic)
        told = kafka_source.keys_between(topics, made.topic, begins, ends)
        touched = {event_keys[event_key] for event_key in told if event_key in event_keys}
        for key in asked:
            (found, wanted), copied = here.get(key, (None, None)), there.get(key, [])
            if key not in touched or self._equal(found, wanted, copied):
                yield key, (found, wanted, copied)

    def _equal(self, here: PublishedRow | None, values: Values | None, there: Sequence[Values]) -> bool:
        if values is None:
            return here is None and not there
        return len(there) == 1 and self._of.form.digest(values) == self._of.form.digest(there[0])

    def _await(self, end: int) -> None:
        """Wait until the store holds every transaction below `end`. Raises OperatorError when there is no progress."""
        table, made = self._of.table.qualified, self._of.target
        for state in _until_still(self._context.standing, lambda state: state.sequence):
            if state is None:
                raise OperatorError(
                    f"rows of {table} differ, and the connector does not follow the source: "
                    "whether the copy is wrong or only behind cannot be told",
                    hint="start it, and verify again: cdc run CONNECTOR.yaml",
                )
            required = state.reading.get(table, {}).get("required", False)
            if state.phase is Phase.STREAM and state.commit >= end and not required:
                break
        ends = kafka_source.written_ends(self._context.topics, made.topic)
        for mark in _until_still(lambda: self._store.mark(made), lambda mark: mark):
            if mark is None:
                raise OperatorError(
                    f"rows of {table} differ, and store {self._name} is behind the topics and does not move: "
                    "whether the copy is wrong or only behind cannot be told",
                    hint="start the job, and verify again: cdc apply APPLY.yaml",
                )
            shown = mark.complete is not None and mark.complete.position >= position_of(state)
            if mark.holds(ends) and (shown or not is_whole(self._store)):
                break


def _until_still(look: Callable[[], Any], progress: Callable[[Any], object]) -> Iterator[Any]:
    """Yield what `look` returns, again and again; None once there was no progress for `STILL_S`."""
    last: object = None
    since = time.monotonic()
    while True:
        found = look()
        if found is not None:
            yield found
        at = progress(found) if found is not None else None
        now = time.monotonic()
        if at != last:
            last, since = at, now
        if now - since > STILL_S:
            yield None
            return
        time.sleep(_LOOK_S)
