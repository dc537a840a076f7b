"""``cdc quarantine retry`` applies events in quarantine again, once the cause was removed.

The events are read from the topic, each key from its first event in quarantine on, so that its newest event is among
them, deletes included. They are typed as the job would type them now, and folded in as any batch is. Stores guard every
row by position, but none remembers deleted rows permanently: if the job applies a delete of a key between our read and
our write, our older event brings the row back. So the events that came meanwhile are folded in after it, until none
came.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses

from cdc.config.config import ApplyConfig
from cdc.model.errors import CdcError, OperatorError
from spark_apply.events.kafka.client import UnansweredError
from spark_apply.events.kafka.offsets import offset_ranges
from spark_apply.events.kafka.records import keys_between, records_between
from spark_apply.events.kafka.stream import read_topic
from spark_apply.events.quarantine import Entry, Quarantine, chosen_entries, read_entries
from spark_apply.job.batch.microbatch import Applier
from spark_apply.job.copies.route import Route
from spark_apply.job.copies.set_aside import Key
from spark_apply.model.store import EVERYTHING, Offsets, Store, Visibility, is_whole
from spark_apply.model.target_table import TargetTable
from spark_apply.rebuild.rebuild import error_of, opened, refuse_newer
from spark_apply.spark.failures import StoreAwayError, concerns_spark

Outcome = Literal["applied", "gone", "left"]
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Retried:
    """An entry and the outcome of its retry."""

    entry: Entry
    outcome: Outcome
    """``applied``: the store has it or a newer one; ``gone``: nothing to apply; ``left``: still in quarantine."""

    def as_json(self) -> dict[str, object]:
        """Return JSON with stable keys."""
        return {**self.entry.as_json(), "outcome": self.outcome}


def run_retry(
    config: ApplyConfig,
    *,
    store: str | None = None,
    table: str | None = None,
    key: str | None = None,
    progress: Progress | None = None,
) -> list[Retried]:
    """Apply again what is in quarantine. Raises CdcError if a store cannot be written now."""
    tell = progress or (lambda _line: None)
    asked = chosen_entries(config, store=store, table=table, key=key)
    if store is not None and store not in config.stores:  # what the file called so once
        Quarantine(config).resolve(asked)
        return [Retried(entry, "gone") for entry in asked]
    if not asked:
        return []
    gone: list[Entry] = []
    with opened(config, store, table, tell) as (spark, copies, unusable):
        for name, error in unusable.items():
            tell(f"warning: {name} is left for later, the others go on: {error.message}")
        followed = {(made.topic, name): (made, kept) for made, stores in copies for name, kept in stores.items()}
        again = _Retry(spark, config, Quarantine(config), tell)
        others = (entry for entry in asked if (entry.topic, entry.store) not in followed)
        gone += (entry for entry in others if entry.table not in unusable)
        for (topic, name), (made, kept) in followed.items():
            mine = [entry for entry in asked if (entry.topic, entry.store) == (topic, name)]
            if mine:
                tell(f"{made.qualified} in {name}: {len(mine):,} events")
                gone += again.try_fold(made, name, kept, mine)
        again.quarantine.resolve(gone)
        again.require_some()
    left, lost = read_entries(config), {entry.id for entry in gone}
    return [
        Retried(left.get(entry.id, entry), "left" if entry.id in left else "gone" if entry.id in lost else "applied")
        for entry in asked
    ]


@dataclass(slots=True)
class _Retry:
    spark: SparkSession
    config: ApplyConfig
    quarantine: Quarantine
    tell: Progress
    _folded: int = 0
    """Into how many copies events were folded."""
    _failed: list[CdcError] = field(default_factory=list)
    _away: dict[str, StoreAwayError] = field(default_factory=dict)
    """By store: it has not answered, and is not asked about its other copies, which would each take their time."""

    def try_fold(self, table: TargetTable, name: str, store: Store, entries: Sequence[Entry]) -> list[Entry]:
        """Do what `fold` does; a copy that cannot be written keeps its events, and stops no other."""
        try:
            if name in self._away:
                raise self._away[name]
            gone = self.fold(table, name, store, entries)
        except UnansweredError:  # Kafka's: of all copies
            raise
        except Exception as exc:
            error = None if concerns_spark(exc) else error_of(exc, table, name)
            if error is None:
                raise
            if isinstance(error, StoreAwayError):
                self._away[name] = error
            self._failed.append(error)
            hint = f"; {error.hint}" if error.hint else ""
            self.tell(f"warning: {table.qualified} in {name} keeps its events, the others go on: {error.message}{hint}")
            return []
        self._folded += 1
        return gone

    def require_some(self) -> None:
        """Raise the first error where no copy could be written."""
        if self._failed and not self._folded:
            raise self._failed[0]

    def fold(self, table: TargetTable, name: str, store: Store, entries: Sequence[Entry]) -> list[Entry]:
        """Fold the keys of the entries in; return the entries whose events the topic no longer has."""
        topics, topic = self.config.source, table.topic
        visibility = _visibility(table, name, store)
        store.open(table)
        applier = Applier({topic: Route(table, {name: store})}, refuse_newer, self.quarantine)
        first, end = offset_ranges(topics, topic)
        begin = {number: _begin(number, entries, first, end) for number in end}
        entries = self._with_keys(topic, entries, begin, end)
        keys = {entry.key for entry in entries if entry.key is not None}
        since: Offsets = begin
        while True:
            records = read_topic(self.spark, topics, topic, since, end)
            applier(records.where(F.col("key").cast("string").isin(keys)), visibility)
            _, later = offset_ranges(topics, topic)
            told = keys_between(topics, topic, end, later)
            if not any(key.decode(errors="replace") in keys for key in told):
                break
            since, end = end, later
        left = {entry.id for entry in self.quarantine.of(name, topic)}
        return self._gone(table, [entry for entry in entries if entry.id in left], begin, end)

    def _with_keys(self, topic: str, entries: Sequence[Entry], begin: Offsets, end: Offsets) -> Sequence[Entry]:
        """Return the entries with the keys of their records, also where the note has no room for one."""
        without = {(entry.partition, entry.offset): entry for entry in entries if entry.key is None}
        known: dict[bytes, Entry] = {}
        for message in records_between(self.config.source, topic, begin, end) if without else ():
            entry = without.get((message.partition() or 0, message.offset() or 0))
            if entry is not None and (key := message.key()) is not None:
                known[entry.id] = replace(entry, key=key.decode(errors="replace") if isinstance(key, bytes) else key)
        self.quarantine.know(known.values())
        return [known.get(entry.id, entry) for entry in entries]

    def _gone(self, table: TargetTable, entries: Iterable[Entry], begin: Offsets, end: Offsets) -> list[Entry]:
        """Return the entries whose record is not in the topic, and those with a later tombstone."""
        wanted = {(entry.partition, entry.offset): entry for entry in entries}
        keys = {entry.key for entry in entries if entry.key is not None}
        there: set[tuple[int, int]] = set()
        buried: dict[str, int] = {}
        for message in records_between(self.config.source, table.topic, begin, end) if wanted else ():
            at = message.partition() or 0, message.offset() or 0
            there |= {at} & wanted.keys()
            if message.value() is None and not table.history:
                buried |= dict.fromkeys(keys & {(message.key() or b"").decode(errors="replace")}, at[1])
        return [
            entry for at, entry in wanted.items() if at not in there or buried.get(entry.key or "", -1) > entry.offset
        ]


def _begin(partition: int, entries: Iterable[Entry], first: Offsets, end: Offsets) -> int:
    wanted = min((entry.offset for entry in entries if entry.partition == partition), default=end[partition])
    return min(max(wanted, first[partition]), end[partition])


def _visibility(table: TargetTable, name: str, store: Store) -> Mapping[Key, Visibility]:
    """Return what a `WholeStore` shows already. Raises OperatorError for a copy that is not filled yet."""
    mark = store.mark(table)
    if mark is None or not mark.ends:
        msg = f"{table.qualified} in {name}: its copy is not filled yet"
        raise OperatorError(msg, hint="cdc apply APPLY.yaml meets these events again by itself")
    if not is_whole(store):
        return {}
    limit = mark.complete.position if mark.complete else EVERYTHING
    return {(table.topic, name): Visibility(replace(mark, ends={}), limit, again=True)}
