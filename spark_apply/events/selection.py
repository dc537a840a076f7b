"""Tells which tables the settings of apply.yaml fit: one rule for whatever reads the file. Pure.

What the file names must fit: otherwise the file is wrong, and nothing is begun. A table that only a pattern brings is
set aside, as nobody had it in mind when the file was written; the others go on. Of two tables with one target it is the
one that a name brings that has it, or else the one that came first: it has the target already.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

from cdc.config.apply_config import ApplyTable
from cdc.config.config import ApplyConfig
from cdc.model.errors import CdcError, ConfigError
from spark_apply.events.projection import followed_table
from spark_apply.events.refusals import refuse_history
from spark_apply.model.target_table import HISTORY_SUFFIX, TargetTable, Version, choose

PARTITIONED = frozenset({"iceberg"})
"""The types of stores that have partitions."""

_Place = tuple[str, str, str]
"""Store, schema and name of a copy."""


@dataclass(frozen=True, slots=True)
class Fitting:
    """The tables of apply.yaml, by ``schema.table``."""

    settings: Mapping[str, ApplyTable]
    """Of all."""
    made: Mapping[str, TargetTable]
    """What copies hold, without computed columns, of those that the settings fit."""
    errors: Mapping[str, CdcError]
    """Why there can be no copy of the others."""


def fitting(config: ApplyConfig, versions: Mapping[str, Sequence[Version]], *, but: Container[str] = ()) -> Fitting:
    """Judge the tables that the schema topic has, in its order; those of `but` are passed over.

    Raises ConfigError for what the file names and does not fit.
    """
    chosen = {table: of for table, of in choose(config.tables, versions).items() if table not in but}
    made, errors, taken = dict[str, TargetTable](), dict[str, CdcError](), dict[_Place, str]()
    for table in dict.fromkeys([*config.tables, *versions]):
        if table not in chosen:
            continue
        places = _places(versions[table], chosen[table])
        try:
            _require_places(table, places, taken)
            found = followed_table(versions[table], chosen[table])
            refuse_history(config, table, chosen[table], found)
            _require_partitions(config, table, chosen[table], found)
            made[table] = found
        except CdcError as exc:
            if stops_all(config, table, exc):
                raise
            errors[table] = exc
        if not isinstance(errors.get(table), ConfigError):  # it may have a copy, also where it cannot go on
            taken.update(dict.fromkeys(places, table))
    return Fitting(chosen, {table: made[table] for table in sorted(made)}, errors)


def fitting_one(config: ApplyConfig, versions: Mapping[str, Sequence[Version]], table: str) -> Fitting:
    """Do what `fitting` does for one table, and those that have a target with it."""
    chosen = choose(config.tables, versions)
    places = {*_places(versions[table], chosen[table])}
    return fitting(config, versions, but={of for of in chosen if not places & {*_places(versions[of], chosen[of])}})


def stops_all(config: ApplyConfig, table: str, error: CdcError) -> bool:
    """Whether an error of a table is one of the file: of what it names, and not by a pattern alone."""
    return isinstance(error, ConfigError) and table in config.tables


def _places(versions: Sequence[Version], settings: ApplyTable) -> list[_Place]:
    newest = versions[-1]
    name = settings.target or f"{newest.table}{HISTORY_SUFFIX if settings.mode == 'history' else ''}"
    return [(store, newest.schema, name) for store in settings.stores]


def _require_places(table: str, places: Sequence[_Place], taken: Mapping[_Place, str]) -> None:
    for place in places:
        if place in taken:
            store, schema, name = place
            msg = f"tables.{table} and tables.{taken[place]}: both would be {schema}.{name} in store {store}"
            raise ConfigError(msg, hint="give one of them another target")


def _require_partitions(config: ApplyConfig, table: str, settings: ApplyTable, made: TargetTable) -> None:
    for store in settings.stores if made.partition_by else ():
        kind = config.stores[store].type
        if kind not in PARTITIONED:
            msg = f"tables.{table}.partition_by: store {store}, of type {kind}, has no partitions"
            raise ConfigError(msg, hint=f"leave it out; stores that have: {', '.join(sorted(PARTITIONED))}")
