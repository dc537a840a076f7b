"""Makes the file of a replay out of a job's: name, checkpoint and copies of its own; no live one is touched. Pure."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import replace

from cdc.config.apply_config import ApplyTable
from cdc.config.config import ApplyConfig
from cdc.config.metrics_config import MetricsConfig
from cdc.model.errors import ConfigError
from spark_apply.model.store import STORES
from spark_apply.model.target_table import HISTORY_SUFFIX, choose


def beside(config: ApplyConfig, name: str, known: Iterable[str], *, but: Container[str] = ()) -> ApplyConfig:
    """Return the file of a replay called `name`; `known` are the tables of the schema topic, `but` those it has not.

    Copies are called as the live ones with the name behind. Raises ConfigError where one would be another table's, or a
    store may not tell copies of two names apart.
    """
    for store, of in config.stores.items():
        if of.type not in STORES:
            raise ConfigError(
                f"stores.{store}: whether a store of type {of.type} keeps copies of two names apart is not known: a "
                "replay could write to the live ones",
                hint="write an apply.yaml of its own, with another place, and start it: cdc apply APPLY.yaml",
            )
    live = choose(config.tables, known)
    taken = {(table.partition(".")[0], copy_of(table, settings).lower()) for table, settings in live.items()}
    tables: dict[str, ApplyTable] = {}
    for table, settings in live.items():
        if table in but:
            continue
        target = f"{copy_of(table, settings)}_{name.replace('-', '_')}"
        if (table.partition(".")[0], target.lower()) in taken:
            raise ConfigError(
                f"--as {name}: the copy of {table} would be called {target}, which is another table's",
                hint="another name",
            )
        tables[table] = replace(settings, target=target)
    _require_apart(tables)
    return replace(named(config, name), tables=tables)


def named(config: ApplyConfig, name: str) -> ApplyConfig:
    """Return the file with name and checkpoint of the replay alone. Raises ConfigError for the job's own name."""
    if name == config.name:
        raise ConfigError(f"--as {name}: that is the job itself", hint="another name: the replay runs beside it")
    return replace(
        config,
        name=config.replay_name(name),
        checkpoint=f"{config.checkpoint.rstrip('/')}-{name}",
        metrics=MetricsConfig(),
    )


def copy_of(table: str, settings: ApplyTable) -> str:
    """Return what a table's copies are called."""
    _, _, plain = table.partition(".")
    return settings.target or (f"{plain}{HISTORY_SUFFIX}" if settings.mode == "history" else plain)


def _require_apart(tables: Mapping[str, ApplyTable]) -> None:
    seen: dict[tuple[str, str], str] = {}
    for table, settings in tables.items():
        place = table.partition(".")[0], (settings.target or "").lower()
        other = seen.setdefault(place, table)
        if other != table:
            raise ConfigError(f"the copies of {other} and {table} would both be called {settings.target}",
                              hint="give one of them another target in the file")  # fmt: skip
