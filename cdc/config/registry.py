"""Turns names into parts, so that `cdc` imports none of them.

A source of a third party is named ``package.module:callable`` in its configuration. The callable takes a
ConnectorConfig and gives a Source; beside it in its module, ``open_snapshotter`` gives a Snapshotter and
``standing`` reports the server's state, ``check`` its findings (`cdc.config.findings`), ``end`` where its log ends.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, cast

from cdc.config.config import ConnectorConfig, FileSink
from cdc.config.findings import Checked
from cdc.config.kafka_config import KafkaConfig
from cdc.model.errors import ConfigError
from cdc.model.interfaces import Log, Sink, Snapshotter, Source

SOURCES = {
    "postgres": (
        "connectors.postgres.source:open_source",
        "snapshot.postgres.snapshotter:open_snapshotter",
        "connectors.postgres.lag:standing",
        "connectors.postgres.check:check",
        "connectors.postgres.log_end:end",
    ),
    "mysql": (
        "connectors.mysql.source:open_source",
        "snapshot.mysql.snapshotter:open_snapshotter",
        "connectors.mysql.lag:standing",
        "connectors.mysql.check:check",
        "connectors.mysql.log_end:end",
    ),
    "triggers": (
        "connectors.triggers.source:open_source",
        "snapshot.triggers.snapshotter:open_snapshotter",
        "connectors.triggers.lag:standing",
        "connectors.triggers.check:check",
        "connectors.triggers.log_end:end",
    ),
    "etcd": (
        "connectors.etcd.source:open_source",
        "snapshot.etcd:open_snapshotter",
        "connectors.etcd.check:standing",
        "connectors.etcd.check:check",
        "connectors.etcd.check:end",
    ),
}

_CALLED = {"postgresql": "postgres", "pg": "postgres", "mariadb": "mysql", "sqlite": "triggers"}
"""What else a source may be called."""

SINKS = {
    "kafka": "sinks.kafka:open_sink",
    "jsonl": "sinks.jsonl:open_sink",
    "duckdb": "sinks.duckdb.entry:open_sink",
}

_OF_SPARK = frozenset({"duckdb", "opensearchpy", "pyarrow", "pyspark", "sqlglot", "tantivy"})
"""What the extra `spark` installs, by what it is imported as: capture needs none of it."""


def source(config: ConnectorConfig) -> Callable[[], Source]:
    """Find what opens the source. Raises ConfigError for an unknown type."""
    opener = _resolve(_named(config)[0])
    return lambda: cast("Source", opener(config))


def snapshotter(config: ConnectorConfig) -> Callable[[], Snapshotter]:
    """Find what opens the snapshotter. Raises ConfigError for an unknown type."""
    opener = _resolve(_named(config)[1])
    return lambda: cast("Snapshotter", opener(config))


def standing(config: ConnectorConfig) -> Callable[..., Any]:
    """Find what `cdc status` asks the server: a function of (config, state) that gives JSON values."""
    return _resolve(_named(config)[2])


def check(config: ConnectorConfig) -> Callable[..., Checked]:
    """Find what `cdc check` asks the server: a function of (config, state, known=…)."""
    return _resolve(_named(config)[3])


def end(config: ConnectorConfig) -> Callable[..., int]:
    """Find what `cdc token` asks the server: a function of (config, state).

    It gives a commit position above all that was committed before the call, which an idle log reaches at once.
    """
    return _resolve(_named(config)[4])


def sink(config: KafkaConfig, connector: str, *, logs: Collection[Log] = ()) -> Sink:
    """Make a sink that has not connected yet; `logs` are the topics it has beside those of tables."""
    return cast("Sink", _resolve(SINKS[config.type])(config, connector, logs=logs))


def file_sink(file: FileSink, connector: str) -> Sink:
    """Make a sink that is a file, which it has not opened yet."""
    return cast("Sink", _resolve(SINKS[file.type])(file.path, connector))


def part(name: str) -> Callable[..., Any]:
    """Load what a command needs of another package: ``sinks.topics.records.follow:Follower``. Raises ConfigError."""
    return _resolve(name)


def _named(config: ConnectorConfig) -> tuple[str, str, str, str, str]:
    wanted = config.source.type
    if wanted in SOURCES:
        return SOURCES[wanted]
    module, colon, _ = wanted.partition(":")
    if not colon:
        ours = _CALLED.get(wanted.lower(), wanted.lower())
        raise ConfigError(
            f"source.type: there is no source “{wanted}”",
            hint=f"type: {ours}" if ours in SOURCES else f"known: {', '.join(SOURCES)}, or package.module:callable",
        )
    return wanted, f"{module}:open_snapshotter", f"{module}:standing", f"{module}:check", f"{module}:end"


def _resolve(name: str) -> Callable[..., Any]:
    module_name, _, attribute = name.partition(":")
    if not all(part.isidentifier() for part in (*module_name.split("."), attribute)):
        raise ConfigError(f"“{name}” names nothing that Python can import", hint="write package.module:callable")
    try:
        module = importlib.import_module(module_name)
        return cast("Callable[..., Any]", getattr(module, attribute))
    except (ImportError, AttributeError) as exc:
        if (missing := not_installed(exc)) is not None:
            raise missing from exc
        raise ConfigError(f"{name} cannot be loaded: {exc}", hint=_hidden_by(module_name)) from exc


def not_installed(exc: BaseException) -> ConfigError | None:
    """Return the error for a package of the extra `spark` that an import has not found; None for anything else."""
    package = (exc.name or "").partition(".")[0] if isinstance(exc, ModuleNotFoundError) else ""
    if package not in _OF_SPARK:
        return None
    return ConfigError(
        f"{package} is not installed, and this command needs it", hint="pip install 'cdc-toolkit[spark]'"
    )


def _hidden_by(module_name: str) -> str | None:
    """Explain a failed import: a user's own folder named like one of our packages hides ours."""
    top = module_name.partition(".")[0]
    try:
        found = importlib.import_module(top)
    except ImportError:
        return f"is {top} installed in this environment?"
    where = next(iter(getattr(found, "__path__", [])), getattr(found, "__file__", None) or "")
    ours = Path(__file__).parents[2] / top
    if ours.is_dir() and Path(where).resolve() != ours.resolve():
        return f"{where} hides the package {top} of this tool: rename it, or start cdc in another folder"
    return None
