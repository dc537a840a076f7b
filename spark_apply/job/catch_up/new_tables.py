"""Notices tables that come while a job runs, and has them taken up.

A job reads the topics that it began with: its checkpoint is that of their copies. So the query ends after its batch,
and another one begins with the new tables, where the copies are. That is done only where the file fits the new tables:
a table that it does not fit is set aside until the next start, which tells `cdc status` and the exit code, and the job
goes on as it was.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pyspark.sql import SparkSession

from cdc.config.apply_config import ApplyTable
from cdc.config.config import ApplyConfig
from cdc.model.errors import ConfigError, OperatorError
from spark_apply.events.kafka.client import ForbiddenError
from spark_apply.events.kafka.offsets import committed_ends
from spark_apply.events.kafka.schema_topic import schema_topic, schema_versions
from spark_apply.events.selection import fitting_one
from spark_apply.job.copies.chosen import Unusable, topic_of, usable_targets
from spark_apply.job.copies.set_aside import AsideCopies
from spark_apply.model.store import Store
from spark_apply.model.target_table import Version, choose

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
    _said: str = ""
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
        except ForbiddenError as exc:
            if exc.message != self._said:
                self.asides.tell(f"warning: {exc.message}: tables that come are not taken up meanwhile; {exc.hint}")
            self._said = exc.message
            return
        except OperatorError:
            return
        self._end, self._said = end, ""
        fresh = choose(self.config.tables, {*versions, *self.known})
        new = sorted(fresh.keys() - self.known)
        if not new:
            return
        for table in new:
            self.known.add(table)
            error = self._unfit(table, fresh[table], versions)
            if error is not None:
                self._refuse(table, fresh[table], topic_of(fresh[table], versions[table]), error)
        taken = [table for table in new if table not in self.refused]
        self.found = bool(taken)
        if taken:
            self.asides.tell(f"taking up {', '.join(taken)}")

    def _unfit(self, table: str, settings: ApplyTable, versions: Mapping[str, Sequence[Version]]) -> ConfigError | None:
        """Return why a start would not begin with a new table, as the file is; other errors are left to the start."""
        there = {of: made for of, made in versions.items() if of in self.known and of not in self.refused}
        try:
            error = fitting_one(self.config, there, table).errors.get(table)
            if error is None:
                unfit = usable_targets(self.config, {table: (settings, [*versions[table]])}, self.spark)[1]
                error = unfit[table].error if table in unfit else None
        except ConfigError as exc:
            error = exc
        return error if isinstance(error, ConfigError) else None

    def _refuse(self, table: str, settings: ApplyTable, topic: str, error: ConfigError) -> None:
        """Set the copies of a new table aside until the next start."""
        self.refused[table] = Unusable(settings, topic, error, lost=True)
        for name in settings.stores:
            store = self.stores.get(name) or next(iter(self.stores.values()))  # which is never written to
            self.asides.refused(topic, name, table, store, error, for_good=True)
            self.asides.note(topic, name)
