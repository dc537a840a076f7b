"""Notices tables that come while a job runs, and says that they are not followed yet.

A job reads the topics that it began with: its checkpoint is that of their copies. A table that comes to match
apply.yaml later is followed from the next start on. Until then it is set aside, so that `cdc status` tells why its
store is not complete, and the job ends with another exit code.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from cdc.config.config import ApplyConfig
from cdc.model.errors import OperatorError
from spark_apply.events.kafka.offsets import committed_ends
from spark_apply.events.kafka.schema_topic import schema_topic, schema_versions
from spark_apply.job.copies.chosen import topic_of
from spark_apply.job.copies.set_aside import AsideCopies
from spark_apply.model.store import Store
from spark_apply.model.target_table import choose

LOOK_EVERY_S: Final = 10.0

_LATER: Final = OperatorError(
    "it came after the job had begun, which follows the tables that it began with",
    hint="stop the job and start it again: it makes the copy, and reads the topics from their beginnings",
)


@dataclass(slots=True)
class TableWatch:
    """Looks now and then which tables the schema topic has."""

    config: ApplyConfig
    stores: Mapping[str, Store]
    asides: AsideCopies
    known: set[str]
    """The tables that the job began with, those that are set aside, too."""
    _end: Mapping[int, int] | None = None
    """The end of the schema topic, when its tables were looked at last."""
    _looked_at: float = field(default_factory=time.monotonic)

    def look(self) -> None:
        """Set the copies of new tables aside; a broker that does not answer is asked again the next time."""
        if time.monotonic() - self._looked_at < LOOK_EVERY_S:
            return
        self._looked_at = time.monotonic()
        try:
            end = committed_ends(self.config.source, schema_topic(self.config.source))
            versions = schema_versions(self.config.source) if end != self._end else {}
        except OperatorError:
            return
        self._end = end
        fresh = choose(self.config.tables, {*versions, *self.known})
        for table in fresh.keys() - self.known:
            self.known.add(table)
            topic = topic_of(fresh[table], versions[table])
            for name in fresh[table].stores:
                store = self.stores.get(name) or next(iter(self.stores.values()))  # which is never written to
                self.asides.refused(topic, name, table, store, _LATER, for_good=True)
                self.asides.note(topic, name)
