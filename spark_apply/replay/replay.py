"""Runs a copy of an apply job from a time or a position on, beside the live one: ``cdc replay``.

It has the tables that it began with, as far as they can be copied now; the others are set aside, and the job tells
them. A table that comes later would be read from its beginning, and not from where the replay began. And with other
tables than before it has another checkpoint: it goes on from where the one before has ended.
"""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from cdc.config.config import ApplyConfig
from cdc.model.change import Position
from cdc.model.errors import CdcError, ConfigError, OperatorError
from cdc.model.hints import APPLY
from spark_apply.events.kafka.schema_topic import schema_versions
from spark_apply.events.projection import projected_table
from spark_apply.job.checkpoint import files as checkpoints
from spark_apply.job.checkpoint.reading import on_this_disk
from spark_apply.job.copies.chosen import Chosen, Unusable, choose_usable, topic_of, usable_targets, without_topics
from spark_apply.job.job import ApplySummary, Replayed, run_apply
from spark_apply.replay.beside import beside, named
from spark_apply.replay.span import TableSpan, ends_of, refuse_others, spans
from spark_apply.spark.paths import located
from spark_apply.spark.remedies import reaching
from spark_apply.spark.session import open_session


@dataclass(frozen=True, slots=True)
class Replay:
    """A replay that was prepared; nothing of it is made yet."""

    config: ApplyConfig
    """Of the replay: its own name, checkpoint and copies."""
    spans: tuple[TableSpan, ...]
    """What it reads of each table; none where it has begun before, and goes on."""
    begins: Replayed
    """Where it begins, and the tables that it is run without."""


def prepare(
    config: ApplyConfig, *, name: str, since: dt.datetime | Position | None, connector: str | None = None
) -> Replay:
    """Prepare a replay called `name`. Raises CdcError for what is refused.

    One that has begun before goes on from its own checkpoint; else `since` says where it begins: a position is of one
    connector, `connector` where a token names it.
    """
    going_on = _going_on(config, name)
    if going_on is not None:
        return going_on
    if since is None:
        raise ConfigError(f"replay {name} has not begun yet: where shall it?", hint="--from 24h, a time or a position")
    chosen, left = _usable(config, name, None)
    made = beside(config, name, schema_versions(config.source), but=left)
    tables = [projected_table(of, settings) for settings, of in chosen.values()]
    if isinstance(since, Position):
        refuse_others(config.source, tables, connector)
    read = tuple(spans(config.source, tables, since))
    begin = ends_of(read)
    return Replay(made, read, Replayed(begin, goes_on=False, left=left, first=begin, fresh=True))


def file_of(config: ApplyConfig, name: str, *, copies: bool) -> ApplyConfig:
    """Return the file of a replay that has begun; without `copies` its name and checkpoint alone. Raises CdcError."""
    going_on = _going_on(config, name) if copies else None
    if going_on is not None:
        return going_on.config
    if _begun(made := named(config, name)) is None:
        raise ConfigError(f"--as {name}: no such replay has begun", hint=f"is {made.checkpoint} where it has begun?")
    return made


def _going_on(config: ApplyConfig, name: str) -> Replay | None:
    """Prepare a replay that has begun before; None if it has not."""
    begun = _begun(named(config, name))
    if begun is None:
        return None
    begins, began = begun
    _, left = _usable(config, name, began)
    return Replay(beside(config, name, schema_versions(config.source), but=left), (), replace(begins, left=left))


def _begun(made: ApplyConfig) -> tuple[Replayed, Container[str]] | None:
    """Return from where on a replay that has begun goes on, and the tables that it began with."""
    here = on_this_disk(made)
    spark = None if here is not None else open_session(made.name, made.spark)
    place = here or located(made.checkpoint)
    with reaching(f"checkpoint: {made.checkpoint}"), _beside_the_job():
        found = checkpoints.newest(spark, place)
        if found is None:
            return None
        folder, copies = found
        applied = checkpoints.ends_committed(spark, folder)
        ends = applied or checkpoints.began_at(spark, folder)
        first = checkpoints.first_began_at(spark, place)
        if ends is None:
            return None
        later = any(
            at > first.get(topic, {}).get(number, at) for topic, of in ends.items() for number, at in of.items()
        )
        return Replayed(ends, goes_on=applied is not None or later, left={}, first=first), copies


def _usable(config: ApplyConfig, name: str, began: Container[str] | None) -> tuple[Chosen, dict[str, Unusable]]:
    """Return the tables that can be copied, and the others, as the live job's file has them.

    `began` are those that the replay began with. Raises the error of a table that the file names and does not fit, and
    the first one where no table is left.
    """
    chosen, left = choose_usable(config)
    left |= without_topics(config, chosen)
    reading = {table: of for table, of in chosen.items() if table not in left and (of[0].where or of[0].computed)}
    if reading:  # Spark alone says whether its expressions fit
        left |= usable_targets(config, reading, open_session(name, config.spark))[1]
    for table, (settings, versions) in chosen.items():
        if table not in left and began is not None and table not in began:
            why = OperatorError(
                f"{table} is new since the replay {name} began: all of it would be read",
                hint="a replay under another name, by --as, has it from where that one begins",
            )
            left[table] = Unusable(settings, topic_of(settings, versions), why)
    kept = {table: of for table, of in chosen.items() if table not in left}
    if left and not kept:
        raise next(of.error for of in left.values())
    return kept, {table: replace(of, lost=True) for table, of in left.items()}  # no start of the replay has them


def run(
    replay: Replay, *, once: bool, progress: Callable[[str], None] | None = None, stop: threading.Event | None = None
) -> ApplySummary:
    """Run it, as `run_apply` does."""
    with _beside_the_job():
        return run_apply(replay.config, once=once, replayed=replay.begins, progress=progress, stop=stop)


@contextmanager
def _beside_the_job() -> Iterator[None]:
    """Say of what ends a replay how to begin another: commands for APPLY.yaml work on the live job, which is fine."""
    try:
        yield
    except CdcError as exc:
        if exc.hint is not None and f" {APPLY}" in exc.hint:
            exc.hint = "the live job is not concerned; a replay under another name, by --as, begins at its --from"
        raise
