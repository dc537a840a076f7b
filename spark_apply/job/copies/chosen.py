"""Chooses the tables and stores of apply.yaml, as the schema topic and the broker have them now."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass

from pyspark.sql import SparkSession

from cdc.config.apply_config import ApplyTable
from cdc.config.config import ApplyConfig
from cdc.encode.table_log import log_of
from cdc.model.errors import CdcError, OperatorError
from cdc.model.hints import grant
from spark_apply.events.expressions import resolved
from spark_apply.events.kafka.schema_topic import schema_versions
from spark_apply.events.kafka.topics import existing_topics, missing_rights
from spark_apply.events.projection import followed_table
from spark_apply.events.refusals import without_log
from spark_apply.events.selection import fitting, fitting_one, stops_all
from spark_apply.job.copies.route import Route
from spark_apply.job.copies.set_aside import AsideCopies
from spark_apply.job.topics.identity import DELETED
from spark_apply.model.store import Store, WaitingStore, open_store, require_stores
from spark_apply.model.target_table import TargetTable, Version
from spark_apply.spark.jvm.environment import require_paths

_BESIDE_OTHERS_S = 2.0
"""So long the server of one store is waited for where others are written by turns with it."""

Chosen = dict[str, tuple[ApplyTable, list[Version]]]
"""By ``schema.table``."""


@dataclass(frozen=True, slots=True)
class Unusable:
    """A table of which no copy can be made as it is now."""

    settings: ApplyTable
    topic: str
    error: CdcError
    lost: bool = False
    """Whether it has no topic: the job then reads the others without it, until it is started again."""


def choose_usable(config: ApplyConfig, *, but: Container[str] = ()) -> tuple[Chosen, dict[str, Unusable]]:
    """Return the tables of apply.yaml with their versions in the schema topic, and those that cannot be copied.

    The tables of `but`, by ``schema.table``, are passed over.
    Raises CdcError for what the file names and does not fit.
    """
    places = [(f"stores.{name}.path", store.path) for name, store in config.stores.items() if store.path]
    require_paths([*places, ("checkpoint", config.checkpoint)])
    require_stores(config)
    versions = schema_versions(config.source)
    judged = fitting(config, versions, but=but)
    chosen = {table: (judged.settings[table], versions[table]) for table in judged.made}
    unusable = {
        table: Unusable(judged.settings[table], topic_of(judged.settings[table], versions[table]), error)
        for table, error in judged.errors.items()
    }
    return chosen, unusable


def topic_of(settings: ApplyTable, versions: Sequence[Version]) -> str:
    """Return the topic that a table's copies are made of."""
    newest = max(versions, key=lambda version: version.number).topic
    return log_of(newest) if settings.mode == "history" else newest


def newest(config: ApplyConfig, spark: SparkSession, table: str) -> TargetTable:
    """Return a table at its newest version. Raises CdcError if no copy of it can be made."""
    versions = schema_versions(config.source)
    judged = fitting_one(config, versions, table)
    if table in judged.errors:
        raise judged.errors[table]
    return followed_table(versions[table], judged.settings[table], lambda of: resolved(of, spark))


def usable_targets(
    config: ApplyConfig, chosen: Chosen, spark: SparkSession
) -> tuple[dict[str, TargetTable], dict[str, Unusable]]:
    """Return what copies of the tables hold, and the tables whose expressions do not fit them.

    Raises ConfigError for the first expression that never fitted a table which the file names.
    """
    made: dict[str, TargetTable] = {}
    unusable: dict[str, Unusable] = {}
    for table, (settings, versions) in sorted(chosen.items()):
        try:
            made[table] = followed_table(versions, settings, lambda of: resolved(of, spark))
        except CdcError as exc:
            if stops_all(config, table, exc):
                raise
            unusable[table] = Unusable(settings, topic_of(settings, versions), exc)
    return made, unusable


def without_logs(config: ApplyConfig, chosen: Chosen) -> dict[str, str]:
    """Return the tables in history mode without a log topic, with the topic's name."""
    histories = {table: topic_of(of, versions) for table, (of, versions) in chosen.items() if of.mode == "history"}
    there = existing_topics(config.source, histories.values())
    return {table: topic for table, topic in histories.items() if topic not in there}


def without_topics(config: ApplyConfig, chosen: Chosen) -> dict[str, Unusable]:
    """Return the tables whose topic does not exist, or that this user may not read: Spark reads all topics together.

    Where that is said of all that exist, it is left to what reads them: a broker of another maker may not tell rights.
    """
    topics = {topic_of(*of) for of in chosen.values()}
    refused, there = missing_rights(config.source, topics), existing_topics(config.source, topics)
    refused = refused if there.keys() - refused.keys() else {}
    found = dict[str, Unusable]()
    for table, (settings, versions) in chosen.items():
        topic = topic_of(settings, versions)
        if topic in refused:
            error = OperatorError(
                f"{table}: this user may not read its topic {topic} ({', '.join(refused[topic])})",
                hint=grant(config.source.bootstrap_servers, config.source.options, refused[topic], topic),
            )
            found[table] = Unusable(settings, topic, error, lost=True)
        elif topic not in there:
            error = OperatorError(
                f"{table}: its topic {topic} does not exist at {config.source.bootstrap_servers}",
                hint=f"was it deleted? {DELETED}",
            )
            found[table] = Unusable(
                settings, topic, without_log(table, topic) if settings.mode == "history" else error, lost=True
            )
    return found


def open_stores(
    config: ApplyConfig, tables: Iterable[ApplyTable], spark: SparkSession, *, but: Container[str] = ()
) -> dict[str, Store]:
    """Open the stores that the tables use, by their names in apply.yaml, `but` those that are open."""
    used = sorted({name for settings in tables for name in settings.stores} or config.stores)
    prefix = config.source.topic_prefix
    stores = {
        name: open_store(config.stores[name], name=name, prefix=prefix, spark=spark) for name in used if name not in but
    }
    for store in stores.values():
        if isinstance(store, WaitingStore) and len(used) > 1:
            store.patience.seconds = min(store.patience.seconds, _BESIDE_OTHERS_S)
    return stores


def evolved(config: ApplyConfig, spark: SparkSession, asides: AsideCopies, route: Route) -> Route:
    """Return a route with table and stores at the newest version of the schema topic."""
    table, stores = newest(config, spark, route.table.qualified), {}
    for name, store in route.stores.items():
        with asides.contained(table.topic, name):
            store.open(table)
            stores[name] = store
    return Route(table, stores)
