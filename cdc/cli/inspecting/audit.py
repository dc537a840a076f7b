"""`cdc audit` prints who has asked a connector or a view job for what, and at which position it took effect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import orjson

from cdc.cli.terminal import JSON_OPTION, aligned, instant
from cdc.config import registry
from cdc.config.config import describes_apply, load_apply, load_connector
from cdc.config.kafka_config import KafkaConfig
from cdc.config.views import describes_views, load_views
from cdc.model.errors import OperatorError


@click.command()
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@JSON_OPTION
def audit(file: Path, *, as_json: bool) -> None:
    """Print what was asked of a connector or a job, by whom, and at which position it took effect.

    These are pause, resume, reload, incremental snapshots, rows read again, take-overs, imports of offsets, rebuilds of
    views. Each record is in the Kafka transaction in which the command took effect: what is not here did not happen.
    `cdc erase` and `cdc fleet add`, `remove`, `restart` work beside the connector, are noted beside it: no position.
    So is what is done to an apply job: offsets import, rebuild, quarantine retry, --reset-checkpoint.
    FILE is connector.yaml, apply.yaml or views.yaml: its keys tell.
    """
    name, sink, topic = _of(file)
    acts = list(_acts(name, sink, topic))
    if as_json:
        click.echo(orjson.dumps({"name": name, "acts": acts}).decode())
        return
    rows = [
        ("at", "who", "what", "about", "position", "outcome"),
        *(
            (
                instant(act["at_ms"] / 1000),
                str(act["by"] or "not said"),
                str(act["action"]),
                _about(act["about"]) or "-",
                str(act["position"] or "-"),
                str(act["outcome"]),
            )
            for act in acts
        ),
    ]
    click.echo("\n".join(aligned(rows)) if acts else f"nothing was asked of {name} yet")


def _of(file: Path) -> tuple[str, KafkaConfig, str]:
    """Return whose audit it is, and where it is kept: brokers and topic."""
    log_topic = registry.part("sinks.topics.names:log_topic")
    if describes_views(file):
        views = load_views(file)
        sink: KafkaConfig = registry.part("spark_apply.views.publishing.status:sink_config")(views)
        return views.name, sink, log_topic(sink.prefix, views.name, "audit")
    if describes_apply(file):
        job = load_apply(file)
        prefix = job.source.topic_prefix
        return job.name, job.source.kafka(), registry.part("sinks.topics.names:job_audit_topic")(prefix, job.name)
    config = load_connector(file)
    return config.name, config.sink, log_topic(config.sink.prefix, config.name, "audit")


def _acts(name: str, sink: KafkaConfig, topic: str) -> Iterator[dict[str, Any]]:
    with registry.part("sinks.topics.topics:Topics")(sink.bootstrap_servers, sink.options) as topics:
        if not topics.exists(topic):
            raise OperatorError(
                f"there is no audit of {name}: it has never run, nothing was asked of it, or not since it keeps one",
                hint="topic " + topic + " is made by the first run, or for a job by what is done to it first",
            )
    read = registry.part("sinks.topics.records.read_back:read_to_end")
    for message in read(sink.bootstrap_servers, sink.options, topic, "read_committed", open_too=False):
        try:
            act = orjson.loads(message.value() or b"")
            if not isinstance(act["at_ms"], int) or not isinstance(act["about"], dict):
                raise TypeError
            yield {name: act[name] for name in _MEMBERS}
        except (ValueError, KeyError, TypeError):
            click.echo(f"topic {topic}: the record at offset {message.offset()} is none of ours", err=True)


_MEMBERS = ("at_ms", "connector", "action", "by", "asked_ms", "id", "about", "outcome", "position")


def _about(about: Mapping[str, Any]) -> str:
    parts = []
    for name, value in about.items():
        shown = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        parts.append(f"{name.replace('_', ' ')}: {shown}")
    return "; ".join(parts)
