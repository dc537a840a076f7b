"""The two files a user writes, as frozen dataclasses: a connector's and an apply job's."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Final

from cdc.config.metrics_config import MetricsConfig
from cdc.config.patterns import LEFT_OUT, chooses, is_pattern, matches
from cdc.config.published.column_rules import ColumnRules
from cdc.config.published.outbox import OutboxConfig
from cdc.config.published.record_format import RegistryConfig, check_format
from cdc.config.published.where import parse
from cdc.config.yaml_binding import BOUND_AS, load, text_at, top_level_keys
from cdc.model.errors import ConfigError
from cdc.model.interfaces import Log

DEBEZIUM_NAMES = {
    "topic.prefix": "topic_prefix",
    "slot.name": "slot",
    "publication.name": "publication",
    "bootstrap.servers": "bootstrap_servers",
    "provide.transaction.metadata": "transaction_metadata",
}
"""Debezium's option names taken for ours, where they mean the same."""

_NAME = re.compile(r"[a-z][a-z0-9_-]{0,39}")
_PREFIX = re.compile(r"[A-Za-z0-9_-]{1,100}")
_SLOT = re.compile(r"[a-z0-9_]{1,63}")
_RETENTION = re.compile(r"([1-9]\d{0,8})([mhd])")
_UNITS_MS = {"m": 60_000, "h": 3_600_000, "d": 86_400_000}

ON_ERROR = ("stop", "dead_letter")
ON_HOLE = ("reread", "stop")
MODES = ("latest", "history")
JSONL = "jsonl"
"""The type of a sink that is a file of JSON lines."""
PRODUCERS = ("own", "librdkafka")
"""Clients that a connector can write with, the default first."""

GUARANTEED = frozenset(
    {
        "acks",
        "enable.auto.commit",
        "enable.idempotence",
        "enable.partition.eof",
        "isolation.level",
        "max.in.flight.requests.per.connection",
        "partitioner",
        "log.connection.close",
        "log_level",
        "transactional.id",
    }
)
"""Client properties that carry a guarantee: not to be set by a user."""


TOPIC_KEPT = {
    "cleanup.policy": "leave it out: tables are compacted, logs are not",
    "retention.ms": "sink.log.retention is how long logs of tables are kept",
    "retention.bytes": "sink.log.retention is how long logs of tables are kept",
}
"""Properties of topics that carry a guarantee: not to be set by a user."""

TOPIC_LEAST = {
    "max.message.bytes": 1_000_000,
    "segment.bytes": 1_048_576,
    "delete.retention.ms": 7 * 24 * 3600 * 1000,
}
"""The least that correctness needs: a position and a row fit, and a reader that was away for a week sees deletes."""


def _require(ok: object, what: str, hint: str | None = None) -> None:
    if not ok:
        raise ConfigError(what, hint=hint)


def _check_clients(bootstrap_servers: str, topic_prefix: str, options: Mapping[str, str]) -> None:
    _require(bootstrap_servers.strip(), "bootstrap_servers is empty", "bootstrap_servers: 127.0.0.1:9092")
    _require(
        _PREFIX.fullmatch(topic_prefix),
        f"topic_prefix “{topic_prefix}” is not a prefix for topics",
        "letters, digits, _ and -; no dot, so that no two tables can share a topic",
    )
    refused = sorted(GUARANTEED & set(options))
    _require(not refused, f"options: {', '.join(refused)} cannot be set: delivery depends on it", "leave it out")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedTable:
    """An item of `tables` that names the key columns, where the table has no primary key or another key is wanted."""

    table: str
    key: tuple[str, ...]

    def __post_init__(self) -> None:
        _require(
            not is_pattern(self.table) and not self.table.startswith(LEFT_OUT),
            f"table: “{self.table}” is a pattern",
            "a key is of one table alone",
        )
        _require(self.key, "key is empty", "key: [id]")
        _require(len(set(self.key)) == len(self.key), "key names a column twice", "keep one of them")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceConfig:
    """A database and the tables to capture in it."""

    type: str
    url: str = field(repr=False)
    tables: tuple[str, ...] = field(metadata={BOUND_AS: tuple[str | KeyedTable, ...]})
    """Names and patterns; those that begin with ! leave tables out. An item may be a `KeyedTable`: its name is kept
    here, its key in `keys`."""
    slot: str | None = None
    publication: str | None = None
    messages: bool = True
    """Whether what applications write into the log (pg_logical_emit_message) becomes events too."""
    server_id: int | None = None
    """MySQL: the server id that the connector registers with; unique. None: made from the connector's name."""
    on_hole: str = "reread"
    """What happens where the log does not say what was changed: the rows or tables concerned are read again
    (``reread``), or the connector does ``stop``."""
    heartbeat_s: float = 10.0
    """How often a heartbeat is written into the log of a source that others write to; 0: never."""
    columns: Mapping[str, ColumnRules] = field(default_factory=dict)
    """What is published of columns, by table or pattern."""
    where: Mapping[str, str] = field(default_factory=dict)
    """The condition for a row to be published, by table or pattern."""
    outbox: OutboxConfig | None = None
    """The captured table that is an outbox."""
    options: Mapping[str, object] = field(default_factory=dict, repr=False)
    """Options for sources of third parties."""
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict, metadata={BOUND_AS: None})
    """Key columns by table, where an item of `tables` gives them."""

    def __post_init__(self) -> None:
        items: tuple[str | KeyedTable, ...] = self.tables
        keyed = [item for item in items if isinstance(item, KeyedTable)]
        keys = {item.table: item.key for item in keyed}
        for item in keyed:
            _require(keys[item.table] == item.key, f"tables: {item.table} is given two keys", "keep one of them")
        object.__setattr__(self, "keys", {**self.keys, **keys})
        object.__setattr__(self, "tables", tuple(i.table if isinstance(i, KeyedTable) else i for i in items))
        _require(self.url, "url is empty", "url: postgresql://user:${PASSWORD}@host:5432/database")
        _require(self.tables, "tables is empty", "tables: [public.orders]")
        for pattern in self.tables:
            schema, dot, table = pattern.removeprefix(LEFT_OUT).partition(".")
            _require(schema and dot and table, f"tables: “{pattern}” is not schema.table", "public.orders, or public.*")
            _require(
                is_pattern(pattern) or pattern.startswith(LEFT_OUT) or self.captures(pattern),
                f"tables: {pattern} is named and left out",
                "keep one of the two",
            )
        _require(
            any(not pattern.startswith(LEFT_OUT) for pattern in self.tables),
            "tables leaves tables out and names none",
            'tables: ["public.*", "!public.tmp_*"]',
        )
        _require(self.on_hole in ON_HOLE, f"on_hole: “{self.on_hole}” is not known", f"one of {', '.join(ON_HOLE)}")
        _require(
            self.slot is None or _SLOT.fullmatch(self.slot),
            f"slot: “{self.slot}” is not a slot's name",
            "lower-case letters, digits and _, at most 63",
        )
        for name in (
            ("slot", "publication") if self.type == "mysql" else ("server_id",) if self.type == "postgres" else ()
        ):
            _require(
                getattr(self, name) is None, f"{name} means nothing to a source of type {self.type}", "leave it out"
            )
        _require(
            self.server_id is None or 0 < self.server_id < 1 << 32,
            f"server_id: {self.server_id} is out of range",
            "1 to 4294967295, another than that of every server and replica",
        )
        _require(
            0 <= self.heartbeat_s < math.inf, f"heartbeat_s: {self.heartbeat_s} is out of range", "seconds; 0 for never"
        )
        self._check_rules()

    def _check_rules(self) -> None:
        outbox = self.outbox.table if self.outbox is not None else None
        _require(
            outbox is None or (not is_pattern(outbox) and self.captures(outbox)),
            f"outbox.table: “{outbox}” is not captured",
            f"add it to tables, which has {', '.join(self.tables)}",
        )
        ruled = [name for name in (*self.columns, *self.where) if outbox is not None and matches(name, outbox)]
        _require(not ruled, f"{outbox} is the outbox, and has rules ({', '.join(ruled)})", "leave it out of the rules")
        rules: dict[str, Iterable[str]] = {"columns": self.columns, "where": self.where}
        for part, names in rules.items():
            for name in names:
                _require(
                    is_pattern(name) or self.captures(name),
                    f"{part}: “{name}” is not captured",
                    f"add it to tables, which has {', '.join(self.tables)}",
                )
        for name, text in self.where.items():
            try:
                parse(text)
            except ConfigError as exc:
                raise ConfigError(f"where.{name}: {exc.message}", hint=exc.hint) from exc

    def captures(self, table: str) -> bool:
        """Whether `tables` names ``schema.table``."""
        return chooses(self.tables, table)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """The tables whose events are also kept in a log, where no event replaces another: histories are made from it."""

    tables: tuple[str, ...]
    """Names and patterns, as `source.tables` has them."""
    retention: str
    """``30d``, ``12h``, ``90m`` or ``forever``."""

    def __post_init__(self) -> None:
        _require(self.tables, "tables is empty", "tables: [public.orders]")
        for pattern in self.tables:
            schema, _, table = pattern.partition(".")
            _require(schema and table, f"tables: “{pattern}” is not schema.table", "public.orders, or public.*")
        _require(
            self.retention == "forever" or _RETENTION.fullmatch(self.retention),
            f"retention: “{self.retention}” is no time",
            "30d, 12h, 90m, or forever",
        )

    @property
    def retention_ms(self) -> int:
        """The retention as Kafka has it: -1 is for ever."""
        found = _RETENTION.fullmatch(self.retention)
        return int(found[1]) * _UNITS_MS[found[2]] if found else -1

    def has(self, table: str) -> bool:
        """Whether ``schema.table`` has a log."""
        return any(matches(pattern, table) for pattern in self.tables)


LEAST_TRANSACTION_S: Final = 10
MOST_TRANSACTION_S: Final = 86_400
LEAST_IDLE_S: Final = 0.5
MOST_IDLE_S: Final = 60.0
"""A copy that was fenced off notices at its next commit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaConfig:
    """The Kafka cluster and topics that events go to."""

    type: str = "kafka"
    bootstrap_servers: str
    topic_prefix: str | None = None
    producer: str = "own"
    """Which client writes: our own, or librdkafka, which is slower and gives the same guarantees."""
    partitions: int = 6
    replication_factor: int | None = None
    """None: the broker's default.replication.factor."""
    transaction_timeout_s: float = 600.0
    """After how long the brokers end a transaction that is still open. A source transaction is written in one."""
    idle_position_s: float = 10.0
    """How often the position is committed where nothing happens; views' clocks move with it."""
    transaction_metadata: bool = False
    """Whether the beginning and end of each source transaction are written to a topic of their own."""
    log: LogConfig | None = None
    """The tables that have a log."""
    format: str = "envelope"
    """A shape (``envelope``, ``flat``: the row alone), an encoding (``json``, ``connect-json``, ``avro``,
    ``json-schema``), or both."""
    formats: Mapping[str, str] = field(default_factory=dict)
    """The format by table or pattern, where it is another; the first that fits is taken."""
    flat_metadata: tuple[str, ...] = ()
    """What a flat value has besides the row."""
    registry: RegistryConfig | None = None
    headers: tuple[str, ...] = ()
    """What records tell in headers."""
    topic_config: Mapping[str, str | None] = field(default_factory=dict)
    """Topic properties by Kafka's names, in place of ours or beside them; None: what the broker has."""
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Client properties by librdkafka's names (security.protocol, sasl.username, …)."""

    def __post_init__(self) -> None:
        _require(self.type == "kafka", f"type: “{self.type}” is not a sink", "type: kafka")
        _require(self.producer in PRODUCERS, f"producer: “{self.producer}” is not known", " or ".join(PRODUCERS))
        _require(self.partitions > 0, f"partitions: {self.partitions} is out of range", "1 or more")
        _require(
            self.replication_factor is None or self.replication_factor > 0,
            "replication_factor: must be 1 or more",
            "leave it out for the broker's default",
        )
        _require(
            LEAST_TRANSACTION_S <= self.transaction_timeout_s <= MOST_TRANSACTION_S,
            f"transaction_timeout_s: {self.transaction_timeout_s:g} is out of range",
            f"{LEAST_TRANSACTION_S} to {MOST_TRANSACTION_S}, and no more than the brokers' transaction.max.timeout.ms",
        )
        check_format(
            self.format, self.formats, metadata=self.flat_metadata, headers=self.headers, registry=self.registry
        )
        _require(
            LEAST_IDLE_S <= self.idle_position_s <= MOST_IDLE_S,
            f"idle_position_s: {self.idle_position_s:g} is out of range",
            f"{LEAST_IDLE_S:g} to {MOST_IDLE_S:g}",
        )
        _check_clients(self.bootstrap_servers, self.topic_prefix or "x", self.options)
        for name, value in self.topic_config.items():
            _require(
                name not in TOPIC_KEPT,
                f"topic_config: {name} cannot be set: no event may be lost",
                TOPIC_KEPT.get(name),
            )
            least = TOPIC_LEAST.get(name)
            _require(
                least is None
                or (value is None and name != "delete.retention.ms")
                or (value is not None and value.isdecimal() and int(value) >= least),
                f"topic_config: {name}: {value} is out of range",
                f"a whole number, {least} or more",
            )
        _require(
            self.topic_config.get("unclean.leader.election.enable") != "true",
            "topic_config: unclean.leader.election.enable: true loses what was acknowledged",
            "leave it out",
        )

    @property
    def prefix(self) -> str:
        """`topic_prefix`, which `load_connector` fills in with the connector's name."""
        if self.topic_prefix is None:
            raise ConfigError("topic_prefix is not known", hint="load the file with load_connector")
        return self.topic_prefix


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotConfig:
    """How the initial snapshot is read: by how many sessions, in chunks of what size."""

    workers: int = 2
    """Sessions that read in parallel: different tables, or different key ranges of a large table."""
    chunk_rows: int = 50_000
    """How many rows' events share one Kafka transaction with their progress."""
    max_rows_per_second: int | None = None
    """How many rows snapshots read a second, on average; None: as many as they can."""

    def __post_init__(self) -> None:
        _require(self.workers > 0, "workers: must be 1 or more")
        _require(self.chunk_rows > 0, "chunk_rows: must be 1 or more")
        _require(
            self.max_rows_per_second is None or self.max_rows_per_second > 0,
            "max_rows_per_second: must be 1 or more",
            "leave it out to read as fast as it goes; cdc pause holds a connector",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorConfig:
    """A connector's file, connector.yaml."""

    name: str
    source: SourceConfig
    sink: KafkaConfig
    snapshot: SnapshotConfig = field(default_factory=SnapshotConfig)
    on_error: str = "stop"
    """What happens at a poison record, whose event cannot be written: ``stop``, or ``dead_letter``."""
    metrics: MetricsConfig = field(default_factory=MetricsConfig)
    into: str | None = field(default=None, metadata={BOUND_AS: None})
    """The file that events go to in place of Kafka: see `cdc.config.file_connector`."""

    def __post_init__(self) -> None:
        _check_name(self.name)
        _require(
            self.on_error in ON_ERROR, f"on_error: “{self.on_error}” is not known", f"one of {', '.join(ON_ERROR)}"
        )
        outbox = self.source.outbox
        _require(
            outbox is None or outbox.topic_prefix.partition(".")[0] != self.sink.topic_prefix,
            "source.outbox.topic_prefix begins with sink.topic_prefix: its topics would look like tables'",
            "another one of the two",
        )
        for table in self.sink.formats:
            _require(
                is_pattern(table) or self.source.captures(table),
                f"sink.formats: “{table}” is not captured",
                f"add it to source.tables, which has {', '.join(self.source.tables)}",
            )
        for table in self.sink.log.tables if self.sink.log is not None else ():
            _require(
                is_pattern(table) or self.source.captures(table),
                f"sink.log.tables: “{table}” is not captured",
                f"add it to source.tables, which has {', '.join(self.source.tables)}",
            )

    @property
    def logs(self) -> frozenset[Log]:
        """The logs beside the tables' topics that this connector writes."""
        wanted: dict[Log, bool] = {
            "message": self.source.messages,
            "transaction": self.sink.transaction_metadata,
            "dead-letter": self.on_error == "dead_letter",
        }
        return frozenset(log for log, on in wanted.items() if on)

    @property
    def slot(self) -> str:
        return self.source.slot or f"cdc_{self.name.replace('-', '_')}"

    @property
    def publication(self) -> str:
        return self.source.publication or f"cdc_{self.name.replace('-', '_')}"

    @property
    def binding(self) -> dict[str, str]:
        """The settings that a position depends on and no other check compares; in the position topic, never secret.

        Partitions are compared with the topics', the tables with the position's, the server by its identity.
        """
        if self.source.type == "mysql":
            return {"source.type": self.source.type}
        return {
            "source.type": self.source.type,
            "source.slot": self.slot,
            "source.publication": self.publication,
        }


def _check_name(name: str) -> None:
    _require(
        _NAME.fullmatch(name),
        f"name: “{name}” is not a name",
        "a lower-case letter, then lower-case letters, digits, _ and -, at most 40 in all",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplySource:
    """The topics that an apply job folds."""

    bootstrap_servers: str
    topic_prefix: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Client properties by librdkafka's names; docs/apply-reference.md says which are taken."""

    def __post_init__(self) -> None:
        _check_clients(self.bootstrap_servers, self.topic_prefix, self.options)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """A derived store: its type, and where it is."""

    type: str
    path: str | None = None
    url: str | None = field(default=None, repr=False)
    options: Mapping[str, object] = field(default_factory=dict, repr=False)


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
    retypes: ClassVar[bool] = False
    """Whether a column whose type changes to one that no copy can be altered to gets a type that holds both."""

    def __post_init__(self) -> None:
        history = self.mode == "history"
        _require(self.mode in MODES, f"mode: “{self.mode}” is not known", f"one of {', '.join(MODES)}")
        _require(
            history or not self.untracked,
            "untracked means nothing where the latest version alone is kept",
            "mode: history",
        )
        shaped = self.columns or self.rename or self.where or self.computed or self.partition_by
        _require(
            not (history and shaped),
            "a history has the source's rows as they are",
            "leave out columns, rename, where, computed and partition_by; target may stay",
        )
        twice = sorted({name for name in self.columns if self.columns.count(name) > 1})
        _require(not twice, f"columns names {', '.join(twice)} twice", "keep one of them")
        _require(self.where is None or self.where.strip(), "where is empty", "where: status <> 'draft'")
        _require(self.target is None or self.target.strip(), "target is empty", "target: orders_of_today")
        for name, expression in self.computed.items():
            _require(name and expression.strip(), f"computed.{name} is empty", "computed: {net: price - tax}")
        for name, other in self.rename.items():
            _require(other, f"rename.{name} is empty", f"rename: {{{name}: other}}")


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineConfig:
    """How many events that cannot be applied may be in quarantine."""

    limit: int = 1_000
    """How many may be in quarantine before the job stops; 0: it stops at the first."""

    def __post_init__(self) -> None:
        _require(self.limit >= 0, f"limit: {self.limit} is out of range", "how many events; 0 to stop at the first")


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyConfig:
    """An apply job's file, apply.yaml."""

    name: str
    source: ApplySource
    stores: Mapping[str, StoreConfig]
    tables: Mapping[str, ApplyTable]
    checkpoint: str
    quarantine: QuarantineConfig = field(default_factory=QuarantineConfig)
    spark: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Spark properties, added to the job's own."""
    metrics: MetricsConfig = field(default_factory=MetricsConfig)

    def __post_init__(self) -> None:
        _check_name(self.name)
        _require(self.stores, "stores is empty", "stores: {warehouse: {type: iceberg, path: ./warehouse}}")
        _require(self.tables, "tables is empty", "tables: {public.orders: {stores: [warehouse]}}")
        for name, table in self.tables.items():
            _require("." in name, f"tables: “{name}” is not schema.table", "public.orders, or public.*")
            _require(table.stores, f"tables.{name}.stores is empty", f"one or more of {', '.join(self.stores)}")
            for store in table.stores:
                _require(
                    store in self.stores,
                    f"tables.{name}.stores: there is no store “{store}”",
                    f"stores of this file: {', '.join(self.stores)}",
                )


def load_connector(path: Path, *, references: Callable[[str], str] | None = None) -> ConnectorConfig:
    """Read the file of a connector that writes to Kafka. Raises ConfigError.

    `references` stands in for what replaces references, where their values are not to be had.
    """
    return _connector(path, None, references)


def parse_connector(text: str, where: Path, *, references: Callable[[str], str] | None = None) -> ConnectorConfig:
    """Read the same from a text, which messages call `where`. Raises ConfigError."""
    return _connector(where, text, references)


def _connector(path: Path, text: str | None, references: Callable[[str], str] | None) -> ConnectorConfig:
    if text_at(path, "sink", "type", text=text) == JSONL:
        raise ConfigError(
            f"{path}: sink.type is {JSONL}: this connector has no topics",
            hint="cdc run is the command for it; what it has written is in sink.path",
        )
    config = load(path, ConnectorConfig, aliases=DEBEZIUM_NAMES, text=text, references=references)
    if config.sink.topic_prefix is not None:
        return config
    return replace(config, sink=replace(config.sink, topic_prefix=config.name))


def describes_apply(path: Path) -> bool:
    """Whether a file is an apply job's: those have `stores`, connectors have none. Raises ConfigError."""
    return "stores" in top_level_keys(path)


def load_apply(path: Path) -> ApplyConfig:
    """Read an apply job's file; relative paths in it are relative to the current directory. Raises ConfigError."""
    return load(path, ApplyConfig, aliases=DEBEZIUM_NAMES)
