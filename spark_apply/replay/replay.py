"""Runs a copy of an apply job from a time or a position on, beside the live one: ``cdc replay``."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable
from dataclasses import dataclass

from cdc.config.config import ApplyConfig
from cdc.model.change import Position
from cdc.model.errors import ConfigError
from spark_apply.events.kafka.schema_topic import schema_versions
from spark_apply.events.projection import projected_table
from spark_apply.job.checkpoint import files as checkpoints
from spark_apply.job.checkpoint.reading import on_this_disk
from spark_apply.job.copies.chosen import choose_tables
from spark_apply.job.job import ApplySummary, run_apply
from spark_apply.replay.beside import beside
from spark_apply.replay.span import TableSpan, ends_of, spans
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


def prepare(config: ApplyConfig, *, name: str, since: dt.datetime | Position | None) -> Replay:
    """Prepare a replay called `name`. Raises CdcError for what is refused.

    One that has begun before goes on from its own checkpoint; else `since` says where it begins.
    """
    made = beside(config, name, schema_versions(config.source))
    here = on_this_disk(made)
    spark = None if here is not None else open_session(name, config.spark)
    with reaching(f"checkpoint: {made.checkpoint}"):
        begun = checkpoints.newest(spark, here or located(made.checkpoint)) is not None
    if begun:
        return Replay(made, ())
    if since is None:
        raise ConfigError(f"replay {name} has not begun yet: where shall it?", hint="--from 24h, a time or a position")
    tables = [projected_table(versions, settings) for settings, versions in choose_tables(made).values()]
    return Replay(made, tuple(spans(config.source, tables, since)))


def run(
    replay: Replay, *, once: bool, progress: Callable[[str], None] | None = None, stop: threading.Event | None = None
) -> ApplySummary:
    """Run it, as `run_apply` does."""
    return run_apply(replay.config, once=once, begin=ends_of(replay.spans) or None, progress=progress, stop=stop)
