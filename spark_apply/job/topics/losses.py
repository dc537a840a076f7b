"""Computes what a rebuild would lose: versions of rows that only the copy has, no longer its log."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cdc.config.apply_config import ApplySource
from spark_apply.events.kafka.records import LogStart, log_starts
from spark_apply.events.kafka.topics import existing_topics, topic_settings
from spark_apply.job.topics.retention import span
from spark_apply.model.store import Offsets
from spark_apply.model.target_table import TargetTable

_LIMITS, _FOREVER = ("retention.ms", "retention.bytes"), -1


@dataclass(frozen=True, slots=True)
class TableLog:
    """The log topic of a table, as it is now."""

    begins: Mapping[int, LogStart]
    kept_ms: int | None
    """The age at which it deletes records; 0 where its size decides, None: never."""


@dataclass(frozen=True, slots=True)
class RebuildLoss:
    """What a rebuild would lose of a copy."""

    loses: bool
    what: str
    versions_before: str | None = None
    """The versions before this time are in the copy alone; None if there are none, or no time is known."""
    offsets_gone: int | None = None
    """The number of offsets deleted from the beginning of its log; None if not known."""


def table_logs(config: ApplySource, tables: Iterable[TargetTable]) -> dict[str, TableLog]:
    """Read the logs of the tables with a history, by topic. Raises OperatorError when the broker does not answer."""
    topics = sorted(existing_topics(config, {table.topic for table in tables if table.history}))
    if not topics:
        return {}
    settings = topic_settings(config, topics)
    kept = {topic: {name: int(of[name]) for name in _LIMITS} for topic, of in settings.items()}
    return {topic: TableLog(log_starts(config, topic), _kept_ms(kept[topic])) for topic in topics}


def _kept_ms(limits: Mapping[str, int]) -> int | None:
    if limits["retention.bytes"] != _FOREVER:
        return 0
    return None if limits["retention.ms"] == _FOREVER else limits["retention.ms"]


def rebuild_loss(table: TargetTable, log: TableLog | None, has: Offsets | None) -> RebuildLoss:
    """Return the loss for a copy that has its topic up to `has`; None: there is no copy yet."""
    if not table.history:
        return RebuildLoss(loses=False, what="nothing: its topic has the newest version of each row")
    if log is None:
        what = f"every version but the newest of each row, which is all that remains without its log {table.topic}"
        return RebuildLoss(loses=True, what=what)
    gone = sum(part.first for part in log.begins.values())
    if has is not None and table.keys:
        what = "versions under a key that the source's table has no more: they are in the copy alone"
        return RebuildLoss(loses=True, what=what, offsets_gone=gone)
    if has is None:
        return RebuildLoss(loses=False, what="nothing: there is no copy yet", offsets_gone=gone)
    if any(at > log.begins[number].end for number, at in has.items() if number in log.begins):
        return RebuildLoss(loses=True, what=f"versions that the copy has: {table.topic} was recreated since")
    if gone:
        before = _before(log)
        what = f"versions before {before or 'now'}: they are in the copy alone, {gone:,} offsets of its log are gone"
        return RebuildLoss(loses=True, what=what, versions_before=before, offsets_gone=gone)
    if log.kept_ms is None:
        return RebuildLoss(loses=False, what="nothing: its log has all, and forgets nothing", offsets_gone=0)
    age = "what makes it too large" if log.kept_ms == 0 else f"what is older than {span(log.kept_ms)}"
    what = f"nothing yet: its log has all, but forgets {age}, which is then in the copy alone"
    return RebuildLoss(loses=False, what=what, offsets_gone=0)


def _before(log: TableLog) -> str | None:
    """Return up to when versions may be missing: a key has one partition, so the latest beginning decides."""
    found = [part.at for part in log.begins.values() if part.first > 0]
    times = [at for at in found if at is not None]
    return max(times).isoformat(timespec="milliseconds") if len(times) == len(found) else None


def rollback_loss(table: TargetTable, log: TableLog | None, until: dt.datetime) -> str | None:
    """Return what a rollback to a copy that was live until then would lose; None: the log has everything since."""
    if not table.history:
        return None
    gone = log is None or any(part.first > 0 and (part.at is None or part.at > until) for part in log.begins.values())
    since = f"versions since {until.isoformat(timespec='milliseconds')}"
    return f"{since}: the log no longer has all of them, and they are in the live copy alone" if gone else None
