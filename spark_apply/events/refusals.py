"""Refuses histories that cannot be kept, before anything is started. Pure."""

from __future__ import annotations

from cdc.config.apply_config import ApplyTable
from cdc.config.config import ApplyConfig
from cdc.model.errors import ConfigError, OperatorError
from spark_apply.model.store import HISTORIES, STORES
from spark_apply.model.target_table import TargetTable


def refuse_history(config: ApplyConfig, name: str, settings: ApplyTable, table: TargetTable) -> None:
    """Raise ConfigError for a history in a store that keeps none."""
    for store in settings.stores:
        kind = config.stores[store].type
        if table.history and kind in STORES and kind not in HISTORIES:
            msg = f"tables.{name}: store {store} ({kind}) keeps no history"
            raise ConfigError(msg, hint=f"mode: history is kept by stores of type {', '.join(HISTORIES)}")


def without_log(table: str, topic: str) -> OperatorError:
    """Return the error of a history whose log topic is missing: the compacted topic does not keep every version."""
    return OperatorError(
        f"{table}: mode: history is made from topic {topic}, which does not exist",
        hint=f"in the connector's file, sink: {{log: {{tables: [{table}], retention: 30d}}}}; then start it again. "
        "The history begins there; cdc snapshot start CONNECTOR.yaml adds the rows of now",
    )
