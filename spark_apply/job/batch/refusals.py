"""Puts a batch's poison records into quarantine, those that stores refuse among them, and resolves what was in it."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses

from spark_apply.events.quarantine import Entry, Quarantine
from spark_apply.events.typed import KEY, OFFSET, PARTITION, POSITION
from spark_apply.events.validation import PoisonRecord, RecordRef, record_ref, refusal, resolved_entries, superseded
from spark_apply.job.batch.counts import TableCount
from spark_apply.job.copies.set_aside import Key
from spark_apply.model.completeness import NOTHING, TakenIn
from spark_apply.model.store import Batch, Refused, Store
from spark_apply.model.target_table import TargetTable


@dataclass(slots=True)
class Refusals:
    """The poison records of the running batch."""

    quarantine: Quarantine
    counts: dict[tuple[str, str], TableCount]
    """The applier's own, by table and store."""
    _refused: dict[Key, list[PoisonRecord]] = field(default_factory=dict)
    """The records of the running batch that stores refused."""

    def begin(self) -> None:
        """Begin another batch."""
        self._refused.clear()

    @property
    def most(self) -> int:
        """Return the number of poison records to read: one more than the quarantine may hold shows that it is full."""
        return self.quarantine.limit + 1

    def put(self, store: str, table: TargetTable, bad: Sequence[PoisonRecord]) -> None:
        """Put events into quarantine for a store."""
        now_ms = time.time_ns() // 1_000_000
        entries = [Entry(store, table.qualified, table.topic, *one.at, reason=one.why, at_ms=now_ms) for one in bad]
        new = self.quarantine.put(entries, beyond=refusal(table, bad[0], store))
        self.counts.setdefault((table.qualified, store), TableCount()).quarantined += new
        if not table.history:
            self.quarantine.resolve(superseded(self.quarantine.of(store, table.topic), bad))

    def refusable(self, store: str, batch: Batch) -> Batch:
        """Return a batch of which the store may refuse rows."""
        return replace(batch, refuse=self.refuser(store, batch.table, batch.rows))

    def refuser(self, store: str, table: TargetTable, rows: DataFrame | None) -> Callable[[Collection[Refused]], None]:
        """Return what puts refused events into quarantine: those of `rows`, and those that waited in the store."""

        def refuse(refused: Collection[Refused]) -> None:
            said = {(one.partition, one.offset): one.reason for one in list(refused)[: self.most]}
            there: list[RecordRef] = []
            if rows is not None:
                found = rows.where(F.col(OFFSET).isin([offset for _, offset in said]))
                there = [RecordRef(*row) for row in found.select(PARTITION, OFFSET, KEY, POSITION).collect()]
            waited = said.keys() - {at[:2] for at in there}
            there += (record_ref(self.quarantine.config.source, table.topic, *at) for at in sorted(waited))
            bad = [PoisonRecord(at, reason=said[at[:2]]) for at in there if at[:2] in said]
            self._refused.setdefault((table.topic, store), []).extend(bad)
            self.put(store, table, bad)

        return refuse

    def had(self, name: str, store: Store, table: TargetTable) -> TakenIn:
        """Return what a `WholeStore` has of a topic before a batch: it leaves that out by itself, if it comes again."""
        mark = store.mark(table) if self.quarantine.of(name, table.topic) else None
        return NOTHING if mark is None else TakenIn("", mark.ends)

    def resolve(self, store: str, batch: Batch, had: TakenIn) -> None:
        """Resolve the entries whose event, or a newer one, the store has with this batch.

        It was not given what it `had` before.
        """
        topic = batch.table.topic
        refused = {one.at[:2] for one in self._refused.get((topic, store), ())}
        waiting = [e for e in self.quarantine.of(store, topic) if (e.partition, e.offset) not in refused]
        self.quarantine.resolve(resolved_entries(waiting, batch.rows, had, history=batch.table.history))
