"""The file of a view job, views.yaml, as frozen dataclasses."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cdc.config.apply_config import ApplySource, QuarantineConfig
from cdc.config.config import DEBEZIUM_NAMES
from cdc.config.kafka_config import KafkaConfig
from cdc.config.metrics_config import MetricsConfig
from cdc.config.published.record_format import RegistryConfig
from cdc.config.requirement import require
from cdc.config.view_pattern import PatternConfig
from cdc.config.yaml.yaml_binding import BOUND_AS, WRITTEN, as_list, load, top_level_keys

VIEW_SCHEMA: Final = "view"
"""The schema that views are tables of: their topics are ``<prefix>.view.<name>``."""
STREAM_SCHEMA: Final = "stream"
"""The schema that streams of other applications are tables of."""

READS_AT: Final = ("now", "event", "arrival")
ON_LOSS: Final = ("stop", "go_on")
STREAM_FORMATS: Final = ("json", "avro")
REFRESHES: Final = ("units", "full")
ENGINES: Final = ("duckdb", "spark", "postgres")
_URLS: Final = ("postgresql://", "postgres://")
_NAME: Final = re.compile(r"[a-z][a-z0-9_-]{0,39}")
_VIEW: Final = re.compile(r"[a-z][a-z0-9_]{0,62}")
_TIME: Final = re.compile(r"([1-9]\d{0,8})([smhd])")
_UNITS_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_MOST_KEPT_MS: Final = 10_000_000 * 86_400_000
"""Engines have no instant that lies so long ago that it could be late beyond this."""
_CORRECTED: Final = "{time: tapped_at, sent: sent_at, received: received_at}"
_OVER_A_VIEW: Final = "let a view with sql read the table so, and have the match over that view"
_MEMORY: Final = re.compile(r"[1-9]\d*(MB|GB)")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadConfig:
    """How a view reads a table: what time its rows have, how late they may come, as of when it is looked up."""

    time: str | None = None
    """The column that says when a row happened."""
    sent: str | None = None
    """The column that says when it was sent, by the clock that has told the time."""
    received: str | None = None
    """The column that says when it was received, by a clock that is right: the time is corrected by the two."""
    keep: str | None = None
    """How long after its time a row may still come or change: ``7d``, ``12h``, ``90m``, ``30s``. None: without end."""
    at: str = "now"
    """Which version of a row is joined: that of now, that of the other row's time, or of the position where it came."""

    def __post_init__(self) -> None:
        require(self.time is None or self.time.strip(), "time is empty", "time: placed_at  # a column of the table")
        require(self.at in READS_AT, f"at: “{self.at}” is not known", f"one of {', '.join(READS_AT)}")
        if self.keep is not None:
            require(_TIME.fullmatch(self.keep), f"keep: “{self.keep}” is no time", "keep: 7d, or 12h, 90m, 30s")
            require(self.time, "keep: it needs the time of a row", "{time: placed_at, keep: 7d}")
            bounded = (self.keep_ms or 0) <= _MOST_KEPT_MS
            require(bounded, f"keep: “{self.keep}” is out of range", "leave it out, and a row may come however late")
        given = [name for name in ("time", "sent", "received") if getattr(self, name) is not None]
        all_or_one = "sent and received correct the time of a row: they go with it, both of them"
        require(given in ([], ["time"]) or len(given) == 3, all_or_one, _CORRECTED)  # noqa: PLR2004 - all of them
        apart = len({self.time, self.sent, self.received}) == len(given) or len(given) <= 1
        require(apart, "time, sent and received are not three columns", _CORRECTED)
        require(
            self.at == "now" or self.time is None,
            f"at: {self.at} is for the table that is looked up, time for the one that looks it up",
            "from: {public.sales: {time: sold_at}, public.rates: {at: event}}",
        )

    @property
    def keep_ms(self) -> int | None:
        """`keep` in milliseconds."""
        found = _TIME.fullmatch(self.keep) if self.keep is not None else None
        return int(found[1]) * _UNITS_MS[found[2]] if found else None


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchConfig:
    """Searches that are kept, and the texts that they find."""

    queries: str
    """The table of searches, or another view."""
    query: str
    """Its column that has the search."""
    docs: str
    """The table of texts, or another view."""
    fields: tuple[str, ...] = field(metadata={BOUND_AS: str | tuple[str, ...]})
    """Its columns that are searched."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "fields", as_list(self.fields))
        require(self.fields, "fields is empty", "fields: [title, body]")
        require(len(set(self.fields)) == len(self.fields), "fields names a column twice", "keep one of them")


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewConfig:
    """A view: its SQL, a pattern or a match, and the columns of its result that tell its rows apart."""

    key: tuple[str, ...]
    sql: str | None = None
    """One SELECT in Spark's SQL over captured tables, ``schema.table``, and other views, ``view.name``."""
    pattern: PatternConfig | None = None
    """Rows that follow each other, or do not, in place of SQL."""
    match: MatchConfig | None = None
    """Searches and the texts that they find, in place of SQL."""
    refresh: str = "units"
    """``units``: what a change can touch is computed again; ``full``: everything, after each change."""
    unit: tuple[str, ...] = ()
    """Columns of the key by which it is divided; empty: by those that its SQL shows to divide it."""
    unit_limit: int | None = None
    """Of how many rows a unit may be computed; None: of any number."""
    reads: Mapping[str, ReadConfig] = field(default_factory=dict, metadata={WRITTEN: "from"})
    """By table, how it is read. Tables that it does not name are read as they are."""

    def __post_init__(self) -> None:
        given = [name for name in ("sql", "pattern", "match") if getattr(self, name) is not None]
        require(given, "a view needs one of sql, pattern and match", "sql: SELECT id, status FROM public.orders")
        require(len(given) == 1, f"{' and '.join(given)} are given", "keep one of them: it is what the view is")
        require(self.sql is None or self.sql.strip(), "sql is empty", "sql: SELECT id, status FROM public.orders")
        require(self.key, "key is empty", "key: [id]  # columns of the result, never null, that tell its rows apart")
        require(len(set(self.key)) == len(self.key), "key names a column twice", "keep one of them")
        by_units = self.sql is not None or self.refresh == "units"
        require(by_units, f"refresh: “{self.refresh}” goes with sql alone", "leave it out")
        require(self.sql is not None or not self.unit, "unit goes with sql alone", "leave it out: it is known here")
        require(len(set(self.unit)) == len(self.unit), "unit names a column twice", "keep one of them")
        whole = "unit divides a view, and refresh: full computes it whole"
        require(not self.unit or self.refresh == "units", whole, "leave one of them out")
        limited = self.unit_limit is None or self.match is None
        require(limited, "unit_limit goes with sql and pattern alone", "leave it out")
        few = self.unit_limit is None or self.unit_limit >= 1
        require(few, f"unit_limit: {self.unit_limit} is out of range", "unit_limit: 1000000  # rows, 1 or more")
        require(self.match is None or not self.reads, "from goes with sql and pattern alone", _OVER_A_VIEW)
        require(self.refresh in REFRESHES, f"refresh: “{self.refresh}” is not known", f"one of {', '.join(REFRESHES)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamConfig:
    """A topic of events that another application writes: objects, which views read as ``stream.<name>``."""

    topic: str
    schema: str
    """Columns with their types, in Spark's SQL: ``id BIGINT, at TIMESTAMP, page STRING``."""
    key: tuple[str, ...]
    """Columns that tell events apart: of several with one key the earliest one counts."""
    time: str | None = None
    """The column that says when an event happened."""
    sent: str | None = None
    """The column that says when it was sent, by the clock that has told the time."""
    received: str | None = None
    """The column that says when it was received, by a clock that is right: the time is corrected by the two."""
    keep: str | None = None
    """How long after its time an event may still come: ``7d``, ``12h``, ``90m``, ``30s``. None: without end."""
    format: str = "json"
    """How an event is written: ``json``, or ``avro``, whose records name their schema at the `registry`."""
    on_loss: str = "stop"
    """What is done where the topic has removed records that were not read: ``stop`` or ``go_on``."""

    def __post_init__(self) -> None:
        require(self.topic.strip(), "topic is empty", "topic: clicks")
        require(self.schema.strip(), "schema is empty", "schema: id BIGINT, at TIMESTAMP, page STRING")
        require(self.key, "key is empty", "key: [id]  # columns that tell events apart")
        require(
            self.format in STREAM_FORMATS,
            f"format: “{self.format}” is not known",
            f"one of {', '.join(STREAM_FORMATS)}",
        )
        require(self.on_loss in ON_LOSS, f"on_loss: “{self.on_loss}” is not known", f"one of {', '.join(ON_LOSS)}")
        ReadConfig(time=self.time, sent=self.sent, received=self.received, keep=self.keep)

    @property
    def keep_ms(self) -> int | None:
        """`keep` in milliseconds."""
        return ReadConfig(time=self.time, keep=self.keep).keep_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRegistry:
    """The schema registry that records of streams in Avro name their schemas at."""

    url: str
    timeout_s: float = 10.0
    """How long an answer may take."""
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Properties of confluent-kafka's client by its names (basic.auth.user.info, ssl.ca.location, …)."""

    def __post_init__(self) -> None:
        _ = self.client

    @property
    def client(self) -> RegistryConfig:
        """What the client takes."""
        return RegistryConfig(url=self.url, timeout_s=self.timeout_s, options=self.options)


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
    streams: Mapping[str, StreamConfig] = field(default_factory=dict)
    """Topics of events that others write, by the name that views read them by."""
    registry: StreamRegistry | None = None
    """Where the schemas of streams in Avro are."""
    engine: str | None = None
    """What computes the views; None: `duckdb` where Spark's master is local, else `spark`. See `engine_of`."""
    tables: str | None = None
    """Where the engine `spark` keeps its tables: a folder or URI that all executors reach; None: in `state`."""
    store: str | None = field(default=None, repr=False)
    """The URL of the database in which the engine `postgres` keeps tables and views, and computes them."""
    memory: str = "1GB"
    """The most that the engine keeps in memory; beyond it, it uses the disk beside the state."""
    sink: ViewSink = field(default_factory=ViewSink)
    quarantine: QuarantineConfig = field(default_factory=QuarantineConfig)
    metrics: MetricsConfig = field(default_factory=MetricsConfig)
    """Where figures and health are shown."""
    spark: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Spark properties, added to the job's own."""

    def __post_init__(self) -> None:
        require(
            _NAME.fullmatch(self.name),
            f"name: “{self.name}” is not a name",
            "a lower-case letter, then lower-case letters, digits, _ and -, at most 40 in all",
        )
        require(self.views, "views is empty", "views: {open_orders: {sql: SELECT …, key: [id]}}")
        require(self.state.strip(), "state is empty", "state: ./state/shop-views")
        require(
            self.engine in (None, *ENGINES), f"engine: “{self.engine}” is not known", f"one of {', '.join(ENGINES)}"
        )
        require(self.tables is None or self.tables.strip(), "tables is empty", "tables: s3a://shop/views")
        require(
            self.tables is None or self.engine in (None, "spark"),
            f"tables: the engine {self.engine} keeps everything in {'store' if self.engine == 'postgres' else 'state'}",
            "leave it out, or say engine: spark",
        )
        require(
            self.engine != "postgres" or self.store is not None,
            "store is missing: the engine postgres keeps tables and views there",
            "store: postgresql://views:${PASSWORD}@db.example/shop",
        )
        require(
            self.engine == "postgres" or self.store is None,
            "store goes with the engine postgres alone",
            "say engine: postgres, or leave it out: apply.yaml copies a view into a store",
        )
        require(
            self.store is None or self.store.startswith(_URLS),
            "store is no URL of PostgreSQL",
            "store: postgresql://views:${PASSWORD}@db.example/shop",
        )
        require(_MEMORY.fullmatch(self.memory), f"memory: “{self.memory}” is no amount", "memory: 1GB, or 500MB")
        for name, stream in self.streams.items():
            require(
                stream.format != "avro" or self.registry is not None,
                f"streams.{name}.format: avro needs the registry that its schemas are at",
                "registry: {url: http://registry.example:8081}  # beside streams",
            )
            require(
                _VIEW.fullmatch(name),
                f"streams: “{name}” is not a stream's name",
                "a lower-case letter, then lower-case letters, digits and _, at most 63 in all",
            )
        for name in self.views:
            require(
                _VIEW.fullmatch(name),
                f"views: “{name}” is not a view's name",
                "a lower-case letter, then lower-case letters, digits and _, at most 63 in all",
            )


def engine_of(config: ViewsConfig, submitted: str | None = None) -> str:
    """Return what computes the views; `submitted` is the master that Spark runs on, where it is not the file's."""
    if config.engine is not None:
        return config.engine
    master = config.spark.get("spark.master") or submitted or "local"
    return "duckdb" if master.startswith("local") else "spark"


def describes_views(path: Path) -> bool:
    """Whether a file is a view job's: those have `views`. Raises ConfigError."""
    return "views" in top_level_keys(path)


def load_views(path: Path) -> ViewsConfig:
    """Read a view job's file; relative paths in it are relative to the current directory. Raises ConfigError."""
    return load(path, ViewsConfig, aliases=DEBEZIUM_NAMES)
