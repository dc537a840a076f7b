"""The file of a view job, views.yaml, as frozen dataclasses."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cdc.config.config import DEBEZIUM_NAMES, ApplySource, KafkaConfig, QuarantineConfig
from cdc.config.metrics_config import MetricsConfig
from cdc.config.yaml_binding import load, top_level_keys
from cdc.model.errors import ConfigError

VIEW_SCHEMA: Final = "view"
"""The schema that views are tables of: their topics are ``<prefix>.view.<name>``."""

REFRESHES: Final = ("units", "full")
ENGINES: Final = ("duckdb",)
_NAME: Final = re.compile(r"[a-z][a-z0-9_-]{0,39}")
_VIEW: Final = re.compile(r"[a-z][a-z0-9_]{0,62}")
_MEMORY: Final = re.compile(r"[1-9]\d*(MB|GB)")


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewConfig:
    """A view: its SQL, and the columns of its result that tell its rows apart."""

    sql: str
    """One SELECT in Spark's SQL over captured tables, ``schema.table``, and other views, ``view.name``."""
    key: tuple[str, ...]
    refresh: str = "units"
    """``units``: what a change can touch is computed again; ``full``: everything, after each change."""

    def __post_init__(self) -> None:
        _require(self.sql.strip(), "sql is empty", "sql: SELECT id, status FROM public.orders")
        _require(self.key, "key is empty", "key: [id]  # columns of the result, never null, that tell its rows apart")
        _require(len(set(self.key)) == len(self.key), "key names a column twice", "keep one of them")
        _require(self.refresh in REFRESHES, f"refresh: “{self.refresh}” is not known", f"one of {', '.join(REFRESHES)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewSink:
    """The topics that views are written to."""

    partitions: int = 6
    replication_factor: int | None = None
    """None: the broker's default.replication.factor."""
    transaction_timeout_s: float = 600.0
    """After how long the brokers end a transaction that is still open. What a step changes is written in one."""

    def __post_init__(self) -> None:
        KafkaConfig(
            bootstrap_servers="checked-elsewhere:9092",
            partitions=self.partitions,
            replication_factor=self.replication_factor,
            transaction_timeout_s=self.transaction_timeout_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewsConfig:
    """A view job's file."""

    name: str
    source: ApplySource
    state: str
    """The folder that the job keeps its state in; it can be deleted, and is then made again from the topics."""
    views: Mapping[str, ViewConfig]
    engine: str = "duckdb"
    memory: str = "1GB"
    """The most that the engine keeps in memory; beyond it, it uses the disk beside the state."""
    sink: ViewSink = field(default_factory=ViewSink)
    quarantine: QuarantineConfig = field(default_factory=QuarantineConfig)
    metrics: MetricsConfig = field(default_factory=MetricsConfig)
    """Where figures and health are shown."""
    spark: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Spark properties, added to the job's own."""

    def __post_init__(self) -> None:
        _require(
            _NAME.fullmatch(self.name),
            f"name: “{self.name}” is not a name",
            "a lower-case letter, then lower-case letters, digits, _ and -, at most 40 in all",
        )
        _require(self.views, "views is empty", "views: {open_orders: {sql: SELECT …, key: [id]}}")
        _require(self.state.strip(), "state is empty", "state: ./state/shop-views")
        _require(self.engine in ENGINES, f"engine: “{self.engine}” is not known", f"one of {', '.join(ENGINES)}")
        _require(_MEMORY.fullmatch(self.memory), f"memory: “{self.memory}” is no amount", "memory: 1GB, or 500MB")
        for name in self.views:
            _require(
                _VIEW.fullmatch(name),
                f"views: “{name}” is not a view's name",
                "a lower-case letter, then lower-case letters, digits and _, at most 63 in all",
            )


def describes_views(path: Path) -> bool:
    """Whether a file is a view job's: those have `views`. Raises ConfigError."""
    return "views" in top_level_keys(path)


def load_views(path: Path) -> ViewsConfig:
    """Read a view job's file; relative paths in it are relative to the current directory. Raises ConfigError."""
    return load(path, ViewsConfig, aliases=DEBEZIUM_NAMES)


def _require(ok: object, what: str, hint: str) -> None:
    if not ok:
        raise ConfigError(what, hint=hint)
