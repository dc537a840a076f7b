"""Chooses the tables and stores of apply.yaml, as the schema topic and the broker have them now."""

from __future__ import annotations

from pyspark.sql import SparkSession

from cdc.config.apply_config import ApplyTable
from cdc.config.config import ApplyConfig
from cdc.encode.table_log import log_of
from cdc.model.errors import CdcError, ConfigError, OperatorError
from spark_apply.events.expressions import resolved
from spark_apply.events.kafka.schema_topic import schema_versions
from spark_apply.events.kafka.topics import existing_topics
from spark_apply.events.projection import check_places, projected_table
from spark_apply.events.refusals import refuse_histories, without_log
from spark_apply.job.copies.route import Route
from spark_apply.job.copies.set_aside import AsideCopies
from spark_apply.model.store import Store, open_store
from spark_apply.model.target_table import TargetTable, Version, choose
from spark_apply.spark.environment import require_paths

Chosen = dict[str, tuple[ApplyTable, list[Version]]]
"""By ``schema.table``."""

Unusable = dict[str, tuple[ApplyTable, str, CdcError]]
"""By ``schema.table``: tables of which no copy can be made as they are now, with their topic, and why."""


def choose_usable(config: ApplyConfig) -> tuple[Chosen, Unusable]:
    """Return the tables of apply.yaml with their versions in the schema topic, and those that cannot be copied.

    Raises CdcError for what is wrong in the file.
    """
    places = [(f"stores.{name}.path", store.path) for name, store in config.stores.items() if store.path]
    require_paths([*places, ("checkpoint", config.checkpoint)])
    versions = schema_versions(config.source)
    chosen: Chosen = {}
    tables: dict[str, tuple[ApplyTable, TargetTable]] = {}
    unusable: Unusable = {}
    for table, settings in choose(config.tables, versions).items():
        try:
            tables[table] = (settings, projected_table(versions[table], settings))
        except ConfigError:
            raise
        except CdcError as exc:
            newest = versions[table][-1].topic
            unusable[table] = (settings, log_of(newest) if settings.mode == "history" else newest, exc)
        else:
            chosen[table] = (settings, versions[table])
    refuse_histories(config, tables)
    check_places(tables, {name: store.type for name, store in config.stores.items()})
    return chosen, unusable


def choose_tables(config: ApplyConfig) -> Chosen:
    """Do what `choose_usable` does, and raise CdcError for the first table that cannot be copied."""
    chosen, unusable = choose_usable(config)
    for _, _, error in unusable.values():
        raise error
    return chosen


def newest(config: ApplyConfig, spark: SparkSession, table: str) -> TargetTable:
    """Return a table at its newest version. Raises CdcError if no copy of it can be made."""
    versions = schema_versions(config.source)
    settings = choose(config.tables, versions)[table]
    return resolved(projected_table(versions[table], settings), spark)


def projected_targets(chosen: Chosen, spark: SparkSession) -> dict[str, TargetTable]:
    """Return what copies of the tables hold. Raises ConfigError for the first expression that cannot be used."""
    return {
        table: resolved(projected_table(versions, settings), spark)
        for table, (settings, versions) in sorted(chosen.items())
    }


def without_logs(config: ApplyConfig, chosen: Chosen) -> dict[str, str]:
    """Return the tables in history mode without a log topic, with the topic's name."""
    there = existing_topics(config.source)
    histories = {
        table: projected_table(versions, of).topic for table, (of, versions) in chosen.items() if of.mode == "history"
    }
    return {table: topic for table, topic in histories.items() if topic not in there}


def require_topics(config: ApplyConfig, chosen: Chosen) -> None:
    """Raise OperatorError for a table whose topic does not exist."""
    for table, topic in without_logs(config, chosen).items():
        raise without_log(table, topic)
    there = existing_topics(config.source)
    for table, (settings, versions) in chosen.items():
        topic = projected_table(versions, settings).topic
        if topic not in there:
            msg = f"{table}: its topic {topic} does not exist at {config.source.bootstrap_servers}"
            raise OperatorError(msg, hint="was it deleted? A fresh snapshot of the connector writes it again")


def open_stores(config: ApplyConfig, chosen: Chosen, spark: SparkSession) -> dict[str, Store]:
    """Open the stores that the tables use, by their names in apply.yaml."""
    used = sorted({name for settings, _ in chosen.values() for name in settings.stores} or config.stores)
    prefix = config.source.topic_prefix
    return {name: open_store(config.stores[name], name=name, prefix=prefix, spark=spark) for name in used}


def evolved(config: ApplyConfig, spark: SparkSession, asides: AsideCopies, route: Route) -> Route:
    """Return a route with table and stores at the newest version of the schema topic."""
    table, stores = newest(config, spark, route.table.qualified), {}
    for name, store in route.stores.items():
        with asides.contained(table.topic, name):
            store.open(table)
            stores[name] = store
    return Route(table, stores)
