"""Takes new events of streams in where executors reach them, if they are many.

What differs from `spark_apply.views.running.stream_reader`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses

from spark_apply.events.kafka.stream import read_topic
from spark_apply.events.typed import KEY
from spark_apply.views.cluster.kept_rows import MOST_OVER
from spark_apply.views.cluster.lake import Lake
from spark_apply.views.cluster.state import ClusterState
from spark_apply.views.cluster.waiting_events import wait
from spark_apply.views.planning.streams import Stream, events_of
from spark_apply.views.running.stream_reader import Offsets, StreamReader


@dataclass(slots=True, kw_only=True)
class ClusterStreamReader(StreamReader):
    """A `spark_apply.views.running.stream_reader.StreamReader` whose driver keeps few events alone."""

    lake: Lake

    def _waits(self, stream: Stream) -> bool:
        named = "SELECT 1 FROM lake.waiting WHERE name = ? AND snapshot IS NOT NULL"
        return bool(self.state.rows(named, [stream.use.relation])) or super(ClusterStreamReader, self)._waits(stream)

    def _take(self, name: str, stream: Stream, begin: Offsets, end: Offsets) -> int:
        if sum(last - begin.get(partition, 0) for partition, last in end.items()) <= MOST_OVER:
            return super(ClusterStreamReader, self)._take(name, stream, begin, end)
        events = events_of(read_topic(self.spark, self.source, stream.config.topic, begin, end), stream).persist()
        try:
            unreadable = events.where(F.col(KEY).isNull()).count()
            with self.state.transaction():
                good, state = events.where(F.col(KEY).isNotNull()), cast("ClusterState", self.state)
                wait(self.lake, state, stream.use.relation, good, stream.columns)
                self._note(name, end, unreadable)
        finally:
            events.unpersist()
        return unreadable
