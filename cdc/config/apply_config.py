"""The parts of an apply job's file: the topics it folds, its stores, its tables, its quarantine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cdc.config.kafka_config import KafkaConfig, check_clients
from cdc.config.requirement import require

MODES = ("latest", "history")


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplySource:
    """The topics that an apply job folds."""

    bootstrap_servers: str
    topic_prefix: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Client properties by librdkafka's names; docs/apply-reference.md says which are taken."""

    def __post_init__(self) -> None:
        check_clients(self.bootstrap_servers, self.topic_prefix, self.options)

    def kafka(self) -> KafkaConfig:
        """Return the same as the parts that write topics take it."""
        return KafkaConfig(
            bootstrap_servers=self.bootstrap_servers, topic_prefix=self.topic_prefix, options=self.options
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """A derived store: its type, and where it is."""

    type: str
    path: str | None = None
    url: str | None = field(default=None, repr=False)
    options: Mapping[str, object] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        require(self.path is None or self.path.strip(), "path is empty", "path: ./warehouse")
        require(
            self.url is None or self.url.strip(), "url is empty", "url: postgresql://user:${PASSWORD}@host/database"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyTable:
    """Which stores follow a table, and how its rows are shaped for them. docs/apply-reference.md has examples."""

    stores: tuple[str, ...]
    types: Mapping[str, str] = field(default_factory=dict)
    """Column -> ``string``: keep its JSON text as it is."""
    mode: str = "latest"
    """Which versions of a row are kept: the ``latest``, or its ``history``."""
    untracked: tuple[str, ...] = ()
    """Columns whose change alone makes no new version in a history."""
    columns: tuple[str, ...] = ()
    """The source's columns that copies have, besides the key's. None named: all, and those that are added later."""
    rename: Mapping[str, str] = field(default_factory=dict)
    """The source's name of a column -> its name in copies."""
    where: str | None = None
    """Spark SQL over the source's columns: a row for which it is not true is in no copy."""
    computed: Mapping[str, str] = field(default_factory=dict)
    """Name of a further column -> Spark SQL over the source's columns."""
    target: str | None = None
    """The copies' name, if it is not the table's."""
    partition_by: tuple[str, ...] = ()
    """Partition fields: columns of the copy, or ``days(at)``, ``bucket(16, id)``, …"""

    def __post_init__(self) -> None:
        history = self.mode == "history"
        require(self.mode in MODES, f"mode: “{self.mode}” is not known", f"one of {', '.join(MODES)}")
        require(
            history or not self.untracked,
            "untracked means nothing where the latest version alone is kept",
            "mode: history",
        )
        shaped = self.columns or self.rename or self.where or self.computed or self.partition_by
        require(
            not (history and shaped),
            "a history has the source's rows as they are",
            "leave out columns, rename, where, computed and partition_by; target may stay",
        )
        twice = sorted({name for name in self.columns if self.columns.count(name) > 1})
        require(not twice, f"columns names {', '.join(twice)} twice", "keep one of them")
        require(self.where is None or self.where.strip(), "where is empty", "where: status <> 'draft'")
        require(self.target is None or self.target.strip(), "target is empty", "target: orders_of_today")
        for name, expression in self.computed.items():
            require(name and expression.strip(), f"computed.{name} is empty", "computed: {net: price - tax}")
        for name, other in self.rename.items():
            require(other, f"rename.{name} is empty", f"rename: {{{name}: other}}")


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineConfig:
    """How many events that cannot be applied may be in quarantine."""

    limit: int = 1_000
    """How many may be in quarantine before the job stops; 0: it stops at the first."""

    def __post_init__(self) -> None:
        require(self.limit >= 0, f"limit: {self.limit} is out of range", "how many events; 0 to stop at the first")
