"""A connector's file, read again while the connector runs: what may be another now, and what needs a start."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Final

from cdc.config.config import ConnectorConfig
from cdc.config.file_connector import load_any
from cdc.config.kafka_config import KafkaConfig
from cdc.config.source_config import SourceConfig
from cdc.config.yaml.secret_names import names_secret
from cdc.model.errors import StartNeededError

_USERS: Final = ("sasl.username", "sasl.oauthbearer.client.id", "bearer.auth.client.id")
"""Options that say who logs in, by a password or by the secret of a client of OpenID Connect."""

log = logging.getLogger("cdc")


def reread(path: Path, before: ConnectorConfig) -> ConnectorConfig:
    """Read a running connector's file again. Raises ConfigError, of what needs a start StartNeededError."""
    now, of = load_any(path), before.source
    now, logins = _without_logins(now, before)
    free = replace(
        now.source,
        url=of.url,
        tables=of.tables,
        keys=of.keys,
        prefixes=of.prefixes,
        heartbeat_s=of.heartbeat_s,
        on_hole=of.on_hole,
    )
    changed = [
        name
        for name, ours, theirs in (
            ("name", now.name, before.name),
            *_keys("source", free, of),
            *_keys("sink", now.sink, before.sink),
            ("sink", now.into, before.into),
            ("on_error", now.on_error, before.on_error),
            ("metrics", now.metrics, before.metrics),
        )
        if ours != theirs
    ]
    if changed:
        raise StartNeededError(
            f"{', '.join(changed)} cannot be changed while the connector runs",
            hint="start it again; source.url, tables, heartbeat_s and on_hole, and snapshot, can be",
        )
    if logins:
        log.warning(
            "connector %s: %s is another one: what runs goes on with the one that it has, and the new one is taken at "
            "the next start; the rest of the file is taken up",
            now.name, ", ".join(logins),
        )  # fmt: skip
    return now


def _without_logins(now: ConnectorConfig, before: ConnectorConfig) -> tuple[ConnectorConfig, list[str]]:
    """Leave logins of Kafka and of the registry as the clients have them; name those that the file has changed."""
    logins = list[str]()
    if now.into is not None or before.into is not None:
        return now, logins

    def kept(of: str, ours: Mapping[str, str], theirs: Mapping[str, str]) -> Mapping[str, str]:
        rotated = [name for name in ours if ours[name] != theirs.get(name, ours[name]) and _is_login(name)]
        logins.extend(f"{of}.{name}" for name in rotated)
        return {**ours, **{name: theirs[name] for name in rotated}}

    sink, was = now.sink, before.sink
    sink = replace(sink, options=kept("sink.options", sink.options, was.options))
    if sink.registry is not None and was.registry is not None:
        options = kept("sink.registry.options", sink.registry.options, was.registry.options)
        sink = replace(sink, registry=replace(sink.registry, options=options))
    return replace(now, sink=sink), logins


def _is_login(name: str) -> bool:
    return name in _USERS or names_secret(name)


def _keys(
    of: str, now: SourceConfig | KafkaConfig, before: SourceConfig | KafkaConfig
) -> Iterator[tuple[str, object, object]]:
    """Give the keys of a part of the file, and what both files say there."""
    for field in fields(now):
        ours, theirs = getattr(now, field.name), getattr(before, field.name)
        if field.name == "options":  # whose names say more, and are no secret
            yield from ((f"{of}.options.{name}", ours.get(name), theirs.get(name)) for name in {**theirs, **ours})
        else:
            yield f"{of}.{field.name}", ours, theirs
