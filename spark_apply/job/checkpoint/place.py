"""Says which checkpoint is that of a job's copies, and where the job stands in it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pyspark.sql import SparkSession

from cdc.config.config import ApplyConfig
from spark_apply.events.kafka.offsets import partition_bounds
from spark_apply.job.checkpoint import files as checkpoints
from spark_apply.job.topics.identity import FollowedTopics
from spark_apply.job.topics.retention import require_offsets
from spark_apply.model.completeness import Ends
from spark_apply.spark.paths import located


@dataclass(frozen=True, slots=True)
class Place:
    """Where a job stands: its checkpoint, and the topics that the offsets in it are of."""

    checkpoint: str
    topics: FollowedTopics
    since: Ends | None
    """Where they are read from where there is no checkpoint."""
    held: Ends | None = None
    """What all copies have that go on, where a job has just followed fewer topics."""

    def left(self, ends: Ends) -> Ends:
        """Return those of the ends that lie behind where reading begins: the others are never read up to."""
        since = self.since or {}
        found = {
            topic: {number: end for number, end in of.items() if end > since.get(topic, {}).get(number, -1)}
            for topic, of in ends.items()
        }
        return {topic: of for topic, of in found.items() if of}

    def begin(self, spark: SparkSession, tell: Callable[[str], None]) -> Ends | None:
        """Return the end offsets of the last batch that was applied, or what was applied before the first one.

        Raises OperatorError for a checkpoint that is damaged, of other topics, or of offsets that are gone.
        """
        applied = checkpoints.ends_committed(spark, self.checkpoint)
        if applied is None and self.since is None:
            applied = self._began_behind(spark)
        noted = checkpoints.noted_topics(spark, self.checkpoint)
        for line in self.topics.compare(noted, self.checkpoint):
            tell(line)
        now: dict[str, tuple[str, int]] = {**self.topics.begun}
        if now != noted:
            checkpoints.note_topics(spark, self.checkpoint, now)
        logs = [topic for topic, table in self.topics.tables.items() if table.history]
        require_offsets(self.topics.source, applied, logs=logs)
        return self.held if applied is None else applied

    def _began_behind(self, spark: SparkSession) -> Ends | None:
        """Return where a query that was killed in its first batch had begun, of topics not read from their beginnings.

        It had begun where the copies were, since tables had come: nothing of before is read again.
        """
        began = checkpoints.began_at(spark, self.checkpoint) or {}
        bounds = partition_bounds(self.topics.source, sorted(began), "read_committed") if began else {}
        firsts = {place: first for place, (first, _) in bounds.items()}
        behind = {
            topic: of
            for topic, of in began.items()
            if any(at > firsts.get((topic, number), at) for number, at in of.items())
        }
        return behind or None


def known_identities(
    spark: SparkSession, config: ApplyConfig, identities: Mapping[str, Mapping[str, str | None]]
) -> checkpoints.Identities:
    """Complete the identities with those that the last checkpoints have noted: some copies cannot be opened now."""
    missing = any(identity is None for of in identities.values() for identity in of.values())
    noted = checkpoints.noted_copies(spark, located(config.checkpoint)) if missing else []

    def known(table: str, name: str) -> str | None:
        return next((of[table][name] for of in noted if name in of.get(table, {})), None)

    found = {table: {name: i or known(table, name) for name, i in of.items()} for table, of in identities.items()}
    return {table: {name: i for name, i in of.items() if i is not None} for table, of in found.items()}


def checkpoint_folder(config: ApplyConfig, identities: Mapping[str, Mapping[str, str]]) -> str:
    """Return the checkpoint folder of a job with these copies (identities by table, then by store)."""
    fed = json.dumps([config.source.topic_prefix, identities], sort_keys=True)
    folder = hashlib.sha256(fed.encode()).hexdigest()[:16]
    return f"{located(config.checkpoint)}/{folder}"
