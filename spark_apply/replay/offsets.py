"""Shows, exports and imports up to where an apply job has read its topics: ``cdc offsets``.

An import makes a checkpoint beside that one, whole, and then gives it its name; the one before is kept under another.
A crash between the two leaves the job without a checkpoint: then it reads its topics from their beginnings, and stores
refuse what they have. So nothing is ever lost of it but time.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from pyspark.sql import SparkSession

from cdc.config.config import ApplyConfig
from cdc.model.errors import ConfigError, OperatorError
from cdc.offsets.exported import Exported
from spark_apply.events.kafka.topic_identity import differing, identities
from spark_apply.job.checkpoint import files as checkpoints
from spark_apply.job.checkpoint.reading import on_this_disk
from spark_apply.job.topics.retention import extents, missing_offsets
from spark_apply.model.completeness import Ends
from spark_apply.spark.at_work import alone
from spark_apply.spark.paths import located
from spark_apply.spark.remedies import reaching
from spark_apply.spark.session import open_session

_EXPORT: Final = "cdc offsets export APPLY.yaml > offsets-now.json"


@dataclass(frozen=True, slots=True)
class Moved:
    """What an import has done."""

    kind: Literal["same", "repeat", "skip"]
    means: str
    kept: str | None
    """The checkpoint as it was before."""


def export(config: ApplyConfig) -> Exported:
    """Return up to where the job has read. Raises OperatorError if it never has."""
    here = on_this_disk(config)
    spark = None if here is not None else open_session(config.name, config.spark)
    with reaching(f"checkpoint: {config.checkpoint}"):
        return _exported(spark, config, here)


def _exported(spark: SparkSession | None, config: ApplyConfig, here: str | None = None) -> Exported:
    found = checkpoints.newest(spark, here or located(config.checkpoint))
    ends = checkpoints.ends_committed(spark, found[0]) if found is not None else None
    if found is None or ends is None:
        raise OperatorError(
            f"apply job {config.name} has applied nothing yet: checkpoint {config.checkpoint} has no offsets",
            hint="cdc apply APPLY.yaml",
        )
    folder, copies = found
    return Exported(
        of="apply",
        name=config.name,
        prefix=config.source.topic_prefix,
        at_ms=time.time_ns() // 1_000_000,
        topics={topic: identity for topic, (identity, _) in checkpoints.noted_topics(spark, folder).items()},
        ends={topic: {str(number): end for number, end in of.items()} for topic, of in ends.items()},
        copies=copies,
    )


def import_offsets(config: ApplyConfig, exported: Exported, *, force: bool) -> Moved:
    """Let the job go on from exported offsets. Raises OperatorError for what is refused; then nothing is done."""
    spark = open_session(config.name, config.spark)
    with reaching(f"checkpoint: {config.checkpoint}"), alone(config.checkpoint, config.name) as sure:
        now = _exported(spark, config)
        _refuse_others(config, now, exported)
        ends = _ends(exported)
        missing = missing_offsets(ends, extents(config.source, sorted(ends)))
        if missing:
            what = "; ".join(what for _, what in missing)
            raise OperatorError(f"the offsets are not in the topics any more: {what}", hint=_EXPORT)
        kind, means = meaning(config.name, _ends(now), ends)
        if kind == "same":
            return Moved(kind, means, None)
        if not force:
            raise OperatorError(means, hint="cdc offsets import APPLY.yaml OFFSETS.json --force  # does it anyway")
        if not sure:
            means += "; whether the job is at work could not be told here"
        folder, _ = checkpoints.newest(spark, located(config.checkpoint)) or ("", {})
        return Moved(kind, means, checkpoints.with_ends(spark, folder, ends, _stamp()))


def _stamp() -> str:
    return f"{dt.datetime.now(dt.UTC):%Y%m%dT%H%M%S%f}"


def _ends(exported: Exported) -> Ends:
    return {topic: {int(number): end for number, end in of.items()} for topic, of in exported.ends.items()}


def _refuse_others(config: ApplyConfig, now: Exported, exported: Exported) -> None:
    if exported.of != "apply" or (exported.name, exported.prefix) != (now.name, now.prefix):
        raise ConfigError(
            f"the offsets are of {exported.name}, which reads {exported.prefix}, not of apply job {now.name}",
            hint=_EXPORT,
        )
    if exported.copies != now.copies:
        raise OperatorError(
            f"the offsets are of other copies than apply job {now.name} has now: tables or stores were added, or made "
            "again, since",
            hint=_EXPORT,
        )
    others = differing(exported.topics, identities(config.source, exported.ends))
    for topic, how in others.items():
        raise OperatorError(f"the offsets are of another topic {topic}: {how}", hint=_EXPORT)


def meaning(job: str, here: Ends, there: Ends) -> tuple[Literal["same", "repeat", "skip"], str]:
    """Say what lies between up to where a job has read and where it shall go on."""
    back, ahead = _less(there, here), _less(here, there)
    if not back and not ahead:
        return "same", f"apply job {job} has read up to there already"
    said = []
    if back:
        said.append(
            f"{sum(back.values()):,} offsets of {len(back)} topics ({_named(back)}) would be read again, of which "
            "stores leave out what they have"
        )
    if ahead:
        said.append(
            f"{sum(ahead.values()):,} offsets of {len(ahead)} topics ({_named(ahead)}) would never be read; a job "
            "does not start whose stores do not have them"
        )
    return ("skip" if ahead else "repeat"), f"apply job {job}: {'; and '.join(said)}"


def _less(one: Ends, other: Ends) -> dict[str, int]:
    """Return by topic by how much `one` is less than `other`."""
    found = {
        topic: sum(max(0, end - one.get(topic, {}).get(number, 0)) for number, end in of.items())
        for topic, of in other.items()
    }
    return {topic: many for topic, many in sorted(found.items()) if many}


_NAMED: Final = 5


def _named(topics: Mapping[str, int]) -> str:
    names = list(topics)
    return ", ".join(names[:_NAMED]) + (", …" if len(names) > _NAMED else "")
