"""Notices tables that come while a job runs, and has them taken up.

A job reads the topics that it began with: its checkpoint is that of their copies. So the query ends after its batch,
and another one begins with the new tables, where the copies are. That is done only where the file fits the new tables:
a table that it does not fit is set aside until the next start, which tells `cdc status` and the exit code, and the job
goes on as it was.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from pyspark.sql import SparkSession

from cdc.config.apply_config import ApplyTable
from cdc.config.config import ApplyConfig
from cdc.model.errors import ConfigError, OperatorError
from spark_apply.events.kafka.offsets import committed_ends
from spark_apply.events.kafka.schema_topic import schema_topic, schema_versions
from spark_apply.job.copies.chosen import Unusable, choose_usable, topic_of, usable_targets
from spark_apply.job.copies.set_aside import AsideCopies
from spark_apply.model.store import Store
from spark_apply.model.target_table import choose

LOOK_EVERY_S: Final = 10.0


@dataclass(slots=True)
class TableWatch:
    """Looks now and then which tables the schema topic has."""

    config: ApplyConfig
    spark: SparkSession
    stores: Mapping[str, Store]
    asides: AsideCopies
    began: frozenset[str]
    """The tables that the job began with, those that are set aside, too."""
    refused: dict[str, Unusable]
    """Those that have come and that no start begins with, as the file is."""
    known: set[str] = field(init=False)
    found: bool = False
    """Whether tables have come that can be taken up."""
    _end: Mapping[int, int] | None = None
    """The end of the schema topic, when its tables were looked at last."""
    _looked_at: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.known = {*self.began}

    def look(self) -> None:
        """Look for new tables; a broker that does not answer is asked again the next time."""
        if self.found or time.monotonic() - self._looked_at < LOOK_EVERY_S:
            return
        self._looked_at = time.monotonic()
        try:
            end = committed_ends(self.config.source, schema_topic(self.config.source))
            versions = schema_versions(self.config.source) if end != self._end else {}
        except OperatorError:
            return
        self._end = end
        fresh = choose(self.config.tables, {*versions, *self.known})
        new = sorted(fresh.keys() - self.known)
        if not new:
            return
        try:
            for table in new:
                self._judge(table, fresh[table], topic_of(fresh[table], versions[table]))
        except OperatorError:  # the broker does not answer
            self._end = None
            return
        taken = [table for table in new if table not in self.refused]
        self.found = bool(taken)
        if taken:
            self.asides.tell(f"taking up {', '.join(taken)}")

    def _judge(self, table: str, settings: ApplyTable, topic: str) -> None:
        """Set the copies of a new table aside if a start would not begin with it, as the file is."""
        if table in self.known:
            return
        self.known.add(table)
        try:
            versions = schema_versions(self.config.source)
            others = [other for other in versions if other not in self.known or other in self.refused]
            chosen, unusable = choose_usable(self.config, but=others)
            new = {table: chosen[table]} if table in chosen else {}
            unusable |= usable_targets(self.config, new, self.spark)[1]
        except OperatorError:
            self.known.discard(table)
            raise
        unfit = unusable.get(table)
        if unfit is not None and isinstance(unfit.error, ConfigError):
            self.refused[table] = Unusable(settings, topic, unfit.error, lost=True)
            for name in settings.stores:
                store = self.stores.get(name) or next(iter(self.stores.values()))  # which is never written to
                self.asides.refused(topic, name, table, store, unfit.error, for_good=True)
                self.asides.note(topic, name)
